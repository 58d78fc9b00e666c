"""The native kernels as PyTorch operations with gradients.

Two doors lead to the same kernels, because each alone is too narrow:

- `NativeFunction`, an autograd function for plain eager execution. It keeps the forward's tape for the backward, and
  costs a fraction of what a call through PyTorch's dispatcher to Python and back does.
- `torch.ops.softwood.tree_ensemble`, a registered operator, for all that traces or transforms a program: torch.compile,
  torch.export, torch.func, fake tensors. An operator returns tensors only, so it has no tape and its backward repeats
  the traversal: nothing to free, and nothing that a recomputation or a second backward could find stale.

Both differentiate twice: `tree_ensemble_backward` is an operator of its own, whose gradient is that of the dense form.
Arguments are taken as valid; `functional` checks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from softwood import ops
from softwood.torch import dense

_PLAIN_TYPES = (Tensor, torch.nn.Parameter, type(None))
_NAMES = ("x", "split_weight", "leaf_weight", "split_bias")


def is_plain_eager(*tensors: Tensor | None) -> bool:
    """Return whether nothing traces, transforms or intercepts operations on these tensors, so that arrays may be used."""
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


def must_be_transparent() -> bool:
    """Return whether someone needs PyTorch's own operators: ONNX export, or torch.func, when it differentiates."""
    if is_plain_eager():
        return False
    if torch.onnx.is_in_onnx_export():
        return True
    return not torch.compiler.is_compiling() and any(
        interpreter.key() != torch._C._functorch.TransformType.Vmap
        for interpreter in torch._C._functorch.get_interpreter_stack() or ()
    )


def native(
    x: Tensor,
    split_weight: Tensor,
    leaf_weight: Tensor,
    split_bias: Tensor | None,
    activation: str,
    gamma: float,
    sum_trees: bool,
    sparse_grad: bool,
) -> Tensor:
    """Apply the native kernels to x [n, p] by the cheapest door that is open."""
    if is_plain_eager(x, split_weight, leaf_weight, split_bias):
        return eager(x, split_weight, leaf_weight, split_bias, activation, gamma, sum_trees, sparse_grad)
    if sparse_grad:
        raise RuntimeError(
            "sparse_grad=True works in plain eager mode only, since neither compilers nor torch.func know operators "
            "with sparse gradients: set sparse_grad=False here"
        )
    return tree_ensemble(x, split_weight, leaf_weight, split_bias, activation, gamma, sum_trees)


def eager(
    x: Tensor,
    split_weight: Tensor,
    leaf_weight: Tensor,
    split_bias: Tensor | None,
    activation: str,
    gamma: float,
    sum_trees: bool,
    sparse_grad: bool,
) -> Tensor:
    """Apply the native kernels to plain CPU tensors of one dtype, float32 or float64; `ops` checks the rest."""
    if torch.is_grad_enabled() and (
        split_weight.requires_grad
        or leaf_weight.requires_grad
        or x.requires_grad
        or (split_bias is not None and split_bias.requires_grad)
    ):
        options = (activation, gamma, sum_trees)
        return NativeFunction.apply(x, split_weight, leaf_weight, split_bias, options, sparse_grad)
    arrays = _arrays((x, split_weight, leaf_weight, split_bias))
    return torch.from_numpy(_forward_arrays(arrays, activation, gamma, sum_trees))


def reachable_leaves(
    x: Tensor, split_weight: Tensor, split_bias: Tensor | None, activation: str, gamma: float
) -> Tensor:
    """Count the leaves that each row of x [n, p] reaches in each tree, [n, m]."""
    x_array, split_array, bias_array = _arrays((x, split_weight, split_bias))
    counts = ops.reachability(
        x_array, split_array, split_bias=bias_array, activation=activation, gamma=gamma, n_threads=_n_threads()
    )
    return torch.from_numpy(counts.leaves)


def _n_threads() -> int:
    """Respect both PyTorch's bound, which is 1 in the workers of a DataLoader, and softwood's."""
    return min(torch.get_num_threads(), ops.get_num_threads())


def _arrays(tensors: Sequence[Tensor | None]) -> list[np.ndarray | None]:
    """Return the tensors' memory as arrays; `ops` copies what is not laid out as it needs."""
    return [None if tensor is None else tensor.numpy(force=True) for tensor in tensors]


def _forward_arrays(
    arrays: Sequence[np.ndarray | None], activation: str, gamma: float, sum_trees: bool, with_tape: bool = False
) -> Any:
    x, split_weight, leaf_weight, split_bias = arrays
    return ops.forward(
        x,
        split_weight,
        leaf_weight,
        split_bias=split_bias,
        activation=activation,
        gamma=gamma,
        sum_trees=sum_trees,
        n_threads=_n_threads(),
        with_tape=with_tape,
        check_finite=False,
    )


def _backward_arrays(
    arrays: Sequence[np.ndarray | None],
    activation: str,
    gamma: float,
    sum_trees: bool,
    needed: Sequence[bool],
    tape: ops.Tape | None = None,
    out: ops.Gradients | None = None,
) -> ops.Gradients:
    grad_output, x, split_weight, leaf_weight, split_bias = arrays
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
        n_threads=_n_threads(),
        check_finite=False,
    )


