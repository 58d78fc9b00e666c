"""The compiled operations against the dense oracle. Run once per instruction set by test_instruction_sets.py."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softwood import ops, reference

ACTIVATIONS = ["smooth_step", "smoother_step", "logistic"]
DTYPES = [np.float32, np.float64]
MAX_SLOPE = {"smooth_step": 1.5, "smoother_step": 1.875, "logistic": 0.25}


def widest_instruction_set():
    """What the operating system says of this processor."""
    cpus = Path("/proc/cpuinfo")
    if not cpus.exists():
        pytest.skip("only Linux says what the processor can do")
    flags = set(re.search(r"^(?:flags|Features)\s*:(.*)$", cpus.read_text(), re.MULTILINE).group(1).split())
    avx2 = {"avx2", "fma", "bmi1", "bmi2", "popcnt"}
    wider = {"avx512": avx2 | {"avx512f", "avx512dq", "avx512bw", "avx512vl"}, "avx2": avx2}
    return next((name for name, needed in wider.items() if needed <= flags), "baseline")


def test_the_instruction_set_is_the_one_asked_for_or_the_widest():
    assert ops.instruction_set() == (os.environ.get("SOFTWOOD_ISA") or widest_instruction_set())


@st.composite
def problems(draw):
    """Shapes and settings over the whole range, with weights in proportion to gamma so that soft bands are hit."""
    dtype = draw(st.sampled_from(DTYPES))
    n, p = draw(st.integers(0, 70)), draw(st.integers(1, 40))
    k, m, d = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(1, 7))
    gamma = float(dtype(draw(st.floats(1e-4, 10))))
    spread = draw(st.sampled_from([0.0, 0.1, 1.0, 4.0, 30.0]))
    sum_trees = draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def normal(*shape, scale=1.0):
        return (rng.normal(size=shape) * scale).astype(dtype)

    arrays = normal(n, p), normal(m, 2**d - 1, p, scale=spread * gamma / np.sqrt(p)), normal(m, 2**d, k)
    grad_output = normal(*((n, k) if sum_trees else (n, m, k)))
    options = {
        "split_bias": normal(m, 2**d - 1, scale=gamma) if draw(st.booleans()) else None,
        "activation": draw(st.sampled_from(ACTIVATIONS)),
        "gamma": gamma,
        "sum_trees": sum_trees,
    }
    return arrays, grad_output, options


@given(problems())
def test_forward_and_backward_equal_the_oracle(problem):
    (x, w, o), grad_output, options = problem
    n, p = x.shape
    m, _, k = o.shape
    depth = w.shape[1].bit_length()
    # Errors of t are relative to sqrt(p) |x| |w|, a few gamma here; those of S to at most the slope times that.
    slope, spread = MAX_SLOPE[options["activation"]], max(1.0, np.abs(w).max() * np.sqrt(p) / options["gamma"])
    epsilon = 40 * np.finfo(x.dtype).eps * depth * slope * spread
    leaf, grad = np.abs(o).max(initial=1), np.abs(grad_output).max(initial=1)
    grad_t = slope / options["gamma"] * leaf * grad * k

    y, tape = ops.forward(x, w, o, with_tape=True, **options)
    expected = reference.forward(x, w, o, **options)
    assert y.shape == expected.shape
    assert y.dtype == x.dtype
    np.testing.assert_allclose(y, expected, rtol=0, atol=epsilon * leaf * m)
    assert np.array_equal(y, ops.forward(x, w, o, **options))

    expected = reference.backward(grad_output, x, w, o, **options)
    scales = {
        "x": grad_t * np.abs(w).max() * m * depth,
        "split_weight": grad_t * np.abs(x).max(initial=0) * n,
        "leaf_weight": grad * n,
        "split_bias": grad_t * n,
    }
    for name, got, want in zip(scales, ops.backward(grad_output, x, w, o, tape=tape, **options), expected, strict=True):
        if want is None:
            assert got is None
        else:
            assert got.dtype == x.dtype
            np.testing.assert_allclose(got, want, rtol=0, atol=epsilon * scales[name] + 1e-30, err_msg=name)


@st.composite
def exact_problems(draw):
    """Small integers divided by 8, and gamma a multiple of 1/4: t is exact in both dtypes and often on an edge."""
    dtype = draw(st.sampled_from(DTYPES))
    n, p, m, d = draw(st.integers(0, 40)), draw(st.integers(1, 9)), draw(st.integers(1, 5)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def eighths(*shape):
        return (rng.integers(-8, 9, size=shape) / 8).astype(dtype)

    activation = draw(st.sampled_from(ACTIVATIONS))
    options = {
        "split_bias": eighths(m, 2**d - 1) if draw(st.booleans()) else None,
        "activation": activation,
        # A logistic probability is never 0, but a product of many tiny ones would become so in float32.
        "gamma": draw(st.integers(1, 12)) / 4 * (16 if activation == "logistic" else 1),
    }
    return eighths(n, p), eighths(m, 2**d - 1, p), options


@given(exact_problems())
def test_visited_nodes_are_counted_as_by_the_oracle(problem):
    x, w, options = problem
    counts = ops.reachability(x, w, **options)
    for got, want in zip(counts, reference.reachability(x, w, **options), strict=True):
        assert got.dtype == np.int32
        assert np.array_equal(got, want)
    assert np.array_equal(counts.fractional_nodes, counts.leaves - 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [0.1, 4.0])
@pytest.mark.parametrize(
    ("n", "p", "m", "d"), [(300, 30, 10, 6), (70, 17, 3, 10), (1, 30, 10, 6), (600, 3, 1, 5), (5, 400, 7, 4)]
)
def test_typical_shapes_have_small_relative_errors(make_problem, dtype, spread, n, p, m, d):
    problem = make_problem(n, p, 3, m, d, dtype=dtype, spread=spread, bias=True, seed=n)
    tolerance = 2e-5 if dtype == np.float32 else 1e-12
    y, tape = ops.forward(*problem.arrays, with_tape=True, **problem.options)
    want = [reference.forward(*problem.arrays, **problem.options)]
    want += reference.backward(problem.grad_output, *problem.arrays, **problem.options)
    for with_tape in (tape, None):
        got = [y, *ops.backward(problem.grad_output, *problem.arrays, tape=with_tape, **problem.options)]
        for a, b in zip(got, want, strict=True):
            assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_equal_finite_differences(make_problem, activation):
    problem = make_problem(n=4, p=3, k=2, m=2, d=3, activation=activation, bias=True, spread=0.7)
    inputs = {
        "x": problem.x,
        "split_weight": problem.split_weight,
        "leaf_weight": problem.leaf_weight,
        "split_bias": problem.split_bias,
    }

    def loss(arrays):
        return (ops.forward(**arrays, **problem.settings) * problem.grad_output).sum()

    gradients = ops.backward(problem.grad_output, **inputs, **problem.settings)
    step = 1e-6
    for name, gradient in zip(inputs, gradients, strict=True):
        numeric = np.empty_like(gradient)
        for index in np.ndindex(gradient.shape):
            moved = {key: value.copy() for key, value in inputs.items()}
            moved[name][index] += step
            above = loss(moved)
            moved[name][index] -= 2 * step
            numeric[index] = (above - loss(moved)) / (2 * step)
        np.testing.assert_allclose(gradient, numeric, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_papers_worked_example(dtype):
    """Depth 4, three reachable leaves: T(x) = 0.8 * 0.3 * 1.5 + 0.8 * 0.7 * (-2.0) + 0.2 * 2.1 = -0.34."""

    def t_with(probability):  # the root in [-1/2, 1/2] of S(t) = probability, gamma 1
        roots = np.roots([-2, 0, 1.5, 0.5 - probability])
        return next(root.real for root in roots if abs(root.imag) < 1e-9 and abs(root.real) <= 0.5)

    split_bias = np.full((1, 15), 5.0)  # all go left ...
    split_bias[0, 0] = t_with(0.8)  # ... but at the root and at its left child
    split_bias[0, 1] = t_with(0.3)
    leaf_weight = np.full((1, 16, 1), 1e6)  # leaves that must not be reached
    leaf_weight[0, [0, 4, 8], 0] = 1.5, -2.0, 2.1
    x, w = np.ones((1, 1), dtype), np.zeros((1, 15, 1), dtype)
    bias, o = split_bias.astype(dtype), leaf_weight.astype(dtype)
    tolerance = 1e-6 if dtype == np.float32 else 1e-12
    assert ops.forward(x, w, o, split_bias=bias)[0, 0] == pytest.approx(-0.34, abs=tolerance)
    assert reference.forward(x, w, o, split_bias=bias)[0, 0] == pytest.approx(-0.34, abs=1e-6)
    counts = ops.reachability(x, w, split_bias=bias)
    assert (counts.leaves, counts.internal_nodes, counts.fractional_nodes) == ([[3]], [[9]], [[2]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["smooth_step", "smoother_step"])
@pytest.mark.parametrize("gamma", [1e-4, 0.1, 0.3, 1 / 3, 0.7, 1.0, 1.7, 3.0, 9.9, 10.0])
def test_routing_is_hard_exactly_from_the_edges_on(dtype, activation, gamma):
    gamma = float(dtype(gamma))
    edge = dtype(gamma / 2)
    inside, outside = np.nextafter(edge, dtype(0)), np.nextafter(edge, dtype(np.inf))
    x = np.array([[edge], [-edge], [outside], [-outside], [inside], [-inside]], dtype)
    w, o = np.ones((1, 1, 1), dtype), np.array([[[1.0, 0.0], [0.0, 1.0]]], dtype)
    options = {"activation": activation, "gamma": gamma}
    left_right = ops.forward(x, w, o, **options)
    assert np.array_equal(left_right[:4], [[1, 0], [0, 1], [1, 0], [0, 1]])
    assert (left_right >= 0).all()
    assert (left_right <= 1).all()
    assert ops.reachability(x, w, **options).leaves.ravel().tolist() == [1, 1, 1, 1, 2, 2]
    hard = ops.backward(np.array([[1, -1]] * 4, dtype), x[:4], w, o, **options)
    assert not hard.x.any()
    assert not hard.split_weight.any()
    assert hard.split_rows.size == 0
    assert np.array_equal(hard.leaf_weight, [[[2, -2], [2, -2]]])


@pytest.mark.parametrize("activation", ["smooth_step", "smoother_step"])
def test_gradients_just_inside_the_edge_are_finite_and_right(activation):
    """The quotient form of the paper gives NaN or large errors here."""
    for dtype in DTYPES:
        gamma = dtype(1)
        x = np.array([[0.5 - 10.0**-e] for e in range(2, 7)] + [[10.0**-e - 0.5] for e in range(2, 7)], dtype)
        w, o = np.ones((1, 3, 1), dtype), np.array([[[1.0], [2.0], [3.0], [5.0]]], dtype)
        g = np.ones((len(x), 1), dtype)
        options = {"activation": activation, "gamma": float(gamma)}
        got, want = ops.backward(g, x, w, o, **options).x, reference.backward(g, x, w, o, **options).x
        np.testing.assert_allclose(got, want, rtol=2e-5 if dtype == np.float32 else 1e-8)


def test_rows_outside_the_reached_set_have_zero_gradients_and_no_marks(make_problem):
    for spread in (1.0, 8.0):
        problem = make_problem(n=6, p=4, m=5, d=8, spread=spread, gamma=0.5)
        x, w, o = problem.arrays
        gradients = ops.backward(problem.grad_output, x, w, o, **problem.options)
        want = reference.backward(problem.grad_output, x, w, o, **problem.options)
        assert np.array_equal(gradients.split_rows, np.flatnonzero(want.split_weight.any(axis=2)))
        assert np.array_equal(gradients.leaf_rows, np.flatnonzero(want.leaf_weight.any(axis=2)))
        for rows, gradient in (
            (gradients.split_rows, gradients.split_weight),
            (gradients.leaf_rows, gradients.leaf_weight),
        ):
            unreached = np.delete(gradient.reshape(-1, gradient.shape[2]), rows, axis=0)
            assert not unreached.any()
            assert len(unreached) > 0


def test_deep_trees_reach_their_last_level():
    d = 20
    w = np.zeros((1, 2**d - 1, 1), np.float32)
    w[0, :, 0] = 1.0
    o = np.arange(2.0**d, dtype=np.float32).reshape(1, -1, 1)
    x = np.array([[1.0], [-1.0]], np.float32)
    y, tape = ops.forward(x, w, o, with_tape=True)
    assert y.ravel().tolist() == [0, 2**d - 1]
    assert ops.reachability(x, w).internal_nodes.tolist() == [[d], [d]]
    gradients = ops.backward(np.ones_like(y), x, w, o, tape=tape)
    assert gradients.leaf_rows.tolist() == [0, 2**d - 1]


def test_many_trees_of_the_greatest_depth_keep_their_nodes_apart():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 1), np.float32)
    w, o = (rng.standard_normal((12, size, 1), np.float32) for size in (2**20 - 1, 2**20))
    apart = ops.forward(x, w, o, gamma=0.01, sum_trees=False)
    np.testing.assert_allclose(ops.forward(x, w, o, gamma=0.01), apart.sum(axis=1), rtol=1e-4)
    assert len(np.unique(apart[0])) == len(w)


@pytest.mark.parametrize("sum_trees", [True, False])
def test_an_empty_batch_gives_empty_results(make_problem, sum_trees):
    problem = make_problem(n=0, bias=True, sum_trees=sum_trees)
    y, tape = ops.forward(*problem.arrays, with_tape=True, **problem.options)
    assert y.shape == problem.grad_output.shape
    gradients = ops.backward(problem.grad_output, *problem.arrays, tape=tape, **problem.options)
    assert gradients.x.shape == (0, 5)
    assert not gradients.split_weight.any()
    assert gradients.leaf_rows.size == 0
    assert ops.reachability(problem.x, problem.split_weight, **problem.routing).leaves.shape == (0, 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_huge_and_tiny_values(dtype):
    big = np.finfo(dtype).max / 4
    x = np.array([[big, 0], [-big, 0], [0, np.finfo(dtype).tiny]], dtype)
    w, o = np.ones((1, 1, 2), dtype), np.array([[[1.0], [2.0]]], dtype)
    assert ops.forward(x, w, o).ravel().tolist() == [1, 2, 1.5]
    assert ops.forward(x, w, o, activation="logistic").ravel().tolist() == [1, 2, 1.5]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["x", "split_weight", "leaf_weight", "grad_output", "split_bias"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("spread", [0.1, 3])
def test_values_that_are_not_finite_crash_nothing(make_problem, bad, where, activation, spread):
    """`x` without its check; the rest is never checked. Training that diverges must not end in a crash."""
    problem = make_problem(n=300, d=5, m=3, activation=activation, spread=spread, bias=True)
    array = getattr(problem, where)
    array.reshape(-1)[17] = bad
    with np.errstate(invalid="ignore", over="ignore"):
        y, tape = ops.forward(*problem.arrays, with_tape=True, check_finite=False, **problem.options)
        ops.backward(problem.grad_output, *problem.arrays, tape=tape, **problem.options)
        ops.backward(problem.grad_output, *problem.arrays, check_finite=False, **problem.options)
        ops.reachability(problem.x, problem.split_weight, check_finite=False, **problem.routing)
    if where == "x":  # the other rows are as ever
        clean = np.delete(np.arange(300), 17 // 5)
        want = reference.forward(problem.x[clean], problem.split_weight, problem.leaf_weight, **problem.options)
        np.testing.assert_allclose(y[clean], want, atol=1e-12)


@pytest.mark.parametrize("n_outputs", [1, 3, 5])
@pytest.mark.parametrize("spread", [0.1, 0.3, 3])
def test_a_split_that_is_nan_shows_in_the_rows_that_reach_it_and_no_others(make_problem, spread, n_outputs):
    problem = make_problem(n=100, d=7, m=3, k=n_outputs, spread=spread)
    level, place = 4, 11
    below = np.zeros((3, 2**7, 1))
    below[1, place * 2 ** (7 - level) : (place + 1) * 2 ** (7 - level)] = 1
    reached = reference.forward(problem.x, problem.split_weight, below, **problem.options).ravel() > 0
    problem.split_weight[1, 2**level - 1 + place, 0] = np.nan
    y = ops.forward(*problem.arrays, **problem.options)
    assert reached.any()
    assert np.array_equal(np.isnan(y), np.broadcast_to(reached[:, None], y.shape))
    assert np.array_equal(y, ops.forward(*problem.arrays, with_tape=True, **problem.options)[0], equal_nan=True)
