"""Labels of which a row may have several: y with a column of 0 and 1 for each."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.datasets import make_multilabel_classification
from sklearn.metrics import get_scorer, log_loss
from sklearn.model_selection import cross_val_score
from sklearn.multioutput import MultiOutputClassifier

import softwood
from cli_calls import ask, complaint
from fitted_models import SMALL
from softwood import TreeEnsembleClassifier
from softwood.explain import column_contributions, decision_path, usage
from softwood.training.losses import Loss

X, Y = make_multilabel_classification(400, 12, n_classes=4, random_state=0)
SETTINGS = {"n_members": 2, "n_trees": 8, "max_epochs": 30, "learning_rate": 0.02, "random_state": 0}
NAMES = ["sport", "news", "=x", "arts"]


@pytest.fixture(scope="module")
def model():
    return TreeEnsembleClassifier(**SETTINGS).fit(X[:300], pd.DataFrame(Y[:300], columns=NAMES))


def test_each_label_is_learned_as_well_as_alone(model):
    alone = MultiOutputClassifier(TreeEnsembleClassifier(**SETTINGS)).fit(X[:300], Y[:300])
    expected = np.column_stack([p[:, 1] for p in alone.predict_proba(X[300:])])
    found = model.predict_proba(X[300:])
    for k in range(4):
        constant, best = log_loss(Y[300:, k], np.full(100, Y[:, k].mean())), log_loss(Y[300:, k], expected[:, k])
        assert log_loss(Y[300:, k], found[:, k]) < 1.15 * best < 0.9 * constant


def test_shapes_and_meanings(model):
    probability, scores = model.predict_proba(X), model.decision_function(X)
    assert probability.shape == scores.shape == (400, 4)
    np.testing.assert_allclose(probability, 1 / (1 + np.exp(-scores)), rtol=1e-12)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(probability), rtol=1e-9)
    np.testing.assert_array_equal(model.predict(X), (probability > 0.5).astype(int))
    assert model.predict(X).dtype == np.int64
    assert model.label_names_.tolist() == NAMES
    assert [c.tolist() for c in model.classes_] == [[0, 1]] * 4
    assert model.oof_prediction_.shape == (300, 4)
    assert model.score(X, Y) == np.mean((model.predict(X) == Y).all(axis=1))
    predictor = model.predictor()
    np.testing.assert_array_equal(predictor.predict(X[7]), model.predict(X[7:8])[0])
    np.testing.assert_array_equal(predictor.predict_proba(X[7]), probability[7])


def test_the_loss_is_the_mean_of_binary_cross_entropies():
    model = TreeEnsembleClassifier(**SETTINGS | {"n_members": 1}).fit(X[:300], Y[:300], eval_set=(X[300:], Y[300:]))
    expected = Loss("binary_cross_entropy").value(model.decision_function(X[300:]), Y[300:])
    assert model.best_score_ == pytest.approx(expected, rel=1e-3)  # fitted tables are rounded
    by_label = [log_loss(Y[300:, k], model.predict_proba(X[300:])[:, k]) for k in range(4)]
    assert expected == pytest.approx(np.mean(by_label), rel=1e-9)


@pytest.mark.parametrize("form", [list, pd.DataFrame, sparse.csr_matrix, lambda y: y.astype(bool), np.float32])
def test_every_container_of_labels_gives_the_same_model(form):
    expected = TreeEnsembleClassifier(**SMALL).fit(X, Y).decision_function(X)
    y = form(Y.tolist()) if form is list else form(Y)
    np.testing.assert_array_equal(TreeEnsembleClassifier(**SMALL).fit(X, y).decision_function(X), expected)


@pytest.mark.parametrize("metric", ["roc_auc", "f1_macro", "accuracy", "average_precision"])
@pytest.mark.parametrize("n_labels", [2, 4])
def test_metrics_of_scikit_learn(metric, n_labels):
    y = Y[:, :n_labels]
    model = TreeEnsembleClassifier(**SMALL, eval_metric=metric).fit(X[:300], y[:300], eval_set=(X[300:], y[300:]))
    assert model.best_score_ == pytest.approx(get_scorer(metric)(model, X[300:], y[300:]), abs=0.05)
    assert len(cross_val_score(TreeEnsembleClassifier(**SMALL), X, y, scoring=metric, cv=2)) == 2


def test_weights_offsets_and_later_pieces(model):
    twice = TreeEnsembleClassifier(**SMALL).fit(np.tile(X, (2, 1)), np.tile(Y, (2, 1)))
    weighted = TreeEnsembleClassifier(**SMALL).fit(X, Y, sample_weight=np.full(400, 2))
    np.testing.assert_allclose(weighted.decision_function(X), twice.decision_function(X))
    offset = np.random.default_rng(0).normal(size=(400, 4))
    np.testing.assert_array_equal(model.predict(X, offset=offset), model.decision_function(X) + offset > 0)
    pieces = TreeEnsembleClassifier(**SMALL)
    pieces.partial_fit(X[:200], Y[:200], classes=[0, 1]).partial_fit(X[200:], Y[200:])
    assert pieces.predict(X).shape == (400, 4)
    pieces.set_params(warm_start=True).fit(X, Y)
    with pytest.raises(ValueError, match=r"y must have the labels of the first fit in the same order, \[0, 1, 2, 3\]"):
        pieces.partial_fit(X, Y[:, :3])


@pytest.mark.parametrize("y", [Y[:, [0, 0, 1]] + 1, Y + 0.5, np.where(Y, "a", "b"), np.where(Y, 1.0, np.nan)])
def test_columns_that_are_no_labels_are_refused(y):
    with pytest.raises(ValueError, match="y of several columns must hold 0 and 1, one column per label"):
        TreeEnsembleClassifier(**SMALL).fit(X, y)


def test_labels_of_another_order_are_refused(model):
    frame = pd.DataFrame(Y, columns=NAMES)
    with pytest.raises(ValueError, match="y must have the labels of the first fit in the same order"):
        TreeEnsembleClassifier(**SMALL).fit(X, frame, eval_set=(X, frame[NAMES[::-1]]))
    with pytest.raises(ValueError, match=r"got several labels\. Fit one model per label"):
        TreeEnsembleClassifier(**SMALL, monotonic_cst=[1] * 12).fit(X, Y)


def test_files_and_small_models(model, tmp_path):
    model.save(tmp_path / "model.safetensors")
    again = softwood.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.label_names_.tolist() == NAMES
    assert len(again.classes_) == 4
    light = softwood.load_predictor(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(light.predict(X), model.predict(X))
    hard = model.harden(X, Y)
    assert 0 < hard.hardening_.unchanged_share <= 1
    small = model.compress(X, Y, max_parameters=2000)
    same = small.predict(X) == model.predict(X)
    assert same.shape == (400, 4)
    assert same.all(axis=1).mean() > 0.6
    assert same.mean() > 0.85
    assert 0.3 < small.compression_.agreement <= 1  # of whole rows, and of the few that were held out
    assert TreeEnsembleClassifier(**SMALL, compact=True).fit(X, Y).predict_proba(X).shape == (400, 4)


def test_explanations(model):
    found = column_contributions(model, X[:5], background=X[:50])
    np.testing.assert_allclose(found.base + found.values.sum(axis=1), model.decision_function(X[:5]), rtol=1e-5)
    assert decision_path(model, X, 3).prediction == pytest.approx(model.predict_proba(X[3:4])[0])
    assert len(usage(model, X).traffic) == 2
    assert model.apply(X).shape == (400, 2, 8)


def test_command_line(model, tmp_path, capsys):
    path, table = tmp_path / "model.safetensors", tmp_path / "t.csv"
    model.save(path)
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(12)]).assign(y=Y[:, 0])
    frame.to_csv(table, index=False)
    assert ask(capsys, "predict", path, table, "-o", tmp_path / "out.csv")[0] == 0
    out = pd.read_csv(tmp_path / "out.csv")
    np.testing.assert_array_equal(out[[f"prediction {name}" for name in NAMES]], model.predict(X))
    np.testing.assert_allclose(out[[f"probability {name}" for name in NAMES]], model.predict_proba(X), rtol=1e-6)
    facts = json.loads(ask(capsys, "info", path, "--json")[1])
    assert facts["task"] == "multilabel"
    assert facts["classes"] == NAMES
    row = json.loads(ask(capsys, "explain", path, table, "--row", "2", "--json")[1])["row"]
    assert row["raw_score_of"] == NAMES[int(model.decision_function(X[2:3]).argmax())]
    assert "this one predicts 4 labels of each row" in complaint(capsys, "evaluate", path, table, "--target", "y")
