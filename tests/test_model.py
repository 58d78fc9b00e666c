"""Models, their files, and files that are not what they seem."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

import softwood
from fitted_models import reference_scores
from softwood.model.container import ModelFileError
from softwood.model.model import Model
from softwood.model.packing import pack_floats, pack_integers
from softwood.model.parts import Head
from softwood.model.whole_file import write_whole
from softwood.training.losses import Loss

SMALL = {"n_members": 2, "n_trees": 4, "depth": 3, "max_epochs": 3, "random_state": 0}


def mixed_table(n=120, seed=0):
    """Numbers with holes, few and many categories, booleans and dates."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "size": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
            "größe": rng.integers(0, 5, n),
            "colour": rng.choice(["red", "blue", None], n),
            "city": rng.choice([f"city {i}" for i in range(15)], n),
            "member": rng.random(n) < 0.5,
            "since": pd.date_range("2020-01-01", periods=n, freq="31h"),
        }
    )


@pytest.fixture(scope="module")
def classifier():
    X = mixed_table()
    return softwood.TreeEnsembleClassifier(**SMALL).fit(X, np.where(X["size"] > 0, "yes", "no"))


@pytest.fixture
def saved(classifier, tmp_path):
    path = tmp_path / "model.safetensors"
    classifier.save(path)
    return path


def rewrite(path, change):
    """Load a file's metadata and arrays, change them, and write the file anew."""
    arrays = load_file(path)
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))["__metadata__"]
    model = json.loads(header["model"])
    change(header, model, arrays)
    save_file(arrays, path, metadata={**header, "model": json.dumps(model)})


# Round trips --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_norm": True}, {"n_members": 1, "max_features": 1.0}, {"encoding": "piecewise", "gamma_end": 0.1}],
)
def test_predictions_after_load_are_equal_to_the_bit(options, tmp_path):
    X = mixed_table()
    y = np.where(X["size"] > 0, "yes", "no")
    before = softwood.TreeEnsembleClassifier(**{**SMALL, **options}).fit(X, y)
    before.save(tmp_path / "m")
    after = softwood.load(tmp_path / "m")
    other = mixed_table(seed=1)
    np.testing.assert_array_equal(before.predict_proba(other), after.predict_proba(other))
    np.testing.assert_array_equal(before.predict(other), after.predict(other))
    np.testing.assert_array_equal(before.feature_importances_, after.feature_importances_)
    np.testing.assert_array_equal(before.feature_names_in_, after.feature_names_in_)
    assert after.history_ == before.history_
    assert after.get_params() == before.get_params()


@pytest.mark.parametrize("y", [np.arange(120) % 3, np.arange(120) % 2 == 0, np.array(list("abcd") * 30, dtype=object)])
def test_class_labels_keep_their_type(y, tmp_path):
    before = softwood.TreeEnsembleClassifier(**SMALL).fit(mixed_table(), y)
    before.save(tmp_path / "m")
    after = softwood.load(tmp_path / "m")
    assert after.classes_.dtype == before.classes_.dtype
    assert after.classes_.tolist() == before.classes_.tolist()


@pytest.mark.parametrize(
    "loss",
    [
        "squared_error",
        "poisson",
        Loss("quantile", quantiles=(0.9, 0.1)),
        lambda p, y, w: (p - y, np.mean((p - y) ** 2)),
    ],
)
def test_regressors_after_load(loss, tmp_path):
    X = mixed_table()
    before = softwood.TreeEnsembleRegressor(loss=loss, **SMALL).fit(X, np.arange(120.0))
    before.save(tmp_path / "m")
    np.testing.assert_array_equal(softwood.load(tmp_path / "m").predict(X), before.predict(X))


def test_loaded_model_can_be_trained_further(saved):
    loaded = softwood.load(saved).set_params(warm_start=True)
    X = mixed_table()
    before = loaded.predict_proba(X)
    loaded.fit(X, np.where(X["size"] > 0, "yes", "no"))
    assert not np.array_equal(loaded.predict_proba(X), before)


def test_file_of_format_version_1_is_still_read():
    folder = Path(__file__).parent / "data"
    model = softwood.load(folder / "model-format-1.safetensors")
    expected = json.loads((folder / "model-format-1.json").read_text())
    X = pd.DataFrame(expected["X"])
    X["since"] = pd.to_datetime(X["since"])
    np.testing.assert_allclose(model.predict_proba(X), expected["probability"], rtol=1e-6)


