"""Trees whose splits are sums of lookups, as plain data: what a fitted member is, and what a program holds of it.

A split reads some columns by *tables*: one value per entry of the column (`softwood.tabular.encoding.lookups.Lookup`),
read between two entries by linear interpolation. Only tables that are not zero everywhere exist. Values are whole
multiples of a step, a power of two, and fractions between entries are whole too, so that the sum of a split is a sum of
integers: exact, and the same in every back end. Values are rounded to 1/256 of the soft band's width, those of many
trees, whose errors cancel, to 1/64: that moves probabilities by less than what training leaves open
(docs/file-format.md has the measurements).

Legend: n rows, k scores, m trees, d depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.tabular.encoding.lookups import ONE_FRACTION, Lookup

# Steps in the width of the soft band, for few trees and for many, and how many times as many in the largest leaf.
_MOST_STEPS, _LEAST_STEPS, _LEAF_STEPS = 256, 64, 16
# How many times as large the steps are where rows are within few bands.
_COARSER = 4
# The largest value of a table, and of the sum over a split's tables of their largest: sums then fit 32 bits.
_MAX_VALUE, _MAX_SUM = 2**15 - 1, 2**16 - 1
# The core takes scales of leaves below 2^100; smaller leaves than those for which this is enough are next to nothing.
_LARGEST_SCALE_EXPONENT = 99


@dataclass(frozen=True, eq=False)
class LookupTrees:
    """One ensemble. Its raw scores are `offset` plus the sum of all trees; nodes of a tree stand in heap order.

    A row goes left at split i with probability S(t), t = split_bias + step * sum over its tables of
    (1 - f) values[e] + f values[e + 1], where e and f are the entry and fraction of the row's cell.

    Attributes
    ----------
    table_begin : ndarray [m (2^d - 1) + 1], int64
        Split i, counted over all trees, has the tables table_begin[i] to table_begin[i + 1] - 1.
    table_column : ndarray [tables], int32
        Which lookup a table reads; rising within a split.
    values : ndarray, int16
        Entries of the first table, then of the second, ...
    split_bias : ndarray [m, 2^d - 1], float32
    leaf_weight : ndarray [m, 2^d, k], float32
    offset : ndarray [k], float32
    step : float
        A power of two.
    gamma : float
        Width of the soft band.
    activation : str
        Shape of S, one of `softwood.arguments.ACTIVATIONS`.
    n_trainable : int
        Weights that training could change.
    """

    table_begin: NDArray[np.int64]
    table_column: NDArray[np.int32]
    values: NDArray[np.int16]
    split_bias: NDArray[np.float32]
    leaf_weight: NDArray[np.float32]
    offset: NDArray[np.float32]
    step: float
    gamma: float
    activation: str
    n_trainable: int

    @property
    def depth(self) -> int:
        """Depth d of the trees."""
        return self.leaf_weight.shape[1].bit_length() - 1

    @property
    def leaf_scale(self) -> float:
        """Power of two by which leaves are multiplied before their shares in a score are rounded to integers."""
        largest = float(np.abs(self.leaf_weight).astype(np.float64).max(axis=(1, 2)).sum())
        return 1.0 if largest == 0 else 2.0 ** min(_LARGEST_SCALE_EXPONENT, 30 - math.frexp(largest)[1])

    @cached_property
    def split_of_table(self) -> NDArray[np.int64]:
        """Split, counted over all trees, that each table belongs to."""
        return np.repeat(np.arange(len(self.table_begin) - 1), np.diff(self.table_begin))

    def value_begin(self, lookups: Sequence[Lookup]) -> NDArray[np.int64]:
        """Where the values of each table begin, and where those of the last one end."""
        sizes = np.array([lookup.n_entries for lookup in lookups], dtype=np.int64)
        return np.concatenate([[0], np.cumsum(sizes[self.table_column])])

    def tables_of(self, column: int, lookups: Sequence[Lookup]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Splits [t] that read a lookup, each once, and their tables [t, n_entries], in steps."""
        chosen = np.flatnonzero(self.table_column == column)
        begin = self.value_begin(lookups)[:-1][chosen]
        values = self.values[begin[:, None] + np.arange(lookups[column].n_entries)]
        return self.split_of_table[chosen], values.astype(np.int64)

    def effects(
        self, column: int, lookups: Sequence[Lookup], base: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Splits [t] that read a lookup, and what it brings to them in each row [n, t], in `unit`."""
        splits, values = self.tables_of(column, lookups)
        entry, fraction = lookups[column].read(base)
        following = np.minimum(entry + 1, values.shape[1] - 1)
        low, high = values[:, entry].T, values[:, following].T
        return splits, low * (ONE_FRACTION - fraction)[:, None] + high * fraction[:, None]

    @property
    def unit(self) -> float:
        """What an integer of a split's sum is worth."""
        return self.step / ONE_FRACTION

    def split_values(self, lookups: Sequence[Lookup], base: NDArray[np.float32]) -> NDArray[np.float32]:
        """t of all splits [n, m, 2^d - 1] for rows of the base matrix."""
        sums = np.zeros((len(base), self.split_bias.size), dtype=np.int64)
        for column in np.unique(self.table_column).tolist():
            splits, effects = self.effects(column, lookups, base)
            sums[:, splits] += effects
        t = sums.astype(np.float32) * np.float32(self.unit) + self.split_bias.ravel()
        return t.reshape(len(base), *self.split_bias.shape)

    def sums_fit(self, lookups: Sequence[Lookup]) -> bool:
        """Whether the sums of all splits fit 32 bits; those of `round_tables` do."""
        if not len(self.table_column):
            return True
        largest = np.maximum.reduceat(np.abs(self.values.astype(np.int64)), self.value_begin(lookups)[:-1])
        return _fit_their_range(largest, self.split_of_table)

    def without_idle_tables(self, lookups: Sequence[Lookup]) -> LookupTrees:
        """The same function without tables that no row can need.

        The values of a split have bounds. Where they are beyond the soft band the split sends every row one way: it
        needs no tables, and nor does any split on the other side.
        """
        if self.activation == "logistic" or not len(self.table_column):
            return self
        edge = float(np.float32(self.gamma)) / 2
        begin = self.value_begin(lookups)[:-1]
        lowest, highest = np.zeros(self.split_bias.size), np.zeros(self.split_bias.size)
        np.add.at(lowest, self.split_of_table, np.minimum.reduceat(self.values, begin).astype(np.float64))
        np.add.at(highest, self.split_of_table, np.maximum.reduceat(self.values, begin).astype(np.float64))
        bias = self.split_bias.astype(np.float64)
        only_left = bias + self.step * lowest.reshape(bias.shape) >= edge
        only_right = bias + self.step * highest.reshape(bias.shape) <= -edge
        reached = _reached_nodes(only_left, only_right)[:, : bias.shape[1]]
        kept = (reached & ~only_left & ~only_right).ravel()[self.split_of_table]
        sure = np.float32(self.gamma)
        split_bias = np.where(only_left, sure, np.where(only_right, -sure, self.split_bias))
        return replace(self.only_tables(kept, lookups), split_bias=split_bias)

    @property
    def has_tables(self) -> NDArray[np.bool_]:
        """Whether splits [m, 2^d - 1] have tables; others send all rows the same way or ways."""
        return (np.diff(self.table_begin) > 0).reshape(self.split_bias.shape)

    def needed_nodes(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Splits [m, 2^d - 1] that share rows out, and leaves [m, 2^d] that splits without tables do not cut off."""
        if self.activation == "logistic":
            return np.ones(self.split_bias.shape, dtype=bool), np.ones(self.leaf_weight.shape[:2], dtype=bool)
        edge = np.float32(self.gamma) / 2
        only_left, only_right = (~self.has_tables & (sign * self.split_bias >= edge) for sign in (1, -1))
        reached = _reached_nodes(only_left, only_right)
        n_splits = self.split_bias.shape[1]
        return reached[:, :n_splits] & ~only_left & ~only_right, reached[:, n_splits:]

    def only_tables(self, kept: NDArray[np.bool_], lookups: Sequence[Lookup]) -> LookupTrees:
        """The same with some of the tables [tables] only."""
        counts = np.bincount(self.split_of_table[kept], minlength=len(self.table_begin) - 1)
        sizes = np.diff(self.value_begin(lookups))
        return replace(
            self,
            table_begin=np.concatenate([[0], np.cumsum(counts)]),
            table_column=self.table_column[kept],
            values=self.values[np.repeat(kept, sizes)],
        )


def _reached_nodes(only_left: NDArray[np.bool_], only_right: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Nodes [m, 2^(d+1) - 1] that rows can reach if some splits [m, 2^d - 1] send all rows one way."""
    n_splits = only_left.shape[1]
    reached = np.ones((len(only_left), 2 * n_splits + 1), dtype=bool)
    for i in range(n_splits):
        reached[:, 2 * i + 1] = reached[:, i] & ~only_right[:, i]
        reached[:, 2 * i + 2] = reached[:, i] & ~only_left[:, i]
    return reached


def _n_steps(n_trees: int) -> int:
    """A power of two near 512 / sqrt(n_trees), within bounds: the error of a score is the same for any number."""
    return int(min(_MOST_STEPS, max(_LEAST_STEPS, 2 ** round(9 - math.log2(n_trees) / 2))))


def round_leaves(leaf_weight: NDArray[np.floating]) -> NDArray[np.float32]:
    """Weights of leaves [m, 2^d, k] as whole multiples of a power of two, a thousandth of the largest one or less."""
    largest = float(np.abs(leaf_weight).max(initial=0))
    if not 0 < largest < np.inf:
        return leaf_weight.astype(np.float32)
    step = 2.0 ** (math.frexp(largest)[1] - 1) / (_LEAF_STEPS * _n_steps(len(leaf_weight)))
    return (np.rint(leaf_weight.astype(np.float64) / step) * step).astype(np.float32)


def round_tables(
    tables: Sequence[tuple[int, int, NDArray[np.floating]]],
    n_splits: int,
    gamma: float,
    *,
    n_trees: int = 1,
    is_narrow: bool = False,
) -> tuple[dict[str, np.ndarray], float]:
    """Arrays of (split, column, values) tables, rounded, without those that are zero; and the step.

    The step is 1/256 of gamma, or 1/64 if there are many trees, rounded down to a power of two, and larger only where
    values would leave their range. It is four times as large where rows are within few bands, since only there it
    matters.
    """
    order = sorted(range(len(tables)), key=lambda i: tables[i][:2])
    splits = np.array([tables[i][0] for i in order], dtype=np.int64)
    columns = np.array([tables[i][1] for i in order], dtype=np.int32)
    sizes = np.array([len(tables[i][2]) for i in order], dtype=np.int64)
    exact = np.concatenate([np.zeros(0), *(tables[i][2] for i in order)])
    begin = np.cumsum(sizes) - sizes
    largest = np.maximum.reduceat(np.abs(exact), begin) if len(sizes) else np.zeros(0)
    step = 2.0 ** math.floor(math.log2(gamma / _n_steps(n_trees))) * (_COARSER if is_narrow else 1)
    while len(sizes) and not _fit_their_range(np.rint(largest / step), splits):
        step *= 2
    rounded = np.rint(exact / step)
    kept = np.add.reduceat(rounded != 0, begin) > 0 if len(sizes) else np.zeros(0, dtype=bool)
    counts = np.bincount(splits[kept], minlength=n_splits)
    arrays = {
        "table_begin": np.concatenate([[0], np.cumsum(counts)]),
        "table_column": columns[kept],
        "values": rounded[np.repeat(kept, sizes)].astype(np.int16),
    }
    return arrays, step


def _fit_their_range(largest: NDArray[Any], splits: NDArray[np.int64]) -> bool:
    """Whether the largest values of tables, and their sums over the tables of each split, can be stored and added."""
    return bool(largest.max() <= _MAX_VALUE and np.bincount(splits, weights=largest).max() <= _MAX_SUM)
