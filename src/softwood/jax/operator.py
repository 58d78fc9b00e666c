"""The tree ensemble as JAX primitives: what ``grad``, ``vmap`` and the compiler make of it.

Three primitives, because the transformations need different views of the layer:

- the forward pass. Mapped over samples it becomes one call over more rows, so that a model written for a single sample
  and mapped over a batch costs what the batched model does, in training too;
- its tangent, linear in the tangents of the arguments. Forward mode evaluates it, densely; reverse mode transposes it
  into
- the backward pass, which computes only those gradients that are asked for. What the forward's traversal found cannot
  leave the compiled program as a value, so the backward repeats the traversal. Its derivative is the dense form's.

On the CPU the two passes are calls into the native kernels (`native`), elsewhere they are the dense form. Arguments are
taken as valid: x [n, p], split_weight [m, 2^d - 1, p], leaf_weight [m, 2^d, k] and maybe split_bias [m, 2^d - 1], of
one dtype; `functional` checks them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from softwood import dense
from softwood.jax import native

Dims = Sequence[int | None]


class Settings(NamedTuple):
    """What is fixed when a call is traced; hashable, a parameter of the primitives."""

    activation: str
    gamma: float
    sum_trees: bool
    n_threads: int  # 0: the library's default at the time of the call
    native_only: bool  # requested explicitly, so that devices without native kernels are an error


def forward(*arguments: jax.Array, settings: Settings) -> jax.Array:
    """Return the output of the ensemble, [n, k] or [n, m, k]."""
    return _forward.bind(*arguments, settings=settings)


def dense_forward(*arguments: jax.Array, settings: Settings) -> jax.Array:
    """Return the same in plain JAX operations."""
    return dense.forward(
        jnp,
        jax.nn.sigmoid,
        *arguments,
        activation=settings.activation,
        gamma=settings.gamma,
        sum_trees=settings.sum_trees,
    )


def _dense_tangent(*arguments: jax.Array, settings: Settings, varied: tuple[bool, ...]) -> jax.Array:
    """Return the output's tangent; after the arguments come the tangents of those that are `varied`."""
    primals = arguments[: len(varied)]
    given = iter(arguments[len(varied) :])
    tangents = tuple(next(given) if v else jnp.zeros_like(p) for p, v in zip(primals, varied, strict=True))
    return jax.jvp(functools.partial(dense_forward, settings=settings), primals, tangents)[1]


def _dense_backward(
    grad_output: jax.Array, *arguments: jax.Array, settings: Settings, wanted: tuple[bool, ...]
) -> list[jax.Array]:
    """Return the gradients of those arguments that are `wanted`."""
    _, transpose = jax.vjp(functools.partial(dense_forward, settings=settings), *arguments)
    return [gradient for gradient, is_wanted in zip(transpose(grad_output), wanted, strict=True) if is_wanted]


# Abstract evaluation: shapes and dtypes of the results.


def _output(x: Any, split_weight: Any, leaf_weight: Any, *_: Any, settings: Settings) -> jax.core.ShapedArray:
    n_trees, _, n_outputs = leaf_weight.shape
    shape = (x.shape[0], n_outputs) if settings.sum_trees else (x.shape[0], n_trees, n_outputs)
    return jax.core.ShapedArray(shape, x.dtype)


def _tangent_output(*arguments: Any, settings: Settings, varied: tuple[bool, ...]) -> jax.core.ShapedArray:
    return _output(*arguments[: len(varied)], settings=settings)


def _gradients(
    grad_output: Any, *arguments: Any, settings: Settings, wanted: tuple[bool, ...]
) -> list[jax.core.ShapedArray]:
    return [jax.core.ShapedArray(a.shape, a.dtype) for a, w in zip(arguments, wanted, strict=True) if w]


# Differentiation.


def _forward_jvp(primals: Sequence, tangents: Sequence, *, settings: Settings) -> tuple[jax.Array, Any]:
    output = _forward.bind(*primals, settings=settings)
    varied = tuple(not isinstance(t, ad.Zero) for t in tangents)
    given = [t for t in tangents if not isinstance(t, ad.Zero)]
    return output, _tangent.bind(*primals, *given, settings=settings, varied=varied)


def _tangent_transpose(grad_output: Any, *arguments: Any, settings: Settings, varied: tuple[bool, ...]) -> list:
    primals, tangents = arguments[: len(varied)], arguments[len(varied) :]
    if isinstance(grad_output, ad.Zero):
        return [None] * len(primals) + [ad.Zero(t.aval) if ad.is_undefined_primal(t) else None for t in tangents]
    gradients = iter(_backward.bind(grad_output, *primals, settings=settings, wanted=varied))
    return [None] * len(primals) + list(gradients)


