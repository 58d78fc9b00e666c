"""The compiled module refuses what would make the core read past its memory, whatever `softwood.ops` checks before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softwood import _core, arguments, ops

N, M, D, P, K = 40, 3, 4, 5, 2


def ensemble(n: int = N, m: int = M, d: int = D, p: int = P, k: int = K, dtype: Any = np.float32) -> list[Any]:
    """x, split_weight and leaf_weight."""
    random = np.random.default_rng(0)
    shapes = (n, p), (m, 2**d - 1, p), (m, 2**d, k)
    return [random.normal(size=shape).astype(dtype) for shape in shapes]


def filled_tape(arrays: list[Any], activation: int = 0, gamma: float = 1.0, sum_trees: bool = True) -> Any:
    x, w, o = arrays
    tape = _core.TapeFloat32() if x.dtype == np.float32 else _core.TapeFloat64()
    output = np.empty((len(x), o.shape[2]) if sum_trees else (len(x), len(w), o.shape[2]), x.dtype)
    assert _core.forward(x, w, o, None, activation, gamma, sum_trees, output, tape, 1, True) == -1
    return tape


def backward(tape: Any, arrays: list[Any], activation: int = 0, gamma: float = 1.0, sum_trees: bool = True) -> Any:
    """The gradient of x, by the compiled module alone."""
    x, w, o = arrays
    grad_output = np.ones((len(x), o.shape[2]) if sum_trees else (len(x), len(w), o.shape[2]), x.dtype)
    grad_x = np.empty_like(x)
    nothing = (None,) * 5
    _core.backward(grad_output, x, w, o, None, activation, gamma, sum_trees, tape, grad_x, *nothing, 1)
    return grad_x


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_tape_serves_the_call_it_was_made_for(dtype: Any) -> None:
    arrays = ensemble(dtype=dtype)
    np.testing.assert_array_equal(backward(filled_tape(arrays), arrays), backward(None, arrays))


@pytest.mark.parametrize(
    "change",
    [{"n": N + 1}, {"n": 600}, {"m": M + 1}, {"m": 1}, {"d": D + 1}, {"d": D - 1}, {"n": 600, "m": 60, "d": 6}],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_tape_of_another_shape_is_refused(change: dict[str, int], dtype: Any) -> None:
    tape = filled_tape(ensemble(dtype=dtype))
    with pytest.raises(ValueError, match=r"tape must come from a forward pass with the same arguments; .* 40 rows"):
        backward(tape, ensemble(dtype=dtype, **change))


def test_a_tape_of_other_settings_is_refused() -> None:
    """The backward pass repeats the routing: with other settings it would look for other children."""
    arrays = ensemble()
    message = (
        r"softwood\._core: the tape must come from a forward pass with the same arguments; it was made for 40 rows, "
        r"3 trees of depth 4, smooth_step, gamma 1\.0+, sum_trees True, this call has 40 rows, 3 trees of depth 4, "
        r"logistic, gamma 1\.0+, sum_trees True; call softwood\.ops instead"
    )
    with pytest.raises(ValueError, match=message):
        backward(filled_tape(arrays), arrays, activation=2)
    with pytest.raises(ValueError, match=r"gamma 1\.0+.* gamma 2\.0+"):
        backward(filled_tape(arrays), arrays, gamma=2.0)
    with pytest.raises(ValueError, match=r"sum_trees True.* sum_trees False"):
        backward(filled_tape(arrays), arrays, sum_trees=False)


def test_an_empty_tape_is_refused() -> None:
    with pytest.raises(ValueError, match="the tape is empty"):
        backward(_core.TapeFloat32(), ensemble())


def test_a_tape_is_filled_once() -> None:
    arrays = ensemble()
    tape = filled_tape(arrays)
    x, w, o = arrays
    with pytest.raises(ValueError, match="the tape must be new"):
        _core.forward(x, w, o, None, 0, 1.0, True, np.empty((N, K), np.float32), tape, 1, True)
    np.testing.assert_array_equal(backward(tape, arrays), backward(None, arrays))


def test_a_tape_of_rows_that_are_not_finite_stays_empty() -> None:
    x, w, o = ensemble()
    x[3, 2] = np.nan
    tape = _core.TapeFloat32()
    assert _core.forward(x, w, o, None, 0, 1.0, True, np.empty((N, K), np.float32), tape, 1, True) == 3 * P + 2
    with pytest.raises(ValueError, match="the tape is empty"):
        backward(tape, [x, w, o])


def test_tapes_of_tensors_are_checked() -> None:
    """The same through the functions for tensors of a framework."""
    torch = pytest.importorskip("torch")
    from softwood.torch import native  # noqa: F401  # sets the way in which tensors are read

    x, w, o = (torch.from_numpy(array) for array in ensemble())
    output, tape = _core.forward_tensors(x, w, o, None, 0, 1.0, True, 1, True)
    grads = _core.backward_tensors(
        torch.ones_like(output), x, w, o, None, 0, 1.0, True, 1, tape, True, True, True, False, None
    )
    assert grads[0].shape == x.shape
    other = torch.from_numpy(np.concatenate([x.numpy(), x.numpy()]))
    grad_output = torch.ones((2 * N, K))
    for memory in (None, _core.RowMemoryFloat32()):
        with pytest.raises(ValueError, match=r"40 rows.* 80 rows"):
            _core.backward_tensors(
                grad_output, other, w, o, None, 0, 1.0, True, 1, tape, True, True, True, False, memory
            )


def test_marks_other_than_0_and_1_clear_no_row_past_the_end() -> None:
    marked = np.full(70, 255, np.uint8)
    memory = np.ones((80, 3), np.float32)
    _core.clear_rows(marked, memory[:70], None)
    assert not memory[:70].any()
    assert memory[70:].all()


def test_constants_are_those_of_the_core() -> None:
    assert arguments.ACTIVATIONS == _core.ACTIVATIONS
    assert arguments.MAX_DEPTH == _core.MAX_DEPTH


def test_the_largest_depth_is_accepted_and_one_more_is_not() -> None:
    x, w, o = ensemble(n=1, m=1, d=_core.MAX_DEPTH, p=1, k=1)
    assert ops.forward(x, w, o).shape == (1, 1)
    w, o = np.zeros((1, 2**21 - 1, 1), np.float32), np.zeros((1, 2**21, 1), np.float32)
    with pytest.raises(ValueError, match=r"d from 1 to 20; got 2097151"):
        _core.forward(x, w, o, None, 0, 1.0, True, np.empty((1, 1), np.float32), None, 1, True)
