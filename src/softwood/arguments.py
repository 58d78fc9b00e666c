"""Checks of arguments: array-likes in, arrays that the core can take out, or an error that says what to do.

In come array-likes and settings; out go aligned float32 or float64 arrays of matching shapes. `softwood.ops` and
`softwood.reference` check their arguments here, so that both refuse the same input with the same message. Whether `x`
is finite is checked by the caller, which knows the cheapest way.
"""

from __future__ import annotations

import difflib
import math
import operator
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

__all__ = [
    "ACTIVATIONS",
    "FLOAT32_GAMMA",
    "MAX_DEPTH",
    "Activation",
    "EnsembleArrays",
    "FloatArray",
    "check_arrays",
    "check_ensemble",
    "check_gamma",
    "check_x",
]

FloatArray = npt.NDArray[Any]  # float32 or float64, the same for all arrays of a call

# These two are those of the core (softwood/ensemble.h); a test compares them.
MAX_DEPTH = 20
Activation = Literal["smooth_step", "smoother_step", "logistic"]
ACTIVATIONS: dict[str, int] = {name: code for code, name in enumerate(get_args(Activation))}

_MOST_THREADS = 1 << 30
# Smallest and largest width of the soft band: both have an inverse in their type.
FLOAT32_GAMMA = (1.2e-38, 1 / 1.2e-38)
FLOAT64_GAMMA = (2.3e-308, 1 / 2.3e-308)

_FLOAT32 = np.dtype(np.float32)
_FLOAT64 = np.dtype(np.float64)
_NATIVE = (_FLOAT32, _FLOAT64)


class EnsembleArrays(NamedTuple):
    """An ensemble's checked arrays; `leaf_weight` is None where only routing is needed."""

    split_weight: FloatArray
    leaf_weight: FloatArray | None
    split_bias: FloatArray | None


def check_arrays(
    x: Any, split_weight: Any, leaf_weight: Any, split_bias: Any
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray | None]:
    """The batch, `split_weight`, `leaf_weight` and `split_bias` of a call, checked for matching shapes."""
    if split_bias is None and _are_ready(x, split_weight, leaf_weight):
        return x, split_weight, leaf_weight, None
    w, o, b = check_ensemble(split_weight, leaf_weight, split_bias, dtype=getattr(x, "dtype", None))
    if o is None:
        raise TypeError("leaf_weight must be an array of shape [m, 2^d, k]; got None.")
    return check_x(x, w), w, o, b


def check_ensemble(
    split_weight: Any, leaf_weight: Any = None, split_bias: Any = None, *, dtype: Any = None
) -> EnsembleArrays:
    """Check the ensemble's arrays against one another; `dtype` is what a list or an array of integers becomes."""
    w = _floats(split_weight, "split_weight", _own_dtype(split_weight) or _own_dtype(leaf_weight) or dtype or _FLOAT64)
    if w.ndim != 3:
        raise ValueError(
            f"split_weight must have shape [m, 2^d - 1, p] (trees, splits, features); got shape {w.shape}: "
            "for a single tree use split_weight[None]."
        )
    n_trees, n_splits, n_features = w.shape
    if n_trees < 1 or n_features < 1:
        raise ValueError(f"split_weight must hold at least one tree and one feature; got shape {w.shape}.")
    if n_splits < 1 or n_splits & (n_splits + 1):
        depth = max((n_splits + 1).bit_length() - 1, 1)
        raise ValueError(
            f"split_weight must have 2^d - 1 splits per tree; got {n_splits} in shape {w.shape}: "
            f"a tree of depth {depth} has {2**depth - 1}, one of depth {depth + 1} has {2 ** (depth + 1) - 1}."
        )
    if n_splits >= 1 << MAX_DEPTH:
        raise ValueError(
            f"depth must be at most {MAX_DEPTH}; got {n_splits.bit_length()} from split_weight of shape {w.shape}: "
            "use more trees of less depth."
        )
    o = None
    if leaf_weight is not None:
        o = _matching_floats(leaf_weight, "leaf_weight", w, "split_weight")
        if o.ndim != 3 or o.shape[:2] != (n_trees, n_splits + 1) or o.shape[2] < 1:
            raise ValueError(
                f"leaf_weight must have shape [{n_trees}, {n_splits + 1}, k] (trees, leaves, outputs) to match "
                f"split_weight of shape {w.shape}; got shape {o.shape}: a tree has one leaf more than it has splits."
            )
    b = None
    if split_bias is not None:
        b = _matching_floats(split_bias, "split_bias", w, "split_weight")
        if b.shape != (n_trees, n_splits):
            raise ValueError(
                f"split_bias must have shape {(n_trees, n_splits)} (trees, splits) to match split_weight of shape "
                f"{w.shape}; got shape {b.shape}: pass one number per split, or None for no bias."
            )
    return EnsembleArrays(w, o, b)


