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
    members = model.rows(X)
    found = np.empty((model.program.read(X).n_rows, len(members), members[0].n_trees), dtype=np.int64)
    for i, rows in enumerate(members):
        for tree in range(rows.n_trees):
            for some, left, reach in walk(rows, tree):
                found[some, i, tree] = reach[:, left.shape[1] :].argmax(axis=1)
    return found
