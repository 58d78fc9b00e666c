"""The tree ensemble layer on NumPy arrays: forward, backward and reachability of a whole ensemble in one call.

In come arrays (see the legend below), out go arrays. Arguments are checked here, once; the work is done by the compiled
core. Autograd is left to `softwood.torch`, `softwood.keras` and `softwood.jax`.

Legend: n samples, p features, k outputs, m trees, d depth (1 to 20). A tree is perfect: 2^d - 1 splits and 2^d leaves
in heap order. All arrays of a call share one dtype, float32 or float64; lists and arrays of integers are converted to
it. Results are bit-identical for every number of threads.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator
from typing import Any, Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from softwood import _core
from softwood.arguments import (
    FloatArray,
    check_activation,
    check_arrays,
    check_ensemble,
    check_gamma,
    check_grad_output,
    check_n_threads,
    check_x,
    not_finite,
)
from softwood.reference import Reachability

__all__ = [
    "Gradients",
    "Reachability",
    "Tape",
    "backward",
    "forward",
    "get_num_threads",
    "instruction_set",
    "reachability",
    "set_num_threads",
]

TapeContents: TypeAlias = _core.TapeFloat32 | _core.TapeFloat64

_GRADIENT_NAMES = ("x", "split_weight", "leaf_weight", "split_bias")
_ALL = frozenset(_GRADIENT_NAMES)
_ALL_BUT_BIAS = _ALL - {"split_bias"}


class Tape:
    """What one forward pass found, for backward passes over the same, unchanged arrays."""

    __slots__ = ("_contents", "_made_with")

    def __init__(self, contents: TapeContents, made_with: tuple[Any, ...]) -> None:
        self._contents = contents
        self._made_with = made_with

    @property
    def n_bytes(self) -> int:
        """Memory that the tape holds."""
        return self._contents.n_bytes

    def __repr__(self) -> str:
        made_with = ", ".join(f"{name}={value}" for name, value in zip(_TAPE_FIELDS, self._made_with, strict=True))
        return f"Tape({made_with})"


_TAPE_FIELDS = ("x", "split_weight", "leaf_weight", "dtype", "bias", "activation", "gamma", "sum_trees")


class Gradients:
    """The gradient with respect to each argument of the layer, in that argument's shape.

    Unpacks as ``x, split_weight, leaf_weight, split_bias``; an entry that was not asked for is None. Rows that no
    sample reached are zero; `split_rows` and `leaf_rows` name the others, so that an optimiser can skip what was not
    reached. Handed back to `backward` as ``out``, its memory is used again.
    """

    __slots__ = (
        "_leaf_marked", "_leaf_rows", "_made_for", "_split_marked", "_split_rows",
        "leaf_weight", "split_bias", "split_weight", "x",
    )  # fmt: skip

    def __init__(self) -> None:
        self.x: FloatArray | None = None
        self.split_weight: FloatArray | None = None
        self.leaf_weight: FloatArray | None = None
        self.split_bias: FloatArray | None = None
        self._split_marked: npt.NDArray[np.uint8] | None = None
        self._leaf_marked: npt.NDArray[np.uint8] | None = None
        self._split_rows: npt.NDArray[np.intp] | None = None  # the marked ones, once they have been searched
        self._leaf_rows: npt.NDArray[np.intp] | None = None
        self._made_for: tuple[Any, ...] = ()  # split_weight's shape, leaf_weight's shape, dtype, wanted names

    def __iter__(self) -> Iterator[Any]:
        return iter((self.x, self.split_weight, self.leaf_weight, self.split_bias))

    def __repr__(self) -> str:
        shapes = ", ".join(
            f"{name}={None if a is None else a.shape}" for name, a in zip(_GRADIENT_NAMES, self, strict=True)
        )
        return f"Gradients({shapes})"

    @property
    def split_rows(self) -> npt.NDArray[np.intp]:
        """Rows of the gradient of the splits, tree * (2^d - 1) + node, where some sample was fractional; sorted."""
        if self._split_rows is None:
            self._split_rows = _marked_rows(self._split_marked)
        return self._split_rows

    @property
    def leaf_rows(self) -> npt.NDArray[np.intp]:
        """Rows of the gradient of the leaves, tree * 2^d + leaf, that some sample reached; sorted."""
        if self._leaf_rows is None:
            self._leaf_rows = _marked_rows(self._leaf_marked)
        return self._leaf_rows

    def _prepare(self, wanted: frozenset[str], n_rows: int, w: FloatArray, o: FloatArray) -> None:
        """Hold an array of zeros for each wanted name, and no other; `x` is overwritten and need not be zero."""
        self._clear()
        made_for = (w.shape, o.shape, w.dtype, wanted)
        if self._made_for != made_for:
            self._make_room(wanted, w, o)
            self._made_for = made_for
        if "x" in wanted and (self.x is None or len(self.x) != n_rows):
            self.x = np.empty((n_rows, w.shape[2]), w.dtype)

    def _clear(self) -> None:
        """Set all rows to zero at the cost of the marked ones."""
        if self._split_marked is not None:
            _clear_rows(self._split_marked, self._split_rows, self.split_weight, self.split_bias)
        if self._leaf_marked is not None:
            _clear_rows(self._leaf_marked, self._leaf_rows, self.leaf_weight, None)
        self._split_rows = self._leaf_rows = None

    def _make_room(self, wanted: frozenset[str], w: FloatArray, o: FloatArray) -> None:
        # Zeros come from fresh pages, which cost nothing until a row of them is reached.
        shape, dtype = w.shape, w.dtype
        if "split_weight" not in wanted:
            self.split_weight = None
        elif self.split_weight is None:
            self.split_weight = np.zeros(shape, dtype)
        if "leaf_weight" not in wanted:
            self.leaf_weight = None
        elif self.leaf_weight is None:
            self.leaf_weight = np.zeros(o.shape, dtype)
        if "split_bias" not in wanted:
            self.split_bias = None
        elif self.split_bias is None:
            self.split_bias = np.zeros(shape[:2], dtype)
        if "x" not in wanted:
            self.x = None
        if self._split_marked is None and ("split_weight" in wanted or "split_bias" in wanted):
            self._split_marked = np.zeros(shape[:2], np.uint8)
        if self._leaf_marked is None and "leaf_weight" in wanted:
            self._leaf_marked = np.zeros(o.shape[:2], np.uint8)


@overload
def forward(
    x: Any,
    split_weight: Any,
    leaf_weight: Any,
    *,
    split_bias: Any = None,
    activation: str = "smooth_step",
    gamma: float = 1.0,
    sum_trees: bool = True,
    n_threads: int | None = None,
    with_tape: Literal[False] = False,
    check_finite: bool = True,
) -> FloatArray: ...


@overload
def forward(
    x: Any,
    split_weight: Any,
    leaf_weight: Any,
    *,
    split_bias: Any = None,
    activation: str = "smooth_step",
    gamma: float = 1.0,
    sum_trees: bool = True,
    n_threads: int | None = None,
    with_tape: Literal[True],
    check_finite: bool = True,
) -> tuple[FloatArray, Tape]: ...


def forward(
    x: Any,
    split_weight: Any,
    leaf_weight: Any,
    *,
    split_bias: Any = None,
    activation: str = "smooth_step",
    gamma: float = 1.0,
    sum_trees: bool = True,
    n_threads: int | None = None,
    with_tape: bool = False,
    check_finite: bool = True,
) -> FloatArray | tuple[FloatArray, Tape]:
    """Output of the ensemble.

    Parameters
    ----------
    x : array
        The batch. Non-contiguous and read-only arrays are fine.
    split_weight, leaf_weight, split_bias : array
        The trees' parameters; `split_bias` may be None.
    activation : {"smooth_step", "smoother_step", "logistic"}
        How a split turns t into a probability. "logistic" reaches every leaf.
    gamma : float
        Width of the soft band outside which routing is hard; for "logistic", its temperature.
    sum_trees : bool
        Whether to add the trees' outputs.
    n_threads : int, optional
        Upper bound on threads; None means `get_num_threads()`.
    with_tape : bool
        Return ``(output, tape)``, where the tape saves `backward` from repeating the traversal.
    check_finite : bool
        Refuse NaN and infinity in `x`. Without the check, the rows that hold them get an unspecified output.

    Shape
    -----
    `x` [n, p], `split_weight` [m, 2^d - 1, p], `split_bias` [m, 2^d - 1], `leaf_weight` [m, 2^d, k];
    output [n, k], or [n, m, k] with ``sum_trees=False``.

    Examples
    --------
    One tree of depth 1: x = 0 lies in the middle of the soft band, x = 1 goes left, x = -1 goes right.

    >>> import numpy as np
    >>> from softwood import ops
    >>> x = np.array([[0.0], [1.0], [-1.0]])
    >>> ops.forward(x, np.array([[[1.0]]]), np.array([[[10.0], [20.0]]]))
    array([[15.],
           [10.],
           [20.]])
    """
    x, w, o, b = check_arrays(x, split_weight, leaf_weight, split_bias)
    code, width = check_activation(activation), check_gamma(gamma, w.dtype)
    threads = check_n_threads(n_threads)
    n_trees, _, n_outputs = o.shape
    output = np.empty((len(x), n_outputs) if sum_trees else (len(x), n_trees, n_outputs), w.dtype)
    contents: TapeContents | None = None
    if with_tape:
        contents = _core.TapeFloat32() if w.dtype == np.float32 else _core.TapeFloat64()
    position = _core.forward(x, w, o, b, code, width, bool(sum_trees), output, contents, threads, bool(check_finite))
    if position >= 0:
        raise not_finite(x, position)
    if contents is None:
        return output
    return output, Tape(contents, _made_with(x, w, o, b, activation, width, sum_trees))


def backward(
    grad_output: Any,
    x: Any,
    split_weight: Any,
    leaf_weight: Any,
    *,
    tape: Tape | None = None,
    split_bias: Any = None,
    activation: str = "smooth_step",
    gamma: float = 1.0,
    sum_trees: bool = True,
    needs: Collection[str] = _GRADIENT_NAMES,
    out: Gradients | None = None,
    n_threads: int | None = None,
    check_finite: bool = True,
) -> Gradients:
    """Gradients of a loss whose gradient with respect to the output is `grad_output`.

    Parameters
    ----------
    grad_output : array
        In the shape of the output of `forward` with the same `sum_trees`.
    x, split_weight, leaf_weight, split_bias, activation, gamma, sum_trees, n_threads
        As for `forward`.
    tape : Tape, optional
        From `forward` with the same arguments; the arrays must not have changed since. Without it the traversal is
        repeated.
    needs : collection of str
        Which of "x", "split_weight", "leaf_weight" and "split_bias" to compute; the others are None in the result and
        cost nothing. "split_bias" is ignored where there is no bias.
    out : Gradients, optional
        The result of an earlier call for the same ensemble, to be overwritten and returned: only the rows that it
        marks are cleared, so that a step of a deep tree costs what it reached. What the caller wrote into other rows
        stays there.
    check_finite : bool
        Refuse NaN and infinity in `x`; not repeated if there is a tape.

    Returns
    -------
    Gradients

    Examples
    --------
    >>> import numpy as np
    >>> from softwood import ops
    >>> x, w, o = np.array([[0.0]]), np.array([[[1.0]]]), np.array([[[10.0], [20.0]]])
    >>> y, tape = ops.forward(x, w, o, with_tape=True)
    >>> grad_x, grad_split, grad_leaf, _ = ops.backward(np.ones_like(y), x, w, o, tape=tape)
    >>> grad_x, grad_leaf.ravel()
    (array([[-15.]]), array([0.5, 0.5]))
    """
    x, w, o, b = check_arrays(x, split_weight, leaf_weight, split_bias)
    grad_output = check_grad_output(grad_output, len(x), o, sum_trees)
    code, width = check_activation(activation), check_gamma(gamma, w.dtype)
    threads = check_n_threads(n_threads)
    wanted = _check_needs(needs, b)
    if tape is not None:
        _require_same(tape, _made_with(x, w, o, b, activation, width, sum_trees))
    elif check_finite:
        _require_finite(x)
    if out is not None:
        _check_out(out, w, o)
    gradients = Gradients() if out is None else out
    contents = None if tape is None else tape._contents
    gradients._prepare(wanted, len(x), w, o)
    _core.backward(
        grad_output, x, w, o, b, code, width, bool(sum_trees), contents,
        gradients.x, gradients.split_weight, gradients.leaf_weight, gradients.split_bias,
        gradients._split_marked, gradients._leaf_marked, threads,
    )  # fmt: skip
    return gradients


def reachability(
    x: Any,
    split_weight: Any,
    *,
    split_bias: Any = None,
    activation: str = "smooth_step",
    gamma: float = 1.0,
    n_threads: int | None = None,
    check_finite: bool = True,
) -> Reachability:
    """How many leaves, internal nodes and fractional internal nodes (0 < S < 1) each sample reaches in each tree.

    Parameters
    ----------
    x, split_weight, split_bias, activation, gamma, n_threads, check_finite
        As for `forward`.

    Returns
    -------
    Reachability
        ``leaves``, ``internal_nodes`` and ``fractional_nodes``, int32 [n, m] each. Of the fractional nodes there is
        always one less than of the leaves.

    Examples
    --------
    >>> import numpy as np
    >>> from softwood import ops
    >>> ops.reachability(np.array([[0.0], [1.0]]), np.array([[[1.0]]])).leaves
    array([[2],
           [1]], dtype=int32)
    """
    w, _, b = check_ensemble(split_weight, None, split_bias, dtype=getattr(x, "dtype", None))
    x = check_x(x, w)
    code, width = check_activation(activation), check_gamma(gamma, w.dtype)
    threads = check_n_threads(n_threads)
    if check_finite:
        _require_finite(x)
    counts = Reachability(*(np.empty((len(x), len(w)), np.int32) for _ in range(3)))
    _core.reachability(x, w, b, code, width, *counts, threads)
    return counts


def instruction_set() -> str:
    """The kernels in use: "baseline", "avx2" or "avx512".

    Chosen on first use as the widest that the CPU supports; the environment variable SOFTWOOD_ISA selects a narrower
    one.
    """
    return _core.instruction_set()


def get_num_threads() -> int:
    """The number of threads used where a call names none.

    The last value given to `set_num_threads`, else the environment variable SOFTWOOD_NUM_THREADS, else the cores that
    this process may run on.
    """
    return _core.num_threads()


def set_num_threads(n_threads: int | None) -> None:
    """Set the number of threads used where a call names none; None returns to the default."""
    _core.set_num_threads(check_n_threads(n_threads))


def xla_handlers() -> dict[str, Any]:
    """The kernels as capsules for XLA's foreign-function interface; `softwood.jax` registers them."""
    return _core.xla_handlers()


