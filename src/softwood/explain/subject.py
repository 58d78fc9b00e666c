"""The model that is to be explained, and the tree of it."""

from __future__ import annotations

from typing import Any

from softwood.model.model import Model


def model_of(estimator: Any) -> Model:
    """The model of a fitted estimator; a model is returned as it is."""
    model = getattr(estimator, "model_", estimator)
    if not isinstance(model, Model):
        raise TypeError(
            f"A fitted softwood estimator or model is needed; got {type(estimator).__name__}. Call fit or load first."
        )
    return model


def check_tree(model: Model, member: int, tree: int) -> None:
    """Raise a ValueError if the model has no such member or tree."""
    if not 0 <= member < len(model.members):
        raise ValueError(f"The member must be 0 to {len(model.members) - 1}; got {member}.")
    n_trees = len(model.members[member].trees.leaf_weight)
    if not 0 <= tree < n_trees:
        raise ValueError(f"The tree must be 0 to {n_trees - 1}; got {tree}.")
