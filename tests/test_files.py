"""Reading Parquet files and caching their rows: the bits of a table in memory, clear errors, nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as parquet
import pytest

from cli_calls import ask, complaint
from parquet_tables import FEATURES, FEW, ONE, same, write
from softwood import TreeEnsembleClassifier, TreeEnsembleRegressor, load
from softwood.tabular.out_of_core import files as files_module
from softwood.tabular.out_of_core.files import RowShare, open_files
from softwood.training import row_cache

# Short tables --------------------------------------------------------------------------------------------------------


def test_short_files_give_the_bits_of_a_table_in_memory(frame, labelled, tmp_path):
    expected = TreeEnsembleClassifier(**FEW).fit(frame[FEATURES], frame["label"])
    folder = os.path.dirname(labelled)
    paths = [os.path.join(folder, f"{i}.parquet") for i in range(3)]
    for source in (labelled, folder, paths, pyarrow.dataset.dataset(folder)):
        same(TreeEnsembleClassifier(**FEW).fit(source, "label"), expected, frame[FEATURES])
    weighted = write(frame, tmp_path / "weighted", columns=[*FEATURES, "label", "weight"])
    expected = TreeEnsembleClassifier(**ONE).fit(frame[FEATURES], frame["label"], frame["weight"])
    same(TreeEnsembleClassifier(**ONE).fit(weighted, "label", "weight"), expected, frame[FEATURES])


def test_folders_may_be_named_after_values(frame, tmp_path):
    rows = pa.Table.from_pandas(frame[["a", "b", "colour", "label"]], preserve_index=False)
    parquet.write_to_dataset(rows, tmp_path / "parts", partition_cols=["colour"])
    model = TreeEnsembleClassifier(**ONE).fit(tmp_path / "parts", "label")
    assert list(model.feature_names_in_) == ["a", "b", "colour"]
    assert model.score(frame[["a", "b", "colour"]], frame["label"]) > 0.6


# The cache -----------------------------------------------------------------------------------------------------------


def test_a_cache_is_used_again_and_refused_where_it_does_not_fit(long, frame, tmp_path, monkeypatch):
    columns = [*FEATURES, "label", "weight"]
    source = write(frame, tmp_path / "files", columns=columns)
    cache = tmp_path / "cache"
    fit = {"y": "label", "sample_weight": "weight", "cache": cache}
    model = TreeEnsembleClassifier(**FEW).fit(source, **fit)
    passes = []
    pieces = files_module.TableFiles.pieces
    monkeypatch.setattr(
        files_module.TableFiles, "pieces", lambda self, *rest: (passes.append(0), pieces(self, *rest))[1]
    )
    same(TreeEnsembleClassifier(**FEW).fit(source, **fit), model, frame[FEATURES])
    assert len(passes) == 1  # for the kinds of columns, of which the first piece is read
    TreeEnsembleClassifier(**FEW | {"learning_rate": 0.1, "depth": 2}).fit(source, **fit)

    refused = {
        "another n_bins": (TreeEnsembleClassifier(**FEW | {"n_bins": 7}), fit),
        "other settings": (TreeEnsembleClassifier(**FEW | {"max_columns": 2}), fit),
        "another target, weight or offset": (TreeEnsembleClassifier(**FEW), fit | {"y": "colour"}),
        "other kinds": (TreeEnsembleClassifier(**FEW | {"column_kinds": {"d": "category"}}), fit),
    }
    for words, (estimator, options) in refused.items():
        with pytest.raises(ValueError, match=rf"must be of the same.*{words}.*Remove the folder"):
            estimator.fit(source, **options)
    os.utime(source.replace("*", "1"), (1, 1))
    with pytest.raises(ValueError, match=r"other files \(or they have changed since\)"):
        TreeEnsembleClassifier(**FEW).fit(source, **fit)
    (cache / "cells").write_bytes(b"short")
    with pytest.raises(ValueError, match=r"is damaged .its file 'cells' has another length.: remove the folder"):
        TreeEnsembleClassifier(**FEW).fit(source, **fit)


def test_a_cache_that_was_not_finished_is_written_anew(long, frame, labelled, tmp_path):
    cache = tmp_path / "cache"
    model = TreeEnsembleClassifier(**ONE).fit(labelled, "label", cache=cache)
    (cache / "cache.json").unlink()  # as after a kill
    (cache / "cells").write_bytes(b"half")
    same(TreeEnsembleClassifier(**ONE).fit(labelled, "label", cache=cache), model, frame[FEATURES])
    assert sorted(os.listdir(cache)) == ["cache.json", "cells", "summary.safetensors", "targets"]


def test_a_folder_with_other_files_is_left_alone(long, labelled, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"must be a new or empty folder.*holds 'thesis.txt'"):
        TreeEnsembleClassifier(**ONE).fit(labelled, "label", cache=tmp_path)
    with pytest.raises(ValueError, match="cache must be a folder"):
        TreeEnsembleClassifier(**ONE).fit(labelled, "label", cache=tmp_path / "thesis.txt")
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_nothing_is_left_of_a_temporary_cache_or_after_an_error(long, frame, labelled, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    TreeEnsembleClassifier(**ONE).fit(labelled, "label")
    assert os.listdir(tmp_path) == []

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(row_cache, "_write_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        TreeEnsembleClassifier(**ONE).fit(labelled, "label", cache=tmp_path / "cache")
    assert os.listdir(tmp_path) == []


FULL_DISK = """
import resource, sys
from softwood import TreeEnsembleClassifier
from softwood.tabular.out_of_core import files
files.IN_MEMORY_CELLS = 100
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    TreeEnsembleClassifier(n_members=1, n_trees=4, max_epochs=1).fit(sys.argv[1], "label", cache=sys.argv[2] or None)
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize("cache", ["cache", ""])
def test_a_full_disk(labelled, tmp_path, cache):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    folder = str(tmp_path / cache) if cache else ""
    command = [sys.executable, "-c", FULL_DISK, labelled, folder]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=True)
    where = folder or str(tmp_path)
    assert answer.stdout.startswith(f"The cache needs 0.00 GB in {where}; it cannot be written ([Errno 27]")
    assert "name a folder on another disk with cache=..." in answer.stdout
    assert os.listdir(tmp_path) == []


