"""A split of a tree in, a rule in the table's own columns and units out.

A split is a sum of terms that is compared with one threshold. Where it sums up tables, each table is one term, the
effect of its column, with words on the range of the effect: ``age (from -0.3 at 20 to 0.8 at 60)``.

A linear split weighs many inputs, each a scaled function of one column. `split_rule` undoes the scaling (and batch
norm, which is folded into the weights before). A number of the standard encoding is a plain term such as
``0.31 * age``; other kinds of inputs are flags ("colour is 'red'") or shares of a range ("age between 20 and 30, as a
share").
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial

import numpy as np

from softwood.model.lookup_trees import LookupTrees
from softwood.model.model import Model
from softwood.model.program import Program
from softwood.tabular.encoding.base_columns import BaseColumn, CalendarPart, CalendarUnit, Code, TargetMean, Value
from softwood.tabular.encoding.features import Encoding, FeatureKind, feature_function
from softwood.tabular.encoding.lookups import ONE_FRACTION, Lookup
from softwood.tabular.reading.table import DATES

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
    shape : str
        Of a table, whose coefficient is 1 and whose value is its effect: where the effect is lowest and highest.
    """

    name: str
    coefficient: float
    value: float
    strength: float
    shape: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.shape})" if self.shape else f"{self.coefficient:.3g} * {self.name}"


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
        words = " + ".join(map(str, shown)).replace("+ -", "- ")
        score = sum(term.coefficient * term.value for term in shown)
        limit = self.threshold - sum(term.coefficient * term.value for term in rest)
        others = f" ({len(rest)} weaker terms counted in)" if rest else ""
        share = self.left_probability if self.goes_left else 1 - self.left_probability
        way = "left" if self.goes_left else "right"
        goes = f"always goes {way}" if share == 1 else f"goes {way} with probability {share:.2f}"
        sign = ">=" if score >= limit else "<"
        if not self.terms:
            return f"uses no column: {goes}"
        return f"{words} = {score:.4g} {sign} {limit:.4g}{others}: {goes}"


def split_rule(
    model: Model, member: int, tree: int, split: int, base: np.ndarray, left_probability: float
) -> SplitRule:
    """Make a rule of one split for one row of the base matrix [q]."""
    trees = model.members[member].trees
    if isinstance(trees, LookupTrees):
        constant = float(trees.split_bias[tree, split])
        terms = _table_terms(model.program, trees, tree * trees.split_bias.shape[1] + split, base)
    else:
        split_weight, split_bias, _ = trees.folded()
        bias = 0.0 if split_bias is None else float(split_bias[tree, split])
        weight = split_weight[tree, split]
        constant, terms = _linear_terms(model, model.members[member].encoding, weight, bias, base)
    terms.sort(key=lambda term: -term.strength)
    return SplitRule(tuple(terms), -constant, trees.gamma / 2, left_probability)


def _table_terms(program: Program, trees: LookupTrees, split: int, base: np.ndarray) -> list[Term]:
    begin = trees.value_begin(program.lookups)
    terms = []
    for i in range(*trees.table_begin[split : split + 2].tolist()):
        lookup = program.lookups[trees.table_column[i]]
        values = trees.values[begin[i] : begin[i + 1]].astype(np.float64) * trees.step
        entry, fraction = lookup.read(base[None])
        share = float(fraction[0]) / ONE_FRACTION
        effect = float(values[entry[0]] * (1 - share) + (values[entry[0] + 1] * share if share else 0.0))
        source = program.base[lookup.base_column]
        name = _source_name(source, program.columns[source.column].name)
        shape = table_in_words(program, lookup, values)
        terms.append(Term(name, 1.0, effect, abs(effect - float(values[:-1].mean())), shape))
    return terms


def table_in_words(program: Program, lookup: Lookup, values: np.ndarray) -> str:
    """Where the values [n_entries] of a table are lowest and highest, the smaller place first."""
    known = values[:-1]
    ends = sorted({int(known.argmin()), int(known.argmax())})
    source = program.base[lookup.base_column]
    words = [f"{known[e]:.3g} at {_entry_name(program, lookup, source, e)}" for e in ends]
    shape = f"from {words[0]} to {words[1]}" if len(words) == 2 else f"{known[0]:.3g}"
    is_apart = not known.min() <= values[-1] <= known.max()
    return shape + (f", {values[-1]:.3g} where missing" if is_apart and len(lookup.knots) else "")


def _entry_name(program: Program, lookup: Lookup, source: BaseColumn, entry: int) -> str:
    if not len(lookup.knots):
        return _level(source, float(entry))
    value = float(lookup.knots[entry])
    if not isinstance(source, Value):
        return _number(source, value)
    value = value * source.unit + source.offset
    return _date(value) if program.columns[source.column].kind in DATES else _number(source, value)


def _linear_terms(
    model: Model, encoding: str, weight: np.ndarray, bias: float, base: np.ndarray
) -> tuple[float, list[Term]]:
    """Constant and terms of weights [p] of scaled features, and a bias."""
    program, features = model.program, model.program.encodings[encoding]
    constant = bias
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
    return constant, terms


def feature_name(program: Program, encoding: str, feature: int) -> str:
    """What one input of the trees says, in words.

    Examples
    --------
    >>> from softwood import TreeEnsembleRegressor
    >>> table = [[1, "red"], [2.5, "blue"], [3, None]]
    >>> settings = {"n_members": 1, "max_epochs": 1, "validation_fraction": None, "encoding": "piecewise"}
    >>> regressor = TreeEnsembleRegressor(**settings).fit(table, [1, 2, 3])
    >>> [feature_name(regressor.model_.program, "piecewise", feature) for feature in range(1, 6)]
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
        words = _date if isinstance(source, Value) and column.kind in DATES else partial(_number, source)
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
