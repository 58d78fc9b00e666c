"""Base matrix in, cells of lookup columns out.

A lookup column turns one base column into *entries*. A number is cut at knots: a value between two of them has the
entry of the lower knot and a fraction, values beyond the ends have that of the first or last knot. A category has one
entry per code, and one for codes that training did not see. A missing cell is an entry of its own. What a split reads
from a column is a table of one value per entry, interpolated between knots.

A `Lookup` is all that prediction needs to know of a column. Training also needs a basis: its weights make up the tables
(core/include/softwood/lookup.h), and their scales are fitted here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from softwood import _core
from softwood.ops import get_num_threads
from softwood.tabular.encoding.features import MAX_FLAG_SCALE, Summary, summarise

# Categories of more entries are trained lazily: a step changes only the levels that its rows have.
_MAX_DENSE_LEVELS = 64
# Of their levels, however rare: with the scale of a standardised flag, rare ones would learn their few rows by heart.
_LAZY_LEVEL_SCALE = 0.5
# Knots of all columns together; wide tables get fewer bins per column.
_MAX_KNOTS = 4096
# Fractions between knots are whole multiples of one over this; kOneFraction in the core.
ONE_FRACTION = 1 << 14
# Whole numbers of few values, each in many rows, have a weight for each value.
_MAX_WEIGHTED_VALUES, _MIN_ROWS_PER_VALUE = 128, 150


@dataclass(frozen=True, eq=False)
class Lookup:
    """How one base column is read by tables.

    Attributes
    ----------
    base_column : int
    knots : ndarray [n_knots], float32
        Increasing; empty for a category.
    n_codes : int
        Codes of a category are 0, ..., n_codes - 1.
    """

    base_column: int
    knots: NDArray[np.float32]
    n_codes: int = 0

    @property
    def n_entries(self) -> int:
        """Knots or codes, then one more: missing cells, or codes that training did not see."""
        return (len(self.knots) or self.n_codes) + 1

    @property
    def rates(self) -> NDArray[np.float32]:
        """Units of the fraction per unit of the column, between each knot and the next [n_knots]; the last is 0."""
        with np.errstate(over="ignore"):
            rates = np.minimum(ONE_FRACTION / np.diff(self.knots.astype(np.float64)), np.finfo(np.float32).max)
        return np.append(rates, 0).astype(np.float32)

    def read(self, base: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Entry [n], and fraction [n] on the way to the next entry, of rows of the base matrix, by definition.

        Examples
        --------
        >>> lookup = Lookup(0, np.array([10, 20, 40], dtype=np.float32))
        >>> entry, fraction = lookup.read(np.array([[5], [12.5], [20], [99], [np.nan]], dtype=np.float32))
        >>> entry, fraction / ONE_FRACTION
        (array([0, 0, 1, 2, 3]), array([0.  , 0.25, 0.  , 0.  , 0.  ]))
        """
        x = base[:, self.base_column]
        if not len(self.knots):
            with np.errstate(invalid="ignore"):
                is_known = (x >= 0) & (x < self.n_codes) & (x == np.trunc(x))
            return np.where(is_known, x, self.n_codes).astype(np.int64), np.zeros(len(x), dtype=np.int64)
        is_missing = np.isnan(x)
        entry = np.maximum(0, np.searchsorted(self.knots, x, side="right") - 1)
        with np.errstate(over="ignore", invalid="ignore"):
            position = (x - self.knots[np.minimum(entry, len(self.knots) - 1)]) * self.rates[entry % len(self.knots)]
            held = np.where(position > 0, np.minimum(position, ONE_FRACTION), 0)
        fraction = np.where(is_missing, 0, np.rint(held)).astype(np.int64)
        return np.where(is_missing, len(self.knots), entry), fraction


