"""Light serving, threads that others limit, and warm starts that grow a model."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import softwood
from softwood import Loss, TreeEnsembleClassifier, TreeEnsembleRegressor

SETTINGS = {"n_members": 2, "n_trees": 4, "depth": 2, "max_epochs": 4, "random_state": 0}
X = np.random.default_rng(0).normal(size=(120, 3))
Y = X[:, 0] - X[:, 1]


def test_a_predictor_is_loaded_without_scikit_learn_pandas_and_scipy(tmp_path):
    model = TreeEnsembleClassifier(**SETTINGS).fit(X, Y > 0)
    model.save(tmp_path / "model.safetensors")
    np.save(tmp_path / "X.npy", X)
    code = (
        "import sys, numpy as np, softwood; predictor = softwood.load_predictor(sys.argv[1]); X = np.load(sys.argv[2]);"
        "np.save(sys.argv[3], predictor.predict_proba(X)); predictor.predict(X); predictor.predict_row(X[0].tolist());"
        "found = {'sklearn', 'pandas', 'scipy', 'narwhals', 'torch'} & set(sys.modules); assert not found, found"
    )
    paths = [str(tmp_path / name) for name in ("model.safetensors", "X.npy", "found.npy")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True, timeout=120)
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), model.predict_proba(X))
    with pytest.raises(softwood.model.ModelFileError):
        softwood.load_predictor(tmp_path / "X.npy")


def test_importing_the_torch_layer_needs_neither_scikit_learn_nor_pandas():
    pytest.importorskip("torch")
    code = "import sys, softwood.torch; found = {'sklearn', 'pandas'} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.fixture
def threads(monkeypatch):
    seen = []

    def note(*args, **options):
        seen.append(options["n_threads"])
        return fit_members(*args, **options)

    from softwood.training import fit_members

    monkeypatch.setattr("softwood.tabular.committee.fit_members", note)
    monkeypatch.setattr("softwood.tabular.threads.get_num_threads", lambda: 64)
    return seen


def test_limits_of_others_are_respected(threads):
    with threadpool_limits(1):
        TreeEnsembleRegressor(**SETTINGS).fit(X, Y)
    TreeEnsembleRegressor(**SETTINGS, n_jobs=3).fit(X, Y)
    assert threads == [1, 3]


def test_a_file_cannot_ask_for_threads(tmp_path):
    TreeEnsembleRegressor(**SETTINGS, n_jobs=1000).fit(X, Y).save(tmp_path / "m.safetensors")
    loaded = softwood.load(tmp_path / "m.safetensors")
    assert loaded.n_jobs is None
    assert loaded.n_trees == 4


def squared_error(scores, targets, weight):
    return scores - targets, float(np.mean((scores - targets) ** 2) / 2)


def test_a_loaded_model_goes_on_with_the_function_that_its_file_does_not_hold(tmp_path):
    TreeEnsembleRegressor(**SETTINGS, loss=squared_error).fit(X, Y).save(tmp_path / "model.safetensors")
    model = softwood.load(tmp_path / "model.safetensors").set_params(warm_start=True)
    with pytest.raises(ValueError, match="pass loss= again"):
        model.fit(X, Y)
    before = model.score(X, Y)
    assert model.set_params(loss=squared_error, max_epochs=20).fit(X, Y).score(X, Y) > before


@pytest.mark.parametrize("max_features", [1.0, 0.34])
def test_warm_start_adds_trees_and_members(max_features):
    model = TreeEnsembleRegressor(**SETTINGS, warm_start=True, max_features=max_features).fit(X, Y)
    before = model.predict(X)
    trees = [member.trees for member in model.model_.members]
    model.set_params(n_trees=7, n_members=3, learning_rate=1e-12).fit(X, Y)
    grown = [member.trees for member in model.model_.members]
    assert [len(one.leaf_weight) for one in grown] == [7, 7, 7]
    for old, new in zip(trees, grown, strict=False):
        np.testing.assert_allclose(new.leaf_weight[:4], old.leaf_weight, atol=1e-6)
        np.testing.assert_allclose(new.leaf_weight[4:], 0, atol=1e-6)
    assert np.abs(model.predict(X) - before).max() < np.abs(before).max()
    model.set_params(learning_rate=0.02).fit(X, Y)
    assert model.score(X, Y) > 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_trees": 3}, "With warm_start n_trees must not get smaller; the fitted model has 4, got 3."),
        ({"n_members": 1}, "With warm_start n_members must not get smaller; the fitted model has 2, got 1."),
        ({"depth": 3}, "With warm_start depth must stay as it is; the fitted model has 2, got 3."),
        ({"encoding": "standard"}, "With warm_start encoding must stay as it is; the fitted model has 'lookup', got"),
        ({"batch_norm": True}, "With warm_start batch_norm must stay as it is; the fitted model has False, got True."),
        ({"recipe": "paper", "n_members": "auto"}, "With warm_start batch_norm must stay as it is"),
        ({"loss": "huber"}, "the loss must stay as it is; the fitted model has 'squared_error', got 'huber'. Set it"),
        ({"loss": Loss("squared_error", delta=2.0)}, "the loss must stay as it is; the fitted model has Loss"),
    ],
)
def test_warm_start_cannot_shrink_or_turn_a_model(change, message):
    model = TreeEnsembleRegressor(**SETTINGS, warm_start=True).fit(X, Y)
    with pytest.raises(ValueError, match=message):
        model.set_params(**change).fit(X, Y)
