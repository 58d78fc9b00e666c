"""`compress`: a small taught ensemble in place of a fitted model, as estimator and as command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score

import softwood
from cli_calls import ask
from softwood.model.parts import Head
from softwood.tabular.distillation.lesson import known_share, made_up_rows
from softwood.tabular.distillation.teaching import refit_leaves
from softwood.training import Loss

X_CANCER, Y_CANCER = load_breast_cancer(return_X_y=True)


@pytest.fixture(scope="module")
def large():
    return softwood.TreeEnsembleClassifier(n_members=3, max_epochs=60, random_state=0).fit(
        X_CANCER[:400], Y_CANCER[:400]
    )


@pytest.fixture(scope="module")
def small(large):
    return large.compress(X_CANCER[:400], Y_CANCER[:400])


def test_a_compressed_model_predicts_new_rows_almost_as_before(large, small):
    assert np.mean(large.predict(X_CANCER[400:]) == small.predict(X_CANCER[400:])) > 0.97
    assert small.score(X_CANCER[400:], Y_CANCER[400:]) > large.score(X_CANCER[400:], Y_CANCER[400:]) - 0.02
    old, new = large.decision_function(X_CANCER[400:]), small.decision_function(X_CANCER[400:])
    assert r2_score(np.clip(old, -8, 8), new) > 0.95


def test_little_knowledge_is_not_lost_with_the_noise():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 6))
    y = rng.random(20_000) < 1 / (1 + np.exp(-0.4 * X[:, 0] * X[:, 1] - 0.3 * np.sin(2 * X[:, 2])))
    model = softwood.TreeEnsembleClassifier(n_members=1, random_state=0).fit(X, y)
    old, new = model.decision_function(X), model.compress(X).decision_function(X)
    assert r2_score(old, new) > 0.98


def test_what_a_model_knows_is_the_entropy_that_it_takes_away():
    head = Head("binary", Loss("binary_cross_entropy"), classes=np.array([0, 1]))
    quarters = np.log([[3.0], [1 / 3]])  # probabilities of 3/4 and 1/4, the mean is 1/2
    entropy = -0.75 * np.log(0.75) - 0.25 * np.log(0.25)
    assert known_share(head, quarters) == pytest.approx(np.log(2) / entropy - 1)
    assert known_share(head, quarters[[0, 0]]) == pytest.approx(0)
    labels = replace(head, task="multilabel", classes=np.array(["a", "b"]))
    assert known_share(labels, np.hstack([quarters, -quarters])) == pytest.approx(np.log(2) / entropy - 1)


def test_what_it_did_is_told(large, small):
    found = small.compression_
    assert found.before.n_trees == 3 * 64
    assert found.after.n_trees == len(small.model_.members[0].trees.leaf_weight)
    assert found.after.n_parameters < found.before.n_parameters / 15
    assert found.after.n_bytes < found.before.n_bytes / 5
    assert found.after.leaves_reached < 2 < found.before.leaves_reached
    assert found.metric == "accuracy"
    assert 0.9 < found.agreement <= 1
    assert found.tried[-1]["expected_loss"] == found.expected_loss
    assert "times fewer" in str(found)
    assert not hasattr(large, "compression_")
    assert np.isnan(large.compress(X_CANCER[:100], max_parameters=5000).compression_.after.score)


def test_the_result_is_an_ordinary_fitted_estimator(small, tmp_path):
    small.save(tmp_path / "small.safetensors")
    loaded = softwood.load(tmp_path / "small.safetensors")
    np.testing.assert_array_equal(loaded.predict_proba(X_CANCER), small.predict_proba(X_CANCER))
    assert small.feature_importances_.sum() == pytest.approx(1)
    assert set(small.history_) == set(loaded.history_)


def test_the_same_seed_gives_the_same_model_for_any_number_of_threads(large):
    first, second = (large.__class__(**{**large.get_params(), "n_jobs": n_jobs}) for n_jobs in (1, 2))
    scores = []
    for estimator in (first, second):
        estimator.__dict__.update({k: v for k, v in large.__dict__.items() if k.endswith("_")})
        scores.append(estimator.compress(X_CANCER[:100], max_parameters=5000).decision_function(X_CANCER))
    np.testing.assert_array_equal(*scores)


def test_limits(large):
    found = [large.compress(X_CANCER[:400], max_parameters=n).compression_ for n in (40, 300, 3000)]
    assert [size.after.n_parameters <= n for size, n in zip(found, (40, 300, 3000), strict=True)] == [True] * 3
    assert found[1].after.n_parameters > 150
    assert found[2].after.n_parameters > 1000
    assert found[2].expected_loss < found[1].expected_loss < found[0].expected_loss
    assert found[1].tried[0]["n_parameters"] > found[1].tried[-1]["n_parameters"]  # cut down while it learned
    loose = large.compress(X_CANCER[:400], max_loss=0.5).compression_
    tight = large.compress(X_CANCER[:400], max_loss=0.02).compression_
    assert loose.expected_loss <= 0.5
    assert tight.expected_loss < loose.expected_loss
    assert loose.after.n_parameters < 500 < tight.after.n_parameters
    with pytest.raises(ValueError, match=r"max_parameters must leave room for one tree, which takes 16 here; got 10"):
        large.compress(X_CANCER[:400], max_parameters=10)
    with pytest.raises(ValueError, match=r"max_loss must be a number above 0, or None; got -1"):
        large.compress(X_CANCER[:400], max_loss=-1)
    with pytest.raises(ValueError, match=r"compress needs at least 10 rows of X; got 3"):
        large.compress(X_CANCER[:3])
    with pytest.raises(ValueError, match=r"X and y must have the same number of rows; got 20 and 3"):
        large.compress(X_CANCER[:20], Y_CANCER[:3])
    with pytest.raises(NotFittedError):
        softwood.TreeEnsembleClassifier().compress(X_CANCER)


def test_compact_fits_keep_the_taught_ensemble(tmp_path):
    settings = {"n_members": 2, "max_epochs": 40, "random_state": 0}
    X, y = X_CANCER[:300], np.where(Y_CANCER[:300] == 1, "mild", "bad")
    large = softwood.TreeEnsembleClassifier(compact=False, **settings).fit(X, y)
    small = softwood.TreeEnsembleClassifier(compact=True, **settings).fit(X, y)
    assert len(small.model_.members) == 1
    assert small.compression_.before.n_parameters == large.n_parameters_.stored
    assert small.compression_.after.n_parameters == small.n_parameters_.stored < large.n_parameters_.stored / 4
    assert small.compression_.after.score > 0.9
    assert small.history_["validation_loss"] == large.history_["validation_loss"]
    np.testing.assert_array_equal(small.best_epoch_, large.best_epoch_)
    np.testing.assert_array_equal(small.oof_prediction_, large.oof_prediction_)
    np.testing.assert_array_equal(small.decision_function(X), large.compress(X, y).decision_function(X))
    assert np.mean(small.predict(X_CANCER[300:]) == large.predict(X_CANCER[300:])) > 0.95
    small.save(tmp_path / "small.safetensors")
    assert softwood.load(tmp_path / "small.safetensors").get_params()["compact"] is True
    small.set_params(compact=False).fit(X, y)
    assert not hasattr(small, "compression_")
    assert len(small.model_.members) == 2


def test_compact_fits_of_awkward_tables():
    tiny = softwood.TreeEnsembleRegressor(compact=True, n_members=2, max_epochs=3, random_state=0)
    assert len(tiny.fit(np.arange(6.0)[:, None], np.arange(6.0)).model_.members) == 2
    constant = softwood.TreeEnsembleRegressor(compact=True, n_members=2, max_epochs=3, random_state=0)
    assert constant.fit(np.ones((40, 2)), np.arange(40.0)).predict(np.ones((1, 2))) == pytest.approx(19.5, abs=5)
    X, y = load_diabetes(return_X_y=True)
    weight = np.ones(len(y))
    weight[::2] = 0
    going_on = softwood.TreeEnsembleRegressor(compact=True, n_members=2, max_epochs=20, random_state=0, max_columns=5)
    going_on.fit(X, y, sample_weight=weight)
    assert len(going_on.model_.members) == 1
    assert len(going_on.selected_columns_) == 5
    before = going_on.score(X, y)
    going_on.partial_fit(X, y)
    assert going_on.score(X, y) > before - 0.1
    again = softwood.TreeEnsembleRegressor(compact=True, n_members=1, max_epochs=20, random_state=0, warm_start=True)
    first = again.fit(X, y).score(X, y)
    assert again.fit(X, y).score(X, y) > first - 0.05
    assert not hasattr(again, "compression_")


def test_several_targets_categories_and_missing_cells():
    X, y = load_diabetes(return_X_y=True)
    frame = pd.DataFrame(X[:, :4], columns=list("abcd"))
    frame["word"] = np.where(X[:, 4] > 0, "high", "low")
    frame.loc[::7, "a"] = np.nan
    model = softwood.TreeEnsembleRegressor(n_members=2, max_epochs=20, random_state=0).fit(frame, np.c_[y, -y])
    taught = model.compress(frame)
    old, new = model.predict(frame), taught.predict(frame)
    assert new.shape == (len(y), 2)
    assert r2_score(old, new) > 0.97
    assert taught.compression_.metric == "r2"


@pytest.mark.parametrize("n_targets", [1, 2])
def test_several_quantiles_are_judged_by_the_median(n_targets):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    y = (X[:, :n_targets] + 0.1 * rng.normal(size=(120, n_targets))).squeeze()
    loss = softwood.Loss("quantile", quantiles=(0.9, 0.5, 0.1))
    options = {"n_members": 1, "n_trees": 8, "max_epochs": 30, "learning_rate": 0.02, "random_state": 0}
    model = softwood.TreeEnsembleRegressor(loss=loss, compact=True, **options).fit(X, y)
    assert model.predict(X).shape == (*y.shape, 3)
    assert model.score(X, y) == pytest.approx(r2_score(y, model.predict(X)[..., 1]))
    assert 0.3 < model.compression_.after.score <= 1
    hard = model.harden(X, y)
    assert hard.hardening_.before == model.score(X, y)


def test_leaves_are_refitted_by_least_squares(small):
    model = small.model_
    base = model.preprocessor.read(model.program.read(X_CANCER))
    trees, lookups = model.members[0].trees, model.preprocessor.lookups
    target = trees.offset + np.random.default_rng(0).normal(size=(len(base), 1)) / 5 + base[:, :1] / 10

    def error(of):
        member = replace(model.members[0], trees=of)
        scores = replace(model, members=[member]).predictor().base_scores(base)
        return float(np.mean((scores - target) ** 2))

    best = refit_leaves(trees, lookups, base, target)
    assert error(best) < error(trees) / 2
    np.testing.assert_array_equal(best.leaf_weight[trees.leaf_weight == 0], 0)
    for sign in (-1, 1):  # any other leaves are worse
        moved = best.leaf_weight + sign * 0.02 * (trees.leaf_weight != 0)
        assert error(replace(best, leaf_weight=moved.astype(np.float32))) > error(best)


def test_monotone_models_stay_monotone():
    X, y = load_diabetes(return_X_y=True)
    cst = np.isin(np.arange(X.shape[1]), (2, 8)).astype(int)
    model = softwood.TreeEnsembleRegressor(n_members=2, max_epochs=20, random_state=0, monotonic_cst=cst)
    taught = model.fit(X, y).compress(X)
    assert r2_score(model.predict(X), taught.predict(X)) > 0.9
    for column in (2, 8):
        steps = np.repeat(X[:40, None], 30, axis=1)
        steps[:, :, column] = np.linspace(X[:, column].min(), X[:, column].max(), 30)
        predicted = taught.predict(steps.reshape(-1, X.shape[1])).reshape(40, 30)
        assert (np.diff(predicted, axis=1) >= -1e-4).all()


def test_made_up_rows_mix_rows_column_by_column():
    frame = pd.DataFrame({"n": np.arange(50.0), "c": ["a", "b"] * 25, "d": pd.date_range("2020", periods=50)})
    model = softwood.TreeEnsembleRegressor(n_members=1, n_trees=2, max_epochs=1).fit(frame, np.arange(50.0)).model_
    base = model.preprocessor.read(model.program.read(frame))
    rows = made_up_rows(model.preprocessor, base, 500, np.random.default_rng(0))
    assert rows.shape == (500, base.shape[1])
    for column in range(base.shape[1]):
        assert np.isin(rows[:, column], base[:, column]).all()
    known = {row.tobytes() for row in base}
    assert 0.3 < np.mean([row.tobytes() not in known for row in rows]) < 0.9
    of_date = [j for j, column in enumerate(model.preprocessor.base_columns()) if column.column == 2]
    dates = {row[of_date].tobytes() for row in base}  # parts of a date stay together
    assert all(row[of_date].tobytes() in dates for row in rows)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(X_CANCER[:300, :6], columns=list("abcdef"))
    frame["kind"] = np.where(Y_CANCER[:300] == 1, "mild", "bad")
    frame.to_csv("t.csv", index=False)
    train = ["train", "t.csv", "-t", "kind", "-o", "m.safetensors", "--n-members", "2", "--max-epochs", "20"]
    assert ask(capsys, *train, "--seed", "0")[0] == 0
    code, out, _ = ask(capsys, "compress", "m.safetensors", "t.csv", "-o", "s.safetensors", "--json", "--plot", "s.svg")
    assert code == 0
    found = json.loads(out)
    assert found["after"]["n_bytes"] < found["before"]["n_bytes"]
    assert found["after"]["score"] > 0.8
    assert "<svg" in (tmp_path / "s.svg").read_text()
    assert softwood.load("s.safetensors").predict(frame[list("abcdef")]).shape == (300,)
    assert ask(capsys, "compress", "m.safetensors", "t.csv", "-o", "m.safetensors")[0] != 0
    frame.drop(columns="kind").to_csv("u.csv", index=False)  # without the target, nothing is scored
    code, out, _ = ask(capsys, "compress", "m.safetensors", "u.csv", "-o", "s.safetensors", "--max-parameters", "5000")
    assert code == 0
    assert "accuracy" not in out


@pytest.mark.parametrize("moment", ["start", "middle", "writing"])
def test_a_kill_leaves_the_old_file_or_the_new_one(moment, large, small, tmp_path):
    large.save(tmp_path / "m.safetensors")
    small.save(tmp_path / "s.safetensors")
    old = (tmp_path / "s.safetensors").read_bytes()
    pd.DataFrame(X_CANCER[:300]).to_csv(tmp_path / "t.csv", index=False)
    command = [sys.executable, "-m", "softwood", "compress", "m.safetensors", "t.csv", "-o", "s.safetensors"]
    before = set(os.listdir(tmp_path))
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        begin = time.monotonic()
        while process.poll() is None:
            is_due = {"start": True, "middle": time.monotonic() > begin + 1.5, "writing": False}[moment]
            if is_due or set(os.listdir(tmp_path)) != before:  # a temporary file beside the one to be written
                process.send_signal(signal.SIGKILL)
                break
    found = (tmp_path / "s.safetensors").read_bytes()
    assert found == old or moment == "writing"
    assert softwood.load(tmp_path / "s.safetensors").predict(X_CANCER[:5]).shape == (5,)
