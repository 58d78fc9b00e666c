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
        predicted = estimator.predict(X)
        found = {"r2": float(metrics.r2_score(y, predicted))} if len(y) > 1 else {}
        found["rmse"] = float(metrics.root_mean_squared_error(y, predicted))
        return found | {"mae": float(metrics.mean_absolute_error(y, predicted))}
    classes, probability = estimator.classes_, estimator.predict_proba(X)
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


def calibration_points(is_class: np.ndarray, probability: np.ndarray, n_bins: int = 10) -> np.ndarray:
    """Mean probability, share of the class and number of rows [bins, 3] of bins of equal width that hold any row.

    Examples
    --------
    >>> calibration_points(np.array([False, True, True]), np.array([0.04, 0.06, 0.95])).tolist()
    [[0.05, 0.5, 2.0], [0.95, 1.0, 1.0]]
    """
    bins = np.minimum((probability * n_bins).astype(int), n_bins - 1)
    found = []
    for b in np.unique(bins):
        inside = bins == b
        found.append([probability[inside].mean(), is_class[inside].mean(), inside.sum()])
    return np.array(found, dtype=np.float64)
