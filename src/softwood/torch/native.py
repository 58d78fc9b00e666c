"""Calls of the native kernels on CPU tensors that have been checked.

No autograd and no choice of implementation: `eager` and `operator` are its two callers. The compiled
module reads and makes tensors by the table of C functions that PyTorch publishes for this, in a fraction of the time
that it would take from Python. A PyTorch without such a table is served through NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from softwood import _core, ops
from softwood.arguments import ACTIVATIONS

Options: TypeAlias = tuple[str, float, bool]  # activation, gamma, sum_trees
Tensors: TypeAlias = Sequence[Any]  # x, split_weight, leaf_weight, split_bias or None
RowMemory: TypeAlias = _core.RowMemoryFloat32 | _core.RowMemoryFloat64

ROW_MEMORY: dict[torch.dtype, type[RowMemory]] = {
    torch.float32: _core.RowMemoryFloat32,
    torch.float64: _core.RowMemoryFloat64,
}


def accepts(x: Tensor, split_weight: Tensor, leaf_weight: Tensor, split_bias: Tensor | None) -> bool:
    """Return whether the passes can take the tensors as they are: one dtype, sizes that match, contiguous memory."""
    return (
        _accepts(x, split_weight, leaf_weight, split_bias)
        and not (x.is_neg() or split_weight.is_neg() or leaf_weight.is_neg())
        and not (split_bias is not None and split_bias.is_neg())
    )


def laid_out(*tensors: Tensor | None) -> list[Any]:
    """Return the tensors, with a contiguous copy of each that is not contiguous."""
    found = []
    for tensor in tensors:
        if tensor is not None:
            address = tensor.data_ptr()  # none if PyTorch knows that all elements are zero
            is_simple = tensor.is_contiguous() and not tensor.is_neg() and address and not address % tensor.itemsize
            tensor = tensor if is_simple else tensor.resolve_neg().clone(memory_format=torch.contiguous_format)
        found.append(tensor)
    return found


def forward(tensors: Tensors, options: Options, with_tape: bool = False) -> tuple[Tensor, ops.TapeContents | None]:
    """Return the output, [n, k] or [n, m, k], and the tape if asked for. `accepts` must hold for the tensors."""
    activation, gamma, sum_trees = options
    return _forward(*tensors, ACTIVATIONS[activation], gamma, bool(sum_trees), torch.get_num_threads(), with_tape)


def backward(
    grad_output: Tensor,
    tensors: Tensors,
    options: Options,
    needed: Sequence[bool],
    tape: ops.TapeContents | None = None,
    memory: RowMemory | None = None,
) -> tuple[Any, ...]:
    """Return the gradients of the tensors, None for those not needed.

    With `memory`, which is used again in the next step: the gradient of x, then (indices, values, values of biases) of
    the splits' reached rows, then the same of the leaves, without biases.
    """
    activation, gamma, sum_trees = options
    how = (ACTIVATIONS[activation], gamma, bool(sum_trees), torch.get_num_threads(), tape, *needed, memory)
    found = None if grad_output.is_neg() else _backward(grad_output, *tensors, *how)
    return _backward(*laid_out(grad_output, *tensors), *how) if found is None else found


def reachable_leaves(
    x: Tensor, split_weight: Tensor, split_bias: Tensor | None, activation: str, gamma: float
) -> Tensor:
    """Count the leaves that each row of x [n, p] reaches in each tree, [n, m]."""
    n_threads = min(torch.get_num_threads(), ops.get_num_threads())
    counts = ops.reachability(
        _as_array(x), _as_array(split_weight), split_bias=_as_array(split_bias), activation=activation, gamma=gamma,
        n_threads=n_threads,
    )  # fmt: skip
    return torch.from_numpy(counts.leaves)


def _as_array(value: Any) -> Any:
    return value.numpy(force=True) if isinstance(value, Tensor) else value


def _as_tensors(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_as_tensors(part) for part in value)
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _through_arrays(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: _as_tensors(run(*map(_as_array, arguments)))


_accepts: Callable[..., Any] = _core.accepts_tensors
_forward: Callable[..., Any] = _core.forward_tensors
_backward: Callable[..., Any] = _core.backward_tensors
_table = getattr(Tensor, "__dlpack_c_exchange_api__", None)
if not _core.use_exchange(_table) or _table is None:
    _accepts, _forward, _backward = map(_through_arrays, (_accepts, _forward, _backward))
