"""Which leaf of each tree a row most probably arrives at."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.explain.columns import walk
from softwood.model.model import model_of


def most_probable_leaves(estimator: Any, X: Any) -> NDArray[np.int64]:
    """Number of the most probable leaf, from the left and from 0, of each row, member and tree [n, members, m].

    Examples
    --------
    >>> from softwood import TreeEnsembleRegressor
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> regressor = TreeEnsembleRegressor(n_members=2, n_trees=3, depth=2, random_state=0).fit(X, X[:, 0])
    >>> most_probable_leaves(regressor, X).shape
    (100, 2, 3)
    """
    model = model_of(estimator)
    inputs = model.inputs(X)
    n = len(next(iter(inputs.values())))
    found = np.empty((n, len(model.members), len(model.folded[0][0])), dtype=np.int64)
    for i, member in enumerate(model.members):
        x = inputs[member.encoding].astype(np.float64)
        for tree in range(found.shape[2]):
            for rows, left, reach in walk(model, i, tree, x):
                found[rows, i, tree] = reach[:, left.shape[1] :].argmax(axis=1)
    return found
