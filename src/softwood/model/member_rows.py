"""What the splits of one member do with some rows, whatever their kind: for importances and explanations.

Input: a model, a member and rows of the base matrix. Output: split values, and what each column of the table
brings to them, in float64. A split value is always its bias plus the sum over columns of what they bring.

Legend: n rows, m trees, d depth.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from softwood.model.lookup_trees import LookupTrees
from softwood.model.parts import Trees
from softwood.tabular.encoding.lookups import ONE_FRACTION

if TYPE_CHECKING:
    from softwood.model.model import Model


class MemberRows:
    """Rows of the base matrix as one member sees them; `member_rows` makes the kind that fits."""

    def __init__(self, model: Model, trees: Trees | LookupTrees) -> None:
        self.n_columns = model.n_columns
        self.leaf_weight = trees.leaf_weight.astype(np.float64)
        self.activation, self.gamma = trees.activation, trees.gamma

    @property
    def n_trees(self) -> int:
        """Number of trees m."""
        return len(self.leaf_weight)

    def split_values(self, tree: int) -> NDArray[np.float64]:
        """t [n, 2^d - 1] of one tree."""
        raise NotImplementedError

    def bias(self, tree: int) -> NDArray[np.float64]:
        """What the splits [2^d - 1] of a tree add to the effects of columns."""
        raise NotImplementedError

    def effects(self, tree: int, split: int) -> NDArray[np.float64]:
        """What each column brings to one split [n, n_columns]."""
        raise NotImplementedError

    def weights(self, tree: int, split: int) -> NDArray[np.float64]:
        """How much a split looks at each column [n_columns], whatever the rows."""
        raise NotImplementedError

    def n_read(self, tree: int) -> NDArray[np.int64]:
        """Numbers that a row needs of each split of a tree [2^d - 1], its bias included."""
        raise NotImplementedError

    def variance(self, column: int) -> NDArray[np.float64]:
        """Variance over the rows of what a column brings to each split [m, 2^d - 1]."""
        raise NotImplementedError


def member_rows(model: Model, member: int, base: NDArray[np.float32]) -> MemberRows:
    """Rows [n, q] of the base matrix as a member sees them."""
    trees = model.members[member].trees
    if isinstance(trees, LookupTrees):
        return _LookupRows(model, trees, base)
    return _LinearRows(model, trees, model.members[member].encoding, base)


class _LinearRows(MemberRows):
    """A split weighs features; those made from one column bring their weighted sum."""

    def __init__(self, model: Model, trees: Trees, encoding: str, base: NDArray[np.float32]) -> None:
        super().__init__(model, trees)
        weight, bias, _ = trees.folded()
        self._weight = weight.astype(np.float64)
        self._bias = np.zeros(weight.shape[:2]) if bias is None else bias.astype(np.float64)
        self._x = model.preprocessor.encodings[encoding].transform(base).astype(np.float64)
        self._column = model.program.column_of_feature(encoding)

    def split_values(self, tree: int) -> NDArray[np.float64]:
        return self._x @ self._weight[tree].T + self._bias[tree]

    def bias(self, tree: int) -> NDArray[np.float64]:
        return self._bias[tree]

    @cached_property
    def _is_column(self) -> NDArray[np.float64]:
        return (self._column[:, None] == np.arange(self.n_columns)).astype(np.float64)

    def effects(self, tree: int, split: int) -> NDArray[np.float64]:
        return (self._x * self._weight[tree, split]) @ self._is_column

    def weights(self, tree: int, split: int) -> NDArray[np.float64]:
        return np.abs(self._weight[tree, split]) @ self._is_column

    def n_read(self, tree: int) -> NDArray[np.int64]:
        return np.count_nonzero(self._weight[tree], axis=1) + 1

    def variance(self, column: int) -> NDArray[np.float64]:
        features = np.flatnonzero(self._column == column)
        centred = self._x[:, features] - self._x[:, features].mean(axis=0)
        covariance = centred.T @ centred / len(centred)
        weight = self._weight[:, :, features]
        found = np.einsum("mip,mip->mi", weight @ covariance, weight)
        return np.maximum(found, 0.0)  # rounding may leave a constant column a little below


class _LookupRows(MemberRows):
    """A split sums up tables; a column brings the sum of those that read what is made from it."""

    def __init__(self, model: Model, trees: LookupTrees, base: NDArray[np.float32]) -> None:
        super().__init__(model, trees)
        self._trees, self._base, self._lookups = trees, base, model.preprocessor.lookups
        of_base = [column.column for column in model.program.base]
        self._column = np.array([of_base[lookup.base_column] for lookup in self._lookups])
        self._begin = trees.value_begin(self._lookups)

    @cached_property
    def _split_values(self) -> NDArray[np.float32]:
        return self._trees.split_values(self._lookups, self._base)

    def split_values(self, tree: int) -> NDArray[np.float64]:
        return self._split_values[:, tree].astype(np.float64)

    def bias(self, tree: int) -> NDArray[np.float64]:
        return self._trees.split_bias[tree].astype(np.float64)

    @cached_property
    def _cells(self) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        read = (lookup.read(self._base) for lookup in self._lookups)
        return [(entry, fraction.astype(np.float64) / ONE_FRACTION) for entry, fraction in read]

    def _tables(self, tree: int, split: int) -> list[tuple[int, NDArray[np.float64]]]:
        """(lookup, values) of the tables of a split."""
        number = tree * self._trees.split_bias.shape[1] + split
        chosen = range(*self._trees.table_begin[number : number + 2].tolist())
        return [
            (
                int(self._trees.table_column[i]),
                self._trees.values[slice(*self._begin[i : i + 2])].astype(np.float64) * self._trees.step,
            )
            for i in chosen
        ]

    def effects(self, tree: int, split: int) -> NDArray[np.float64]:
        found = np.zeros((len(self._base), self.n_columns))
        for lookup, values in self._tables(tree, split):
            entry, fraction = self._cells[lookup]
            following = np.minimum(entry + 1, len(values) - 1)
            found[:, self._column[lookup]] += values[entry] * (1 - fraction) + values[following] * fraction
        return found

    def weights(self, tree: int, split: int) -> NDArray[np.float64]:
        found = np.zeros(self.n_columns)
        for lookup, values in self._tables(tree, split):
            found[self._column[lookup]] += np.ptp(values)
        return found

    def n_read(self, tree: int) -> NDArray[np.int64]:
        n_splits = self._trees.split_bias.shape[1]
        of_column = np.array([2 if len(lookup.knots) else 1 for lookup in self._lookups], dtype=np.int64)
        total = np.concatenate([[0], np.cumsum(of_column[self._trees.table_column])])
        return 1 + np.diff(total[self._trees.table_begin[tree * n_splits : (tree + 1) * n_splits + 1]])

    def variance(self, column: int) -> NDArray[np.float64]:
        lookups = np.flatnonzero(self._column == column).tolist()
        total = np.zeros((len(self._base), self._trees.split_bias.size))
        for lookup in lookups:
            splits, effects = self._trees.effects(lookup, self._lookups, self._base)
            total[:, splits] += effects * self._trees.unit
        return total.var(axis=0).reshape(self._trees.split_bias.shape)
