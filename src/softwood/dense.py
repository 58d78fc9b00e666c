"""The tree ensemble as dense array operations, for frameworks that compile or differentiate on their own.

In come arrays of one framework and its namespace (``jax.numpy``, ``keras.ops``); out comes the layer's output, built
from operations that the framework can trace, differentiate any number of times, compile for an accelerator and export.
Every split of every tree is evaluated for every sample, so the cost grows with ``2**depth``. Checks of shapes and
values are left to the callers.

Legend: n samples, p features, k outputs, m trees, d depth; children of node i are 2i+1 and 2i+2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Array = Any  # an array of whichever framework `xp` belongs to


def forward(
    xp: Any,
    sigmoid: Callable[[Array], Array],
    x: Array,
    split_weight: Array,
    leaf_weight: Array,
    split_bias: Array | None = None,
    *,
    activation: str = "smooth_step",
    gamma: float = 1.0,
    sum_trees: bool = True,
) -> Array:
    """Evaluate the ensemble at every node.

    Parameters
    ----------
    xp : module
        Array namespace with ``clip``, ``einsum``, ``matmul``, ``reshape``, ``stack`` and ``transpose``.
    sigmoid : callable
        The framework's overflow-free logistic function.
    x, split_weight, leaf_weight, split_bias : array
        [n, p], [m, 2^d - 1, p], [m, 2^d, k] and [m, 2^d - 1] or None, all of one floating dtype.
    activation, gamma, sum_trees
        As in :func:`softwood.ops.forward`.

    Returns
    -------
    array
        [n, k], or [n, m, k] without ``sum_trees``.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> split_weight, leaf_weight = jnp.ones((1, 1, 2)), jnp.array([[[3.0], [5.0]]])
    >>> forward(jnp, jax.nn.sigmoid, jnp.array([[9.0, 0.0], [0.0, 0.0]]), split_weight, leaf_weight).tolist()
    [[3.0], [4.0]]
    """
    # The sizes of an ensemble are always known; TorchScript's tracer still hands them out as tensors.
    n_trees, n_splits, n_features = map(int, split_weight.shape)
    n_leaves, n_outputs = n_splits + 1, int(leaf_weight.shape[-1])
    t = xp.matmul(x, xp.transpose(xp.reshape(split_weight, (n_trees * n_splits, n_features))))
    if split_bias is not None:
        t = t + xp.reshape(split_bias, (n_trees * n_splits,))
    left, right = _routing(xp, sigmoid, xp.reshape(t, (-1, n_trees, n_splits)), activation, gamma)

    reach = None  # probability of each node of the current level, [n, m, nodes]
    for level in range(n_splits.bit_length()):
        nodes = slice(2**level - 1, 2 ** (level + 1) - 1)
        children = xp.stack([left[:, :, nodes], right[:, :, nodes]], axis=-1)
        if reach is not None:
            children = reach[..., None] * children
        reach = xp.reshape(children, (-1, n_trees, 2 ** (level + 1)))

    if not sum_trees:
        return xp.einsum("nml,mlk->nmk", reach, leaf_weight)
    reach = xp.reshape(reach, (-1, n_trees * n_leaves))
    return xp.matmul(reach, xp.reshape(leaf_weight, (n_trees * n_leaves, n_outputs)))


def _routing(
    xp: Any, sigmoid: Callable[[Array], Array], t: Array, activation: str, gamma: float
) -> tuple[Array, Array]:
    """Probabilities of going left and right, neither by subtraction from 1, so that tiny ones keep their digits."""
    if activation == "logistic":
        return sigmoid(t / gamma), sigmoid(-t / gamma)
    v = xp.clip(t / gamma + 0.5, 0.0, 1.0)
    u = 1.0 - v
    if activation == "smooth_step":
        return v * v * (1.0 + 2.0 * u), u * u * (1.0 + 2.0 * v)
    assert activation == "smoother_step", f"unknown activation {activation!r} passed the checks; please report this"
    return v * v * v * (1.0 + u * (3.0 + 6.0 * u)), u * u * u * (1.0 + v * (3.0 + 6.0 * v))
