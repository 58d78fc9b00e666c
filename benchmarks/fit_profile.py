"""Where the time of a fit goes: CPU seconds of the parts of one member's fit to 50,000 and to 1,000,000 rows.

    python benchmarks/fit_profile.py         writes fit_profile.json

The table is made up: 20 columns of normal numbers, and two classes that depend on four of them and noise. One thread.
The longer fit is stopped after 10 epochs, which makes its fixed costs look larger than they are.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import time
from pathlib import Path
from typing import Any

import numpy as np

import machine
import softwood

RESULTS = Path(__file__).with_suffix(".json")
CASES: dict[int, dict[str, Any]] = {50_000: {}, 1_000_000: {"max_epochs": 10}}
# Parts of a fit, and the functions whose time, with all that they call, is theirs.
PARTS = {
    "reading, equal rows, codes": ("_prepare", "_find_codes"),
    "knots and scales": ("fit_lookups",),
    "cells": ("cells",),
    "epochs": ("run_epoch",),
    "rounding, importances": ("_trained", "_assemble"),
}


def make_table(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 20)).astype(np.float32)
    signal = X[:, 0] + X[:, 1] * X[:, 2] + np.abs(X[:, 3])
    return X, (signal + rng.normal(size=n_rows) > 0.8).astype(np.int64)


def profile(n_rows: int, **parameters: Any) -> dict[str, Any]:
    """CPU seconds of one fit: in all, by part, and per row and epoch."""
    X, y = make_table(n_rows)
    model = softwood.TreeEnsembleClassifier(n_members=1, n_jobs=1, random_state=0, **parameters)
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(model.fit, X, y)
    stats = pstats.Stats(profiler)
    by_name: dict[str, float] = {}
    for (_, _, name), (_, _, _, cumulative, _) in stats.stats.items():  # type: ignore[attr-defined]
        by_name[name] = max(by_name.get(name, 0.0), cumulative)  # methods of one name call each other
    parts = {part: sum(by_name.get(name, 0.0) for name in names) for part, names in PARTS.items()}
    total = stats.total_tt  # type: ignore[attr-defined]
    n_epochs = max(model.history_["epoch"]) + 1
    return {
        "rows": n_rows,
        "columns": X.shape[1],
        "epochs": n_epochs,
        "cpu_seconds": total,
        "parts": {**parts, "the rest": total - sum(parts.values())},
        "epoch_us_per_row": 1e6 * parts["epochs"] / n_epochs / n_rows,
    }


def main() -> None:
    found = []
    for n_rows, parameters in CASES.items():
        found.append(one := profile(n_rows, **parameters))
        shares = ", ".join(f"{part} {seconds / one['cpu_seconds']:.0%}" for part, seconds in one["parts"].items())
        print(f"{n_rows} rows, {one['epochs']} epochs: {one['cpu_seconds']:.1f} s; {shares}", flush=True)
    RESULTS.write_text(json.dumps({"machine": machine.facts(), "fits": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
