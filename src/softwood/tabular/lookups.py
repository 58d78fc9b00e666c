"""Base matrix in, cells of lookup columns out; and the features that give the same splits in linear form.

A lookup column turns one base column into *entries*. A number is cut at knots: a value between two of them has the
entry of the lower knot and a fraction, values beyond the ends have that of the first or last knot. A category has one
entry per code, and one for codes that training did not see. A missing cell is an entry of its own. What a split reads
from a column is a table of one value per entry, interpolated between knots (core/include/softwood/lookup.h), made of
weights in a basis whose scales are fitted here.

Trained trees leave in linear form: on a number the table is a sum of ramps, on a category a sum of flags. `Lookups`
therefore has an `Encoding`, and everything that reads a fitted model knows no other kind of split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from softwood import _core
from softwood.ops import get_num_threads
from softwood.tabular.features import MAX_FLAG_SCALE, Encoding, FeatureKind, Summary, pack_features, summarise

# Categories of more entries are trained lazily: a step changes only the levels that its rows have.
_MAX_DENSE_LEVELS = 64
# Knots of all columns together; wide tables get fewer bins per column.
_MAX_KNOTS = 4096


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

    @cached_property
    def features_of(self) -> tuple[list[tuple[int, int, float, float, float, float]], list[int]]:
        """(base column, kind, start, rate, mean, scale) of each feature of the linear form, and its lookup column."""
        found: list[tuple[int, int, float, float, float, float]] = []
        owner: list[int] = []
        for c, column in enumerate(self.columns):
            before = len(found)
            j = column.base_column
            if len(column.knots):
                knots = column.knots.astype(np.float64)
                rates = 1 / np.diff(knots)
                means = column.ramp_mean[: len(rates)].tolist()
                ramps = zip(knots[:-1].tolist(), rates.tolist(), means, strict=True)
                found += [(j, FeatureKind.RAMP, start, rate, mean, 1.0) for start, rate, mean in ramps]
                if column.level_scale[-1] > 0:
                    found.append((j, FeatureKind.MISSING, 0.0, 1.0, 0.0, 1.0))
            else:
                means = column.level_mean.tolist()
                codes = np.flatnonzero(column.level_scale > 0).tolist()
                found += [(j, FeatureKind.LEVEL, float(code), 1.0, means[code], 1.0) for code in codes]
            owner += [c] * (len(found) - before)
        return found, owner

    @cached_property
    def encoding(self) -> Encoding:
        """The features of the linear form, sorted by kind as an `Encoding` wants them."""
        return pack_features(self.features_of[0])

    @cached_property
    def feature_order(self) -> NDArray[np.int64]:
        """Place in `encoding` of each feature of `features_of`."""
        kinds = [feature[1] for feature in self.features_of[0]]
        place = np.empty(len(kinds), dtype=np.int64)
        place[np.argsort(kinds, kind="stable")] = np.arange(len(kinds))
        return place


def fit_lookups(
    base: NDArray[np.float32],
    roles: Sequence[str],
    *,
    n_bins: int,
    rows: NDArray[np.integer],
    weight: NDArray[np.float64],
    signs: Mapping[int, int] | None = None,
) -> Lookups | None:
    """Fit lookup columns to rows of the base matrix; None if no column has two values.

    Parameters are those of `softwood.tabular.features.fit_encodings`, and `signs`: 1 or -1 by number of each base
    column with which scores must rise or fall.
    """
    n_bins = max(2, min(n_bins, _MAX_KNOTS // max(1, sum(role == "number" for role in roles))))
    columns = []
    for j, role in enumerate(roles):
        if role == "none":
            continue
        summary = summarise(base[:, j], rows, weight, role)
        column = _category(j, summary) if role == "code" else _number(j, summary, n_bins, (signs or {}).get(j, 0))
        if column is not None:
            columns.append(column)
    return Lookups(tuple(columns)) if columns else None


def _number(j: int, summary: Summary, n_bins: int, sign: int = 0) -> LookupColumn | None:
    knots = np.unique(summary.knots(n_bins).astype(np.float32))
    share = summary.missing_share
    if len(knots) < 2:
        if not 0 < share < 1:
            return None
        value = knots[0] if len(knots) else np.float32(0)  # missing or not is all that the column says
        knots = np.array([value, np.nextafter(value, np.float32(np.inf))], dtype=np.float32)
    n_ramps = len(knots) - 1
    ramps = np.clip((summary.values - knots[:-1, None]) / np.diff(knots)[:, None].astype(np.float64), 0, 1)
    mean, deviation = summary.moments(ramps)
    # Adam moves all weights alike, so a column of many bins would learn faster than one of few.
    scale = np.minimum(MAX_FLAG_SCALE, _inverse(deviation)) * n_ramps**-0.5
    line = _at_rows(summary.soft_clip(knots.astype(np.float64)), ramps)
    line_mean, line_deviation = summary.moments(line[None])
    linear = (summary.soft_clip(knots.astype(np.float64)) - line_mean[0]) * _inverse(line_deviation)[0]
    n_entries = len(knots) + 1
    level_scale, level_mean = np.zeros(n_entries), np.zeros(n_entries)
    level_mean[-1], level_scale[-1] = share, min(MAX_FLAG_SCALE, _inverse(np.sqrt([share * (1 - share)]))[0])
    n_levels = 1
    if summary.levels is not None and sign == 0:  # few whole numbers: a weight for each, interpolated between them
        flags = summary.values == knots[:, None].astype(np.float64)
        level_mean[:-1], spread = summary.moments(flags)
        level_scale[:-1] = np.minimum(MAX_FLAG_SCALE, _inverse(spread))
        n_levels = n_entries
    column = _column(
        j, knots, n_entries, n_levels, _padded(scale, n_entries), _padded(mean, n_entries), _padded(linear, n_entries),
        level_scale, level_mean,
    )  # fmt: skip
    return replace(column, monotone_sign=sign)


def _category(j: int, summary: Summary) -> LookupColumn | None:
    assert summary.levels is not None
    codes = summary.levels.astype(np.int64)
    if len(summary.edges) < 2 or not len(codes):
        return None
    n_entries = int(codes.max()) + 2
    level_scale, level_mean = np.zeros(n_entries), np.zeros(n_entries)
    flags = summary.values == summary.levels[:, None]
    mean, deviation = summary.moments(flags)
    level_mean[codes], level_scale[codes] = mean, np.minimum(MAX_FLAG_SCALE, _inverse(deviation))
    if n_entries > _MAX_DENSE_LEVELS:
        level_mean[:] = 0  # lazy columns are not centred
    none = np.zeros(n_entries)
    return _column(j, np.zeros(0, np.float32), n_entries, n_entries, none, none, none, level_scale, level_mean)


def _column(j: int, knots: NDArray[np.float32], n_entries: int, n_levels: int, *basis: np.ndarray) -> LookupColumn:
    ramp_scale, ramp_mean, linear, level_scale, level_mean = (array.astype(np.float32) for array in basis)
    return LookupColumn(j, knots, n_entries, n_levels, ramp_scale, ramp_mean, linear, level_scale, level_mean)


def _at_rows(at_knots: np.ndarray, ramps: np.ndarray) -> np.ndarray:
    """What a function given at the knots is at the rows, by their ramps [n_ramps, n]."""
    return at_knots[0] + np.diff(at_knots) @ ramps


def _padded(values: np.ndarray, n: int) -> np.ndarray:
    return np.concatenate([values, np.zeros(n - len(values))])


def _inverse(spread: np.ndarray) -> np.ndarray:
    spread = np.asarray(spread, dtype=np.float64)
    return np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 1e-12)


def _integers(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)