# Mistakes ------------------------------------------------------------------------------------------------------------


def test_mistakes(frame, tmp_path):
    source = write(frame, tmp_path / "good", columns=[*FEATURES, "label"])
    model = TreeEnsembleClassifier(**ONE)
    folder = tmp_path / "good"

    def fails(error, words, X=source, y="label", **options):
        with pytest.raises(error, match=words):
            model.fit(X, y, **options)

    fails(ValueError, r"X must name Parquet files; no file matches '.*nothing-\*'", str(tmp_path / "nothing-*"))
    fails(ValueError, "the folder '.*empty' has no file that ends in .parquet", _folder(tmp_path / "empty"))
    fails(ValueError, "y must be the name of a column of the files; got 'lable'. They have 'a', 'b'", y="lable")
    fails(TypeError, "y must be the name of a column where X names files; got ndarray", y=np.zeros(3000))
    fails(ValueError, "sample_weight must be the name of a column", sample_weight="wieght")

    (folder / "3.parquet").write_bytes(b"")
    fails(ValueError, r"3.parquet is empty \(0 bytes\)")
    (folder / "3.parquet").write_bytes((folder / "0.parquet").read_bytes()[:-100])
    fails(ValueError, "3.parquet cannot be read .*Check that it is a whole Parquet file")
    data = bytearray((folder / "0.parquet").read_bytes())
    data[200:2000] = os.urandom(1800)  # damaged inside: the end of the file, with its columns, is whole
    (folder / "3.parquet").write_bytes(data)
    fails(ValueError, "3.parquet cannot be read")

    frame[["a", "b", "label"]].to_parquet(folder / "3.parquet")
    fails(ValueError, "All files must have the same columns; .*3.parquet lacks the column 'c', unlike .*0.parquet")
    frame[[*FEATURES, "label", "value"]].to_parquet(folder / "3.parquet")
    fails(ValueError, "3.parquet has a column 'value', unlike")
    frame.assign(a="text")[[*FEATURES, "label"]].to_parquet(folder / "3.parquet")
    fails(
        ValueError,
        "All files must have the same types; column 'a' is (large_)?string in .*3.parquet and float in .*0.parquet",
    )
    frame.assign(label=None)[[*FEATURES, "label"]].to_parquet(folder / "3.parquet")
    fails(ValueError, "The target 'label' must have a value in every row; that of row 3000 is missing")


