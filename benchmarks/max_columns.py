"""What `max_columns` costs, and whether it finds the columns that matter.

Two questions. Of 500 columns of which 20 make up the target (scikit-learn's `make_classification`, like the madelon
set), how many of the 20 are among 25 selected ones? And on wide tables, how much AUC does a quarter of the columns lose
against all of them, on 70/30 splits?

    python benchmarks/max_columns.py            # a few minutes; writes max_columns.json beside this file
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import make_classification

import machine
import softwood
from suite_tables import auc, default_folder, find_tables, read_table, split_rows
from suite_units import write_json

WIDE_TABLES = ("dna", "spambase", "mfeat-fourier")
_N_COLUMNS, _N_INFORMATIVE, _N_SELECTED = 500, 20, 25


def find_informative(n_rows: int, seed: int) -> dict[str, Any]:
    """How many of the informative columns are selected."""
    X, y = make_classification(n_rows, _N_COLUMNS, n_informative=_N_INFORMATIVE, n_redundant=0, random_state=seed,
                               shuffle=False)  # fmt: skip
    order = np.random.default_rng(seed).permutation(_N_COLUMNS)
    started = time.process_time()
    fitted = softwood.TreeEnsembleClassifier(max_columns=_N_SELECTED, random_state=0, n_jobs=1).fit(X[:, order], y)
    found = int((order[fitted.selected_columns_] < _N_INFORMATIVE).sum())
    return {"rows": n_rows, "seed": seed, "found": found, "cpu_seconds": time.process_time() - started}


def cost_of_a_quarter(name: str, path: Path, split: int) -> dict[str, Any]:
    """AUC on the test rows with all columns, and with a quarter of them alone."""
    table = read_table(path)
    rows = split_rows(table, split)
    n_columns = table.X.shape[1]
    result: dict[str, Any] = {"table": name, "split": split, "columns": n_columns}
    for label, max_columns in (("all", None), ("quarter", n_columns // 4)):
        started = time.process_time()
        fitted = softwood.TreeEnsembleClassifier(max_columns=max_columns, random_state=split, n_jobs=1)
        fitted.fit(rows.X_train, rows.y_train)
        result[f"{label}_cpu_seconds"] = time.process_time() - started
        result[f"{label}_auc"] = auc(rows.y_test, fitted.predict_proba(rows.X_test[list(fitted.selected_columns_)]))
    return result


def main() -> None:
    """Measure, print the verdicts and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=default_folder(), help="folder of the data sets")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    found = [find_informative(n_rows, seed) for n_rows in (1000, 2000) for seed in range(options.splits)]
    for one in found:
        print(json.dumps(one), flush=True)
    paths = find_tables(options.data)
    costs = [cost_of_a_quarter(name, paths[name], split) for name in WIDE_TABLES for split in range(options.splits)]
    losses = {}
    for name in WIDE_TABLES:
        of_table = [one for one in costs if one["table"] == name]
        losses[name] = float(np.mean([one["all_auc"] - one["quarter_auc"] for one in of_table]))
        print(f"{name}: a quarter of {of_table[0]['columns']} columns loses {losses[name]:+.4f} of AUC")
    least = min(one["found"] for one in found)
    verdicts = {
        f"at least 18 of 20 informative columns in {_N_SELECTED}": {"found": least, "holds": least >= 18},
        "a quarter of the columns loses at most 0.003": {"losses": losses, "holds": max(losses.values()) <= 0.003},
    }
    print(json.dumps(verdicts, indent=1))
    write_json(
        options.out, {"machine": machine.facts(), "informative": found, "wide_tables": costs, "verdicts": verdicts}
    )


if __name__ == "__main__":
    main()
