"""Learners of tables at their defaults, behind one interface: fit to a split, predict, measure.

Each learner gets text columns and missing cells in the form that it supports best. softwood reads the data frame as it
is; XGBoost and LightGBM get text as pandas categories; CatBoost gets it as strings, named in `cat_features`; the random
forest gets numbers of levels. Levels that the training rows do not have are missing cells for all but softwood and
CatBoost, which know what to do with them. Integers stay numbers for all learners.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite_tables import DataTable, RowSplit, score

SOFTWOOD = ("softwood", "softwood_single")
RIVALS = ("xgboost", "lightgbm", "catboost", "random_forest")
LEARNERS = (*SOFTWOOD, *RIVALS)
PACKAGES = ("softwood", "xgboost", "xgboost-cpu", "lightgbm", "catboost", "scikit-learn", "numpy", "pandas")
MISSING_LEVEL = "<missing>"
_USAGE_ROWS = 500  # of the test rows, to count leaves reached
_PREDICT_SECONDS = 0.5  # predictions are timed again, up to three times, within this time


def make_estimator(name: str, task: str, *, threads: int, seed: int, **parameters: Any) -> Any:
    """An unfitted estimator at its defaults but for `parameters`."""
    is_regression = task == "regression"
    if name in SOFTWOOD:
        import softwood

        if name == "softwood_single":
            parameters = {**parameters, "n_members": 1}
        cls = softwood.TreeEnsembleRegressor if is_regression else softwood.TreeEnsembleClassifier
        return cls(n_jobs=threads, random_state=seed, **parameters)
    if name == "xgboost":
        import xgboost

        cls = xgboost.XGBRegressor if is_regression else xgboost.XGBClassifier
        return cls(n_jobs=threads, random_state=seed, enable_categorical=True, **parameters)
    if name == "lightgbm":
        import lightgbm

        cls = lightgbm.LGBMRegressor if is_regression else lightgbm.LGBMClassifier
        return cls(n_jobs=threads, random_state=seed, verbose=-1, **parameters)
    if name == "catboost":
        import catboost

        cls = catboost.CatBoostRegressor if is_regression else catboost.CatBoostClassifier
        quiet = {"verbose": False, "allow_writing_files": False}
        return cls(thread_count=threads, random_seed=seed, **quiet, **parameters)
    if name == "random_forest":
        from sklearn import ensemble

        cls = ensemble.RandomForestRegressor if is_regression else ensemble.RandomForestClassifier
        return cls(n_jobs=threads, random_state=seed, **parameters)
    raise ValueError(f"A learner must be one of {', '.join(LEARNERS)}; got {name!r}.")


# What each learner reads --------------------------------------------------------------------------------------------


def prepare(name: str, X_train: pd.DataFrame, X_test: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Training and test rows as the learner reads them, and the names of the columns that hold categories."""
    if name in SOFTWOOD:
        return X_train, X_test, []
    columns: list[tuple[Any, Any]] = []
    categories = []
    for j, column in enumerate(X_train.columns):
        train, test = X_train[column], X_test[column]
        if not _is_text(train):
            columns.append((_numbers(train), _numbers(test)))
        elif name == "catboost":
            columns.append((train.astype(object).fillna(MISSING_LEVEL).astype(str),
                            test.astype(object).fillna(MISSING_LEVEL).astype(str)))  # fmt: skip
            categories.append(f"x{j}")
        else:
            columns.append(_levels(train, test, as_numbers=name == "random_forest"))
            categories.append(f"x{j}")
    # XGBoost and LightGBM refuse some characters in names, so columns are numbered.
    frames = [pd.DataFrame({f"x{j}": pair[side] for j, pair in enumerate(columns)}) for side in (0, 1)]
    return frames[0], frames[1], categories


def _is_text(column: Any) -> bool:
    is_category = isinstance(column.dtype, pd.CategoricalDtype)
    if is_category or pd.api.types.is_object_dtype(column) or pd.api.types.is_string_dtype(column):
        return True
    if pd.api.types.is_numeric_dtype(column):  # booleans too
        return False
    raise TypeError(f"Columns must hold numbers, booleans or text; column {column.name!r} has dtype {column.dtype}.")


def _numbers(column: Any) -> Any:
    return column if column.dtype.kind in "iuf" else column.astype(np.float64)


