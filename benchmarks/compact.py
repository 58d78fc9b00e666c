"""Accuracy against size and prediction time: softwood's default, one member, compressed and hardened models, boosting.

A unit is one table at one 70/30 split; it holds all models of that table and is kept as one JSON file, so that a run
goes on where it was stopped. Parameters of boosting count 2 for each split and 1 for each leaf, those of softwood are
the stored numbers (`n_parameters_`). Times are of bulk predictions of the test rows and of one row at a time, with one
thread, as the least of several calls that alternate between the models.

    python benchmarks/compact.py --units UNITS --sets paper        # the paper's 23 sets; resumable
    python benchmarks/compact.py --units UNITS --sets long         # tables above 5,000 rows
    python benchmarks/compact.py --units UNITS --report --picture  # verdicts, compact.json, docs/images/compact.svg
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import learners
import machine
from softwood import explain
from suite_tables import ROOT, DataTable, RowSplit, default_folder, find_tables, read_table, score, split_rows
from suite_units import write_json

_BUDGETS = (1_000, 10_000)
_BOOSTING = ("xgboost", "lightgbm", "catboost")
_SIZES = (10, 30)  # trees (rounds) of the smaller boosted models, beside the default
_REPEATS = 3
_ROWS_ALONE = 20
_CALLS_SECONDS = 2.0
PICTURE = ROOT / "docs" / "images" / "compact.svg"


# Models -------------------------------------------------------------------------------------------------------------


def softwood_models(table: DataTable, rows: RowSplit) -> dict[str, dict[str, Any]]:
    """Fitted estimators by name, with the CPU seconds that each took to make."""
    found: dict[str, dict[str, Any]] = {}

    def make(name: str, action: Callable[[], Any]) -> Any:
        started = time.process_time()
        estimator = action()
        found[name] = {"estimator": estimator, "make_cpu_seconds": time.process_time() - started}
        return estimator

    def new(**parameters: Any) -> Any:
        return learners.make_estimator("softwood", table.task, threads=1, seed=0, **parameters)

    default = make("softwood", lambda: new(compact=False).fit(rows.X_train, rows.y_train))
    make("one member", lambda: new(n_members=1, compact=False).fit(rows.X_train, rows.y_train))
    make("hardened", default.harden)
    make("compressed", lambda: default.compress(rows.X_train))
    for budget in _BUDGETS:
        try:
            make(f"compressed to {budget}", partial(default.compress, rows.X_train, max_parameters=budget))
        except ValueError as error:  # less than one tree
            if "max_parameters" not in str(error):
                raise
    return found


def boosted_models(name: str, table: DataTable, rows: RowSplit) -> dict[str, dict[str, Any]]:
    """The default and smaller models of one rival."""
    X_train, X_test, categories = learners.prepare(name, rows.X_train, rows.X_test)
    X_train, X_test = _as_read_fastest(X_train), _as_read_fastest(X_test)
    found = {}
    for size in (None, *_SIZES):
        parameters: dict[str, Any] = {} if size is None else {"n_estimators": size}
        if name == "catboost":
            parameters["cat_features"] = categories
        estimator = learners.make_estimator(name, table.task, threads=1, seed=0, **parameters)
        started = time.process_time()
        estimator.fit(X_train, rows.y_train)
        seconds = time.process_time() - started
        label = name if size is None else f"{name} {size}"
        found[label] = {"estimator": estimator, "make_cpu_seconds": seconds, "X_test": X_test}
    return found


def boosted_parameters(name: str, estimator: Any) -> int:
    """Two numbers for each split and one for each leaf (of each class, where leaves hold several)."""
    if name == "xgboost":
        trees = estimator.get_booster().trees_to_dataframe()
        n_leaves = int((trees["Feature"] == "Leaf").sum())
        return 2 * (len(trees) - n_leaves) + n_leaves
    if name == "lightgbm":
        trees = estimator.booster_.dump_model()["tree_info"]
        n_leaves = sum(tree["num_leaves"] for tree in trees)
        return 3 * n_leaves - 2 * len(trees)
    leaves, counts = len(estimator.get_leaf_values()), estimator.get_tree_leaf_counts()
    return 2 * int(np.log2(counts).sum()) + leaves  # one split per level of a tree


# One unit -----------------------------------------------------------------------------------------------------------


def measure(table: DataTable, split: int) -> dict[str, Any]:
    """All models of one table."""
    rows = split_rows(table, split)
    models = softwood_models(table, rows)
    for name in _BOOSTING:
        models |= boosted_models(name, table, rows)
    results: dict[str, dict[str, Any]] = {}
    calls: dict[str, Callable[[], Any]] = {}
    alone: dict[str, Callable[[], Any]] = {}
    for label, model in models.items():
        estimator, given = model["estimator"], model.get("X_test", _as_read_fastest(rows.X_test))
        library = label.split()[0] if label.split()[0] in _BOOSTING else "softwood"
        source = estimator if library != "softwood" else estimator.predictor()
        predict = source.predict if table.task == "regression" else source.predict_proba
        if library == "softwood":
            predict = partial(predict, n_threads=1)
        calls[label] = partial(predict, given)
        alone[label] = partial(_one_by_one, predict, given)
        results[label] = {
            **score(table.task, rows.y_test, np.asarray(predict(given), dtype=np.float64)),
            "make_cpu_seconds": model["make_cpu_seconds"],
            "file_bytes": learners.file_bytes(library, estimator),
        }
        if library == "softwood":
            reached = explain.usage(estimator, rows.X_test.iloc[:500]).mean_reachable_leaves
            results[label]["leaves_reached"] = float(np.mean(np.concatenate(reached)))
            results[label]["parameters"] = estimator.n_parameters_.stored
        else:
            results[label]["parameters"] = boosted_parameters(library, estimator)
    for kind, timed, n in (("bulk", calls, len(rows.y_test)), ("alone", alone, _ROWS_ALONE)):
        for label, seconds in _least_times(timed).items():
            results[label][f"{kind}_microseconds_per_row"] = 1e6 * seconds / n
    return {"table": table.name, "split": split, **table.facts(), "models": results}


def _as_read_fastest(X: Any) -> Any:
    """A matrix where there are no categories: all libraries read that fastest."""
    return X.to_numpy(dtype=np.float64) if all(dtype.kind in "iufb" for dtype in X.dtypes) else X


def _one_by_one(predict: Callable[[Any], Any], X: Any) -> None:
    for i in range(_ROWS_ALONE):
        predict(X[i : i + 1] if isinstance(X, np.ndarray) else X.iloc[i : i + 1])


def _least_times(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    times: dict[str, list[float]] = {label: [] for label in calls}
    for _ in range(_REPEATS):
        for label, call in calls.items():
            if sum(times[label]) < _CALLS_SECONDS:
                started = time.process_time()
                call()
                times[label].append(time.process_time() - started)
    return {label: min(found) for label, found in times.items()}


# Report -------------------------------------------------------------------------------------------------------------


def quality(model: dict[str, Any]) -> float:
    """AUC, or R² of a regression."""
    return float(model["auc"] if "auc" in model else model["r2"])


def verdicts(units: list[dict[str, Any]]) -> dict[str, Any]:
    """The claims of the page on performance, over the paper's sets that have been run; other splits count once."""
    lost = {
        str(split): _mean_lost([unit for unit in units if unit["source"] == "pmlb" and unit["split"] == split])
        for split in sorted({unit["split"] for unit in units})
    }
    units = of_first_split(units)
    sets = [unit["models"] for unit in units if unit["source"] == "pmlb"]
    n = len(sets)
    loss = [quality(m["softwood"]) - quality(m["compressed"]) for m in sets]
    fewer = [m["softwood"]["parameters"] / m["compressed"]["parameters"] for m in sets]
    against_xgboost = [m["xgboost"]["parameters"] / m["compressed"]["parameters"] for m in sets]
    as_good = [quality(m["compressed"]) >= quality(m["xgboost"]) for m in sets]

    def faster(kind: str) -> int:
        key = f"{kind}_microseconds_per_row"
        return sum(all(m["compressed"][key] < m[rival][key] for rival in _BOOSTING) for m in sets)

    bulk = [m["softwood"]["bulk_microseconds_per_row"] / m["xgboost"]["bulk_microseconds_per_row"] for m in sets]
    teaching = [m["compressed"]["make_cpu_seconds"] / m["softwood"]["make_cpu_seconds"] for m in sets]
    found = {unit["table"]: matched_ratio(unit["models"]) for unit in units}
    matched = {table: round(ratio, 2) for table, ratio in found.items() if ratio is not None}
    both = sum(ratio > 1 and good for ratio, good in zip(against_xgboost, as_good, strict=True))
    return {
        "sets": n,
        "default file below XGBoost's": sum(m["softwood"]["file_bytes"] < m["xgboost"]["file_bytes"] for m in sets),
        "compressed file below XGBoost's": sum(
            m["compressed"]["file_bytes"] < m["xgboost"]["file_bytes"] for m in sets
        ),
        "mean AUC lost by compressing": float(np.mean(loss)),
        "mean AUC lost by compressing, by split": lost,
        "log-loss of the compressed model over the default's (median)": float(
            np.median([m["compressed"]["log_loss"] / m["softwood"]["log_loss"] for m in sets])
        ),
        "mean AUC lost by one member": float(
            np.mean([quality(m["softwood"]) - quality(m["one member"]) for m in sets])
        ),
        "times fewer parameters than the default (median, least)": [float(np.median(fewer)), float(min(fewer))],
        "leaves reached per tree": float(np.mean([m["compressed"]["leaves_reached"] for m in sets])),
        "fewer parameters than XGBoost at equal or better AUC": both,
        "XGBoost's parameters per compressed one, by set": {
            unit["table"]: round(
                unit["models"]["xgboost"]["parameters"] / unit["models"]["compressed"]["parameters"], 2
            )
            for unit in units
        },
        "the same at matched AUC (median)": float(np.median(list(matched.values()))),
        "the same at matched AUC, by set": matched,
        "compressed faster in bulk than all boosting": faster("bulk"),
        "compressed faster for one row than all boosting": faster("alone"),
        "default's bulk time over XGBoost's (median, most)": [float(np.median(bulk)), float(max(bulk))],
        "time of compressing over that of the fit (median, most)": [float(np.median(teaching)), float(max(teaching))],
    }