@dataclass(frozen=True, eq=False)
class LookupColumn:
    """Entries of one base column, and the scales of its weights.

    Attributes
    ----------
    base_column : int
    knots : ndarray [n_knots], float32
        Increasing; empty for a category.
    n_entries : int
        Knots or codes, then one more: missing cells, or codes that training did not see.
    n_levels : int
        The last entries, which have a weight of their own.
    ramp_scale, ramp_mean, linear, level_scale, level_mean : ndarray [n_entries], float32
        The basis; ramp r goes from knot r to knot r + 1.
    monotone_sign : {-1, 0, 1}
        1: scores must rise with the column, -1: fall, 0: either.
    """

    base_column: int
    knots: NDArray[np.float32]
    n_entries: int
    n_levels: int
    ramp_scale: NDArray[np.float32]
    ramp_mean: NDArray[np.float32]
    linear: NDArray[np.float32]
    level_scale: NDArray[np.float32]
    level_mean: NDArray[np.float32]
    monotone_sign: int = 0

    @property
    def is_lazy(self) -> bool:
        """Whether only the levels of a step's rows are trained in it."""
        return not len(self.knots) and self.n_entries > _MAX_DENSE_LEVELS

    @property
    def lookup(self) -> Lookup:
        """What prediction needs of the column."""
        return Lookup(self.base_column, self.knots, 0 if len(self.knots) else self.n_entries - 1)

    @property
    def n_parameters(self) -> int:
        """Weights per split: ramps, a linear term, levels."""
        return max(0, len(self.knots) - 1) + (len(self.knots) > 0) + self.n_levels