def test_pickle_holds_no_training_rows(classifier):
    again = pickle.loads(pickle.dumps(classifier))
    X = mixed_table(seed=1)
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))
    assert again.model_.importance_rows is None


# Writing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failed_write_leaves_the_old_file(step, tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError("disk is full")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="disk is full"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_is_missing_is_named(classifier, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"The folder of '.*m\.safetensors' must exist; it does not"):
        classifier.save(tmp_path / "missing" / "m.safetensors")


def test_kill_while_saving_leaves_a_whole_file(classifier, saved):
    name = repr(str(saved))
    program = f"import softwood; m = softwood.load({name}); print('go', flush=True)\nwhile True: m.save({name})"
    for delay in (0.0, 0.003, 0.01):
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        X = mixed_table(seed=1)
        np.testing.assert_array_equal(softwood.load(saved).predict_proba(X), classifier.predict_proba(X))


# Files that are not what they seem ----------------------------------------------------------------------------------


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        softwood.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    "contents", [b"", b"short", b"not a model, but long enough to be one", b"\x02\0\0\0\0\0\0\0[]"]
)
def test_other_files_are_not_models(contents, tmp_path):
    (tmp_path / "m").write_bytes(contents)
    with pytest.raises(ModelFileError, match="is not a softwood model"):
        softwood.load(tmp_path / "m")


def test_other_safetensors_files_are_not_models(tmp_path):
    save_file({"a": np.zeros(3)}, tmp_path / "m")
    with pytest.raises(ModelFileError, match="is a safetensors file, but not a softwood model"):
        softwood.load(tmp_path / "m")


def test_every_truncation_is_reported(saved):
    contents = saved.read_bytes()
    for length in np.linspace(9, len(contents) - 1, 40).astype(int):
        saved.write_bytes(contents[:length])
        with pytest.raises(ModelFileError, match=r"truncated|not a softwood model"):
            softwood.load(saved)
    saved.write_bytes(contents + b"more")
    with pytest.raises(ModelFileError, match=r"is damaged: its arrays should have .* bytes"):
        softwood.load(saved)


def test_newer_version_is_reported(saved):
    rewrite(saved, lambda header, model, arrays: header.update(format_version="3"))
    with pytest.raises(ModelFileError, match=r"newer softwood: it has format version 3, .* up to 2\. Upgrade"):
        softwood.load(saved)


HONEST = {"__metadata__": {"format": "softwood", "format_version": "1", "model": "{}"}}
HUGE_ARRAY = {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}


