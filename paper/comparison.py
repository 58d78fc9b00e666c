"""Statistics of repeated measurements: standard errors, paired t-tests, and who wins, as the paper counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import ttest_rel

LEVEL = 0.05  # of significance
MIN_PAIRS = 5  # fewer say nothing about significance
DECIMALS = 3  # means that agree to these are ties, as in the paper's tables


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error (NaN for a single value).

    Examples
    --------
    >>> mean_and_error([1.0, 3.0])
    (2.0, 1.0)
    """
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(np.mean(values)), float(error)


def p_value(a: Sequence[float], b: Sequence[float]) -> float:
    """Of the paired two-sided t-test; NaN with fewer than two pairs, 1 where all pairs are equal.

    Examples
    --------
    >>> round(p_value([0.9, 0.8, 0.7], [0.8, 0.69, 0.61]), 4), p_value([0.9], [0.8]), p_value([1, 1], [1, 1])
    (0.0033, nan, 1.0)
    """
    if len(a) < 2:
        return float("nan")
    difference = np.subtract(a, b)
    if np.ptp(difference) == 0:
        return 1.0 if difference[0] == 0 else 0.0
    return float(ttest_rel(a, b).pvalue)


def is_significant(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether the paired t-test tells two series of at least `MIN_PAIRS` values apart.

    Examples
    --------
    >>> is_significant([0.9, 0.8, 0.7], [0.8, 0.69, 0.61]), is_significant([2, 3, 4, 5, 6], [1, 2, 3.1, 4, 5])
    (False, True)
    """
    return len(a) >= MIN_PAIRS and p_value(a, b) < LEVEL


def sign(a: float, b: float) -> int:
    """1, 0 or -1: a wins, ties, loses, after rounding as the tables do.

    Examples
    --------
    >>> sign(0.9904, 0.9896), sign(0.992, 0.99)
    (0, 1)
    """
    a, b = round(a, DECIMALS), round(b, DECIMALS)
    return int(a > b) - int(a < b)


def wins_ties_losses(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[int, int, int]:
    """How often the first wins, ties and loses, over the names that both have."""
    signs = [sign(a[name], b[name]) for name in a if name in b]
    return signs.count(1), signs.count(0), signs.count(-1)


def counted(counts: tuple[int, int, int]) -> str:
    """Wins, ties and losses in words."""
    return f"{counts[0]} wins, {counts[1]} ties, {counts[2]} losses"
