"""Fit time, peak memory and test AUC of softwood beside XGBoost, LightGBM, CatBoost and a random forest.

All learners run at their defaults, with the same number of threads, on the same stratified 70/30 splits of the 23 PMLB
sets of the paper, one after the other on each split. Finished units are kept in the results file, so that a run goes on
where it was stopped. AUC is the mean of one-against-rest AUCs over classes.

    python benchmarks/fit.py --data ../shared/data/pmlb --splits 5 --threads 2
    python benchmarks/fit.py --sets spambase vehicle --models softwood catboost
    python benchmarks/fit.py --variant "deep={\\"depth\\": 6}" --models softwood deep     # paired with the default
    python benchmarks/fit.py --report                                                  # tables of what is there
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import train_test_split

Results = dict[str, dict[str, Any]]
RIVALS = ("xgboost", "lightgbm", "catboost", "random_forest")
DEFAULT_MODELS = ("softwood", "softwood_single", *RIVALS)


def make_model(name: str, threads: int, seed: int, variants: dict[str, dict[str, Any]]) -> Any:
    """Return an unfitted classifier at its defaults."""
    if name in variants:
        from softwood import TreeEnsembleClassifier

        return TreeEnsembleClassifier(**{"n_jobs": threads, "random_state": seed, **variants[name]})
    if name == "xgboost":
        from xgboost import XGBClassifier

        return XGBClassifier(n_jobs=threads, random_state=seed)
    if name == "lightgbm":
        from lightgbm import LGBMClassifier

        return LGBMClassifier(n_jobs=threads, random_state=seed, verbose=-1)
    if name == "catboost":
        from catboost import CatBoostClassifier

        return CatBoostClassifier(thread_count=threads, random_seed=seed, verbose=False, allow_writing_files=False)
    if name == "random_forest":
        from sklearn.ensemble import RandomForestClassifier

        return RandomForestClassifier(n_jobs=threads, random_state=seed)
    raise SystemExit(f"unknown model {name!r}; known: {', '.join([*variants, *RIVALS])}")


def read_set(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, p] and class numbers [n] of one PMLB set."""
    frame = pd.read_csv(folder / name / f"{name}.tsv.gz", sep="\t")
    labels = np.unique(frame["target"], return_inverse=True)[1]
    return frame.drop(columns="target").to_numpy(dtype=np.float64), labels


def auc(y: np.ndarray, probability: np.ndarray) -> float:
    """Area under the ROC curve; the mean over classes against the rest if there are more than two."""
    if probability.shape[1] == 2:
        return float(roc_auc_score(y, probability[:, 1]))
    return float(roc_auc_score(y, probability, multi_class="ovr"))


def peak_memory_of(action: Callable[[], Any]) -> tuple[Any, float]:
    """Run an action; return its result and by how many MiB it raised this process's memory at most (NaN off Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to the present
        before = _status("VmRSS")
    except OSError:
        return action(), float("nan")
    result = action()
    return result, max(0.0, (_status("VmHWM") - before) / 1024)


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def run_unit(model: Any, X: np.ndarray, y: np.ndarray, seed: int) -> dict[str, float]:
    """Fit and score one model on one split."""
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=seed, stratify=y)
    started = time.perf_counter()
    _, memory = peak_memory_of(lambda: model.fit(X_train, y_train))
    seconds = time.perf_counter() - started
    started = time.perf_counter()
    probability = np.asarray(model.predict_proba(X_test), dtype=np.float64)
    predict_seconds = time.perf_counter() - started
    probability = np.clip(probability, 1e-15, 1)
    probability /= probability.sum(axis=1, keepdims=True)
    return {
        "auc": auc(y_test, probability),
        "log_loss": float(log_loss(y_test, probability, labels=np.unique(y))),
        "accuracy": float((probability.argmax(axis=1) == y_test).mean()),
        "fit_seconds": seconds,
        "predict_seconds": predict_seconds,
        "peak_mib": memory,
    }


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    packages = ("softwood", "xgboost", "xgboost-cpu", "lightgbm", "catboost", "scikit-learn", "numpy")
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    model = next(
        (line.split(":")[1].strip() for line in _cpu_info() if line.startswith("model name")), platform.machine()
    )
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "versions": versions}


def _cpu_info() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def save(path: Path, results: Results) -> None:
    """Write the results file anew, whole."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"machine": machine(), "units": results}, indent=0))
    temporary.replace(path)