def _levels(train: Any, test: Any, *, as_numbers: bool) -> tuple[Any, Any]:
    """Numbers of the levels of the training rows, in their order; missing where a level is missing or new."""
    levels = sorted(train.dropna().unique())
    both = [pd.Index(levels, dtype=object).get_indexer(column.astype(object)) for column in (train, test)]
    if as_numbers or not levels:
        return tuple(np.where(codes < 0, np.nan, codes.astype(np.float64)) for codes in both)  # type: ignore[return-value]
    known = pd.CategoricalDtype(range(len(levels)))
    return tuple(pd.Categorical.from_codes(codes, dtype=known) for codes in both)  # type: ignore[return-value]


# One unit -----------------------------------------------------------------------------------------------------------


def run_learner(
    name: str, table: DataTable, split: RowSplit, *, threads: int, seed: int, **parameters: Any
) -> dict[str, Any]:
    """Fit one learner to one split; return its metrics, times and sizes.

    Classes without a training row get the probability 0. Times do not include what `prepare` does.
    """
    X_train, X_test, categories = prepare(name, split.X_train, split.X_test)
    if name == "catboost":
        parameters = {**parameters, "cat_features": categories}
    estimator = make_estimator(name, table.task, threads=threads, seed=seed, **parameters)
    y_train, classes = split.y_train, np.empty(0, np.int64)
    if table.task != "regression":
        classes, y_train = np.unique(y_train, return_inverse=True)
    started, cpu_started = time.perf_counter(), time.process_time()
    _, peak_mib = peak_memory_of(lambda: estimator.fit(X_train, y_train))
    fit_seconds, fit_cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    predict = estimator.predict if table.task == "regression" else estimator.predict_proba
    prediction, predict_seconds = _timed(lambda: np.asarray(predict(X_test), dtype=np.float64))
    if table.task != "regression":
        everywhere = np.zeros((len(prediction), table.n_classes))
        everywhere[:, classes] = prediction
        prediction = everywhere
    return {
        **score(table.task, split.y_test, prediction),
        "fit_seconds": fit_seconds,
        "fit_cpu_seconds": fit_cpu_seconds,  # of all threads; other work on the machine changes it little
        "predict_seconds_per_row": predict_seconds / len(prediction),
        "peak_mib": peak_mib,
        "file_bytes": file_bytes(name, estimator),
        **(_softwood_facts(estimator, X_test) if name in SOFTWOOD else {}),
    }


def _timed(call: Callable[[], NDArray[np.float64]]) -> tuple[NDArray[np.float64], float]:
    """Result and least time of up to three calls."""
    times: list[float] = []
    while len(times) < 3 and sum(times) < _PREDICT_SECONDS:
        started = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - started)
    return result, min(times)


def peak_memory_of(action: Callable[[], Any]) -> tuple[Any, float | None]:
    """Run an action; return its result and by how many MiB it raised this process's memory at most (None off Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to the present
        before = _status("VmRSS")
    except OSError:
        return action(), None
    result = action()
    return result, max(0.0, (_status("VmHWM") - before) / 1024)


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def file_bytes(name: str, estimator: Any) -> int:
    """Size of a fitted model in its library's own file format (scikit-learn's is a pickle)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("model.ubj" if name == "xgboost" else "model.bin")
        if name in SOFTWOOD:
            estimator.save(path)
        elif name == "lightgbm":
            estimator.booster_.save_model(path)
        elif name == "random_forest":
            with path.open("wb") as file:
                pickle.dump(estimator, file, protocol=5)
        else:
            estimator.save_model(str(path))
        return path.stat().st_size


def _softwood_facts(estimator: Any, X_test: pd.DataFrame) -> dict[str, Any]:
    """Leaves reached by test rows as a share of 2^d, and what each member's training chose."""
    from softwood import explain

    usage = explain.usage(estimator, X_test.iloc[:_USAGE_ROWS])
    n_leaves = [(traffic.shape[1] + 1) // 2 for traffic in usage.traffic]
    shares = [reached.mean() / n for reached, n in zip(usage.mean_reachable_leaves, n_leaves, strict=True)]
    history = pd.DataFrame(estimator.history_)
    return {
        "leaves_share": float(np.mean(shares)),
        "leaves_per_tree": float(np.mean(n_leaves)),
        "members": len(n_leaves),
        "best_epochs": [int(epoch) + 1 for epoch in history.loc[history["is_best"].astype(bool), "epoch"]],
        "epochs": [int(epoch) + 1 for epoch in history.groupby("member")["epoch"].max()],
    }
