"""What a narrowing soft band costs: test AUC against the leaves that a row reaches in a tree at the end of training.

Single members with `gamma` and `gamma_end` of a grid, on the stratified 70/30 splits of the PMLB sets of the paper.
Finished units are kept in the results file, so that a run goes on where it was stopped.

    python benchmarks/gamma_schedule.py --splits 3
    python benchmarks/gamma_schedule.py --report     # table, and the curve in benchmarks/results/gamma_schedule.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd

from softwood import TreeEnsembleClassifier
from suite_tables import DataTable, auc, default_folder, find_tables, read_table, split_rows
from suite_units import write_json

HERE = Path(__file__).parent
PICTURE = HERE / "results" / "gamma_schedule.svg"
LARGE = (
    "sleep",
    "nursery",
    "texture",
    "optdigits",
    "satimage",
)  # left out: they would take most of the time
# From the widest to the narrowest end, for a start at gamma 1 and at gamma 2.
SCHEDULES = [(1.0, end) for end in (1.0, 0.5, 0.25, 0.1, 0.05, 0.02)] + [(2.0, end) for end in (2.0, 0.5, 0.1)]


def run_unit(table: DataTable, gamma: float, gamma_end: float, split: int) -> dict[str, float]:
    """Fit one schedule on one split."""
    rows = split_rows(table, split)
    end = None if gamma_end == gamma else gamma_end
    model = TreeEnsembleClassifier(n_members=1, gamma=gamma, gamma_end=end, random_state=split, n_jobs=1)
    model.fit(rows.X_train, rows.y_train)
    best = int(np.flatnonzero(model.history_["is_best"])[-1])
    return {
        "auc": auc(rows.y_test, model.predict_proba(rows.X_test)),
        "leaves": float(model.history_["mean_reachable_leaves"][best]),
        "gamma": float(model.history_["gamma"][best]),
    }


def report(units: dict[str, dict[str, float]]) -> None:
    """Print the trade-off and draw it."""
    rows = pd.DataFrame([{**dict(zip(("set", "split", "gamma0", "end"), key.split("/"), strict=True)), **unit}
                         for key, unit in units.items()])  # fmt: skip
    rows["schedule"] = list(zip(rows["gamma0"].astype(float), rows["end"].astype(float), strict=True))
    wide = rows.pivot(index=["set", "split"], columns="schedule", values="auc").dropna()
    by_set = wide.groupby("set").mean()
    difference = by_set.sub(by_set[(1.0, 1.0)], axis=0) * 1e4
    table = pd.DataFrame(
        {
            "mean AUC": by_set.mean(),
            "minus gamma 1's, in 0.0001": difference.mean(),
            "standard error": difference.std(ddof=1) / np.sqrt(len(difference)),
            "leaves of 16": rows.groupby("schedule")["leaves"].mean(),
            "gamma of the best epoch": rows.groupby("schedule")["gamma"].mean(),
        }
    )
    print(f"{len(by_set)} sets, {len(wide)} splits in all\n{table.round(4).to_string()}")
    draw(table)


def draw(table: pd.DataFrame) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for start, marker in ((1.0, "o"), (2.0, "s")):
        part = table[[first == start for first, _ in table.index]].sort_values("leaves of 16")
        axes.errorbar(
            part["leaves of 16"], part["minus gamma 1's, in 0.0001"], part["standard error"],
            marker=marker, capsize=2, label=f"from gamma {start:g}",
        )  # fmt: skip
        for (_, end), row in part.iterrows():
            position = (row["leaves of 16"], row["minus gamma 1's, in 0.0001"])
            axes.annotate(f"{end:g}", position, textcoords="offset points", xytext=(4, 5), fontsize=8)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set(
        xscale="log", xlabel="leaves reached by a row in a tree (of 16)", ylabel="AUC minus that of gamma 1 (1e-4)"
    )
    axes.set_xticks([1, 2, 4, 8, 16], labels=["1", "2", "4", "8", "16"])
    axes.legend(frameon=False)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=default_folder(), help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gamma_schedule.json")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--sets", nargs="+", help="all but the largest by default")
    parser.add_argument("--report", action="store_true", help="print the table and draw the curve, run nothing")
    arguments = parser.parse_args()
    units = json.loads(arguments.out.read_text())["units"] if arguments.out.exists() else {}
    if not arguments.report:
        paths = {name: path for name, path in find_tables(arguments.data).items() if "pmlb" in path.parts}
        sets = arguments.sets or [name for name in paths if name not in LARGE]
        data = {name: read_table(paths[name]) for name in sets}
        for split in range(arguments.splits):
            for name in sets:
                for gamma, end in SCHEDULES:
                    key = f"{name}/{split}/{gamma:g}/{end:g}"
                    if key not in units:
                        units[key] = run_unit(data[name], gamma, end, split)
                write_json(arguments.out, {"units": units})
                print(f"split {split}: {name}", flush=True)
    report(units)


if __name__ == "__main__":
    main()