@pytest.mark.parametrize(("header", "length"), [({**HONEST, "a": HUGE_ARRAY}, None), (HONEST, 1 << 60)])
def test_header_that_announces_too_much_takes_no_memory(header, length, tmp_path):
    path = tmp_path / "m"
    text = json.dumps(header).encode()
    path.write_bytes((length or len(text)).to_bytes(8, "little") + text + bytes(100))
    program = (
        "import resource, softwood.model.file as f\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))\n"
        f"try: f.read_container({str(path)!r})\n"
        "except f.ModelFileError as e: print('truncated' in str(e))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "True"


def test_files_with_plain_biases_and_leaves_are_read(saved):
    expected = softwood.load(saved)

    def unpack(header, metadata, arrays):
        for i, member in enumerate(metadata["members"]):
            trees = expected.model_.members[i].trees
            arrays[f"members.{i}.split_bias"], arrays[f"members.{i}.leaf_weight"] = trees.split_bias, trees.leaf_weight
            del member["n_trees"], member["depth"]

    rewrite(saved, unpack)
    found = softwood.load(saved)
    for member, other in zip(found.model_.members, expected.model_.members, strict=True):
        np.testing.assert_array_equal(member.trees.leaf_weight, other.trees.leaf_weight)
        np.testing.assert_array_equal(member.trees.split_bias, other.trees.split_bias)


def floats_like(metadata, value):
    member = metadata["members"][0]
    return pack_floats(np.full((member["n_trees"], 2 ** member["depth"] - 1), value, dtype=np.float32))


def packed_like(arrays, name, value):
    """As many integers as the array has, all the same."""
    dtype = np.dtype(np.int16 if "value" in name else np.int32)
    n_bytes = len(zlib.decompress(arrays[f"members.0.{name}"].tobytes()))
    return pack_integers(np.full(n_bytes // dtype.itemsize, value, dtype))


LIES = {
    "no members": lambda h, m, a: m.update(members=[]),
    "members without arrays": lambda h, m, a: m["members"].extend(m["members"] * 3),
    "unknown encoding": lambda h, m, a: m["members"][0].update(encoding="x"),
    "gamma": lambda h, m, a: m["members"][0].update(gamma=0),
    "gamma too large for a float": lambda h, m, a: m["members"][0].update(gamma=10**400),
    "activation": lambda h, m, a: m["members"][0].update(activation="relu"),
    "task": lambda h, m, a: m["head"].update(task="chess"),
    "loss": lambda h, m, a: m["head"]["loss"].update(name="__import__"),
    "unknown field of the loss": lambda h, m, a: m["head"]["loss"].update(evil=1),
    "classes": lambda h, m, a: m["head"]["classes"].update(values=["yes"]),
    "type of classes": lambda h, m, a: m["head"]["classes"].update(dtype="<U1000000000"),
    "objects as classes": lambda h, m, a: m["head"]["classes"].update(values=[{}, []]),
    "importances": lambda h, m, a: a.update(importances=np.zeros(2)),
    "number of target columns": lambda h, m, a: m["preprocessor"].update(n_target_columns=10**12),
    "kind of column": lambda h, m, a: m["preprocessor"]["columns"][0].update(kind="picture"),
    "unit": lambda h, m, a: m["preprocessor"]["columns"][0].update(unit=0),
    "levels": lambda h, m, a: m["preprocessor"]["columns"][2].update(levels=[1, {}, []]),
    "calendar": lambda h, m, a: m["preprocessor"]["columns"][5].update(calendar=["century"]),
    "no columns": lambda h, m, a: m["preprocessor"].update(columns=[]),
    "a base column that is not there": lambda h, m, a: m["preprocessor"]["lookups"][0].__setitem__(0, 99),
    "a code that is not there": lambda h, m, a: m["preprocessor"]["lookups"][2].__setitem__(2, 9),
    "too few knots": lambda h, m, a: a.update({"lookups.knots": a["lookups.knots"][:-1]}),
    "knots out of order": lambda h, m, a: a["lookups.knots"].fill(1),
    "NaN in knots": lambda h, m, a: a["lookups.knots"].fill(np.nan),
    "NaN in a bias": lambda h, m, a: a.update({"members.0.split_bias": floats_like(m, np.nan)}),
    "biases of other trees": lambda h, m, a: m["members"][0].update(n_trees=m["members"][0]["n_trees"] + 1),
    "no trees": lambda h, m, a: m["members"][0].update(n_trees=0),
    "endless depth": lambda h, m, a: m["members"][0].update(depth=10**6),
    "type of biases": lambda h, m, a: a.update({"members.0.split_bias": a["members.0.split_bias"].astype(float)}),
    "shape of splits": lambda h, m, a: a.update({"members.0.split_bias": np.zeros((4, 8), np.float32)}),
    "empty splits": lambda h, m, a: a.update({"members.0.split_bias": np.zeros((0, 1 << 40), np.float32)}),
    "shape of leaves": lambda h, m, a: a.update({"members.0.leaf_weight": np.zeros((4, 7, 1), np.float32)}),
    "empty leaves": lambda h, m, a: a.update({"members.0.leaf_weight": np.zeros((0, 1 << 40, 1), np.float32)}),
    "step": lambda h, m, a: m["members"][0].update(step=0.3),
    "tables of other columns": lambda h, m, a: a.update({"members.0.table_column": packed_like(a, "table_column", 99)}),
    "a column twice": lambda h, m, a: a.update({"members.0.table_column": packed_like(a, "table_column", 0)}),
    "too many tables": lambda h, m, a: a.update({"members.0.table_count": packed_like(a, "table_count", 99)}),
    "too few values": lambda h, m, a: a.update({"members.0.values": pack_integers(np.zeros(3, np.int16))}),
    "large values": lambda h, m, a: a.update({"members.0.last_values": packed_like(a, "last_values", 32767)}),
    "bytes that are not deflated": lambda h, m, a: a["members.0.values"].fill(7),
    "missing array": lambda h, m, a: a.pop("members.0.offset"),
    "history": lambda h, m, a: m.update(history=[1]),
    "nothing at all": lambda h, m, a: m.clear(),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_inconsistent_files_are_refused(lie, saved):
    rewrite(saved, lie)
    with pytest.raises(ModelFileError, match="is damaged"):
        softwood.load(saved)


def test_deeply_nested_json_is_refused(saved):
    contents = saved.read_bytes()
    nested = b"[" * 1_000_000
    saved.write_bytes(len(nested).to_bytes(8, "little") + nested)
    with pytest.raises(ModelFileError):
        softwood.load(saved)
    saved.write_bytes(contents)
    arrays = load_file(saved)
    metadata = {"format": "softwood", "format_version": "1", "model": "[" * 100_000}
    save_file(arrays, saved, metadata=metadata)
    with pytest.raises(ModelFileError, match="is damaged"):
        softwood.load(saved)


def test_random_damage_never_crashes(saved):
    contents = saved.read_bytes()
    rng = np.random.default_rng(0)
    header = int.from_bytes(contents[:8], "little")
    X = mixed_table(20, seed=1)
    n_refused = 0
    for _ in range(150):
        damaged = bytearray(contents)
        for position in rng.integers(0, header + 8, rng.integers(1, 4)):
            damaged[position] = rng.integers(256) if rng.random() < 0.5 else ord("0") + rng.integers(10)
        saved.write_bytes(damaged)
        try:
            model = softwood.load(saved)
        except ModelFileError:
            n_refused += 1
            continue
        try:
            model.predict_proba(X)
        except (ValueError, TypeError):  # a changed kind of column, say
            continue
    assert 50 < n_refused < 150  # a changed digit of the history harms nothing


# Heads --------------------------------------------------------------------------------------------------------------


def test_heads_by_hand():
    scores = np.array([[0.0], [np.log(3)]])
    binary = Head("binary", Loss("binary_cross_entropy"), np.array([0, 1]))
    np.testing.assert_allclose(binary.predictions(scores), [[0.5, 0.5], [0.25, 0.75]])
    squared = Head("regression", Loss("squared_error"), None, np.array([10.0]), np.array([2.0]))
    np.testing.assert_allclose(squared.predictions(np.array([[1.0], [-1.0]])), [12, 8])
    poisson = Head("regression", Loss("poisson"), None, np.zeros(1), np.ones(1))
    np.testing.assert_allclose(poisson.predictions(scores), [1, 3])


def test_quantiles_never_cross():
    loss = Loss("quantile", quantiles=(0.9, 0.1, 0.5))
    head = Head("regression", loss, None, np.zeros(1), np.ones(1))
    np.testing.assert_array_equal(head.predictions(np.array([[1.0, 3.0, 2.0]])), [[3, 1, 2]])


def test_raw_scores_are_the_mean_of_members(classifier):
    X = mixed_table(seed=1)
    model = classifier.model_
    np.testing.assert_allclose(model.raw_scores(X), reference_scores(model, X), rtol=1e-6, atol=1e-6)


def test_prediction_does_not_depend_on_blocks(classifier, monkeypatch):
    X = mixed_table(100, seed=1)
    whole = classifier.model_.raw_scores(X)
    monkeypatch.setattr("softwood.model.predictor._BLOCK_ROWS", 7)
    np.testing.assert_array_equal(classifier.model_.raw_scores(X), whole)


def test_wrong_number_of_columns(classifier):
    with pytest.raises(ValueError, match=r"yet now missing:\n- size"):
        classifier.model_.raw_scores(mixed_table().iloc[:, 1:])


def test_importances_find_the_column_that_matters():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 5))
    fitted = softwood.TreeEnsembleClassifier(n_members=2, max_epochs=20, random_state=0).fit(X, X[:, 2] > 0)
    assert fitted.feature_importances_.argmax() == 2
    assert fitted.feature_importances_[2] > 0.5
    np.testing.assert_allclose(fitted.feature_importances_.sum(), 1)


def test_model_class_loads_without_an_estimator(saved, classifier):
    model = Model.load(saved)
    X = mixed_table(seed=1)
    np.testing.assert_array_equal(model.predict_proba(X), classifier.predict_proba(X))
    np.testing.assert_array_equal(model.predict(X), classifier.predict(X))
    assert model.column_names == list(X.columns)
