"""Typed columns in, model inputs out: everything learned about a table before the trees see it.

A `Preprocessor` works in two steps. `read` turns a table into the float32 base matrix, as
`softwood.tabular.encoding.base_columns` defines it: numbers as they are (NaN where missing), dates as seconds and
calendar parts, categories as codes, categories with many levels also as means of the target. The encodings of
`softwood.tabular.encoding.features` then make model inputs of it. Both steps are plain data (JSON and arrays).

A category that training did not see, or saw only once in a column of many levels, belongs to no level: all its flags
are 0, and its target mean is that of the rare levels in training, or else of the whole table. A missing category is a
level of its own if training saw one, and otherwise like an unseen one.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.tabular.encoding.base_columns import (
    BaseColumn,
    CalendarPart,
    CalendarUnit,
    Code,
    TargetMean,
    Value,
    read_base,
)
from softwood.tabular.encoding.features import ENCODING_NAMES, LOOKUP, N_BINS, Encoding, fit_encodings
from softwood.tabular.encoding.lookups import Lookup, Lookups, fit_lookups
from softwood.tabular.encoding.target_means import N_FOLDS, TargetSums
from softwood.tabular.reading.table import DATES, Table, is_sparse

# Categories of at most this many levels get a flag for each level. Larger ones are encoded by target means, unless
# there are many rows per level.
MAX_ONE_HOT_LEVELS = 10
_MAX_FREQUENT_LEVELS, _MIN_ROWS_PER_LEVEL = 64, 100
_NAMES_SHOWN = 20
_BLOCK_ROWS = 65_536
# Whole weights up to this sum are numbers of copies; larger ones are only weights.
_MAX_COUNTED_ROWS = 200_000


@dataclass(frozen=True)
class Column:
    """How one column of the table enters the base matrix.

    Attributes
    ----------
    name, kind : str
        As in the table; see `softwood.tabular.reading.table.KINDS`.
    offset, unit : float
        A number x becomes (x - offset) / unit in float64 before it is rounded to float32, so that large values close to
        each other (dates, say) stay apart. Mostly 0 and 1.
    calendar : tuple of str
        Calendar parts of a date that vary in training: further base columns.
    levels : tuple of str or None, optional
        Known categories in the order of their codes; None among them stands for a missing one.
    is_frequent : bool
        The category has a flag for each level, although it has more than `MAX_ONE_HOT_LEVELS`.
    """

    name: str
    kind: str
    offset: float = 0.0
    unit: float = 1.0
    calendar: tuple[str, ...] = ()
    levels: tuple[str | None, ...] | None = None
    is_frequent: bool = False

    @property
    def has_many_levels(self) -> bool:
        """Whether this category is encoded by target means."""
        return self.levels is not None and len(self.levels) > MAX_ONE_HOT_LEVELS and not self.is_frequent


@dataclass
class Preprocessor:
    """Fitted encoding of a table; see the module's description. Made by `learn_columns`.

    Attributes
    ----------
    columns : list of Column
        One for each column of the table.
    n_target_columns : int
        Base columns of target means for each category with many levels.
    target_means : dict of int to ndarray [levels + 1, n_target_columns]
        By column number; the last row serves categories that belong to no level.
    encodings : dict of str to Encoding
        Fitted encodings by name.
    lookups : tuple of Lookup
        What trees of lookups read; empty in a model of linear splits.
    """

    columns: list[Column]
    n_target_columns: int = 1
    target_means: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    encodings: dict[str, Encoding] = field(default_factory=dict)
    lookups: tuple[Lookup, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each column."""
        return tuple(column.kind for column in self.columns)

    def base_columns(self) -> list[BaseColumn]:
        """The base columns: those of each column of the table, then target means (0 until they are learned)."""
        found: list[BaseColumn] = []
        means: list[BaseColumn] = []
        for j, column in enumerate(self.columns):
            if column.levels is None:
                found.append(Value(j, column.offset, column.unit))
                found += [CalendarPart(j, CalendarUnit(part)) for part in column.calendar]
                continue
            code = Code(j, column.levels)
            found.append(code)
            if column.has_many_levels:
                shape = (len(column.levels) + 1, self.n_target_columns)
                by_target = self.target_means.get(j, np.zeros(shape, dtype=np.float32))
                means += [TargetMean(code, t, by_target[:, t]) for t in range(self.n_target_columns)]
        return found + means

    def read(self, table: Table) -> NDArray[np.float32]:
        """Return the base matrix [n_rows, q]; it shares memory with the table where that already is one."""
        return read_base(table, self.base_columns(), [column.name for column in self.columns])

    def learn_targets(self, base: NDArray[np.float32], y: np.ndarray, rows: NDArray[np.integer]) -> None:
        """Fit target means of categories with many levels, and write the cross-fitted ones into `base`.

        Parameters
        ----------
        base : ndarray [n, q]
            Base matrix of the training table; its columns of target means are filled in the given rows.
        y : ndarray [n, n_target_columns]
            Targets; for a classification, 1 for the row's class and 0 elsewhere.
        rows : ndarray of int
            Training rows, in an order that has nothing to do with y: every fifth makes a fold of the cross-fitting.
        """
        if not any(column.has_many_levels for column in self.columns):
            return
        fold = np.arange(len(rows)) % N_FOLDS
        targets = y[rows].astype(np.float64)
        centre = targets.mean(axis=0)
        codes = self.codes(base, rows)
        crossed = self.learn_target_means(self.target_sums(codes, targets - centre, fold), centre)
        self.fill_target_means(base, codes, fold, crossed, rows)

    def codes(
        self, base: NDArray[np.float32], rows: NDArray[np.integer] | slice = slice(None)
    ) -> dict[int, NDArray[np.int64]]:
        """Codes of some rows of the base matrix, by number of each column with many levels; -1 for no level."""
        return {
            column.column: base[rows, b].astype(np.int64)
            for b, column in enumerate(self.base_columns())
            if isinstance(column, Code) and self.columns[column.column].has_many_levels
        }

    def target_sums(
        self, codes: Mapping[int, NDArray[np.int64]], y: NDArray[np.float64], fold: NDArray[np.integer]
    ) -> dict[int, TargetSums]:
        """Sums of the targets [n, n_target_columns] of rows with these codes, by number of the column."""
        sizes = {j: len(self.columns[j].levels or ()) + 1 for j in codes}
        return {j: TargetSums.of(of, y, fold=fold, n_levels=sizes[j]) for j, of in codes.items()}

    def learn_target_means(
        self, sums: Mapping[int, TargetSums], centre: NDArray[np.float64]
    ) -> dict[int, NDArray[np.float32]]:
        """Take over the means of all rows; what rows of each fold read instead in training [folds, levels + 1, t]."""
        self.target_means = {j: (of.means() + centre).astype(np.float32) for j, of in sums.items()}
        return {j: (of.crossed() + centre).astype(np.float32) for j, of in sums.items()}

    def fill_target_means(
        self,
        base: NDArray[np.float32],
        codes: Mapping[int, NDArray[np.int64]],
        fold: NDArray[np.integer],
        crossed: Mapping[int, NDArray[np.float32]],
        rows: NDArray[np.integer] | slice = slice(None),
    ) -> None:
        """Write cross-fitted target means of training rows with these codes into their rows of the base matrix."""
        for b, column in enumerate(self.base_columns()):
            if isinstance(column, TargetMean):
                base[rows, b] = crossed[column.column][fold, codes[column.column], column.target]

    def learn_encodings(
        self,
        base: NDArray[np.float32],
        *,
        names: tuple[str, ...] = ENCODING_NAMES,
        n_bins: int = N_BINS,
        rows: NDArray[np.integer] | None = None,
        weight: NDArray[np.float64] | None = None,
        is_piece: bool = False,
        signs: Mapping[int, int] | None = None,
        missing_shares: Mapping[int, float] | None = None,
        by_level: bool = False,
    ) -> Lookups | None:
        """Fit the named encodings to rows of the base matrix; see `softwood.tabular.encoding.features.fit_encodings`.

        The name `LOOKUP` stands alone. Its lookups are returned with their basis; a table without any column that has
        two values gets none. `signs` and `missing_shares` are those of `fit_lookups`, `by_level`
        is that of `roles`.
        """
        if names == (LOOKUP,):
            assert rows is not None
            assert weight is not None
            lookups = fit_lookups(
                base,
                self.roles(by_level=by_level),
                n_bins=n_bins,
                rows=rows,
                weight=weight,
                signs=signs,
                missing_shares=missing_shares,
            )
            if lookups is not None:
                self.use(lookups)
                return lookups
            self.encodings = {LOOKUP: fit_encodings(base, self.roles(), names=ENCODING_NAMES[:1])[ENCODING_NAMES[0]]}
            return None
        self.encodings = fit_encodings(
            base, self.roles(), names=names, n_bins=n_bins, rows=rows, weight=weight, is_piece=is_piece
        )
        return None

    def use(self, lookups: Lookups) -> None:
        """Take over what prediction needs of lookups."""
        self.lookups = tuple(column.lookup for column in lookups.columns)

    @property
    def most_levels(self) -> int:
        """Levels of the largest category that is encoded by target means; 0 if none is."""
        return max((len(column.levels or ()) for column in self.columns if column.has_many_levels), default=0)

    @property
    def reads_levels(self) -> bool:
        """Whether lookups read categories with many levels level by level, instead of by target means."""
        base_columns = self.base_columns()
        return any(
            isinstance(base, Code) and self.columns[base.column].has_many_levels
            for base in (base_columns[lookup.base_column] for lookup in self.lookups)
        )

    def roles(self, *, by_level: bool = False) -> list[str]:
        """Role of each base column, as `softwood.tabular.encoding.features.fit_encodings` wants it.

        Trees see a category with many levels by its target means or level by level, never both: a training row's mean
        lacks the targets of its fold, so that together with the level it would give them away.
        """

        def role(base: BaseColumn) -> str:
            if isinstance(base, TargetMean):
                return "none" if by_level else "number"
            if isinstance(base, Code):
                return "none" if self.columns[base.column].has_many_levels and not by_level else "code"
            return "number"

        return [role(base) for base in self.base_columns()]

    def to_plain(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """All that was learned, as JSON data and arrays by name."""
        data = {"columns": [asdict(column) for column in self.columns], "n_target_columns": self.n_target_columns}
        data["encodings"] = list(self.encodings)
        arrays = {f"target_means.{j}": means for j, means in self.target_means.items()}
        for name, encoding in self.encodings.items():
            arrays |= {f"encoding.{name}.{key}": array for key, array in encoding.arrays().items()}
        data["lookups"] = [[lookup.base_column, len(lookup.knots), lookup.n_codes] for lookup in self.lookups]
        if self.lookups:
            arrays["lookups.knots"] = np.concatenate([lookup.knots for lookup in self.lookups])
        return data, arrays

    @classmethod
    def from_plain(cls, data: dict[str, Any], arrays: dict[str, np.ndarray]) -> Preprocessor:
        """Inverse of `to_plain`; arrays may hold others, too."""
        columns = [
            Column(
                str(d["name"]),
                str(d["kind"]),
                float(d["offset"]),
                float(d["unit"]),
                tuple(d["calendar"]),
                None if d["levels"] is None else tuple(d["levels"]),
                bool(d.get("is_frequent", False)),
            )
            for d in data["columns"]
        ]
        means = {j: arrays[f"target_means.{j}"] for j, column in enumerate(columns) if column.has_many_levels}
        keys = ("source", "kind", "start", "rate", "mean", "scale")
        encodings = {name: Encoding(*(arrays[f"encoding.{name}.{k}"] for k in keys)) for name in data["encodings"]}
        lookups, first = [], 0
        for base_column, n_knots, n_codes in data.get("lookups", ()):
            knots = arrays["lookups.knots"][first : first + int(n_knots)]
            lookups.append(Lookup(int(base_column), knots, int(n_codes)))
            first += len(knots)
        return cls(columns, int(data["n_target_columns"]), means, encodings, tuple(lookups))


def learn_columns(table: Table, *, n_target_columns: int = 1) -> Preprocessor:
    """Learn ranges and categories of a table's columns; target means and encodings are learned later.

    Examples
    --------
    >>> from softwood.tabular.reading.table import read_table
    >>> preprocessor = learn_columns(read_table([[1, "red"], [2, "blue"], [3, None]]))
    >>> preprocessor.columns[1].levels
    ('blue', 'red', None)
    >>> preprocessor.read(read_table([[9, "green"], [None, "red"]]))
    array([[ 9., -1.],
           [nan,  1.]], dtype=float32)
    """
    return learn_from_facts([ColumnFacts.of(table, j) for j in range(table.n_columns)], n_target_columns)


def learn_from_facts(facts: Sequence[ColumnFacts], n_target_columns: int) -> Preprocessor:
    """What `learn_columns` learns, of a table whose columns have been looked at already."""
    columns = [column.learned() for column in facts]
    _warn_of_useless(columns)
    return Preprocessor(columns, n_target_columns)


@dataclass(frozen=True)
class ColumnFacts:
    """All that is to be known of a column to read it; facts of two pieces of a table can be joined.

    Attributes
    ----------
    name, kind : str
    low, high : float
        Range of the finite numbers; the column is taken as it is if there are none.
    parts : tuple of (float, float)
        Range of each `CalendarUnit` of a date.
    levels : Counter, optional
        Rows of each category; None among the keys is a missing one.
    """

    name: str
    kind: str
    low: float = np.inf
    high: float = -np.inf
    parts: tuple[tuple[float, float], ...] = ()
    levels: Counter[str | None] | None = None

    @classmethod
    def of(cls, table: Table, j: int) -> ColumnFacts:
        """Facts of one column."""
        name, kind = table.name(j), table.kinds[j]
        if kind == "category":
            return cls.of_cells(name, kind, table.labels(j))
        if is_sparse(table.matrix):
            return cls(name, kind)
        if isinstance(table.matrix, np.ndarray) and table.matrix.dtype in (np.float32, np.int8, np.uint8, np.bool_):
            return cls(name, kind)
        return cls.of_cells(name, kind, table.numbers(j))

    @classmethod
    def of_cells(cls, name: str, kind: str, cells: np.ndarray) -> ColumnFacts:
        """Facts of a column's labels or numbers."""
        if kind == "category":
            return cls(name, kind, levels=Counter(cells.tolist()))
        values = cells[np.isfinite(cells)]
        if not len(values):
            return cls(name, kind)
        read = [CalendarPart(0, unit).read(values) for unit in CalendarUnit] if kind in DATES else []
        parts = tuple((float(part.min()), float(part.max())) for part in read)
        return cls(name, kind, float(values.min()), float(values.max()), parts)

    def joined(self, other: ColumnFacts) -> ColumnFacts:
        """Facts of both pieces."""
        parts = self.parts or other.parts
        if self.parts and other.parts:
            both = zip(self.parts, other.parts, strict=True)
            parts = tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in both)
        levels = None if self.levels is None or other.levels is None else self.levels + other.levels
        return replace(self, low=min(self.low, other.low), high=max(self.high, other.high), parts=parts, levels=levels)

    def learned(self) -> Column:
        """How the column enters the base matrix."""
        if self.levels is not None:
            levels = _kept_levels(self.levels)
            n_most = min(_MAX_FREQUENT_LEVELS, self.levels.total() // _MIN_ROWS_PER_LEVEL)
            return Column(self.name, self.kind, levels=levels, is_frequent=MAX_ONE_HOT_LEVELS < len(levels) <= n_most)
        if self.low > self.high:
            return Column(self.name, self.kind)
        span = self.high - self.low
        offset = (self.low + self.high) / 2 if 0 < span < max(abs(self.low), abs(self.high)) / 1000 else 0.0
        largest = max(abs(self.low - offset), abs(self.high - offset))
        unit = largest if largest > 1e30 or 0 < largest < 1e-30 else 1.0
        varying = tuple(unit.value for unit, (low, high) in zip(CalendarUnit, self.parts, strict=False) if low < high)
        return Column(self.name, self.kind, offset, unit, varying)


def _warn_of_useless(columns: list[Column]) -> None:
    """One warning for all columns that nothing can be learned from."""
    ids = [column.name for column in columns if column.levels == ()]
    if ids:
        warnings.warn(
            f"Nothing can be learned from {_listed(ids)}: each text there occurs in one row only, as in an id. Drop "
            "such columns, or declare what they hold with column_kinds.",
            stacklevel=2,
        )


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:_NAMES_SHOWN])) + (" and others" if len(names) > _NAMES_SHOWN else "")
    return f"column {shown}" if len(names) == 1 else f"columns {shown}"


