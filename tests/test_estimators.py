"""The estimators: scikit-learn's own checks, and what users of tables expect."""

from __future__ import annotations

import pickle
import re
import signal
import threading
import time
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import sklearn
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_html_repr
from sklearn.utils.estimator_checks import parametrize_with_checks

import softwood
from softwood import TreeEnsembleClassifier, TreeEnsembleRegressor
from softwood.training import EpochRecord, fit_members
from softwood.training.losses import Loss
from softwood.training.progress import Progress

QUICK = {"n_members": 2, "n_trees": 8, "depth": 3, "max_epochs": 4, "learning_rate": 0.03, "random_state": 0}
X_CANCER, Y_CANCER = load_breast_cancer(return_X_y=True)
X_DIABETES, Y_DIABETES = load_diabetes(return_X_y=True)


@parametrize_with_checks([TreeEnsembleClassifier(max_epochs=60), TreeEnsembleRegressor(max_epochs=60)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_quality_on_tables_of_scikit_learn():
    order = np.random.default_rng(0).permutation(len(Y_CANCER))
    train, test = order[:400], order[400:]
    classifier = TreeEnsembleClassifier(n_members=2, random_state=0).fit(X_CANCER[train], Y_CANCER[train])
    assert classifier.score(X_CANCER[test], Y_CANCER[test]) > 0.95
    order = np.random.default_rng(0).permutation(len(Y_DIABETES))
    train, test = order[:300], order[300:]
    regressor = TreeEnsembleRegressor(n_members=2, random_state=0).fit(X_DIABETES[train], Y_DIABETES[train])
    assert regressor.score(X_DIABETES[test], Y_DIABETES[test]) > 0.4


# Results do not depend on what they should not depend on ------------------------------------------------------------


def test_same_seed_same_result_for_any_number_of_threads():
    fits = [TreeEnsembleClassifier(**QUICK, n_jobs=n).fit(X_CANCER, Y_CANCER) for n in (1, 2, -1)]
    for other in fits[1:]:
        np.testing.assert_array_equal(fits[0].predict_proba(X_CANCER), other.predict_proba(X_CANCER))
    other = TreeEnsembleClassifier(**{**QUICK, "random_state": 1}).fit(X_CANCER, Y_CANCER)
    assert not np.array_equal(fits[0].predict_proba(X_CANCER), other.predict_proba(X_CANCER))


def test_order_of_rows_is_irrelevant_and_weights_are_copies():
    order = np.random.default_rng(0).permutation(len(Y_CANCER))
    weight = np.random.default_rng(1).integers(0, 3, len(Y_CANCER))
    plain = TreeEnsembleClassifier(**QUICK).fit(X_CANCER, Y_CANCER, sample_weight=weight)
    shuffled = TreeEnsembleClassifier(**QUICK).fit(X_CANCER[order], Y_CANCER[order], sample_weight=weight[order])
    copied = TreeEnsembleClassifier(**QUICK).fit(np.repeat(X_CANCER, weight, axis=0), np.repeat(Y_CANCER, weight))
    for other in (shuffled, copied):
        np.testing.assert_array_equal(plain.predict_proba(X_CANCER), other.predict_proba(X_CANCER))


def test_equal_rows_count_as_often_as_they_occur():
    x = np.random.default_rng(0).integers(1, 6, 3000).astype(float)[:, None]
    regressor = TreeEnsembleRegressor(n_members=1, random_state=0).fit(x, 10 * x[:, 0])
    np.testing.assert_allclose(regressor.predict(np.arange(1.0, 6)[:, None]), 10 * np.arange(1.0, 6), atol=0.5)
    rng = np.random.default_rng(0)
    codes = rng.integers(0, (4, 2, 2), (2201, 3)).astype(float)
    odds = -1 + 0.8 * (codes[:, 0] == 0) - 0.9 * (codes[:, 0] == 3) + 1.5 * codes[:, 1] - 0.7 * codes[:, 2]
    y = rng.random(2201) < 1 / (1 + np.exp(-odds))
    classifier = TreeEnsembleClassifier(n_members=1, random_state=0).fit(codes[:1500], y[:1500])
    gap = log_loss(y[1500:], classifier.predict_proba(codes[1500:])) - log_loss(
        y[1500:], 1 / (1 + np.exp(-odds[1500:]))
    )
    assert gap < 0.01


def test_containers_give_the_same_model():
    columns = [f"c{i}" for i in range(X_CANCER.shape[1])]
    frame = pd.DataFrame(X_CANCER, columns=columns)
    expected = TreeEnsembleClassifier(**QUICK).fit(X_CANCER, Y_CANCER).predict_proba(X_CANCER)
    for X in (frame, pl.from_pandas(frame), pa.table(frame), scipy.sparse.csr_array(X_CANCER), X_CANCER.astype(object)):
        np.testing.assert_allclose(
            TreeEnsembleClassifier(**QUICK).fit(X, Y_CANCER).predict_proba(X), expected, rtol=1e-4
        )


def test_input_is_not_changed():
    X, y, weight = X_CANCER.astype(np.float32), Y_CANCER.copy(), np.ones(len(Y_CANCER))
    copies = X.copy(), y.copy(), weight.copy()
    TreeEnsembleClassifier(**QUICK).fit(X, y, sample_weight=weight)
    for array, copy in zip((X, y, weight), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


# Tables -------------------------------------------------------------------------------------------------------------


def test_mixed_table_with_missing_cells_and_a_constant_column():
    rng = np.random.default_rng(0)
    n = 400
    city = rng.integers(0, 30, n)
    X = pd.DataFrame(
        {
            "größe in m": np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n)),
            "city": [f"city {i}" for i in city],
            "colour": pd.Categorical(rng.choice(["red", "blue"], n)),
            "flag": rng.random(n) < 0.5,
            "since": pd.date_range("2020-01-01", periods=n, freq="D"),
            "always": 1.0,
            "never": np.nan,
        }
    )
    y = np.where(city % 3 == 0, "third", "other")
    model = TreeEnsembleClassifier(n_members=2, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.feature_names_in_.tolist() == list(X.columns)
    assert X.columns[model.feature_importances_.argmax()] == "city"
    unseen = X.head(2).assign(city=["Atlantis", None], colour=["mauve", None])
    assert np.isfinite(model.predict_proba(unseen)).all()


def test_categorical_features():
    X = np.column_stack([np.arange(300) % 30, np.random.default_rng(0).normal(size=300)])
    y = np.arange(300) % 30 % 2
    as_category = TreeEnsembleClassifier(n_members=1, categorical_features=[0], random_state=0).fit(X, y)
    assert as_category.model_.preprocessor.kinds == ("category", "numeric")
    assert as_category.score(X, y) == 1
    with pytest.raises(ValueError, match="categorical_features must lie in 0 to 1"):
        TreeEnsembleClassifier(categorical_features=[5]).fit(X, y)


def test_column_names_and_order_are_checked():
    frame = pd.DataFrame(X_CANCER[:, :3], columns=["a", "b", "c"])
    model = TreeEnsembleClassifier(**QUICK).fit(frame, Y_CANCER)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["b", "a", "c"]])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(X_CANCER[:, :3])


