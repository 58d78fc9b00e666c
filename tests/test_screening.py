"""Wide sparse matrices: which columns are read, and that nothing of the dense size is ever made."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import softwood
from fitted_models import SMALL
from softwood import TreeEnsembleClassifier, TreeEnsembleRegressor
from softwood.tabular.reading.table import read_table
from softwood.tabular.screening import explained_shares

N, P = 300, 20_000
RNG = np.random.default_rng(0)
X = sparse.csr_array(sparse.random(N, P, density=0.002, random_state=RNG))
MADE = sparse.csr_array(np.where(RNG.random((N, 2)) < 0.3, RNG.uniform(0.5, 1, (N, 2)), 0))
X = sparse.hstack([X[:, :7], MADE[:, [0]], X[:, 8:19_990], MADE[:, [1]], X[:, 19_991:]], format="csr")
Y = X[:, [7]].toarray()[:, 0] + X[:, [19_990]].toarray()[:, 0]
SETTINGS = SMALL | {"max_epochs": 40, "learning_rate": 0.02}


@pytest.fixture(scope="module")
def model():
    return TreeEnsembleRegressor(**SETTINGS).fit(X, Y)


def test_shares_are_squared_correlations():
    usual = int(np.bincount(X.indices[X.indices > 7]).argsort()[-3])  # after the two that make the target
    some = X[:, [usual, 7, 19_990]].toarray() * [1, 1e200, 1e-200]
    weight = RNG.uniform(0, 2, N)
    targets = np.column_stack([Y, RNG.normal(size=N)])
    found = explained_shares(sparse.csr_array(some), targets, weight)
    scaled = some * [1, 1e-200, 1e200]
    for j in range(3):
        r = [np.cov(scaled[:, j], y, aweights=weight) for y in targets.T]
        assert found[j] == pytest.approx(sum(c[0, 1] ** 2 / (c[0, 0] * c[1, 1]) for c in r), rel=1e-9)
    rare = sparse.csr_array(([1.0, 1.0, np.nan], ([0, 1, 2], [0, 0, 0])), shape=(N, 1))
    assert explained_shares(rare, targets, weight) == 0


def test_the_columns_that_matter_are_found_and_learned(model):
    assert {7, 19_990} <= set(model.selected_columns_.tolist())
    assert len(model.selected_columns_) == 160
    assert model.n_features_in_ == P
    assert set(np.argsort(-model.feature_importances_)[:2].tolist()) == {7, 19_990}
    assert model.score(X, Y) > 0.8


def test_no_dense_copy_at_fit_and_predict():
    few = TreeEnsembleRegressor(**SETTINGS | {"max_epochs": 2, "n_members": 1})
    few.fit(X[:50], Y[:50]).predict(X[:50])  # imports
    tracemalloc.start()
    few.fit(X, Y)
    few.predict(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < N * P * 4 / 2  # half of what a dense float32 copy would take


def test_containers_files_and_dense_rows_agree(model, tmp_path):
    expected = model.predict(X)
    np.testing.assert_array_equal(TreeEnsembleRegressor(**SETTINGS).fit(X.tocsc(), Y).predict(X), expected)
    np.testing.assert_array_equal(model.predict(X.tocoo()), expected)
    np.testing.assert_array_equal(model.predict(X[:20].toarray()), expected[:20])
    model.save(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(softwood.load(tmp_path / "model.safetensors").predict(X), expected)
    np.testing.assert_array_equal(softwood.load_predictor(tmp_path / "model.safetensors").predict(X), expected)


def test_frames_of_sparse_columns_are_sparse_matrices():
    p = 6000  # pandas is slow with many columns
    names = [f"word {j}" for j in range(p)]
    frame = pd.DataFrame.sparse.from_spmatrix(X[:, :p], columns=names)
    few = TreeEnsembleRegressor(**SETTINGS | {"max_epochs": 2, "n_members": 1}).fit(X[:, :p], Y)
    assert sparse.issparse(read_table(frame).matrix)
    named = TreeEnsembleRegressor(**SETTINGS | {"max_epochs": 2, "n_members": 1}).fit(frame, Y)
    predicted = named.predict(frame)
    assert named.feature_names_in_[7] == "word 7"
    np.testing.assert_array_equal(predicted, few.predict(X[:, :p]))
    order = np.argsort(RNG.random(p))
    np.testing.assert_array_equal(named.predict(frame.iloc[:20, order]), predicted[:20])
    np.testing.assert_array_equal(named.predict(pd.DataFrame(X[:9, :p].toarray(), columns=names)), predicted[:9])


def test_frames_with_other_columns_are_read_column_by_column():
    cells = np.where(np.arange(60) % 3 == 0, np.nan, np.arange(60.0))
    frame = pd.DataFrame({"holes": pd.arrays.SparseArray(cells), "ones": pd.arrays.SparseArray(np.arange(60) % 2)})
    assert read_table(frame).matrix is None
    np.testing.assert_array_equal(read_table(frame).numbers(0), cells)
    mixed = frame[["ones"]].assign(name=["a", "b"] * 30)
    assert read_table(mixed).kinds == ("numeric", "category")
    np.testing.assert_array_equal(read_table(mixed).numbers(0), np.arange(60) % 2)


def test_classes_labels_pieces_evaluation_sets_and_fewer_columns():
    classes = np.digitize(Y, [0.1, 0.8])
    model = TreeEnsembleClassifier(**SETTINGS).fit(X, classes, eval_set=(X[:100], classes[:100]))
    assert {7, 19_990} <= set(model.selected_columns_.tolist())
    assert model.score(X, classes) > 0.8
    several = TreeEnsembleClassifier(**SETTINGS).fit(X, np.column_stack([Y > 0, Y > 1]))
    assert {7, 19_990} <= set(several.selected_columns_.tolist())
    fewer = TreeEnsembleRegressor(**SMALL, max_columns=90).fit(X, Y)
    assert len(fewer.selected_columns_) == 90
    assert {7, 19_990} <= set(fewer.selected_columns_.tolist())
    pieces = TreeEnsembleRegressor(**SMALL).partial_fit(X[:200], Y[:200]).partial_fit(X[200:], Y[200:])
    assert pieces.predict(X).shape == (N,)


def test_a_narrow_sparse_matrix_keeps_all_columns():
    few = TreeEnsembleRegressor(**SMALL).fit(X[:, :120], Y)
    assert len(few.selected_columns_) == 120
    np.testing.assert_array_equal(
        few.predict(X[:, :120]), TreeEnsembleRegressor(**SMALL).fit(X[:, :120].toarray(), Y).predict(X[:, :120])
    )
