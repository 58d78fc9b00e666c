"""A fitted model in, its prediction program out: less work for the same numbers.

Trees of lookups are already what a program holds. Of linear splits, batch normalisation and the scale of each feature
go into the weights and biases. Centring stays a step of its own: a missing value is the centre, and weights that absorb
the mean of a large column lose digits. Subtrees that change nothing are dropped: those below a split that sends every
row one way, and one of two that are the same.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from softwood.model.lookup_trees import LookupTrees
from softwood.model.program import FoldedMember, Program, TableColumn, TreeGroup
from softwood.tabular.encoding.features import LARGEST_FEATURE, Encoding

if TYPE_CHECKING:
    from softwood.model.model import Model
    from softwood.model.parts import Trees

# Scales beyond these stay with the features: with them, weights could leave the range of float32.
_SMALLEST_SCALE, _LARGEST_SCALE = 1e-25, 1e25
# Bias of a split without weights that stands where a tree has a leaf above its last level: every row goes left.
_ALWAYS_LEFT = 1e30


def lower(model: Model) -> Program:
    """The prediction program of a model."""
    read = {member.encoding for member in model.members}
    fitted = model.preprocessor.encodings
    encodings = {name: fold_encoding(encoding) for name, encoding in fitted.items() if name in read}
    return Program(
        tuple(TableColumn(column.name, column.kind) for column in model.preprocessor.columns),
        tuple(model.preprocessor.base_columns()),
        encodings,
        tuple(
            member.trees
            if isinstance(member.trees, LookupTrees)
            else fold_member(member.encoding, member.trees, encodings[member.encoding])
            for member in model.members
        ),
        model.head.lowered(),
        model.has_column_names,
        model.preprocessor.lookups,
        model.given_columns,
    )


def fold_encoding(encoding: Encoding) -> Encoding:
    """The same features, without their scale if weights can take it over."""
    scale = encoding.scale
    if not np.all((scale >= _SMALLEST_SCALE) & (scale <= _LARGEST_SCALE)):
        return encoding
    return replace(encoding, bound=(LARGEST_FEATURE / scale.astype(np.float64)).astype(np.float32))


def fold_member(name: str, trees: Trees, encoding: Encoding) -> FoldedMember:
    """Weights for the features of `fold_encoding`, without needless subtrees."""
    split_weight, split_bias, leaf_weight = trees.folded()
    if split_bias is None:
        split_bias = np.zeros(split_weight.shape[:2])
    if encoding.bound is not None:
        split_weight = split_weight * encoding.scale.astype(np.float64)
    whole = TreeGroup(*(np.ascontiguousarray(a, dtype=np.float32) for a in (split_weight, split_bias, leaf_weight)))
    largest = float(np.abs(whole.leaf_weight).astype(np.float64).max(axis=(1, 2)).sum())
    edge = np.inf if trees.activation == "logistic" else float(np.float32(trees.gamma)) / 2
    return FoldedMember(
        encoding=name,
        groups=_without_needless(whole, edge),
        offset=np.ascontiguousarray(trees.offset, dtype=np.float32),
        activation=trees.activation,
        gamma=float(trees.gamma),
        rounder=3.0 * 2.0 ** (1 + math.frexp(largest)[1]),
    )


# Needless subtrees --------------------------------------------------------------------------------------------------


def _without_needless(trees: TreeGroup, edge: float) -> tuple[TreeGroup, ...]:
    """The same trees, those that lose subtrees rebuilt, by rising depth. Split values from `edge` on route hard."""
    goes_right = _goes_only_right(trees, edge)
    replaced = goes_right | _goes_only_left(trees, edge) | _children_are_alike(trees)
    if not replaced.any():
        return (trees,)
    n_leaves = trees.leaf_weight.shape[1]
    by_depth: dict[int, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
    for tree in range(len(replaced)):
        if not replaced[tree].any():
            rebuilt = trees.split_weight[tree], trees.split_bias[tree], trees.leaf_weight[tree]
        else:
            # What stands in the place of each node: itself, or one of its children, or of theirs, ...
            stand_in = np.arange(2 * n_leaves - 1)
            for node in range(n_leaves - 2, -1, -1):
                if replaced[tree, node]:
                    stand_in[node] = stand_in[2 * node + (2 if goes_right[tree, node] else 1)]
            rebuilt = _rebuild(trees, tree, stand_in)
        by_depth.setdefault(len(rebuilt[2]).bit_length() - 1, []).append(rebuilt)
    return tuple(TreeGroup(*map(np.stack, zip(*some, strict=True))) for _, some in sorted(by_depth.items()))


def _goes_only_right(trees: TreeGroup, edge: float) -> NDArray[np.bool_]:
    return ~trees.split_weight.any(axis=2) & (trees.split_bias <= -edge)


def _goes_only_left(trees: TreeGroup, edge: float) -> NDArray[np.bool_]:
    return ~trees.split_weight.any(axis=2) & (trees.split_bias >= edge)


def _children_are_alike(trees: TreeGroup) -> NDArray[np.bool_]:
    """Which nodes [m, 2^d - 1] have two subtrees that are the same, or leaves below that are all the same."""
    m, _, k = trees.leaf_weight.shape
    parts = []
    for level in range(trees.depth):
        leaves = trees.leaf_weight.reshape(m, 1 << level, -1, k)
        one_value = (leaves == leaves[:, :, :1]).all(axis=(2, 3))
        halves = leaves.reshape(m, 1 << level, 2, -1)
        alike = (halves[:, :, 0] == halves[:, :, 1]).all(axis=2)
        for below in range(level + 1, trees.depth if alike.any() else 0):
            nodes = slice((1 << below) - 1, (2 << below) - 1)
            for array in (trees.split_weight[:, nodes], trees.split_bias[:, nodes]):
                halves = array.reshape(m, 1 << level, 2, -1)
                alike &= (halves[:, :, 0] == halves[:, :, 1]).all(axis=2)
        parts.append(alike | one_value)
    return np.concatenate(parts, axis=1)


def _rebuild(trees: TreeGroup, tree: int, stand_in: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arrays of one tree as a perfect tree that is as low as can be, at least one level high."""
    n_splits = trees.split_weight.shape[1]
    # Old nodes of each level, from left to right; leaves stay leaves, and stand at the left end of what is below them.
    levels = [np.array([stand_in[0]])]
    while len(levels) == 1 or (levels[-1] < n_splits).any():
        above = levels[-1]
        is_split = above < n_splits
        left = np.where(is_split, stand_in[np.where(is_split, 2 * above + 1, 0)], above)
        right = np.where(is_split, stand_in[np.where(is_split, 2 * above + 2, 0)], above)
        levels.append(np.stack([left, right], axis=1).ravel())
    nodes = np.concatenate(levels[:-1])
    is_split = nodes < n_splits
    rows = np.where(is_split, nodes, 0)
    split_weight = np.where(is_split[:, None], trees.split_weight[tree, rows], np.float32(0))
    split_bias = np.where(is_split, trees.split_bias[tree, rows], np.float32(_ALWAYS_LEFT))
    return split_weight, split_bias, trees.leaf_weight[tree, levels[-1] - n_splits]