def test_infinity_is_beyond_all_other_values():
    X = np.arange(40.0)[:, None]
    X[-1] = np.inf
    with pytest.warns(UserWarning, match="Column 'x0' holds infinities"):
        model = TreeEnsembleClassifier(**QUICK).fit(X, np.arange(40) > 20)
    for rows in ([[np.inf], [1.0]], pd.DataFrame({"x": [np.inf, 1.0]}).to_numpy(), [[np.float32(np.inf)], [1]]):
        with pytest.warns(UserWarning, match="Column 'x0' holds infinities"):
            found = model.predict_proba(rows)
        np.testing.assert_array_equal(found, model.predict_proba([[1e30], [1.0]]))


# Targets ------------------------------------------------------------------------------------------------------------


def test_string_labels_and_decision_function():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])
    model = TreeEnsembleClassifier(random_state=0, n_members=2).fit(X, names[y])
    assert model.classes_.tolist() == names.tolist()
    assert model.predict(X).dtype == names.dtype
    scores = model.decision_function(X)
    assert scores.shape == (150, 3)
    np.testing.assert_array_equal(names[scores.argmax(axis=1)], model.predict(X))
    binary = TreeEnsembleClassifier(**QUICK).fit(X[:100], names[y[:100]])
    np.testing.assert_array_equal(binary.decision_function(X) > 0, binary.predict(X) == "versicolor")


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="at least two classes; got one class"):
        TreeEnsembleClassifier().fit([[1.0], [2.0]], [1, 1])


