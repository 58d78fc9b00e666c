"""A split of a tree in, a rule in the table's own columns and units out.

A split weighs many inputs, each a scaled function of one column. `split_rule` undoes the scaling (and batch norm, which
is folded into the weights before): the split's t becomes a sum of terms in units of the table, compared with one
threshold. A number of the standard encoding is a plain term such as ``0.31 * age``; other kinds of inputs are flags
("colour is 'red'") or shares of a range ("age between 20 and 30, as a share").
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np

from softwood.tabular.columns import Preprocessor
from softwood.tabular.features import LEVEL, LINEAR, MISSING, RAMP, SOFT_CLIP, Encoding

_N_SHOWN = 4
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
    preprocessor: Preprocessor,
    encoding: str,
    weight: np.ndarray,
    bias: float,
    gamma: float,
    base: np.ndarray,
    left_probability: float,
) -> SplitRule:
    """Make a rule of one split (folded weights [p] and bias) for one row of the base matrix [q]."""
    features = preprocessor.encodings[encoding]
    sources = preprocessor.base_columns()
    constant = float(bias)
    terms = []
    for f in np.flatnonzero(weight).tolist():
        column = preprocessor.columns[sources[features.source[f]][0]]
        kind, coefficient = int(features.kind[f]), float(weight[f]) * float(features.scale[f])
        r = _function(features, f, float(base[features.source[f]]))
        constant -= coefficient * float(features.mean[f])
        strength = abs(coefficient * (r - float(features.mean[f])))
        value = r
        if kind == LINEAR and sources[features.source[f]][1] == "value":
            # The base matrix holds (x - offset) / unit.
            coefficient /= column.unit
            constant -= coefficient * column.offset
            value = r * column.unit + column.offset
        terms.append(Term(feature_name(preprocessor, encoding, f), coefficient, value, strength))
    terms.sort(key=lambda term: -term.strength)
    return SplitRule(tuple(terms), -constant, gamma / 2, left_probability)


def feature_name(preprocessor: Preprocessor, encoding: str, feature: int) -> str:
    """What one input of the trees says, in words.

    Examples
    --------
    >>> from softwood.tabular.columns import learn_columns
    >>> from softwood.tabular.table import read_table
    >>> table = read_table([[1, "red"], [2.5, "blue"], [3, None]])
    >>> preprocessor = learn_columns(table)
    >>> preprocessor.learn_encodings(preprocessor.read(table))
    >>> [feature_name(preprocessor, "standard", feature) for feature in range(4)]
    ['x0', "[x1 is 'blue']", "[x1 is 'red']", '[x1 is missing]']
    """
    features = preprocessor.encodings[encoding]
    j, part = preprocessor.base_columns()[features.source[feature]]
    column, kind = preprocessor.columns[j], int(features.kind[feature])
    name = column.name
    if part in ("month", "weekday", "hour"):
        name = f"{part} of {name}"
    elif part.startswith("target "):
        name = f"mean target of {name}'s category"
    start, rate = float(features.start[feature]), float(features.rate[feature])
    if kind == LEVEL:
        level = column.levels[int(start)] if part == "code" and column.levels is not None else _part(start, part)
        return f"[{name} is {'missing' if level is None else repr(level) if part == 'code' else level}]"
    if kind == MISSING:
        return f"[{name} is missing]"
    in_units = [
        value * column.unit + column.offset if part == "value" else value for value in (start, start + 1 / rate)
    ]
    if kind == RAMP:
        is_date = part == "value" and column.kind == "datetime"
        low, high = (_date(value) if is_date else _part(value, part) for value in in_units)
        return f"[{name} from {low} to {high}]"
    if kind == SOFT_CLIP:
        return f"clipped({name})"
    return name


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d")


def _part(value: float, part: str) -> str:
    """A number, or the name of a day where it stands for one."""
    return _WEEKDAYS[int(value)] if part == "weekday" and value in range(7) else f"{value:.4g}"


def _function(features: Encoding, f: int, x: float) -> float:
    """r(x) of one feature, as `softwood.tabular.features` defines it; its mean where x is missing."""
    kind, start, rate = int(features.kind[f]), float(features.start[f]), float(features.rate[f])
    if kind == MISSING:
        return float(np.isnan(x))
    if np.isnan(x):
        return float(features.mean[f])
    if kind == LINEAR:
        return x
    if kind == LEVEL:
        return float(x == start)
    z = float(np.clip((x - start) * rate, -1e6, 1e6))
    return float(np.clip(z, 0, 1)) if kind == RAMP else z / float(np.sqrt(1 + (z / 3) ** 2))