def _folder(path):
    path.mkdir()
    return path


def test_mistakes_in_long_tables(long, frame, tmp_path):
    rows = frame.assign(label=frame["label"].where(np.arange(3000) != 2345))
    source = write(rows, tmp_path / "missing", columns=[*FEATURES, "label"])
    with pytest.raises(ValueError, match="The target 'label' must have a value in every row; that of row 2345 is"):
        TreeEnsembleClassifier(**ONE).fit(source, "label")
    source = write(frame.assign(value=np.where(np.arange(3000) == 7, np.inf, 1)), tmp_path / "infinite")
    with pytest.raises(ValueError, match="row 7 has inf"):
        TreeEnsembleRegressor(**ONE).fit(source, "value")
    source = write(frame.assign(label="yes"), tmp_path / "one-class", columns=[*FEATURES, "label"])
    with pytest.raises(ValueError, match="at least two classes"):
        TreeEnsembleClassifier(**ONE).fit(source, "label")
    source = write(frame.assign(a=[*["1"] * 2000, *["x"] * 1000]), tmp_path / "texts", columns=["a", "b", "label"])
    with pytest.raises(ValueError, match="Column 'a' must hold numbers"):
        TreeEnsembleClassifier(**ONE).fit(source, "label")
    declared = TreeEnsembleClassifier(**ONE | {"column_kinds": {"a": "category"}}).fit(source, "label")
    assert declared.model_.preprocessor.kinds == ("category", "numeric")
    with pytest.raises(ValueError, match="has one target"):
        TreeEnsembleClassifier(**ONE).fit(source, ["label", "b"])
    for name, value in {"encoding": "piecewise", "recipe": "paper", "l2": 0.1}.items():
        with pytest.raises(ValueError, match="Files that are not read into memory require"):
            TreeEnsembleClassifier(**{name: value}).fit(source, "label")
    for limit in ("much", -1, True, "1"):
        with pytest.raises(ValueError, match="memory_limit must be a number of bytes, or a text such as '1GB'"):
            TreeEnsembleClassifier(memory_limit=limit).fit(source, "label")
    with pytest.raises(ValueError, match=r"memory_limit must be at least .* MB for a table of 2 columns; got 10 MB"):
        TreeEnsembleClassifier(memory_limit="10MB").fit(source, "label")


def test_files_may_lack_a_class_or_all_rows_or_values(long, frame, tmp_path):
    ordered = frame.sort_values("label").reset_index(drop=True)
    source = write(ordered, tmp_path / "sorted", ends=(500, 500, 1000), columns=[*FEATURES, "label"])
    lengths = open_files(source, "label").lengths
    assert lengths == [500, 0, 500, 2000]
    empty = pa.table({**{name: pa.nulls(5) for name in FEATURES}, "label": ["no"] * 5})
    parquet.write_table(empty, tmp_path / "sorted" / "9.parquet")
    model = TreeEnsembleClassifier(**FEW).fit(source, "label")
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.score(frame[FEATURES], frame["label"]) > 0.65


def test_row_shares_are_stable():
    numbers = np.arange(100_000)
    part, rest = RowShare(0.2, 7), RowShare(0.2, 7, is_rest=True)
    assert abs(part(numbers).mean() - 0.2) < 0.01
    assert np.all(part(numbers) ^ rest(numbers))
    np.testing.assert_array_equal(part(numbers)[500:], part(numbers[500:]))


# Command line --------------------------------------------------------------------------------------------------------

QUICK = ["--n-members", "1", "--n-trees", "4", "--max-epochs", "3"]


@pytest.fixture(scope="module")
def trained(labelled, tmp_path_factory):
    from softwood.__main__ import run

    out = tmp_path_factory.mktemp("trained") / "model.safetensors"
    assert run(["train", labelled, "-t", "label", "-o", str(out), *QUICK, "--json"]) == 0
    return out