def of_first_split(units: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What tables and pictures show; of further splits, only the AUC that compressing loses is told."""
    return [unit for unit in units if unit["split"] == 0]


def _mean_lost(units: list[dict[str, Any]]) -> float:
    return float(np.mean([quality(u["models"]["softwood"]) - quality(u["models"]["compressed"]) for u in units]))


def matched_ratio(models: dict[str, dict[str, Any]]) -> float | None:
    """Parameters of XGBoost's best size per one of the smallest compressed model that is as good; None if none is.

    The paper's claim of 20 times fewer parameters is of this kind: both are searched for the best.
    """
    boosted = [model for label, model in models.items() if label.split()[0] == "xgboost"]
    best = max(boosted, key=lambda model: (quality(model), -model["parameters"]))
    taught = [model for label, model in models.items() if label.startswith("compressed")]
    as_good = [model["parameters"] for model in taught if quality(model) >= quality(best)]
    return float(best["parameters"] / min(as_good)) if as_good else None


def draw(units: list[dict[str, Any]], path: Path) -> None:
    """Quality below the best model of a table against parameters and bulk time, each a median over tables."""
    import matplotlib.pyplot as plt

    labels = list(dict.fromkeys(label for unit in units for label in unit["models"]))
    groups = {"softwood": "tab:green", "xgboost": "tab:blue", "lightgbm": "tab:orange", "catboost": "tab:purple"}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    keys = {"parameters": "stored parameters", "bulk_microseconds_per_row": "bulk prediction, µs per row, one thread"}
    for axis, (key, title) in zip(axes, keys.items(), strict=True):
        points = []
        for label in labels:
            have = [unit["models"] for unit in units if label in unit["models"]]
            if len(have) < len(units) / 2:
                continue
            losses = [max(map(quality, models.values())) - quality(models[label]) for models in have]
            below = float(np.mean(losses))
            size = float(np.median([models[label][key] for models in have]))
            library = label.split()[0] if label.split()[0] in groups else "softwood"
            axis.scatter(size, below, color=groups[library], s=30)
            points.append((size, below, label))
        for i, (size, below, label) in enumerate(sorted(points)):
            height = 3 if i % 2 else -9  # neighbours stand above and below
            axis.annotate(label, (size, below), xytext=(4, height), textcoords="offset points", fontsize=7)
        axis.margins(x=0.12, y=0.08)
        axis.set(xscale="log", xlabel=f"{title} (median)")
        axis.grid(alpha=0.3)
    axes[0].invert_yaxis()
    axes[0].set_ylabel("AUC below the best (mean)")
    figure.suptitle(f"Accuracy against size and speed, {len(units)} tables", fontsize=10)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run what is missing, or report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=default_folder(), help="folder of the data sets")
    parser.add_argument("--units", type=Path, required=True, help="folder of finished units")
    parser.add_argument("--sets", choices=("paper", "long"), default="paper")
    parser.add_argument("--max-rows", type=int, default=10**9)
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--picture", action="store_true")
    options = parser.parse_args()
    if not options.report:
        tables = [read_table(path) for path in find_tables(options.data).values()]
        is_wanted = {"paper": lambda t: t.source == "pmlb", "long": lambda t: len(t.y) > 5000}[options.sets]
        tables = [table for table in tables if is_wanted(table) and len(table.y) <= options.max_rows]
        for table in sorted(tables, key=lambda t: t.X.size * max(1, t.n_classes)):
            path = options.units / f"{table.name}-{options.split}.json"
            if not path.exists():
                write_json(path, measure(table, options.split))
                print(table.name, flush=True)
        return
    units = [json.loads(path.read_text()) for path in sorted(options.units.glob("*.json"))]
    if not units:
        raise SystemExit(f"There must be units in {options.units}; there are none. Run without --report first.")
    found = verdicts(units)
    print(json.dumps(found, indent=1))
    write_json(Path(__file__).with_suffix(".json"), {"machine": machine.facts(), "verdicts": found, "units": units})
    if options.picture:
        draw([unit for unit in of_first_split(units) if unit["task"] != "regression"], PICTURE)


if __name__ == "__main__":
    main()