def check_x(x: Any, split_weight: FloatArray) -> FloatArray:
    """Check the batch against the checked `split_weight`; rows may stay apart in memory, features are contiguous."""
    array = _converted(x, "x", split_weight.dtype)
    if array.dtype != split_weight.dtype:
        raise _dtype_mix(array, "x", split_weight, "split_weight")
    if array.ndim != 2:
        raise ValueError(
            f"x must have 2 dimensions [n, p] (rows, features); got shape {array.shape}: "
            "use x[None] for a single row, or x.reshape(-1, p)."
        )
    if array.shape[1] != split_weight.shape[2]:
        raise ValueError(
            f"x must have {split_weight.shape[2]} columns to match split_weight of shape {split_weight.shape}; "
            f"got shape {array.shape}: pass the features that the trees were made for."
        )
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        return array
    row_stride, feature_stride = array.strides
    size = array.itemsize
    if flags.aligned and feature_stride == size and row_stride > 0 and row_stride % size == 0:
        return array
    return _contiguous(array)


def check_grad_output(grad_output: Any, n_rows: int, leaf_weight: FloatArray, sum_trees: bool) -> FloatArray:
    """Check the gradient with respect to the output of `n_rows` rows."""
    array = _matching_floats(grad_output, "grad_output", leaf_weight, "leaf_weight")
    n_trees, _, n_outputs = leaf_weight.shape
    expected = (n_rows, n_outputs) if sum_trees else (n_rows, n_trees, n_outputs)
    if array.shape != expected:
        raise ValueError(
            f"grad_output must have the output's shape {expected} (sum_trees={bool(sum_trees)}); got shape "
            f"{array.shape}: pass the gradient of what forward returned, with the same sum_trees."
        )
    return array


def check_activation(activation: str) -> int:
    """The core's number of an activation."""
    try:
        return ACTIVATIONS[activation]
    except (KeyError, TypeError):
        pass
    if not isinstance(activation, str):
        raise TypeError(f"activation must be a string, one of {_listed(ACTIVATIONS)}; got {activation!r}.")
    name = activation.lower()
    nearest = "logistic" if name == "sigmoid" else difflib.get_close_matches(name, ACTIVATIONS, n=1, cutoff=0.0)[0]
    raise ValueError(f"activation must be one of {_listed(ACTIVATIONS)}; got {activation!r}: did you mean {nearest!r}?")


def check_gamma(gamma: float, dtype: np.dtype[Any]) -> float:
    """A width of the soft band that is positive, finite, and has an inverse in `dtype`."""
    try:
        value = float(gamma)
    except (TypeError, ValueError):
        raise TypeError(f"gamma must be a number > 0; got {gamma!r}: pass a float such as 1.0.") from None
    smallest, largest = FLOAT32_GAMMA if dtype == _FLOAT32 else FLOAT64_GAMMA
    if not smallest <= value <= largest:  # false for NaN too
        if math.isfinite(value) and value > 0:
            raise ValueError(f"gamma must lie between {smallest} and {largest:.2g} in {dtype}; got {gamma!r}: rescale.")
        raise ValueError(
            f"gamma must be a finite number > 0; got {gamma!r}: it is the width of the soft band, e.g. 1.0."
        )
    return value