def _require_finite(x: FloatArray) -> None:
    position = _core.first_non_finite(x)
    if position >= 0:
        raise not_finite(x, position)


def _made_with(
    x: FloatArray, w: FloatArray, o: FloatArray, b: FloatArray | None, activation: str, gamma: float, sum_trees: bool
) -> tuple[Any, ...]:
    return x.shape, w.shape, o.shape, w.dtype, b is not None, activation, gamma, bool(sum_trees)


def _require_same(tape: Tape, made_with: tuple[Any, ...]) -> None:
    if not isinstance(tape, Tape):
        raise TypeError(f"tape must come from forward(..., with_tape=True); got {type(tape).__name__}.")
    if tape._made_with == made_with:
        return
    for name, then, now in zip(_TAPE_FIELDS, tape._made_with, made_with, strict=True):
        if then != now:
            raise ValueError(
                f"tape must come from a forward pass with the same arguments; it was made with {name}={then}, "
                f"this call has {name}={now}: pass the arguments of that forward pass, or tape=None."
            )


def _check_needs(needs: Collection[str], split_bias: FloatArray | None) -> frozenset[str]:
    if needs is _GRADIENT_NAMES:
        return _ALL if split_bias is not None else _ALL_BUT_BIAS
    wanted = frozenset((needs,) if isinstance(needs, str) else needs)
    unknown = sorted(map(str, wanted - _ALL))
    if unknown:
        raise ValueError(f"needs must name gradients among {', '.join(_GRADIENT_NAMES)}; got {', '.join(unknown)}.")
    return wanted if split_bias is not None else wanted - {"split_bias"}


