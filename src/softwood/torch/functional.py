"""The tree ensemble as a function of tensors: checks the arguments and chooses an implementation.

The boundary of the PyTorch part. What passes here is valid for `operator` (native kernels) and for `dense`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softwood.arguments import ACTIVATIONS, FLOAT32_GAMMA, MAX_DEPTH
from softwood.torch import dense, eager, internals, native, operator

# Those of float32 for all dtypes: a module may be cast after it was made.
SMALLEST_GAMMA, LARGEST_GAMMA = FLOAT32_GAMMA
IMPLEMENTATIONS = ("auto", "native", "dense")


def tree_ensemble(
    x: Tensor,
    split_weight: Tensor,
    leaf_weight: Tensor,
    *,
    split_bias: Tensor | None = None,
    activation: str = "smooth_step",
    gamma: float | Tensor = 1.0,
    sum_trees: bool = True,
    implementation: str = "auto",
    sparse_grad: bool = False,
) -> Tensor:
    """Apply an ensemble of m soft trees of depth d to a batch.

    Parameters
    ----------
    x : Tensor
        float32 or float64. Half precision is computed in float32, and under autocast everything is.
    split_weight, leaf_weight : Tensor
        Weights of the internal nodes and of the leaves, in heap order: the children of node i are 2i + 1 and 2i + 2.
    split_bias : Tensor, optional
        Biases of the internal nodes.
    activation : {"smooth_step", "smoother_step", "logistic"}
        What turns a node's <w, x> + b into the probability of going left. The logistic reaches every leaf.
    gamma : float or Tensor
        Width of the band in which a sample goes both ways; for the logistic its temperature. A tensor of one element
        gets a gradient, and compiled code takes any value of it without being compiled again. Where its value is
        unknown (in compiled code, on an accelerator), one that is not positive makes the output NaN.
    sum_trees : bool
        Whether the outputs of the trees are added up.
    implementation : {"auto", "native", "dense"}
        "native" visits what a sample reaches, on the CPU; "dense" visits every node, on any device. "auto" is native on
        the CPU, but dense where PyTorch must see inside: on export to ONNX and under torch.func's derivatives.
    sparse_grad : bool
        Whether the gradients of weights and biases are sparse tensors of the rows that the batch reached, for
        `torch.optim.SparseAdam` or `torch.optim.SGD`. Native only; not under torch.compile and torch.func.

    Returns
    -------
    Tensor
        The output of the ensemble, in the dtype of `x` (float32 under autocast).

    **Shape**: x [..., p], split_weight [m, 2^d - 1, p], leaf_weight [m, 2^d, k], split_bias [m, 2^d - 1];
    output [..., k], or [..., m, k] with ``sum_trees=False``.

    Examples
    --------
    One tree of depth 1 whose split looks at the first feature: 0.25 lies half-way between the middle and the edge of
    the soft band, and 3 outside of it, so that the right leaf (2) has no part in it.

    >>> import torch
    >>> from softwood.torch import tree_ensemble
    >>> x = torch.tensor([[0.25, 9.0], [3.0, 9.0]])
    >>> tree_ensemble(x, torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[1.0], [2.0]]]))
    tensor([[1.1562],
            [1.0000]])
    """
    if (  # fast path of most calls: the checks of `_check` would take a microsecond
        type(gamma) is float
        and implementation in ("auto", "native")
        and eager.is_plain_eager(x, split_weight, leaf_weight, split_bias)
        and activation in ACTIVATIONS
        and SMALLEST_GAMMA <= gamma <= LARGEST_GAMMA
        and native.accepts(x, split_weight, leaf_weight, split_bias)
    ):
        return eager.apply(x, split_weight, leaf_weight, split_bias, (activation, gamma, sum_trees), sparse_grad)
    return _by_any_way(
        x, split_weight, leaf_weight, split_bias, activation, gamma, sum_trees, implementation, sparse_grad
    )


def _by_any_way(
    x: Tensor,
    split_weight: Tensor,
    leaf_weight: Tensor,
    split_bias: Tensor | None,
    activation: str,
    gamma: float | Tensor,
    sum_trees: bool,
    implementation: str,
    sparse_grad: bool,
) -> Tensor:
    """Check everything, and choose the path that device, dtype and active transforms allow."""
    device_type = x.device.type
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        x, split_weight, leaf_weight, split_bias = _for_autocast(x, split_weight, leaf_weight, split_bias)
    _check(x, split_weight, leaf_weight, split_bias, activation, gamma)
    is_native = _is_native(implementation, device_type)
    if sparse_grad:
        _check_sparse(is_native, x.dtype)
    rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    if is_native and rows.dtype not in (torch.float32, torch.float64):
        rows, split_weight, leaf_weight, split_bias = _in_float32(rows, split_weight, leaf_weight, split_bias)
    if isinstance(gamma, Tensor):
        rows, split_bias = _in_units_of(gamma, rows, split_bias)
        gamma = 1.0
    if is_native:
        options = (activation, gamma, sum_trees)
        output = _native(rows, split_weight, leaf_weight, split_bias, options, sparse_grad).to(x.dtype)
    else:
        output = dense.forward(
            rows, split_weight, leaf_weight, split_bias, activation=activation, gamma=gamma, sum_trees=sum_trees
        )
    return output if x.ndim == 2 else output.reshape(*x.shape[:-1], *output.shape[1:])


def _in_units_of(gamma: Tensor, x: Tensor, split_bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Divide x and biases by gamma, so that the band is 1 wide: autograd then differentiates gamma, not the kernels.

    A split sees t / gamma = <w, x / gamma> + b / gamma. Dividing x is cheaper than dividing the weights, of which there
    are 2^depth rows per tree, and leaves their gradients sparse if they are. The gradient of a product takes half the
    time that the gradient of a quotient does.
    """
    gamma = gamma.reshape(())  # without dimensions it does not take part in type promotion
    if not _can_be_read(gamma):
        gamma = torch.where(gamma > 0, gamma, torch.nan)
    inverse = gamma.reciprocal()
    return x * inverse, None if split_bias is None else split_bias * inverse


