"""The tree ensemble in plain PyTorch operations: every node of every tree, as two matrix products.

Tensors come in, a tensor goes out, and PyTorch's own autograd differentiates it, any number of times, on any device,
under any transformation or exporter. It is used where the native kernels cannot be and is the baseline of
the benchmarks, so it is written for speed: samples run along the last axis, where a level of the trees is one
contiguous slab (a quarter faster than samples first), and levels are cut by `split`, whose gradient is a single copy.
Time and memory still grow with 2^depth for every sample, whatever the sample reaches.

Arguments are taken as valid; `functional` checks them. Legend: n samples, p features, k outputs, m trees, d depth.
"""

from __future__ import annotations

import torch
from torch import Tensor


def band_position(
    x: Tensor, split_weight: Tensor, split_bias: Tensor | None, *, activation: str, gamma: float
) -> Tensor:
    """Return v = t / gamma + 1/2 cut to [0, 1] for each node and sample (the logistic: t / gamma); [m, 2^d - 1, n].

    Reachability is read off this one quantity: a sample goes left where v > 0 and right where v < 1.
    """
    n_trees, n_splits, n_features = split_weight.shape
    is_logistic = activation == "logistic"
    middle = x.new_full((1, 1), 0.0 if is_logistic else 0.5)
    if split_bias is not None:
        middle = split_bias.reshape(n_trees * n_splits, 1) / gamma + middle
    v = torch.addmm(middle, split_weight.reshape(n_trees * n_splits, n_features), x.T, alpha=1.0 / gamma)
    return (v if is_logistic else v.clamp(0.0, 1.0)).reshape(n_trees, n_splits, -1)


def left_probability(v: Tensor, activation: str) -> Tensor:
    """Return S, the probability of going left, from `band_position`."""
    if activation == "smooth_step":
        return v * v * (3.0 - 2.0 * v)
    if activation == "smoother_step":
        return v * v * v * (10.0 - v * (15.0 - 6.0 * v))
    return torch.sigmoid(v)


def _levels(by_node: Tensor) -> tuple[Tensor, ...]:
    """Cut [m, 2^d - 1, n] into the levels of the trees, from the root down."""
    n_splits = int(by_node.shape[1])  # a tensor while torch.jit traces
    return by_node.split([2**level for level in range(n_splits.bit_length())], dim=1)


def _interleave(left: Tensor, right: Tensor) -> Tensor:
    """Put the two children of each node side by side: two of [m, 2^l, n] become [m, 2^(l+1), n]."""
    n_trees, n_nodes = left.shape[:2]
    return torch.stack((left, right), dim=2).reshape(n_trees, 2 * n_nodes, -1)


def forward(
    x: Tensor,
    split_weight: Tensor,
    leaf_weight: Tensor,
    split_bias: Tensor | None,
    *,
    activation: str,
    gamma: float,
    sum_trees: bool,
) -> Tensor:
    """Return the output of the ensemble, [n, k] or [n, m, k]."""
    n_trees, n_leaves, n_outputs = leaf_weight.shape
    v = band_position(x, split_weight, split_bias, activation=activation, gamma=gamma)
    reach_probability = torch.ones_like(v[:, :1])
    for go_left in _levels(left_probability(v, activation)):
        to_left = reach_probability * go_left
        reach_probability = _interleave(to_left, reach_probability - to_left)
    if sum_trees:
        return reach_probability.reshape(n_trees * n_leaves, -1).T @ leaf_weight.reshape(n_trees * n_leaves, n_outputs)
    return torch.einsum("mln,mlk->nmk", reach_probability, leaf_weight)


def reachable_leaves(
    x: Tensor, split_weight: Tensor, split_bias: Tensor | None, *, activation: str, gamma: float
) -> Tensor:
    """Return how many leaves each sample reaches in each tree, [n, m] int32."""
    v = band_position(x, split_weight, split_bias, activation=activation, gamma=gamma)
    reached = torch.ones_like(v[:, :1], dtype=torch.bool)
    for level in _levels(v):
        if activation == "logistic":
            reached = _interleave(reached, reached)
        else:
            reached = _interleave(reached & (level > 0), reached & (level < 1))
    return reached.sum(dim=1, dtype=torch.int32).T.contiguous()
