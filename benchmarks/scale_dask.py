"""Dask on real workers: rows per second, bits, recovery, loss against steps per round, and a model of larger clusters.

Cases, each with its results under its name:

- speed: rows per second of one and of two workers in turn, and the ceiling: one and two independent processes.
- bits: checksums of the model for 1, 2 and 4 workers, after `kill -9` of one, and after that of the client.
- steps: held-out loss against the steps that a shard makes between two averages.
- quality: AUC of one member, local and over shards, on three tables and on a made one.
- model: weak scaling to 64 workers, computed from measured work and bytes; the formula is in `weak_scaling`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import safe_open
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from suite_tables import auc, default_folder, find_tables, read_table

_N_COLUMNS = 20
_REPETITIONS = 5
_EPOCHS = 4
_KILLS = 3
_TABLES = {"connect-4": 2, "fars": 3, "diabetes130": 2}  # and the number of splits
_ONE_MEMBER: dict[str, Any] = {"n_members": 1, "n_jobs": 1}


def made_table(n_rows: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Columns, labels, and the probability of each label, which no model can beat."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, _N_COLUMNS)).astype(np.float32)
    score = np.sin(2 * X[:, 0]) + X[:, 1] * (X[:, 2] > 0) + 0.5 * np.abs(X[:, 3]) - 0.5 * X[:, 4] * X[:, 5]
    share = 1 / (1 + np.exp(-2 * (score + 0.3 * X[:, 6] - 0.4)))
    return pd.DataFrame(X, columns=[f"x{j}" for j in range(_N_COLUMNS)]), (rng.random(n_rows) < share) * 1, share


@contextmanager
def cluster(n_workers: int, *, processes: bool = True) -> Any:
    """A client of workers with a thread each."""
    from distributed import Client, LocalCluster

    options = {"threads_per_worker": 1, "processes": processes, "dashboard_address": ":0"}
    with LocalCluster(n_workers=n_workers, **options) as made, Client(made, timeout=120) as client:
        yield client


def fit(client: Any, X: pd.DataFrame, y: np.ndarray, checkpoint: Path | None = None, **params: Any) -> Any:
    """A model over shards of the table, which comes in eight partitions."""
    import dask.dataframe as dd

    from softwood.dask import DaskTreeEnsembleClassifier

    rows = dd.from_pandas(X.assign(label=y), npartitions=8, sort=False)
    model = DaskTreeEnsembleClassifier(client=client, strategy="shards", **_ONE_MEMBER | {"random_state": 0} | params)
    if checkpoint is None:
        return model.fit(rows, "label")
    return model.fit(rows, "label", checkpoint=checkpoint, checkpoint_every=0, resume=True)


def epoch_seconds(model: Any) -> list[float]:
    """Seconds of each epoch but the first, which waits for what is computed before it."""
    return model.history_["seconds"][1:]


def speed(arguments: argparse.Namespace) -> dict[str, Any]:
    """Rows per second of one and two workers and of one and two independent processes, in turn.

    Each of them gets a session of its own: Linux divides the cores between sessions first, so that beside programs of
    other sessions two processes of one would get no more than one does.
    """
    n_rows = arguments.rows or 400_000
    X, y, _ = made_table(n_rows)
    fixed: dict[str, Any] = {"max_epochs": _EPOCHS, "patience": None}
    runs = json.loads(arguments.out.read_text())["dask"]["cases"]["speed"]["runs"] if arguments.more else []
    with cluster(1) as one, cluster(2) as two:
        for client in (one, two):
            client.run(os.setsid)
        for _ in range(1 if arguments.more else _REPETITIONS):
            found: dict[str, Any] = {}
            for name, client in (("one_worker", one), ("two_workers", two)):
                model = fit(client, X, y, **fixed)
                found[name] = n_rows / statistics.median(epoch_seconds(model))
                traffic = model.traffic_
                found[f"{name}_work_seconds"] = statistics.median(traffic.work_seconds)
                found[f"{name}_waiting_seconds"] = statistics.median(traffic.waiting_seconds)
            found["one_process"], found["two_processes"] = independent(1), independent(2)
            found["load_average"] = os.getloadavg()[0]
            runs.append(found)
            print(json.dumps(found), flush=True)
    ratios = [run["two_workers"] / run["one_worker"] for run in runs]
    ceilings = [run["two_processes"] / run["one_process"] for run in runs]
    return {
        "rows": n_rows,
        "runs": runs,
        "rounds_per_epoch": traffic.rounds[0],
        "megabytes_per_round": traffic.bytes_sent[0] / traffic.rounds[0] / 1e6,
        "bytes_of_summed_gradients": sum(traffic.gradient_bytes) / sum(traffic.bytes_sent),
        "two_workers_over_one": statistics.median(ratios),
        "two_processes_over_one": statistics.median(ceilings),
        "share_of_ceiling": statistics.median(r / c for r, c in zip(ratios, ceilings, strict=True)),
    }


_LOCAL_FIT = """
import sys, time
sys.path[:0] = [{folder!r}]
from scale_dask import made_table
import softwood
X, y, _ = made_table(50_000)
fit = lambda n: softwood.TreeEnsembleClassifier(n_members=1, n_jobs=1, max_epochs=n, random_state=0).fit(X, y)
fit(1); print("ready", flush=True); sys.stdin.readline()
print(sum(fit(6).history_["seconds"]) / 6 / 50_000)
"""


def independent(n: int) -> float:
    """Rows per second of all of `n` local fits at the same time, in a process each."""
    code = _LOCAL_FIT.format(folder=str(Path(__file__).parent))
    started: list[Any] = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for _ in range(n)
    ]
    for process in started:
        process.stdout.readline()
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    return sum(1 / float(process.communicate()[0]) for process in started)


def digest(estimator: Any, path: Path) -> str:
    """SHA-256 of the saved model, but for its history (which has seconds) and the order of its header."""
    estimator.save(path)
    with safe_open(path, framework="numpy") as file:
        found = hashlib.sha256(json.dumps(file.metadata(), sort_keys=True).encode())
        for name in sorted(file.keys()):
            if name != "history":
                found.update(name.encode() + file.get_tensor(name).tobytes())
    return found.hexdigest()


def bits(arguments: argparse.Namespace) -> dict[str, Any]:
    """Checksums for 1, 2 and 4 processes, after the kill of a worker in an epoch, and after that of the client."""
    n_rows = arguments.rows or 200_000
    X, y, _ = made_table(n_rows)
    fixed: dict[str, Any] = {"max_epochs": 5, "patience": None}
    found: dict[str, Any] = {"rows": n_rows}
    with tempfile.TemporaryDirectory() as folder:
        path, checkpoint = Path(folder) / "model", Path(folder) / "checkpoint"
        for n_workers in (1, 2, 4):
            with cluster(n_workers) as client:
                model = fit(client, X, y, **fixed)
                found[f"{n_workers} workers"] = digest(model.to_local(), path)
                if n_workers == 2:
                    usual = statistics.median(epoch_seconds(model))
                    found["seconds of an epoch"] = usual
                    found["killed worker"], found["seconds of recovery"] = [], []
                    for kill in range(_KILLS):
                        mark = Path(folder) / f"mark {kill}"
                        client.register_plugin(kill_once(str(mark), "-2-1-0"), name="killer")
                        killed = fit(client, X, y, **fixed)
                        client.unregister_worker_plugin(name="killer")
                        assert mark.exists()
                        found["killed worker"].append(digest(killed.to_local(), path))
                        found["seconds of recovery"].append(max(epoch_seconds(killed)) - usual)
                    found["load average"] = os.getloadavg()[0]
        code = (
            f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]; import scale_dask; scale_dask.die_in_fit()"
        )
        command = [sys.executable, "-c", code, str(n_rows), str(checkpoint)]
        assert subprocess.run(command).returncode == -signal.SIGKILL
        with cluster(2) as client:
            epochs: list[int] = []
            model = fit(client, X, y, checkpoint, **fixed, callbacks=[lambda epoch: epochs.append(epoch.epoch)])
            assert epochs == [2, 3, 4]
            found["killed client"] = digest(model.set_params(callbacks=None).to_local(), path)
    digests = {found[name] for name in ("1 workers", "2 workers", "4 workers", "killed client")}
    return found | {"all equal": len(digests.union(found["killed worker"])) == 1}


def die_in_fit() -> None:
    """Fit in this process, which is killed after the third epoch, before its state is written."""

    def die(epoch: Any) -> None:
        if epoch.epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    X, y, _ = made_table(int(sys.argv[1]))
    with cluster(1, processes=False) as client:
        fit(client, X, y, Path(sys.argv[2]), max_epochs=5, patience=None, callbacks=[die])


def kill_once(mark: str, task: str) -> Any:
    """A plugin that kills the first worker to begin a task of rounds whose key ends with `task`; it leaves a mark."""
    from distributed import WorkerPlugin

    class KillOnce(WorkerPlugin):
        def transition(self, key: Any, start: str, finish: str, **options: Any) -> None:
            if finish == "executing" and str(key).startswith("softwood-") and str(key).endswith(task):
                try:
                    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    return
                os.kill(os.getpid(), signal.SIGKILL)

    return KillOnce()


def steps(arguments: argparse.Namespace) -> dict[str, Any]:
    """Held-out loss and bytes against the steps of a round, with four shards."""
    from softwood.dask import rounds, shards

    n_rows = arguments.rows or 200_000
    X, y, share = made_table(n_rows)
    best = float(-np.mean(share * np.log(share) + (1 - share) * np.log(1 - share)))
    before = rounds._ROUND_STEPS, shards._SHARD_ROWS
    found = []
    try:
        shards._SHARD_ROWS = n_rows // 4
        with cluster(1, processes=False) as client:
            for n_steps in (10, 40, 80, 160):
                rounds._ROUND_STEPS = n_steps
                model = fit(client, X, y, max_epochs=10, patience=None)
                traffic = model.traffic_
                found.append(
                    {
                        "steps per round": n_steps,
                        "loss": min(model.history_["validation_loss"]),
                        "summed gradients over bytes": sum(traffic.gradient_bytes) / sum(traffic.bytes_sent),
                    }
                )
                print(json.dumps(found[-1]), flush=True)
    finally:
        rounds._ROUND_STEPS, shards._SHARD_ROWS = before
    return {"rows": n_rows, "best possible loss": best, "runs": found}


def quality(arguments: argparse.Namespace) -> dict[str, Any]:
    """AUC of one member, local and over shards: a quarter of the rows is for the test, one split per seed."""
    import softwood

    tables = find_tables(default_folder())
    found: dict[str, Any] = {}
    with cluster(2) as client:
        for name, n_seeds in _TABLES.items():
            table = read_table(tables[name])
            for seed in range(n_seeds):
                split = {"test_size": 0.25, "random_state": seed, "stratify": table.y}
                X, X_test, y, y_test = train_test_split(table.X, table.y, **split)
                local = softwood.TreeEnsembleClassifier(**_ONE_MEMBER, random_state=seed).fit(X, y)
                model = fit(client, X.reset_index(drop=True), y, random_state=seed)
                found[f"{name}, seed {seed}"] = _compared(y_test, local.predict_proba(X_test), model, X_test)
        n_rows = arguments.rows or 1_000_000
        X, y, share = made_table(n_rows + 100_000, seed=7)
        local = softwood.TreeEnsembleClassifier(**_ONE_MEMBER, random_state=0).fit(X[:n_rows], y[:n_rows])
        model = fit(client, X[:n_rows], y[:n_rows])
        best = {"best_possible": float(roc_auc_score(y[n_rows:], share[n_rows:]))}
        name = f"made, {n_rows:,} rows"
        found[name] = best | _compared(y[n_rows:], local.predict_proba(X[n_rows:]), model, X[n_rows:])
    return found


def _compared(y: np.ndarray, local: np.ndarray, model: Any, X: pd.DataFrame) -> dict[str, float]:
    scores = {"local": auc(y, local), "shards": auc(y, model.to_local().predict_proba(X))}
    traffic = model.traffic_
    sent = sum(traffic.gradient_bytes) / sum(traffic.bytes_sent)
    found = scores | {"difference": scores["shards"] - scores["local"], "summed_gradients_over_bytes": sent}
    print(json.dumps(found), flush=True)
    return found


def weak_scaling(
    n_workers: int, *, work: float, state: float, pooling: float, bandwidth: float, latency: float
) -> float:
    """Share of the time of a round in which a worker makes steps, with one shard per worker.

    A round takes ``work + levels * (2 * latency + 8 * (state / bandwidth + pooling)) + spread``. Results go up a tree
    of ``levels = ceil(log8(n_workers))`` levels: a worker receives 8 of them one after the other and averages them.
    The common state comes back from worker to worker, in ``spread = ceil(log2(n_workers)) * (latency +
    state / bandwidth)``.
    """
    if n_workers == 1:
        return work / (work + pooling)
    levels = int(np.ceil(np.log(n_workers) / np.log(8)))
    up = levels * (2 * latency + min(8, n_workers) * (state / bandwidth + pooling))
    spread = int(np.ceil(np.log2(n_workers))) * (latency + state / bandwidth)
    return work / (work + up + spread)


def model(arguments: argparse.Namespace) -> dict[str, Any]:
    """Weak scaling of the measured work and bytes on networks of 1 and 10 Gbit/s."""
    from softwood.training.rounds import ShardResult, pool

    n_rows = arguments.rows or 200_000
    X, y, _ = made_table(n_rows)
    seconds = []  # of CPU, which other processes on the machine do not change
    with cluster(1, processes=False) as client:
        for n_epochs in (1, 1 + _EPOCHS):
            begin = time.process_time()
            traffic = fit(client, X, y, max_epochs=n_epochs, patience=None).traffic_
            seconds.append(time.process_time() - begin)
    n_shards, n_rounds = max(2, n_rows // 100_000), traffic.rounds[0]
    work = (seconds[1] - seconds[0]) / _EPOCHS / n_shards / n_rounds
    state = traffic.bytes_sent[0] / n_rounds / n_shards / 2
    results = [ShardResult({"all": np.ones(int(state / 4), np.float32)}, 1.0, 0.0, 0.0, 0.0) for _ in range(8)]
    begin = time.process_time()
    pool(results)
    pooling = (time.process_time() - begin) / 8
    measured = {"work": work, "state": state, "pooling": pooling}
    shares = {}
    for name, bandwidth in (("1 Gbit/s", 1.25e8), ("10 Gbit/s", 1.25e9)):
        network = {"bandwidth": bandwidth, "latency": 0.005}
        shares[name] = {str(n): round(weak_scaling(n, **measured, **network), 3) for n in (1, 2, 4, 8, 16, 32, 64)}
    return measured | {"latency": 0.005, "share_of_time_in_steps": shares}


CASES = {"bits": bits, "speed": speed, "steps": steps, "model": model, "quality": quality}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Results by case."""
    return {"cases": {name: CASES[name](arguments) for name in arguments.cases or CASES}}