# Tables -------------------------------------------------------------------------------------------------------------


def table_of(results: Results, models: list[str], figure: str) -> pd.DataFrame:
    """Means over splits [sets, models], of the splits that all the models have done; medians of times."""
    rows = pd.DataFrame(
        [{**dict(zip(("set", "split", "model"), key.split("/"), strict=True)), **unit} for key, unit in results.items()]
    )
    wide = rows.pivot(index=["set", "split"], columns="model", values=figure)
    wide = wide[[name for name in models if name in wide]].dropna()
    by_set = wide.groupby("set")
    return by_set.median() if figure.endswith("seconds") else by_set.mean()


def report(results: Results, models: list[str]) -> None:
    """Print AUC and fit time by set, then means, ranks and paired differences from the first model."""
    scores, seconds = table_of(results, models, "auc"), table_of(results, models, "fit_seconds")
    losses, memory = table_of(results, models, "log_loss"), table_of(results, models, "peak_mib")
    if scores.empty:
        raise SystemExit("no split has been done by all of these models yet")
    pd.set_option("display.width", 200, "display.max_columns", 20, "display.max_rows", 100)
    print(f"\nTest AUC, mean over splits ({len(scores)} sets)\n{scores.round(4)}")
    print(f"\nFit seconds, median over splits\n{seconds.round(3)}")
    summary = pd.DataFrame(
        {
            "mean AUC": scores.mean(),
            "mean rank": scores.rank(axis=1, ascending=False).mean(),
            "mean log-loss": losses.mean(),
            "median fit seconds": seconds.median(),
            "total fit seconds": seconds.sum(),
            "median peak MiB": memory.median(),
        }
    )
    print(f"\n{summary.round(4)}")
    first = scores.columns[0]
    difference = scores.sub(scores[first], axis=0) * 1e4
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    faster = {name: int((seconds[first] <= seconds[name]).sum()) for name in scores.columns}
    paired = pd.DataFrame(
        {
            f"AUC minus {first}'s, in 0.0001": difference.mean(),
            "standard error": error,
            "sets better": (difference > 0).sum(),
            "sets worse": (difference < 0).sum(),
            "relative log-loss": (losses.div(losses[first], axis=0)).mean(),
            f"sets where {first} fits at least as fast": pd.Series(faster),
        }
    )
    print(f"\n{paired.round(3).to_string()}")


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/pmlb"), help="folder of the PMLB sets")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/fit.json"), help="results, kept and added to"
    )
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--sets", nargs="+", help="all by default")
    parser.add_argument("--models", nargs="+", help="all rivals by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=JSON", help="further softwood settings")
    parser.add_argument("--report", action="store_true", help="print tables, run nothing")
    arguments = parser.parse_args()
    variants: dict[str, dict[str, Any]] = {"softwood": {}, "softwood_single": {"n_members": 1}}
    for text in arguments.variant:
        name, _, settings = text.partition("=")
        variants[name] = json.loads(settings)
    models = arguments.models or list(DEFAULT_MODELS)
    results: Results = json.loads(arguments.out.read_text())["units"] if arguments.out.exists() else {}
    if not arguments.report:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        sets = arguments.sets or sorted(path.name for path in arguments.data.iterdir())
        run_missing(arguments, sets, models, variants, results)
    report(results, models)


def run_missing(
    arguments: argparse.Namespace,
    sets: list[str],
    models: list[str],
    variants: dict[str, dict[str, Any]],
    results: Results,
) -> None:
    """Split by split, so that a partial run covers all sets; models take turns on each."""
    data = {name: read_set(arguments.data, name) for name in sets}
    warm_X, warm_y = np.random.default_rng(0).normal(size=(50, 4)), np.arange(50) % 2
    for name in models:  # the first fit of a library pays for loading it
        make_model(name, arguments.threads, 0, variants).fit(warm_X, warm_y)
    for split in range(arguments.splits):
        for set_name in sorted(sets, key=lambda s: data[s][0].size):
            for name in models:
                key = f"{set_name}/{split}/{name}"
                if key in results:
                    continue
                unit = run_unit(make_model(name, arguments.threads, split, variants), *data[set_name], seed=split)
                results[key] = unit
                save(arguments.out, results)
                print(f"{key}: AUC {unit['auc']:.4f}, {unit['fit_seconds']:.2f} s", flush=True)


if __name__ == "__main__":
    main()
