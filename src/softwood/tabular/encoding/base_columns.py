"""Cells of a table in, base columns out: the first step of every prediction, as typed data.

A base column is one float32 quantity of a row, computed from one column of the table. There are four kinds, each a
frozen dataclass whose `read` is its definition, on cells given as numbers: a number itself, seconds since 1970 (UTC)
for a date, a code for a category; NaN is a missing cell.

=============  ======================================================================  ==================
kind           value                                                                   where x is missing
=============  ======================================================================  ==================
Value          float32((x - offset) / unit), held within float32's range               NaN
Code           x if it is the code of a level, else -1                                 `missing_code`
CalendarPart   month (1 to 12), weekday (0 is Monday) or hour (0 to 23), in UTC        NaN
TargetMean     the mean of the target at the category's code                           that of its code
=============  ======================================================================  ==================

`read_base` makes the base matrix of a table. `softwood.tabular.encoding.columns` has what is learned from a table,
`softwood.tabular.encoding.features` what becomes of base columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.tabular.reading.table import Table, is_sparse, without_infinities

# Dates farther from 1970 than this many seconds count as if they were that far, so that they fit into an integer.
FARTHEST_SECONDS = 1e17
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_BLOCK_ROWS = 65_536
# Data frames of up to this many rows are read at once, longer ones column by column, without a copy of the whole.
_MAX_FRAME_BLOCK_ROWS = 16_384
_PLAIN_KINDS = ("numeric", "boolean")


class CalendarUnit(Enum):
    """Which part of a date."""

    MONTH = "month"
    WEEKDAY = "weekday"
    HOUR = "hour"


@dataclass(frozen=True)
class Value:
    """A number: float32((x - offset) / unit), computed in float64, so that large values close to each other stay apart.

    Attributes
    ----------
    column : int
        Column of the table.
    offset, unit : float
        Mostly 0 and 1.
    """

    column: int
    offset: float = 0.0
    unit: float = 1.0

    @property
    def is_plain(self) -> bool:
        """Whether the value is the cell itself, rounded."""
        return self.offset == 0 and self.unit == 1

    def read(self, cells: NDArray[Any]) -> NDArray[np.float32]:
        """Values [n] of cells [n]."""
        with np.errstate(over="ignore"):
            values = cells if self.is_plain else (cells.astype(np.float64) - self.offset) / self.unit
            return np.clip(values, -_LARGEST_FLOAT, _LARGEST_FLOAT).astype(np.float32)


@dataclass(frozen=True)
class Code:
    """The number of a category's level, or -1 for a category that training did not see.

    Attributes
    ----------
    column : int
        Column of the table.
    levels : tuple of str or None
        Known categories in the order of their codes; None among them stands for a missing cell.
    """

    column: int
    levels: tuple[str | None, ...]

    @property
    def missing_code(self) -> int:
        """Code of a missing cell; -1 if training saw none."""
        return self.levels.index(None) if None in self.levels else -1

    def encode(self, labels: Sequence[str | None]) -> NDArray[np.float64]:
        """Codes [n] of labels [n], None for a missing one."""
        code_of = {"": self.missing_code} | {level: code for code, level in enumerate(self.levels)}
        return np.fromiter((code_of.get(label, -1) for label in labels), dtype=np.float64, count=len(labels))

    def read(self, cells: NDArray[Any]) -> NDArray[np.float32]:
        """Codes [n] of cells [n] that should be codes."""
        is_known = (cells >= 0) & (cells < len(self.levels)) & (cells == np.floor(cells))
        return np.where(np.isnan(cells), self.missing_code, np.where(is_known, cells, -1)).astype(np.float32)


@dataclass(frozen=True)
class CalendarPart:
    """Month, weekday or hour of a date in UTC; fractions of a second are truncated towards 1970."""

    column: int
    unit: CalendarUnit

    def read(self, cells: NDArray[Any]) -> NDArray[np.float32]:
        """Parts [n] of seconds since 1970 [n]."""
        is_missing = np.isnan(cells)
        held = np.clip(np.where(is_missing, 0, cells), -FARTHEST_SECONDS, FARTHEST_SECONDS)
        seconds = held.astype(np.int64)
        days = seconds // 86_400
        if self.unit is CalendarUnit.MONTH:
            value = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12 + 1
        elif self.unit is CalendarUnit.WEEKDAY:
            value = (days + 3) % 7  # 1 January 1970 was a Thursday
        else:
            value = (seconds - days * 86_400) // 3600
        return np.where(is_missing, np.nan, value).astype(np.float32)


@dataclass(frozen=True, eq=False)
class TargetMean:
    """Mean of one column of the target over the training rows of a category.

    Attributes
    ----------
    code : Code
        The category.
    target : int
        Which column of the target.
    means : ndarray [levels + 1]
        By code; the last serves categories that belong to no level.
    """

    code: Code
    target: int
    means: NDArray[np.float32]

    @property
    def column(self) -> int:
        """Column of the table."""
        return self.code.column

    def read(self, cells: NDArray[Any]) -> NDArray[np.float32]:
        """Means [n] of cells [n] that should be codes."""
        return self.means[self.code.read(cells).astype(np.int64)]  # an index of -1 is the last


BaseColumn = Value | Code | CalendarPart | TargetMean


def are_plain(columns: Sequence[BaseColumn]) -> bool:
    """Whether base rows are the table's rows, rounded."""
    return all(isinstance(c, Value) and c.is_plain and c.column == b for b, c in enumerate(columns))


