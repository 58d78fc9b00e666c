"""The estimators on Dask, on a real cluster of processes."""

import asyncio
import gc
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV

import softwood
from cli_calls import ask, complaint

pytest.importorskip("distributed")
dd = pytest.importorskip("dask.dataframe")
import dask.array as da  # noqa: E402
from distributed import Client, LocalCluster  # noqa: E402

from scale_dask import digest, kill_once  # noqa: E402
from softwood.dask import DaskTreeEnsembleClassifier, DaskTreeEnsembleRegressor  # noqa: E402
from softwood.dask.collections import gather  # noqa: E402

FEW = {"n_members": 3, "max_epochs": 4, "random_state": 0}


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
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
    narrowed = {**FEW, "loss": "huber", "max_reach": 0.3}
    remote = DaskTreeEnsembleRegressor(client=client, **narrowed).fit(blocks, da.from_array(y, chunks=400))
    local = softwood.TreeEnsembleRegressor(**narrowed).fit(X, y)
    assert remote.history_["gamma"] == local.history_["gamma"]
    assert len(set(local.history_["gamma"])) > 1
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
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert "A Dask estimator needs a cluster" in run.stderr.splitlines()[-1]


def test_softwood_itself_does_not_import_dask():
    code = "import softwood, sys; sys.exit('dask' in sys.modules or 'distributed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


SHARDS = {"strategy": "shards", "n_members": 1, "max_epochs": 4, "patience": None, "random_state": 0}


@pytest.fixture(scope="module")
def shards_fit(client, frame, tmp_path_factory):
    """A model over shards, on two workers, and its digest."""
    model = DaskTreeEnsembleClassifier(client=client, **SHARDS).fit(dd.from_pandas(frame, npartitions=3), "label")
    return model, digest(model.to_local(), tmp_path_factory.mktemp("shards") / "model")


def test_shards_give_the_same_bits_after_a_worker_was_killed(client, shards_fit, frame, tmp_path):
    mark = tmp_path / "killed"
    client.register_plugin(kill_once(str(mark), "-1-0-0"), name="killer")  # a task of the second epoch
    try:
        model = DaskTreeEnsembleClassifier(**SHARDS).fit(dd.from_pandas(frame, npartitions=3), "label")
    finally:
        client.unregister_worker_plugin(name="killer")
    assert mark.exists()
    assert digest(model.to_local(), tmp_path / "model") == shards_fit[1]


def test_what_was_awaited_long_is_released_at_once(monkeypatch):
    """What the client still holds is computed again when its worker is lost."""
    monkeypatch.setattr("softwood.dask.collections._LOOK_EVERY", 0.1)
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    gc.collect()
    gc.disable()
    try:
        with LocalCluster(**options) as cluster, Client(cluster) as client:
            future = client.submit(time.sleep, 0.5)
            assert gather(client, [future]) == [None]
            key = future.key
            del future
            client.sync(asyncio.sleep, 0.1)  # the client's loop counts references
            assert key not in client.futures
    finally:
        gc.enable()


