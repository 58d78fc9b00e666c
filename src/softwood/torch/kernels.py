"""Calls of the native kernels on CPU tensors that have been checked: tensors become arrays here.

No autograd and no choice of implementation: `eager` and `operator` are the two doors that lead here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from softwood import ops
from softwood.arguments import ACTIVATIONS

Options: TypeAlias = tuple[str, float, bool]  # activation, gamma, sum_trees

_NAMES = ("x", "split_weight", "leaf_weight", "split_bias")


def n_threads() -> int:
    """Respect both PyTorch's bound, which is 1 in the workers of a DataLoader, and softwood's."""
    return min(torch.get_num_threads(), ops.get_num_threads())


def array_of(tensor: Tensor) -> np.ndarray:
    """Return the tensor's memory as an array, or a copy where it is not laid out as the kernels need."""
    array = tensor.numpy(force=True)
    return array if array.flags.carray else np.require(array, requirements=("C", "A"))


def arrays_of(*tensors: Tensor | None) -> list[Any]:
    """Return the tensors as arrays; None stays None."""
    return [None if tensor is None else array_of(tensor) for tensor in tensors]


def forward(arrays: Sequence[Any], options: Options, *, with_tape: bool = False) -> tuple[Tensor, Any]:
    """Return the output for x, split_weight, leaf_weight and split_bias, and the tape if asked for."""
    x, split_weight, leaf_weight, split_bias = arrays
    activation, gamma, sum_trees = options
    code = ACTIVATIONS[activation]
    output, tape = ops.unchecked_forward(
        x, split_weight, leaf_weight, split_bias, code, gamma, bool(sum_trees), n_threads(), with_tape
    )
    return torch.from_numpy(output), tape


def backward(
    grad_output: Tensor,
    arrays: Sequence[Any],
    options: Options,
    needed: Sequence[bool],
    *,
    tape: ops.TapeContents | None = None,
    out: ops.Gradients | None = None,
) -> ops.Gradients:
    """Return the gradients of those of x, split_weight, leaf_weight and split_bias that are needed."""
    x, split_weight, leaf_weight, split_bias = arrays
    activation, gamma, sum_trees = options
    gradients = ops.Gradients() if out is None else out
    ops.unchecked_backward(
        array_of(grad_output), x, split_weight, leaf_weight, split_bias, ACTIVATIONS[activation], gamma,
        bool(sum_trees), n_threads(), tape, _names_of(tuple(needed)), gradients,
    )  # fmt: skip
    return gradients


@cache
def _names_of(needed: tuple[bool, ...]) -> frozenset[str]:
    return frozenset(name for name, is_needed in zip(_NAMES, needed, strict=True) if is_needed)


def reachable_leaves(
    x: Tensor, split_weight: Tensor, split_bias: Tensor | None, activation: str, gamma: float
) -> Tensor:
    """Count the leaves that each row of x [n, p] reaches in each tree, [n, m]."""
    x_array, split_array, bias_array = arrays_of(x, split_weight, split_bias)
    counts = ops.reachability(
        x_array, split_array, split_bias=bias_array, activation=activation, gamma=gamma, n_threads=n_threads()
    )
    return torch.from_numpy(counts.leaves)
