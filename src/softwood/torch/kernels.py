"""Calls of the native kernels on CPU tensors: tensors become arrays here, and options are handed on to `softwood.ops`.

No autograd and no choice of implementation: `eager` and `operator` are the two doors that lead here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from softwood import ops

Options: TypeAlias = tuple[str, float, bool]  # activation, gamma, sum_trees

_NAMES = ("x", "split_weight", "leaf_weight", "split_bias")


def n_threads() -> int:
    """Respect both PyTorch's bound, which is 1 in the workers of a DataLoader, and softwood's."""
    return min(torch.get_num_threads(), ops.get_num_threads())


def arrays_of(*tensors: Tensor | None) -> list[np.ndarray | None]:
    """Return the tensors' memory as arrays; `ops` copies what is not laid out as it needs."""
    return [None if tensor is None else tensor.numpy(force=True) for tensor in tensors]


def forward(arrays: Sequence[np.ndarray | None], options: Options, *, with_tape: bool = False) -> Any:
    """Return the output for x, split_weight, leaf_weight and split_bias as an array, with the tape if asked for."""
    x, split_weight, leaf_weight, split_bias = arrays
    activation, gamma, sum_trees = options
    return ops.forward(  # type: ignore[call-overload]
        x,
        split_weight,
        leaf_weight,
        split_bias=split_bias,
        activation=activation,
        gamma=gamma,
        sum_trees=sum_trees,
        n_threads=n_threads(),
        with_tape=with_tape,
        check_finite=False,
    )


def backward(
    grad_output: np.ndarray | None,
    arrays: Sequence[np.ndarray | None],
    options: Options,
    needed: Sequence[bool],
    tape: ops.Tape | None = None,
    out: ops.Gradients | None = None,
) -> ops.Gradients:
    """Return the gradients of those of x, split_weight, leaf_weight and split_bias that are needed."""
    x, split_weight, leaf_weight, split_bias = arrays
    activation, gamma, sum_trees = options
    return ops.backward(
        grad_output,
        x,
        split_weight,
        leaf_weight,
        split_bias=split_bias,
        activation=activation,
        gamma=gamma,
        sum_trees=sum_trees,
        needs=[name for name, is_needed in zip(_NAMES, needed, strict=True) if is_needed],
        tape=tape,
        out=out,
        n_threads=n_threads(),
        check_finite=False,
    )


def reachable_leaves(
    x: Tensor, split_weight: Tensor, split_bias: Tensor | None, activation: str, gamma: float
) -> Tensor:
    """Count the leaves that each row of x [n, p] reaches in each tree, [n, m]."""
    x_array, split_array, bias_array = arrays_of(x, split_weight, split_bias)
    counts = ops.reachability(
        x_array, split_array, split_bias=bias_array, activation=activation, gamma=gamma, n_threads=n_threads()
    )
    return torch.from_numpy(counts.leaves)
