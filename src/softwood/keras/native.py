"""Native kernels inside TensorFlow graphs: a Python call with gradients of its own.

softwood links no TensorFlow library, so that one wheel serves every version of it; the graph reaches the kernels by
``tf.numpy_function``. Such a call runs in the process that traced it and on the CPU. What the forward's traversal found
is not kept for the backward, which may never be called and would leave it behind; the traversal is repeated.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from softwood import ops


def has_accelerator() -> bool:
    """Return whether TensorFlow would place a model on something other than the CPU."""
    return any(device.device_type != "CPU" for device in tf.config.list_logical_devices())


def is_compiled_by_xla() -> bool:
    """Return whether the graph that is being traced goes to XLA (``jit_compile=True``), which knows no Python calls."""
    from tensorflow.python.ops import control_flow_util  # the only place where this is known

    if tf.executing_eagerly():
        return False
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def is_possible() -> bool:
    """Return whether a native call is possible here, and faster."""
    return not has_accelerator() and not is_compiled_by_xla()


def tree_ensemble(*arguments: tf.Tensor, layer_name: str, **options: Any) -> tf.Tensor:
    """Return the output of the ensemble; differentiable twice, the second time densely."""
    if is_compiled_by_xla():
        raise ValueError(
            f"Layer '{layer_name}' has implementation='native', which cannot be compiled by XLA. "
            "Compile the model with jit_compile=False (or 'auto'), or use implementation='dense'."
        )

    @tf.custom_gradient
    def forward(*arguments: tf.Tensor) -> tuple[tf.Tensor, Any]:
        x, _, leaf_weight, *_ = arguments
        output = tf.numpy_function(functools.partial(_forward, options), arguments, x.dtype, stateful=False)
        trees = () if options["sum_trees"] else leaf_weight.shape[:1]
        output.set_shape((*x.shape[:1], *trees, *leaf_weight.shape[2:]))
        return output, lambda grad_output: backward(grad_output, *arguments)

    @tf.custom_gradient
    def backward(grad_output: tf.Tensor, *arguments: tf.Tensor) -> tuple[list[tf.Tensor], Any]:
        gradients = tf.numpy_function(
            functools.partial(_backward, options),
            (grad_output, *arguments),
            [argument.dtype for argument in arguments],
            stateful=False,
        )
        for gradient, argument in zip(gradients, arguments, strict=True):
            gradient.set_shape(argument.shape)
        return gradients, functools.partial(_second_derivative, options, (grad_output, *arguments))

    return forward(*arguments)


def _forward(options: dict, x: np.ndarray, split_weight: np.ndarray, leaf_weight: np.ndarray, *bias: np.ndarray) -> Any:
    output = ops.forward(
        x, split_weight, leaf_weight, split_bias=bias[0] if bias else None, check_finite=False, **options
    )
    output[~np.isfinite(x).all(axis=1)] = np.nan
    return output


def _backward(options: dict, grad_output: np.ndarray, *arguments: np.ndarray) -> list[np.ndarray | None]:
    x, split_weight, leaf_weight, *bias = arguments
    gradients = ops.backward(
        grad_output,
        x,
        split_weight,
        leaf_weight,
        split_bias=bias[0] if bias else None,
        check_finite=False,
        **options,
    )
    return [gradients.x, gradients.split_weight, gradients.leaf_weight, gradients.split_bias][: len(arguments)]


def _second_derivative(options: dict, inputs: tuple[tf.Tensor, ...], *upstream: tf.Tensor) -> list[tf.Tensor]:
    """Differentiate the dense form's gradients; `inputs` are grad_output and the arguments."""
    from softwood.keras.backends import dense_tree_ensemble

    grad_output, *arguments = inputs
    with tf.GradientTape() as outer:
        outer.watch(inputs)
        with tf.GradientTape() as inner:
            inner.watch(arguments)
            output = dense_tree_ensemble(*arguments, **options)
        gradients = inner.gradient(output, arguments, grad_output)
    return outer.gradient(gradients, inputs, upstream, unconnected_gradients="zero")