def check_n_threads(n_threads: int | None) -> int:
    """The bound on threads; 0 stands for the library's setting."""
    if n_threads is None:
        return 0
    if type(n_threads) is int and 0 < n_threads < _MOST_THREADS:
        return n_threads
    try:
        count = operator.index(n_threads)
    except TypeError:
        raise TypeError(f"n_threads must be an integer >= 1 or None; got {n_threads!r}.") from None
    if count < 1:
        raise ValueError(
            f"n_threads must be an integer >= 1 or None; got {count}: None means softwood.get_num_threads()."
        )
    return min(count, _MOST_THREADS)


def not_finite(x: FloatArray, position: int) -> ValueError:
    """The error for a value of `x`, counted row by row, that is NaN or infinite."""
    row, column = divmod(position, x.shape[1])
    return ValueError(
        f"x must be finite; got {x[row, column]} at row {row}, column {column}: impute or drop such values, "
        "or pass check_finite=False to skip this check."
    )


def _are_ready(x: Any, w: Any, o: Any) -> bool:
    """Whether the arrays can be passed unchanged: the common case, which takes a fast path."""
    if not (type(x) is type(w) is type(o) is np.ndarray and x.dtype is w.dtype is o.dtype and w.dtype in _NATIVE):
        return False
    if not (x.flags.carray and w.flags.carray and o.flags.carray and x.ndim == 2 and w.ndim == o.ndim == 3):
        return False
    (_, n_columns), (n_trees, n_splits, n_features), (n_leaf_trees, n_leaves, n_outputs) = x.shape, w.shape, o.shape
    return (
        0 < n_columns == n_features and 0 < n_trees == n_leaf_trees and n_outputs > 0
        and 0 < n_splits == n_leaves - 1 < 1 << MAX_DEPTH and not n_splits & n_leaves
    )  # fmt: skip


def _own_dtype(value: Any) -> np.dtype[Any] | None:
    """The float type of a value; None for lists and integers, which take that of the others."""
    dtype = getattr(value, "dtype", None)
    if dtype in _NATIVE:
        return dtype
    return dtype.newbyteorder("=") if isinstance(dtype, np.dtype) and dtype.kind == "f" else None


def _converted(value: Any, name: str, dtype: np.dtype[Any]) -> FloatArray:
    """`value` as a native float32 or float64 array; lists, integers and booleans become `dtype`."""
    if type(value) is np.ndarray and value.dtype in _NATIVE:
        return value
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be an array of float32 or float64; got {type(value).__name__}: {error}") from None
    if array.dtype.kind in "iub" or (isinstance(value, (list, tuple)) and array.dtype.kind == "f"):
        return array.astype(dtype)
    native = array.dtype.newbyteorder("=")
    if native not in _NATIVE:
        raise TypeError(
            f"{name} must be an array of float32 or float64; got {array.dtype} from {type(value).__name__}: "
            f"convert it, e.g. np.asarray({name}, dtype=np.float32)."
        )
    return array.astype(native, copy=False)


def _contiguous(array: FloatArray) -> FloatArray:
    return np.require(array, requirements=("C", "A"))


def _floats(value: Any, name: str, dtype: np.dtype[Any]) -> FloatArray:
    array = _converted(value, name, dtype)
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else _contiguous(array)


def _matching_floats(value: Any, name: str, other: FloatArray, other_name: str) -> FloatArray:
    array = _floats(value, name, other.dtype)
    if array.dtype != other.dtype:
        raise _dtype_mix(array, name, other, other_name)
    return array


def _dtype_mix(array: FloatArray, name: str, other: FloatArray, other_name: str) -> TypeError:
    return TypeError(
        f"{name} and {other_name} must have the same dtype; got {array.dtype} and {other.dtype}: "
        f"convert one, e.g. {name}.astype(np.{other.dtype})."
    )


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in names)
