"""A real table of 3,000,000 rows: fit from files, beside LightGBM on the same files; log loss and AUC on later weeks.

Part "flights" of `scale.py`. The table is flights-3m.parquet of the npm package vega-datasets, which `--folder` must
hold: flights of the first half of 2001, from the U.S. Bureau of Transportation Statistics. A flight is late if it
arrives more than 15 minutes after the timetable. What the table knows at departure is the time of the departure itself,
the two airports and the distance; weather, carrier and the timetable are not in it. The last tenth of the rows, in the
order of departures, is for the test. Every case is a process of its own with one thread; seconds are of CPU.

- `softwood`: `fit` on the files, one member, few epochs, under the default `memory_limit`.
- `lightgbm`: the same files read with pandas, texts as categories, 64 leaves, default rate, 100 and 500 rounds.
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
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

from scale_files import EpochTimer, resident

TABLE = "flights-3m.parquet"
CASES = ("softwood", "lightgbm")
N_FILES, N_EPOCHS = 3, 4
ROUNDS = (100, 500)
TEXTS = ["origin", "destination", "route"]


def write_files(table: Path, folder: Path) -> dict[str, Any]:
    """Columns that are known at departure and the target, in order of time: files to train on, and one for the test."""
    import pandas as pd

    flights = pd.read_parquet(table)
    when = flights["date"].dt
    rows = pd.DataFrame(
        {
            "month": when.month.astype(np.int8),
            "weekday": when.dayofweek.astype(np.int8),
            "minute": (60 * when.hour + when.minute).astype(np.int16),
            "distance": flights["distance"].astype(np.int16),
            "origin": flights["origin"].astype(str),
            "destination": flights["destination"].astype(str),
            "route": flights["origin"].astype(str) + "-" + flights["destination"].astype(str),
            "late": flights["delay"] > 15,
        }
    )
    n_train = len(rows) * 9 // 10
    ends = np.linspace(0, n_train, N_FILES + 1).astype(int)
    for i in range(N_FILES):
        rows[ends[i] : ends[i + 1]].to_parquet(folder / f"train-{i}.parquet", index=False, row_group_size=250_000)
    test = rows[n_train:]
    test.to_parquet(folder / "test.parquet", index=False)
    return {
        "rows": n_train,
        "columns": rows.shape[1] - 1,
        "test_rows": len(test),
        "test_begins": str(flights["date"][n_train]),
        "late": float(rows["late"][:n_train].mean()),
        "late_in_test": float(test["late"].mean()),
    }


def judged(y: np.ndarray, share: np.ndarray) -> dict[str, float]:
    return {"log_loss": float(log_loss(y, share)), "auc": float(roc_auc_score(y, share))}


def case_softwood(folder: Path) -> tuple[int, int, dict[str, Any]]:
    import pandas as pd

    from softwood import TreeEnsembleClassifier
    from softwood.tabular.out_of_core.files import is_long, open_files

    source = str(folder / "train-*.parquet")
    assert is_long(open_files(source, "late"))
    timer = EpochTimer()
    before, cpu = resident(), time.process_time()
    model = TreeEnsembleClassifier(n_members=1, max_epochs=N_EPOCHS, random_state=0, n_jobs=1).fit(source, "late")
    found = {"fit_cpu_seconds": time.process_time() - cpu, "epochs": N_EPOCHS, "memory_limit": model.memory_limit}
    found |= {"epoch_cpu_seconds": timer.cpu / N_EPOCHS, "epoch_rows_per_cpu_second": timer.n_trained / timer.cpu}
    peak = peak_memory()
    test = pd.read_parquet(folder / "test.parquet")
    share = model.predict_proba(test.drop(columns="late"))[:, 1]
    return before, peak, found | {"test": {f"{N_EPOCHS} epochs": judged(test["late"], share)}}


def case_lightgbm(folder: Path) -> tuple[int, int, dict[str, Any]]:
    import lightgbm
    import pandas as pd

    before, cpu = resident(), time.process_time()
    rows = pd.concat([pd.read_parquet(path) for path in sorted(folder.glob("train-*.parquet"))], ignore_index=True)
    kinds = {name: pd.CategoricalDtype(sorted(rows[name].unique())) for name in TEXTS}
    rows = rows.astype(kinds)
    settings = {"objective": "binary", "num_threads": 1, "verbosity": -1, "num_leaves": 64, "seed": 0}
    data = lightgbm.Dataset(rows.drop(columns="late"), label=rows["late"], params=settings).construct()
    loaded = time.process_time() - cpu
    model = lightgbm.train(settings, data, num_boost_round=max(ROUNDS))
    found: dict[str, Any] = {"load_cpu_seconds": loaded, "fit_cpu_seconds": time.process_time() - cpu}
    found["round_cpu_seconds"] = (found["fit_cpu_seconds"] - loaded) / max(ROUNDS)
    peak = peak_memory()
    test = pd.read_parquet(folder / "test.parquet").astype(kinds)
    X = test.drop(columns="late")
    found["test"] = {f"{n} rounds": judged(test["late"], np.asarray(model.predict(X, num_iteration=n))) for n in ROUNDS}
    return before, peak, found


def peak_memory() -> int:
    """Bytes (Linux)."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All cases, one after the other, on files in a temporary folder."""
    if arguments.folder is None or not (arguments.folder / TABLE).exists():
        raise SystemExit(f"--folder must hold {TABLE} of the npm package vega-datasets (npm pack vega-datasets).")
    with tempfile.TemporaryDirectory() as folder:
        about = write_files(arguments.folder / TABLE, Path(folder))
        found = {}
        for case in arguments.cases or CASES:
            command = [sys.executable, __file__, case, folder]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
            found[case] = json.loads(answer.stdout.splitlines()[-1])
            print(case, json.dumps(found[case]), flush=True)
    return about | {"cases": found}


if __name__ == "__main__":
    before, peak, found = globals()[f"case_{sys.argv[1]}"](Path(sys.argv[2]))
    print(json.dumps(found | {"beyond_imports_mb": (peak - before) / 1e6}))
