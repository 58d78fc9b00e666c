"""How large a model is: weights that training could change, weights that are kept, weights that a row needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softwood import reference
from softwood.model.lookup_trees import LookupTrees
from softwood.model.member_rows import member_rows
from softwood.model.parts import Trees

if TYPE_CHECKING:
    from softwood.model.model import Model


class ParameterCounts(NamedTuple):
    """Numbers of weights, over all members.

    Attributes
    ----------
    trainable : int
        Weights that training could change: of splits, without those that a mask excludes, and of leaves.
    stored : int
        Numbers that prediction keeps: values of tables (or weights other than 0), biases, leaves and offsets. Of trees
        of lookups, leaf weights that are 0, and splits and leaves that no row can reach, do not count.
    read : float
        How many of the stored numbers a row needs, on average over some training rows: those of splits and leaves that
        it reaches, and of a table the two values that it is between (of a category, one). NaN where that is unknown:
        in files of format version 1 and for hardened models.
    """

    trainable: int
    stored: int
    read: float


def count_parameters(model: Model, read: float) -> ParameterCounts:
    """Counts of a model of which a row reads `read` numbers."""
    trees = [member.trees for member in model.members]
    return ParameterCounts(sum(map(_n_trainable, trees)), sum(map(_n_stored, trees)), read)


def _n_trainable(trees: Trees | LookupTrees) -> int:
    if isinstance(trees, LookupTrees):
        return trees.n_trainable
    weights = trees.split_weight.size if trees.feature_mask is None else int(trees.feature_mask.sum())
    norm = 0 if trees.batch_norm is None else 2 * len(trees.batch_norm.scale)
    return weights + (0 if trees.split_bias is None else trees.split_bias.size) + trees.leaf_weight.size + norm


def _n_stored(trees: Trees | LookupTrees) -> int:
    if isinstance(trees, LookupTrees):
        splits, leaves = trees.needed_nodes()
        n_leaf_weights = int(np.count_nonzero(trees.leaf_weight[leaves]))
        return trees.values.size + int(splits.sum()) + n_leaf_weights + trees.offset.size
    weight, bias, _ = trees.folded()
    others = trees.leaf_weight.size + trees.offset.size
    return int(np.count_nonzero(weight)) + (0 if bias is None else bias.size) + others


def mean_parameters_read(model: Model, base: NDArray[np.float32]) -> float:
    """Stored numbers that a row needs, on average over rows of the base matrix [n, q]."""
    total = 0.0
    for i, member in enumerate(model.members):
        rows = member_rows(model, i, base)
        total += member.trees.offset.size
        for tree in range(rows.n_trees):
            routing = reference.route(rows.split_values(tree), rows.activation, rows.gamma)
            reached = (reference.reach_probability(routing.left, routing.right) > 0).mean(axis=0)
            needs = rows.n_read(tree)
            total += float(reached[: len(needs)] @ needs) + float(reached[len(needs) :].sum()) * model.n_outputs
    return total