def test_train_on_many_files(long, labelled, tmp_path, capsys):
    out = tmp_path / "model.safetensors"
    code, said, err = ask(capsys, "train", labelled, "-t", "label", "-o", out, "--cache", tmp_path / "cache", *QUICK)
    assert code == 0, err
    assert "rows per second" in err or "epoch 1/3" in err
    assert "classification of 'label'" in said
    run = json.loads((tmp_path / "model.run.json").read_text())
    assert run["rows"]["training"] + run["rows"]["test"] == 3000
    assert run["metrics"]["accuracy"] > 0.6
    assert run["parameters"]["memory_limit"] == "1GB"
    again = tmp_path / "again.safetensors"
    options = ["--cache", tmp_path / "cache", "--memory-limit", "2GB", *QUICK, "--json"]
    assert ask(capsys, "train", labelled, "-t", "label", "-o", again, *options)[0] == 0
    X = pd.read_parquet(labelled.replace("*", "0"))[FEATURES]
    same(load(out), load(again), X)
    said = complaint(capsys, "train", labelled, "-t", "label", "-o", again, "--cache", tmp_path / "cache", "--seed", 3)
    assert "it was made of other rows of the files" in said
    assert "no file matches" in complaint(capsys, "train", tmp_path / "x*.parquet", "-t", "y").lower()


def test_predictions_of_many_files_are_the_same_for_any_number_of_workers(trained, labelled, tmp_path, capsys):
    one, two = tmp_path / "one", tmp_path / "two"
    assert ask(capsys, "predict", trained, labelled, "-o", one, "--keep", "label")[0] == 0
    code, said, _ = ask(capsys, "predict", trained, labelled, "-o", two, "--keep", "label", "--workers", 2, "--json")
    assert (code, json.loads(said)) == (0, {"rows": 3000, "files": 3, "folder": str(two)})
    assert sorted(os.listdir(one)) == sorted(os.listdir(two)) == ["0.parquet", "1.parquet", "2.parquet"]
    for name in os.listdir(one):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    rows = pd.read_parquet(labelled.replace("*", "1"))
    expected = load(trained).predict_proba(rows[FEATURES])
    found = pd.read_parquet(one / "1.parquet")
    np.testing.assert_array_equal(found["probability yes"], expected[:, 1])
    assert found["label"].tolist() == rows["label"].tolist()


def test_evaluation_of_many_files(trained, labelled, tmp_path, capsys):
    found = [json.loads(ask(capsys, "evaluate", trained, labelled, "--json", "--workers", n)[1]) for n in (1, 2)]
    assert found[0] == found[1]
    frame = pd.read_parquet(os.path.dirname(labelled))
    frame.to_parquet(tmp_path / "whole.parquet")
    assert json.loads(ask(capsys, "evaluate", trained, tmp_path / "whole.parquet", "--json")[1]) == found[0]


def test_mistakes_with_many_files(trained, frame, labelled, tmp_path, capsys):
    folder = tmp_path / "some"
    source = write(frame, folder, columns=FEATURES)
    frame[["a", "b"]].to_parquet(folder / "1.parquet")
    for workers in (1, 2):
        code, _, said = ask(capsys, "predict", trained, source, "-o", tmp_path / "out", "--workers", workers)
        assert code == 2  # slow machines also tell how far it came
        assert "1.parquet: The table must have the 5 columns of the model; 'c', 'd', 'colour' are missing" in said
    assert "1.parquet" not in os.listdir(tmp_path / "out")
    assert not [name for name in os.listdir(tmp_path / "out") if name.startswith(".")]
    (folder / "1.parquet").write_bytes(b"PAR1 nothing")
    assert "1.parquet cannot be read" in complaint(capsys, "predict", trained, source, "-o", tmp_path / "out")
    assert "name it with --out" in complaint(capsys, "predict", trained, source)
    assert "would be overwritten" in complaint(capsys, "predict", trained, source, "-o", folder)
    frame.to_csv(tmp_path / "rows.csv")
    assert "must be in Parquet files; " in complaint(capsys, "train", tmp_path / "rows.cs*", "-t", "label")
    assert "No file matches" in complaint(capsys, "evaluate", trained, str(tmp_path / "no*.parquet"))
