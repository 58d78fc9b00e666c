"""A split of a tree in, a rule in the table's own columns and units out.

A split weighs many inputs, each a scaled function of one column. `split_rule` undoes the scaling (and batch norm, which
is folded into the weights before): the split's t becomes a sum of terms in units of the table, compared with one
threshold. A number of the standard encoding is a plain term such as ``0.31 * age``; other kinds of inputs are flags
("colour is 'red'") or shares of a range ("age between 20 and 30, as a share").
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial

import numpy as np

from softwood.model.program import Program
from softwood.tabular.base_columns import BaseColumn, CalendarPart, CalendarUnit, Code, TargetMean, Value
from softwood.tabular.features import Encoding, FeatureKind, feature_function

_N_SHOWN = 4
# Ends of the calendar, in seconds since 1970.
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800.0, 253_402_300_799.0
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True)
class Term:
    """One summand of a split: ``coefficient * value``.

    Attributes
    ----------
    name : str
        Column, or what is asked of it.
    coefficient, value : float
        In units of the table; a missing number has the value that the model puts in its place, the mean.
    strength : float
        How far the term moves the split away from what it does on average, in absolute terms.
    """

    name: str
    coefficient: float
    value: float
    strength: float


@dataclass(frozen=True)
class SplitRule:
    """A split as a comparison: the row goes left where the sum of all terms is above `threshold`.

    Within `half_width` of the threshold it goes both ways (for the logistic activation, it always does).

    Attributes
    ----------
    terms : tuple of Term
        The strongest first.
    threshold, half_width : float
    left_probability : float
        Of the row that the rule was made for.
    """

    terms: tuple[Term, ...]
    threshold: float
    half_width: float
    left_probability: float

    @property
    def score(self) -> float:
        """Sum of all terms."""
        return sum(term.coefficient * term.value for term in self.terms)

    @property
    def goes_left(self) -> bool:
        """Whether left is the likelier way."""
        return self.left_probability >= 0.5

    def __str__(self) -> str:
        """The rule as a sentence; weak terms are counted, and their sum is put on the other side."""
        shown, rest = self.terms[:_N_SHOWN], self.terms[_N_SHOWN:]
        words = " + ".join(f"{term.coefficient:.3g} * {term.name}" for term in shown).replace("+ -", "- ")
        score = sum(term.coefficient * term.value for term in shown)
        limit = self.threshold - sum(term.coefficient * term.value for term in rest)
        others = f" ({len(rest)} weaker terms counted in)" if rest else ""
        share = self.left_probability if self.goes_left else 1 - self.left_probability
        way = "left" if self.goes_left else "right"
        sure = "surely" if share == 1 else f"with probability {share:.2f}"
        sign = ">=" if score >= limit else "<"
        if not self.terms:
            return f"looks at no column: goes {way} {sure}"
        return f"{words} = {score:.4g} {sign} {limit:.4g}{others}: goes {way} {sure}"


def split_rule(
    program: Program,
    encoding: str,
    weight: np.ndarray,
    bias: float,
    gamma: float,
    base: np.ndarray,
    left_probability: float,
) -> SplitRule:
    """Make a rule of one split (weights [p] of scaled features, and bias) for one row of the base matrix [q]."""
    features = program.encodings[encoding]
    constant = float(bias)
    terms = []
    for f in np.flatnonzero(weight).tolist():
        source = program.base[features.source[f]]
        coefficient = float(weight[f]) * float(features.scale[f])
        r = _function(features, f, float(base[features.source[f]]))
        constant -= coefficient * float(features.mean[f])
        strength = abs(coefficient * (r - float(features.mean[f])))
        value = r
        if features.kind[f] == FeatureKind.LINEAR and isinstance(source, Value):
            # The base matrix holds (x - offset) / unit.
            coefficient /= source.unit
            constant -= coefficient * source.offset
            value = r * source.unit + source.offset
        terms.append(Term(feature_name(program, encoding, f), coefficient, value, strength))
    terms.sort(key=lambda term: -term.strength)
    return SplitRule(tuple(terms), -constant, gamma / 2, left_probability)


def feature_name(program: Program, encoding: str, feature: int) -> str:
    """What one input of the trees says, in words.

    Examples
    --------
    >>> from softwood import TreeEnsembleRegressor
    >>> table = [[1, "red"], [2.5, "blue"], [3, None]]
    >>> regressor = TreeEnsembleRegressor(n_members=1, max_epochs=1, validation_fraction=None).fit(table, [1, 2, 3])
    >>> [feature_name(regressor.model_.program, "lookup", feature) for feature in range(5)]
    ['[x0 from 1 to 2.5]', '[x0 from 2.5 to 3]', "[x1 is 'blue']", "[x1 is 'red']", '[x1 is missing]']
    """
    features = program.encodings[encoding]
    source, kind = program.base[features.source[feature]], FeatureKind(features.kind[feature])
    column = program.columns[source.column]
    name = _source_name(source, column.name)
    start, rate = float(features.start[feature]), float(features.rate[feature])
    if kind is FeatureKind.MISSING:
        return f"[{name} is missing]"
    if kind is FeatureKind.LEVEL:
        return f"[{name} is {_level(source, start)}]"
    if kind is FeatureKind.RAMP:
        low, high = start, start + 1 / rate
        if isinstance(source, Value):
            low, high = (value * source.unit + source.offset for value in (low, high))
        words = _date if isinstance(source, Value) and column.kind == "datetime" else partial(_number, source)
        return f"[{name} from {words(low)} to {words(high)}]"
    return f"clipped({name})" if kind is FeatureKind.SOFT_CLIP else name


def _source_name(source: BaseColumn, name: str) -> str:
    if isinstance(source, CalendarPart):
        return f"{source.unit.value} of {name}"
    return f"mean target of {name}'s category" if isinstance(source, TargetMean) else name


def _level(source: BaseColumn, start: float) -> str:
    if not isinstance(source, Code):
        return _number(source, start)
    level = source.levels[int(start)]
    return "missing" if level is None else repr(level)


def _date(seconds: float) -> str:
    """A day of the calendar; thresholds may lie beyond the years 1 to 9999, which are its ends."""
    held = min(max(seconds, _FIRST_SECOND), _LAST_SECOND)
    return datetime.fromtimestamp(held, timezone.utc).strftime("%Y-%m-%d")


def _number(source: BaseColumn, value: float) -> str:
    """A number, or the name of a day where it stands for one."""
    if isinstance(source, CalendarPart) and source.unit is CalendarUnit.WEEKDAY:
        day = round(value)
        if day in range(7) and abs(value - day) < 1e-3:  # ends of ramps are rounded
            return _WEEKDAYS[day]
    return f"{value:.4g}"


def _function(features: Encoding, f: int, x: float) -> float:
    """r(x) of one feature; its mean where x is missing."""
    kind = FeatureKind(features.kind[f])
    if np.isnan(x) and kind is not FeatureKind.MISSING:
        return float(features.mean[f])
    return float(feature_function(kind, x, float(features.start[f]), float(features.rate[f])))
