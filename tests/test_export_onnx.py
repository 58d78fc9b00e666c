"""Exported ONNX graphs, run by onnxruntime on raw columns."""

from __future__ import annotations

import builtins

import numpy as np
import pandas as pd
import pytest

import softwood
from fitted_models import NAMES, fitted, predictions, rows
from softwood.export import ExportError, export

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def session(model, path):
    export(model, path)
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def feeds(X):
    """Raw columns as the graph takes them."""
    if isinstance(X, np.ndarray):
        return {"X": X}
    found = {}
    for name, column in X.items():
        if column.dtype.kind == "M":
            values = ((column - pd.Timestamp(0)) / pd.Timedelta(seconds=1)).to_numpy()
        elif pd.api.types.is_string_dtype(column.dtype) or column.dtype == object:
            values = np.array(["" if pd.isna(label) else label for label in column], dtype=object)
        else:
            values = column.to_numpy(dtype=np.float64)
        found[str(name)] = values[:, None]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_same_predictions(name, tmp_path):
    X = rows(name, 1000)
    if name == "mixed":
        X.loc[X["city"].isna(), "city"] = "Ankh-Morpork"  # "" is a city of this table, so no missing one can be said
    graph = session(fitted(name), tmp_path / "model.onnx")
    found = graph.run(None, feeds(X))
    np.testing.assert_allclose(found[-1], predictions(name, X), rtol=1e-5, atol=1e-5)
    if len(found) == 2:
        agree = np.mean(found[0] == fitted(name).predict(X))
        assert agree > 0.99


@pytest.mark.parametrize("name", ["binary", "mixed"])
def test_batches_of_any_size(name, tmp_path):
    graph = session(fitted(name), tmp_path / "model.onnx")
    for n in (3, 64):
        X = rows(name, n)
        assert graph.run(["probabilities"], feeds(X))[0].shape == (n, 2)
    assert graph.get_outputs()[1].shape == ["n", 2]


def test_missing_categories(tmp_path):
    rng = np.random.default_rng(0)
    colour = rng.choice(np.array(["red", "blue", None], dtype=object), 300)
    table = pd.DataFrame({"colour": colour, "size": rng.normal(size=300)})
    y = (colour == None) ^ (table["size"] > 0)  # noqa: E711
    model = softwood.TreeEnsembleClassifier(n_members=1, max_epochs=10, random_state=0).fit(table, y)
    found = session(model, tmp_path / "model.onnx").run(["probabilities"], feeds(table))[0]
    np.testing.assert_allclose(found, model.predict_proba(table), atol=1e-5)


def test_only_standard_operators(tmp_path):
    export(fitted("mixed"), tmp_path / "model.onnx")
    proto = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert {node.domain for node in proto.graph.node} <= {"", "ai.onnx.ml"}
    assert {opset.domain: opset.version for opset in proto.opset_import} == {"": 17, "ai.onnx.ml": 3}


def test_columns_that_cannot_be_named_apart(tmp_path):
    model = softwood.TreeEnsembleClassifier(n_members=1, max_epochs=1)
    table = np.array([["red", "red"], ["blue", "red"]] * 30, dtype=object)
    model.fit(table, np.arange(60) % 2)
    model.model_.preprocessor.columns = [model.model_.preprocessor.columns[0]] * 2
    with pytest.raises(ExportError, match="ONNX needs a distinct name for each input"):
        export(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_without_onnx(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "onnx":
            raise ImportError("no onnx here")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'softwood\[onnx\]'"):
        export(fitted("binary"), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
