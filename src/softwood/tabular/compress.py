"""A fitted model in, one small ensemble out that predicts almost the same.

The small ensemble is *taught*: it is fitted to the raw scores that the large model gives to the rows of a table and to
made-up rows near them. Scores have no noise, so a few trees suffice where training on labels would want many, and
the soft bands can be narrow, so that a row reaches few leaves. How much is lost is measured on rows that the teaching
did not see.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.model.importance import N_ROWS as N_IMPORTANCE_ROWS
from softwood.model.model import Model
from softwood.model.parts import Head, ModelMember
from softwood.tabular.columns import Preprocessor
from softwood.tabular.compression import Compression, compare, stored_parameters
from softwood.tabular.features import LOOKUP
from softwood.tabular.monotone import monotone_signs, restrict_monotone
from softwood.tabular.table import Table
from softwood.training import Loss, MemberData, Samples, TrainingConfig, fit_members

# Trees of a student, the width at which its soft bands end, and bins of a number, from the smallest on. Functions that
# need many trees have sharp splits anyway, and narrow bands keep those from being found.
_SIZES = ((1, 0.2, 6), (2, 0.2, 6), (4, 0.2, 6), (8, 0.2, 6), (16, 0.2, 6), (32, 0.3, 12), (64, 0.5, 24))
# Where "auto" begins, and the expected loss that it accepts, by task.
_AUTO_FIRST = 4
_AUTO_LOSS = {"binary": 0.06, "multiclass": 0.06, "multilabel": 0.06, "regression": 0.005}
# Rows that a student sees: four times those given, within these bounds.
_MIN_ROWS, _MAX_ROWS = 12_000, 120_000
_HELD_OUT_SHARE = 0.15
# A made-up row is a row some of whose columns are those of a neighbour: the nearest of a few drawn at random.
_MIXED_SHARE, _N_CANDIDATES = 0.3, 8
_BLOCK_ROWS = 4096
# Scores beyond this are as good as sure; imitating their size would cost accuracy where it matters.
_LARGEST_SCORE = 8.0
# Where the model is surer than this on average, differences of its log-loss are measured against this.
_LEAST_ENTROPY = 0.2
_MIN_TABLE_ROWS = 10


@dataclass(frozen=True)
class Limits:
    """What a compressed model must keep to; all None: "auto".

    Attributes
    ----------
    max_parameters : int, optional
        Largest number of stored values.
    max_loss : float, optional
        Expected loss at most, relative to that of the model; see `expected_loss`.
    """

    max_parameters: int | None = None
    max_loss: float | None = None

    def check(self) -> None:
        """Raise a ValueError if a limit is out of range."""
        if self.max_parameters is not None and self.max_parameters < 1:
            raise ValueError(f"max_parameters must be at least 1, or None; got {self.max_parameters!r}.")
        if self.max_loss is not None and not self.max_loss > 0:
            raise ValueError(f"max_loss must be a number above 0, or None; got {self.max_loss!r}.")


@dataclass(frozen=True, eq=False)
class Student:
    """One attempt: the taught model, and its expected loss on held-out rows."""

    model: Model
    n_trees: int
    expected_loss: float

    @property
    def n_parameters(self) -> int:
        """Numbers that the model stores."""
        return stored_parameters(self.model)


def can_teach(model: Model, n_rows: int) -> bool:
    """Whether a table of so many rows is enough to teach a small model from this one."""
    return n_rows >= _MIN_TABLE_ROWS and bool(model.preprocessor.lookups)


def compress_model(
    model: Model,
    table: Table,
    targets: NDArray[Any] | None,
    limits: Limits,
    *,
    monotonic_cst: Any = None,
    seed: int,
    n_threads: int | None = None,
) -> tuple[Model, Compression]:
    """One small model that predicts almost what a model predicts, and what that cost.

    Parameters
    ----------
    model : Model
    table : Table
        Rows like those that will be predicted, with the columns of the model.
    targets : ndarray [n] or [n, t], optional
        Their targets, as the caller gave them.
    limits : Limits
    monotonic_cst : object
        Constraints that the model was fitted with.
    seed : int
    n_threads : int, optional
    """
    if table.n_rows < _MIN_TABLE_ROWS:
        raise ValueError(f"compress needs at least {_MIN_TABLE_ROWS} rows of X; got {table.n_rows}.")
    if targets is not None and len(targets) != table.n_rows:
        raise ValueError(f"X and y must have the same number of rows; got {table.n_rows} and {len(targets)}.")
    program = model.program
    chosen = restrict_monotone(monotonic_cst, program.given_columns or program.column_names, program.places)
    signs = monotone_signs(chosen, model.preprocessor, model.head.task, (LOOKUP,))
    base = model.preprocessor.read(table)
    best, tried, held_out = teach_students(model, base, limits, seed=seed, n_threads=n_threads, signs=signs)
    measured = None if targets is None else targets[held_out]
    sizes = [{"n_trees": s.n_trees, "n_parameters": s.n_parameters, "expected_loss": s.expected_loss} for s in tried]
    return best.model, compare(model, best.model, sizes, best.expected_loss, table.take(held_out), measured)


def teach_students(
    model: Model,
    base: NDArray[np.float32],
    limits: Limits,
    *,
    seed: int,
    n_threads: int | None = None,
    signs: Mapping[int, int] | None = None,
) -> tuple[Student, list[Student], NDArray[np.int64]]:
    """Teach students of rising size until one keeps to the limits.

    Returns the best, all that were tried, and the numbers of the rows that no student saw.

    Parameters
    ----------
    model : Model
    base : ndarray [n, q]
        Rows of the base matrix, such as those of the training table.
    limits : Limits
    seed : int
    n_threads : int, optional
    signs : mapping, optional
        Base columns that students must rise or fall with, as in `softwood.tabular.lookups.fit_lookups`.
    """
    limits.check()
    lesson = _prepare(model, base, seed, n_threads)
    tried: list[Student] = []
    for n_trees, gamma, n_bins in _sizes(limits):
        student = _teach(model, lesson, n_trees, gamma, n_bins, seed, n_threads, signs)
        if limits.max_parameters is not None and student.n_parameters > limits.max_parameters:
            break
        tried.append(student)
        is_judged = limits.max_loss is not None or limits.max_parameters is None
        if is_judged and student.expected_loss <= (limits.max_loss or _AUTO_LOSS[model.head.task]):
            break
    if not tried:
        raise ValueError(
            f"max_parameters must leave room for one tree, which takes {student.n_parameters} on this table; "
            f"got {limits.max_parameters}."
        )
    return min(tried, key=lambda student: student.expected_loss), tried, lesson.held_out_rows


def _sizes(limits: Limits) -> Iterator[tuple[int, float, int]]:
    is_auto = limits.max_parameters is None and limits.max_loss is None
    yield from _SIZES[_AUTO_FIRST if is_auto else 0 :]


def expected_loss(head: Head, scores: NDArray[np.float64], of_student: NDArray[np.float64]) -> float:
    """How much worse a student is on average if the model's predictions are right, relative to the model's own loss.

    For a classification the mean divergence of the student's probabilities from the model's over the mean entropy of
    the model's: the rise of the log-loss. For a regression the mean squared difference of scores over their variance.
    """
    if head.task == "regression":
        return float(np.mean((scores - of_student) ** 2) / max(float(np.var(scores, axis=0).mean()), 1e-300))
    p, q = (np.clip(_distributions(head, s), 1e-12, 1) for s in (scores, of_student))
    entropy = -float((p * np.log(p)).sum(axis=1).mean())
    return float((p * np.log(p / q)).sum(axis=1).mean()) / max(entropy, _LEAST_ENTROPY)


def _distributions(head: Head, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities that sum to 1 in each row [n, classes]; a row per label and row of the table, if it has labels."""
    probability = head.predictions(scores)
    if head.task != "multilabel":
        return probability
    return np.column_stack([1 - probability.ravel(), probability.ravel()])


