"""Soft trees in, hard ones out, and what that costs on data.

A hard tree is an ordinary oblique decision tree: the soft band of each split is narrowed to (nearly) nothing, so that a
row takes one path. Nothing is trained again. A row that lies on a border to the last bit of a float goes both ways.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from softwood.model.lookup_trees import LookupTrees
from softwood.model.model import Model
from softwood.model.parts import ModelMember

# Far below the rounding of any split value that is not 0, and far above the smallest float32.
HARD_GAMMA = 1e-20
# A regression's prediction counts as unchanged if it moves by less than this share of the predictions' spread.
UNCHANGED_SHIFT = 0.01


@dataclass(frozen=True)
class HardeningCost:
    """What hardening did to the predictions of some rows.

    Attributes
    ----------
    n_rows : int
    unchanged_share : float
        Share of rows whose predicted class stayed, or whose predicted value moved by less than a hundredth of the
        standard deviation of the soft predictions.
    metric : {"accuracy", "r2"}
    before, after : float
        The metric of the soft and of the hard trees.
    """

    n_rows: int
    unchanged_share: float
    metric: str
    before: float
    after: float

    def __str__(self) -> str:
        return (
            f"{self.unchanged_share:.1%} of {self.n_rows} predictions unchanged; "
            f"{self.metric} {self.before:.4f} before, {self.after:.4f} after"
        )


def harden_model(model: Model, gamma: float | None = None) -> Model:
    """A copy of the model whose soft bands have width `gamma`, or nearly none."""
    if gamma is not None and not (np.isfinite(gamma) and gamma >= HARD_GAMMA):
        raise ValueError(f"gamma must be at least {HARD_GAMMA:g}, or None for hard trees; got {gamma!r}.")
    hard = replace(model, members=[_harden_member(member, gamma) for member in model.members], importance_rows=None)
    hard.mean_parameters_read = float("nan")
    hard.importances = model.importances
    return hard


def _harden_member(member: ModelMember, gamma: float | None) -> ModelMember:
    trees = member.trees
    if gamma is not None:
        return replace(member, trees=replace(trees, gamma=float(gamma)))
    if isinstance(trees, LookupTrees):
        return replace(member, trees=_harden_lookups(trees))
    bias = trees.split_bias
    if bias is None:
        bias = np.zeros(trees.split_weight.shape[:2], dtype=trees.split_weight.dtype)
    # A split that never learned anything, and a row of means only, have t = 0: they go left, as those with t > 0 do.
    bias = np.where(bias == 0, HARD_GAMMA, bias).astype(bias.dtype)
    # The logistic function has tails at any width; a hard split has none.
    hard = replace(trees, gamma=HARD_GAMMA, activation="smooth_step", split_bias=bias)
    return replace(member, trees=hard)


def _harden_lookups(trees: LookupTrees) -> LookupTrees:
    # Sums of tables are multiples of `unit`. Biases that are too become half a unit larger, so that no sum is 0: rows
    # at a border go left.
    bias = trees.split_bias.astype(np.float64)
    is_multiple = bias / trees.unit == np.rint(bias / trees.unit)
    apart = np.where(is_multiple, bias + trees.unit / 2, bias).astype(np.float32)
    return replace(trees, gamma=HARD_GAMMA, activation="smooth_step", split_bias=apart)


def hardening_cost(soft: Any, hard: Any, X: Any, y: ArrayLike | None) -> HardeningCost:
    """Compare two fitted estimators of one class on the rows X and their targets y."""
    before, after = soft.predict(X), hard.predict(X)
    if soft.model_.head.task == "regression":
        distance = np.abs(after - before)
        same = (distance <= UNCHANGED_SHIFT * before.std(axis=0)).reshape(len(before), -1).all(axis=1)
        metric = "r2"
    else:
        same, metric = (before == after).reshape(len(before), -1).all(axis=1), "accuracy"
    return HardeningCost(len(before), float(np.mean(same)), metric, float(soft.score(X, y)), float(hard.score(X, y)))