def _check_out(out: Gradients, w: FloatArray, o: FloatArray) -> None:
    if not isinstance(out, Gradients):
        raise TypeError(
            f"out must be the Gradients of an earlier backward; got {type(out).__name__}: pass None at first."
        )
    ensemble = (w.shape, o.shape, w.dtype)
    if out._made_for[:3] not in (ensemble, ()):
        split, leaf, dtype, _ = out._made_for
        raise ValueError(
            f"out must come from a backward pass for the same ensemble; it is for split_weight {split} and leaf_weight "
            f"{leaf} in {dtype}, this call has {w.shape} and {o.shape} in {w.dtype}: pass out=None."
        )


def _marked_rows(marked: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.intp]:
    rows = np.empty(0, np.intp) if marked is None else np.flatnonzero(marked.view(np.bool_))
    rows.flags.writeable = False  # they decide what is cleared
    return rows


def _clear_rows(
    marked: npt.NDArray[np.uint8], rows: npt.NDArray[np.intp] | None, a: FloatArray | None, b: FloatArray | None
) -> None:
    """Set marked rows of `a` and `b` to zero, and the marks; known `rows` save a walk through all marks."""
    first, second = (b, None) if a is None else (a, b)
    if rows is None and first is not None:
        _core.clear_rows(marked, first, second)
    elif rows is not None:
        for array in (a, b, marked):
            if array is not None:
                array.reshape(marked.size, -1)[rows] = 0


def _warn_of_environment() -> None:
    text = os.environ.get("SOFTWOOD_NUM_THREADS")
    if text is not None and not (text.strip().isdecimal() and int(text) >= 1):
        warnings.warn(
            f"SOFTWOOD_NUM_THREADS must be an integer >= 1; got {text!r}: it is ignored and all cores are used.",
            stacklevel=2,
        )


_warn_of_environment()
