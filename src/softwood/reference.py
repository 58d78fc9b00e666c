"""The tree ensemble layer in dense NumPy: the readable definition, and the oracle that everything is tested against.

In come the arrays of `softwood.ops`, out go the same results, at a cost of O(2^d) per sample and tree. Speed, threads
and conditional computation are left to `softwood.ops`.

Legend: n samples, p features, k outputs, m trees, d depth. Nodes stand in heap order: node i has the children 2i+1
(left) and 2i+2 (right), and level l holds the nodes 2^l - 1 to 2^(l+1) - 2. Internal nodes and leaves together make one
heap of 2^(d+1) - 1 nodes, whose last 2^d are the leaves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from softwood.arguments import FloatArray, check_activation, check_ensemble, check_gamma, check_grad_output, check_x

__all__ = ["Gradients", "Reachability", "backward", "forward", "reachability"]


class Gradients(NamedTuple):
    """The gradient with respect to each argument, in its shape; `split_bias` is None if there was no bias."""

    x: FloatArray
    split_weight: FloatArray
    leaf_weight: FloatArray
    split_bias: FloatArray | None


class Reachability(NamedTuple):
    """How many leaves, internal nodes and fractional internal nodes each sample reaches in each tree; [n, m] each."""

    leaves: npt.NDArray[np.int32]
    internal_nodes: npt.NDArray[np.int32]
    fractional_nodes: npt.NDArray[np.int32]


class Routing(NamedTuple):
    """What each split does to each sample; [n, m, 2^d - 1] each."""

    left: FloatArray  # S(t), the probability of going left
    right: FloatArray  # 1 - S(t), without the cancellation of that difference
    slope: FloatArray  # S'(t)
    goes_left: npt.NDArray[np.bool_]  # whether S(t) > 0 in exact arithmetic, where `left` may have underflowed
    goes_right: npt.NDArray[np.bool_]


def forward(
    x: Any,
    split_weight: Any,
    leaf_weight: Any,
    *,
    split_bias: Any = None,
    activation: str = "smooth_step",
    gamma: float = 1.0,
    sum_trees: bool = True,
    dtype: Any = np.float64,
) -> FloatArray:
    """Output of the ensemble, [n, k], or [n, m, k] with ``sum_trees=False``; all arithmetic is done in `dtype`.

    Examples
    --------
    A sample with t = 0 goes both ways with probability 1/2.

    >>> import numpy as np
    >>> from softwood import reference
    >>> reference.forward(np.zeros((1, 2)), np.ones((1, 1, 2)), np.array([[[10.0], [20.0]]]))
    array([[15.]])
    """
    x, w, o, b = _checked(x, split_weight, leaf_weight, split_bias, dtype)
    routing = _route(x, w, b, activation, gamma)
    n_splits = w.shape[1]
    leaf_probability = reach_probability(routing.left, routing.right)[:, :, n_splits:]
    trees = np.einsum("nml,mlk->nmk", leaf_probability, o)
    return trees.sum(axis=1) if sum_trees else trees


def backward(
    grad_output: Any,
    x: Any,
    split_weight: Any,
    leaf_weight: Any,
    *,
    split_bias: Any = None,
    activation: str = "smooth_step",
    gamma: float = 1.0,
    sum_trees: bool = True,
    dtype: Any = np.float64,
) -> Gradients:
    """Gradients of a loss whose gradient with respect to the output is `grad_output`.

    dL/dt_i = S'(t_i) P(x -> i) (e_left - e_right), where e_c is the expected <dL/dT, o_l> below child c, given that the
    sample is at c; it is built from the leaves upwards.
    """
    x, w, o, b = _checked(x, split_weight, leaf_weight, split_bias, dtype)
    assert o is not None
    grad_output = check_grad_output(np.asarray(grad_output, dtype=dtype), len(x), o, sum_trees)
    routing = _route(x, w, b, activation, gamma)
    n_splits = w.shape[1]
    probability = reach_probability(routing.left, routing.right)
    grad_tree = np.broadcast_to(grad_output[:, None], (len(x), *o.shape[::2])) if sum_trees else grad_output

    expected = np.zeros_like(probability)  # e_i of every node of the heap
    expected[:, :, n_splits:] = np.einsum("nmk,mlk->nml", grad_tree, o)
    for level in _levels(n_splits, bottom_up=True):
        left, right = expected[:, :, 2 * level + 1], expected[:, :, 2 * level + 2]
        expected[:, :, level] = routing.left[:, :, level] * left + routing.right[:, :, level] * right

    nodes = np.arange(n_splits)
    difference = expected[:, :, 2 * nodes + 1] - expected[:, :, 2 * nodes + 2]
    grad_t = routing.slope * probability[:, :, :n_splits] * difference
    return Gradients(
        x=np.einsum("nmi,mip->np", grad_t, w),
        split_weight=np.einsum("nmi,np->mip", grad_t, x),
        leaf_weight=np.einsum("nml,nmk->mlk", probability[:, :, n_splits:], grad_tree),
        split_bias=None if b is None else grad_t.sum(axis=0),
    )


def reachability(
    x: Any,
    split_weight: Any,
    *,
    split_bias: Any = None,
    activation: str = "smooth_step",
    gamma: float = 1.0,
    dtype: Any = np.float64,
) -> Reachability:
    """Count what each sample reaches: a child is reached if its parent is and the probability of going there is > 0."""
    x, w, _, b = _checked(x, split_weight, None, split_bias, dtype)
    routing = _route(x, w, b, activation, gamma)
    n_splits = w.shape[1]
    reached = np.zeros((len(x), len(w), 2 * n_splits + 1), dtype=bool)
    reached[:, :, 0] = True
    for level in _levels(n_splits):
        reached[:, :, 2 * level + 1] = reached[:, :, level] & routing.goes_left[:, :, level]
        reached[:, :, 2 * level + 2] = reached[:, :, level] & routing.goes_right[:, :, level]
    internal = reached[:, :, :n_splits]
    counted = (reached[:, :, n_splits:], internal, internal & routing.goes_left & routing.goes_right)
    return Reachability(*(nodes.sum(axis=2, dtype=np.int32) for nodes in counted))


def _checked(x: Any, split_weight: Any, leaf_weight: Any, split_bias: Any, dtype: Any) -> tuple[Any, Any, Any, Any]:
    def cast(value: Any) -> Any:
        return None if value is None else np.asarray(value, dtype=dtype)

    w, o, b = check_ensemble(cast(split_weight), cast(leaf_weight), cast(split_bias))
    return check_x(cast(x), w), w, o, b


def _route(x: FloatArray, w: FloatArray, b: FloatArray | None, activation: str, gamma: float) -> Routing:
    t = np.einsum("np,mip->nmi", x, w)
    return route(t if b is None else t + b, activation, gamma)


def route(t: FloatArray, activation: str, gamma: float) -> Routing:
    """Where samples go at splits with the values t, an array of any shape."""
    check_activation(activation)
    g = t.dtype.type(check_gamma(gamma, t.dtype))
    if activation == "logistic":
        z = np.exp(-np.abs(t) / g)  # at most 1: no overflow
        larger, smaller = 1 / (1 + z), z / (1 + z)
        left, right = np.where(t >= 0, larger, smaller), np.where(t >= 0, smaller, larger)
        everywhere = np.ones_like(t, dtype=bool)
        return Routing(left, right, left * right / g, everywhere, everywhere)
    goes_left, goes_right = t > -g / 2, t < g / 2
    v = np.clip(t / g + t.dtype.type(0.5), 0, 1)  # 0 and 1 at the edges of the soft band
    u = 1 - v
    if activation == "smooth_step":
        left, right, slope = v**2 * (3 - 2 * v), u**2 * (3 - 2 * u), 6 * u * v / g
    else:
        left, right = v**3 * (10 - 15 * v + 6 * v**2), u**3 * (10 - 15 * u + 6 * u**2)
        slope = 30 * (u * v) ** 2 / g
    return Routing(left, right, slope, goes_left, goes_right)


def reach_probability(left: FloatArray, right: FloatArray) -> FloatArray:
    """P(x -> i) of every node of the heap, [..., 2^(d+1) - 1], from the probabilities of splits [..., 2^d - 1]."""
    *rows, n_splits = left.shape
    probability = np.ones((*rows, 2 * n_splits + 1), dtype=left.dtype)
    for level in _levels(n_splits):
        probability[..., 2 * level + 1] = probability[..., level] * left[..., level]
        probability[..., 2 * level + 2] = probability[..., level] * right[..., level]
    return probability


def _levels(n_splits: int, bottom_up: bool = False) -> list[npt.NDArray[np.intp]]:
    """The internal nodes, level by level."""
    depth = n_splits.bit_length()
    levels = [np.arange(2**level - 1, 2 ** (level + 1) - 1) for level in range(depth)]
    return levels[::-1] if bottom_up else levels
