"""What the operations take, keep and give back: layouts, dtypes, tapes, gradients asked for, memory used again."""

from __future__ import annotations

import numpy as np
import pytest

from softwood import ops


def assert_same(got, want):
    for a, b in zip(got, want, strict=True):
        if b is None:
            assert a is None
        else:
            assert np.array_equal(a, b)


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def unaligned(array):
    buffer = np.empty(array.nbytes + 1, np.uint8)
    view = buffer[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    assert not view.flags.aligned
    return view


LAYOUTS = {
    "fortran order": np.asfortranarray,
    "read-only": read_only,
    "byte-swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "unaligned": unaligned,
    "reversed": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "every other": lambda a: np.repeat(a, 2, axis=0)[::2],
    "last axis strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "part of a wider array": lambda a: np.concatenate([a, a], axis=-1)[..., : a.shape[-1]],
    "subclass": lambda a: a.view(type("Subclass", (np.ndarray,), {})),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_layout_gives_the_same_bits(make_problem, layout, dtype):
    problem = make_problem(n=33, p=5, bias=True, dtype=dtype)
    arrays = (*problem.arrays, problem.split_bias, problem.grad_output)
    other = [LAYOUTS[layout](a) for a in arrays]

    def run(x, w, o, b, g):
        y, tape = ops.forward(x, w, o, split_bias=b, with_tape=True)
        return [y, *ops.backward(g, x, w, o, split_bias=b, tape=tape), *ops.reachability(x, w, split_bias=b)]

    assert_same(run(*other), run(*arrays))
    for before, after in zip(arrays, other, strict=True):
        assert np.array_equal(before, after)


def test_rows_of_a_wider_array_are_not_copied():
    from softwood.arguments import check_x

    wide = np.zeros((6, 10), np.float32)
    assert check_x(wide[::2, 3:7], np.zeros((1, 1, 4), np.float32)).base is wide


def test_lists_and_integers_take_the_dtype_of_the_weights():
    x, w, o = [[1, 0], [0, 1]], np.array([[[0.25, -0.25]]], np.float32), [[[1.0], [3.0]]]
    want = ops.forward(np.array(x, np.float32), w, np.array(o, np.float32))
    for same in (x, np.array(x), np.array(x, bool), np.array(x, np.int8)):
        got = ops.forward(same, w, o)
        assert got.dtype == np.float32
        assert np.array_equal(got, want)
    assert ops.forward(x, w.tolist(), o).dtype == np.float64
    assert ops.forward(np.array(x, np.float32), w.tolist(), o).dtype == np.float32


def test_a_tape_changes_no_bit_and_serves_twice(make_problem):
    for spread in (0.1, 4):
        problem = make_problem(n=100, p=9, d=6, spread=spread, bias=True)
        y, tape = ops.forward(*problem.arrays, with_tape=True, **problem.options)
        assert tape.n_bytes > 0
        want = ops.backward(problem.grad_output, *problem.arrays, **problem.options)
        for _ in range(2):
            assert_same(ops.backward(problem.grad_output, *problem.arrays, tape=tape, **problem.options), want)
        assert np.array_equal(y, ops.forward(*problem.arrays, **problem.options))


def test_only_the_gradients_asked_for_are_made(make_problem):
    problem = make_problem(n=50, d=5, bias=True)
    names = ("x", "split_weight", "leaf_weight", "split_bias")
    everything = dict(zip(names, ops.backward(problem.grad_output, *problem.arrays, **problem.options), strict=True))
    for chosen in [(), *((name,) for name in names), ("split_weight", "leaf_weight"), {"x", "split_bias"}, names]:
        got = ops.backward(problem.grad_output, *problem.arrays, needs=chosen, **problem.options)
        assert_same(got, [everything[name] if name in chosen else None for name in names])
    assert ops.backward(problem.grad_output, *problem.arrays, needs="x", **problem.options).leaf_rows.size == 0


def test_memory_of_earlier_gradients_is_used_again(make_problem):
    first, second = (
        make_problem(n=30, d=7, m=3, spread=4, bias=True),
        make_problem(n=30, d=7, m=3, spread=4, bias=True, seed=1),
    )
    second.split_weight = first.split_weight
    gradients = ops.backward(first.grad_output, *first.arrays, **first.options)
    held = list(gradients)
    again = ops.backward(second.grad_output, *second.arrays, out=gradients, **second.options)
    assert again is gradients
    assert all(a is b for a, b in zip(again, held, strict=True))
    fresh = ops.backward(second.grad_output, *second.arrays, **second.options)
    assert_same(again, fresh)
    assert np.array_equal(again.split_rows, fresh.split_rows)
    assert np.array_equal(again.leaf_rows, fresh.leaf_rows)


def test_used_memory_follows_the_batch_and_the_needs(make_problem):
    problem, smaller = make_problem(n=30, d=5, bias=True), make_problem(n=7, d=5, bias=True, seed=2)
    gradients = ops.backward(problem.grad_output, *problem.arrays, needs=("x", "split_bias"), **problem.options)
    for needs in [("split_weight",), ("x", "leaf_weight"), ("split_bias", "split_weight", "leaf_weight", "x"), ()]:
        gradients = ops.backward(smaller.grad_output, *smaller.arrays, needs=needs, out=gradients, **smaller.options)
        assert_same(gradients, ops.backward(smaller.grad_output, *smaller.arrays, needs=needs, **smaller.options))


def test_gradients_and_tapes_describe_themselves(make_problem):
    problem = make_problem(n=2, p=5, k=3, m=4, d=3)
    _, tape = ops.forward(*problem.arrays, with_tape=True)
    gradients = ops.backward(problem.grad_output, *problem.arrays, tape=tape)
    assert repr(gradients) == "Gradients(x=(2, 5), split_weight=(4, 7, 5), leaf_weight=(4, 8, 3), split_bias=None)"
    assert "activation=smooth_step" in repr(tape)


@pytest.mark.parametrize("look_at_rows", [False, True])
def test_reused_gradients_forget_the_rows_of_the_step_before(make_problem, look_at_rows):
    problem = make_problem(d=7, spread=5.0, bias=True)
    options = {**problem.options, "needs": ("split_weight", "split_bias", "leaf_weight")}
    gradients = ops.backward(problem.grad_output, *problem.arrays, **options)
    if look_at_rows:
        assert len(gradients.split_rows) > 1
        assert len(gradients.leaf_rows) > 1
    x, *weights = problem.arrays
    grad_output = problem.grad_output[:1]
    reused = ops.backward(grad_output, -x[:1], *weights, **options, out=gradients)
    fresh = ops.backward(grad_output, -x[:1], *weights, **options)
    for a, b in zip(reused, fresh, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(reused.split_rows, fresh.split_rows)
    np.testing.assert_array_equal(reused.leaf_rows, fresh.leaf_rows)
