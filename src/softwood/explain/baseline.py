"""Predictions of simple models for the same rows, to compare a fitted model with.

There are two for each task: a linear model (logistic regression, or ridge regression) on standardised numbers and
one-hot categories, and a constant (the shares of the classes, or the mean). They learn from training rows if
those are given. Otherwise they learn from the evaluated rows by cross-validation, so that no row is predicted by a
model that has seen it.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from softwood.tabular.reading.table import Table

_N_FOLDS = 5
_MAX_LEVELS = 30
_MAX_ROWS = 20_000
# Rows times columns times classes: a linear model of this size is fitted in seconds.
_MAX_CELLS = 5_000_000


def baseline_predictions(
    table: Table,
    y: np.ndarray,
    *,
    classes: np.ndarray | None = None,
    training: tuple[Table, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Predictions of the baselines by name: probabilities [n, classes], or values [n].

    Parameters
    ----------
    table : Table
        The rows to predict.
    y : ndarray [n]
        Their targets; used for cross-validation where there are no training rows.
    classes : ndarray, optional
        Labels of a classification, in the order of the probabilities.
    training : tuple of Table and ndarray, optional
        Rows to learn from, with their targets; of many, a sample is used.

    Examples
    --------
    >>> from softwood.tabular.reading.table import read_table
    >>> x = np.arange(40.0)
    >>> found = baseline_predictions(read_table(x[:, None]), 2 * x)
    >>> list(found), bool(np.abs(found["linear regression"] - 2 * x).max() < 3)
    (['linear regression', 'constant'], True)
    """
    cells = _cells(table)
    if training is not None:
        learned = _cells(training[0]), training[1]
        folds = [(*_sample(*learned, 1 if classes is None else len(classes)), slice(None))]
    elif len(y) >= 2 * _N_FOLDS:
        splits = KFold(_N_FOLDS, shuffle=True, random_state=0).split(cells)
        n_classes = 1 if classes is None else len(classes)
        folds = [(*_sample(cells[rest], y[rest], n_classes), part) for rest, part in splits]
    else:
        return {}
    found = {}
    for name, learner in _learners(table, classes).items():
        predictions = np.zeros(len(y) if classes is None else (len(y), len(classes)))
        for X, target, part in folds:
            is_constant = len(np.unique(target)) < 2
            fitted = _fit(_constant(classes) if is_constant else learner, X, target)
            predictions[part] = _predict(fitted, cells[part], classes)
        found[name] = predictions
    return found


def _learners(table: Table, classes: np.ndarray | None) -> dict[str, Any]:
    numbers = [j for j in range(table.n_columns) if table.kinds[j] != "category"]
    labels = [j for j in range(table.n_columns) if table.kinds[j] == "category"]
    impute = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    one_hot = OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=_MAX_LEVELS)
    columns = ColumnTransformer(
        [("numbers", make_pipeline(impute, StandardScaler()), numbers), ("labels", one_hot, labels)]
    )
    if classes is None:
        return {"linear regression": make_pipeline(columns, Ridge()), "constant": _constant(classes)}
    linear = LogisticRegression(max_iter=200)
    return {"logistic regression": make_pipeline(columns, linear), "constant": _constant(classes)}


def _constant(classes: np.ndarray | None) -> Any:
    return DummyRegressor() if classes is None else DummyClassifier(strategy="prior")


def _fit(learner: Any, X: np.ndarray, y: np.ndarray) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return learner.fit(X, y)


def _predict(learner: Any, X: np.ndarray, classes: np.ndarray | None) -> np.ndarray:
    """Predictions; classes that the learner has not seen have probability 0."""
    if classes is None:
        return np.asarray(learner.predict(X), dtype=np.float64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Found unknown categories")
        known = learner.predict_proba(X)
    found = np.zeros((len(X), len(classes)))
    found[:, np.searchsorted(classes, learner.classes_)] = known
    return found


def _sample(X: np.ndarray, y: np.ndarray, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """As many rows as a linear model can be fitted to in seconds."""
    n = min(_MAX_ROWS, max(1000, _MAX_CELLS // (X.shape[1] * n_classes)))
    if len(y) <= n:
        return X, y
    rows = np.sort(np.random.default_rng(0).choice(len(y), n, replace=False))
    return X[rows], y[rows]


def _cells(table: Table) -> np.ndarray:
    """Numbers and labels side by side [n, columns], as objects; a missing category is a category."""
    cells = np.empty((table.n_rows, table.n_columns), dtype=object)
    for j in range(table.n_columns):
        if table.kinds[j] == "category":
            cells[:, j] = ["missing" if label is None else label for label in table.labels(j)]
        else:
            numbers = np.asarray(table.numbers(j), dtype=np.float64)
            cells[:, j] = np.where(np.isfinite(numbers), numbers, np.nan)
    return cells
