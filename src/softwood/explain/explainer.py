"""Contributions of columns behind the interface of `shap.Explainer`, for code that expects one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.explain.columns import column_contributions, shap_explanation
from softwood.model.model import model_of


class ContributionExplainer:
    """What code that takes a `shap.Explainer` calls: `explainer(X)`, `shap_values(X)` and `expected_value`.

    The values are the contributions of `softwood.explain.column_contributions`, in units of the raw scores (log-odds,
    or standardised targets). They add up to the scores exactly, as Shapley values do, but share a split among its
    columns by how far each moves it: an approximation of Shapley values, at the cost of one walk through the trees.

    Parameters
    ----------
    estimator : fitted estimator or Model
    background : table
        Rows that say what is usual; a few hundred are enough.

    Examples
    --------
    >>> from softwood import TreeEnsembleRegressor
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> regressor = TreeEnsembleRegressor(n_members=1, n_trees=3, random_state=0).fit(X, X[:, 0])
    >>> explainer = ContributionExplainer(regressor, X)
    >>> values = explainer.shap_values(X[:5])
    >>> values.shape
    (5, 2)
    >>> bool(np.allclose(explainer.expected_value + values.sum(axis=1), regressor.model_.raw_scores(X[:5])[:, 0]))
    True
    """

    def __init__(self, estimator: Any, background: Any) -> None:
        self.model = model_of(estimator)
        self.background = background
        base = column_contributions(
            self.model, self.model.program.read(background).rows(0, 1), background=background
        ).base
        self.expected_value: Any = float(base[0]) if len(base) == 1 else base
        self.feature_names = self.model.column_names

    def shap_values(self, X: Any, **_: Any) -> NDArray[np.float64]:
        """Return the contributions [n, columns] of a table, or [n, columns, k] for k > 1 scores."""
        values = column_contributions(self.model, X, background=self.background).values
        return values[:, :, 0] if values.shape[2] == 1 else values

    def __call__(self, X: Any, **_: Any) -> Any:
        """Return a `shap.Explanation`, for the plots of the shap package."""
        return shap_explanation(self.model, X, background=self.background)
