"""A fitted model in, one small ensemble out that predicts almost the same.

The small ensemble is *taught*: it is fitted to the raw scores that the large model gives to the rows of a table and to
made-up rows near them. Scores have no noise, so a few trees suffice where training on labels would want many, and
the soft bands can be narrow, so that a row reaches few leaves. How much is lost is measured on rows that the teaching
did not see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.model.model import Model
from softwood.model.parts import Head
from softwood.tabular.distillation.compression import Compression, compare, stored_parameters
from softwood.tabular.distillation.lesson import Lesson, known_share, prepare_lesson
from softwood.tabular.distillation.teaching import Student, StudentShape, teach
from softwood.tabular.encoding.features import LOOKUP
from softwood.tabular.encoding.monotone import monotone_signs, restrict_monotone
from softwood.tabular.reading.table import Table

# Students that are tried, from the smallest on, and which is the first one for a table of this many rows. Those of long
# tables learn sharper functions, and one is all that there is time for.
_SHAPES = (StudentShape(24), StudentShape(48), StudentShape(96, n_bins=6))
_MIN_ROWS = (0, 1500)
_LONG_SHAPE, _LONG_ROWS = StudentShape(64, depth=3, n_bins=12), 20_000
# Trees of a student for a number of parameters.
_TREES = (1, 2, 4, 8, 16, 24, 48, 96)
# "auto" cuts students down to this share of the model's numbers as long as the expected loss stays below a limit. Those
# of long tables also keep all but this share of what the model knows: where noise is high, that is a lower limit.
_AUTO_SHARE, _LOST_SHARE = 1 / 150, 0.004
_AUTO_LOSS = {"binary": 0.012, "multiclass": 0.012, "multilabel": 0.012, "regression": 0.002}
# From a small student "auto" accepts a loss so many times as high before it tries a larger one; with a loss so many
# times as high as that when pruning could begin, a student gives up.
_ACCEPTED, _HOPELESS = 5.0, 1.5
# Students are cut down to this share of a given loss, because the last cuts cost more than can be foreseen.
_MARGIN = 0.75
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
    sizes = [stage for student in tried for stage in _stages(student)]
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
        Base columns that students must rise or fall with, as in `softwood.tabular.encoding.lookups.fit_lookups`.
    """
    limits.check()
    lesson = prepare_lesson(model, base, seed, n_threads)
    most = _MARGIN * limits.max_loss if limits.max_loss else _auto_loss(model.head, lesson, len(base))
    accepted = limits.max_loss or _ACCEPTED * most
    least = limits.max_parameters or (0 if limits.max_loss else round(_AUTO_SHARE * stored_parameters(model)))
    tried: list[Student] = []
    shapes = _shapes(model, len(base), limits)
    for shape in shapes:
        student = teach(
            model, lesson, shape, n_parameters=least, max_loss=None if limits.max_parameters else most, seed=seed,
            n_threads=n_threads, signs=signs, hopeless=np.inf if shape is shapes[-1] else _HOPELESS * accepted,
        )  # fmt: skip
        if student is None:
            continue
        tried.append(student)
        if limits.max_parameters is not None or student.expected_loss <= accepted:
            return student, tried, lesson.held_out_rows
    return min(tried, key=lambda student: student.expected_loss), tried, lesson.held_out_rows


def _auto_loss(head: Head, lesson: Lesson, n_rows: int) -> float:
    """Expected loss that "auto" allows."""
    most = _AUTO_LOSS[head.task]
    return most if n_rows < _LONG_ROWS else min(most, _LOST_SHARE * known_share(head, lesson.held_out_scores))


def _shapes(model: Model, n_rows: int, limits: Limits) -> tuple[StudentShape, ...]:
    if limits.max_parameters is None and n_rows >= _LONG_ROWS:
        return (_LONG_SHAPE,)
    if limits.max_parameters is None:
        return _SHAPES[max(i for i, n in enumerate(_MIN_ROWS) if n_rows >= n) :]
    # Half of the numbers at least are for tables.
    fitting = [
        shape for shape in map(StudentShape, _TREES) if 2 * shape.n_fixed(model.n_outputs) <= limits.max_parameters
    ]
    if not fitting:
        raise ValueError(
            f"max_parameters must leave room for one tree, which takes {2 * StudentShape(1).n_fixed(model.n_outputs)} "
            f"here; got {limits.max_parameters}."
        )
    return (fitting[-1],)


def _stages(student: Student) -> list[dict[str, float]]:
    """A student while it was being pruned, and at the end."""
    last = student.n_parameters, student.expected_loss
    return [
        {"n_trees": student.n_trees, "n_parameters": n, "expected_loss": loss} for n, loss in [*student.stages, last]
    ]