def reachable_leaves(
    x: Tensor,
    split_weight: Tensor,
    *,
    split_bias: Tensor | None = None,
    activation: str = "smooth_step",
    gamma: float = 1.0,
) -> Tensor:
    """Count the leaves that each sample reaches in each tree; x [..., p] gives [..., m] of int32."""
    _check(x, split_weight, None, split_bias, activation, gamma)
    rows = x.detach().reshape(-1, x.shape[-1])
    if x.device.type == "cpu" and eager.is_plain_eager(x, split_weight, split_bias):
        weights = (rows, split_weight, split_bias)
        if rows.dtype not in (torch.float32, torch.float64):
            weights = _in_float32(*weights)
        leaves = native.reachable_leaves(*weights, activation, gamma)
    else:
        leaves = dense.reachable_leaves(rows, split_weight, split_bias, activation=activation, gamma=gamma)
    return leaves.reshape(*x.shape[:-1], leaves.shape[-1])


def _in_float32(*tensors: Tensor | None) -> tuple[Any, ...]:
    return tuple(None if tensor is None else tensor.to(torch.float32) for tensor in tensors)


def _for_autocast(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Cast to float32 as autocast does for losses and norms: a soft band is narrow, and float64 stays as it is."""
    return tuple(
        tensor.to(torch.float32) if tensor is not None and tensor.dtype in (torch.float16, torch.bfloat16) else tensor
        for tensor in tensors
    )


def _is_native(implementation: str, device_type: str) -> bool:
    if implementation == "auto":
        return device_type == "cpu" and not _must_be_transparent()
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"implementation must be one of {', '.join(map(repr, IMPLEMENTATIONS))}; got {implementation!r}"
        )
    if implementation == "native" and device_type != "cpu":
        raise ValueError(
            f"implementation='native' runs on the CPU, and x is on {device_type!r}: "
            "use implementation='auto' or move the tensors to the CPU"
        )
    if implementation == "native" and _must_be_transparent():
        raise ValueError(
            "implementation='native' serves neither ONNX export nor the derivatives of torch.func, which need "
            "PyTorch's own operators: use implementation='auto'"
        )
    return implementation == "native"


def _must_be_transparent() -> bool:
    """Return whether PyTorch's own operators are needed: in ONNX export, and when torch.func differentiates."""
    if eager.is_plain_eager():
        return False
    return torch.onnx.is_in_onnx_export() or internals.is_differentiated()


def _native(
    x: Tensor,
    split_weight: Tensor,
    leaf_weight: Tensor,
    split_bias: Tensor | None,
    options: native.Options,
    sparse_grad: bool,
) -> Tensor:
    """Apply the native kernels: by the eager path when possible, otherwise by the registered operator."""
    if eager.is_plain_eager(x, split_weight, leaf_weight, split_bias):
        x, split_weight, leaf_weight, split_bias = native.laid_out(x, split_weight, leaf_weight, split_bias)
        return eager.apply(x, split_weight, leaf_weight, split_bias, options, sparse_grad)
    if sparse_grad:
        raise RuntimeError(
            "sparse_grad=True works in plain eager mode only, since neither compilers nor torch.func know operators "
            "with sparse gradients: set sparse_grad=False here"
        )
    return operator.tree_ensemble(x, split_weight, leaf_weight, split_bias, *options)


def _check_sparse(is_native: bool, dtype: torch.dtype) -> None:
    if not is_native:
        raise ValueError(
            "sparse_grad=True needs the native implementation, since the dense one reaches every row: "
            "use it on the CPU with implementation='auto', or set sparse_grad=False"
        )
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"sparse_grad=True needs float32 or float64 weights; got {dtype}")


