"""Files larger than memory: rows per second and peak memory of one epoch, beside a table in memory and rivals.

Part "files" of `scale.py`. The table is made: normal features in float32, and a label whose probability is a known
function of four of them, so that the best log loss is known. Every case is a process of its own with one thread, and
reports its peak memory (Linux) less what it has after its imports. Times are in seconds of CPU: other processes share
the machine.

- `softwood`: `fit` on the files, one member, one epoch.
- `softwood_in_memory`: the same on the first rows of the files, as an array; rows per second of the epoch alone.
- `xgboost`: ExtMemQuantileDMatrix over an iterator of record batches, one round of depth 6 per pass over the rows.
- `lightgbm`: its Sequence interface, which goes over the rows twice; its two_round option reads text files only.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

N_COLUMNS = 20
FILE_ROWS, GROUP_ROWS, IN_MEMORY_ROWS = 1_000_000, 250_000, 1_000_000
N_ROUNDS = 3
CASES = ("softwood", "softwood_in_memory", "xgboost", "lightgbm")


def make_rows(seed: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels, and the probability of each label."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, N_COLUMNS), dtype=np.float32)
    score = X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]) + X[:, 3]
    probability = 1 / (1 + np.exp(-2 * score))
    return X, (rng.random(n) < probability).astype(np.int8), probability


def write_files(folder: Path, n_rows: int) -> None:
    """Write the table file by file, in row groups."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    for i, first in enumerate(range(0, n_rows, FILE_ROWS)):
        path = folder / f"part-{i:03}.parquet"
        if path.exists():
            continue
        X, y, _ = make_rows(i, min(FILE_ROWS, n_rows - first))
        table = pa.table({f"x{j}": X[:, j] for j in range(N_COLUMNS)} | {"y": y})
        parquet.write_table(table, path, row_group_size=GROUP_ROWS, compression="none", use_dictionary=False)


