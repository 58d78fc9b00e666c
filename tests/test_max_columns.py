"""`max_columns`: a model that reads few columns, and needs no others afterwards."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import softwood
from softwood.export import export
from softwood.model.container import ModelFileError, read_container, write_container
from softwood.model.packing import pack_text

SMALL = {"n_members": 1, "n_trees": 8, "max_epochs": 30, "random_state": 0, "n_jobs": 1}
INFORMATIVE = [3, 11, 17, 25]


def table(n, *, seed=0):
    X = np.random.default_rng(seed).normal(size=(n, 30))
    return X, X[:, 3] + 2 * X[:, 11] - X[:, 17] + 1.5 * (X[:, 25] > 0) + (X[:, 25] > 0) * X[:, 3]


def frame(n):
    X, y = table(n)
    named = pd.DataFrame(X, columns=[f"c{j}" for j in range(30)])
    named["c25"] = np.where(X[:, 25] > 0, "high", "low")
    named["c4"] = np.where(X[:, 4] > 0, "red", "blue")
    return named, y


@pytest.fixture(scope="module")
def of_array():
    return softwood.TreeEnsembleRegressor(max_columns=4, **SMALL).fit(*table(300))


@pytest.fixture(scope="module")
def of_frame():
    return softwood.TreeEnsembleRegressor(max_columns=4, **SMALL).fit(*frame(300))


def test_the_columns_that_make_the_target_are_found(of_array, of_frame):
    assert of_array.selected_columns_.tolist() == INFORMATIVE
    assert of_frame.selected_columns_.tolist() == [f"c{j}" for j in INFORMATIVE]
    X, y = table(200, seed=1)
    assert of_array.score(X, y) > 0.8


def test_other_columns_need_not_be_there(of_array, of_frame):
    X, _ = table(50)
    expected = of_array.predict(X)
    np.testing.assert_array_equal(of_array.predict(X[:, INFORMATIVE]), expected)
    np.testing.assert_array_equal(of_array.predict(pd.DataFrame(X)), expected)
    others = np.setdiff1d(np.arange(30), INFORMATIVE)
    X[:, others] = np.nan
    np.testing.assert_array_equal(of_array.predict(X), expected)
    named, _ = frame(50)
    expected = of_frame.predict(named)
    selected = list(of_frame.selected_columns_)
    np.testing.assert_array_equal(of_frame.predict(named[selected]), expected)
    np.testing.assert_array_equal(of_frame.predict(named[selected[::-1]].assign(further="text")), expected)


def test_one_row(of_array, of_frame):
    X, _ = table(5)
    predictor = of_array.predictor()
    for row in (X[2], X[2, INFORMATIVE], X[2].tolist()):
        assert predictor.predict(row) == of_array.predict(X)[2]
    named, _ = frame(5)
    assert of_frame.predictor().predict(named.iloc[2].tolist()) == of_frame.predict(named)[2]


def test_wrong_tables_are_refused(of_array, of_frame):
    wrong = r"X must have the 4 columns that the model reads, or all 30, as at fit; got 29\."
    with pytest.raises(ValueError, match=wrong):
        of_array.predict(np.zeros((2, 29)))
    named, _ = frame(5)
    with pytest.raises(ValueError, match="yet now missing:\n- c11\n"):
        of_frame.predict(named.drop(columns="c11"))


def test_attributes_are_those_of_the_table(of_array, of_frame, tmp_path):
    for fitted in (of_array, of_frame):
        fitted.save(tmp_path / "model.safetensors")
        loaded = softwood.load(tmp_path / "model.safetensors")
        for estimator in (fitted, loaded):
            assert estimator.n_features_in_ == 30
            assert np.flatnonzero(estimator.feature_importances_).tolist() == INFORMATIVE
            assert estimator.feature_importances_.shape == (30,)
            assert estimator.selected_columns_.tolist() == fitted.selected_columns_.tolist()
        X = table(20)[0] if fitted is of_array else frame(20)[0]
        np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    assert loaded.feature_names_in_.tolist() == frame(1)[0].columns.tolist()
    assert softwood.TreeEnsembleRegressor(max_columns=40, **SMALL).fit(*table(50)).selected_columns_.tolist() == [
        *range(30)
    ]


def test_exports_take_the_selected_columns_only(of_array, of_frame, tmp_path):
    header = export(of_frame, tmp_path / "few.c")[0].read_text()
    assert re.search(r"#define FEW_N_COLUMNS 4\b", header)
    assert all(name in header for name in of_frame.selected_columns_)
    onnx = pytest.importorskip("onnx")
    export(of_frame, tmp_path / "few.onnx")
    assert [value.name for value in onnx.load(tmp_path / "few.onnx").graph.input] == [*of_frame.selected_columns_]
    torch = pytest.importorskip("softwood.torch")
    X, _ = table(20)
    module = torch.from_model(of_array)
    scores = module(module.read(X)).detach().numpy()[:, 0]
    head = of_array.model_.head
    np.testing.assert_allclose(scores * head.target_scale + head.target_mean, of_array.predict(X), rtol=1e-4)


def test_other_ways_to_train_keep_the_columns():
    X, y = table(300)
    wide, target = table(100, seed=1)
    fitted = softwood.TreeEnsembleRegressor(max_columns=4, **SMALL, warm_start=True)
    fitted.fit(X, y, eval_set=(wide, target))
    first = fitted.selected_columns_.tolist()
    fitted.fit(X, y, eval_set=(wide, target))
    assert fitted.selected_columns_.tolist() == first == INFORMATIVE
    pieces = softwood.TreeEnsembleRegressor(max_columns=4, **SMALL)
    pieces.partial_fit(X, y).partial_fit(wide, target)
    assert pieces.selected_columns_.tolist() == INFORMATIVE
    assert pieces.predict(wide).shape == pieces.predict(wide[:, INFORMATIVE]).shape == (100,)
    assert fitted.compress(X).selected_columns_.tolist() == INFORMATIVE


def test_monotone_columns_may_be_among_those_left_out():
    X, y = table(300)
    signs = np.zeros(30, dtype=int)
    signs[[0, 11]] = 1
    fitted = softwood.TreeEnsembleRegressor(max_columns=4, monotonic_cst=signs, **SMALL).fit(X, y)
    assert 11 in fitted.selected_columns_
    rising = np.repeat(X[:1], 50, axis=0)
    rising[:, 11] = np.linspace(-4, 4, 50)
    for model in (fitted, fitted.compress(X)):
        assert np.diff(model.predict(rising)).min() >= 0


@pytest.mark.parametrize("given", [["a", "b"], ["c3", 7], [f"c{j}" for j in (3, 11, 17, 25)], ["c3"] * 40])
def test_files_that_lie_about_their_columns_are_refused(of_frame, tmp_path, given):
    of_frame.save(tmp_path / "model.safetensors")
    metadata, arrays = read_container(tmp_path / "model.safetensors")
    arrays["given_columns"] = pack_text(str(given).replace("'", '"'))
    write_container(tmp_path / "model.safetensors", metadata, arrays)
    with pytest.raises(ModelFileError, match="columns"):
        softwood.load(tmp_path / "model.safetensors")
