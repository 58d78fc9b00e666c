"""What decides the best epoch and what is told of each: evaluation sets, metrics, callbacks, attributes of the fit."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import (
    balanced_accuracy_score,
    brier_score_loss,
    log_loss,
    make_scorer,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
)

import softwood
from softwood import Loss, TreeEnsembleClassifier, TreeEnsembleRegressor
from softwood.callbacks import LogEpochs, MLflowMetrics, OptunaPruning, TensorBoardScalars
from softwood.training import losses
from softwood.training.progress import EPOCH_VALUES

SETTINGS = {"n_members": 2, "n_trees": 4, "max_epochs": 6, "learning_rate": 0.02, "random_state": 0}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 3))
Y = (X[:, 0] + 0.5 * RNG.normal(size=240) > 0).astype(int)
THREE = np.digitize(X[:, 0] + 0.2 * RNG.normal(size=240), [-0.5, 0.5])


def test_histories_of_all_evaluation_sets_and_the_last_decides():
    sets = [(X[:60], Y[:60]), (X[60:150], Y[60:150], np.linspace(0.5, 2, 90)), (X[150:], Y[150:])]
    model = TreeEnsembleClassifier(**SETTINGS).fit(X, Y, eval_set=sets)
    alone = TreeEnsembleClassifier(**SETTINGS).fit(X, Y, eval_set=sets[-1])
    history = model.history_
    np.testing.assert_allclose(history["validation_2_loss"], history["validation_loss"], rtol=1e-5)
    np.testing.assert_allclose(history["validation_loss"], alone.history_["validation_loss"], rtol=1e-5)
    np.testing.assert_array_equal(model.predict_proba(X), alone.predict_proba(X))
    weighted = TreeEnsembleClassifier(**SETTINGS).fit(X, Y, eval_set=sets[1])
    np.testing.assert_allclose(history["validation_1_loss"], weighted.history_["validation_loss"], rtol=1e-5)


@pytest.mark.parametrize("name", losses.LOSS_NAMES)
def test_losses_in_python_are_those_of_the_core(name):
    classes = name in ("cross_entropy", "binary_cross_entropy")
    loss = Loss(name, n_classes=3 if name == "cross_entropy" else None, label_smoothing=0.1 if classes else 0.0)
    if name == "quantile":
        loss = Loss(name, quantiles=(0.2, 0.7))
    targets = {"cross_entropy": THREE, "binary_cross_entropy": Y}.get(name, np.abs(X[:, 0]) + 0.1)
    from softwood.training import MemberData, Samples, TrainingConfig, fit_members
    from softwood.training.judge import Judge, Judgement

    seen = []

    class Watch(Judge):
        def __call__(self, scores):
            seen.append(loss.value(scores, targets, weight))
            return Judgement(None, None, None, {})

    weight = np.linspace(0.5, 2, len(X))
    rows = Samples(X, targets, weight)
    member = MemberData(rows, rows, judge=Watch(None, None, []))
    (trained,) = fit_members(TrainingConfig(loss, n_trees=2, depth=2, max_epochs=2, batch_size=32), [member])
    np.testing.assert_allclose([record.validation_loss for record in trained.history], seen, rtol=1e-6)


def test_a_tuple_of_evaluation_sets_is_as_good_as_a_list():
    sets = (X[:60], Y[:60]), (X[60:], Y[60:])
    histories = [TreeEnsembleClassifier(**SETTINGS).fit(X, Y, eval_set=some).history_ for some in (sets, list(sets))]
    for name in ("validation_0_loss", "validation_1_loss", "validation_loss"):
        assert histories[0][name] == histories[1][name]


@pytest.mark.parametrize(
    ("metric", "error", "message"),
    [("roc_auc", ValueError, "eval_metric 'roc_auc' must give a number.*With more than two classes, try 'roc_auc_ovr'"),
     (lambda y: 0.0, TypeError, "eval_metric '<lambda>' must give a number.*takes 1 positional argument"),
     (lambda y, p: "good", ValueError, "eval_metric '<lambda>' must give a number.*it failed: could not convert")],
)  # fmt: skip
def test_metrics_that_fail_are_named(metric, error, message):
    with pytest.raises(error, match=message):
        TreeEnsembleClassifier(eval_metric=metric, **SETTINGS).fit(X, THREE)


def share_right(model, x, y):
    return np.mean((model.predict_proba(x)[:, 1] > 0.6) == y)


@pytest.mark.parametrize(
    ("metric", "best", "expected"),
    [
        ("roc_auc", max, lambda model, x, y: roc_auc_score(y, model.predict_proba(x)[:, 1])),
        ("log_loss", min, lambda model, x, y: log_loss(y, model.predict_proba(x))),
        ("balanced_accuracy", max, lambda model, x, y: balanced_accuracy_score(y, model.predict(x))),
        (lambda y, p: np.mean((p > 0.6) == y), max, lambda model, x, y: share_right(model, x, y)),
        (make_scorer(balanced_accuracy_score), max, lambda model, x, y: balanced_accuracy_score(y, model.predict(x))),
    ],
)  # fmt: skip
def test_the_metric_decides(metric, best, expected):
    settings = SETTINGS | {"n_members": 1}
    held_out = X[150:], Y[150:]
    model = TreeEnsembleClassifier(eval_metric=metric, **settings).fit(X[:150], Y[:150], eval_set=held_out)
    values = model.history_["validation_metric"]
    assert model.best_score_ == best(values)
    assert model.best_epoch_.tolist() == [values.index(best(values))]
    # The fitted trees' tables are rounded; scores of epochs are those of the trees in training.
    assert model.best_score_ == pytest.approx(expected(model, *held_out), rel=1e-3)


def test_the_best_score_of_a_loaded_model_is_that_of_its_metric(tmp_path):
    model = TreeEnsembleClassifier(eval_metric=brier_score_loss, **SETTINGS).fit(X, Y)
    for i in range(2):
        path = tmp_path / f"model-{i}.safetensors"
        model.save(path)
        loaded = softwood.load(path)
        assert loaded.eval_metric is None  # a function, which files do not hold
        assert loaded.best_score_ == model.best_score_ != np.mean(loaded.history_["validation_loss"])
        model = loaded


def test_metrics_of_regressions_and_held_out_rows():
    y = X[:, 0] * 1000 + 5
    model = TreeEnsembleRegressor(eval_metric=mean_absolute_error, **SETTINGS).fit(X, y)
    assert 0 < model.best_score_ < 1000  # in units of the target
    assert len(model.best_epoch_) == 2
    model = TreeEnsembleRegressor(eval_metric="r2", **SETTINGS).fit(X, y, eval_set=(X[:50], y[:50]))
    assert model.history_["validation_metric"][-1] == pytest.approx(
        r2_score(y[:50], model.model_.predict(X[:50])), abs=0.3
    )


@pytest.mark.parametrize(
    ("metric", "message"),
    [("rocauc", "eval_metric must be the name of a scorer"), (3, "eval_metric must be a name, a callable"),
     (lambda y, p: np.nan, "eval_metric must be a number on the validation rows; '<lambda>' gave NaN")],
)  # fmt: skip
def test_metrics_that_are_none_are_refused(metric, message):
    with pytest.raises(ValueError, match=message):
        TreeEnsembleClassifier(eval_metric=metric, **SETTINGS).fit(X, Y)


def test_the_progress_bar_shows_the_metric(capsys):
    TreeEnsembleClassifier(eval_metric="roc_auc", verbose=1, **SETTINGS).fit(X, Y)
    assert "roc_auc 0." in capsys.readouterr().err


def test_best_epoch_without_validation():
    model = TreeEnsembleClassifier(validation_fraction=None, **SETTINGS).fit(X, Y)
    assert model.best_epoch_.tolist() == [5, 5]
    assert model.n_iter_ == 6
    assert np.isnan(model.best_score_)


def test_callbacks_hear_of_each_epoch_and_stop():
    heard = []

    def stop(summary):
        heard.append(summary)
        return summary.epoch == 3

    model = TreeEnsembleClassifier(callbacks=[stop, lambda summary: None], **SETTINGS).fit(X, Y)
    assert model.n_iter_ == 4
    assert [summary.step for summary in heard] == [0, 1, 2, 3]
    last = heard[-1]
    assert last.max_epochs == 6
    assert len(last.members) == 2
    assert last.train_loss == np.mean([record.train_loss for record in last.members])
    assert last.gamma == 1
    assert last.mean_reachable_leaves > 1
    assert last.learning_rate > 0
    with pytest.raises(ValueError, match="callbacks must be a list of callables, or None; got"):
        TreeEnsembleClassifier(callbacks=print, **SETTINGS).fit(X, Y)


def test_log_epochs(caplog):
    with caplog.at_level(logging.INFO, "softwood"):
        model = TreeEnsembleClassifier(callbacks=[LogEpochs(every=2)], **SETTINGS).fit(X, Y)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(":")[0] for line in lines] == ["epoch 0", "epoch 2", "epoch 4"]
    losses_of_epoch = np.array(model.history_["validation_loss"])[np.array(model.history_["epoch"]) == 4]
    assert len(losses_of_epoch) == 2
    assert f"validation_loss {losses_of_epoch.mean():.6g}" in lines[-1]


def test_optuna_prunes_a_trial():
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=0.0, n_warmup_steps=2))
    heard = []

    def objective(trial):
        callbacks = [heard.append, OptunaPruning(trial)]
        return TreeEnsembleClassifier(callbacks=callbacks, **SETTINGS).fit(X, Y).best_score_

    study.optimize(objective, n_trials=1)
    (trial,) = study.trials
    assert trial.state == optuna.trial.TrialState.PRUNED
    assert trial.intermediate_values == {epoch: heard[epoch].validation_loss for epoch in range(3)}
    with pytest.raises(ValueError, match="value must be one of train_loss"):
        TreeEnsembleClassifier(callbacks=[OptunaPruning(study.ask(), "auc")], **SETTINGS).fit(X, Y)


def epochs_heard(callback):
    """Numbers of each epoch by name, as a fit with this callback had them."""
    heard = []
    callbacks = [heard.append, callback]
    TreeEnsembleClassifier(callbacks=callbacks, eval_metric="roc_auc", **SETTINGS).fit(X, Y)
    return [{name: getattr(one, name) for name in EPOCH_VALUES} | one.metrics for one in heard]


def test_tensorboard_reads_what_was_written(tmp_path):
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    callback = TensorBoardScalars(tmp_path)
    heard = epochs_heard(callback)
    callback.writer.close()
    (file,) = tmp_path.glob("events.out.tfevents.*")
    contents, points = file.read_bytes(), {}
    while contents:  # records: length, its checksum, an event, its checksum
        size = int.from_bytes(contents[:8], "little")
        event = event_pb2.Event.FromString(contents[12 : 12 + size])
        points |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        contents = contents[16 + size :]
    assert points == {
        (name, step): pytest.approx(value) for step, values in enumerate(heard) for name, value in values.items()
    }
    assert {"train_loss", "validation_metric", "gamma", "mean_reachable_leaves"} <= {name for name, _ in points}
    assert len(heard) == 6
    assert clone(TreeEnsembleClassifier(callbacks=[callback])).callbacks[0].writer is None  # an open file stays here


def test_mlflow_keeps_what_was_logged(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow brings forty packages: install mlflow-skinny and sqlalchemy")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    with mlflow.start_run() as run:
        heard = epochs_heard(MLflowMetrics())
    client = mlflow.MlflowClient()
    for name in heard[0]:
        found = {point.step: point.value for point in client.get_metric_history(run.info.run_id, name)}
        assert found == {step: values[name] for step, values in enumerate(heard)}, name


def test_callbacks_say_what_is_not_installed(monkeypatch):
    for module in ("mlflow", "tensorboardX", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match="TensorBoardScalars needs torch and tensorboard, or tensorboardX: pip inst"):
        TensorBoardScalars()
    with pytest.raises(ImportError, match="MLflowMetrics needs the mlflow package: pip install mlflow"):
        MLflowMetrics()


def test_log_probabilities_do_not_underflow():
    for y in (Y, THREE):
        model = TreeEnsembleClassifier(**SETTINGS).fit(X, y)
        np.testing.assert_allclose(model.predict_log_proba(X), np.log(model.predict_proba(X)), rtol=1e-6)
        far = model.predict_log_proba(X, offset=np.full((len(X), len(model.classes_) if y is THREE else 1), 0.0))
        np.testing.assert_allclose(far, model.predict_log_proba(X))
    binary = TreeEnsembleClassifier(**SETTINGS).fit(X, Y)
    assert np.isfinite(binary.predict_log_proba(X, offset=np.full(len(X), 2000.0))).all()


def test_apply_gives_the_most_probable_leaf():
    model = TreeEnsembleClassifier(depth=3, **SETTINGS).fit(X, Y)
    leaves = model.apply(X[:20])
    assert leaves.shape == (20, 2, 4)
    for row in range(20):
        for way in softwood.explain.decision_path(model, X[:20], row).trees:
            reach = {node - 7: probability for node, probability in way.reach.items() if node >= 7}
            assert reach[leaves[row, way.member, way.tree]] == pytest.approx(max(reach.values()))
