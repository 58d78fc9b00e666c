"""Time of one row through the estimators, from NumPy and from data frames, beside LightGBM.

    python benchmarks/one_row.py         writes one_row.json

What a simple server does: it keeps the fitted estimator and calls `predict_proba` with a table of one row. Models have
their defaults, and one thread. Each value is CPU time of one call in microseconds; the learners take turns, and the
median of the rounds is shown. A round of NumPy has 2,000 different rows (569 of scikit-learn's breast cancer table),
and the others 100: the first hundred calls after the turn of the other learner take about twice as long as the next,
because the weights have left the caches. "Cold" is the worst case of that: before each call, 64 MB of other memory are
written. Answers for single rows are compared with those for the whole table first.
"""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import polars as pl
from sklearn.datasets import load_breast_cancer

import machine
import softwood

RESULTS = Path(__file__).with_suffix(".json")
N_ROWS, N_CALLS, N_ROUNDS = 2000, 100, 9


def numbers(n_columns: int) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(N_ROWS, n_columns)), columns=[f"x{j}" for j in range(n_columns)])
    return X, (X["x0"] + X["x1"] * X["x2"] > 0).to_numpy()


def with_categories() -> tuple[pd.DataFrame, np.ndarray]:
    X, y = numbers(25)
    rng = np.random.default_rng(1)
    words = {f"c{j}": pd.Categorical(rng.choice(["red", "green", "blue"], N_ROWS)) for j in range(5)}
    return X.assign(**words), y


def learners(X: Any, y: np.ndarray) -> dict[str, Any]:
    epochs: dict[str, Any] = {"max_epochs": 3, "n_members": 1} if X.shape[1] > 1000 else {}
    return {
        "softwood": softwood.TreeEnsembleClassifier(random_state=0, n_jobs=1, **epochs).fit(X, y),
        "lightgbm": lightgbm.LGBMClassifier(n_jobs=1, verbose=-1).fit(X, y),
    }


def cases() -> dict[str, tuple[dict[str, Any], list[Any]]]:
    """Fitted learners and tables of one row, by words."""
    X, y = numbers(30)
    array = np.ascontiguousarray(X.to_numpy())
    plain, named = learners(array, y), learners(X, y)
    mixed, words = with_categories()
    wide, wide_y = numbers(3000)
    tumours, tumour_y = load_breast_cancer(return_X_y=True)
    tumours = np.ascontiguousarray(tumours)
    rows = range(N_CALLS)
    return {
        "NumPy, 30 columns": (plain, [array[i : i + 1] for i in range(N_ROWS)]),
        "NumPy, breast cancer": (learners(tumours, tumour_y), [tumours[i : i + 1] for i in range(len(tumours))]),
        "pandas, 30 columns": (named, [X.iloc[[i]] for i in rows]),
        "polars, 30 columns": ({"softwood": named["softwood"]}, [pl.from_pandas(X)[i : i + 1] for i in rows]),
        "pandas, 25 columns and 5 categories": (learners(mixed, words), [mixed.iloc[[i]] for i in rows]),
        "pandas, 3,000 columns": (learners(wide, wide_y), [wide.iloc[[i]] for i in range(10)]),
    }


def microseconds(model: Any, rows: list[Any]) -> float:
    begin = time.thread_time()
    for row in rows:
        model.predict_proba(row)
    return 1e6 * (time.thread_time() - begin) / len(rows)


def cold_microseconds(model: Any, rows: list[Any]) -> float:
    """Median of calls, each after other work that fills all caches."""
    other_work = np.zeros(8_000_000)
    taken = []
    for row in rows[:N_CALLS]:
        other_work += 1
        taken.append(microseconds(model, [row]))
    return float(np.median(taken))


def measure(models: dict[str, Any], rows: list[Any]) -> dict[str, Any]:
    together = pl.concat(rows) if isinstance(rows[0], pl.DataFrame) else None
    if together is None:
        together = pd.concat(rows) if isinstance(rows[0], pd.DataFrame) else np.concatenate(rows)
    taken: dict[str, list[float]] = {name: [] for name in models}
    for model in models.values():
        np.testing.assert_allclose(model.predict_proba(together)[7:8], model.predict_proba(rows[7]), rtol=1e-12)
    for _ in range(N_ROUNDS):
        for name, model in models.items():
            taken[name].append(microseconds(model, rows))
    medians = {name: float(np.median(times)) for name, times in taken.items()}
    ratios = [a / b for a, b in zip(taken["softwood"], taken.get("lightgbm", []), strict=False)]
    return {
        "stored_numbers": models["softwood"].model_.n_parameters.stored,
        "median_us": medians,
        "ratio": float(np.median(ratios)) if ratios else None,
        "cold_us": {name: cold_microseconds(model, rows) for name, model in models.items()},
        "times_us": taken,
    }


def main() -> None:
    warnings.simplefilter("ignore")  # of names that LightGBM made up
    found = []
    for words, (models, rows) in cases().items():
        one = {"row": words, **measure(models, rows)}
        shown = ", ".join(
            f"{name} {value:.1f} µs (cold {one['cold_us'][name]:.0f})" for name, value in one["median_us"].items()
        )
        print(f"{words}: {shown}" + (f"; ratio {one['ratio']:.2f}" if one["ratio"] else ""))
        found.append(one)
    versions = machine.versions(("lightgbm", "pandas", "polars"))
    RESULTS.write_text(json.dumps({"machine": machine.facts() | versions, "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
