"""A model in, what a small ensemble can learn from it out: rows with the model's scores, and a measure of likeness.

Rows are those of a table and made-up ones near them. Training is left to `softwood.tabular.distillation.teaching`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from softwood.model.importance import N_ROWS as N_IMPORTANCE_ROWS
from softwood.model.model import Model
from softwood.model.parts import Head
from softwood.tabular.encoding.columns import Preprocessor

# Rows that are made up: three times those given, but fewer where these are many. At least so many, and so many in all.
_MADE_UP_SHARE, _MIN_MADE_UP, _MAX_ROWS = 3, 8_000, 50_000
_HELD_OUT_SHARE = 0.15
# A made-up row is a row some of whose columns are those of a neighbour: the nearest of a few drawn at random.
_MIXED_SHARE, _N_CANDIDATES = 0.3, 8
_BLOCK_ROWS = 4096
# Scores beyond this are as good as sure; imitating their size would cost accuracy where it matters.
_LARGEST_SCORE = 8.0
# Where the model is surer than this on average, differences of its log-loss are measured against this.
_LEAST_ENTROPY = 0.4


@dataclass(frozen=True, eq=False)
class Lesson:
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


def prepare_lesson(model: Model, base: NDArray[np.float32], seed: int, n_threads: int | None) -> Lesson:
    random = np.random.default_rng(seed)
    order = random.permutation(len(base))
    n_held_out = max(1, round(_HELD_OUT_SHARE * len(base)))
    kept, held_out = base[order[n_held_out:]], base[order[:n_held_out]]
    if not len(kept):
        raise ValueError("compress needs at least 2 rows of X; got 1.")
    n_rows = max(_MIN_MADE_UP, min(_MADE_UP_SHARE * len(base), _MAX_ROWS - len(base)))
    made = [made_up_rows(model.preprocessor, rows, round(n_rows * share), random)
            for rows, share in ((kept, 1 - _HELD_OUT_SHARE), (held_out, _HELD_OUT_SHARE))]  # fmt: skip
    train_base, held_out_base = np.vstack([kept, made[0]]), np.vstack([held_out, made[1]])
    scores = model.predictor().base_scores(train_base, n_threads=n_threads)
    held_out_scores = model.predictor().base_scores(held_out_base, n_threads=n_threads)
    target = lesson_scores(model.head, scores)
    centre, scale = target.mean(axis=0), max(float(target.std()), 1e-12)
    return Lesson(
        train_base, (target - centre) / scale, order[:n_held_out], centre, scale, held_out_base, held_out_scores,
        kept[:N_IMPORTANCE_ROWS],
    )  # fmt: skip


def lesson_scores(head: Head, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores as a student learns them: those of classes have mean 0, and none is surer than sure."""
    if head.task == "regression":
        return scores
    if head.task == "multiclass":
        scores = scores - scores.mean(axis=1, keepdims=True)
    return np.clip(scores, -_LARGEST_SCORE, _LARGEST_SCORE)


def expected_loss(head: Head, scores: NDArray[np.float64], of_student: NDArray[np.float64]) -> float:
    """How much worse a student is on average if the model's predictions are right, relative to the model's own loss.

    For a classification the mean divergence of the student's probabilities from the model's over the mean entropy of
    the model's: the rise of the log-loss. For a regression the mean squared difference of scores over their variance.
    """
    if head.task == "regression":
        return float(np.mean((scores - of_student) ** 2) / max(float(np.var(scores, axis=0).mean()), 1e-300))
    p, q = _distributions(head, scores), _distributions(head, of_student)
    return float((p * np.log(p / q)).sum(axis=1).mean()) / max(_entropy(p), _LEAST_ENTROPY)


def known_share(head: Head, scores: NDArray[np.float64]) -> float:
    """How much of the uncertainty about a row the model takes away, in the unit of `expected_loss`; 1 in a regression.

    For a classification the entropy of the mean prediction less the mean entropy of predictions.
    """
    if head.task == "regression":
        return 1.0
    p = _distributions(head, scores)
    mean = p.reshape(len(scores), -1, p.shape[1]).mean(axis=0)
    return (_entropy(mean) - _entropy(p)) / max(_entropy(p), _LEAST_ENTROPY)


def _entropy(distributions: NDArray[np.float64]) -> float:
    """Mean entropy of the rows."""
    return -float((distributions * np.log(distributions)).sum(axis=1).mean())


def _distributions(head: Head, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities above 0 of each row [n, classes]; with several labels a row per label and row of the table."""
    probability = head.predictions(scores)
    if head.task == "multilabel":
        probability = np.column_stack([1 - probability.ravel(), probability.ravel()])
    return np.clip(probability, 1e-12, 1)


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
