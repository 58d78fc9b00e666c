"""The tree ensemble as a function of JAX arrays, and its parameters.

The boundary of the JAX part: arguments are checked and brought to one dtype and two dimensions here. What passes is
valid for `operator` (native kernels) and for `softwood.dense`.
"""

from __future__ import annotations

import math
from operator import index
from typing import Any

import jax
import jax.numpy as jnp

from softwood.arguments import ACTIVATIONS, MAX_DEPTH
from softwood.jax import operator
from softwood.jax.operator import Settings

IMPLEMENTATIONS = ("auto", "native", "dense")


def tree_ensemble(
    x: jax.Array,
    split_weight: jax.Array,
    leaf_weight: jax.Array,
    *,
    split_bias: jax.Array | None = None,
    activation: str = "smooth_step",
    gamma: float | jax.Array = 1.0,
    sum_trees: bool = True,
    implementation: str = "auto",
    n_threads: int | None = None,
) -> jax.Array:
    """Apply an ensemble of m soft trees of depth d to a batch.

    Works under ``jit``, ``grad``, ``jvp``, ``vmap`` and inside ``lax.scan``. Mapped over samples with shared weights it
    is one call over all rows. Second derivatives, and forward mode, visit every node.

    Parameters
    ----------
    x : array
        float32 or float64. 16-bit arguments are computed in float32 and the result is rounded.
    split_weight, leaf_weight : array
        Weights of the internal nodes and of the leaves, in heap order: the children of node i are 2i + 1 and 2i + 2.
    split_bias : array, optional
        Biases of the internal nodes.
    activation : {"smooth_step", "smoother_step", "logistic"}
        What turns a node's <w, x> + b into the probability of going left. The logistic reaches every leaf.
    gamma : float or array
        Width of the band in which a sample goes both ways; for the logistic its temperature. A number is fixed when the
        function is traced. A JAX array of one element may be traced, mapped and differentiated like the others; if its
        value, which is unknown then, is not positive, the output is NaN.
    sum_trees : bool
        Whether the outputs of the trees are added up.
    implementation : {"auto", "native", "dense"}
        "native" visits what a sample reaches, on the CPU; "dense" visits every node, on any device. "auto" is native on
        the CPU and dense elsewhere. ``jax.export`` needs "dense".
    n_threads : int, optional
        Upper bound on the threads of the native kernels; by default that of `softwood.set_num_threads`.

    Returns
    -------
    array
        The output of the ensemble.

    **Shape**: x [..., p], split_weight [m, 2^d - 1, p], leaf_weight [m, 2^d, k], split_bias [m, 2^d - 1];
    output [..., k], or [..., m, k] with ``sum_trees=False``.

    Examples
    --------
    >>> import jax
    >>> from softwood.jax import init, tree_ensemble
    >>> params = init(jax.random.key(0), n_features=4, n_outputs=2, n_trees=3, depth=5)
    >>> tree_ensemble(jax.numpy.ones((8, 4)), **params, gamma=0.5).shape
    (8, 2)
    """
    arrays = [jnp.asarray(a) for a in (x, split_weight, leaf_weight)]
    if split_bias is not None:
        arrays.append(jnp.asarray(split_bias))
    _check_shapes(*(a.shape for a in arrays))
    is_array = isinstance(gamma, jax.Array)
    settings = _settings(activation, 1.0 if is_array else gamma, sum_trees, n_threads, implementation)

    result_dtype = jnp.result_type(*arrays, jnp.float16) if _has_integers(arrays) else jnp.result_type(*arrays)
    compute_dtype = jnp.promote_types(result_dtype, jnp.float32)
    rows, *weights = (a.astype(compute_dtype) for a in arrays)
    leading = rows.shape[:-1]
    rows = rows.reshape(math.prod(leading), rows.shape[-1])
    if is_array:
        # t / gamma = <w, x / gamma> + b / gamma: the kernels see a band of width 1, JAX differentiates the rest.
        inverse = 1 / _checked_array(gamma).astype(compute_dtype)
        rows, weights[2:] = rows * inverse, [bias * inverse for bias in weights[2:]]
    apply = operator.dense_forward if implementation == "dense" else operator.forward
    output = apply(rows, *weights, settings=settings)
    return output.reshape(leading + output.shape[1:]).astype(result_dtype)


