"""Awkward tables, and which learners take them: fit, predict and explain.

    python benchmarks/awkward.py                 all learners; writes awkward.json
    python benchmarks/awkward.py --only softwood --table intervals
    python benchmarks/awkward.py --markdown      the table of docs/awkward-tables.md from the JSON

Each table is handed over as it is. Learners have their defaults, few rounds, and the one argument that their
documentation asks for where there are categories (XGBoost: enable_categorical, CatBoost: cat_features). "yes" means
that fit and predict ran, probabilities are finite, and more than 80% of the training rows are classified correctly (a
number or category in the table decides the class). "useless" means that it ran without that, "error" an exception,
"crash" the end of the process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import machine

RESULTS = Path(__file__).parent / "awkward.json"
LEARNERS = ("softwood", "xgboost", "lightgbm", "catboost", "hist_gradient_boosting")
N = 120
Case = tuple[Any, Any]
TABLES: dict[str, tuple[str, Callable[[], Case]]] = {}


def table(words: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register a function that makes (X, y)."""

    def register(make: Callable[[], Case]) -> Callable[[], Case]:
        TABLES[make.__name__] = (words, make)
        return make

    return register


def _x() -> np.ndarray:
    return np.random.default_rng(0).normal(size=N)


def _frame(**columns: Any) -> Case:
    """The columns beside one of noise; the target follows a hidden number."""
    x = _x()
    return pd.DataFrame({"noise": np.random.default_rng(1).normal(size=N), **columns}), x > 0


@table("strings")
def strings() -> Case:
    return _frame(colour=np.where(_x() > 0, "red", "blue").astype(object))


@table("strings with missing cells")
def strings_with_holes() -> Case:
    return _frame(colour=np.array([None if abs(v) < 0.1 else "red" if v > 0 else "blue" for v in _x()], dtype=object))


@table("pandas categories")
def categories() -> Case:
    return _frame(colour=pd.Categorical(np.where(_x() > 0, "red", "blue")))


@table("pandas categories of 20 levels")
def many_levels() -> Case:
    rank = np.argsort(np.argsort(_x()))
    return _frame(city=pd.Categorical([f"city {r // 6 * 7 % 20}" for r in rank]))


@table("pandas categories of 100 levels, 1,200 rows")
def hundred_levels() -> Case:
    """Twelve rows per level; half of the levels, in no order, belong to each class."""
    rng = np.random.default_rng(0)
    level = np.arange(10 * N) % 100
    X = pd.DataFrame({"noise": rng.normal(size=10 * N), "city": pd.Categorical([f"city {v}" for v in level])})
    return X, rng.permutation(100)[level] < 50


@table("pandas categories of 100 levels, 120 rows")
def more_levels_than_rows_can_tell() -> Case:
    rank = np.argsort(np.argsort(_x()))
    return _frame(city=pd.Categorical([f"city {r * 100 // N * 37 % 100}" for r in rank]))


@table("dates")
def dates() -> Case:
    return _frame(when=pd.Timestamp("2020-01-01") + pd.to_timedelta(np.round(_x() * 100), unit="D"))


@table("dates with a time zone, some missing")
def zoned_dates() -> Case:
    X, y = dates()
    X["when"] = X["when"].dt.tz_localize("Europe/Berlin")
    X.loc[::9, "when"] = pd.NaT
    return X, y


@table("dates as text: 02-10-2012 09:00")
def text_dates() -> Case:
    X, y = dates()
    X["when"] = X["when"].dt.strftime("%d-%m-%Y %H:%M")
    return X, y


@table("periods")
def periods() -> Case:
    X, y = dates()
    X["when"] = X["when"].dt.to_period("D")
    return X, y


@table("durations")
def durations() -> Case:
    return _frame(took=pd.to_timedelta(np.round(_x() * 1000 + 5000), unit="s"))


