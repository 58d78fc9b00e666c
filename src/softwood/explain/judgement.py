"""Predictions compared with the truth: where a model is wrong, how often, and by how much.

`Judgement` holds known targets of rows and a model's predictions for them. What the page shows (counts by
threshold, confusion, curves, residuals, the rows with the largest errors) is computed here as plain numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.cli.metrics import calibration_points, class_metrics, roc_points, value_metrics
from softwood.cli.task import class_labels
from softwood.model.model import Model

N_THRESHOLDS = 1000
_MAX_CLASSES = 12  # that a confusion matrix shows; others share a row and a column
_MAX_CURVES = 8


@dataclass(frozen=True, eq=False)
class Judgement:
    """Truth and predictions of n rows.

    Attributes
    ----------
    target : ndarray [n]
        Labels, or values.
    predicted : ndarray [n, classes] or [n]
        Probabilities, or values.
    classes : ndarray, optional
        Labels in the order of the probabilities; None for a regression.
    """

    target: np.ndarray
    predicted: NDArray[np.float64]
    classes: np.ndarray | None = None

    @property
    def is_binary(self) -> bool:
        """Whether there are two classes."""
        return self.classes is not None and len(self.classes) == 2

    @property
    def codes(self) -> NDArray[np.int64]:
        """Number of the true class of each row [n]."""
        assert self.classes is not None
        return np.argmax(self.target[:, None] == self.classes, axis=1)

    @property
    def labels(self) -> list[str]:
        """Names of the classes."""
        assert self.classes is not None
        return class_labels(self.classes)

    def metrics(self, predicted: NDArray[np.float64]) -> dict[str, float]:
        """Metrics of predictions of these rows, the model's or those of another."""
        if self.classes is None:
            return value_metrics(self.target, predicted)
        return class_metrics(self.target, predicted, self.classes)

    def errors(self) -> NDArray[np.float64]:
        """How wrong each row is [n]: 1 minus the probability of its class, or the distance from its value."""
        if self.classes is None:
            return np.abs(self.target - self.predicted)
        return 1 - self.predicted[np.arange(len(self.target)), self.codes]

    def counts_above(self, c: int) -> dict[str, Any]:
        """Rows whose probability of class c is above t = 0, 0.001, ..., 1: of that class, and of all others."""
        thresholds = np.arange(N_THRESHOLDS + 1) / N_THRESHOLDS
        found: dict[str, Any] = {"label": self.labels[c]}
        for name, rows in (("own", self.codes == c), ("others", self.codes != c)):
            probability = np.sort(self.predicted[rows, c])
            found[name] = (len(probability) - np.searchsorted(probability, thresholds, side="right")).tolist()
            found[f"n_{name}"] = len(probability)
        return found

    def confusion(self) -> dict[str, Any]:
        """Rows by true class and predicted class: labels [c], counts [c, c]; rare classes together as "others"."""
        labels, predicted, true = self.labels, self.predicted.argmax(axis=1), self.codes
        rows = np.bincount(true, minlength=len(labels))
        if len(labels) > _MAX_CLASSES:
            kept = np.sort(np.argsort(-rows, kind="stable")[: _MAX_CLASSES - 1])
            place = np.full(len(labels), len(kept))
            place[kept] = np.arange(len(kept))
            n_others = len(labels) - len(kept)
            labels = [*(labels[c] for c in kept), f"{n_others} others"]
            predicted, true = place[predicted], place[true]
        counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
        np.add.at(counts, (true, predicted), 1)
        return {"labels": labels, "counts": counts.tolist()}

    def roc(self) -> list[list[Any]]:
        """Curves of the most frequent classes: label, and points."""
        codes, n_classes = self.codes, len(self.labels)
        shown = np.argsort(-np.bincount(codes, minlength=n_classes), kind="stable")[:_MAX_CURVES]
        found = []
        for c in sorted(shown):
            is_class = codes == c
            if 0 < is_class.sum() < len(is_class):
                found.append([self.labels[c], np.round(roc_points(is_class, self.predicted[:, c]), 4).tolist()])
        return found

    def calibration(self) -> NDArray[np.float64]:
        """Bins as `calibration_points` makes them.

        Of two classes, predictions are probabilities of the second; of several, those of the predicted class, whatever
        it is, and the truth is whether it is right.
        """
        if self.classes is None:
            return calibration_points(self.target, self.predicted)
        if self.is_binary:
            return calibration_points(self.codes == 1, self.predicted[:, 1])
        return calibration_points(self.predicted.argmax(axis=1) == self.codes, self.predicted.max(axis=1))


def judge(model: Model, X: Any, y: Any) -> Judgement:
    """Evaluate a model on rows with known targets; an error if the targets do not match the model."""
    target = np.asarray(y)
    if target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    classes = model.head.classes
    predicted = model.predict(X) if classes is None else model.predict_proba(X)
    if target.shape != (len(predicted),) or predicted.ndim != (1 if classes is None else 2):
        raise ValueError(
            f"The report is about one target: y must have shape ({len(predicted)},), and the model one output; got y "
            f"of shape {target.shape} and predictions of shape {predicted.shape}. Fit one model per target."
        )
    if classes is None:
        target = target.astype(np.float64)
        if not np.isfinite(target).all():
            raise ValueError("y must hold finite numbers; got NaN or infinity. Leave such rows out.")
    else:
        unknown = ~np.isin(target, classes)
        if unknown.any():
            raise ValueError(
                f"y must hold classes of the model, {', '.join(map(repr, class_labels(classes)[:5]))}; got "
                f"{target[unknown][0]!r}. Leave such rows out."
            )
    return Judgement(target, predicted, classes)
