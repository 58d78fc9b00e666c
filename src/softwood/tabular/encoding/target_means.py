"""Codes and targets in, means of the target by level out: how categories with many levels are encoded.

Means of levels with few rows are drawn towards the mean of the table by empirical Bayes (Micci-Barreca 2001, as in
scikit-learn's TargetEncoder): with n rows, the variance s of a level's targets and v of all targets, the level's own
mean has the share v / (v + s / n). A training row must not read its own target, so rows are dealt to `N_FOLDS` folds,
and each reads means of the other folds. Sums of pieces of a table add up to those of the table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

N_FOLDS = 5


@dataclass(frozen=True, eq=False)
class TargetSums:
    """Rows, sums and sums of squares of the targets of one category.

    Attributes
    ----------
    count : ndarray [folds, levels]
    total, squares : ndarray [folds, levels, t]
        Of targets from which their mean has been subtracted, so that nothing cancels.

    Examples
    --------
    >>> y = np.array([[1.0], [-1.0], [3.0], [-3.0]])
    >>> sums = TargetSums.of(np.array([0, 0, 1, 1]), y, fold=np.arange(4), n_levels=2)
    >>> sums.means().ravel()
    array([0., 0.])
    >>> sums.means(leave_out=0).ravel().round(3)  # level 0 has only the row -1 left
    array([-1.  , -0.14])
    """

    count: NDArray[np.float64]
    total: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def of(
        cls, codes: NDArray[np.int64], y: NDArray[np.float64], *, fold: NDArray[np.integer], n_levels: int
    ) -> TargetSums:
        """Sums of rows with these codes [n] (-1 is the last level), targets [n, t] and folds [n]."""
        place = np.asarray(fold, dtype=np.int64) * n_levels + codes % n_levels
        size, shape = N_FOLDS * n_levels, (N_FOLDS, n_levels)

        def sums(weights: NDArray[np.float64]) -> NDArray[np.float64]:
            by_target = [np.bincount(place, column, minlength=size).reshape(shape) for column in weights.T]
            return np.stack(by_target, axis=2)

        count = np.bincount(place, minlength=size).reshape(shape).astype(np.float64)
        return cls(count, sums(y), sums(y * y))

    def __add__(self, other: TargetSums) -> TargetSums:
        return TargetSums(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def means(self, leave_out: int | None = None) -> NDArray[np.float64]:
        """Smoothed mean of each level [levels, t], without the rows of one fold; 0 rows give the mean of the table."""
        folds = [fold for fold in range(N_FOLDS) if fold != leave_out]
        count, total, squares = (array[folds].sum(axis=0) for array in (self.count, self.total, self.squares))
        n = count.sum()
        of_all = total.sum(axis=0) / n
        variance = np.maximum(0, squares.sum(axis=0) / n - of_all**2)
        count = count[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = total / count
            spread = np.maximum(0, squares - total * mean) / count
            share = variance * count / (variance * count + spread)
            return np.where(np.isnan(share), of_all, share * mean + (1 - share) * of_all)

    def crossed(self) -> NDArray[np.float64]:
        """What rows of each fold read [folds, levels, t]: means of the others; of all, if a table is very short."""
        if self.count.sum() < 2 * N_FOLDS:
            return np.stack([self.means()] * N_FOLDS)
        return np.stack([self.means(leave_out=fold) for fold in range(N_FOLDS)])
