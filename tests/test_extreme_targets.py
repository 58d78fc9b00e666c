"""Targets, weights and losses at the edge: the right result, or an error that says what to do."""

from __future__ import annotations

import numpy as np
import pytest

from softwood import Loss, TreeEnsembleClassifier, TreeEnsembleRegressor

SETTINGS = {"n_members": 1, "n_trees": 4, "max_epochs": 20, "random_state": 0}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 2))
Y = X[:, 0] + 0.1 * RNG.normal(size=80)
LOSSES = ["squared_error", "absolute_error", "huber", "quantile", "poisson", "gamma", "tweedie"]
POSITIVE = ("poisson", "gamma", "tweedie")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e299, 1e-299])
@pytest.mark.parametrize("loss", LOSSES)
def test_scale_of_targets_does_not_matter(loss, scale):
    y = np.exp(Y) if loss in POSITIVE else Y
    plain = TreeEnsembleRegressor(loss=loss, **SETTINGS).fit(X, y).predict(X)
    scaled = TreeEnsembleRegressor(loss=loss, **SETTINGS).fit(X, y * scale).predict(X)
    assert np.corrcoef(scaled / scale, y)[0, 1] > 0.5
    if loss not in POSITIVE:
        np.testing.assert_allclose(scaled / scale, plain, rtol=0, atol=0.1)  # the order of rows differs


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [5.0, -7e299, 3e-300, 5e-324, 0.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_constant_target_is_predicted(loss, value):
    value = abs(value) if loss in POSITIVE else value
    if loss == "gamma" and value == 0:
        return
    predicted = TreeEnsembleRegressor(loss=loss, **SETTINGS).fit(X, np.full(80, value)).predict(X)
    tolerance = 2e-3 if loss in POSITIVE else 1e-8
    np.testing.assert_allclose(predicted, value, rtol=tolerance, atol=1e-8 if value == 0 else 1e-306)


def test_targets_beyond_the_range_are_refused():
    with pytest.raises(ValueError, match=r"Targets must lie within plus or minus 1e\+300; got -1e\+301. Divide them"):
        TreeEnsembleRegressor(**SETTINGS).fit(X, np.where(Y > 0, 1.0, -1e301))


@pytest.mark.parametrize("quantiles", [(0.1, 1.5), (0.0,), (-1.0,), ()])
def test_quantiles_outside_of_the_open_interval_are_refused(quantiles):
    with pytest.raises(ValueError, match="quantiles must lie between 0 and 1; got"):
        TreeEnsembleRegressor(loss=Loss("quantile", quantiles=quantiles), **SETTINGS).fit(X, Y)


@pytest.mark.parametrize("quantiles", [0.5, "half", ("a", 0.5), None])
def test_quantiles_that_are_no_tuple_of_numbers_are_refused(quantiles):
    with pytest.raises(ValueError, match=r"quantiles must be a tuple of numbers, such as \(0.1, 0.9\); got"):
        TreeEnsembleRegressor(loss=Loss("quantile", quantiles=quantiles), **SETTINGS).fit(X, Y)


@pytest.mark.parametrize("weights", [{0: -1, 1: 1}, {0: np.nan, 1: 1}, {0: np.inf, 1: 1}])
def test_class_weights_must_not_be_negative(weights):
    with pytest.raises(ValueError, match="class_weight must hold finite numbers of at least 0; got"):
        TreeEnsembleClassifier(class_weight=weights, **SETTINGS).fit(X, Y > 0)


def test_some_class_needs_weight():
    with pytest.raises(ValueError, match="class_weight must leave at least one class a positive weight"):
        TreeEnsembleClassifier(class_weight={False: 0, True: 0}, **SETTINGS).fit(X, Y > 0)


def test_predict_row_takes_lists():
    predictor = TreeEnsembleRegressor(**SETTINGS).fit(X, Y).predictor()
    np.testing.assert_array_equal(predictor.predict_row(X[0].tolist()), predictor.predict_row(X[0]))
    with pytest.raises(TypeError, match="A row must be a one-dimensional array or a list of numbers; got NoneType"):
        predictor.predict_row(None)


def test_whole_numbers_are_quantities():
    rating = np.tile(np.arange(1.0, 6.0), 60)[:, None]
    model = TreeEnsembleRegressor(n_members=1, random_state=0).fit(rating, 10 * rating[:, 0])
    between, beyond = model.predict([[4.5], [6.0]])
    assert 43 < between < 47
    assert abs(beyond - 50) < 1


def test_pieces_may_have_values_beyond_those_of_the_first():
    model = TreeEnsembleRegressor(n_members=1, learning_rate=0.01, random_state=0)
    for _ in range(25):
        for months in (np.arange(1, 4), np.arange(4, 8), np.arange(8, 13)):
            month = np.repeat(months, 40)
            model.partial_fit(month[:, None], month * 2.0)
    predicted = model.predict(np.arange(1, 13)[:, None])
    assert np.diff(predicted).min() > 0.3
    assert predicted[-1] - predicted[0] > 12
