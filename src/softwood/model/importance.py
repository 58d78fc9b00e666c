"""How much a model's raw scores depend on each column of the table.

Each split is judged by what it decides: replace its routing by a coin flip with the split's average odds, and measure
how far the raw scores of some training rows move,

    stake_i = mean over rows x of  P(x -> i) * |S(t_i) - mean S_i| * ||e_left - e_right||_1,

where P(x -> i) is the probability that x reaches split i, mean S_i the average of S(t_i) over rows weighted by it, and
e_c the expected output below child c. A split's stake is shared out among the columns in proportion to the variance of
what each brings to t_i (the weighted sum of the inputs made from it), and all parts are scaled to sum to 1. Variances
add up as chance weights do, so that a column of many inputs with small weights, a category's levels say, gets little;
shares by absolute weights gave columns without any effect one and a half times to twice as much. The
measure needs no target and no further training; like every importance of its kind it splits credit between correlated
columns as the trees happened to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from softwood import reference
from softwood.model.member_rows import MemberRows, member_rows

if TYPE_CHECKING:
    from softwood.model.model import Model

N_ROWS = 256
# Floats held at once for one tree; rows are left out of very deep trees to stay below it.
_MAX_FLOATS = 1 << 24


def column_importances(model: Model, base: NDArray[np.float32]) -> NDArray[np.float64]:
    """Importance of each column of the table [n_columns], from some rows of the base matrix [n, q]."""
    total = np.zeros(model.n_columns)
    for member in range(len(model.members)):
        rows = member_rows(model, member, base)
        total += shared_stakes(split_stakes(rows), rows)
    return total / total.sum() if total.sum() > 0 else total


def shared_stakes(stakes: NDArray[np.float64], rows: MemberRows) -> NDArray[np.float64]:
    """Stakes [m, 2^d - 1] shared among columns [n_columns] by the variance over rows of what each brings to t.

    Variances are computed twice: those of all splits and columns at once may not fit into memory.
    """
    whole = sum(rows.variance(j) for j in range(rows.n_columns))
    per_variance = np.divide(stakes, whole, out=np.zeros_like(stakes), where=whole > 0)
    return np.array([(per_variance * rows.variance(j)).sum() for j in range(rows.n_columns)])


def split_stakes(rows: MemberRows) -> NDArray[np.float64]:
    """What each split decides on the rows: stakes [m, 2^d - 1], as the module defines them."""
    n_trees, n_leaves, k = rows.leaf_weight.shape
    n_rows = max(16, _MAX_FLOATS // (n_leaves * k))
    stakes = np.zeros((n_trees, n_leaves - 1))
    for tree in range(n_trees):
        routing = reference.route(rows.split_values(tree)[:n_rows], rows.activation, rows.gamma)
        stakes[tree] = _tree_stakes(routing.left, routing.right, rows.leaf_weight[tree])
    return stakes


def _tree_stakes(left: np.ndarray, right: np.ndarray, leaf_weight: np.ndarray) -> NDArray[np.float64]:
    """Stakes [2^d - 1] of one tree, from its routing probabilities [n, 2^d - 1] and leaves [2^d, k]."""
    n, n_splits = left.shape
    parents = slice(n_splits // 2)
    reach = reference.reach_probability(left[:, parents], right[:, parents])
    odds = (reach * left).sum(axis=0) / np.maximum(reach.sum(axis=0), 1e-30)
    moved = reach * np.abs(left - odds)
    below = np.broadcast_to(leaf_weight, (n, *leaf_weight.shape))
    stakes = np.zeros(n_splits)
    for level in reversed(range(n_splits.bit_length())):
        level_splits = slice((1 << level) - 1, (2 << level) - 1)
        e_left, e_right = below[:, 0::2], below[:, 1::2]
        gap = np.abs(e_left - e_right).sum(axis=2)
        stakes[level_splits] = (moved[:, level_splits] * gap).mean(axis=0)
        below = e_right + left[:, level_splits, None] * (e_left - e_right)
    return stakes
