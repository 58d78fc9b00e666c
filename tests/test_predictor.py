"""Compiled predictors: against the dense reference, row by row, from many threads, and after a pickle."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

import softwood
import softwood.reference
from fitted_models import NAMES, fitted, mixed, numbers, reference_scores, rows
from softwood.model.model import Model
from softwood.model.parts import Head, ModelMember, Trees
from softwood.tabular.encoding.columns import Column, Preprocessor
from softwood.tabular.encoding.features import Encoding, FeatureKind
from softwood.training.losses import Loss


def random_model(p=5, k=1, m=4, d=3, *, spread=1.0, activation="smooth_step", seed=0):
    """A model of numbers with random trees; `spread` is the standard deviation of t in units of gamma."""
    rng = np.random.default_rng(seed)

    def normal(*shape, scale=1.0):
        return (rng.normal(size=shape) * scale).astype(np.float32)

    zero, one = np.zeros(p, np.float32), np.ones(p, np.float32)
    encoding = Encoding(np.arange(p, dtype=np.int32), np.full(p, FeatureKind.LINEAR, np.uint8), zero, one, zero, one)
    columns = [Column(f"x{j}", "numeric") for j in range(p)]
    trees = Trees(
        split_weight=normal(m, 2**d - 1, p, scale=spread / np.sqrt(p)),
        split_bias=normal(m, 2**d - 1, scale=spread / 2),
        leaf_weight=normal(m, 2**d, k),
        offset=normal(k),
        gamma=1.0,
        activation=activation,
        batch_norm=None,
        feature_mask=None,
    )
    head = Head("regression", Loss("squared_error"), None, np.zeros(k), np.ones(k))
    return Model(Preprocessor(columns, encodings={"standard": encoding}), [ModelMember("standard", trees)], head)


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_reference(name):
    X = rows(name, 300)
    model = fitted(name).model_
    np.testing.assert_allclose(model.raw_scores(X), reference_scores(model, X), rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("name", NAMES)
def test_predictions_are_the_head_of_the_scores(name):
    X = rows(name, 100)
    model = fitted(name).model_
    expected = model.head.predictions(model.raw_scores(X))
    predictor = model.predictor()
    found = predictor.predict(X) if model.head.classes is None else predictor.predict_proba(X)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("activation", ["smooth_step", "smoother_step", "logistic"])
@pytest.mark.parametrize(
    ("p", "k", "m", "d", "spread"),
    [
        (1, 1, 1, 1, 1.0),
        (7, 2, 3, 5, 0.3),
        (8, 1, 5, 6, 3.0),
        (9, 4, 2, 8, 0.1),
        (40, 3, 70, 4, 1.0),
        (3, 1, 2100, 2, 1),
    ],
)
def test_random_trees(p, k, m, d, spread, activation):
    model = random_model(p, k, m, d, spread=spread, activation=activation)
    X = np.random.default_rng(1).normal(size=(150, p)).astype(np.float32)
    scale = np.abs(model.members[0].trees.leaf_weight).max(axis=(1, 2)).sum()
    np.testing.assert_allclose(model.raw_scores(X), reference_scores(model, X), rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize(("spread", "d"), [(0.05, 9), (1.0, 6), (8.0, 10)])
def test_a_row_does_not_depend_on_the_others(spread, d):
    """Lists that are cut, dense nodes and single rows must sum alike, to the bit."""
    predictor = random_model(12, 2, 9, d, spread=spread).predictor()
    X = np.random.default_rng(2).normal(size=(131, 12))
    whole = predictor.predict(X)
    np.testing.assert_array_equal(np.stack([predictor.predict(row) for row in X]), whole)
    np.testing.assert_array_equal(predictor.predict(X[5:70]), whole[5:70])
    np.testing.assert_array_equal(predictor.predict(X, n_threads=2), whole)


def test_every_instruction_set_gives_the_same_bits(tmp_path):
    """The oldest machine that runs softwood routes each row as this one does."""
    code = (
        "import sys, pickle, numpy as np; predictor = pickle.load(open(sys.argv[1], 'rb'));"
        "np.save(sys.argv[2], predictor.raw_scores(np.load(sys.argv[3])))"
    )
    model = fitted("binary").model_
    (tmp_path / "predictor").write_bytes(pickle.dumps(model.predictor()))
    np.save(tmp_path / "X.npy", rows("binary", 500))
    paths = [str(tmp_path / name) for name in ("predictor", "scores.npy", "X.npy")]
    old_machine = {**os.environ, "SOFTWOOD_ISA": "baseline"}
    subprocess.run([sys.executable, "-c", code, *paths], check=True, timeout=120, env=old_machine)
    np.testing.assert_array_equal(np.load(tmp_path / "scores.npy"), model.raw_scores(rows("binary", 500)))


def test_row_and_matrix_dtypes_and_layouts():
    predictor = fitted("regression").predictor()
    X = np.round(numbers(20, holes=0.1), 2)
    expected = predictor.predict(X)
    assert predictor.predict_row(X[3]).shape == (1,)
    np.testing.assert_array_equal(predictor.predict_row(X[3]), expected[3:4])
    np.testing.assert_array_equal(predictor(X[3]), expected[3])
    np.testing.assert_array_equal(predictor.predict(np.asfortranarray(X)), expected)
    np.testing.assert_array_equal(predictor.predict(np.repeat(X, 2, axis=1)[4, ::2]), expected[4])
    np.testing.assert_array_equal(predictor.predict(X.tolist()), expected)
    np.testing.assert_array_equal(predictor.predict(pd.DataFrame(X)), expected)
    single = X.astype(np.float32)
    np.testing.assert_array_equal(predictor.predict(single[3]), predictor.predict(single)[3])


def test_rows_of_a_mixed_table():
    """`predict_row` takes codes and seconds; they must mean what the labels and dates of the table mean."""
    predictor = fitted("mixed").predictor()
    table = mixed(300, seed=3, unseen=True)
    seconds = (table["since"] - pd.Timestamp(0)) / pd.Timedelta(seconds=1)
    codes = {
        name: [predictor.category_code(name, None if pd.isna(label) else label) for label in table[name]]
        for name in ("colour", "city")
    }
    native = pd.DataFrame({**table, **codes, "since": seconds}).to_numpy(dtype=np.float64)
    found = np.stack([predictor.predict_row(row) for row in native])
    np.testing.assert_array_equal(found, predictor.predict_proba(table))
    assert -1 in codes["colour"]
    with pytest.raises(ValueError, match="Column 'size' holds no categories"):
        predictor.category_code("size", "red")


def test_one_row_of_labels():
    predictor = fitted("mixed").predictor()
    table = mixed(3, seed=4)
    row = table.iloc[1].to_numpy()
    np.testing.assert_array_equal(predictor.predict_proba(row), predictor.predict_proba(table)[1])
    assert predictor.predict(row) == predictor.predict(table)[1]
    assert predictor.predict(row.tolist()) == predictor.predict(table)[1]


@pytest.mark.parametrize("name", NAMES)
def test_one_row_is_a_table_of_one_row_without_its_first_axis(name):
    """The same for the predictor and the model, for an array and for a list; labels and probabilities agree."""
    estimator, X = fitted(name), rows(name, 5)
    row = X.iloc[3].to_numpy() if name == "mixed" else X[3]
    methods = ["predict", "raw_scores"] + ["predict_proba"] * (estimator.model_.head.classes is not None)
    for method in methods:
        for predict in (getattr(estimator.predictor(), method), getattr(estimator.model_, method)):
            whole = predict(X)
            for one in (row, row.tolist()):
                found = predict(one)
                assert np.shape(found) == whole.shape[1:]
                np.testing.assert_array_equal(found, whole[3])
    if "predict_proba" in methods:
        predicted, probability = (getattr(estimator.predictor(), method)(X) for method in ("predict", "predict_proba"))
        np.testing.assert_array_equal(predicted, estimator.predict(X))
        likeliest = probability > 0.5 if name == "labels" else estimator.classes_[probability.argmax(axis=1)]
        np.testing.assert_array_equal(predicted, likeliest)
    else:
        np.testing.assert_array_equal(estimator.predictor().predict(X), estimator.predict(X))
        with pytest.raises(ValueError, match=r"predict_proba needs a classifier; this model is a regression: call"):
            estimator.predictor().predict_proba(X)


def test_pickle_and_threads():
    predictor = pickle.loads(pickle.dumps(fitted("multiclass").predictor()))
    X = rows("multiclass", 400)
    expected = fitted("multiclass").predict_proba(X)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: np.stack([predictor.predict_proba(row) for row in X]), range(8)):
            np.testing.assert_array_equal(found, expected)


def test_scikit_learn_is_not_needed(tmp_path):
    """A server that holds a predictor and arrays need not load scikit-learn."""
    code = (
        "import sys, pickle, numpy as np; sys.modules['sklearn'] = None; X = np.load(sys.argv[2]);"
        "predictor = pickle.load(open(sys.argv[1], 'rb')); assert predictor.predict(X[0]) in (0, 1, 2);"
        "np.save(sys.argv[3], predictor.predict_proba(X))"
    )
    estimator, X = fitted("multiclass"), rows("multiclass", 50)
    (tmp_path / "predictor").write_bytes(pickle.dumps(estimator.predictor()))
    np.save(tmp_path / "X.npy", X)
    paths = [str(tmp_path / name) for name in ("predictor", "X.npy", "found.npy")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True, timeout=120)
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), estimator.predict_proba(X))


def test_estimators_predict_by_it():
    classifier = fitted("binary")
    X = rows("binary", 50)
    np.testing.assert_array_equal(classifier.predict_proba(X), classifier.predictor().predict_proba(X))
    assert classifier.predictor() is classifier.predictor()


def test_bad_rows():
    predictor = fitted("binary").predictor()
    for predict in (predictor.predict_proba, predictor.predict_row):
        with pytest.raises(ValueError, match=r"X must have 9 columns, as at fit; got a row of shape \(8,\)\."):
            predict(np.zeros(8))
    for predict in (predictor.predict_proba, predictor.predict):
        with pytest.raises(ValueError, match=r"X must have 9 columns, as at fit; got 8\."):
            predict(np.zeros((2, 8)))
        for X in (np.zeros(9), np.zeros((200, 9))):
            X[..., 4] = -np.inf
            with pytest.warns(UserWarning, match="Column 'x4' holds infinities, which are read as the largest finite"):
                found = predict(X)
            X[..., 4] = np.finfo(np.float64).min
            np.testing.assert_array_equal(found, predict(X))
        with pytest.raises(ValueError, match="n_threads must be an integer >= 1"):
            predict(np.zeros((2, 9)), n_threads=0)


def test_unfitted():
    with pytest.raises(ValueError, match="not fitted yet"):
        softwood.TreeEnsembleClassifier().predictor()