@dataclass(frozen=True, eq=False)
class _Lesson:
    """What all students of one model share."""

    base: NDArray[np.float32]
    target: NDArray[np.float64]
    held_out_rows: NDArray[np.int64]
    # Raw scores of the model are centre + scale * target.
    centre: NDArray[np.float64]
    scale: float
    held_out_base: NDArray[np.float32]
    held_out_scores: NDArray[np.float64]
    importance_rows: NDArray[np.float32]


def _prepare(model: Model, base: NDArray[np.float32], seed: int, n_threads: int | None) -> _Lesson:
    random = np.random.default_rng(seed)
    order = random.permutation(len(base))
    n_held_out = max(1, round(_HELD_OUT_SHARE * len(base)))
    kept, held_out = base[order[n_held_out:]], base[order[:n_held_out]]
    n_rows = min(_MAX_ROWS, max(_MIN_ROWS, 4 * len(base)))
    made = [made_up_rows(model.preprocessor, rows, round(n_rows * share), random)
            for rows, share in ((kept, 1 - _HELD_OUT_SHARE), (held_out, _HELD_OUT_SHARE))]  # fmt: skip
    train_base, held_out_base = np.vstack([kept, made[0]]), np.vstack([held_out, made[1]])
    scores = model.predictor().base_scores(train_base, n_threads=n_threads)
    held_out_scores = model.predictor().base_scores(held_out_base, n_threads=n_threads)
    target = _lesson_scores(model.head, scores)
    centre, scale = target.mean(axis=0), max(float(target.std()), 1e-12)
    return _Lesson(
        train_base, (target - centre) / scale, order[:n_held_out], centre, scale, held_out_base, held_out_scores,
        kept[:N_IMPORTANCE_ROWS],
    )  # fmt: skip


