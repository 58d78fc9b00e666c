"""Fits to Parquet files, also larger than memory: the same bits whatever the limits, clear errors, nothing left."""

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
from softwood import Loss, TreeEnsembleClassifier, TreeEnsembleRegressor, load
from softwood.tabular.out_of_core import files as files_module
from softwood.tabular.out_of_core.files import RowShare, open_files
from softwood.training import row_cache, rules, stream

FEW = {"n_members": 2, "n_trees": 8, "max_epochs": 3, "random_state": 0, "n_jobs": 1}
ONE = FEW | {"n_members": 1, "n_trees": 4}


def table(n=3000, seed=0):
    """Numbers, a missing cell here and there, a category, labels, counts, weights."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    score = 2 * X[:, 0] * X[:, 1] + X[:, 2]
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    frame.loc[::13, "c"] = np.nan
    frame["colour"] = rng.choice(["red", "green", "blue"], n)
    label = np.where(score + (frame.colour == "red") + rng.normal(size=n) > 0, "yes", "no")
    exposure = rng.uniform(1, 3, n)
    counts = rng.poisson(exposure * np.exp(0.5 * X[:, 0]))
    return frame.assign(
        label=label, value=score.astype(np.float64), count=counts, log_exposure=np.log(exposure),
        weight=rng.integers(0, 3, n),
    )  # fmt: skip


FEATURES = ["a", "b", "c", "d", "colour"]


def write(frame, folder, ends=(1000, 1700), columns=None):
    """Write a frame as several files, and return the glob of them."""
    folder.mkdir(exist_ok=True)
    rows = frame if columns is None else frame[columns]
    for i, (first, end) in enumerate(zip([0, *ends], [*ends, len(frame)], strict=True)):
        parquet.write_table(
            pa.Table.from_pandas(rows.iloc[first:end], preserve_index=False),
            folder / f"{i}.parquet",
            row_group_size=400,
        )
    return str(folder / "*.parquet")


@pytest.fixture(scope="module")
def frame():
    return table()


@pytest.fixture(scope="module")
def labelled(frame, tmp_path_factory):
    """Files with features and a label."""
    return write(frame, tmp_path_factory.mktemp("labelled"), columns=[*FEATURES, "label"])


@pytest.fixture
def long(monkeypatch):
    """Short tables are trained on like long ones, in several pieces, blocks and windows."""
    monkeypatch.setattr(files_module, "IN_MEMORY_CELLS", 100)
    monkeypatch.setattr(files_module, "_PIECE_ROWS", 700)
    monkeypatch.setattr(stream, "_BLOCK_CELLS", 200)
    monkeypatch.setattr(stream, "_WINDOW_CELLS", 5000)


def same(one, other, X):
    method = "predict_proba" if hasattr(one, "classes_") else "predict"
    np.testing.assert_array_equal(getattr(one, method)(X), getattr(other, method)(X))


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


# Long tables ---------------------------------------------------------------------------------------------------------


def test_results_do_not_depend_on_memory_threads_or_the_cut_into_files(long, frame, labelled, tmp_path):
    X, y = frame[FEATURES], frame["label"]
    model = TreeEnsembleClassifier(**FEW).fit(labelled, "label")
    in_memory = TreeEnsembleClassifier(**FEW).fit(X, y)
    assert abs(model.score(X, y) - in_memory.score(X, y)) < 0.03
    assert not hasattr(model, "oof_prediction_")
    for changes in ({"memory_limit": "800MB"}, {"memory_limit": 4 << 30}, {"n_jobs": 2}):
        same(TreeEnsembleClassifier(**FEW | changes).fit(labelled, "label"), model, X)
    one = write(frame, tmp_path / "one", ends=(), columns=[*FEATURES, "label"])
    same(TreeEnsembleClassifier(**FEW).fit(one, "label"), model, X)
    model.save(tmp_path / "model.safetensors")
    same(load(tmp_path / "model.safetensors"), model, X)


def test_an_epoch_reads_each_row_once_in_windows_of_shuffled_blocks(long, labelled, monkeypatch):
    reads = []
    read = row_cache.RowCache.read

    def counted(self, runs, buffer):
        numbers = read(self, runs, buffer)
        reads.append(numbers)
        return numbers

    monkeypatch.setattr(row_cache.RowCache, "read", counted)
    TreeEnsembleClassifier(**ONE | {"validation_fraction": None}).fit(labelled, "label")
    reads = [numbers for numbers in reads if len(numbers) > 1]  # but for the row that a member starts with
    n_windows = len(reads) // 3
    assert n_windows > 2
    epochs = [np.concatenate(reads[i * n_windows : (i + 1) * n_windows]) for i in range(3)]
    for numbers in epochs:
        np.testing.assert_array_equal(np.sort(numbers), np.arange(3000))
    assert not np.array_equal(epochs[0], epochs[1])
    spread = [len(np.unique(numbers // 40)) / (len(numbers) / 40) for numbers in reads]  # blocks of 40 rows
    assert max(spread) < 1.5
    assert max(np.ptp(numbers) for numbers in reads) > 2500


def test_members_hold_out_other_rows_and_never_train_on_them(long, labelled, monkeypatch):
    trained: dict[int, set[int]] = {}
    turn_to = stream.StreamState.turn_to

    def noted(self, buffer, numbers, *, is_last):
        rows = np.flatnonzero(self.stream.folds_of(numbers, self.samples.n_folds) != self.samples.fold)
        turn_to(self, buffer, numbers, is_last=is_last)
        trained.setdefault(self.samples.fold, set()).update(numbers[rows].tolist())
        assert self.samples.n_rows + len(self.member.validation.x) == 3000

    monkeypatch.setattr(stream.StreamState, "turn_to", noted)
    TreeEnsembleClassifier(**ONE | {"n_members": 2, "l1": 0.1}).fit(labelled, "label")
    left_out = [set(range(3000)) - rows for rows in trained.values()]
    assert len(left_out) == 2
    assert not left_out[0] & left_out[1]
    assert all(400 < len(rows) < 600 for rows in left_out)


def test_a_weight_of_zero_is_the_absence_of_a_row(long, frame, tmp_path):
    weighted = write(frame, tmp_path / "weighted", columns=[*FEATURES, "label", "weight"])
    model = TreeEnsembleClassifier(**FEW).fit(weighted, "label", "weight")
    kept = frame[frame["weight"] > 0]
    fewer = write(kept, tmp_path / "fewer", ends=(500,), columns=[*FEATURES, "label", "weight"])
    same(TreeEnsembleClassifier(**FEW).fit(fewer, "label", "weight"), model, frame[FEATURES])
    plain = TreeEnsembleClassifier(**FEW).fit(write(frame, tmp_path / "plain", columns=[*FEATURES, "label"]), "label")
    assert not np.array_equal(plain.predict_proba(frame[FEATURES]), model.predict_proba(frame[FEATURES]))


def squares(predictions, targets, weight):
    """A loss function of the caller."""
    difference = predictions - targets
    return difference * weight[:, None], float((difference**2).mean())


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        ("squared_error", "value"),
        ("absolute_error", "value"),
        ("huber", "value"),
        (Loss("quantile", quantiles=(0.1, 0.9)), "value"),
        ("poisson", "count"),
        (squares, "value"),
    ],
    ids=["squared", "absolute", "huber", "quantile", "poisson", "custom"],
)
def test_losses(long, frame, tmp_path, loss, target):
    source = write(frame, tmp_path / "files", columns=[*FEATURES, target])
    settings = ONE | {"loss": loss, "learning_rate": 0.03, "l1": 0.01, "max_epochs": 8, "n_trees": 8}
    other = table(1000, seed=9)
    judged = {"eval_set": (other[FEATURES], other[target])}
    model = TreeEnsembleRegressor(**settings).fit(source, target, **judged)
    in_memory = TreeEnsembleRegressor(**settings).fit(frame[FEATURES], frame[target], **judged)
    assert model.best_score_ == pytest.approx(in_memory.best_score_, rel=0.4)


def test_several_targets_offsets_and_classes(long, frame, tmp_path):
    both = write(frame, tmp_path / "both", columns=[*FEATURES, "value", "log_exposure"])
    model = TreeEnsembleRegressor(**ONE).fit(both, ["value", "log_exposure"])
    assert model.predict(frame[FEATURES]).shape == (3000, 2)
    exposed = write(frame, tmp_path / "exposed", columns=[*FEATURES, "count", "log_exposure"])
    settings = ONE | {"loss": "poisson", "learning_rate": 0.03, "n_trees": 16}
    model = TreeEnsembleRegressor(**settings).fit(exposed, "count", offset="log_exposure")
    in_memory = TreeEnsembleRegressor(**settings).fit(frame[FEATURES], frame["count"], offset=frame["log_exposure"])
    rates, expected = model.predict(frame[FEATURES]), in_memory.predict(frame[FEATURES])
    assert np.corrcoef(rates, expected)[0, 1] > 0.9
    assert abs(rates.mean() / expected.mean() - 1) < 0.05
    three = write(frame, tmp_path / "three", columns=["a", "b", "c", "d", "label", "colour"])
    model = TreeEnsembleClassifier(**ONE | {"class_weight": "balanced"}).fit(three, "colour")
    assert model.classes_.tolist() == ["blue", "green", "red"]


def test_evaluation_sets_and_metrics(long, frame, labelled, tmp_path):
    held_out = write(table(500, seed=1), tmp_path / "held_out", ends=(), columns=[*FEATURES, "label"])
    other = pd.read_parquet(held_out.replace("*", "0"))
    settings = ONE | {"eval_metric": "roc_auc"}
    by_path = TreeEnsembleClassifier(**settings).fit(labelled, "label", eval_set=(held_out, "label"))
    by_frame = TreeEnsembleClassifier(**settings).fit(labelled, "label", eval_set=(other[FEATURES], other["label"]))
    same(by_path, by_frame, frame[FEATURES])
    from sklearn.metrics import roc_auc_score

    auc = roc_auc_score(other["label"], by_path.predict_proba(other[FEATURES])[:, 1])
    assert by_path.best_score_ == pytest.approx(auc, abs=1e-3)
    own = TreeEnsembleClassifier(**settings).fit(labelled, "label")
    assert 0.5 < own.best_score_ < 1
    two = [(other[FEATURES], other["label"]), (held_out, "label")]
    assert "validation_1_loss" in TreeEnsembleClassifier(**ONE).fit(labelled, "label", eval_set=two).history_
    value = write(frame, tmp_path / "value", columns=[*FEATURES, "value"])
    assert TreeEnsembleRegressor(**ONE | {"eval_metric": "r2"}).fit(value, "value").best_score_ < 1


def test_a_stopped_fit_goes_on_to_the_same_bits(long, frame, labelled, tmp_path):
    whole = TreeEnsembleClassifier(**FEW | {"max_epochs": 4}).fit(labelled, "label")
    seen = []

    def stop(summary):
        seen.append(summary.epoch)
        if len(seen) == 6:
            raise MemoryError("a crash")

    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(MemoryError):
        TreeEnsembleClassifier(**FEW | {"max_epochs": 4, "callbacks": [stop]}).fit(
            labelled, "label", checkpoint=checkpoint, checkpoint_every=0
        )
    again = TreeEnsembleClassifier(**FEW | {"max_epochs": 4}).fit(
        labelled, "label", checkpoint=checkpoint, checkpoint_every=0, resume=True
    )
    same(again, whole, frame[FEATURES])
    other = write(table(seed=5), tmp_path / "other", columns=[*FEATURES, "label"])
    with pytest.raises(ValueError, match="must be of the same fit"):
        TreeEnsembleClassifier(**FEW | {"max_epochs": 4}).fit(other, "label", checkpoint=checkpoint, resume=True)


def test_columns_of_all_kinds(long, tmp_path):
    rng = np.random.default_rng(3)
    n = 4000
    shop, city = rng.integers(1000, 1200, n), rng.integers(0, 300, n)
    by_shop, by_city = rng.normal(size=1200), rng.normal(size=300)
    frame = pd.DataFrame(
        {
            "shop": shop,
            "city": [f"city {i}" for i in city],
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 9000, n), unit="h"),
            "flag": rng.random(n) < 0.5,
            "text": [str(i) for i in rng.integers(0, 9, n)],
            "same": 1.0,
        }
    )
    frame["y"] = by_shop[shop] + by_city[city] + frame["flag"] + frame["text"].astype(float) / 9
    source = write(frame, tmp_path / "kinds")
    X, y = frame.drop(columns="y"), frame["y"]
    settings = FEW | {"max_epochs": 30, "learning_rate": 0.02}
    model = TreeEnsembleRegressor(**settings).fit(source, "y")
    assert model.chosen_parameters_["column_kinds"] == {"shop": "category"}
    assert model.model_.preprocessor.kinds == ("category", "category", "datetime", "boolean", "numeric", "numeric")
    in_memory = TreeEnsembleRegressor(**settings | {"n_members": 1}).fit(X, y)  # reads target means, as files are read
    assert model.score(X, y) > in_memory.score(X, y) - 0.05 > 0.5


def test_categories_with_many_rows_per_level_are_read_level_by_level(long, tmp_path, monkeypatch):
    """y is a slope of the row's level times a number: the mean of a level says nothing."""
    rng = np.random.default_rng(0)
    level, size = rng.integers(40, size=2400), rng.normal(size=2400)
    y = np.where(level % 2, 1.0, -1.0) * size
    rows = pd.DataFrame({"shop": [f"shop {i}" for i in level], "size": size, "y": y})
    source = write(rows[:2000], tmp_path / "shops")
    params = {"n_trees": 8, "depth": 3, "n_members": 1, "max_epochs": 25, "learning_rate": 0.02, "random_state": 0}
    assert not TreeEnsembleRegressor(**params).fit(source, "y").model_.preprocessor.reads_levels
    monkeypatch.setattr(rules, "_MANY_ROWS_PER_LEVEL", 40)
    model = TreeEnsembleRegressor(**params).fit(source, "y", cache=tmp_path / "cache")
    assert model.model_.preprocessor.reads_levels
    assert model.score(rows[["shop", "size"]][2000:], y[2000:]) > 0.7
    same(TreeEnsembleRegressor(**params).fit(source, "y", cache=tmp_path / "cache"), model, rows[["shop", "size"]])


