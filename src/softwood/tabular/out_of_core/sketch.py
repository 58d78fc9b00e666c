"""Pieces of a table in, a summary of the whole table out, in memory that does not grow with it.

A `Sketch` sums up a piece, and two of them merge into that of both pieces. It holds exactly what must be exact (ranges,
categories, missing cells, classes, mean and spread of the target) and a sample of rows for the rest: the rows whose
numbers have the smallest hashes, which does not depend on how the table is cut.

Integers, ranges and samples do not depend on the order of merges. Sums of floating-point numbers are kept piece by
piece and added up at the end, so that pieces merged in their order give the same bits however they are grouped. What
is learned from a sketch stands in `softwood.tabular.out_of_core.outline`; files are read by
`softwood.tabular.out_of_core.files`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.tabular.encoding.columns import ColumnFacts
from softwood.tabular.encoding.features import SAMPLE_ROWS
from softwood.tabular.encoding.target_means import N_FOLDS
from softwood.tabular.reading.table import Table
from softwood.tabular.target import SCALED_LOSSES, Problem, TargetKind, class_labels
from softwood.training.losses import Loss

# Cells of all sampled rows; tables of more than 83 columns have fewer rows in their sample.
_MAX_SAMPLED_CELLS = 1 << 24
_MIN_SAMPLED_ROWS = 4096
# Different texts of a column that are counted; each takes about 100 bytes.
MAX_LEVELS = 1 << 20


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows of a long table, all of positive weight. Made by `make_piece`.

    Attributes
    ----------
    table : Table
    y : ndarray [n] or [n, t]
        Class labels or numbers, as they were given.
    weight : ndarray [n]
    offset : ndarray [n, c], optional
    numbers : ndarray [n], uint64
        Numbers of the rows in the whole table, no two of which are equal.
    """

    table: Table
    y: np.ndarray
    weight: NDArray[np.float64]
    offset: NDArray[np.float64] | None
    numbers: NDArray[np.uint64]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.weight)

    @property
    def fold(self) -> NDArray[np.int64]:
        """Fold [n] of the cross-fitting of target means."""
        return (_hash(self.numbers ^ np.uint64(0x5851F42D4C957F2D)) % np.uint64(N_FOLDS)).astype(np.int64)


def make_piece(
    table: Table,
    y: Any,
    target: TargetKind,
    *,
    first_row: int,
    sample_weight: Any = None,
    offset: Any = None,
) -> Piece | None:
    """Check the targets of some rows, and leave out those of weight 0; None if no row is left.

    Rows are numbered from `first_row` on, before any is left out.
    """
    n = table.n_rows
    y = class_labels(y) if target.is_classification else np.asarray(y, dtype=np.float64)
    numbers = np.arange(first_row, first_row + n, dtype=np.uint64)
    weight = np.ones(n) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise ValueError("sample_weight must hold finite numbers of at least 0 in every row; some are not.")
    if not target.is_classification and not np.isfinite(y).all():
        bad = int(np.flatnonzero(~np.isfinite(y.reshape(n, -1)).all(axis=1))[0])
        raise ValueError(f"y must hold a finite number in every row; row {first_row + bad} has {y[bad]}.")
    if offset is not None:
        offset = np.asarray(offset, dtype=np.float64).reshape(n, -1)
        if not np.isfinite(offset).all():
            raise ValueError("offset must hold finite numbers; some are not.")
    kept = np.flatnonzero(weight)
    if not len(kept):
        return None
    if len(kept) == n:
        return Piece(table, y, weight, offset, numbers)
    return Piece(table.take(kept), y[kept], weight[kept], None if offset is None else offset[kept], numbers[kept])