def test_class_weight():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(0, 1, (450, 2)), rng.normal(1, 1, (50, 2))])
    y = np.repeat([0, 1], [450, 50])
    recall = {}
    for weight in (None, "balanced"):
        model = TreeEnsembleClassifier(n_members=1, class_weight=weight, random_state=0).fit(X, y)
        recall[weight] = (model.predict(X[450:]) == 1).mean()
    assert recall["balanced"] > recall[None] + 0.2


def test_several_targets():
    y = np.column_stack([Y_DIABETES, -2 * Y_DIABETES + 1, X_DIABETES[:, 0]])
    model = TreeEnsembleRegressor(random_state=0, n_members=2).fit(X_DIABETES, y)
    predicted = model.predict(X_DIABETES)
    assert predicted.shape == y.shape
    assert model.score(X_DIABETES, y) > 0.4


@pytest.mark.parametrize(
    "loss", ["squared_error", "absolute_error", "huber", "poisson", "gamma", "tweedie", "quantile"]
)
def test_losses(loss):
    model = TreeEnsembleRegressor(loss=loss, n_members=1, random_state=0).fit(X_DIABETES, Y_DIABETES)
    assert model.score(X_DIABETES, Y_DIABETES) > 0.3


def test_quantiles_cover():
    rng = np.random.default_rng(0)
    X = rng.random((1500, 1))
    y = 100 + 50 * X[:, 0] * rng.normal(size=1500)
    loss = Loss("quantile", quantiles=(0.1, 0.9))
    low, high = TreeEnsembleRegressor(loss=loss, n_members=2, random_state=0).fit(X, y).predict(X).T
    assert (low <= high).all()
    assert 0.75 < ((low <= y) & (y <= high)).mean() < 0.85
    wide, narrow = X[:, 0] > 0.8, X[:, 0] < 0.2
    assert (high - low)[wide].mean() > 2 * (high - low)[narrow].mean()


def test_scale_of_the_target_does_not_matter():
    small, large = (
        TreeEnsembleRegressor(n_members=2, random_state=0).fit(X_DIABETES, Y_DIABETES * scale).predict(X_DIABETES)
        / scale
        for scale in (1e-8, 1e8)
    )
    assert np.corrcoef(small, large)[0, 1] > 0.97


# Training -----------------------------------------------------------------------------------------------------------


def member_losses(model, X, y):
    """Loss of each row [n] by each member of a binary classifier alone."""
    for member in model.model_.members:
        alone = softwood.model.Model(model.model_.preprocessor, [member], model.model_.head)
        scores = alone.raw_scores(X)[:, 0]
        yield np.logaddexp(0, np.where(y == 1, -scores, scores))


def test_early_stopping_keeps_the_best_epoch():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 10)), rng.integers(0, 2, 300)  # noise: the best epoch is an early one
    model = TreeEnsembleClassifier(n_members=2, patience=3, max_epochs=50, random_state=0)
    model.fit(X[:200], y[:200], eval_set=(X[200:], y[200:]))
    histories = [history.reset_index() for _, history in pd.DataFrame(model.history_).groupby("member")]
    for history, losses in zip(histories, member_losses(model, X[200:], y[200:]), strict=True):
        best = history["validation_loss"].idxmin()
        assert history.index[history["is_best"]].tolist() == [best]
        assert len(history) == best + 1 + 3 < 50
        distance = (history["validation_loss"] - losses.mean()).abs()
        assert distance.idxmin() == best  # of all epochs, the model has the loss of the best one
        assert distance[best] < 1e-4 * losses.mean()  # what rounding its tables leaves


@pytest.mark.parametrize("form", ["tuple", "list", "weights", "false labels"])
def test_eval_set_decides_the_best_epoch(form):
    """Other labels choose another epoch of the same run, and the model holds the weights of that epoch."""
    X, y, weight = X_CANCER[400:], Y_CANCER[400:], np.ones(169)
    if form == "weights":
        weight = np.arange(169) % 3 + 0.5
    if form == "false labels":
        y = 1 - y
    eval_set = {"list": [(X, y)], "weights": (X, y, weight)}.get(form, (X, y))
    model = TreeEnsembleClassifier(**QUICK).fit(X_CANCER[:400], Y_CANCER[:400], eval_set=eval_set)
    best = pd.DataFrame(model.history_).query("is_best")
    assert best["epoch"].tolist() == ([0, 0] if form == "false labels" else [3, 3])
    expected = [np.average(losses, weights=weight) for losses in member_losses(model, X, y)]
    np.testing.assert_allclose(best["validation_loss"], expected, rtol=5e-3)  # tables are rounded when training ends