def test_max_columns_compact_and_monotone(long, frame, labelled):
    model = TreeEnsembleClassifier(**ONE | {"max_columns": 3}).fit(labelled, "label")
    assert len(model.selected_columns_) == 3
    assert {"a", "b"} < set(model.selected_columns_)
    same(model, model, frame[FEATURES])
    small = TreeEnsembleClassifier(**ONE | {"compact": True}).fit(labelled, "label")
    assert small.compression_.after.n_parameters > 0
    rising = TreeEnsembleClassifier(**ONE | {"monotonic_cst": {"d": 1}, "n_trees": 16}).fit(labelled, "label")
    rows = frame[FEATURES].iloc[:50]
    low, high = (rising.predict_proba(rows.assign(d=np.float32(d)))[:, 1] for d in (-1, 1))
    assert np.all(low <= high)


def test_progress_tells_rows_per_second_and_time_left(long, labelled, monkeypatch, capsys):
    monkeypatch.setattr("softwood.training.progress._SECONDS_BETWEEN_LINES", 0.0)
    TreeEnsembleClassifier(**ONE | {"verbose": 1}).fit(labelled, "label")
    said = capsys.readouterr().err
    for what in ("columns", "cells", "epoch 1"):
        line = next(line for line in said.splitlines() if line.startswith(f"{what}: "))
        assert " of 3,000 rows, " in line
        assert line.endswith(" left")
        assert " rows per second, " in line


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