def max_sampled_rows(n_columns: int) -> int:
    """Rows that a sample of a table with so many columns may hold."""
    return min(SAMPLE_ROWS, max(_MIN_SAMPLED_ROWS, _MAX_SAMPLED_CELLS // n_columns))


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows drawn from a table: those with the smallest keys, in the order of keys.

    Attributes
    ----------
    keys, numbers : ndarray [s], uint64
        Hashes of row numbers, and the row numbers.
    columns : tuple of ndarray [s]
        Numbers, or labels of categories.
    y, weight, offset
        As in `Piece`.
    """

    keys: NDArray[np.uint64]
    numbers: NDArray[np.uint64]
    columns: tuple[np.ndarray, ...]
    y: np.ndarray
    weight: NDArray[np.float64]
    offset: NDArray[np.float64] | None

    @property
    def n_most(self) -> int:
        """Rows that the sample may hold."""
        return max_sampled_rows(len(self.columns))

    def smallest(self) -> Sample:
        """At most `n_most` of the rows, in the order of keys."""
        rows = np.argsort(self.keys)[: self.n_most]
        return self._each(lambda array: array[rows])

    def below(self, key: np.uint64) -> Sample:
        """The rows of smaller keys; rows are in the order of keys."""
        rows = slice(0, int(np.searchsorted(self.keys, key)))
        return self._each(lambda array: array[rows])

    def joined(self, other: Sample) -> Sample:
        """The sample of both pieces."""
        other = other.below(self.keys[-1]) if len(self.keys) == self.n_most else other
        if not len(other.keys):
            return self
        arrays = zip(self._arrays(), other._arrays(), strict=True)
        return self._of([None if a is None or b is None else np.concatenate([a, b]) for a, b in arrays]).smallest()

    def _arrays(self) -> list[np.ndarray | None]:
        return [self.keys, self.numbers, self.y, self.weight, self.offset, *self.columns]

    def _of(self, arrays: list[Any]) -> Sample:
        keys, numbers, y, weight, offset, *columns = arrays
        return Sample(keys, numbers, tuple(columns), y, weight, offset)

    def _each(self, change: Any) -> Sample:
        return self._of([None if array is None else change(array) for array in self._arrays()])

    def piece(self, facts: tuple[ColumnFacts, ...]) -> Piece:
        """The sampled rows as a piece of the table."""
        names, kinds = tuple(column.name for column in facts), tuple(column.kind for column in facts)
        table = Table(names, kinds, len(self.keys), columns=self.columns)
        return Piece(table, self.y, self.weight, self.offset, self.numbers)


@dataclass(frozen=True, eq=False)
class PieceSums:
    """Sums over the rows of one piece.

    Attributes
    ----------
    weight : float
    all_ones : bool
        Whether each row has the weight 1.
    missing : ndarray [columns]
        Weight of the rows whose number is missing; 0 for categories.
    ends : ndarray [2, t]
        Two values with the mean and the spread of a regression's targets.
    """

    weight: float
    all_ones: bool
    missing: NDArray[np.float64]
    ends: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sketch:
    """What is kept of some rows of a table; see the module's description."""

    n_rows: int
    facts: tuple[ColumnFacts, ...]
    classes: np.ndarray | None
    class_counts: NDArray[np.int64]
    sums: tuple[PieceSums, ...]
    sample: Sample


def sketch(piece: Piece, target: TargetKind) -> Sketch:
    """Sum up one piece.

    Examples
    --------
    >>> from softwood.tabular.reading.table import read_table
    >>> target = TargetKind(is_classification=True)
    >>> halves = [[[1.0, "a"], [2.0, "b"]], [[3.0, "a"], [None, None]]]
    >>> pieces = [make_piece(read_table(X), ["no", "yes"], target, first_row=2 * i) for i, X in enumerate(halves)]
    >>> both = merge(sketch(pieces[0], target), sketch(pieces[1], target))
    >>> both.n_rows, both.classes.tolist(), both.facts[0].high, dict(both.facts[1].levels)
    (4, ['no', 'yes'], 3.0, {'a': 2, 'b': 1, None: 1})
    """
    table, weight = piece.table, piece.weight
    is_category = [kind == "category" for kind in table.kinds]
    cells = [table.labels(j) if is_category[j] else table.numbers(j) for j in range(table.n_columns)]
    facts = tuple(ColumnFacts.of_cells(table.name(j), table.kinds[j], column) for j, column in enumerate(cells))
    missing = [0.0 if is_category[j] else float(weight @ np.isnan(column)) for j, column in enumerate(cells)]
    classes, counts = (None, np.zeros(0, dtype=np.int64))
    if target.is_classification:
        classes, counts = np.unique(piece.y, return_counts=True)
    ends = np.zeros((2, 0)) if target.is_classification else _ends(piece, target)
    sums = PieceSums(float(weight.sum()), bool(np.all(weight == 1)), np.array(missing), ends)
    columns = tuple(c if is_category[j] else c.astype(np.float64) for j, c in enumerate(cells))
    sample = Sample(_hash(piece.numbers), piece.numbers, columns, piece.y, weight, piece.offset).smallest()
    return _checked(Sketch(piece.n_rows, facts, classes, counts, (sums,), sample))


def merge(a: Sketch, b: Sketch) -> Sketch:
    """The sketch of both pieces; b follows a."""
    columns_of = [[(column.name, column.kind) for column in some.facts] for some in (a, b)]
    if columns_of[0] != columns_of[1]:
        raise ValueError(f"Pieces of a table must have the same columns; got {columns_of[0]} and {columns_of[1]}.")
    facts = tuple(x.joined(y) for x, y in zip(a.facts, b.facts, strict=True))
    classes, counts = a.classes, a.class_counts
    if a.classes is not None and b.classes is not None:
        classes, place = np.unique(np.concatenate([a.classes, b.classes]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([a.class_counts, b.class_counts])).astype(np.int64)
    return _checked(Sketch(a.n_rows + b.n_rows, facts, classes, counts, a.sums + b.sums, a.sample.joined(b.sample)))


def _checked(sketch: Sketch) -> Sketch:
    for column in sketch.facts:
        if column.levels is not None and len(column.levels) > MAX_LEVELS:
            raise ValueError(
                f"A category of a table in pieces must have at most {MAX_LEVELS:,} levels; column {column.name!r} has "
                "more. Leave it out, or declare what it holds with column_kinds."
            )
    return sketch


def _ends(piece: Piece, target: TargetKind) -> NDArray[np.float64]:
    """Mean minus and plus the spread of a regression's targets [2, t], beside the offset where the loss is scaled."""
    problem = target.problem(piece.y, piece.n_rows, piece.weight)
    y = problem.y.reshape(piece.n_rows, -1)
    if piece.offset is not None and problem.loss.name in SCALED_LOSSES:
        y = y - piece.offset[:, :: piece.offset.shape[1] // y.shape[1]]
    squares = Problem(y, piece.weight, "regression", Loss("squared_error"))
    head = squares.fit_head(np.arange(piece.n_rows), piece.weight, is_piece=True)
    assert head.target_mean is not None
    assert head.target_scale is not None
    spread = np.where(np.ptp(y, axis=0) == 0, 0.0, head.target_scale)
    return np.stack([head.target_mean - spread, head.target_mean + spread])


def _hash(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Well-mixed 64-bit hashes [n], different for different numbers (the finaliser of splitmix64)."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