def test_eval_sets_that_do_not_fit_are_refused():
    X, y = X_CANCER[400:], Y_CANCER[400:]
    for wrong in (X, (X,), [(X, y), X], [(X, y, None, None, None)]):
        with pytest.raises(ValueError, match="eval_set must be a tuple"):
            TreeEnsembleClassifier(**QUICK).fit(X_CANCER, Y_CANCER, eval_set=wrong)
    with pytest.raises(ValueError, match=r"known at the first fit.*got \[7\]"):
        TreeEnsembleClassifier(**QUICK).fit(X_CANCER, Y_CANCER, eval_set=(X[:1], [7]))


def test_without_validation_the_last_epoch_is_kept():
    model = TreeEnsembleClassifier(**QUICK, validation_fraction=None).fit(X_CANCER, Y_CANCER)
    assert np.isnan(model.history_["validation_loss"]).all()
    assert pd.DataFrame(model.history_).query("is_best")["epoch"].tolist() == [3, 3]


def test_warm_start_goes_on():
    model = TreeEnsembleClassifier(**QUICK, warm_start=True).fit(X_CANCER, Y_CANCER)
    before = pd.DataFrame(model.history_)["train_loss"].iloc[0]
    model.fit(X_CANCER, Y_CANCER)
    assert pd.DataFrame(model.history_)["train_loss"].iloc[0] < 0.7 * before
    with pytest.raises(ValueError, match="known at the first fit"):
        model.fit(X_CANCER, Y_CANCER + 1)


def test_partial_fit_learns_from_pieces():
    order = np.random.default_rng(0).permutation(len(Y_CANCER))
    X, y = X_CANCER[order], np.array(["no", "yes"])[Y_CANCER[order]]
    model = TreeEnsembleClassifier(n_members=2, random_state=0)
    for _ in range(10):
        for first in range(0, 500, 100):
            model.partial_fit(X[first : first + 100], y[first : first + 100], classes=["no", "yes"])
    assert model.score(X[500:], y[500:]) > 0.9
    assert len(model.history_["epoch"]) == 100
    again = pickle.loads(pickle.dumps(model)).partial_fit(X[:100], y[:100])
    np.testing.assert_array_equal(again.predict_proba(X), model.partial_fit(X[:100], y[:100]).predict_proba(X))


def test_partial_fit_with_classes_missing_from_the_first_piece():
    X, y = load_iris(return_X_y=True)
    model = TreeEnsembleClassifier(n_members=1, learning_rate=0.008, random_state=0)
    for _ in range(30):
        for first in (0, 50, 100):
            model.partial_fit(X[first : first + 50], y[first : first + 50], classes=[0, 1, 2])
    assert model.predict_proba(X).shape == (150, 3)
    assert model.score(X, y) > 0.85
    with pytest.raises(ValueError, match="known at the first fit"):
        model.partial_fit(X, y + 5)


def test_partial_fit_of_regressor_goes_on_from_a_fit():
    model = TreeEnsembleRegressor(**QUICK).fit(X_DIABETES, Y_DIABETES)
    before = model.predict(X_DIABETES)
    model.partial_fit(X_DIABETES, Y_DIABETES)
    assert 0 < np.abs(model.predict(X_DIABETES) - before).max() < 200


def test_time_limit():
    started = time.monotonic()
    settings = {"n_members": 1, "n_trees": 16, "max_epochs": 50_000, "learning_rate": 1.0, "patience": None}
    model = TreeEnsembleClassifier(**settings, time_limit=1.5).fit(X_CANCER, Y_CANCER)
    assert time.monotonic() - started < 20
    assert len(model.history_["epoch"]) < 50_000
    assert model.score(X_CANCER, Y_CANCER) > 0.8


def test_interrupt_leaves_a_usable_model():
    model = TreeEnsembleClassifier(n_members=1, n_trees=16, max_epochs=50_000, learning_rate=1.0, patience=None)
    timer = threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X_CANCER, Y_CANCER)
    assert model.score(X_CANCER, Y_CANCER) > 0.8


