"""A table and its targets in, the columns out whose whole numbers are codes rather than quantities.

Postal codes, product numbers and the like come as integers, but their order says little. Held-out rows tell them apart:
if the mean target of a row's own value predicts it better than the mean of the values around it, the column is read as
a category. Columns of few values need no such test, because a split has a knot or a weight for each of them.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np
from numpy.typing import NDArray

from softwood.tabular.encoding.lookups import are_frequent
from softwood.tabular.reading.table import Table, is_sparse

# Columns of fewer values are looked up value by value anyway; with fewer rows per value there is nothing to learn.
_MIN_LEVELS, _MIN_ROWS_PER_LEVEL = 20, 3
# Rows that the test looks at, and target columns (the most frequent classes).
_MAX_ROWS, _MAX_TARGETS = 60_000, 4
_N_FOLDS = 5
# Numbers of equal parts that the values around a value are taken from; the best one counts.
_PARTS = (16, 64, 256)
# Rows of the overall mean that are added to each level's rows.
_PRIOR_ROWS = 10.0
# Standard errors by which the levels must be better.
_MIN_EVIDENCE = 3.0


def find_codes(
    table: Table, targets: NDArray[np.float64], rows: NDArray[np.integer], declared: Container[int] = ()
) -> list[int]:
    """Numbers of the numeric columns that are better read as categories.

    Parameters
    ----------
    table : Table
    targets : ndarray [n, t]
        Targets of a regression, or 1 for the class of each row and 0 elsewhere.
    rows : ndarray of int
        Training rows, in an order that depends on their contents only.
    declared : container of int
        Columns whose kind was declared; they are left alone.

    Examples
    --------
    >>> from softwood.tabular.reading.table import read_table
    >>> rng = np.random.default_rng(0)
    >>> X = rng.integers(0, 500, (5000, 2))
    >>> by_shop = rng.normal(size=500)
    >>> find_codes(read_table(X), (by_shop[X[:, 0]] + X[:, 1] / 250)[:, None], np.arange(5000))
    [0]
    """
    if is_sparse(table.matrix) or len(rows) < _MIN_LEVELS * _MIN_ROWS_PER_LEVEL:
        return []
    order = rows[np.random.default_rng(0).permutation(len(rows))[:_MAX_ROWS]]
    y = targets[order]
    y = y / np.maximum(np.abs(y).max(axis=0), 1e-300)  # squares of what is left neither overflow nor vanish
    y = y - y.mean(axis=0)
    spread = y.std(axis=0)
    chosen = np.argsort(-spread, kind="stable")[:_MAX_TARGETS]
    y = y[:, chosen] / np.maximum(spread[chosen], 1e-300)
    found = []
    for j in range(table.n_columns):
        if table.kinds[j] == "numeric" and j not in declared:
            values = table.numbers(j)[order]
            if _may_be_codes(values) and _evidence(values, y) > _MIN_EVIDENCE:
                found.append(j)
    return found


def _may_be_codes(values: NDArray[np.floating]) -> bool:
    present = values[~np.isnan(values)]
    for some in (present[:256], present):  # most columns of fractions show themselves in a few rows
        if not len(some) or not np.all(np.isfinite(some)) or np.any(some != np.rint(some)):
            return False
    distinct = np.unique(present)
    return _MIN_LEVELS < len(distinct) <= len(present) / _MIN_ROWS_PER_LEVEL and not are_frequent(
        distinct, len(present)
    )


def _evidence(values: NDArray[np.floating], y: NDArray[np.float64]) -> float:
    """By how many standard errors the means of single values predict better than those of parts of the range."""
    present = ~np.isnan(values)
    values, y = values[present], y[present]
    level = np.unique(values, return_inverse=True)[1]
    rank = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    rank = rank[np.unique(level, return_index=True)[1]][level]  # equal values share a part
    by_level = _held_out_errors(level, y)
    by_part = min((_held_out_errors(rank * n // len(values), y) for n in _PARTS), key=np.sum)
    gain = by_part - by_level
    return float(gain.mean() / max(gain.std() / np.sqrt(len(gain)), 1e-300))


def _held_out_errors(group: NDArray[np.int64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared errors [n] of the mean of each row's group over the other folds, drawn to the overall mean."""
    fold = np.arange(len(y)) % _N_FOLDS
    n_groups = int(group.max()) + 1
    errors = np.zeros(len(y))
    for i in range(_N_FOLDS):
        rest, held_out = fold != i, fold == i
        count = np.bincount(group[rest], minlength=n_groups)
        for t in range(y.shape[1]):
            overall = y[rest, t].mean()
            total = np.bincount(group[rest], weights=y[rest, t], minlength=n_groups)
            mean = (total + _PRIOR_ROWS * overall) / (count + _PRIOR_ROWS)
            errors[held_out] += np.square(y[held_out, t] - mean[group[held_out]])
    return errors