def batches(folder: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Row groups as arrays, for the rivals."""
    import pyarrow.parquet as parquet

    for path in sorted(folder.glob("*.parquet")):
        file = parquet.ParquetFile(path, pre_buffer=False)
        for i in range(file.num_row_groups):
            table = file.read_row_group(i, use_threads=False)
            X = np.column_stack([table.column(f"x{j}").to_numpy() for j in range(N_COLUMNS)])
            yield X, table.column("y").to_numpy()


def run_case(case: str, folder: Path) -> dict[str, Any]:
    """One case, in this process."""
    started = time.process_time()
    before, found = globals()[f"case_{case}"](folder)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found["cpu_seconds"] = time.process_time() - started
    return found | {"imports_mb": before / 1e6, "peak_mb": peak / 1e6, "beyond_imports_mb": (peak - before) / 1e6}


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class EpochTimer:
    """Seconds of CPU and of the clock that epochs take, without what comes before and after them."""

    def __init__(self) -> None:
        from softwood.training import loop

        self.cpu, self.wall, self.n_trained = 0.0, 0.0, 0
        run_epoch = loop._Fit.run_epoch

        def timed(fit: Any, deadline: float) -> None:
            cpu, wall = time.process_time(), time.monotonic()
            run_epoch(fit, deadline)
            self.n_trained += fit.members[0].train.n_rows
            self.cpu, self.wall = self.cpu + time.process_time() - cpu, self.wall + time.monotonic() - wall

        loop._Fit.run_epoch = timed  # type: ignore[assignment, method-assign]

    def rates(self, n_rows: int) -> dict[str, float]:
        return {
            "rows": n_rows,
            "trained_rows": self.n_trained,
            "epoch_cpu_seconds": self.cpu,
            "epoch_wall_seconds": self.wall,
            "epoch_rows_per_cpu_second": self.n_trained / self.cpu,
        }


def held_out_loss(predict: Any) -> dict[str, float]:
    """Log loss on new rows, beside the best possible one."""
    X, y, probability = make_rows(10_000, 100_000)

    def loss(p: np.ndarray) -> float:
        return float(-np.log(np.clip(np.where(y == 1, p, 1 - p), 1e-15, 1)).mean())

    return {"log_loss": loss(predict(X)), "best_log_loss": loss(probability)}


def case_softwood(folder: Path) -> tuple[int, dict[str, Any]]:
    import pyarrow.parquet as parquet

    from softwood import TreeEnsembleClassifier

    timer = EpochTimer()
    model = TreeEnsembleClassifier(n_members=1, max_epochs=1, random_state=0, n_jobs=1, verbose=1)
    n_rows = sum(parquet.ParquetFile(path).metadata.num_rows for path in folder.glob("*.parquet"))
    before, cpu = resident(), time.process_time()
    model.fit(folder, "y")
    found = timer.rates(n_rows) | {"passes_cpu_seconds": time.process_time() - cpu - timer.cpu}
    names = [f"x{j}" for j in range(N_COLUMNS)]

    def predict(X: np.ndarray) -> np.ndarray:
        import pyarrow as pa

        return model.predict_proba(pa.table(dict(zip(names, X.T, strict=True))))[:, 1]

    return before, found | held_out_loss(predict)


def case_softwood_in_memory(folder: Path) -> tuple[int, dict[str, Any]]:
    import pyarrow.parquet as parquet

    from softwood import TreeEnsembleClassifier

    timer = EpochTimer()
    table = parquet.read_table(sorted(folder.glob("*.parquet"))[0])[:IN_MEMORY_ROWS]
    X = np.column_stack([table.column(f"x{j}").to_numpy() for j in range(N_COLUMNS)])
    y = table.column("y").to_numpy()
    before = resident()
    TreeEnsembleClassifier(n_members=1, max_epochs=1, random_state=0, n_jobs=1, verbose=1).fit(X, y)
    return before, timer.rates(len(X))


def case_xgboost(folder: Path) -> tuple[int, dict[str, Any]]:
    import xgboost

    class Batches(xgboost.DataIter):
        """The files, batch by batch, as often as it takes."""

        def __init__(self, cache: str) -> None:
            self.rows = batches(folder)
            super().__init__(cache_prefix=cache)

        def reset(self) -> None:
            self.rows = batches(folder)

        def next(self, input_data: Any) -> bool:
            found = next(self.rows, None)
            if found is None:
                return False
            input_data(data=found[0], label=found[1])
            return True

    before = resident()
    with tempfile.TemporaryDirectory(dir=folder.parent) as cache:
        cpu = time.process_time()
        data = xgboost.ExtMemQuantileDMatrix(Batches(os.path.join(cache, "cache")), max_bin=256, nthread=1)
        loaded = time.process_time() - cpu
        settings = {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 6, "nthread": 1}
        model = xgboost.train(settings, data, num_boost_round=N_ROUNDS)
        per_round = (time.process_time() - cpu - loaded) / N_ROUNDS
        found = {"rows": data.num_row(), "load_cpu_seconds": loaded, "round_cpu_seconds": per_round}
        del data
    found["round_rows_per_cpu_second"] = found["rows"] / per_round
    return before, found | held_out_loss(lambda X: model.predict(xgboost.DMatrix(X)))


def case_lightgbm(folder: Path) -> tuple[int, dict[str, Any]]:
    import lightgbm
    import pyarrow.parquet as parquet

    class Rows(lightgbm.Sequence):
        """Rows of one file; the last row group that was asked for is held."""

        def __init__(self, path: Path) -> None:
            self.file = parquet.ParquetFile(path, pre_buffer=False)
            self.batch_size = GROUP_ROWS
            self.group, self.held = -1, np.zeros((0, 0))

        def __len__(self) -> int:
            return self.file.metadata.num_rows

        def _read(self, group: int) -> np.ndarray:
            if group != self.group:
                table = self.file.read_row_group(group, columns=[f"x{j}" for j in range(N_COLUMNS)], use_threads=False)
                self.held = np.column_stack([column.to_numpy() for column in table.columns]).astype(np.float64)
                self.group = group
            return self.held

        def __getitem__(self, index: Any) -> np.ndarray:
            if isinstance(index, slice):
                first, stop, _ = index.indices(len(self))
                return self._read(first // GROUP_ROWS)[first % GROUP_ROWS : first % GROUP_ROWS + stop - first]
            return self._read(index // GROUP_ROWS)[index % GROUP_ROWS]

    paths = sorted(folder.glob("*.parquet"))
    before = resident()
    cpu = time.process_time()
    y = np.concatenate([parquet.read_table(path, columns=["y"]).column("y").to_numpy() for path in paths])
    settings = {"objective": "binary", "num_threads": 1, "verbosity": -1, "num_leaves": 64}
    data = lightgbm.Dataset([Rows(path) for path in paths], label=y, params=settings).construct()
    loaded = time.process_time() - cpu
    model = lightgbm.train(settings, data, num_boost_round=N_ROUNDS)
    per_round = (time.process_time() - cpu - loaded) / N_ROUNDS
    found = {"rows": len(y), "load_cpu_seconds": loaded, "round_cpu_seconds": per_round}
    found["round_rows_per_cpu_second"] = found["rows"] / per_round
    return before, found | held_out_loss(lambda X: np.asarray(model.predict(X)))


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All cases, one after the other."""
    n_rows = arguments.rows or 20_000_000
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary) / "table"
        folder.mkdir(parents=True, exist_ok=True)
        write_files(folder, n_rows)
        found = {}
        for case in arguments.cases or CASES:
            command = [sys.executable, __file__, case, str(folder)]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
            found[case] = json.loads(answer.stdout.splitlines()[-1])
            print(case, json.dumps(found[case]), flush=True)
    return {"rows": n_rows, "columns": N_COLUMNS, "cases": found}


if __name__ == "__main__":
    print(json.dumps(run_case(sys.argv[1], Path(sys.argv[2]))))