def _lesson_scores(head: Head, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores as a student learns them: those of classes have mean 0, and none is surer than sure."""
    if head.task == "regression":
        return scores
    if head.task == "multiclass":
        scores = scores - scores.mean(axis=1, keepdims=True)
    return np.clip(scores, -_LARGEST_SCORE, _LARGEST_SCORE)


def _teach(
    model: Model,
    lesson: _Lesson,
    n_trees: int,
    gamma: float,
    n_bins: int,
    seed: int,
    n_threads: int | None,
    signs: Mapping[int, int] | None,
) -> Student:
    preprocessor = copy.copy(model.preprocessor)
    n = len(lesson.base)
    lookups = preprocessor.learn_encodings(
        lesson.base, names=(LOOKUP,), n_bins=n_bins, rows=np.arange(n), weight=np.ones(n), signs=signs
    )
    if lookups is None:
        raise ValueError("compress needs a column of X with two values at least; got none.")
    samples = Samples(lookups.cells(lesson.base, n_threads=n_threads), lesson.target, encoding=lookups)
    config = TrainingConfig(
        Loss("squared_error"), n_trees=n_trees, depth=4, gamma=1.0, gamma_end=gamma, gamma_window=(0.0, 0.8), l1=0.01,
        max_features=min(1.0, max(0.3, 3 / lookups.n_features)), learning_rate=0.01, schedule="cosine", warmup=0.05,
        batch_size=256, max_epochs=20, patience=None, batch_norm=False,
    )  # fmt: skip
    (trained,) = fit_members(config, [MemberData(samples, seed=seed)], n_threads=n_threads)
    trees = trained.trees
    trees = replace(
        trees,
        leaf_weight=(trees.leaf_weight * lesson.scale).astype(np.float32),
        offset=(trees.offset * lesson.scale + lesson.centre).astype(np.float32),
    )
    taught = replace(
        model,
        preprocessor=preprocessor,
        members=[ModelMember(LOOKUP, trees)],
        importance_rows=lesson.importance_rows,
    )
    scores = taught.predictor().base_scores(lesson.held_out_base, n_threads=n_threads)
    return Student(taught, n_trees, expected_loss(model.head, lesson.held_out_scores, scores))


def made_up_rows(
    preprocessor: Preprocessor, base: NDArray[np.float32], n: int, random: np.random.Generator
) -> NDArray[np.float32]:
    """Rows [n, q] near those of a base matrix: some columns of a row are replaced by those of a neighbour."""
    base_columns = preprocessor.base_columns()
    place = _places(preprocessor, base)
    is_code = np.array([role == "code" for role in preprocessor.roles()])
    row = random.integers(0, len(base), n)
    neighbour = np.empty(n, dtype=np.int64)
    for begin in range(0, n, _BLOCK_ROWS):
        own = row[begin : begin + _BLOCK_ROWS]
        candidates = random.integers(0, len(base), (len(own), _N_CANDIDATES))
        gap = np.abs(place[candidates] - place[own][:, None])
        distance = np.where(is_code, gap > 0, np.minimum(gap, 3)).sum(axis=2)
        distance[candidates == own[:, None]] = np.inf
        neighbour[begin : begin + len(own)] = candidates[np.arange(len(own)), distance.argmin(axis=1)]
    table_column = np.array([column.column for column in base_columns])  # parts of a date, say, belong together
    is_mixed = (random.random((n, table_column.max() + 1)) < _MIXED_SHARE)[:, table_column]
    return np.where(is_mixed, base[neighbour], base[row])


def _places(preprocessor: Preprocessor, base: NDArray[np.float32]) -> NDArray[np.float32]:
    """Where rows lie for distances: numbers in standard deviations, codes as they are, missing cells at the mean."""
    place = np.zeros(base.shape, dtype=np.float32)
    for j, role in enumerate(preprocessor.roles()):
        values = base[:, j].astype(np.float64)
        known = np.isfinite(values)
        if role == "none" or not known.any():
            continue
        if role == "code":
            place[:, j] = np.where(known, values, -1)
        else:
            spread = values[known].std() or 1.0
            place[known, j] = ((values[known] - values[known].mean()) / spread).clip(-1e6, 1e6)
    return place
