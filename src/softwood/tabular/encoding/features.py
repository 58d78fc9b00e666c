"""Base matrix in, model inputs out: the numeric half of the preprocessing, in a form that any language can run.

The base matrix is float32 [n, q], one column per quantity of the table (`softwood.tabular.encoding.base_columns`
defines them), with NaN where a number is missing. An `Encoding` is a flat list of features, each a scalar function of
*one* of them:

==========  ==================================================  ============================================
kind        r(x)                                                used for
==========  ==================================================  ============================================
LINEAR      x                                                   numbers, standardised
SOFT_CLIP   z / sqrt(1 + (z / 3)^2), z = (x - start) * rate     numbers, robustly scaled and smoothly clipped
RAMP        (x - start) * rate, held within [0, 1]              one bin of a piecewise-linear encoding
LEVEL       1 if x equals start, else 0                         one category, or one value of a small integer
MISSING     1 if x is NaN, else 0                               missing-value indicator
==========  ==================================================  ============================================

The feature is (r(x) - mean) * scale, and 0 (its mean) where x is NaN, except for MISSING, which is always defined. z
and the feature are held within plus or minus `LARGEST_FEATURE`, so that no value in float32's range becomes infinite.
All arithmetic is float32. `feature_function` and `Encoding.evaluate` are the definition, in NumPy; the core computes
the same to the bit, row by row where training reads a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from softwood import _core
from softwood.ops import get_num_threads

EncodingName = Literal["standard", "piecewise", "linear"]
# Made by `softwood.tabular.encoding.lookups` for models that were trained with lookups.
LOOKUP = "lookup"
ENCODING_NAMES: tuple[str, ...] = get_args(EncodingName)

# z and features are held within plus or minus this; a test compares it with the core's kLargest.
LARGEST_FEATURE = 1e6

# Integer columns with this many distinct values get a flag for each value, beside the number itself.
MIN_INTEGER_LEVELS, MAX_INTEGER_LEVELS = 3, 10
N_BINS = 8
MAX_BINS = 128
# Ramps of all columns together; wide tables get fewer bins per column.
MAX_RAMPS = 512
# The most that a flag is scaled by: one that is set in a row of ten thousand would be 100 standard deviations high.
MAX_FLAG_SCALE = 10.0
# Means, spreads and quantiles of longer tables are taken from this many rows.
SAMPLE_ROWS = 200_000
# From this many rows on, a value that a bin's share of the rows has gets a knot of its own.
_MIN_ROWS_FOR_SPIKES = 2000


class FeatureKind(IntEnum):
    """What a feature computes from its base column. The numbers are those of files and of the core."""

    LINEAR = 0
    SOFT_CLIP = 1
    RAMP = 2
    LEVEL = 3
    MISSING = 4


def feature_function(kind: FeatureKind, x: Any, start: Any, rate: Any) -> Any:
    """r(x) of features of one kind, before standardisation, in the precision of the arguments; NaN stays NaN.

    Examples
    --------
    >>> feature_function(FeatureKind.RAMP, np.array([0.0, 2.0, 9.0]), start=1.0, rate=0.5)
    array([0. , 0.5, 1. ])
    """
    if kind is FeatureKind.LINEAR:
        return x
    if kind is FeatureKind.LEVEL:
        return np.equal(x, start).astype(np.result_type(x))
    if kind is FeatureKind.MISSING:
        return np.isnan(x).astype(np.result_type(x))
    with np.errstate(over="ignore"):
        z = (x - start) * rate
    if kind is FeatureKind.RAMP:
        return np.clip(z, 0, 1)
    z = np.clip(z, -LARGEST_FEATURE, LARGEST_FEATURE)
    return z / np.sqrt(1 + (z / 3) * (z / 3))


@dataclass(frozen=True, eq=False)
class Encoding:
    """A fitted list of p features, sorted by kind. Each attribute is an array of shape [p].

    Attributes
    ----------
    source : int32
        Base column that the feature reads.
    kind : uint8
        Its `FeatureKind`.
    start, rate : float32
        Parameters of r(x); 0 and 1 where the kind has none.
    mean, scale : float32
        Standardisation of r(x).
    bound : float32, optional
        If given, the weights of the splits have absorbed `scale`: the feature is r(x) - mean, held within plus or minus
        its bound, `LARGEST_FEATURE` / scale. See `softwood.model.lowering`.

    Examples
    --------
    >>> base = np.array([[1.0], [3.0], [np.nan]], dtype=np.float32)
    >>> encodings = fit_encodings(base, ["number"])
    >>> encodings["standard"].transform(base)
    array([[-1.        , -0.70710677],
           [ 1.        , -0.70710677],
           [ 0.        ,  1.4142134 ]], dtype=float32)
    """

    source: NDArray[np.int32]
    kind: NDArray[np.uint8]
    start: NDArray[np.float32]
    rate: NDArray[np.float32]
    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    bound: NDArray[np.float32] | None = None

    @property
    def n_features(self) -> int:
        """Number of features p."""
        return len(self.source)

    def ranges(self) -> dict[FeatureKind, slice]:
        """Which features are of each kind; kinds without any are left out."""
        ends = np.searchsorted(self.kind, range(len(FeatureKind) + 1)).tolist()
        return {kind: slice(ends[kind], ends[kind + 1]) for kind in FeatureKind if ends[kind] < ends[kind + 1]}

    def evaluate(self, base: NDArray[np.float32]) -> NDArray[np.float32]:
        """The definition of `transform`, in NumPy: base matrix [n, q] to model inputs [n, p]."""
        features = np.empty((len(base), self.n_features), dtype=np.float32)
        for kind, chosen in self.ranges().items():
            x = base[:, self.source[chosen]]
            with np.errstate(over="ignore"):
                centred = feature_function(kind, x, self.start[chosen], self.rate[chosen]) - self.mean[chosen]
                if self.bound is None:
                    value = np.clip(centred * self.scale[chosen], -LARGEST_FEATURE, LARGEST_FEATURE)
                else:
                    value = np.clip(centred, -self.bound[chosen], self.bound[chosen])
            features[:, chosen] = value if kind is FeatureKind.MISSING else np.where(np.isnan(x), 0, value)
        return features

    def transform(self, base: NDArray[np.float32], *, n_threads: int | None = None) -> NDArray[np.float32]:
        """Encode the base matrix [n, q] as model inputs [n, p], float32 and finite; done by the core."""
        result = np.empty((len(base), self.n_features), dtype=np.float32)
        _core.encode(self.arrays(), base, result, n_threads or get_num_threads())
        return result

    def arrays(self) -> dict[str, np.ndarray]:
        """The fitted arrays by name, for a file or for the core."""
        names = ("source", "kind", "start", "rate", "mean", "scale")
        arrays = {name: getattr(self, name) for name in names}
        return arrays if self.bound is None else {**arrays, "bound": self.bound}


def fit_encodings(
    base: NDArray[np.float32],
    roles: Sequence[str],
    *,
    names: Sequence[str] = ENCODING_NAMES,
    n_bins: int = N_BINS,
    rows: NDArray[np.integer] | None = None,
    weight: NDArray[np.float64] | None = None,
    is_piece: bool = False,
) -> dict[str, Encoding]:
    """Fit the named encodings to the base matrix.

    Parameters
    ----------
    base : ndarray [n, q]
        The base matrix.
    roles : sequence of str
        "number", "code" (a category number, -1 for none of the known) or "none" (not encoded) for each base column.
    names : sequence of {"standard", "piecewise", "linear"}
        Which encodings to fit. "linear" makes one standardised input of each number, and has no flags for integers.
    n_bins : int
        Bins per column of the piecewise encoding.
    rows : ndarray of int, optional
        Rows to fit to, in this order; all if None.
    weight : ndarray [len(rows)], optional
        Weights of these rows; 1 if None.
    is_piece : bool
        The rows are the first piece of a longer table: few whole numbers may be followed by others.
    """
    sources = [j for j, role in enumerate(roles) if role != "none"]
    order = np.arange(len(base)) if rows is None else rows
    weight = np.ones(len(order)) if weight is None else weight
    n_wide = sum(roles[j] == "number" and _is_wide(base[order[:SAMPLE_ROWS], j]) for j in sources)
    n_bins = max(2, min(n_bins, MAX_RAMPS // max(1, n_wide)))
    features: dict[str, list[tuple[int, int, float, float, float, float]]] = {name: [] for name in names}
    n_ramps = 0
    for j in sources:
        summary = summarise(base[:, j], order, weight, roles[j])
        for name in names:
            room = name == "piecewise" and n_ramps + n_bins <= MAX_RAMPS
            parts = summary.features(name, n_bins=n_bins if room else 0, is_piece=is_piece)
            n_ramps += sum(part[0] == FeatureKind.RAMP for part in parts)
            features[name] += [(j, *part) for part in parts]
    return {name: pack_features(found) for name, found in features.items()}


def pack_features(features: list[tuple[int, int, float, float, float, float]]) -> Encoding:
    """An encoding of (source, kind, start, rate, mean, scale) per feature, without those that float32 cannot hold."""
    # A spread whose reciprocal float32 cannot represent carries no information.
    largest = float(np.finfo(np.float32).max)
    features = [f for f in features if all(abs(value) < largest for value in f[2:]) and f[3] > 0 and f[5] > 0]
    # A table of constants has no feature; trees need one input, so it gets one that is always 0.
    features = sorted(features or [(0, FeatureKind.LINEAR, 0.0, 1.0, 0.0, 0.0)], key=lambda feature: feature[1])
    columns = list(zip(*features, strict=True))
    return Encoding(
        np.array(columns[0], dtype=np.int32),
        np.array(columns[1], dtype=np.uint8),
        *(np.array(column, dtype=np.float32) for column in columns[2:]),
    )


@dataclass(frozen=True, eq=False)
class Summary:
    """What the features of one base column are computed from: the values that are there, sorted, and their weights."""

    values: NDArray[np.float64]
    weight: NDArray[np.float64]
    missing_share: float
    levels: NDArray[np.float64] | None
    edges: NDArray[np.float64]
    is_ordered: bool

    def features(
        self, encoding: str, *, n_bins: int, is_piece: bool = False
    ) -> list[tuple[int, float, float, float, float]]:
        """(kind, start, rate, mean, scale) of each feature of the named encoding."""
        piecewise = encoding == "piecewise"
        levels = None if encoding == "linear" and self.is_ordered else self.levels
        found: list[tuple[int, float, float, float, float]] = []
        if self.missing_share > 0:
            share = self.missing_share
            scale = min(MAX_FLAG_SCALE, _reciprocal(np.sqrt(share * (1 - share))))
            found.append((FeatureKind.MISSING, 0.0, 1.0, share, scale))
        if len(self.edges) < 2:  # a constant carries no information
            return found
        if levels is not None:
            ones = np.ones(len(levels))
            found += self._standardised(FeatureKind.LEVEL, levels, ones, MAX_FLAG_SCALE)
        if not self.is_ordered:
            return found
        if len(self.edges) == 2:
            return found + self._standardised(FeatureKind.LINEAR, np.zeros(1), np.ones(1))
        if levels is not None and is_piece:  # later pieces may have values beyond the known ones
            return found + self._standardised(FeatureKind.LINEAR, np.zeros(1), np.ones(1))
        if levels is not None:  # constant beyond the known values
            found += self._ramps(self.edges[[0, -1]])
        elif piecewise:
            found += self._standardised(FeatureKind.SOFT_CLIP, *self._robust_scale())
        else:
            found += self._standardised(FeatureKind.LINEAR, np.zeros(1), np.ones(1))
        return found + self._ramps(self.knots(n_bins)) if piecewise and n_bins else found

    def _standardised(
        self, kind: FeatureKind, start: np.ndarray, rate: np.ndarray, most: float = np.inf, factor: float = 1.0
    ) -> list[tuple[int, float, float, float, float]]:
        """Features of one kind with parameters `start` and `rate` [f], scaled to mean 0 and deviation `factor`."""
        r = feature_function(kind, self.values[None], start[:, None], rate[:, None])
        mean, deviation = self.moments(r)
        scale = [factor * min(most, _reciprocal(spread)) for spread in deviation.tolist()]
        return list(zip([kind] * len(r), start.tolist(), rate.tolist(), mean.tolist(), scale, strict=True))

    def moments(self, r: np.ndarray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Weighted mean and standard deviation of functions r [f, n] of the values."""
        share = self.weight / self.weight.sum()
        mean = r @ share
        deviation = r - mean[:, None]
        np.square(deviation, out=deviation)  # r may be hundreds of megabytes
        return mean, np.sqrt(deviation @ share)

    def ramp_moments(self, knots: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Moments of the ramps from 0 to 1 between neighbouring knots, each of which most values are beyond."""
        n_ramps = len(knots) - 1
        ramp = np.clip(np.searchsorted(knots, self.values, side="right") - 1, 0, n_ramps - 1)
        share = self.weight / self.weight.sum()
        height = np.clip((self.values - knots[ramp]) / np.diff(knots)[ramp], 0, 1)

        def sums(of: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.bincount(ramp, of, minlength=n_ramps).astype(np.float64)

        beyond = np.append(np.cumsum(sums(share)[:0:-1])[::-1], 0)
        mean, square = beyond + sums(share * height), beyond + sums(share * height**2)
        return mean, np.sqrt(np.maximum(0, square - mean**2))

    def level_moments(self, levels: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Moments of the flags of some values, which are increasing."""
        place = np.searchsorted(levels, self.values)
        place[levels[np.minimum(place, len(levels) - 1)] != self.values] = len(levels)
        share = np.asarray(self.weight / self.weight.sum(), dtype=np.float64)
        mean = np.bincount(place, share, minlength=len(levels) + 1)[:-1].astype(np.float64)
        return mean, np.sqrt(mean * np.maximum(0, 1 - mean))  # shares may add up to a little more than 1

    def soft_clip(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The feature SOFT_CLIP of some values, before it is standardised."""
        start, rate = self._robust_scale()
        return feature_function(FeatureKind.SOFT_CLIP, x, start, rate)

    def _robust_scale(self) -> tuple[np.ndarray, np.ndarray]:
        low, median, high = _quantiles(self.values, self.weight, np.array([0.25, 0.5, 0.75]))
        spread = high - low
        if spread <= 0:  # more than half of the rows are equal
            spread = (self.values[-1] - self.values[0]) / 2
        return np.array([median]), np.array([_reciprocal(spread)])

    def knots(self, n_bins: int) -> NDArray[np.float64]:
        """Every distinct value if they are few, else quantiles, and each value that many rows have with its neighbours.

        In short tables such values only replace quantiles that would all be the same.
        """
        if len(self.edges) <= n_bins + 1:
            return self.edges
        knots = np.unique(_quantiles(self.values, self.weight, np.linspace(0, 1, n_bins + 1)))
        is_long = len(self.values) >= _MIN_ROWS_FOR_SPIKES
        if len(knots) > 2 and not is_long:
            return knots
        first = np.searchsorted(self.values, self.edges)
        is_spike = np.add.reduceat(self.weight, first) * n_bins >= self.weight.sum()
        if not is_spike.any():
            return knots
        beside = np.repeat(~is_spike, np.diff(np.append(first, len(self.values))))
        n_quantiles = max(2, n_bins - int(is_spike.sum())) if is_long else min(3, n_bins) - 1
        others = _quantiles(self.values[beside], self.weight[beside], np.linspace(0, 1, n_quantiles + 1))
        near = is_spike.copy()
        near[1:] |= is_spike[:-1]
        near[:-1] |= is_spike[1:]
        return np.unique(np.append(others, self.edges[near]))

    def _ramps(self, knots: NDArray[np.float64]) -> list[tuple[int, float, float, float, float]]:
        if len(knots) < 2:
            return []
        # Adam moves all weights alike, so a column of many bins would learn faster than one of few.
        factor = (len(knots) - 1) ** -0.5
        return self._standardised(FeatureKind.RAMP, knots[:-1], 1 / np.diff(knots), factor=factor)


def summarise(
    column: NDArray[np.float32],
    rows: NDArray[np.integer],
    weight: NDArray[np.float64],
    role: str,
    missing_share: float | None = None,
) -> Summary:
    """Summary of rows of a base column; of a longer table that they were drawn from, the share of missing cells."""
    if missing_share is None:
        missing_share = 0.0
        if np.isnan(column.sum()):
            missing_share = float(weight @ np.isnan(column[rows]) / weight.sum())
    values, weight = column[rows[:SAMPLE_ROWS]].astype(np.float64), weight[:SAMPLE_ROWS]
    if missing_share:
        present = ~np.isnan(values)
        values, weight = values[present], weight[present]
    order = np.argsort(values, kind="stable")
    values, weight = values[order], weight[order]
    first = np.flatnonzero(np.diff(values)) + 1
    edges = values[np.concatenate([[0], first])] if len(values) else values
    levels = None
    if role == "code":
        levels = edges[edges >= 0]
        # Two levels that cover every row are one flag.
        levels = levels[1:] if len(levels) == len(edges) == 2 else levels
    elif _are_integer_levels(edges):
        levels = edges
    return Summary(values, weight, missing_share, levels, edges, is_ordered=role != "code")


def _is_wide(x: NDArray[np.float32]) -> bool:
    """Whether a column has so many values that it is cut into bins."""
    for some in (x[:256], x):  # most columns show it in a few rows
        distinct = np.unique(some)
        distinct = distinct[~np.isnan(distinct)]
        if len(distinct) > MAX_INTEGER_LEVELS:
            return True
    return len(distinct) > 2 and not _are_integer_levels(distinct)


def _are_integer_levels(distinct: np.ndarray) -> bool:
    return MIN_INTEGER_LEVELS <= len(distinct) <= MAX_INTEGER_LEVELS and bool(np.all(distinct == np.rint(distinct)))


def _quantiles(values: np.ndarray, weight: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Quantiles of sorted values; linear between the middles of the rows' weights."""
    middle = np.cumsum(weight) - weight / 2
    return np.interp(shares * weight.sum(), middle, values)


def _reciprocal(spread: float) -> float:
    """1 / spread, or 0 for a spread so small that float32 cannot hold the result."""
    return float(1 / spread) if spread > 1e-30 else 0.0