def test_shards_give_the_same_bits_on_one_and_four_workers(shards_fit, frame, tmp_path):
    """Workers in this process, which start at once; benchmarks/scale.py does the same with processes."""
    rows = dd.from_pandas(frame, npartitions=3)
    options = {"threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    for n_workers in (1, 4):
        with LocalCluster(n_workers=n_workers, **options) as cluster, Client(cluster) as client:
            model = DaskTreeEnsembleClassifier(client=client, **SHARDS).fit(rows, "label")
        assert digest(model.set_params(client=None).to_local(), tmp_path / "model") == shards_fit[1]


FIT_AND_DIE = """
import os, signal, sys
import dask.dataframe as dd
import pandas as pd
from distributed import Client
from softwood.dask import DaskTreeEnsembleClassifier

def die(epoch):
    if epoch.epoch == 2:
        os.kill(os.getpid(), signal.SIGKILL)

address, table, path = sys.argv[1:]
with Client(address) as client:
    rows = dd.from_pandas(pd.read_pickle(table), npartitions=3)
    DaskTreeEnsembleClassifier(callbacks=[die], **{params}).fit(rows, "label", checkpoint=path, checkpoint_every=0)
"""


def test_a_killed_client_resumes_from_its_checkpoint_to_the_same_bits(client, shards_fit, frame, tmp_path):
    frame.to_pickle(tmp_path / "frame")
    path = tmp_path / "checkpoint"
    code = FIT_AND_DIE.replace("{params}", repr(SHARDS | {"n_members": 1}))
    command = [sys.executable, "-c", code, client.scheduler.address, str(tmp_path / "frame"), str(path)]
    assert subprocess.run(command, timeout=300).returncode == -signal.SIGKILL
    rows = dd.from_pandas(frame, npartitions=3)
    epochs = []
    model = DaskTreeEnsembleClassifier(client=client, callbacks=[lambda e: epochs.append(e.epoch)], **SHARDS)
    model.fit(rows, "label", checkpoint=path, resume=True)
    assert epochs == [2, 3]  # the callback died before the third epoch was written
    model.set_params(callbacks=None)
    assert digest(model.to_local(), tmp_path / "model") == shards_fit[1]
    other = dd.from_pandas(frame.assign(a=frame["a"] + 1), npartitions=3)
    with pytest.raises(softwood.model.ModelFileError, match="must be of the same fit"):
        DaskTreeEnsembleClassifier(**SHARDS).fit(other, "label", checkpoint=path, resume=True)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(softwood.model.ModelFileError, match="damaged"):
        DaskTreeEnsembleClassifier(**SHARDS).fit(rows, "label", checkpoint=path, resume=True)


def test_shards_choose_the_epoch_by_evaluation_sets_and_metric(client, frame):
    rng = np.random.default_rng(1)
    flipped = frame.assign(label=np.where(rng.random(len(frame)) < 0.2, "no", frame["label"]))
    rows = dd.from_pandas(flipped[:1600], npartitions=2)
    sets = [(flipped[part][["a", "b"]], flipped[part]["label"]) for part in (slice(1600, 2000), slice(2000, 2400))]
    model = DaskTreeEnsembleClassifier(**SHARDS | {"max_epochs": 12, "patience": 2, "learning_rate": 0.02})
    model.set_params(eval_metric="roc_auc").fit(rows.drop(columns="weight"), "label", eval_set=sets)
    history = model.history_
    metric = np.array(history["validation_metric"])
    assert history["validation_metric"] == history["validation_1_roc_auc"]
    assert model.best_epoch_[0] == metric.argmax()
    assert len(metric) == min(12, 3 + metric.argmax())
    share = model.to_local().predict_proba(sets[1][0])[:, 1]
    truth = sets[1][1] == "yes"
    assert roc_auc_score(truth, share) == pytest.approx(metric.max(), abs=2e-3)
    assert log_loss(truth, share) == pytest.approx(history["validation_1_loss"][metric.argmax()], abs=5e-3)


def test_shards_take_codes_for_categories_as_a_local_fit_does(client):
    rng = np.random.default_rng(0)
    shop, x = rng.integers(0, 300, 6000), rng.normal(size=6000)
    y = rng.normal(size=300)[shop] + x
    rows = dd.from_pandas(pd.DataFrame({"shop": shop, "x": x, "y": y}), npartitions=2)
    seen = []
    params = SHARDS | {"max_epochs": 2, "callbacks": [lambda epoch: seen.append(epoch.epoch)]}
    model = DaskTreeEnsembleRegressor(client=client, **params).fit(rows, "y")
    assert seen == [0, 1]
    assert model.chosen_parameters_["column_kinds"] == {"shop": "category"}
    assert model.model_.preprocessor.columns[0].kind == "category"


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


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"l2": 0.1}, "strategy='shards' needs l2=0; got 0.1"),
        ({"max_columns": 1}, "strategy='shards' needs max_columns=None; got 1"),
        ({"compact": True}, r"call to_local\(\).compress\(X\) after the fit"),
    ],
)
def test_shards_refuse_what_they_cannot_do(client, frame, params, message):
    with pytest.raises(ValueError, match=message):
        DaskTreeEnsembleClassifier(**SHARDS | params).fit(dd.from_pandas(frame, npartitions=2), "label")


@pytest.mark.parametrize("strategy", ["members", "shards"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda part: part.assign(a="text"), "must have the same types; column 'a' is (large_)?string in .*1.parquet"),
        (lambda part: part.drop(columns="a"), "must have the same columns; .*1.parquet lacks the column 'a'"),
        (lambda part: part.assign(c=1), "must have the same columns; .*1.parquet has a column 'c'"),
        (lambda part: None, "1.parquet cannot be read"),
    ],
)
def test_bad_files_are_told(client, frame, tmp_path, strategy, spoil, message):
    frame[:1000].to_parquet(tmp_path / "0.parquet")
    spoilt = spoil(frame[1000:])
    if spoilt is None:
        (tmp_path / "1.parquet").write_bytes(b"PAR1 and nothing else")
    else:
        spoilt.to_parquet(tmp_path / "1.parquet")
    with pytest.raises(ValueError, match=message):
        DaskTreeEnsembleClassifier(**SHARDS | {"strategy": strategy}).fit(str(tmp_path / "*.parquet"), "label")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda part: part.assign(a="text"), "'a' holds numbers in partition 0 and texts in partition 1"),
        (lambda part: part.rename(columns={"a": "c"}), "partition 1 differs from partition 0 in a, c"),
        (lambda part: 1 / 0, r"partition 1 is not .ZeroDivisionError.*X.partitions\[number\].compute\(\) shows"),
        (
            lambda part: part.assign(label=part["label"].where(part.index != 1234)),
            "In the partition that begins with row 1000 of the table: y must hold .* the first in row 234",
        ),
    ],
)
def test_bad_partitions_are_told(client, frame, spoil, message):
    delayed = pytest.importorskip("dask").delayed
    parts = [delayed(frame[:1000]), delayed(spoil)(frame[1000:])]
    rows = dd.from_delayed(parts, meta=frame[:0], verify_meta=False)
    with pytest.raises(ValueError, match=message):
        DaskTreeEnsembleClassifier(**SHARDS).fit(rows, "label")


