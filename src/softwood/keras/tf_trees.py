"""Weights of the paper authors' TensorFlow layer, converted to a softwood layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from softwood.keras.layer import TreeEnsemble


def from_tf_trees(
    node_weights: Sequence[Any], leaf_weights: Sequence[Any], smooth_step_param: float, **kwargs: Any
) -> TreeEnsemble:
    """Make a layer that computes what the authors' ``TEL`` layer computes with these weights.

    Parameters
    ----------
    node_weights : sequence of array
        One [p, 2^d - 1] per tree, as in ``TEL``'s ``_node_weights``.
    leaf_weights : sequence of array
        One [k, 2^d] per tree, as in its ``_leaf_weights``.
    smooth_step_param : float
        Theirs: the inverse of gamma.
    **kwargs
        Further arguments of `TreeEnsemble`, such as ``sum_trees`` or ``name``.

    Returns
    -------
    TreeEnsemble
        Built, with the weights set. With ``sum_trees=False`` its output is [n, m, k], where theirs is [n, m * k].

    Examples
    --------
    >>> import numpy as np
    >>> from softwood.keras import from_tf_trees
    >>> layer = from_tf_trees([np.ones((2, 1))], [np.array([[3.0, 5.0]])], smooth_step_param=1.0)
    >>> np.asarray(layer(np.array([[9.0, 0.0], [0.0, 0.0]], "float32"))).tolist()
    [[3.0], [4.0]]
    """
    nodes = [_as_array(weight) for weight in node_weights]
    leaves = [_as_array(weight) for weight in leaf_weights]
    _check(nodes, leaves, smooth_step_param)
    n_features, n_splits = nodes[0].shape
    layer = TreeEnsemble(
        units=leaves[0].shape[0],
        n_trees=len(nodes),
        depth=n_splits.bit_length(),
        gamma=1.0 / float(smooth_step_param),
        **kwargs,
    )
    layer.build((None, n_features))
    layer.split_weight.assign(np.stack([weight.T for weight in nodes]))
    layer.leaf_weight.assign(np.stack([weight.T for weight in leaves]))
    return layer


def _as_array(weight: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(weight))


def _check(nodes: list[np.ndarray], leaves: list[np.ndarray], smooth_step_param: float) -> None:
    if not nodes or len(nodes) != len(leaves):
        raise ValueError(
            "node_weights and leaf_weights must have one array for each tree, and at least one; "
            f"received {len(nodes)} and {len(leaves)}."
        )
    if not 0.0 < smooth_step_param < float("inf"):
        raise ValueError(f"smooth_step_param must be a positive number; received {smooth_step_param}.")
    n_splits = nodes[0].shape[-1] if nodes[0].ndim == 2 else 0
    n_leaves = n_splits + 1
    if n_splits < 1 or n_splits & n_leaves:
        raise ValueError(f"node_weights[0] must be [p, 2^depth - 1]; received shape {nodes[0].shape}.")
    n_outputs = leaves[0].shape[0] if leaves[0].ndim else 0
    for i, (node, leaf) in enumerate(zip(nodes, leaves, strict=True)):
        if node.shape != nodes[0].shape:
            raise ValueError(
                f"node_weights[{i}] must have shape {nodes[0].shape}, as the first tree; received {node.shape}."
            )
        if leaf.shape != (n_outputs, n_leaves):
            raise ValueError(f"leaf_weights[{i}] must have shape {(n_outputs, n_leaves)}; received {leaf.shape}.")
