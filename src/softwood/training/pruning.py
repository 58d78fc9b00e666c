"""A lookup member in training loses tables and leaf weights that matter least, while the others learn to do without.

Input: a `LookupState` between two epochs. Its arrays are changed in place: what is removed becomes 0 and stays so.
How much to remove, and when, is left to the caller.

What a weight w is worth is w^2 v, v being Adam's second moment of its gradient: the rise of the loss, to second order
and up to a factor that all weights share, if it became 0 ("optimal brain damage", with the gradient's second moment in
place of the second derivative). A table is worth the sum over its weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from softwood.training.lookup_state import LANES, LookupState


class Pruner:
    """Removes tables and leaf weights of one state; `n_stored` counts the numbers that are left.

    Parameters
    ----------
    state : LookupState
    leaves : bool
        Whether single weights of leaves may be removed, too. Those of monotone trees must not: they are ordered.
    """

    def __init__(self, state: LookupState, *, leaves: bool = True) -> None:
        self._arrays = state.arrays
        self._leaves = leaves
        columns = state.arrays["block_columns"]
        of_column = state.lookups.columns
        self._n_rows = np.array([column.n_parameters for column in of_column])[columns].ravel()
        self._first_row = np.cumsum(self._n_rows) - self._n_rows
        self._cost = np.array([column.n_entries for column in of_column])[columns].ravel()
        # Lanes without a node of a tree are never read.
        is_split = state.shape.node_of_lane() >= 0
        self._is_split = np.repeat(is_split, columns.shape[1], axis=0)
        self._n_biases = int(is_split.sum())
        self._leaf_lanes = state.shape.leaf_lanes()

    def n_stored(self) -> int:
        """Values of tables, biases, and weights of leaves and offsets that are not 0."""
        leaves = self._arrays["leaf_weight"][:, :, self._leaf_lanes]
        n_values = int((self._has_table() * self._cost[:, None]).sum())
        return n_values + self._n_biases + int(np.count_nonzero(leaves)) + len(self._arrays["offset"])

    def _has_table(self) -> NDArray[np.bool_]:
        """Whether a column of a block [columns of all blocks, 16] has a table for each split."""
        used = np.logical_or.reduceat(self._arrays["table"] != 0, self._first_row, axis=0)
        return used & self._is_split

    def remove(self, n: float) -> None:
        """Remove what is worth least for each number that it takes to store, until about n numbers are gone."""
        if n < 1:
            return
        of_table = np.add.reduceat(self._worth("table"), self._first_row, axis=0) / self._cost[:, None]
        of_table[~self._has_table()] = np.inf
        of_leaf = np.full((0,), np.inf)
        if self._leaves:
            of_leaf = self._worth("leaf_weight")
            of_leaf[:, :, ~self._leaf_lanes] = np.inf
            of_leaf[self._arrays["leaf_weight"] == 0] = np.inf
        worth = np.concatenate([of_table.ravel(), of_leaf.ravel()])
        cost = np.concatenate([np.repeat(self._cost, LANES), np.ones(of_leaf.size, dtype=np.int64)])
        order = np.argsort(worth, kind="stable")
        order = order[: int(np.isfinite(worth).sum())]
        removed = order[: int(np.searchsorted(np.cumsum(cost[order]), n, side="right"))]
        is_removed = np.zeros(len(worth), dtype=bool)
        is_removed[removed] = True
        tables = is_removed[: of_table.size].reshape(of_table.shape)
        self._freeze("table", np.repeat(tables, self._n_rows, axis=0))
        if self._leaves:
            self._freeze("leaf_weight", is_removed[of_table.size :].reshape(of_leaf.shape))

    def _worth(self, name: str) -> NDArray[np.float32]:
        second_moment = self._arrays[f"{name}.second_moment"]
        is_frozen = np.isinf(second_moment)
        return np.where(is_frozen, 0, np.square(self._arrays[name]) * np.where(is_frozen, 0, second_moment))

    def _freeze(self, name: str, removed: NDArray[np.bool_]) -> None:
        self._arrays[name][removed] = 0
        self._arrays[f"{name}.first_moment"][removed] = 0
        self._arrays[f"{name}.second_moment"][removed] = np.inf  # see Parameter in the core

    def copy(self) -> dict[str, NDArray[np.float32]]:
        """What `restore` needs to undo all that happens from now on."""
        names = (
            f"{name}{suffix}" for name in LookupState.TRAINED for suffix in ("", ".first_moment", ".second_moment")
        )
        return {name: self._arrays[name].copy() for name in names}

    def restore(self, copied: dict[str, NDArray[np.float32]]) -> None:
        """Undo removals, and the training since."""
        for name, array in copied.items():
            self._arrays[name][...] = array