def _check(
    x: Tensor,
    split_weight: Tensor,
    leaf_weight: Tensor | None,
    split_bias: Tensor | None,
    activation: str,
    gamma: float | Tensor,
) -> None:
    dtype = x.dtype
    if not dtype.is_floating_point:
        raise TypeError(f"x must be a floating-point tensor; got {dtype}: convert it, for example by x.float()")
    for name, tensor in (("split_weight", split_weight), ("leaf_weight", leaf_weight), ("split_bias", split_bias)):
        if tensor is None:
            continue
        if tensor.dtype != dtype:
            raise TypeError(
                f"x and {name} must have one dtype; got {dtype} and {tensor.dtype}: convert one of them, for example "
                f"by x.to({tensor.dtype}), or use torch.autocast"
            )
        if tensor.device != x.device:
            raise ValueError(
                f"x and {name} must be on one device; got {x.device} and {tensor.device}: "
                "move one of them by .to(device)"
            )
    _check_shapes(x, split_weight, leaf_weight, split_bias)
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(map(repr, ACTIVATIONS))}; got {activation!r}")
    check_float32_gamma(gamma)


def check_float32_gamma(gamma: float | Tensor) -> None:
    """Refuse a width of the soft band without an inverse in float32, whatever the dtype, or several widths."""
    if isinstance(gamma, Tensor):
        if gamma.numel() != 1:
            raise ValueError(
                f"gamma must be a number or a tensor of one element, for all trees; got shape {_shape(gamma)}: "
                "to give trees bands of their own, scale their split_weight and split_bias"
            )
        if not _can_be_read(gamma):
            return
        gamma = gamma.item()
    if not SMALLEST_GAMMA <= gamma <= LARGEST_GAMMA:
        raise ValueError(
            f"gamma must be a number between {SMALLEST_GAMMA} and {LARGEST_GAMMA:.2g}, the width of the soft band; "
            f"got {gamma}: 1.0 is a good start"
        )


def _can_be_read(gamma: Tensor) -> bool:
    """Return whether the value can be read: nothing is traced, and no device has to be synchronised."""
    return gamma.device.type == "cpu" and eager.is_plain_eager(gamma)


def _check_shapes(x: Tensor, split_weight: Tensor, leaf_weight: Tensor | None, split_bias: Tensor | None) -> None:
    if split_weight.ndim != 3:
        raise ValueError(f"split_weight must be [n_trees, 2^depth - 1, in_features]; got shape {_shape(split_weight)}")
    n_trees, n_splits, n_features = split_weight.shape
    n_leaves = n_splits + 1
    if n_splits < 1 or n_splits & n_leaves or n_splits >= 1 << MAX_DEPTH or n_trees < 1 or n_features < 1:
        raise ValueError(
            "split_weight must be [n_trees, 2^depth - 1, in_features] with at least one tree and feature and a depth "
            f"of 1 to {MAX_DEPTH}; got shape {_shape(split_weight)}"
        )
    if x.ndim < 1 or x.shape[-1] != n_features:
        raise ValueError(
            f"x must have {n_features} features in its last dimension, as split_weight has; got shape {_shape(x)}"
        )
    if leaf_weight is not None and (
        leaf_weight.ndim != 3 or tuple(leaf_weight.shape[:2]) != (n_trees, n_leaves) or leaf_weight.shape[2] < 1
    ):
        raise ValueError(
            f"leaf_weight must be [{n_trees}, {n_leaves}, out_features], a leaf more than split_weight has splits; "
            f"got shape {_shape(leaf_weight)}"
        )
    if split_bias is not None and tuple(split_bias.shape) != (n_trees, n_splits):
        raise ValueError(
            f"split_bias must be [{n_trees}, {n_splits}], one for each split; got shape {_shape(split_bias)}"
        )


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