def test_checkpoint_and_resume(tmp_path, monkeypatch):
    """Ctrl-C in the third epoch: the second run does the epochs that are left and ends with the same bits."""
    whole = TreeEnsembleClassifier(**QUICK).fit(X_CANCER, Y_CANCER)
    epochs = []

    def note(records):
        epochs.append(records[0].epoch)
        if epochs == [0, 1, 2]:
            raise KeyboardInterrupt

    options = {"callback": note, "checkpoint_every": 0}
    monkeypatch.setattr("softwood.tabular.committee.fit_members", lambda *a, **o: fit_members(*a, **o | options))
    with pytest.raises(KeyboardInterrupt):
        TreeEnsembleClassifier(**QUICK).fit(X_CANCER, Y_CANCER, checkpoint=tmp_path / "c")
    resumed = TreeEnsembleClassifier(**QUICK).fit(X_CANCER, Y_CANCER, checkpoint=tmp_path / "c", resume=True)
    assert epochs == [0, 1, 2, 2, 3]
    np.testing.assert_array_equal(whole.predict_proba(X_CANCER), resumed.predict_proba(X_CANCER))


def test_progress_counts_the_members_that_train_now(capsys):
    def epoch(number, n_members):
        return [EpochRecord(number, 0.5, 0.25, 3.5, 0.004, 1.0, 0.1, 0.875)] * n_members

    with Progress(2, "accuracy") as progress:
        for number, n_members in ((0, 3), (1, 2), (0, 1), (1, 1)):
            progress(epoch(number, n_members))
    endings = [line.rsplit(", ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert endings == ["3.5 reachable leaves", "1 of 3 done", "3.5 reachable leaves", "3.5 reachable leaves"]


def test_verbose_shows_progress(capsys):
    TreeEnsembleClassifier(**QUICK, verbose=1).fit(X_CANCER, Y_CANCER)
    shown = capsys.readouterr().err
    assert "epoch 1/4: loss 0." in shown
    assert "validation loss 0." in shown
    assert "accuracy 0." in shown
    assert "reachable leaves" in shown
    TreeEnsembleRegressor(**QUICK, verbose=1).fit(X_DIABETES, Y_DIABETES)
    assert re.search(r"validation loss \S+, R² -?\d", capsys.readouterr().err)
    TreeEnsembleClassifier(**QUICK).fit(X_CANCER, Y_CANCER)
    assert capsys.readouterr().err == ""


# Life in scikit-learn -----------------------------------------------------------------------------------------------


def test_search_pipeline_and_parallel_processes():
    search = GridSearchCV(TreeEnsembleClassifier(**QUICK), {"depth": [2, 3]}, cv=2).fit(X_CANCER, Y_CANCER)
    assert search.best_score_ > 0.85
    pipeline = make_pipeline(StandardScaler(), TreeEnsembleClassifier(**QUICK))
    serial = cross_val_score(pipeline, X_CANCER, Y_CANCER, cv=2)
    np.testing.assert_array_equal(cross_val_score(pipeline, X_CANCER, Y_CANCER, cv=2, n_jobs=2), serial)


def test_metadata_routing():
    weight = np.where(np.arange(len(Y_CANCER)) % 3 == 0, 0.0, 1.0)
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = TreeEnsembleClassifier(**QUICK).set_fit_request(sample_weight=True)
        estimator.set_score_request(sample_weight=True)
        scores = cross_val_score(
            estimator, X_CANCER, Y_CANCER, cv=[(np.arange(300), np.arange(300, 569))], params={"sample_weight": weight}
        )
        plain = TreeEnsembleClassifier(**QUICK).fit(X_CANCER[:300], Y_CANCER[:300], sample_weight=weight[:300])
    assert scores[0] == plain.score(X_CANCER[300:], Y_CANCER[300:], sample_weight=weight[300:])


def test_clone_and_html():
    estimator = TreeEnsembleClassifier(loss=Loss("binary_cross_entropy", label_smoothing=0.1), depth=2)
    assert clone(estimator).get_params() == estimator.get_params()
    assert "TreeEnsembleClassifier" in estimator_html_repr(estimator)


def test_unfitted():
    for name in ("predict", "predict_proba", "decision_function"):
        with pytest.raises(NotFittedError):
            getattr(TreeEnsembleClassifier(), name)(X_CANCER)
    for action in (lambda e: e.save("x"), lambda e: e.history_, lambda e: e.feature_importances_):
        with pytest.raises(NotFittedError):
            action(TreeEnsembleClassifier())


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"depth": 0}, r"depth must be an integer from 1 to 20; got 0\."),
        ({"n_trees": 2.5}, r"n_trees must be an integer of at least 1; got 2\.5\."),
        ({"gamma": 0}, r"gamma must be a number above 0; got 0\."),
        ({"max_features": 1.5}, r"max_features must be a number above 0 and at most 1, or 'auto'; got 1\.5\."),
        ({"validation_fraction": 0.9}, r"validation_fraction must be .* at most 0\.5, or None; got 0\.9\."),
        ({"batch_norm": "batch"}, r"batch_norm must be True, False or 'fixed'; got 'batch'\."),
        ({"activation": "relu"}, r"activation must be 'smooth_step', 'smoother_step' or 'logistic'; got 'relu'\."),
        ({"loss": "hinge"}, r"loss must be 'auto', a Loss, .*; got 'hinge'\."),
        ({"n_jobs": 0}, r"n_jobs must be an integer other than 0, or None; got 0\."),
        ({"l1": -1.0}, r"l1 must be a number of at least 0, or 'auto'; got -1\.0\."),
    ],
)
def test_wrong_parameters_are_named(params, message):
    with pytest.raises(ValueError, match=message):
        TreeEnsembleClassifier(**params).fit(X_CANCER, Y_CANCER)


