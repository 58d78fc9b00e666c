"""The tables on which learners are judged: finding and reading them, splitting their rows, scoring predictions.

A folder of data holds ``pmlb/<name>/<name>.tsv.gz`` (the paper's 23 sets, all classifications) and
``tables/<name>.parquet``, where a text target means a classification and a number a regression. Cells come out as they
stand in the file: text, numbers, missing cells. What a learner needs made of them is left to `learners`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

ROOT = Path(__file__).resolve().parents[1]
TASKS = ("binary", "multiclass", "regression")
SMALLEST_PROBABILITY = 1e-15  # log-loss: a probability of 0 for what then happens costs 34.5, not infinity


def default_folder() -> Path:
    """Folder of the data sets: that of the variable SOFTWOOD_DATA, or ``shared/data`` beside the repository."""
    return Path(os.environ.get("SOFTWOOD_DATA", ROOT.parent / "shared" / "data"))


@dataclass(frozen=True, eq=False)
class DataTable:
    """A table with its target: class numbers from 0, or numbers of a regression."""

    name: str
    source: str
    task: str
    X: pd.DataFrame
    y: NDArray[Any]

    @property
    def n_classes(self) -> int:
        """Number of classes; 0 for a regression."""
        return 0 if self.task == "regression" else int(self.y.max()) + 1

    def facts(self) -> dict[str, Any]:
        """What groups of tables are made by."""
        rows, columns = self.X.shape
        return {"source": self.source, "task": self.task, "rows": rows, "columns": columns, "classes": self.n_classes}


@dataclass(frozen=True, eq=False)
class RowSplit:
    """Training and test rows of one table."""

    X_train: pd.DataFrame
    y_train: NDArray[Any]
    X_test: pd.DataFrame
    y_test: NDArray[Any]


def find_tables(folder: Path) -> dict[str, Path]:
    """Files of all tables by name."""
    files = [*folder.glob("pmlb/*/*.tsv.gz"), *folder.glob("tables/*.parquet")]
    if not files:
        raise FileNotFoundError(
            f"{folder} must hold pmlb/<name>/<name>.tsv.gz or tables/<name>.parquet, and holds neither; "
            "name the folder of the data sets by --data or SOFTWOOD_DATA."
        )
    return {path.name.removesuffix(".tsv.gz").removesuffix(".parquet"): path for path in sorted(files)}


def read_table(path: Path) -> DataTable:
    """Read one file; rows without a target would be an error of the file."""
    is_parquet = path.suffix == ".parquet"
    frame = pd.read_parquet(path) if is_parquet else pd.read_csv(path, sep="\t")
    X, target = frame.drop(columns="target"), frame["target"]
    name, source = path.name.removesuffix(".tsv.gz").removesuffix(".parquet"), "tables" if is_parquet else "pmlb"
    if is_parquet and pd.api.types.is_numeric_dtype(target):
        return DataTable(name, source, "regression", X, target.to_numpy(np.float64))
    classes, y = np.unique(target.to_numpy(), return_inverse=True)
    return DataTable(name, source, "binary" if len(classes) == 2 else "multiclass", X, y)


def split_rows(table: DataTable, split: int) -> RowSplit:
    """The 70/30 split number `split`, stratified by class where there are classes.

    Classes of a single row count as one class while rows are dealt, since one row cannot be on both sides.
    """
    strata = None
    if table.task != "regression":
        counts = np.bincount(table.y)
        strata = np.where(counts[table.y] < 2, -1, table.y)
        if np.count_nonzero(strata == -1) == 1:
            strata[strata == -1] = counts.argmax()
    parts = train_test_split(table.X, table.y, test_size=0.3, random_state=split, stratify=strata)
    X_train, X_test, y_train, y_test = parts
    return RowSplit(X_train.reset_index(drop=True), y_train, X_test.reset_index(drop=True), y_test)


def auc(y: NDArray[Any], probability: NDArray[Any]) -> float:
    """Area under the ROC curve; with more than two classes the mean over those that occur, each against the rest."""
    if probability.shape[1] == 2:
        return float(roc_auc_score(y, probability[:, 1]))
    return float(np.mean([roc_auc_score(y == c, probability[:, c]) for c in np.unique(y)]))


def score(task: str, y: NDArray[Any], prediction: NDArray[np.float64]) -> dict[str, float]:
    """Metrics of test rows; `prediction` is probabilities [n, classes], or numbers [n] of a regression."""
    if not np.isfinite(prediction).all():
        raise ValueError("Predictions must be finite; got NaN or infinity.")
    if task == "regression":
        squared_error = float(np.mean((y - prediction) ** 2))
        return {"r2": 1 - squared_error / float(np.var(y)), "rmse": squared_error**0.5}
    clipped = np.clip(prediction, SMALLEST_PROBABILITY, 1)
    clipped = clipped / clipped.sum(axis=1, keepdims=True)
    return {
        "auc": auc(y, prediction),
        "log_loss": float(-np.log(clipped[np.arange(len(y)), y]).mean()),
        "accuracy": float((prediction.argmax(axis=1) == y).mean()),
    }