@dataclass(frozen=True, eq=False)
class Lookups:
    """Lookup columns of a base matrix. Made by `fit_lookups`."""

    columns: tuple[LookupColumn, ...]

    def cells(self, base: NDArray[np.float32], *, n_threads: int | None = None) -> NDArray[np.uint32]:
        """Entry (low 16 bits) and fraction (high 16 bits, over 65535) of each cell [n, len(columns)]."""
        cells = np.empty((len(base), len(self.columns)), dtype=np.uint32)
        last = [column.n_entries - 1 for column in self.columns]
        sources = {
            "base_column": _integers([column.base_column for column in self.columns]),
            "n_knots": _integers([len(column.knots) for column in self.columns]),
            "n_codes": _integers([0 if len(column.knots) else column.n_entries - 1 for column in self.columns]),
            "missing_entry": _integers(last),
            "unseen_entry": _integers(last),
            "knots": np.concatenate([column.knots for column in self.columns]),
        }
        _core.lookup_cells(sources, base, cells, n_threads or get_num_threads())
        return cells

    @property
    def n_features(self) -> int:
        """Number of lookup columns."""
        return len(self.columns)

    @cached_property
    def native_columns(self) -> dict[str, np.ndarray]:
        """The columns as the compiled trainer takes them."""
        columns = self.columns
        lazy = np.array([column.is_lazy for column in columns], dtype=np.uint8)
        counts: dict[str, np.ndarray] = {
            "n_entries": _integers([column.n_entries for column in columns]),
            "n_knots": _integers([len(column.knots) for column in columns]),
            "n_levels": _integers([column.n_levels for column in columns]),
            "lazy": lazy,
            "monotone_sign": _integers([column.monotone_sign for column in columns]),
        }
        names = ("ramp_scale", "ramp_mean", "linear", "level_scale", "level_mean")
        return counts | {name: np.concatenate([getattr(column, name) for column in columns]) for name in names}

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by name, for checksums."""
        return self.native_columns | {"knots": np.concatenate([column.knots for column in self.columns])}


def fit_lookups(
    base: NDArray[np.float32],
    roles: Sequence[str],
    *,
    n_bins: int,
    rows: NDArray[np.integer],
    weight: NDArray[np.float64],
    signs: Mapping[int, int] | None = None,
    missing_shares: Mapping[int, float] | None = None,
    numbers_have_weights: bool = True,
) -> Lookups | None:
    """Fit lookup columns to rows of the base matrix; None if no column has two values.

    Parameters are those of `softwood.tabular.encoding.features.fit_encodings`, and two by number of base columns:
    `signs`, 1 or -1 for those with which scores must rise or fall, and `missing_shares` of the whole table, if this is
    a sample. Without `numbers_have_weights`, numbers of few values are read as others are, by `n_bins` bins.
    """
    n_bins = max(2, min(n_bins, _MAX_KNOTS // max(1, sum(role == "number" for role in roles))))
    columns = []
    for j, role in enumerate(roles):
        if role == "none":
            continue
        summary = summarise(base[:, j], rows, weight, role, (missing_shares or {}).get(j))
        sign = (signs or {}).get(j, 0)
        if role == "code":
            column = _category(j, summary)
        else:
            column = _number(j, summary, n_bins, sign, may_have_weights=numbers_have_weights and sign == 0)
        if column is not None:
            columns.append(column)
    return Lookups(tuple(columns)) if columns else None


def _number(j: int, summary: Summary, n_bins: int, sign: int, *, may_have_weights: bool) -> LookupColumn | None:
    are_few = summary.levels is not None or are_frequent(summary.edges, len(summary.values))
    has_weights = may_have_weights and are_few
    knots = np.unique((summary.edges if has_weights else summary.knots(n_bins)).astype(np.float32))
    share = summary.missing_share
    if len(knots) < 2:
        if not 0 < share < 1:
            return None
        value = knots[0] if len(knots) else np.float32(0)  # missing or not is all that the column says
        knots = np.array([value, np.nextafter(value, np.float32(np.inf))], dtype=np.float32)
    wide_knots = knots.astype(np.float64)
    mean, deviation = summary.ramp_moments(wide_knots)
    # Adam moves all weights alike, so a column of many bins would learn faster than one of few.
    scale = np.minimum(MAX_FLAG_SCALE, _inverse(deviation)) * len(mean) ** -0.5
    line = summary.soft_clip(wide_knots)
    line_mean, line_deviation = summary.moments(np.interp(summary.values, wide_knots, line)[None])
    linear = (line - line_mean[0]) * _inverse(line_deviation)[0]
    n_entries = len(knots) + 1
    level_scale, level_mean = np.zeros(n_entries), np.zeros(n_entries)
    level_mean[-1], level_scale[-1] = share, min(MAX_FLAG_SCALE, _inverse(np.sqrt([share * (1 - share)]))[0])
    n_levels = 1
    if has_weights:  # few whole numbers: a weight for each, interpolated between them
        level_mean[:-1], spread = summary.level_moments(wide_knots)
        level_scale[:-1] = np.minimum(MAX_FLAG_SCALE, _inverse(spread))
        n_levels = n_entries
    column = _column(
        j, knots, n_entries, n_levels, _padded(scale, n_entries), _padded(mean, n_entries), _padded(linear, n_entries),
        level_scale, level_mean,
    )  # fmt: skip
    return replace(column, monotone_sign=sign)


def are_frequent(distinct: NDArray[np.floating], n_rows: int) -> bool:
    """Whether values are whole numbers with many rows each, so that a code can be learned as well as a quantity."""
    n_most = min(_MAX_WEIGHTED_VALUES, n_rows // _MIN_ROWS_PER_VALUE)
    return 2 < len(distinct) <= n_most and bool(np.all(distinct == np.rint(distinct)))


def _category(j: int, summary: Summary) -> LookupColumn | None:
    assert summary.levels is not None
    codes = summary.levels.astype(np.int64)
    if len(summary.edges) < 2 or not len(codes):
        return None
    n_entries = int(codes.max()) + 2
    level_scale, level_mean = np.zeros(n_entries), np.zeros(n_entries)
    mean, deviation = summary.level_moments(summary.levels)
    level_mean[codes], level_scale[codes] = mean, np.minimum(MAX_FLAG_SCALE, _inverse(deviation))
    if n_entries > _MAX_DENSE_LEVELS:
        level_mean[:] = 0  # lazy columns are not centred
        level_scale[codes] = _LAZY_LEVEL_SCALE
    none = np.zeros(n_entries)
    return _column(j, np.zeros(0, np.float32), n_entries, n_entries, none, none, none, level_scale, level_mean)


def _column(j: int, knots: NDArray[np.float32], n_entries: int, n_levels: int, *basis: np.ndarray) -> LookupColumn:
    ramp_scale, ramp_mean, linear, level_scale, level_mean = (array.astype(np.float32) for array in basis)
    return LookupColumn(j, knots, n_entries, n_levels, ramp_scale, ramp_mean, linear, level_scale, level_mean)


def _padded(values: np.ndarray, n: int) -> np.ndarray:
    return np.concatenate([values, np.zeros(n - len(values))])


def _inverse(spread: np.ndarray) -> np.ndarray:
    spread = np.asarray(spread, dtype=np.float64)
    return np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 1e-12)


def _integers(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)
