"""Raw scores that look like a fitted estimator, so that scikit-learn's scorers can judge them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from softwood.model.parts import Head


def scored_estimator(head: Head, scores: np.ndarray) -> Any:
    """An estimator whose methods return what `head` makes of the scores [n, k], whatever their argument."""
    kind = ScoredRegressor if head.classes is None else ScoredClassifier
    return kind(head=head, scores=scores)


class ScoredRegressor(RegressorMixin, BaseEstimator):
    """Predictions of a regression that are known already."""

    def __init__(self, head: Head, scores: np.ndarray) -> None:
        self.head = head
        self.scores = scores

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Any, y: Any) -> Any:
        """Do nothing."""
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the predictions."""
        return self.head.predictions(self.scores)


class ScoredClassifier(ClassifierMixin, BaseEstimator):
    """Predictions of a classification that are known already."""

    def __init__(self, head: Head, scores: np.ndarray) -> None:
        self.head = head
        self.scores = scores

    def __sklearn_is_fitted__(self) -> bool:
        return True

    @property
    def classes_(self) -> np.ndarray:
        """Class labels."""
        assert self.head.classes is not None
        return self.head.classes

    def fit(self, X: Any, y: Any) -> Any:
        """Do nothing."""
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable classes."""
        return self.head.lowered().labels(self.scores)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes."""
        return self.head.predictions(self.scores)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the raw scores."""
        return self.scores[:, 0] if self.head.task == "binary" else self.scores