def init(
    key: jax.Array,
    n_features: int,
    n_outputs: int,
    n_trees: int,
    depth: int,
    *,
    bias: bool = False,
    scale: float = 0.01,
    dtype: Any = jnp.float32,
) -> dict[str, Any]:
    """Draw the parameters of an ensemble: uniform within plus or minus `scale`, as in the paper; biases are zero.

    Returns
    -------
    dict
        The keywords of `tree_ensemble` that are to be learnt: ``split_weight``, ``leaf_weight`` and, with `bias`,
        ``split_bias``.

    Examples
    --------
    >>> import jax
    >>> from softwood.jax import init
    >>> params = init(jax.random.key(0), n_features=4, n_outputs=2, n_trees=3, depth=5)
    >>> {name: array.shape for name, array in params.items()}
    {'split_weight': (3, 31, 4), 'leaf_weight': (3, 32, 2)}
    """
    sizes = {"n_features": n_features, "n_outputs": n_outputs, "n_trees": n_trees, "depth": depth}
    for name, size in sizes.items():
        if isinstance(size, bool) or index(size) < 1:
            raise ValueError(f"{name} must be an integer of 1 or more; got {size!r}")
    if depth > MAX_DEPTH:
        raise ValueError(f"depth must be at most {MAX_DEPTH}, a tree of which has a million leaves; got {depth}")
    split_key, leaf_key = jax.random.split(key)
    n_leaves = 2**depth
    params = {
        "split_weight": jax.random.uniform(split_key, (n_trees, n_leaves - 1, n_features), dtype, -scale, scale),
        "leaf_weight": jax.random.uniform(leaf_key, (n_trees, n_leaves, n_outputs), dtype, -scale, scale),
    }
    if bias:
        params["split_bias"] = jnp.zeros((n_trees, n_leaves - 1), dtype)
    return params


def _has_integers(arrays: list[jax.Array]) -> bool:
    return any(not jnp.issubdtype(a.dtype, jnp.floating) for a in arrays)


def _settings(activation: str, gamma: float, sum_trees: bool, n_threads: int | None, implementation: str) -> Settings:
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(map(repr, ACTIVATIONS))}; got {activation!r}")
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"implementation must be one of {', '.join(map(repr, IMPLEMENTATIONS))}; got {implementation!r}"
        )
    if not 0.0 < float(gamma) < math.inf:
        raise ValueError(f"gamma must be a positive number, the width of the soft band; got {gamma}")
    if n_threads is not None and index(n_threads) < 1:
        raise ValueError(f"n_threads must be 1 or more, or None; got {n_threads}")
    return Settings(activation, float(gamma), bool(sum_trees), n_threads or 0, implementation == "native")


def _checked_array(gamma: Any) -> jax.Array:
    """Return gamma without dimensions; NaN if it is not positive and no error can be raised."""
    if gamma.size != 1:
        raise ValueError(
            f"gamma must be a number or an array of one element, for all trees; got shape {gamma.shape}: to give trees "
            "bands of their own, scale their split_weight and split_bias"
        )
    gamma = gamma.reshape(())
    if isinstance(gamma, jax.core.Tracer):
        return jnp.where(gamma > 0, gamma, jnp.nan)
    if not 0.0 < float(gamma) < math.inf:
        raise ValueError(f"gamma must be a positive number, the width of the soft band; got {gamma}")
    return gamma


def _check_shapes(x: tuple, split_weight: tuple, leaf_weight: tuple, split_bias: tuple | None = None) -> None:
    n_trees, n_splits, n_features = split_weight if len(split_weight) == 3 else (0, 0, 0)
    n_leaves = n_splits + 1
    if n_splits < 1 or n_splits & n_leaves or n_splits >= 1 << MAX_DEPTH or n_trees < 1 or n_features < 1:
        raise ValueError(
            "split_weight must be [n_trees, 2^depth - 1, n_features] with at least one tree and feature and a depth of "
            f"1 to {MAX_DEPTH}; got shape {split_weight}"
        )
    if len(x) < 1 or x[-1] != n_features:
        raise ValueError(f"x must have {n_features} features in its last dimension, as split_weight has; got shape {x}")
    if len(leaf_weight) != 3 or leaf_weight[:2] != (n_trees, n_leaves) or leaf_weight[2] < 1:
        raise ValueError(
            f"leaf_weight must be [{n_trees}, {n_leaves}, n_outputs], a leaf more than split_weight has splits; "
            f"got shape {leaf_weight}"
        )
    if split_bias is not None and split_bias != (n_trees, n_splits):
        raise ValueError(f"split_bias must be [{n_trees}, {n_splits}], one for each split; got shape {split_bias}")
