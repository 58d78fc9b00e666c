"""The native kernels in plain eager execution: an autograd function that keeps the forward's tape for the backward.

The path of most calls. It costs a fraction of what the registered operator does, whose call goes through PyTorch's
dispatcher to Python and back several times; where that operator is needed, `is_plain_eager` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling  # a name in this module saves 50 ns per call
from torch.utils.weak import WeakTensorKeyDictionary

from softwood import ops
from softwood.torch import internals, native, operator

_PLAIN_TYPES = (Tensor, torch.nn.Parameter, type(None))


def is_plain_eager(*tensors: Tensor | None) -> bool:
    """Return whether arrays may be used: nothing traces, transforms or intercepts operations on these tensors."""
    if (
        is_compiling()
        or internals.has_transforms()
        or internals.count_dispatch_modes()
        or internals.get_tracing_state()
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
    options: native.Options,
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
    return native.forward((x, split_weight, leaf_weight, split_bias), options)[0]


class NativeFunction(torch.autograd.Function):
    """Forward with a tape; backward for the gradients that are needed, dense or sparse."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        split_weight: Tensor,
        leaf_weight: Tensor,
        split_bias: Tensor | None,
        options: native.Options,
        sparse_grad: bool,
    ) -> Tensor:
        """Run the kernel and remember what the backward needs."""
        # Hooks for saved tensors (checkpointing, offloading) mean that no memory should be held here: without a tape
        # the backward pass repeats the traversal.
        with_tape = internals.get_saved_tensor_hooks(True) is None
        tensors = (x, split_weight, leaf_weight, split_bias)
        output, ctx.tape = native.forward(tensors, options, with_tape)
        ctx.save_for_backward(*tensors)
        ctx.options = options
        ctx.sparse_grad = sparse_grad
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the four tensors, None for those not needed, and None for the options."""
        tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[:4]
        is_batched = internals.is_batched(grad_output)  # by is_grads_batched=True
        if torch.is_grad_enabled() or is_batched or not is_plain_eager(grad_output, *tensors):
            if ctx.sparse_grad:
                raise RuntimeError(
                    "sparse_grad=True has first derivatives only, in plain eager mode: set sparse_grad=False for "
                    "create_graph=True, batched gradients and compiled backward passes"
                )
            found = operator.tree_ensemble_backward(grad_output, *tensors, *ctx.options, needed)
            return *operator.keep_needed(needed, found), None, None
        tape = ctx.tape
        if not internals.keeps_graph():  # the saved tensors are about to be freed; so is the tape
            ctx.tape = None
        if ctx.sparse_grad:
            return *_sparse_gradients(grad_output, tensors, ctx.options, needed, tape), None, None
        return *native.backward(grad_output, tensors, ctx.options, needed, tape), None, None


_apply_function = internals.plain_apply(NativeFunction)  # `is_plain_eager` has excluded torch.func

# For split weights, as long as they live: memory for all rows of the gradients, and the sparse gradients that it gave
# last. Those are held until the next step because PyTorch, when it stores a gradient that nobody else holds, forgets
# that its rows are in order, and SparseAdam would sort them again; the copy that it makes instead costs less.
_scratch = WeakTensorKeyDictionary()


def _sparse_gradients(
    grad_output: Tensor,
    tensors: native.Tensors,
    options: native.Options,
    needed: Sequence[bool],
    tape: ops.TapeContents | None,
) -> list[Tensor | None]:
    """Return gradients that contain only reached rows, at a cost proportional to their number."""
    x, split_weight, leaf_weight, split_bias = tensors
    memory, _ = _scratch.pop(split_weight, (None, None))
    if not isinstance(memory, native.ROW_MEMORY[x.dtype]):  # none yet, or the layer has changed its dtype
        memory = native.ROW_MEMORY[x.dtype]()
    grad_x, splits, leaves = native.backward(grad_output, tensors, options, needed, tape, memory)
    split_indices, split_values, bias_values = splits
    leaf_indices, leaf_values, _ = leaves
    sparse = [
        _sparse(split_indices, split_values, split_weight),
        _sparse(leaf_indices, leaf_values, leaf_weight),
        _sparse(split_indices, bias_values, split_bias),
    ]
    _scratch[split_weight] = memory, sparse
    return [grad_x, *sparse]


def _sparse(indices: Tensor, values: Tensor | None, weight: Tensor) -> Tensor | None:
    """Return rows of a gradient, given by tree and node, as a tensor sparse in trees and nodes."""
    if values is None:
        return None
    return torch.sparse_coo_tensor(indices, values, weight.shape, is_coalesced=True, check_invariants=False)
