"""The oracle itself, against hand-computed values, the definitions of the paper, and finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from softwood import reference

GAMMA = 0.8


def tree_output(t, activation):
    """Output of one split with the value t and the leaves 1 (left) and 0 (right): S(t)."""
    t = np.atleast_1d(np.asarray(t, float))[:, None]
    return reference.forward(t, np.ones((1, 1, 1)), np.array([[[1.0], [0.0]]]), activation=activation, gamma=GAMMA)[
        :, 0
    ]


def test_smooth_step_is_the_cubic_of_the_paper():
    t = np.linspace(-GAMMA / 2, GAMMA / 2, 101)
    cubic = -2 * t**3 / GAMMA**3 + 3 * t / (2 * GAMMA) + 0.5
    np.testing.assert_allclose(tree_output(t, "smooth_step"), cubic, atol=1e-15)
    assert tree_output([-GAMMA / 2, -7, GAMMA / 2, 7], "smooth_step").tolist() == [0, 0, 1, 1]


def test_logistic_has_gamma_as_temperature():
    t = np.array([-3000.0, -1.0, 0.0, 0.3, 3000.0])
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(tree_output(t, "logistic"), 1 / (1 + np.exp(-t / GAMMA)), atol=1e-15)


@pytest.mark.parametrize("activation", ["smooth_step", "smoother_step"])
def test_derivatives_vanish_at_the_edges(activation):
    h = 1e-4
    inside = tree_output(GAMMA / 2 - h * np.arange(4), activation)
    assert abs(np.diff(inside)[0] / h) < 1e-2
    assert (abs(np.diff(inside, 2)[0] / h**2) < 0.1) == (activation == "smoother_step")


def test_leaves_stand_in_heap_order():
    """Depth 2: the path left-right ends at the second leaf."""
    bias = np.array([[9.0, -9.0, 0.0]])
    y = reference.forward(np.zeros((1, 1)), np.zeros((1, 3, 1)), np.arange(4.0).reshape(1, 4, 1), split_bias=bias)
    assert y == 1


def test_trees_are_summed_or_kept():
    rng = np.random.default_rng(0)
    x, w, o = rng.normal(size=(5, 3)), rng.normal(size=(4, 7, 3)), rng.normal(size=(4, 8, 2))
    trees = reference.forward(x, w, o, sum_trees=False)
    assert trees.shape == (5, 4, 2)
    np.testing.assert_allclose(trees.sum(axis=1), reference.forward(x, w, o))
    np.testing.assert_allclose(trees[:, 2], reference.forward(x, w[2:3], o[2:3]))


def test_counts_of_a_known_tree():
    """Depth 2, t = 0 at the root, hard left below: 2 leaves, 3 internal nodes, 1 of them fractional."""
    counts = reference.reachability(np.zeros((1, 1)), np.zeros((1, 3, 1)), split_bias=np.array([[0.0, 2.0, 2.0]]))
    assert [int(count.item()) for count in counts] == [2, 3, 1]


@pytest.mark.parametrize("activation", ["smooth_step", "smoother_step", "logistic"])
@pytest.mark.parametrize("sum_trees", [True, False])
def test_gradients_equal_finite_differences(make_problem, activation, sum_trees):
    problem = make_problem(n=3, p=2, k=2, m=2, d=2, activation=activation, bias=True, spread=0.6, sum_trees=sum_trees)
    names = ("x", "split_weight", "leaf_weight", "split_bias")
    inputs = dict(zip(names, (*problem.arrays, problem.split_bias), strict=True))

    def loss(name, moved):
        return (reference.forward(**(inputs | {name: moved}), **problem.settings) * problem.grad_output).sum()

    gradients = reference.backward(problem.grad_output, **inputs, **problem.settings)
    for name, gradient in zip(names, gradients, strict=True):
        for index in np.ndindex(gradient.shape):
            step = np.zeros_like(gradient)
            step[index] = 1e-6
            numeric = (loss(name, inputs[name] + step) - loss(name, inputs[name] - step)) / 2e-6
            assert gradient[index] == pytest.approx(numeric, abs=1e-7)
