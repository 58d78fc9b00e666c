"""What a call of the layer computes, on each of Keras's backends: softwood's native kernels or ``keras.ops``.

The choice is made while a call is traced, from what can be seen then: the backend, the device, whether XLA compiles the
graph and whether the model is being exported. Tensors come in as x [n, p] with the ensemble's weights, of one dtype,
checked by the layer; out comes [n, k] or [n, m, k].
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import keras

from softwood import dense

IMPLEMENTATIONS = ("auto", "native", "dense")

# Exporters write a program that another process runs: it must not contain calls into this process.
_EXPORTERS = (
    "keras.src.export",
    "tensorflow.python.saved_model",
    "tensorflow.lite",
    "tf2onnx",
    "jax._src.export",
    "jax.experimental.jax2tf",
    "jax2onnx",
    "torch.onnx",
)


def tree_ensemble(
    x: Any,
    split_weight: Any,
    leaf_weight: Any,
    split_bias: Any = None,
    *,
    activation: str,
    sum_trees: bool,
    implementation: str,
    layer_name: str,
) -> Any:
    """Return the output of an ensemble with a soft band of width 1, by the requested implementation."""
    options: dict[str, Any] = {"activation": activation, "sum_trees": sum_trees}
    arguments = [x, split_weight, leaf_weight] + ([] if split_bias is None else [split_bias])
    backend = keras.backend.backend()
    if implementation == "dense" or (implementation == "auto" and _is_being_exported(backend)):
        return dense_tree_ensemble(*arguments, **options)
    if backend == "tensorflow":
        from softwood.keras import native

        if implementation == "auto" and not native.is_possible():
            return dense_tree_ensemble(*arguments, **options)
        return native.tree_ensemble(*arguments, **options, layer_name=layer_name)
    if backend == "jax":
        from softwood.jax import tree_ensemble as jax_tree_ensemble

        return jax_tree_ensemble(
            x, split_weight, leaf_weight, split_bias=split_bias, **options, implementation=implementation
        )
    if backend == "torch":
        from softwood.torch import tree_ensemble as torch_tree_ensemble

        return torch_tree_ensemble(
            x, split_weight, leaf_weight, split_bias=split_bias, **options, implementation=implementation
        )
    if implementation == "native":
        raise ValueError(
            f"Layer '{layer_name}' has implementation='native', which the Keras backend '{backend}' does not support. "
            "Use implementation='auto', or the tensorflow, jax or torch backend."
        )
    return dense_tree_ensemble(*arguments, **options)


def dense_tree_ensemble(*arguments: Any, **options: Any) -> Any:
    """Return the same by operations that every backend can differentiate, compile and export."""
    return dense.forward(keras.ops, keras.ops.sigmoid, *arguments, **options)


def _is_being_exported(backend: str) -> bool:
    """Return whether an exporter is tracing this call.

    Keras has no flag for it, so the call stack is inspected. Outside of tracing there is nothing to find.
    """
    if backend == "tensorflow":
        import tensorflow

        tracing = not tensorflow.executing_eagerly()
    elif backend == "torch":
        import torch

        # Dynamo cannot trace an inspection of the stack, and never runs within an exporter that needs the dense form.
        tracing = not torch.compiler.is_dynamo_compiling()
    else:
        tracing = True
    if not tracing:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_EXPORTERS):
            return True
        frame = frame.f_back
    return False