def _kept_levels(counts: Counter[str | None]) -> tuple[str | None, ...]:
    kept = [level for level, count in counts.items() if len(counts) <= MAX_ONE_HOT_LEVELS or count > 1]
    return tuple(sorted(kept, key=lambda level: (level is None, level or "")))


def merge_rows(
    base: NDArray[np.float32], y: np.ndarray, weight: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers in an order that depends on their contents only, each distinct row once; summed weights; counts; and
    of every row, which of the row numbers stands for it (-1 if its weight is 0).

    A row is its base columns and its target. Its count says for how many rows it stands: the sum of its weights if all
    weights are whole numbers, else the number of equal rows. Training on each row as often as its count says, with
    the weight divided by the count, makes a weight of 2 the same as the row twice, a weight of 0 the same as its
    absence, and the order of a table's rows irrelevant.

    Examples
    --------
    >>> base = np.array([[1.0], [2.0], [1.0]], dtype=np.float32)
    >>> rows, weight, count, standing_for = merge_rows(base, np.array([0.0, 1.0, 0.0]), np.array([1.0, 1.0, 2.0]))
    >>> sorted(zip(rows.tolist(), weight.tolist(), count.tolist()))
    [(0, 3.0, 3), (1, 1.0, 1)]
    >>> standing_for
    array([0, 1, 0])
    """
    kept = np.flatnonzero(weight > 0)
    targets = y.reshape(len(y), -1)
    key = np.zeros(len(kept), dtype=np.uint64)
    for values in (*base.T, *targets.T):
        key = _mix(key, values[kept])
    order = np.argsort(key, kind="stable")
    rows, key = kept[order], key[order]
    is_copy = np.zeros(len(rows), dtype=bool)
    is_copy[1:] = key[1:] == key[:-1]
    candidates = np.flatnonzero(is_copy)
    for some in np.array_split(candidates, 1 + len(candidates) // _BLOCK_ROWS):
        # Different rows may have equal keys, though it is very unlikely.
        a, b = rows[some], rows[some - 1]
        same = (base[a] == base[b]) | (np.isnan(base[a]) & np.isnan(base[b]))
        is_copy[some] = same.all(axis=1) & (targets[a] == targets[b]).all(axis=1)
    first = np.flatnonzero(~is_copy)
    standing_for = np.full(len(weight), -1, dtype=np.int64)
    if not len(first):
        return rows, weight[:0], rows, standing_for
    standing_for[rows] = rows[first][np.cumsum(~is_copy) - 1]
    total = np.add.reduceat(weight[rows], first)
    count = np.diff(np.append(first, len(rows)))
    if total.sum() <= max(_MAX_COUNTED_ROWS, len(rows)) and np.all(weight == np.rint(weight)):
        count = total.astype(np.int64)
    return rows[first], total, count, standing_for


def _mix(key: NDArray[np.uint64], values: np.ndarray) -> NDArray[np.uint64]:
    """Take one more column into 64-bit keys of rows; equal values (and all NaN) count as equal."""
    numbers = values.astype(np.float64) + 0.0  # -0.0 becomes 0.0
    numbers[np.isnan(numbers)] = np.nan
    key = (key ^ numbers.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    return (key ^ (key >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
