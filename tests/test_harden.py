"""Hard trees: one path a tree, and an honest account of what that costs."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

import softwood
from fitted_models import fitted, leaf_probabilities, numbers, rows
from softwood.model.harden import HARD_GAMMA, HardeningCost


def leaves_reached(estimator, X):
    counts = [
        np.count_nonzero(leaf_probabilities(member, tree), axis=1)
        for member in estimator.model_.rows(X)
        for tree in range(member.n_trees)
    ]
    return np.stack(counts, axis=1)


@pytest.mark.parametrize("name", ["binary", "logistic", "smoother", "batch_norm", "targets"])
def test_one_path_per_tree(name):
    X = rows(name, 300)
    assert leaves_reached(fitted(name), X).mean() > 1.05
    assert np.all(leaves_reached(fitted(name).harden(), X) == 1)


def test_hard_predictions_are_means_of_leaves():
    """With one member, scores are sums of one leaf a tree."""
    X = numbers(50)
    hard = softwood.TreeEnsembleRegressor(n_members=1, n_trees=1, depth=3, max_epochs=3, random_state=0)
    hard = hard.fit(X, X[:, 0]).harden()
    trees = hard.model_.members[0].trees
    possible = trees.leaf_weight[0, :, 0].astype(np.float64) + trees.offset[0]
    distance = np.abs(hard.model_.raw_scores(X) - possible).min(axis=1)
    assert distance.max() < 1e-12


def test_the_soft_model_is_left_alone():
    soft = fitted("binary")
    X = rows("binary", 50)
    before = soft.predict_proba(X)
    hard = soft.harden()
    assert hard.hardening_ is None
    assert not np.array_equal(hard.predict_proba(X), before)
    np.testing.assert_array_equal(soft.predict_proba(X), before)
    assert soft.model_.members[0].trees.gamma != HARD_GAMMA


def test_cost_is_measured_on_the_given_rows():
    X, y = load_breast_cancer(return_X_y=True)
    soft = softwood.TreeEnsembleClassifier(n_members=1, n_trees=10, max_epochs=20, random_state=0).fit(X[:400], y[:400])
    hard = soft.harden(X[400:], y[400:])
    expected = HardeningCost(
        169,
        float(np.mean(soft.predict(X[400:]) == hard.predict(X[400:]))),
        "accuracy",
        soft.score(X[400:], y[400:]),
        hard.score(X[400:], y[400:]),
    )
    assert hard.hardening_ == expected
    assert expected.unchanged_share > 0.8
    assert str(expected).endswith(f"accuracy {expected.before:.4f} before, {expected.after:.4f} after")


def test_cost_of_a_regression():
    X = numbers(400, seed=7)
    y = np.floor(np.exp(X[:, 0].clip(-2, 2)))
    cost = fitted("regression").harden(X, y).hardening_
    assert cost.metric == "r2"
    assert 0 <= cost.unchanged_share < 1
    narrow = fitted("regression").harden(X, y, gamma=0.999).hardening_
    assert narrow.unchanged_share > cost.unchanged_share


def test_save_and_load(tmp_path):
    hard = fitted("binary").harden()
    hard.save(tmp_path / "hard.safetensors")
    X = rows("binary", 100)
    np.testing.assert_array_equal(softwood.load(tmp_path / "hard.safetensors").predict_proba(X), hard.predict_proba(X))


def test_bad_arguments():
    with pytest.raises(ValueError, match="harden needs both X and y"):
        fitted("binary").harden(numbers(5))
    with pytest.raises(ValueError, match="gamma must be at least 1e-20, or None for hard trees; got 0"):
        fitted("binary").harden(gamma=0)
