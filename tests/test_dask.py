"""The estimators on Dask, on a real cluster of processes."""

import hashlib
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open

import softwood

pytest.importorskip("distributed")
dd = pytest.importorskip("dask.dataframe")
import dask.array as da  # noqa: E402
from distributed import Client, LocalCluster  # noqa: E402

from softwood.dask import DaskTreeEnsembleClassifier, DaskTreeEnsembleRegressor  # noqa: E402

FEW = {"n_members": 3, "max_epochs": 4, "random_state": 0}


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    n = 2400
    frame = pd.DataFrame({"a": rng.normal(size=n), "b": rng.choice(["x", "y", "z"], n)})
    frame.loc[::17, "a"] = np.nan
    return frame.assign(label=np.where((frame.a > 0) ^ (frame.b == "x"), "yes", "no"), weight=rng.integers(1, 3, n))


def digest(estimator, path):
    """SHA-256 of the model's file, but for its history (which has seconds) and the order of its header."""
    estimator.save(path)
    with safe_open(path, framework="numpy") as file:
        found = hashlib.sha256(json.dumps(file.metadata(), sort_keys=True).encode())
        for name in sorted(file.keys()):
            if name != "history":
                found.update(name.encode() + file.get_tensor(name).tobytes())
    return found.hexdigest()


def test_members_on_workers_have_the_bits_of_a_local_fit(client, frame, tmp_path):
    rows = dd.from_pandas(frame, npartitions=3)
    remote = DaskTreeEnsembleClassifier(**FEW).fit(rows, "label", "weight")
    X, y, weight = frame[["a", "b"]], frame["label"], frame["weight"]
    local = softwood.TreeEnsembleClassifier(**FEW).fit(X, y, weight)
    assert digest(remote.to_local(), tmp_path / "a") == digest(local, tmp_path / "b")
    assert type(remote.to_local()) is softwood.TreeEnsembleClassifier
    np.testing.assert_array_equal(remote.to_local().oof_prediction_, local.oof_prediction_)


def test_predictions_are_lazy_and_have_the_bits_of_local_ones(client, frame):
    rows = dd.from_pandas(frame, npartitions=3)
    remote = DaskTreeEnsembleClassifier(**FEW | {"n_members": 1}).fit(rows, "label", "weight")
    X = rows[["a", "b"]]
    some = dd.concat([X, X[X.a > 1e9]])  # with empty partitions
    labels, shares = remote.predict(some), remote.predict_proba(some)
    assert isinstance(labels, dd.Series)
    assert list(shares.columns) == ["no", "yes"]
    local = remote.to_local()
    np.testing.assert_array_equal(labels.compute(), local.predict(frame[["a", "b"]]))
    np.testing.assert_array_equal(shares.compute(), local.predict_proba(frame[["a", "b"]]))
    np.testing.assert_array_equal(shares.compute().index, frame.index)


def test_arrays_and_targets_of_a_regression(client):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 3))
    y = X[:, 0] * 2 + X[:, 1]
    blocks = da.from_array(X, chunks=(400, 2))
    remote = DaskTreeEnsembleRegressor(client=client, **FEW).fit(blocks, da.from_array(y, chunks=400))
    local = softwood.TreeEnsembleRegressor(**FEW).fit(X, y)
    np.testing.assert_array_equal(remote.predict(blocks).compute(), local.predict(X))


def test_parquet_files_and_partitions_without_rows_or_without_a_class(client, frame, tmp_path):
    one = frame.sort_values("label").drop(columns="weight")
    parts = [one[one.label == "no"], one[:0], one[one.label == "yes"]]
    for i, part in enumerate(parts):
        part.to_parquet(tmp_path / f"{i}.parquet", index=False)
    remote = DaskTreeEnsembleClassifier(**FEW).fit(str(tmp_path / "*.parquet"), "label")
    local = softwood.TreeEnsembleClassifier(**FEW).fit(one[["a", "b"]], one["label"])
    np.testing.assert_array_equal(remote.predict_proba(frame[["a", "b"]]), local.predict_proba(frame[["a", "b"]]))