def read_base(table: Table, columns: Sequence[BaseColumn], names: Sequence[str]) -> NDArray[np.float32]:
    """The base matrix [n_rows, q] of a table; it shares memory with the table where that already is one.

    Parameters
    ----------
    table : Table
    columns : sequence of BaseColumn
    names : sequence of str
        Names of the table's columns, for the warning of an infinity.
    """
    if are_plain(columns) and isinstance(table.matrix, np.ndarray) and table.matrix.dtype == np.float32:
        base = np.ascontiguousarray(table.matrix)
        for j, name in enumerate(names):
            column = base[:, j]
            held = without_infinities(column, name, is_known=table.is_known)
            if held is not column:
                base = base.copy() if np.shares_memory(base, table.matrix) else base  # the table stays as it is
                base[:, j] = held
        return base
    base = np.empty((table.n_rows, len(columns)), dtype=np.float32)
    if is_sparse(table.matrix):  # a column of a sparse matrix is slow to get, a block of rows is not
        for first in range(0, table.n_rows, _BLOCK_ROWS):
            rows = table.rows(first, first + _BLOCK_ROWS)
            dense = replace(rows, matrix=rows.matrix.toarray())
            _read_columns(dense, columns, names, base[first : first + _BLOCK_ROWS])
    else:
        _read_columns(table, columns, names, base)
    return base


def _read_columns(table: Table, columns: Sequence[BaseColumn], names: Sequence[str], base: NDArray[np.float32]) -> None:
    codes: dict[int, NDArray[np.float64]] = {}
    numbers: tuple[int, NDArray[Any]] | None = None  # of the last column read; all of them might not fit into memory
    place, block = _read_block(table, columns)
    for b, column in enumerate(columns):
        j = column.column
        if isinstance(column, (Code, TargetMean)):
            if j not in codes:
                code = column if isinstance(column, Code) else column.code
                codes[j] = code.encode(table.labels(j).tolist())
            base[:, b] = column.read(codes[j])
        else:
            if numbers is None or numbers[0] != j:
                cells = block[:, place[j]] if block is not None and j in place else table.numbers(j)
                numbers = j, without_infinities(cells, names[j], is_known=table.is_known)
            base[:, b] = column.read(numbers[1])


def _read_block(table: Table, columns: Sequence[BaseColumn]) -> tuple[dict[int, int], NDArray[Any] | None]:
    """The numbers of a data frame's few rows as one matrix, and the place of each column in it."""
    if table.n_rows > _MAX_FRAME_BLOCK_ROWS:
        return {}, None
    numbers = sorted({c.column for c in columns if isinstance(c, Value) and table.kinds[c.column] in _PLAIN_KINDS})
    block = table.block(numbers) if len(numbers) > 1 else None
    return {j: i for i, j in enumerate(numbers)}, block
