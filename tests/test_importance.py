"""Importances of columns: what each split decides, by its definition, and how that is shared out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import softwood
from softwood import reference
from softwood.model.importance import column_importances, split_stakes
from softwood.model.member_rows import MemberRows


class GivenRows(MemberRows):
    """Linear splits of given weights."""

    def __init__(self, x, split_weight, split_bias, leaf_weight, activation, gamma):
        self.leaf_weight, self.activation, self.gamma = leaf_weight, activation, gamma
        self.t = np.einsum("np,mip->nmi", x, split_weight) + (0 if split_bias is None else split_bias)

    def split_values(self, tree):
        return self.t[:, tree]


def stakes_by_definition(x, split_weight, split_bias, leaf_weight, activation, gamma):
    """mean over rows of P(x -> i) * |S(t_i) - mean S_i| * ||e_left - e_right||_1, each node for itself."""
    n_trees, n_splits, _ = split_weight.shape
    stakes = np.zeros((n_trees, n_splits))
    for tree in range(n_trees):
        bias = np.zeros(n_splits) if split_bias is None else split_bias[tree]

        def left(i, tree=tree, bias=bias):
            """S(t_i) of each row, by a tree of depth 1 with leaves 1 and 0."""
            options = {"split_bias": bias[None, i : i + 1], "activation": activation, "gamma": gamma}
            return reference.forward(x, split_weight[None, tree, i : i + 1], np.array([[[1.0], [0.0]]]), **options)[
                :, 0
            ]

        def reach(i, left=left):
            if i == 0:
                return np.ones(len(x))
            parent = (i - 1) // 2
            return reach(parent) * (left(parent) if i % 2 else 1 - left(parent))

        def expected(i, left=left, tree=tree):
            """Expected output [n, k] below a node, a leaf from n_splits on."""
            if i >= n_splits:
                return np.broadcast_to(leaf_weight[tree, i - n_splits], (len(x), leaf_weight.shape[2]))
            return left(i)[:, None] * expected(2 * i + 1) + (1 - left(i))[:, None] * expected(2 * i + 2)

        for i in range(n_splits):
            mean = np.average(left(i), weights=reach(i))
            gap = np.abs(expected(2 * i + 1) - expected(2 * i + 2)).sum(axis=1)
            stakes[tree, i] = np.mean(reach(i) * np.abs(left(i) - mean) * gap)
    return stakes


@pytest.mark.parametrize("activation", ["smooth_step", "smoother_step", "logistic"])
@pytest.mark.parametrize("bias", [True, False])
def test_stakes_are_those_of_the_definition(activation, bias):
    rng = np.random.default_rng(0)
    x, split_weight, leaf_weight = (rng.normal(size=shape) for shape in ((40, 3), (2, 7, 3), (2, 8, 2)))
    arguments = (x, split_weight, rng.normal(size=(2, 7)) if bias else None, leaf_weight, activation, 4.0)
    found = split_stakes(GivenRows(*arguments))
    assert found.min() > 0
    np.testing.assert_allclose(found, stakes_by_definition(*arguments), rtol=1e-10)


def test_very_deep_trees_are_judged_by_fewer_rows(monkeypatch):
    rng = np.random.default_rng(0)
    x, split_weight, leaf_weight = (rng.normal(size=shape) for shape in ((60, 3), (1, 7, 3), (1, 8, 2)))
    for n_floats, n_rows in ((1, 16), (16 * 20, 20), (16 * 1000, 60)):
        monkeypatch.setattr("softwood.model.importance._MAX_FLOATS", n_floats)
        found = split_stakes(GivenRows(x, split_weight, None, leaf_weight, "smooth_step", 1.0))
        expected = stakes_by_definition(x[:n_rows], split_weight, None, leaf_weight, "smooth_step", 1.0)
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_inputs_count_for_the_columns_they_are_made_from():
    """The second column's inputs come after those of dates and levels, whose numbers differ from the columns'."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    when = pd.date_range("2020-01-01", periods=300, freq="7h")
    table = pd.DataFrame({"when": when, "x": x, "colour": rng.choice(["red", "blue", "green"], 300)})
    model = softwood.TreeEnsembleClassifier(n_members=2, max_epochs=10, random_state=0).fit(table, x > 0)
    assert model.feature_importances_.argmax() == 1
    assert model.feature_importances_[1] > 0.5


def test_rows_for_importances_are_few_and_a_model_without_splits_has_none():
    X = np.random.default_rng(0).normal(size=(400, 3))
    fitted = softwood.TreeEnsembleRegressor(n_members=1, n_trees=2, depth=2, max_epochs=1, random_state=0)
    model = fitted.fit(X, X[:, 0]).model_
    base = model.importance_rows
    assert base.shape == (256, 3)
    for member in model.members:
        member.trees.leaf_weight[:] = 1.0
    np.testing.assert_array_equal(column_importances(model, base), np.zeros(3))


def test_importance_stakes_by_hand():
    """One split, x = -1, 0 or 1 with gamma 1: S = 0, 1/2, 1, leaves 3 apart: mean |S - 1/2| * 3 = 1."""
    x = np.array([[-1.0], [0.0], [1.0]])
    stakes = split_stakes(GivenRows(x, np.ones((1, 1, 1)), None, np.array([[[0.0], [3.0]]]), "smooth_step", 1.0))
    np.testing.assert_allclose(stakes, [[1.0]])