# --- The eager door -----------------------------------------------------------------------------------------------------


class NativeFunction(torch.autograd.Function):
    """Forward with a tape; backward for the gradients that are needed, dense or sparse."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        split_weight: Tensor,
        leaf_weight: Tensor,
        split_bias: Tensor | None,
        options: tuple[str, float, bool],
        sparse_grad: bool,
    ) -> Tensor:
        """Run the kernel and remember what the backward needs."""
        tensors = (x, split_weight, leaf_weight, split_bias)
        arrays = _arrays(tensors)
        output, tape = _forward_arrays(arrays, *options, with_tape=True)
        # The tape rides on a saved tensor so that it is freed when those are. Hooks that move saved tensors elsewhere
        # lose it, and the backward repeats the traversal.
        carrier = torch.empty(0)
        carrier.softwood = arrays, tape  # type: ignore[attr-defined]
        ctx.save_for_backward(*tensors, carrier)
        ctx.options = options
        ctx.sparse_grad = sparse_grad
        return torch.from_numpy(output)

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
            gradients = _where(needed, tree_ensemble_backward(grad_output, *tensors, *ctx.options, needed))
        else:
            arrays, tape = getattr(carrier, "softwood", None) or (_arrays(tensors), None)
            arrays = [grad_output.numpy(force=True), *arrays]
            if ctx.sparse_grad:
                gradients = _sparse_gradients(tensors[1], arrays, ctx.options, needed, tape)
            else:
                found = _backward_arrays(arrays, *ctx.options, needed, tape)
                gradients = [None if array is None else torch.from_numpy(array) for array in found]
        return *gradients, None, None


# Memory for dense gradients that is zero but for marked rows, kept while the split weights it belongs to are alive.
_scratch = WeakTensorKeyDictionary()


def _sparse_gradients(
    split_weight: Tensor,
    arrays: Sequence[np.ndarray | None],
    options: tuple[str, float, bool],
    needed: Sequence[bool],
    tape: ops.Tape | None,
) -> list[Tensor | None]:
    """Return gradients that hold reached rows only, at a cost in proportion to them."""
    found = _backward_arrays(arrays, *options, needed, tape, out=_scratch.pop(split_weight, None))
    grad_x, grad_split, grad_leaf, grad_bias = found
    split_rows, leaf_rows = found.split_rows, found.leaf_rows
    gradients = [
        None if grad_x is None else torch.from_numpy(grad_x),
        _reached_rows(grad_split, split_rows),
        _reached_rows(grad_leaf, leaf_rows),
        _reached_rows(grad_bias, split_rows),
    ]
    found.x = None  # the caller owns it now: the next step must not write there
    _scratch[split_weight] = found
    return gradients


def _reached_rows(gradient: np.ndarray | None, rows: np.ndarray) -> Tensor | None:
    """Copy rows of a [m, nodes, ...] gradient, counted through all trees, to a tensor that is sparse in trees and nodes."""
    if gradient is None:
        return None
    indices = torch.from_numpy(np.stack(np.divmod(rows, gradient.shape[1])))
    values = torch.from_numpy(gradient).flatten(0, 1).index_select(0, torch.from_numpy(rows))
    return torch.sparse_coo_tensor(indices, values, gradient.shape, is_coalesced=True, check_invariants=False)


# --- The registered operators -------------------------------------------------------------------------------------------

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
    arrays = _arrays((x, split_weight, leaf_weight, split_bias))
    return torch.from_numpy(_forward_arrays(arrays, activation, gamma, sum_trees))


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
    """Return the gradients of x, split_weight, leaf_weight and split_bias; an empty tensor where there is no need."""
    arrays = _arrays((grad_output, x, split_weight, leaf_weight, split_bias))
    found = _backward_arrays(arrays, activation, gamma, sum_trees, needed)
    return tuple(x.new_empty(0) if array is None else torch.from_numpy(array) for array in found)


def _where(needed: Sequence[bool], gradients: Sequence[Tensor]) -> list[Tensor | None]:
    """Put None for the gradients without need."""
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
    return *_where(needed, gradients), None, None, None


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

    def output(*tensors: Tensor) -> Tensor:
        bias = tensors[3] if len(tensors) == 4 else None
        return dense.forward(*tensors[:3], bias, activation=activation, gamma=gamma, sum_trees=sum_trees)

    def gradients(grad_output: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        found = torch.func.vjp(output, *tensors)[1](grad_output)
        return tuple(gradient for gradient, is_needed in zip(found, ctx.needed, strict=False) if is_needed)

    cotangents = tuple(grad for grad, is_needed in zip(grad_gradients, ctx.needed, strict=True) if is_needed)
    second = torch.func.vjp(gradients, grad_output, *given)[1](cotangents)
    no_bias = (None,) * (split_bias is None)
    return *second, *no_bias, None, None, None, None


tree_ensemble_backward.register_autograd(_second_gradient, setup_context=_save_backward_inputs)


def _over_batch(operator: Any, info: Any, in_dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> Any:
    """Apply an operator to one element of a vmapped dimension after the other."""
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
