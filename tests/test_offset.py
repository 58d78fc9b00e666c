"""Offsets: a known part of each row's prediction."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit

from softwood import Loss, TreeEnsembleClassifier, TreeEnsembleRegressor

SETTINGS = {"n_members": 1, "n_trees": 8, "max_epochs": 40, "learning_rate": 0.02, "random_state": 0}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 2))
EXPOSURE = RNG.uniform(0.2, 20, 400)


@pytest.mark.parametrize("encoding", ["auto", "standard"])
def test_exposure_of_counts(encoding):
    counts = RNG.poisson(EXPOSURE * np.exp(X[:, 0] / 2))
    model = TreeEnsembleRegressor(loss="poisson", encoding=encoding, **SETTINGS).fit(X, counts, offset=np.log(EXPOSURE))
    rates = model.predict(X)
    assert np.corrcoef(np.log(rates), X[:, 0])[0, 1] > 0.95
    np.testing.assert_allclose(model.predict(X, offset=np.log(EXPOSURE)), rates * EXPOSURE, rtol=1e-9)


@pytest.mark.parametrize("loss", ["squared_error", "quantile", "gamma", "tweedie"])
def test_an_offset_that_says_all_leaves_nothing_to_learn(loss):
    known = np.exp(X[:, 1])
    logarithmic = loss in ("gamma", "tweedie")
    offset = np.log(known) if logarithmic else known
    loss = Loss("quantile", quantiles=(0.5, 0.6)) if loss == "quantile" else loss
    y = 3 * known if logarithmic else known
    model = TreeEnsembleRegressor(loss=loss, **SETTINGS | {"max_epochs": 3}).fit(X, y, offset=offset)
    predicted = model.predict(X, offset=offset).reshape(400, -1)[:, 0]
    np.testing.assert_allclose(predicted, y, rtol=0.05, atol=1e-6)
    assert model.predict(X).std() < 0.1


def test_log_odds_of_classes():
    prior = RNG.uniform(-3, 3, 400)
    y = RNG.random(400) < expit(prior + X[:, 0])
    model = TreeEnsembleClassifier(**SETTINGS).fit(X, y, offset=prior)
    assert abs(np.corrcoef(model.decision_function(X), prior)[0, 1]) < 0.15
    probability = model.predict_proba(X, offset=prior)[:, 1]
    np.testing.assert_allclose(logit(probability), model.decision_function(X) + prior, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(model.predict(X, offset=prior), probability > 0.5)


def test_the_start_is_the_best_constant_beside_the_offset():
    offset = RNG.normal(size=(400, 1))
    for loss, y in (("binary_cross_entropy", X[:, 0] > 0), ("poisson", np.exp(X[:, 0])), ("gamma", np.exp(X[:, 0])),
                    ("tweedie", np.exp(X[:, 0])), ("squared_error", X[:, 0]), ("absolute_error", X[:, 0])):  # fmt: skip
        loss = Loss(loss)
        constant = loss.best_constant_beside(offset, y)
        best = loss.value(offset + constant, y)
        assert all(loss.value(offset + constant + step, y) > best - 1e-9 for step in (-0.05, 0.05)), loss
    three, offsets = RNG.integers(0, 3, 400), RNG.normal(size=(400, 3))
    loss = Loss("cross_entropy", n_classes=3)
    constant = loss.best_constant_beside(offsets, three)
    best = loss.value(offsets + constant, three)
    assert all(loss.value(offsets + constant + step, three) > best for step in 0.05 * np.eye(3))


def test_several_classes_and_evaluation_sets():
    offset, y = RNG.normal(size=(400, 3)), np.digitize(X[:, 0], [-0.5, 0.5])
    settings = SETTINGS | {"max_epochs": 3}
    model = TreeEnsembleClassifier(**settings).fit(X, y, offset=offset, eval_set=(X, y, None, offset))
    expected = model.decision_function(X) + offset
    np.testing.assert_array_equal(model.predict(X, offset=offset), expected.argmax(axis=1))
    log_p = model.predict_log_proba(X, offset=offset)
    assert model.history_["validation_loss"][model.best_epoch_[0]] == pytest.approx(
        -log_p[np.arange(400), y].mean(),
        rel=1e-3,  # the fitted trees' tables are rounded
    )
    with pytest.raises(ValueError, match="Rows of an eval_set must have an offset if those of X have one"):
        TreeEnsembleClassifier(**settings).fit(X, y, offset=offset, eval_set=(X, y))


@pytest.mark.parametrize("offset", [np.zeros(399), np.zeros((400, 2)), [["a"]] * 400, np.full(400, np.nan)])
def test_offsets_that_do_not_fit_are_refused(offset):
    with pytest.raises(ValueError, match=r"offset|could not convert"):
        TreeEnsembleRegressor(**SETTINGS).fit(X, X[:, 0], offset=offset)


def test_rows_that_differ_in_their_offset_only_are_two_rows():
    twice = np.repeat(X, 2, axis=0)
    offset, y = np.tile([0.0, 2.0], 400), np.zeros(800)
    y[1::2] = 0.0
    settings = SETTINGS | {"max_epochs": 2, "validation_fraction": None}
    model = TreeEnsembleRegressor(**settings).fit(twice, y, offset=offset)
    assert model.predict(X).mean() == pytest.approx(-1, abs=0.1)
