"""What fitted estimators tell of their model, and the harder copy that they make of it.

Comes in: an estimator with a fitted `model_`. Training and prediction are left to `softwood.estimators`.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from softwood.model.harden import HardeningCost, harden_model, hardening_cost
from softwood.model.model import Model
from softwood.model.parameter_counts import ParameterCounts
from softwood.model.predictor import Predictor

if TYPE_CHECKING:
    from typing import Self


class FittedAttributes:
    """Attributes and methods of estimators that need the fitted model only."""

    model_: Model
    eval_metric: Any
    n_features_in_: int
    hardening_: HardeningCost | None  # of the copy that `harden` makes
    _pieces: Any  # of `partial_fit`, for the next piece

    def predictor(self) -> Predictor:
        """Return the fitted model compiled for prediction, for servers; see `softwood.model.Predictor`."""
        check_is_fitted(self, "model_")
        return self.model_.predictor()

    def harden(self, X: Any = None, y: ArrayLike | None = None, *, gamma: float | None = None) -> Self:
        """Turn the soft trees into ordinary oblique trees, in which each row takes a single path.

        Parameters
        ----------
        X, y : optional
            Rows to measure the cost on; use rows that training did not see.
        gamma : float, optional
            Narrow the soft band to this width instead of removing it.

        Returns
        -------
        estimator
            A fitted copy. Its attribute `hardening_` is the `softwood.model.harden.HardeningCost` on X and y, or None
            without them.

        Examples
        --------
        >>> from sklearn.datasets import load_breast_cancer
        >>> import softwood
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> soft = softwood.TreeEnsembleClassifier(n_members=1, random_state=0).fit(X[:400], y[:400])
        >>> cost = soft.harden(X[400:], y[400:]).hardening_
        >>> cost.metric, bool(cost.unchanged_share > 0.9)
        ('accuracy', True)
        """
        check_is_fitted(self, "model_")
        if (X is None) != (y is None):
            raise ValueError("harden needs both X and y to measure its cost, or neither of them.")
        hard = copy.copy(self)
        hard._pieces = None
        hard.model_ = harden_model(self.model_, gamma)
        hard.hardening_ = None if X is None else hardening_cost(self, hard, X, y)
        return hard

    @property
    def n_iter_(self) -> int:
        """Number of epochs of the member that was trained longest."""
        return 1 + max(self.history_["epoch"], default=-1)

    @property
    def best_epoch_(self) -> NDArray[np.int64]:
        """Epoch that each member's trees are from [members], counted from 0."""
        check_is_fitted(self, "model_")
        return self.model_.best_epochs

    @property
    def best_score_(self) -> float:
        """Mean over members of `eval_metric` on the validation rows, or of the loss without one, in the best epoch."""
        check_is_fitted(self, "model_")
        return self.model_.mean_of_best_epochs("validation_metric" if self._has_metric else "validation_loss")

    @property
    def _has_metric(self) -> bool:
        """Whether the fit had an `eval_metric`; files do not hold one that is a function."""
        return bool(self.model_.estimator.get("has_metric", self.eval_metric is not None))

    @property
    def history_(self) -> dict[str, list[Any]]:
        """What each epoch did: columns "member", "epoch", "train_loss", "validation_loss" and others, of one length."""
        check_is_fitted(self, "model_")
        return self.model_.history

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """Importance of each column [p]; they sum to 1. `softwood.model.importance` has the definition."""
        check_is_fitted(self, "model_")
        importances = np.zeros(self.n_features_in_)
        importances[list(self.model_.program.places)] = self.model_.importances
        return importances

    @property
    def selected_columns_(self) -> NDArray[Any]:
        """Columns that predictions need, in the order of the table: names, or numbers of a table without names."""
        check_is_fitted(self, "model_")
        program = self.model_.program
        if self.model_.has_column_names:
            return np.array(program.column_names, dtype=object)
        return np.array(program.places, dtype=np.int64)

    @property
    def n_parameters_(self) -> ParameterCounts:
        """Weights that were trainable, are stored, and are read by a row on average."""
        check_is_fitted(self, "model_")
        return self.model_.n_parameters