def test_losses_of_the_other_kind_are_refused():
    with pytest.raises(ValueError, match="loss of a classifier must be"):
        TreeEnsembleClassifier(loss="poisson").fit(X_CANCER, Y_CANCER)
    with pytest.raises(ValueError, match="is a loss of classifiers"):
        TreeEnsembleRegressor(loss="cross_entropy").fit(X_CANCER, Y_CANCER)


def test_targets_of_counts_must_be_counts():
    with pytest.raises(ValueError, match="poisson"):
        TreeEnsembleRegressor(loss="poisson", **QUICK).fit(X_DIABETES, -Y_DIABETES)


def test_tiny_tables():
    for n in (2, 3, 5, 11):
        X, y = np.arange(n, dtype=float)[:, None], np.arange(n) % 2
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert TreeEnsembleClassifier(**QUICK).fit(X, y).predict(X).shape == (n,)
            assert np.isfinite(TreeEnsembleRegressor(**QUICK).fit(X, y).predict(X)).all()


def test_resume_without_a_seed_takes_that_of_the_checkpoint(tmp_path):
    X, y = load_diabetes(return_X_y=True)
    path = tmp_path / "run.ckpt"
    settings = {"n_members": 2, "n_trees": 4, "max_epochs": 4}
    first = TreeEnsembleRegressor(**settings).fit(X, y, checkpoint=path)
    again = TreeEnsembleRegressor(**settings).fit(X, y, checkpoint=path, resume=True)
    np.testing.assert_array_equal(again.predict(X), first.predict(X))


def test_the_path_of_a_checkpoint_is_tried_before_training(tmp_path):
    X, y = load_diabetes(return_X_y=True)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "run.ckpt")
    for path in (tmp_path / "nowhere" / "run.ckpt", tmp_path, "/dev/full", tmp_path / "link"):
        with pytest.raises(OSError, match="checkpoint must be a path that can be written to"):
            TreeEnsembleRegressor(max_epochs=10_000, patience=None).fit(X, y, checkpoint=path)


def test_resume_needs_a_checkpoint():
    with pytest.raises(ValueError, match="resume=True needs the file to go on from; got checkpoint=None"):
        TreeEnsembleRegressor(**QUICK).fit(X_DIABETES, Y_DIABETES, resume=True)


def test_a_checkpoint_that_cannot_be_saved_is_a_warning(tmp_path):
    X, y = load_diabetes(return_X_y=True)
    folder = tmp_path / "gone"
    folder.mkdir()
    callbacks = [lambda summary: folder.exists() and folder.rmdir()]
    model = TreeEnsembleRegressor(n_members=1, n_trees=2, max_epochs=2, callbacks=callbacks)
    with pytest.warns(UserWarning, match="could not be saved .*; training continues"):
        model.fit(X, y, checkpoint=folder / "run.ckpt", checkpoint_every=0)
    assert model.n_iter_ == 2
