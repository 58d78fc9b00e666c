"""A fitted estimator and true targets in, metrics out: single numbers, and the curves behind them.

Classifications have accuracy, balanced accuracy, log loss and the area under the ROC curve (several classes: the mean
over one class against the rest); regressions R², root mean squared and mean absolute error, in units of the target.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import metrics

# For each metric: its name in tables, and whether higher is better.
METRICS = {
    "accuracy": ("accuracy", True),
    "balanced_accuracy": ("balanced accuracy", True),
    "roc_auc": ("area under ROC curve", True),
    "log_loss": ("log loss", False),
    "r2": ("R²", True),
    "rmse": ("root mean squared error", False),
    "mae": ("mean absolute error", False),
}


def compute_metrics(estimator: Any, X: Any, y: np.ndarray) -> dict[str, float]:
    """Metrics by name, in the order of `METRICS`; without those that the rows do not define (one class only).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from softwood import TreeEnsembleClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = TreeEnsembleClassifier(n_members=1, n_trees=8, max_epochs=5, random_state=0).fit(X, y)
    >>> list(compute_metrics(classifier, X, y))
    ['accuracy', 'balanced_accuracy', 'roc_auc', 'log_loss']
    """
    if not hasattr(estimator, "classes_"):
        return value_metrics(y, estimator.predict(X))
    return class_metrics(y, estimator.predict_proba(X), estimator.classes_)


def value_metrics(y: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Metrics of a regression: true and predicted values [n]."""
    found = {"r2": float(metrics.r2_score(y, predicted))} if len(y) > 1 else {}
    found["rmse"] = float(metrics.root_mean_squared_error(y, predicted))
    return found | {"mae": float(metrics.mean_absolute_error(y, predicted))}


def class_metrics(y: np.ndarray, probability: np.ndarray, classes: np.ndarray) -> dict[str, float]:
    """Metrics of a classification: true labels [n], and probabilities [n, classes]."""
    predicted = classes[probability.argmax(axis=1)]
    is_class = y[:, None] == classes
    found = {"accuracy": float(np.mean(predicted == y))}
    rows = is_class.sum(axis=0)
    recalls = [np.mean(predicted[is_class[:, c]] == classes[c]) for c in range(len(classes)) if rows[c]]
    found["balanced_accuracy"] = float(np.mean(recalls))
    scored = range(1, 2) if len(classes) == 2 else range(len(classes))
    areas = [metrics.roc_auc_score(is_class[:, c], probability[:, c]) for c in scored if 0 < rows[c] < len(y)]
    if areas:
        found["roc_auc"] = float(np.mean(areas))
    found["log_loss"] = float(-np.log(np.clip(probability[is_class], 1e-15, 1)).mean())
    return found


def roc_points(is_class: np.ndarray, probability: np.ndarray) -> np.ndarray:
    """False and true positive rates [points, 2] of one class against the rest."""
    false, true, _ = metrics.roc_curve(is_class, probability)
    return np.column_stack([false, true])


def calibration_points(truth: np.ndarray, predicted: np.ndarray, *, min_rows: int = 30, n_bins: int = 10) -> np.ndarray:
    """Whether predictions hold on average: mean prediction, mean truth, its interval of 95%, and rows [bins, 5].

    Bins hold about equally many rows, and at least `min_rows` where there are as many; rows of equal predictions stay
    together. Where all truths are 0 or 1, the interval is Wilson's; otherwise it is the mean ± 1.96 standard errors.

    Examples
    --------
    >>> truth = np.array([0, 0, 0, 1, 0, 1, 1, 1])
    >>> predicted = np.array([0.1, 0.1, 0.2, 0.2, 0.7, 0.8, 0.9, 0.9])
    >>> calibration_points(truth, predicted, min_rows=4).round(2).tolist()
    [[0.15, 0.25, 0.05, 0.7, 4.0], [0.82, 0.75, 0.3, 0.95, 4.0]]
    """
    order = np.argsort(predicted, kind="stable")
    truth, predicted = truth[order].astype(np.float64), predicted[order]
    n = len(truth)
    n_bins = max(1, min(n_bins, n // min_rows))
    places = [n * i // n_bins for i in range(1, n_bins)]
    # The first row whose prediction differs from that of the row before the place.
    starts = {0} | {int(np.searchsorted(predicted, predicted[place - 1], side="right")) for place in places}
    kept = sorted(start for start in starts if start == 0 or n - start >= min(min_rows, n))
    is_share = bool(np.isin(truth, (0, 1)).all())
    found = []
    for start, stop in zip(kept, [*kept[1:], n], strict=True):
        inside = slice(start, stop)
        found.append([predicted[inside].mean(), *mean_interval(truth[inside], is_share=is_share), stop - start])
    return np.array(found, dtype=np.float64)


def mean_interval(values: np.ndarray, *, is_share: bool) -> tuple[float, float, float]:
    """Mean of some values, and its interval of 95%: Wilson's for the share of ones, else 1.96 standard errors."""
    n, z, mean = len(values), 1.96, float(values.mean())
    if is_share:
        middle, width = mean + z**2 / (2 * n), z * np.sqrt(mean * (1 - mean) / n + z**2 / (4 * n**2))
        return mean, (middle - width) / (1 + z**2 / n), (middle + width) / (1 + z**2 / n)
    width = z * values.std(ddof=1) / np.sqrt(n) if n > 1 else 0.0
    return mean, mean - width, mean + width
