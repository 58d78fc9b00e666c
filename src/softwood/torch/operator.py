"""The native kernels as registered PyTorch operators, for all that traces or transforms a program.

`torch.ops.softwood.tree_ensemble` works under torch.compile, torch.export, torch.func.vmap and fake tensors. An
operator returns tensors only, so it has no tape and its backward repeats the traversal: nothing to free, and nothing
that a recomputation or a second backward could find stale. The backward is an operator too; its gradient is that of the
dense form. Arguments are taken as valid; `functional` checks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from softwood.torch import dense, native

_PARAMETERS = (
    "Tensor x, Tensor split_weight, Tensor leaf_weight, Tensor? split_bias, str activation, float gamma, bool sum_trees"
)


@torch.library.custom_op(
    "softwood::tree_ensemble", mutates_args=(), device_types="cpu", schema=f"({_PARAMETERS}) -> Tensor"
)
def tree_ensemble(
    x: Tensor,
    split_weight: Tensor,
    leaf_weight: Tensor,
    split_bias: Tensor | None,
    activation: str,
    gamma: float,
    sum_trees: bool,
) -> Tensor:
    """Return the output of the ensemble, [n, k] or [n, m, k]."""
    tensors = native.laid_out(x, split_weight, leaf_weight, split_bias)
    return native.forward(tensors, (activation, gamma, sum_trees))[0]


@torch.library.custom_op(
    "softwood::tree_ensemble_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor grad_output, {_PARAMETERS}, bool[] needed) -> (Tensor, Tensor, Tensor, Tensor)",
)
def tree_ensemble_backward(
    grad_output: Tensor,
    x: Tensor,
    split_weight: Tensor,
    leaf_weight: Tensor,
    split_bias: Tensor | None,
    activation: str,
    gamma: float,
    sum_trees: bool,
    needed: Sequence[bool],
) -> tuple[Tensor, ...]:
    """Return the gradients of x, split_weight, leaf_weight and split_bias; an empty tensor for those not needed."""
    tensors = (x, split_weight, leaf_weight, split_bias)
    found = native.backward(grad_output, tensors, (activation, gamma, sum_trees), needed)
    return tuple(x.new_empty(0) if gradient is None else gradient for gradient in found)


def keep_needed(needed: Sequence[bool], gradients: Sequence[Tensor]) -> list[Tensor | None]:
    """Replace the gradients that are not needed by None."""
    return [gradient if is_needed else None for gradient, is_needed in zip(gradients, needed, strict=True)]


@tree_ensemble.register_fake
def _(
    x: Tensor,
    split_weight: Tensor,
    leaf_weight: Tensor,
    split_bias: Tensor | None,
    activation: str,
    gamma: float,
    sum_trees: bool,
) -> Tensor:
    n_trees, _, n_outputs = leaf_weight.shape
    return x.new_empty((x.shape[0], n_outputs) if sum_trees else (x.shape[0], n_trees, n_outputs))


@tree_ensemble_backward.register_fake
def _(grad_output: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    tensors, needed = arguments[:4], arguments[-1]
    return tuple(
        tensor.new_empty(tensor.shape) if is_needed else grad_output.new_empty(0)
        for tensor, is_needed in zip(tensors, needed, strict=True)
    )


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.options = inputs[4:]


def _operator_gradient(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    needed = list(ctx.needs_input_grad[:4])
    gradients = tree_ensemble_backward(grad_output, *ctx.saved_tensors, *ctx.options, needed)
    return *keep_needed(needed, gradients), None, None, None


tree_ensemble.register_autograd(_operator_gradient, setup_context=_save_inputs)


def _save_backward_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.options = inputs[5:8]
    ctx.needed = inputs[8]


def _second_gradient(ctx: Any, *grad_gradients: Tensor) -> tuple[Tensor | None, ...]:
    """Differentiate the gradients themselves, which only the dense form can."""
    activation, gamma, sum_trees = ctx.options
    grad_output, x, split_weight, leaf_weight, split_bias = ctx.saved_tensors
    given = (x, split_weight, leaf_weight) if split_bias is None else (x, split_weight, leaf_weight, split_bias)

    def output(x: Tensor, split_weight: Tensor, leaf_weight: Tensor, split_bias: Tensor | None = None) -> Tensor:
        return dense.forward(
            x, split_weight, leaf_weight, split_bias, activation=activation, gamma=gamma, sum_trees=sum_trees
        )

    def gradients(grad_output: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        found = torch.func.vjp(output, *tensors)[1](grad_output)
        return tuple(gradient for gradient, is_needed in zip(found, ctx.needed, strict=False) if is_needed)

    cotangents = tuple(grad for grad, is_needed in zip(grad_gradients, ctx.needed, strict=True) if is_needed)
    second = torch.func.vjp(gradients, grad_output, *given)[1](cotangents)
    no_bias = (None,) * (split_bias is None)
    return *second, *no_bias, None, None, None, None


tree_ensemble_backward.register_autograd(_second_gradient, setup_context=_save_backward_inputs)


def _over_batch(operator: Any, info: Any, in_dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> Any:
    """Apply an operator to the elements of a vmapped dimension, one after the other."""

    def pick(index: int) -> list[Any]:
        return [
            argument if dim is None or not isinstance(argument, Tensor) else argument.select(dim, index)
            for argument, dim in zip(arguments, in_dims, strict=True)
        ]

    return [operator(*pick(index)) for index in range(info.batch_size)]


@tree_ensemble.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Tensor, int]:
    x, *rest = arguments
    if any(dim is not None for dim in in_dims[1:4]):
        return torch.stack(_over_batch(tree_ensemble, info, in_dims, arguments)), 0
    rows = x.movedim(in_dims[0], 0)
    output = tree_ensemble(rows.flatten(0, 1), *rest)
    return output.unflatten(0, rows.shape[:2]), 0


@tree_ensemble_backward.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    results = _over_batch(tree_ensemble_backward, info, in_dims, arguments)
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True)), (0, 0, 0, 0)