@pytest.mark.parametrize("strategy", ["members", "shards"])
def test_a_file_that_is_damaged_inside_is_told_and_a_second_fit_is_none_the_worse(client, frame, tmp_path, strategy):
    for i in range(2):
        frame[i * 1200 : (i + 1) * 1200].to_parquet(tmp_path / f"{i}.parquet", index=False)
    whole = (tmp_path / "1.parquet").read_bytes()
    (tmp_path / "1.parquet").write_bytes(whole[:4] + bytes(2000) + whole[2004:])  # its end, with its columns, is whole
    model = DaskTreeEnsembleClassifier(**SHARDS | {"strategy": strategy, "max_epochs": 1})
    with pytest.raises(ValueError, match=rf"^{tmp_path}/1\.parquet cannot be read .*Check that it is a whole Parquet"):
        model.fit(str(tmp_path / "*.parquet"), "label")
    (tmp_path / "1.parquet").write_bytes(whole)
    model.fit(str(tmp_path / "*.parquet"), "label")


def test_a_first_partition_with_missing_cells_only_does_not_decide_types(client, frame):
    first = dd.from_pandas(frame[:800].assign(b=None), npartitions=1)
    model = DaskTreeEnsembleClassifier(**SHARDS).fit(dd.concat([first, dd.from_pandas(frame, npartitions=1)]), "label")
    assert model.model_.preprocessor.columns[1].kind == "category"


def test_a_worker_without_softwood_is_told(client, frame):
    def forget():
        import sys

        sys.modules["softwood"] = None  # what follows is the error of a package that is not there

    def remember():
        import sys

        del sys.modules["softwood"]

    worker = next(iter(client.scheduler_info()["workers"]))
    client.run(forget, workers=[worker])
    try:
        with pytest.raises(RuntimeError, match=f"worker {worker} cannot import it"):
            DaskTreeEnsembleClassifier(**SHARDS).fit(dd.from_pandas(frame, npartitions=2), "label")
    finally:
        client.run(remember, workers=[worker])


def test_a_cluster_that_loses_all_workers_is_not_waited_for(monkeypatch, frame):
    monkeypatch.setattr("softwood.dask.collections.WORKER_TIMEOUT", 1.0)
    with LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster, Client(cluster) as client:
        stop = [lambda epoch: cluster.scale(0)]
        model = DaskTreeEnsembleClassifier(client=client, callbacks=stop, **SHARDS)
        with pytest.raises(RuntimeError, match="all have gone, and none has come for 1 s"):
            model.fit(dd.from_pandas(frame, npartitions=2), "label")


def test_a_grid_search_runs_on_workers_by_the_backend_of_joblib(client, frame):
    joblib = pytest.importorskip("joblib")
    X, y = frame[["a", "b"]][:400], frame["label"][:400]
    estimator = softwood.TreeEnsembleClassifier(n_members=1, max_epochs=3, n_jobs=1, random_state=0)
    search = GridSearchCV(estimator, {"depth": [1, 3]}, cv=2, refit=False)
    here = search.fit(X, y).cv_results_["mean_test_score"]
    before = client.run(last_event)
    with joblib.parallel_config(backend="dask"):
        there = search.fit(X, y).cv_results_["mean_test_score"]
    np.testing.assert_array_equal(there, here)
    assert client.run(last_event) != before


def last_event(dask_worker):
    """The newest line of a worker's log of tasks, with its time; the log keeps a limited number of lines."""
    return str(list(dask_worker.state.log)[-1:])


def test_a_search_for_parameters_runs_on_workers_that_share_a_study(client, capsys, tmp_path):
    command = ["tune", "iris", "--trials", "3", "--folds", "2", "-o", tmp_path / "best.json", "--json"]
    _, printed, _ = ask(capsys, *command, "--dask", client.scheduler.address)
    found = json.loads(printed)
    assert found["n_trials"] == 3
    assert json.loads((tmp_path / "best.json").read_text()) == found["params"]
    _, printed, _ = ask(capsys, *command, "--trials", "1")  # and here it goes on
    assert json.loads(printed)["n_trials"] == 4


def test_an_address_without_a_scheduler_is_told(capsys, tmp_path):
    said = complaint(capsys, "tune", "iris", "-o", tmp_path / "best.json", "--dask", "nonsense://host")
    assert said.startswith("--dask must be the address of a Dask scheduler, such as tcp://host:8786; ")


def test_without_dask_the_import_says_what_to_install():
    code = "import sys; sys.modules['distributed'] = None; import softwood.dask"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: softwood.dask needs Dask, which is not installed: pip install 'softwood[dask]'" in run.stderr
