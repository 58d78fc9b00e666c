"""How training went, epoch by epoch: means over the members of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.model.model import model_of

CURVES = ("train_loss", "validation_loss", "validation_metric", "mean_reachable_leaves")


def mean_history(estimator: Any) -> dict[str, NDArray[np.float64]]:
    """Means over members of each curve, and their epochs, counted from 1; NaN where a value is unknown.

    A member that has stopped counts with its last values; otherwise the means would jump when members stop.

    Examples
    --------
    >>> from softwood import TreeEnsembleRegressor
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> regressor = TreeEnsembleRegressor(n_members=2, max_epochs=5, random_state=0).fit(X, X[:, 0])
    >>> mean_history(regressor)["epoch"]
    array([1., 2., 3., 4., 5.])
    """
    history = model_of(estimator).history
    member, epoch = (np.array(history[name], dtype=int) for name in ("member", "epoch"))
    epochs = np.unique(epoch)
    found = {"epoch": epochs + 1.0}
    for name in CURVES:
        values = np.array(history.get(name, [np.nan] * len(epoch)), dtype=np.float64)
        curves = []
        for one in np.unique(member):
            own = member == one
            last = np.searchsorted(epoch[own], epochs, side="right") - 1
            curves.append(values[own][np.maximum(last, 0)])
        found[name] = np.mean(curves, axis=0)
    return found