@table("intervals of pandas.cut")
def intervals() -> Case:
    return _frame(bin=pd.cut(_x(), [-9, -1, 0, 1, 9]))


@table("nullable integers and booleans")
def nullable() -> Case:
    values = pd.array(np.round(_x() * 10).astype(int), dtype="Int64")
    values[::7] = pd.NA
    return _frame(count=values, flag=pd.array([None if i % 9 == 0 else i % 2 == 0 for i in range(N)], dtype="boolean"))


@table("pandas with Arrow types")
def arrow_types() -> Case:
    X, y = _frame(colour=np.where(_x() > 0, "red", "blue"), size=_x())
    return X.convert_dtypes(dtype_backend="pyarrow"), y


@table("pandas Sparse columns")
def sparse_columns() -> Case:
    return _frame(hits=pd.arrays.SparseArray((_x() > 0).astype(float), fill_value=0.0))


@table("decimal.Decimal")
def decimals() -> Case:
    from decimal import Decimal

    return _frame(price=np.array([Decimal(str(round(v, 2))) for v in _x()], dtype=object))


@table("integers beyond 2^53")
def large_integers() -> Case:
    return _frame(key=(2**60 + np.round(_x() * 1e6).astype(np.int64) * 2**34))


@table("one infinity")
def infinity() -> Case:
    size = _x()
    size[3] = np.inf
    return _frame(size=size)


@table("a column without values")
def empty_column() -> Case:
    return _frame(size=_x(), empty=np.full(N, np.nan))


@table("a column of None only (object)")
def none_column() -> Case:
    return _frame(size=_x(), empty=np.full(N, None, dtype=object))


@table("a constant column")
def constant_column() -> Case:
    return _frame(size=_x(), constant=np.full(N, 7))


@table("an id of text in every row")
def ids() -> Case:
    return _frame(size=_x(), id=np.array([f"id {i}" for i in range(N)], dtype=object))


@table("names with brackets, commas and <")
def odd_names() -> Case:
    return _frame(**{"size [cm], <3": _x(), "größe": -_x()})


@table("polars")
def polars() -> Case:
    import polars as pl

    X, y = _frame(colour=np.where(_x() > 0, "red", "blue").astype(object), size=_x())
    return pl.from_pandas(X), y


@table("pyarrow")
def pyarrow() -> Case:
    import pyarrow as pa

    X, y = _frame(colour=np.where(_x() > 0, "red", "blue").astype(object), size=_x())
    return pa.Table.from_pandas(X), y


@table("labels are strings")
def string_labels() -> Case:
    X, y = _frame(size=_x())
    return X, np.where(y, "yes", "no").astype(object)


@table("array of mixed objects")
def objects() -> Case:
    X, y = _frame(colour=np.where(_x() > 0, "red", "blue").astype(object), size=_x())
    return X.to_numpy(dtype=object), y


def learner(name: str, X: Any) -> Any:
    """A classifier with few rounds (it is judged on whether it runs), told of categories as its documentation asks."""
    if name == "softwood":
        import softwood

        return softwood.TreeEnsembleClassifier(n_members=1, n_trees=8, max_epochs=60, random_state=0)
    if name == "xgboost":
        import xgboost

        return xgboost.XGBClassifier(n_estimators=20, n_jobs=1, enable_categorical=True)
    if name == "lightgbm":
        import lightgbm

        return lightgbm.LGBMClassifier(n_estimators=20, n_jobs=1, verbose=-1)
    if name == "catboost":
        import catboost

        texts = []
        if hasattr(X, "columns") and not hasattr(X, "column_names"):  # pandas and polars
            is_text = {name: any(isinstance(cell, str) for cell in list(X[name])) for name in X.columns}
            texts = [name for name in X.columns if is_text[name] or str(X[name].dtype) == "category"]
        options = {"iterations": 20, "thread_count": 1, "verbose": False, "allow_writing_files": False}
        return catboost.CatBoostClassifier(**options, cat_features=texts or None)
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(max_iter=20)


