"""The native kernels in plain eager execution: an autograd function that keeps the forward's tape for the backward.

The way of most calls. It costs a fraction of what the registered operator does, whose call goes through PyTorch's
dispatcher to Python and back several times; where that operator is needed, `is_plain_eager` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from softwood import ops
from softwood.torch import kernels, operator

_PLAIN_TYPES = (Tensor, torch.nn.Parameter, type(None))


def is_plain_eager(*tensors: Tensor | None) -> bool:
    """Return whether nothing traces, transforms or intercepts operations on these tensors: arrays may be used."""
    if (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state()
    ):
        return False
    for tensor in tensors:  # noqa: SIM110 - a generator would take longer than all of the above
        if type(tensor) not in _PLAIN_TYPES:
            return False
    return True


def apply(
    x: Tensor,
    split_weight: Tensor,
    leaf_weight: Tensor,
    split_bias: Tensor | None,
    options: kernels.Options,
    sparse_grad: bool,
) -> Tensor:
    """Apply the kernels to checked, plain CPU tensors; x [n, p]."""
    if torch.is_grad_enabled() and (
        split_weight.requires_grad
        or leaf_weight.requires_grad
        or x.requires_grad
        or (split_bias is not None and split_bias.requires_grad)
    ):
        return _apply_function(x, split_weight, leaf_weight, split_bias, options, sparse_grad)
    return kernels.forward(kernels.arrays_of(x, split_weight, leaf_weight, split_bias), options)[0]


class NativeFunction(torch.autograd.Function):
    """Forward with a tape; backward for the gradients that are needed, dense or sparse."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        split_weight: Tensor,
        leaf_weight: Tensor,
        split_bias: Tensor | None,
        options: kernels.Options,
        sparse_grad: bool,
    ) -> Tensor:
        """Run the kernel and remember what the backward needs."""
        arrays = kernels.arrays_of(x, split_weight, leaf_weight, split_bias)
        output, tape = kernels.forward(arrays, options, with_tape=True)
        # The tape rides on a saved tensor so that it is freed when those are. Hooks that move saved tensors elsewhere
        # lose it, and the backward repeats the traversal.
        carrier = torch.empty(0)
        carrier.softwood = arrays, tape  # type: ignore[attr-defined]
        ctx.save_for_backward(x, split_weight, leaf_weight, split_bias, carrier)
        ctx.options = options
        ctx.sparse_grad = sparse_grad
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the four tensors, None for those without need, and None for the options."""
        *tensors, carrier = ctx.saved_tensors
        needed = ctx.needs_input_grad[:4]
        is_batched = torch._C._functorch.is_legacy_batchedtensor(grad_output)  # by is_grads_batched=True
        if torch.is_grad_enabled() or is_batched or not is_plain_eager(grad_output, *tensors):
            if ctx.sparse_grad:
                raise RuntimeError(
                    "sparse_grad=True has first derivatives only, in plain eager mode: set sparse_grad=False for "
                    "create_graph=True, batched gradients and compiled backward passes"
                )
            found = operator.tree_ensemble_backward(grad_output, *tensors, *ctx.options, needed)
            return *operator.keep_needed(needed, found), None, None
        arrays, tape = getattr(carrier, "softwood", None) or (kernels.arrays_of(*tensors), None)
        if ctx.sparse_grad:
            return *_sparse_gradients(tensors[1], grad_output, arrays, ctx.options, needed, tape), None, None
        gradients = kernels.backward(grad_output, arrays, ctx.options, needed, tape=tape)
        return *[None if array is None else torch.from_numpy(array) for array in gradients], None, None


# Function.apply without what it does for torch.func, which `is_plain_eager` has excluded: a tenth of the whole call.
_apply_function = super(torch.autograd.Function, NativeFunction).apply

# For split weights, as long as they live: memory for dense gradients, zero but for marked rows, and sparse gradients
# taken from it. Those are held until the next step because PyTorch, when it stores a gradient that nobody else holds,
# forgets that its rows are in order, and SparseAdam would sort them again; the copy that it makes instead costs less.
_scratch = WeakTensorKeyDictionary()


def _sparse_gradients(
    split_weight: Tensor,
    grad_output: Tensor,
    arrays: Sequence[Any],
    options: kernels.Options,
    needed: Sequence[bool],
    tape: ops.TapeContents | None,
) -> list[Tensor | None]:
    """Return gradients that hold reached rows only, at a cost in proportion to them."""
    out, _ = _scratch.pop(split_weight, (None, None))
    found = kernels.backward(grad_output, arrays, options, needed, tape=tape, out=out)
    grad_x, grad_split, grad_leaf, grad_bias = found
    split_rows, leaf_rows = found.split_rows, found.leaf_rows
    sparse = [
        None if grad_split is None else _reached_rows(grad_split, split_rows),
        None if grad_leaf is None else _reached_rows(grad_leaf, leaf_rows),
        None if grad_bias is None else _reached_rows(grad_bias, split_rows),
    ]
    found.x = None  # the caller owns it now: the next step must not write there
    _scratch[split_weight] = found, sparse
    return [None if grad_x is None else torch.from_numpy(grad_x), *sparse]


def _reached_rows(gradient: np.ndarray, rows: np.ndarray) -> Tensor:
    """Copy rows of a [m, nodes, ...] gradient, counted through all trees, to a tensor sparse in trees and nodes."""
    n_trees, n_nodes, *rest = gradient.shape
    indices = np.empty((2, len(rows)), np.int64)
    np.divmod(rows, n_nodes, out=(indices[0], indices[1]))
    values = gradient.reshape(n_trees * n_nodes, *rest).take(rows, axis=0)
    return torch.sparse_coo_tensor(
        torch.from_numpy(indices),
        torch.from_numpy(values),
        gradient.shape,
        is_coalesced=True,
        check_invariants=False,
    )
