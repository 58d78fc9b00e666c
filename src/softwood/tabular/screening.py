"""A sparse matrix of thousands of columns in, the few hundred that say most about the target out.

Text has tens of thousands of words, most of which occur in a handful of rows. Columns are compared by the share of the
target's variance that each explains on its own, from sums over the non-zero cells: nothing of the size of the dense
matrix is ever made. Models then read the chosen columns only (`softwood.tabular.selection`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from softwood.tabular.reading.table import Table, is_sparse
from softwood.tabular.target import Problem

# Columns that are kept: an eighth of the number of rows, but at least and at most so many.
_FEWEST, _MOST, _ROWS_PER_COLUMN = 160, 512, 8
# Rows in which a column must differ from 0: fewer agree with any target by chance.
_MIN_NON_ZEROS = 3


def screen_columns(table: Table, problem: Problem) -> list[int]:
    """Numbers, rising, of the columns to learn from: all, unless the table is a wide sparse matrix.

    Examples
    --------
    >>> from scipy import sparse
    >>> from softwood.tabular.reading.table import read_table
    >>> from softwood.tabular.target import regression_problem
    >>> X = sparse.random(100, 2000, density=0.1, random_state=np.random.default_rng(0), format="csr")
    >>> y = X[:, [1999]].toarray()[:, 0]
    >>> chosen = screen_columns(read_table(X), regression_problem(y, 100))
    >>> len(chosen), 1999 in chosen
    (160, True)
    """
    n_kept = min(_MOST, max(_FEWEST, table.n_rows // _ROWS_PER_COLUMN))
    if not is_sparse(table.matrix) or table.n_columns <= n_kept:
        return list(range(table.n_columns))
    order = np.argsort(-explained_shares(table.matrix, problem.target_columns(), problem.weight), kind="stable")
    return np.sort(order[:n_kept]).tolist()


def explained_shares(X: object, y: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared correlation of each column [p] of a sparse matrix with the target columns [n, t], summed over these.

    It is 0 for columns with fewer than three non-zero cells; missing and infinite cells count as 0.
    """
    from scipy import sparse

    cells = sparse.csr_array(X, dtype=np.float64, copy=True)
    cells.data[~np.isfinite(cells.data)] = 0
    share = weight / weight.sum()
    centred = y - share @ y
    spread = share @ centred**2
    # Columns of any size: their squares neither overflow nor vanish.
    size = np.maximum(abs(cells).max(axis=0).toarray().ravel(), 1e-300)
    cells.data /= size[cells.indices]
    mean, square = cells.T @ share, (cells**2).T @ share
    variance = square - mean**2
    covariance = cells.T @ (share[:, None] * centred)
    counts = np.bincount(cells.indices[cells.data != 0], minlength=cells.shape[1])
    counted = (counts >= _MIN_NON_ZEROS) & (variance > 1e-12 * square)
    of_column = np.divide(1.0, variance, out=np.zeros_like(variance), where=counted)
    of_target = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
    return of_column * (covariance**2 @ of_target)
