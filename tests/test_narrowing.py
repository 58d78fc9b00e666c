"""Narrowing of soft bands: rows reach few leaves, predictions hardly change, and fits stay reproducible."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from softwood import Loss, TreeEnsembleClassifier, TreeEnsembleRegressor, explain
from softwood.training import MemberData, Samples, TrainingConfig, fit_members, narrowing
from softwood.training.hyperparameters import resolve_auto
from softwood.training.rules import TableFacts

FAST = {"n_trees": 16, "depth": 4, "n_members": 2, "max_epochs": 40, "learning_rate": 0.008, "random_state": 0}
NARROW = {**FAST, "max_reach": 0.22}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(2600, 5)).astype(np.float32)
SIGNAL = X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2])
Y = SIGNAL + 0.7 * RNG.normal(size=len(X))
TRAIN, TEST = slice(2000), slice(2000, None)


def share_of_leaves(model):
    usage = explain.usage(model, X[TEST])
    n_leaves = [(traffic.shape[1] + 1) // 2 for traffic in usage.traffic]
    return np.mean([reached.mean() / n for reached, n in zip(usage.mean_reachable_leaves, n_leaves, strict=True)])


def test_rows_reach_few_leaves_and_predictions_are_as_good():
    wide = TreeEnsembleRegressor(**FAST, max_reach=1.0).fit(X[TRAIN], Y[TRAIN])
    narrow = TreeEnsembleRegressor(**NARROW).fit(X[TRAIN], Y[TRAIN])
    assert share_of_leaves(wide) > 0.5
    assert share_of_leaves(narrow) < 0.3
    assert narrow.score(X[TEST], Y[TEST]) > wide.score(X[TEST], Y[TEST]) - 0.01
    np.testing.assert_array_equal(narrow.oof_prediction_, wide.oof_prediction_)


def test_history_goes_on_while_bands_become_narrower():
    wide = pd.DataFrame(TreeEnsembleRegressor(**FAST, max_reach=1.0).fit(X[TRAIN], Y[TRAIN]).history_)
    model = TreeEnsembleRegressor(**NARROW).fit(X[TRAIN], Y[TRAIN])
    narrow = pd.DataFrame(model.history_)
    for member in range(2):
        before, after = (history[history["member"] == member].reset_index(drop=True) for history in (wide, narrow))
        n = len(before)
        columns = ["epoch", "train_loss", "validation_loss", "mean_reachable_leaves", "gamma"]
        pd.testing.assert_frame_equal(after[columns][:n], before[columns])
        later = after[n:]
        assert later["epoch"].tolist() == list(range(n, n + len(later)))
        assert later["gamma"].is_monotonic_decreasing
        assert later["gamma"].iloc[-1] < 0.7
        assert later["is_best"].tolist() == [False] * (len(later) - 1) + [True]
        assert later["validation_loss"].iloc[-1] < before["validation_loss"].min() * 1.02
        assert model.model_.members[member].trees.gamma == later["gamma"].iloc[-1]


def test_gamma_is_held_once_rows_reach_few_enough_leaves():
    history = pd.DataFrame(TreeEnsembleRegressor(**FAST, max_reach=0.5).fit(X[TRAIN], Y[TRAIN]).history_)
    held = 0
    for _, member in history.groupby("member"):
        later = member[member["gamma"] < 1]
        enough = later["mean_reachable_leaves"] <= 0.5 * 16
        first = enough.idxmax()
        assert enough.any()
        assert first < later.index[-1]
        assert set(later.loc[first:, "gamma"]) == {later.loc[first, "gamma"]}
        held += 1
    assert held == 2


@pytest.mark.parametrize(
    ("task", "n_rows", "parameters", "few"),
    [
        ("binary", 2000, {}, 0.22),
        ("multiclass", 1999, {}, 1.0),
        ("regression", 8000, {}, 0.22),
        ("regression", 7999, {}, 1.0),
        ("binary", 2000, {"gamma_end": 0.5}, 1.0),
        ("binary", 2000, {"activation": "logistic"}, 1.0),
        ("binary", 2000, {"activation": "smoother_step"}, 0.22),
        ("multiclass", 100, {"max_reach": 0.4}, 0.4),
    ],
)
def test_what_auto_chooses(task, n_rows, parameters, few):
    params = TreeEnsembleClassifier(**parameters).get_params()
    assert resolve_auto(params, TableFacts(task, n_rows, 5, 2))["max_reach"] == few


def test_members_stay_wide_where_narrowing_costs_accuracy(monkeypatch):
    wide = TreeEnsembleRegressor(**FAST, max_reach=1.0).fit(X[TRAIN], Y[TRAIN])
    monkeypatch.setattr(narrowing, "_MOST_RISE", -1.0)
    model = TreeEnsembleRegressor(**NARROW).fit(X[TRAIN], Y[TRAIN])
    np.testing.assert_array_equal(model.predict(X[TEST]), wide.predict(X[TEST]))
    assert model.history_["epoch"] == wide.history_["epoch"]


POSITIVE = np.exp(SIGNAL / 2)
CLASS = np.digitize(SIGNAL, [-0.7, 0.7])


def squared_error(predictions, targets, weight):
    error = predictions - targets
    return 2 * error * weight[:, None] / len(error), float(np.mean(weight[:, None] * error**2))


@pytest.mark.parametrize(
    ("estimator", "y", "parameters"),
    [
        (TreeEnsembleRegressor, Y, {"loss": "huber"}),
        (TreeEnsembleRegressor, Y, {"loss": Loss("quantile", quantiles=(0.2, 0.8))}),
        (TreeEnsembleRegressor, POSITIVE, {"loss": "poisson"}),
        (TreeEnsembleRegressor, Y, {"loss": squared_error}),
        (TreeEnsembleRegressor, np.c_[Y, -Y], {}),
        (TreeEnsembleRegressor, Y, {"encoding": "standard"}),
        (TreeEnsembleClassifier, CLASS, {}),
        (TreeEnsembleClassifier, CLASS, {"eval_metric": "accuracy"}),
        (TreeEnsembleClassifier, CLASS, {"loss": Loss("cross_entropy", n_classes=3, label_smoothing=0.1)}),
        (TreeEnsembleClassifier, CLASS > 1, {}),
        (TreeEnsembleClassifier, np.c_[CLASS > 1, CLASS < 1], {}),
    ],
)
def test_every_loss_can_be_narrowed(estimator, y, parameters, monkeypatch):
    monkeypatch.setattr(narrowing, "_MOST_RISE", 0.1)
    weight = np.where(X[:, 3] > 0, 2.0, 1.0)
    wide = estimator(**FAST, **parameters, max_reach=1.0).fit(X[TRAIN], y[TRAIN], weight[TRAIN])
    narrow = estimator(**NARROW, **parameters).fit(X[TRAIN], y[TRAIN], weight[TRAIN])
    n_before = len(wide.history_["epoch"])
    assert len(narrow.history_["epoch"]) > n_before
    assert share_of_leaves(narrow) < max(0.27, 0.75 * share_of_leaves(wide))
    predicted = [
        np.asarray(model.predict(X[TEST]) if estimator is TreeEnsembleRegressor else model.predict_proba(X[TEST]))
        for model in (wide, narrow)
    ]
    assert np.corrcoef(predicted[0].ravel(), predicted[1].ravel())[0, 1] > 0.98
    best = pd.DataFrame(narrow.history_).query("is_best")
    wide_best = pd.DataFrame(wide.history_).query("is_best")
    np.testing.assert_allclose(best["validation_loss"], wide_best["validation_loss"], rtol=0.05, atol=0.01)
    assert best["validation_metric"].isna().tolist() == wide_best["validation_metric"].isna().tolist()


def test_offsets_of_rows_stay_offsets():
    exposure = np.exp(RNG.normal(size=len(X)))
    counts = RNG.poisson(POSITIVE * exposure)
    model = TreeEnsembleRegressor(**NARROW, loss="poisson").fit(X[TRAIN], counts[TRAIN], offset=np.log(exposure[TRAIN]))
    assert np.min(model.history_["gamma"]) < 1
    assert np.corrcoef(model.predict(X[TEST]), POSITIVE[TEST])[0, 1] > 0.85
    np.testing.assert_allclose(
        model.predict(X[TEST], offset=np.log(exposure[TEST])), model.predict(X[TEST]) * exposure[TEST], rtol=1e-6
    )


def test_predictions_still_rise_with_monotone_columns():
    y = X[:, 0] ** 3 / 5 + np.cos(X[:, 1]) + 0.3 * RNG.normal(size=len(X))
    model = TreeEnsembleRegressor(**NARROW, monotonic_cst=[1, 0, 0, 0, 0]).fit(X[TRAIN], y[TRAIN])
    assert np.min(model.history_["gamma"]) < 1
    grid = np.repeat(X[TEST][:50, None], 60, axis=1)
    grid[:, :, 0] = np.linspace(-4, 4, 60)
    predicted = model.predict(grid.reshape(-1, 5)).reshape(50, 60)
    assert (np.diff(predicted, axis=1) >= -1e-12).all()


def test_a_warm_start_goes_on_from_the_narrowed_trees():
    model = TreeEnsembleRegressor(**NARROW, warm_start=True).fit(X[TRAIN], Y[TRAIN])
    before = model.predict(X[TEST])
    assert np.min(model.history_["gamma"]) < 0.5
    model.set_params(learning_rate=1e-7, max_epochs=1, max_reach=1.0).fit(X[TRAIN], Y[TRAIN])
    np.testing.assert_allclose(model.predict(X[TEST]), before, atol=1e-3)


class Failure(Exception):
    """Ends a fit in the middle."""


@pytest.mark.parametrize("epochs_of_narrowing", [1, 8])
def test_a_resumed_fit_is_the_same_to_the_bit(tmp_path, epochs_of_narrowing):
    parameters = {**FAST, "n_members": 1, "max_epochs": 6, "max_reach": 0.5}
    whole = TreeEnsembleRegressor(**parameters).fit(X[TRAIN], Y[TRAIN])
    n_left = epochs_of_narrowing

    def fail_later(summary):
        nonlocal n_left
        n_left -= summary.gamma < 1
        if n_left == 0:
            raise Failure

    options = {"checkpoint": tmp_path / "fit", "checkpoint_every": 0}
    with pytest.raises(Failure):
        TreeEnsembleRegressor(**parameters, callbacks=[fail_later]).fit(X[TRAIN], Y[TRAIN], **options)
    resumed = TreeEnsembleRegressor(**parameters).fit(X[TRAIN], Y[TRAIN], **options, resume=True)
    np.testing.assert_array_equal(resumed.predict(X[TEST]), whole.predict(X[TEST]))
    assert resumed.history_["gamma"] == whole.history_["gamma"]


def test_members_stay_wide_if_narrowing_diverges(monkeypatch):
    wide = TreeEnsembleRegressor(**FAST, max_reach=1.0).fit(X[TRAIN], Y[TRAIN])
    narrowing_config = narrowing.narrowing_config
    monkeypatch.setattr(
        narrowing, "narrowing_config", lambda *given: replace(narrowing_config(*given), learning_rate=1e30)
    )
    model = TreeEnsembleRegressor(**NARROW).fit(X[TRAIN], Y[TRAIN])
    np.testing.assert_array_equal(model.predict(X[TEST]), wide.predict(X[TEST]))


def test_ctrl_c_while_bands_are_narrowed_is_passed_on_and_leaves_the_trained_trees():
    def interrupt(summary):
        if summary.gamma < 1:
            raise KeyboardInterrupt

    model = TreeEnsembleRegressor(**NARROW, callbacks=[interrupt])
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[TRAIN], Y[TRAIN])
    wide = TreeEnsembleRegressor(**FAST, max_reach=1.0).fit(X[TRAIN], Y[TRAIN])
    np.testing.assert_array_equal(model.predict(X[TEST]), wide.predict(X[TEST]))


def test_a_callback_that_stops_a_fit_stops_narrowing():
    stopped = TreeEnsembleRegressor(**NARROW, callbacks=[lambda summary: summary.gamma < 1]).fit(X[TRAIN], Y[TRAIN])
    wide = TreeEnsembleRegressor(**FAST, max_reach=1.0).fit(X[TRAIN], Y[TRAIN])
    np.testing.assert_array_equal(stopped.predict(X[TEST]), wide.predict(X[TEST]))


def test_long_tables_are_narrowed_on_some_of_their_rows(monkeypatch):
    monkeypatch.setattr(narrowing, "_MOST_ROWS", 500)
    config = TrainingConfig(Loss("squared_error"), n_trees=4, depth=2, max_epochs=3)
    member = MemberData(Samples(X, Y, rows=np.arange(2000)), Samples(X, Y, rows=np.arange(2000, 2600)))
    (trained,) = fit_members(config, [member])
    (lesson,) = narrowing.narrowing_members(config, [member], [trained])
    assert lesson.train.x.shape == (500, 5)
    assert sorted(lesson.train.rows) == list(range(500))
    assert {row.tobytes() for row in lesson.train.x} & {row.tobytes() for row in X[2000:]}  # held-out rows, too


def test_long_files_are_not_narrowed(long, tmp_path):
    pd.DataFrame(X, columns=list("abcde")).assign(y=Y).to_parquet(tmp_path / "table.parquet")
    model = TreeEnsembleRegressor(**{**FAST, "max_epochs": 3}).fit(str(tmp_path / "table.parquet"), "y")
    assert set(model.history_["gamma"]) == {1.0}
    assert model.chosen_parameters_["max_reach"] == 1.0
    asked = TreeEnsembleRegressor(**FAST | {"max_epochs": 3}, max_reach=1).fit(str(tmp_path / "table.parquet"), "y")
    assert "max_reach" not in asked.chosen_parameters_
    with pytest.raises(ValueError, match=r"max_reach must be 1 or 'auto' for a table in files or shards; got 0\.3"):
        TreeEnsembleRegressor(**FAST, max_reach=0.3).fit(str(tmp_path / "table.parquet"), "y")
