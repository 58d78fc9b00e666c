"""Model files and checkpoints that are whole but lie: refused, or as good as honest ones."""

from __future__ import annotations

import zlib

import numpy as np
import pandas as pd
import pytest

import softwood
from mutants import File, mutants
from softwood import explain
from softwood.export import export
from softwood.model.container import ModelFileError
from softwood.training.losses import Loss

TINY = {"n_members": 2, "n_trees": 2, "depth": 2, "max_epochs": 2, "random_state": 0, "n_jobs": 1}
N_MODEL_MUTANTS = 2000


def table(n=40, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "size": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
            "colour": rng.choice(np.array(["red", "blue", None], dtype=object), n),
            "city": rng.choice([f"city {i}" for i in range(12)], n),
            "since": pd.date_range("2020-01-01", periods=n, freq="31h"),
        }
    )


MODELS = {
    "binary": (softwood.TreeEnsembleClassifier, {}, lambda X: X["size"] > 0),
    "multiclass, batch norm": (
        softwood.TreeEnsembleClassifier,
        {"batch_norm": True},
        lambda X: np.array(["a", "b", "c"])[np.arange(len(X)) % 3],
    ),
    "quantiles": (
        softwood.TreeEnsembleRegressor,
        {"loss": Loss("quantile", quantiles=(0.1, 0.9)), "encoding": "standard"},
        lambda X: np.arange(len(X)) * 2.0,
    ),
    "poisson": (softwood.TreeEnsembleRegressor, {"loss": "poisson"}, lambda X: np.arange(len(X)) % 4),
    "several labels": (
        softwood.TreeEnsembleClassifier,
        {"activation": "logistic"},
        lambda X: pd.DataFrame({"large": X["size"] > 0, "red": X["colour"] == "red"}).astype(int),
    ),
    "some columns, two targets": (
        softwood.TreeEnsembleRegressor,
        {"max_columns": 2, "monotonic_cst": {"size": 1}},
        lambda X: np.column_stack([np.arange(len(X)), X["size"].fillna(0)]),
    ),
    "compact": (softwood.TreeEnsembleRegressor, {"compact": True}, lambda X: X["size"].fillna(0)),
    "paper": (softwood.TreeEnsembleClassifier, {"recipe": "paper"}, lambda X: X["size"] > 0),
}


def rows_for(model):
    """Three rows of the columns that a model asks for."""
    X = table().iloc[:3]
    cells = {"numeric": X["size"], "boolean": X["size"] > 0, "category": X["colour"], "datetime": X["since"]}
    kinds = zip(model.column_names, model.preprocessor.kinds, strict=True)
    return pd.DataFrame({name: cells[kind] for name, kind in kinds})


def use(path, folder):
    """Predict, explain and export as a user might; the model is refused, or nothing goes wrong."""
    model = softwood.load(path)
    X = rows_for(model.model_)
    predicted = model.predict_proba(X) if hasattr(model, "classes_") else model.predict(X)
    assert not np.isnan(predicted).any()
    assert model.predict(X).shape[0] == len(X)
    assert np.isfinite(model.feature_importances_).all()
    path_ = explain.decision_path(model, X, 0)
    assert np.isfinite(path_.raw_scores).all()
    assert np.isfinite(explain.column_contributions(model, X, background=X).values).all()
    assert all(str(rule) for rule in explain.rules(model, X, 0))
    explain.importances(model)
    export(model, folder / "m.c")
    repr(model)


@pytest.mark.parametrize("name", MODELS)
def test_mutants_of_model_files_are_refused_or_work(name, tmp_path):
    kind, options, target = MODELS[name]
    X = table()[["size", "city"]] if name == "paper" else table()
    honest = tmp_path / "honest.safetensors"
    options = {**TINY, "n_members": 1, **options} if name == "paper" else {**TINY, **options}
    kind(**options).fit(X, target(X)).save(honest)
    path, refused, broken = tmp_path / "mutant.safetensors", 0, []
    use(honest, tmp_path)
    for what, file in mutants(honest.read_bytes(), "model", N_MODEL_MUTANTS // len(MODELS), seed=len(name)):
        path.write_bytes(file.contents())
        try:
            use(path, tmp_path)
        except ModelFileError:
            refused += 1
        except Exception as error:
            broken.append(f"{what}: {type(error).__name__}: {error}")
    assert broken == []
    assert 0.5 < refused / (N_MODEL_MUTANTS // len(MODELS)) < 0.99


# Checkpoints --------------------------------------------------------------------------------------------------------


def checksum(arrays):
    total = 0
    for name in sorted(arrays):
        total = zlib.crc32(np.ascontiguousarray(arrays[name]).data, zlib.crc32(name.encode(), total))
    return total


CHECKPOINTS = {"lookups": {"encoding": "auto"}, "linear": {"encoding": "piecewise", "batch_norm": True}}


@pytest.fixture(params=CHECKPOINTS)
def interrupted(request, tmp_path):
    """A checkpoint after two epochs of four, and a function that trains on from a file."""
    path, X = tmp_path / "run.checkpoint", table()
    options = {**TINY, **CHECKPOINTS[request.param], "max_epochs": 4, "patience": None}

    def resume(every=30.0):
        model = softwood.TreeEnsembleRegressor(**options)
        return model.fit(X, np.arange(40.0), checkpoint=path, resume=True, checkpoint_every=every)

    from softwood.training import loop

    write, written = loop.write_checkpoint, []

    def keep_second(target, *state):
        write(target, *state)
        written.append(path.read_bytes())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "write_checkpoint", keep_second)
        resume(every=0.0)
    path.write_bytes(written[1])
    return path, resume


def test_mutants_of_checkpoints_are_refused_or_train_on(interrupted):
    path, resume = interrupted
    honest = path.read_bytes()
    refused, broken, n = 0, [], 250
    for what, file in mutants(honest, "state", n, seed=3):
        if isinstance(file.data, dict) and "checksum" in file.data and "checksum" not in what:
            file.data["checksum"] = checksum(file.arrays)
        path.write_bytes(file.contents())
        try:
            model = resume()
            assert np.isfinite(model.predict(table().iloc[:3])).all()
        except ModelFileError:
            refused += 1
        except Exception as error:
            broken.append(f"{what}: {type(error).__name__}: {error}")
    assert broken == []
    assert 0.5 < refused / n < 0.99


def test_a_checkpoint_cannot_ask_for_two_thousand_million_epochs(interrupted):
    path, resume = interrupted
    file = File.parse(path.read_bytes(), "state")
    file.data["next_epoch"] = -(2**31)
    path.write_bytes(file.contents())
    with pytest.raises(
        ModelFileError, match=r"is damaged \(its next epoch is -2147483648\): remove it and start again"
    ):
        resume()


def test_an_honest_checkpoint_trains_on_to_the_same_model(interrupted):
    path, resume = interrupted
    resumed = resume()
    path.unlink()
    np.testing.assert_array_equal(resumed.predict(table()), resume().predict(table()))
