"""Constraints: predictions rise or fall with a column, everywhere."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from softwood import Loss, TreeEnsembleClassifier, TreeEnsembleRegressor

SETTINGS = {"n_members": 2, "n_trees": 8, "max_epochs": 12, "learning_rate": 0.03, "random_state": 0}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 4))
X[:, 3] = RNG.integers(0, 5, 400)  # few whole numbers
X[::9, 1] = np.nan
# Against the constraints in part: up and down with the first column, and noise.
SIGNAL = np.sin(3 * X[:, 0]) + X[:, 0] + X[:, 2] * X[:, 0] - np.nan_to_num(X[:, 1]) + 0.5 * X[:, 3]
Y = SIGNAL + 0.5 * RNG.normal(size=400)


def steps(model, column, *, n_contexts=40):
    """Differences of raw scores along a grid of one column, beyond its range too, for other columns as in rows of X."""
    grid = np.concatenate([np.linspace(-6, 6, 301), np.sort(X[:, column][~np.isnan(X[:, column])])])
    grid.sort()
    found = []
    for context in X[:n_contexts]:
        rows = np.tile(context, (len(grid), 1))
        rows[:, column] = grid
        found.append(np.diff(model.model_.raw_scores(rows), axis=0))
    return np.array(found)


@pytest.mark.parametrize("depth", [1, 3, 4, 6])
def test_predictions_are_monotone_on_a_grid(depth):
    model = TreeEnsembleRegressor(depth=depth, monotonic_cst=[1, -1, 0, 1], **SETTINGS).fit(X, Y)
    rounding = 1e-6
    assert steps(model, 0).min() > -rounding
    assert steps(model, 1).max() < rounding
    assert steps(model, 3).min() > -rounding
    assert steps(model, 0).max() > 1e-3  # and not constant
    free = TreeEnsembleRegressor(depth=depth, **SETTINGS).fit(X, Y)
    assert steps(free, 0).min() < -1e-3
    if depth > 1:  # columns without a constraint go both ways
        assert steps(model, 2).min() < -1e-3
        assert steps(model, 2).max() > 1e-3


def test_every_tree_fulfils_what_the_proof_asks_for():
    model = TreeEnsembleRegressor(monotonic_cst=[1, -1, 0, 0], **SETTINGS).fit(X, Y)
    lookups = model.model_.preprocessor.lookups
    for member in model.model_.members:
        assert np.diff(member.trees.leaf_weight, axis=1).min() >= 0
        # The last entry is a missing cell.
        slopes = [np.diff(member.trees.tables_of(c, lookups)[1][:, :-1], axis=1) for c in range(len(lookups))]
        assert slopes[0].max() <= 0
        assert slopes[1].min() >= 0
        assert slopes[2].min() < 0 < slopes[2].max()


@pytest.mark.parametrize("loss", ["poisson", Loss("quantile", quantiles=(0.9, 0.2))])
def test_links_and_quantiles_keep_the_order(loss):
    names = list("abcd")
    frame = pd.DataFrame(X, columns=names)
    model = TreeEnsembleRegressor(loss=loss, monotonic_cst={"a": 1}, **SETTINGS).fit(frame, np.exp(Y / 4))
    grid = pd.DataFrame(np.tile(X[3], (50, 1)), columns=names).assign(a=np.linspace(-4, 4, 50))
    assert np.diff(model.predict(grid), axis=0).min() > -1e-6


def test_two_classes():
    model = TreeEnsembleClassifier(monotonic_cst=[1, 0, 0, 0], **SETTINGS).fit(X, Y > 0)
    assert steps(model, 0).min() > -1e-6
    assert model.score(X, Y > 0) > 0.7


def test_the_constraint_is_cheap_where_it_is_true():
    x = np.random.default_rng(1).uniform(size=(600, 3))
    y = x[:, 0] + np.exp(2 * x[:, 1]) / 4 + 0.3 * np.sin(6 * x[:, 2])
    y_noisy = y + 0.3 * np.random.default_rng(2).normal(size=600)
    settings = {"n_members": 2, "random_state": 0}
    free = TreeEnsembleRegressor(**settings).fit(x[:300], y_noisy[:300]).score(x[300:], y[300:])
    bound = TreeEnsembleRegressor(monotonic_cst=[1, 1, 0], **settings).fit(x[:300], y_noisy[:300])
    assert bound.score(x[300:], y[300:]) > free - 0.03


def test_results_are_the_same_for_any_number_of_threads():
    one, two = (
        TreeEnsembleRegressor(monotonic_cst=[1, -1, 0, 1], n_jobs=n, **SETTINGS).fit(X, Y).predict(X) for n in (1, 2)
    )
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("constraints", "settings", "message"),
    [
        ([1, 0], {}, "monotonic_cst must be -1, 0 or 1 for each of the 4 columns"),
        ([2, 0, 0, 0], {}, "monotonic_cst must be -1, 0 or 1 for each of the 4 columns"),
        ({"z": 1}, {}, r"monotonic_cst must name columns of the table; \['z'\] are not among"),
        ([1, 0, 0, 0], {"encoding": "standard"}, 'monotonic_cst needs encoding="auto"'),
        ([1, 0, 0, 0], {"categorical_features": [0]}, "monotonic_cst must be 0 for columns that are not numbers"),
    ],
)
def test_constraints_that_cannot_be_kept_are_refused(constraints, settings, message):
    with pytest.raises(ValueError, match=message):
        TreeEnsembleRegressor(monotonic_cst=constraints, **SETTINGS, **settings).fit(np.nan_to_num(X), Y)


def test_what_cannot_keep_constraints_refuses_them():
    with pytest.raises(ValueError, match="monotonic_cst needs one score per row"):
        TreeEnsembleClassifier(monotonic_cst=[1, 0, 0, 0], **SETTINGS).fit(X, np.digitize(Y, [-1, 1]))
    with pytest.raises(ValueError, match="monotonic_cst cannot be combined with partial_fit"):
        TreeEnsembleRegressor(monotonic_cst=[1, 0, 0, 0], **SETTINGS).partial_fit(X, Y)
    model = TreeEnsembleRegressor(monotonic_cst=[1, 0, 0, 0], warm_start=True, **SETTINGS).fit(X, Y)
    with pytest.raises(ValueError, match="monotonic_cst cannot be combined with warm_start"):
        model.fit(X, Y)


def test_compressed_models_keep_the_constraint():
    model = TreeEnsembleRegressor(monotonic_cst=[1, -1, 0, 1], **SETTINGS).fit(X, Y).compress(X, max_parameters=3000)
    assert steps(model, 0).min() > -1e-5
    assert steps(model, 1).max() < 1e-5