# Memory --------------------------------------------------------------------------------------------------------------

LIMITED = """
import resource, sys
import pyarrow.parquet
from softwood import TreeEnsembleClassifier
import softwood.tabular.out_of_core.fit_files, sklearn.metrics
data = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (data + int(sys.argv[2]), -1))
model = TreeEnsembleClassifier(n_members=1, n_trees=4, max_epochs=1, random_state=0, n_jobs=1)
model.fit(sys.argv[1], "y")
print(model.history_["validation_loss"][-1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
def test_a_million_rows_under_a_limit_of_the_system(tmp_path):
    """84 MB in a file, which take several times that in memory; 20 times as many rows would not need more."""
    rng = np.random.default_rng(0)
    path = tmp_path / "long.parquet"
    schema = pa.schema([*(pa.field(f"x{j}", pa.float32()) for j in range(20)), pa.field("y", pa.int8())])
    with parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for _ in range(5):
            X = rng.standard_normal((200_000, 20), dtype=np.float32)
            y = (X[:, 0] + X[:, 1] > 0).astype(np.int8)
            writer.write_table(pa.table([*X.T, y], schema=schema))
    command = [sys.executable, "-c", LIMITED, str(path), str(600_000_000)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stderr[-2000:]
    assert float(answer.stdout) < 0.4


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