@pytest.mark.parametrize(
    ("X", "y", "error", "message"),
    [
        (np.zeros((4, 2)), [0, 1, 0, 1], TypeError, "X must be a Dask DataFrame, a Dask Array or a path"),
        ("frame", "absent", ValueError, "y must be the name of a column of X; got 'absent'"),
        ("frame", [0, 1], TypeError, "y must be a Dask collection with the partitions of X"),
        ("frame", "other partitions", ValueError, "y must have the partitions of X; X has 3 and y 2"),
    ],
)
def test_mistakes_are_told(client, frame, X, y, error, message):
    rows = dd.from_pandas(frame, npartitions=3)
    y = dd.from_pandas(frame["label"], npartitions=2) if y == "other partitions" else y
    with pytest.raises(error, match=message):
        DaskTreeEnsembleClassifier(**FEW).fit(rows if isinstance(X, str) else X, y)


def test_callbacks_are_refused_by_members_on_workers(client, frame):
    rows = dd.from_pandas(frame, npartitions=2)
    with pytest.raises(ValueError, match="leave callbacks out"):
        DaskTreeEnsembleClassifier(callbacks=[print], **FEW).fit(rows, "label")


def test_without_a_cluster_there_is_one_error(frame):
    code = (
        "import pandas, dask.dataframe as dd, softwood.dask\n"
        "rows = dd.from_pandas(pandas.DataFrame({'a': [1, 2], 'y': [0, 1]}), npartitions=1)\n"
        "softwood.dask.DaskTreeEnsembleClassifier().fit(rows, 'y')\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "A Dask estimator needs a cluster" in run.stderr.splitlines()[-1]


def test_softwood_itself_does_not_import_dask():
    code = "import softwood, sys; sys.exit('dask' in sys.modules or 'distributed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


SHARDS = {"strategy": "shards", "n_members": 1, "max_epochs": 4, "patience": None, "random_state": 0}


@pytest.fixture(scope="module")
def shards_fit(client, frame, tmp_path_factory):
    """A model over shards, on two workers, and its digest."""
    model = DaskTreeEnsembleClassifier(client=client, **SHARDS).fit(dd.from_pandas(frame, npartitions=3), "label")
    return model, digest(model.to_local(), tmp_path_factory.mktemp("shards") / "model")


def test_shards_give_the_same_bits_on_other_workers_and_after_a_kill(shards_fit, frame, tmp_path):
    rows = dd.from_pandas(frame, npartitions=3)
    killed = []
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, timeout=60) as client,
    ):

        def kill_one(epoch):
            if epoch.epoch == 1:
                killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)

        after_kill = DaskTreeEnsembleClassifier(client=client, callbacks=[kill_one], **SHARDS).fit(rows, "label")
        cluster.scale(1)
        alone = DaskTreeEnsembleClassifier(client=client, **SHARDS).fit(rows, "label")
    assert killed
    after_kill.set_params(callbacks=None)  # parameters are saved, too
    assert digest(after_kill.to_local(), tmp_path / "killed") == shards_fit[1]
    assert digest(alone.to_local(), tmp_path / "alone") == shards_fit[1]


def test_shards_learn_and_count_their_bytes(shards_fit, frame):
    model, _ = shards_fit
    assert (model.to_local().predict(frame.drop(columns="label")) == frame["label"]).mean() > 0.85
    history = model.history_["validation_loss"]
    assert history[-1] < history[0]
    assert len(model.traffic_.rounds) == 4
    assert all(value > 0 for value in model.traffic_.bytes_sent + model.traffic_.work_seconds)


def test_shards_take_partitions_without_rows_or_without_a_class(client, frame):
    one = frame.sort_values("label", ignore_index=True)
    whole = dd.from_pandas(one, npartitions=2)
    with_empty = dd.concat([whole.partitions[0], whole.partitions[0][whole.partitions[0].a > 1e9], whole.partitions[1]])
    model = DaskTreeEnsembleClassifier(**SHARDS).fit(with_empty, "label")
    assert list(model.classes_) == ["no", "yes"]


def test_shards_of_a_regression(client):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 3)).astype(np.float32)
    y = X[:, 0] * 2 + 5
    blocks, targets = da.from_array(X, chunks=(700, 3)), da.from_array(y, chunks=700)
    few = SHARDS | {"max_epochs": 30}
    model = DaskTreeEnsembleRegressor(**few).fit(blocks, targets)
    assert model.to_local().score(X, y) > 0.8


def test_shards_refuse_what_they_cannot_do(client, frame):
    rows = dd.from_pandas(frame, npartitions=2)
    with pytest.raises(ValueError, match="takes no eval_set, eval_metric or checkpoint"):
        DaskTreeEnsembleClassifier(**SHARDS).fit(rows, "label", checkpoint="here")
