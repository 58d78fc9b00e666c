"""Trees of lookups in, the same function of fewer parts out.

Removed are subtrees that no row can reach given the ranges of its columns, splits both of whose sides give the same,
and trees whose output is constant. Nothing is measured or trained: in exact arithmetic the scores stay what they are,
in float32 they move by roundings.

Legend: m trees, d depth, k scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from softwood import reference
from softwood.model.lookup_trees import LookupTrees
from softwood.tabular.encoding.lookups import Lookup


def simplified(trees: LookupTrees, lookups: Sequence[Lookup]) -> LookupTrees:
    """The same trees without what no prediction needs; see the module."""
    if trees.activation == "logistic":  # its splits send rows both ways, always
        return trees
    trees = trees.without_idle_tables(lookups)
    m, n_splits = trees.split_bias.shape
    has_tables = trees.has_tables
    routing = reference.route(trees.split_bias.astype(np.float64), trees.activation, trees.gamma)
    leaf = trees.leaf_weight.astype(np.float64)
    sure = np.float32(trees.gamma)
    bias = trees.split_bias.copy()
    is_constant = np.ones((m, 2 * n_splits + 1), dtype=bool)
    for i in range(n_splits - 1, -1, -1):
        left, right = 2 * i + 1, 2 * i + 2
        of_left, of_right = leaf[:, _leaves_below(left, n_splits)], leaf[:, _leaves_below(right, n_splits)]
        p, q = routing.left[:, i, None, None], routing.right[:, i, None, None]
        free, both = ~has_tables[:, i], is_constant[:, left] & is_constant[:, right]
        equal = both & (of_left[:, :1] == of_right[:, :1]).all(axis=(1, 2))
        mixed = np.where(equal[:, None, None], of_left, p * of_left + q * of_right)
        is_constant[:, i] = equal | (both & free)
        # A side that is constant can be mixed into the leaves of the other one.
        into_right, into_left = (free & is_constant[:, side] & ~both for side in (left, right))
        of_left[:] = np.where((is_constant[:, i] | into_left)[:, None, None], mixed, of_left)
        of_right[:] = np.where((is_constant[:, i] | into_right)[:, None, None], mixed, of_right)
        bias[:, i] = np.where(is_constant[:, i] | into_left, sure, np.where(into_right, -sure, bias[:, i]))
    kept = ~is_constant[:, :n_splits].ravel()[trees.split_of_table]
    lean = replace(trees.only_tables(kept, lookups), split_bias=bias)
    leaf[~lean.needed_nodes()[1]] = 0
    lean = replace(lean, leaf_weight=leaf.astype(np.float32))
    is_kept = ~is_constant[:, 0]
    if not is_kept.any():
        is_kept[0] = True
    constant = leaf[~is_kept, 0].sum(axis=0)
    return replace(_only_trees(lean, is_kept, lookups), offset=(trees.offset + constant).astype(np.float32))


def _leaves_below(node: int, n_splits: int) -> slice:
    """Leaves, counted from 0, below a node in heap order."""
    first = last = node
    while first < n_splits:
        first, last = 2 * first + 1, 2 * last + 2
    return slice(first - n_splits, last - n_splits + 1)


def _only_trees(trees: LookupTrees, kept: NDArray[np.bool_], lookups: Sequence[Lookup]) -> LookupTrees:
    n_splits = trees.split_bias.shape[1]
    of_kept = np.repeat(kept, n_splits)
    lean = trees.only_tables(of_kept[trees.split_of_table], lookups)
    counts = np.diff(lean.table_begin)[of_kept]
    return replace(
        lean,
        table_begin=np.concatenate([[0], np.cumsum(counts)]),
        split_bias=lean.split_bias[kept],
        leaf_weight=lean.leaf_weight[kept],
    )
