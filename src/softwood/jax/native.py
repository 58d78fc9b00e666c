"""Calls from compiled JAX programs into the native kernels, on the CPU.

The fast way is XLA's foreign-function interface: compiled code calls the kernels directly, with XLA's own buffers. The
compiled module declares that interface by its binary layout and needs no jaxlib to be built; where a jaxlib rejects
it, the same call goes through a host callback, which costs a trip to Python (docs/performance.md has both times).
Arguments are taken as valid; `functional` checks them.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from softwood import ops
from softwood.arguments import ACTIVATIONS

if TYPE_CHECKING:
    from softwood.jax.operator import Settings

_GRADIENT_NAMES = ("x", "split_weight", "leaf_weight", "split_bias")


@functools.cache
def ffi_is_available() -> bool:
    """Register the kernels with XLA, once, and return whether it took them."""
    try:
        for name, handler in ops.xla_handlers().items():
            jax.ffi.register_ffi_target(f"softwood_{name}", handler, platform="cpu")
    except Exception as error:  # what is raised for another version of the interface differs between jaxlibs
        warnings.warn(
            f"This jaxlib does not take softwood's native calls ({error}); they go through a slower host callback.",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


def forward(*arguments: jax.Array, settings: Settings) -> jax.Array:
    """Return the output of the ensemble."""
    x, _, leaf_weight, *_ = arguments
    n_trees, _, n_outputs = leaf_weight.shape
    shape = (x.shape[0], n_outputs) if settings.sum_trees else (x.shape[0], n_trees, n_outputs)
    result = jax.ShapeDtypeStruct(shape, x.dtype)
    if ffi_is_available():
        return jax.ffi.ffi_call("softwood_forward", result)(*arguments, **_attributes(settings))
    callback = functools.partial(_forward_on_host, settings=settings)
    return jax.pure_callback(callback, result, *arguments, vmap_method="sequential")


def backward(
    grad_output: jax.Array, *arguments: jax.Array, settings: Settings, wanted: tuple[bool, ...]
) -> list[jax.Array]:
    """Return the gradients of those arguments that are `wanted`."""
    results = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a, w in zip(arguments, wanted, strict=True) if w]
    if ffi_is_available():
        attributes = _attributes(settings, wanted)
        return list(jax.ffi.ffi_call("softwood_backward", results)(grad_output, *arguments, **attributes))
    callback = functools.partial(_backward_on_host, settings=settings, wanted=wanted)
    return jax.pure_callback(callback, results, grad_output, *arguments, vmap_method="sequential")


def _attributes(settings: Settings, wanted: tuple[bool, ...] = ()) -> dict[str, Any]:
    return {
        "activation": np.int32(ACTIVATIONS[settings.activation]),
        "gamma": np.float64(settings.gamma),
        "n_threads": np.int32(settings.n_threads),
        "sum_trees": np.int32(settings.sum_trees),
        "wanted": np.int32(sum(1 << i for i, is_wanted in enumerate(wanted) if is_wanted)),
    }


def _options(settings: Settings) -> dict[str, Any]:
    return {
        "activation": settings.activation,
        "gamma": settings.gamma,
        "sum_trees": settings.sum_trees,
        "n_threads": settings.n_threads or None,
    }


def _forward_on_host(
    x: Any, split_weight: Any, leaf_weight: Any, split_bias: Any = None, *, settings: Settings
) -> np.ndarray:
    x, split_weight, leaf_weight = map(np.asarray, (x, split_weight, leaf_weight))
    bias = None if split_bias is None else np.asarray(split_bias)
    output = ops.forward(x, split_weight, leaf_weight, split_bias=bias, check_finite=False, **_options(settings))
    output[~np.isfinite(x).all(axis=1)] = np.nan
    return output


def _backward_on_host(
    grad_output: Any,
    x: Any,
    split_weight: Any,
    leaf_weight: Any,
    split_bias: Any = None,
    *,
    settings: Settings,
    wanted: tuple[bool, ...],
) -> list[np.ndarray]:
    grad_output, x, split_weight, leaf_weight = map(np.asarray, (grad_output, x, split_weight, leaf_weight))
    bias = None if split_bias is None else np.asarray(split_bias)
    names = [name for name, is_wanted in zip(_GRADIENT_NAMES[: len(wanted)], wanted, strict=True) if is_wanted]
    options = _options(settings)
    gradients = ops.backward(
        grad_output, x, split_weight, leaf_weight, split_bias=bias, needs=names, check_finite=False, **options
    )
    return [getattr(gradients, name) for name in names]