def _densely_differentiated(function: Callable) -> Callable:
    """Return a rule that differentiates the dense form, in which JAX sees every operation."""

    def rule(primals: Sequence, tangents: Sequence, **parameters: Any) -> tuple:
        tangents = [ad.instantiate_zeros(t) for t in tangents]
        return jax.jvp(functools.partial(function, **parameters), tuple(primals), tuple(tangents))

    return rule


# Mapping over a dimension.


def _forward_batched(arguments: Sequence[jax.Array], dims: Dims, *, settings: Settings) -> tuple[jax.Array, int]:
    x, *weights = arguments
    if dims[0] is None or any(dim is not None for dim in dims[1:]):
        return _one_by_one(_forward, arguments, dims, settings=settings)[0], 0
    x = jnp.moveaxis(x, dims[0], 0)
    output = _forward.bind(x.reshape(-1, x.shape[-1]), *weights, settings=settings)
    return output.reshape(x.shape[:2] + output.shape[1:]), 0


def _backward_batched(
    arguments: Sequence[jax.Array], dims: Dims, *, settings: Settings, wanted: tuple[bool, ...]
) -> tuple[list[jax.Array], list[int]]:
    x_alone = wanted[0] and not any(wanted[1:])
    if not x_alone or any(dim is not None for dim in dims[2:]):
        gradients = _one_by_one(_backward, arguments, dims, settings=settings, wanted=wanted)
        return gradients, [0] * len(gradients)
    size = next(a.shape[d] for a, d in zip(arguments, dims, strict=True) if d is not None)
    grad_output, x = (
        jnp.broadcast_to(a, (size, *a.shape)) if d is None else jnp.moveaxis(a, d, 0)
        for a, d in zip(arguments[:2], dims[:2], strict=True)
    )
    rows = (a.reshape(-1, *a.shape[2:]) for a in (grad_output, x))
    (grad_x,) = _backward.bind(*rows, *arguments[2:], settings=settings, wanted=wanted)
    return [grad_x.reshape(x.shape)], [0]


def _one_by_one(primitive: Primitive, arguments: Sequence[jax.Array], dims: Dims, **parameters: Any) -> list[jax.Array]:
    """Call a primitive once for each element of the mapped dimension: weights differ, or get a gradient each."""
    mapped = [jnp.moveaxis(a, d, 0) for a, d in zip(arguments, dims, strict=True) if d is not None]

    def call(elements: list[jax.Array]) -> list[jax.Array]:
        element = iter(elements)
        results = primitive.bind(
            *(a if d is None else next(element) for a, d in zip(arguments, dims, strict=True)), **parameters
        )
        return results if primitive.multiple_results else [results]

    return jax.lax.map(call, mapped)


def _densely_mapped(arguments: Sequence[jax.Array], dims: Dims, **parameters: Any) -> tuple[jax.Array, int]:
    return jax.vmap(functools.partial(_dense_tangent, **parameters), in_axes=tuple(dims))(*arguments), 0


# Lowering.


def _unless_native(function: Callable) -> Callable:
    def lowered(*arguments: jax.Array, settings: Settings, **parameters: Any) -> Any:
        if settings.native_only:
            raise NotImplementedError(
                "implementation='native' runs on the CPU alone, and this computation is placed on another device: "
                "use implementation='auto' or move it with jax.device_put"
            )
        return function(*arguments, settings=settings, **parameters)

    return lowered


def _primitive(name: str, multiple_results: bool, abstract: Callable) -> Primitive:
    primitive = Primitive(f"softwood_{name}")
    primitive.multiple_results = multiple_results
    primitive.def_abstract_eval(abstract)
    # Outside of jit a primitive is compiled alone, and found again by its parameters and shapes.
    compiled = jax.jit(primitive.bind, static_argnames=("settings", "varied", "wanted"))
    primitive.def_impl(compiled)
    return primitive


_forward = _primitive("forward", False, _output)
ad.primitive_jvps[_forward] = _forward_jvp
batching.primitive_batchers[_forward] = _forward_batched
mlir.register_lowering(_forward, mlir.lower_fun(_unless_native(dense_forward), multiple_results=False))
mlir.register_lowering(_forward, mlir.lower_fun(native.forward, multiple_results=False), platform="cpu")

_tangent = _primitive("tangent", False, _tangent_output)
ad.primitive_jvps[_tangent] = _densely_differentiated(_dense_tangent)
ad.primitive_transposes[_tangent] = _tangent_transpose
batching.primitive_batchers[_tangent] = _densely_mapped
mlir.register_lowering(_tangent, mlir.lower_fun(_dense_tangent, multiple_results=False))

_backward = _primitive("backward", True, _gradients)
ad.primitive_jvps[_backward] = _densely_differentiated(_dense_backward)
batching.primitive_batchers[_backward] = _backward_batched
mlir.register_lowering(_backward, mlir.lower_fun(_unless_native(_dense_backward), multiple_results=True))
mlir.register_lowering(_backward, mlir.lower_fun(native.backward, multiple_results=True), platform="cpu")