def explain(name: str, model: Any, X: Any) -> None:
    """What the library itself offers to explain a row, or the importances where it offers no more."""
    if name == "softwood":
        from softwood import explain as explanations

        some = X if isinstance(X, np.ndarray) else X[:20]
        explanations.column_contributions(model, some[:20], background=some[:20])
        return
    if name == "hist_gradient_boosting":
        from sklearn.inspection import permutation_importance

        permutation_importance(model, X, model.predict(X), n_repeats=1)
        return
    if name == "xgboost":
        import xgboost

        model.get_booster().predict(xgboost.DMatrix(X, enable_categorical=True), pred_contribs=True)
    elif name == "lightgbm":
        model.predict(X, pred_contrib=True)
    else:
        model.get_feature_importance()


def attempt(name: str, case: str) -> dict[str, str]:
    """Outcome of fit and predict, and of explain, with the first line of an error."""
    X, y = TABLES[case][1]()
    outcome = {"predict": "error", "explain": "error"}
    try:
        model = learner(name, X).fit(X, y)
        model.predict(X)
        proba = np.asarray(model.predict_proba(X), dtype=float)
        share = float(np.mean(proba.argmax(axis=1) == np.unique(y, return_inverse=True)[1]))
        outcome["predict"] = "yes" if np.isfinite(proba).all() and share > 0.8 else "useless"
        outcome["accuracy"] = f"{share:.2f}"
        explain(name, model, X)
        outcome["explain"] = "yes"
    except Exception as error:
        outcome["message"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
    return outcome


def attempts(name: str, cases: list[str]) -> dict[str, dict[str, str]]:
    """Outcomes of one learner, in a process of its own: some tables end the process, and the next begins another."""
    found: dict[str, dict[str, str]] = {}
    while len(found) < len(cases):
        rest = [case for case in cases if case not in found]
        command = [sys.executable, __file__, "--child", name, *rest]
        for line in subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines():
            if line.startswith("{"):
                found |= json.loads(line)
        if rest[0] not in found:
            found[rest[0]] = {"predict": "crash", "explain": "crash", "message": "the process ended"}
    return found


def markdown(results: dict[str, Any]) -> str:
    """The table of docs/awkward-tables.md."""
    names = list(results["learners"])
    lines = ["| table | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for case, by_learner in results["outcomes"].items():
        cells = []
        for name in names:
            found = by_learner[name]
            cell = found["predict"]
            cells.append(f"{cell}, no explanation" if cell == "yes" and found["explain"] != "yes" else cell)
        lines.append(f"| {TABLES[case][0]} | " + " | ".join(cells) + " |")
    counts = [sum(row[name]["predict"] == "yes" for row in results["outcomes"].values()) for name in names]
    lines.append(f"| **of {len(results['outcomes'])}** | " + " | ".join(f"**{count}**" for count in counts) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=LEARNERS)
    parser.add_argument("--table", choices=TABLES)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        warnings.simplefilter("ignore")
        name, *cases = chosen.child
        for case in cases:
            print("\n" + json.dumps({case: attempt(name, case)}), flush=True)
        return
    if chosen.markdown:
        print(markdown(json.loads(RESULTS.read_text())))
        return
    names = [chosen.only] if chosen.only else list(LEARNERS)
    cases = [chosen.table] if chosen.table else list(TABLES)
    by_learner = {name: attempts(name, cases) for name in names}
    versions = machine.versions(("xgboost", "lightgbm", "catboost", "scikit-learn", "pandas", "polars", "pyarrow"))
    outcomes = {case: {name: by_learner[name][case] for name in names} for case in cases}
    results = {"learners": names, "versions": versions, "outcomes": outcomes}
    if chosen.only or chosen.table:
        print(json.dumps(results["outcomes"], indent=2))
        return
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(markdown(results))


if __name__ == "__main__":
    main()
