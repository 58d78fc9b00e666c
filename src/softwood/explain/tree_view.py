"""One tree in, what a picture of it needs out: places of nodes, their strongest columns, values of leaves.

`softwood.explain.plot` draws the result with matplotlib, `softwood.explain.report` in a browser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.model.importance import N_ROWS, split_stakes
from softwood.model.member_rows import member_rows
from softwood.model.model import Model

_N_FEATURES = 3


@dataclass(frozen=True)
class ViewNode:
    """A node as drawn.

    Attributes
    ----------
    index, level : int
        Number in heap order, and distance from the root.
    x : float
        Place from left (0) to right (1).
    is_end : bool
        Drawn without children: a leaf, or a subtree below the greatest depth.
    value : float
        What is added to the raw score here: of an end, its leaf's, or the mean of its leaves weighted by traffic.
    n_below : int
        Leaves that an end stands for.
    features : tuple of str
        Columns that a split looks at most, the strongest first.
    weights : tuple of float
        Their shares of the split's weights.
    """

    index: int
    level: int
    x: float
    is_end: bool
    value: float
    n_below: int
    features: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class TreeView:
    """A tree as drawn: its nodes in heap order and its depth, at most the greatest depth asked for."""

    depth: int
    nodes: tuple[ViewNode, ...]


def check_tree(model: Model, member: int, tree: int) -> None:
    """Raise a ValueError if the model has no such member or tree."""
    if not 0 <= member < len(model.members):
        raise ValueError(f"The member must be 0 to {len(model.members) - 1}; got {member}.")
    n_trees = len(model.members[member].trees.leaf_weight)
    if not 0 <= tree < n_trees:
        raise ValueError(f"The tree must be 0 to {n_trees - 1}; got {tree}.")


def tree_view(
    model: Model, reach: NDArray[np.float64], *, member: int, tree: int, output: int = 0, max_depth: int = 6
) -> TreeView:
    """Lay out one tree; `reach` [2^(d+1) - 1] is the traffic at each node."""
    check_tree(model, member, tree)
    if not 0 <= output < model.n_outputs:
        raise ValueError(f"The output must be 0 to {model.n_outputs - 1}; got {output}.")
    leaves = model.members[member].trees.leaf_weight[tree, :, output].astype(np.float64) / len(model.members)
    full_depth = len(leaves).bit_length() - 1
    depth = min(full_depth, max_depth)
    columns = _column_weights(model, member, tree)
    below = _leaf_means(leaves, reach)
    nodes = []
    for i in range(2 ** (depth + 1) - 1):
        level = (i + 1).bit_length() - 1
        x = (i - (2**level - 1) + 0.5) / 2**level
        is_end = level == depth
        n_below = 2 ** (full_depth - level)
        if is_end:
            nodes.append(ViewNode(i, level, x, True, float(below[i]), n_below))
            continue
        order = np.argsort(-columns[i], kind="stable")[:_N_FEATURES]
        order = order[columns[i, order] > 0]
        names = tuple(model.column_names[j] for j in order)
        nodes.append(ViewNode(i, level, x, False, float(below[i]), n_below, names, tuple(columns[i, order].tolist())))
    return TreeView(depth, tuple(nodes))


def strongest_trees(model: Model, X: Any) -> list[tuple[int, int]]:
    """(member, tree) of all trees, those first whose splits decide most over the first rows of X."""
    found = []
    for i, rows in enumerate(model.rows(model.program.read(X).rows(0, N_ROWS))):
        stakes = split_stakes(rows).sum(axis=1)
        found += [(-float(stake), i, tree) for tree, stake in enumerate(stakes)]
    return [(i, tree) for _, i, tree in sorted(found)]


def _column_weights(model: Model, member: int, tree: int) -> NDArray[np.float64]:
    """Share of each column in what each split looks at [2^d - 1, n_columns]: in weights, or in ranges of tables."""
    no_rows = np.zeros((0, len(model.program.base)), dtype=np.float32)
    rows = member_rows(model, member, no_rows)
    weights = np.array([rows.weights(tree, split) for split in range(rows.leaf_weight.shape[1] - 1)])
    return weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)


def _leaf_means(leaves: np.ndarray, reach: np.ndarray) -> NDArray[np.float64]:
    """Mean of the leaves below each node, weighted by traffic; equally where there is none."""
    n_splits = len(leaves) - 1
    mean = np.concatenate([np.zeros(n_splits), leaves])
    for i in reversed(range(n_splits)):
        share = reach[[2 * i + 1, 2 * i + 2]]
        share = share / share.sum() if share.sum() > 0 else np.array([0.5, 0.5])
        mean[i] = share @ mean[[2 * i + 1, 2 * i + 2]]
    return mean
