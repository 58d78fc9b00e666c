"""Training on Parquet files larger than memory: the same bits whatever the limits, as good as in memory."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from parquet_tables import FEATURES, FEW, ONE, same, table, write
from softwood import Loss, TreeEnsembleClassifier, TreeEnsembleRegressor, load
from softwood.training import row_cache, rules, stream


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


def test_weights_of_many_levels_count_as_memory(long, tmp_path, monkeypatch):
    monkeypatch.setattr(rules, "_MANY_ROWS_PER_LEVEL", 1)
    rng = np.random.default_rng(0)
    levels, y = rng.permutation(np.arange(8000) % 4000), rng.normal(size=8000)
    source = write(pd.DataFrame({"shop": [f"shop {i}" for i in levels], "x": y + 1, "y": y}), tmp_path / "shops")
    model = TreeEnsembleRegressor(n_members=1, max_epochs=1, random_state=0, memory_limit="300MB")
    with pytest.raises(ValueError, match=r"at least 3.. MB for a table of 2 columns; got 300 MB. .* with many levels"):
        model.fit(source, "y", cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    model.set_params(n_trees=8).fit(source, "y", cache=tmp_path / "cache")
    assert model.model_.preprocessor.reads_levels


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
