"""How predictions move with one column: the mean prediction if every row had the same value there.

It comes with a histogram of the column and with the mean target of rows with similar values. Mean prediction and mean
target differ where other columns vary together with this one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from softwood.cli.metrics import calibration_points, mean_interval
from softwood.model.model import Model
from softwood.tabular.encoding.base_columns import read_base
from softwood.tabular.reading.table import DATES, Table

N_BACKGROUND_ROWS = 200
_N_BINS = 20
_MAX_VALUES = 12  # a number with at most this many values is shown value by value
_MAX_LEVELS = 12
_MIN_ROWS = 10  # of a level whose mean target is shown


@dataclass(frozen=True, eq=False)
class Effect:
    """The effect of one column at g values.

    Attributes
    ----------
    column : str
    kind : {"number", "date", "level"}
        Levels are categories, truth values, and numbers of few values.
    values : ndarray [g]
        Numbers; of a date, seconds since 1970; of levels, 0 to g - 1.
    labels : list of str
        Of levels; otherwise empty.
    mean_prediction : ndarray [g, outputs]
    edges : ndarray [bins + 1]
        Of the histogram; of levels, empty: each is a bin of its own.
    rows : ndarray [bins]
    truth : ndarray [groups, 5]
        Groups of rows with similar values: mean value, mean target with its interval of 95%, number of rows; see
        `softwood.cli.metrics.calibration_points`. Empty where the target is one of several classes.
    n_missing : int
        Rows whose cell is missing; of categories these are a level.
    """

    column: str
    kind: str
    values: NDArray[np.float64]
    labels: list[str]
    mean_prediction: NDArray[np.float64]
    edges: NDArray[np.float64]
    rows: NDArray[np.int64]
    truth: NDArray[np.float64]
    n_missing: int = 0


def column_effect(model: Model, table: Table, column: int, target: NDArray[np.float64] | None) -> Effect | None:
    """The effect of a column on the rows of a table; None if the column holds nothing.

    Parameters
    ----------
    model : Model
    table : Table
        Read by ``model.program.read``.
    column : int
    target : ndarray [n], optional
        Values of a regression, or whether a row is of the second of two classes.

    Examples
    --------
    >>> from softwood import TreeEnsembleRegressor
    >>> X = np.random.default_rng(0).uniform(size=(300, 2))
    >>> model = TreeEnsembleRegressor(n_members=1, random_state=0).fit(X, 5 * X[:, 0]).model_
    >>> effect = column_effect(model, model.program.read(X), 0, 5 * X[:, 0])
    >>> bool(effect.mean_prediction[-1, 0] - effect.mean_prediction[0, 0] > 3)
    True
    """
    kind = table.kinds[column]
    if kind == "category":
        return _of_categories(model, table, column, target)
    numbers = np.asarray(table.numbers(column), dtype=np.float64)
    present = numbers[np.isfinite(numbers)]
    if not len(present):
        return None
    distinct = np.unique(present)
    if len(distinct) <= _MAX_VALUES and kind not in DATES:
        labels = [str(bool(value)).lower() if kind == "boolean" else f"{value:g}" for value in distinct]
        places = np.where(np.isfinite(numbers), np.searchsorted(distinct, numbers), -1)
        return _of_levels(model, table, column, target, labels, distinct, places)
    low, high = np.quantile(present, [0.01, 0.99])
    if low == high:
        low, high = distinct[0], distinct[-1]
    edges = np.linspace(low, high, _N_BINS + 1)
    return Effect(
        model.column_names[column],
        "date" if kind in DATES else "number",
        edges,
        [],
        _mean_predictions(model, table, column, edges),
        edges,
        np.histogram(present, edges)[0],
        _truth(numbers, (numbers >= low) & (numbers <= high), target),
        n_missing=len(numbers) - len(present),
    )


def _of_categories(model: Model, table: Table, column: int, target: NDArray[np.float64] | None) -> Effect | None:
    """The effect of the most frequent levels of a category; a missing cell is a level."""
    code = model.program.codes.get(column)
    if code is None:
        return None
    labels = ["missing" if label is None else label for label in table.labels(column)]
    levels = [level for level, _ in Counter(labels).most_common(_MAX_LEVELS)]
    cells = code.encode([None if level == "missing" else level for level in levels])
    place_of = {level: place for place, level in enumerate(levels)}
    places = np.array([place_of.get(label, -1) for label in labels])
    return _of_levels(model, table, column, target, levels, cells, places)


def _of_levels(
    model: Model,
    table: Table,
    column: int,
    target: NDArray[np.float64] | None,
    labels: list[str],
    cells: NDArray[np.float64],
    places: NDArray[np.int64],
) -> Effect:
    """The effect of levels [g] that are given by their cells; `places` [n] is the level of each row, or -1."""
    return Effect(
        model.column_names[column],
        "level",
        np.arange(len(labels), dtype=np.float64),
        labels,
        _mean_predictions(model, table, column, cells),
        np.empty(0),
        np.bincount(places[places >= 0], minlength=len(labels)),
        _truth_of_levels(places, len(labels), target),
    )


def _mean_predictions(model: Model, table: Table, column: int, cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean predictions [g, outputs] over some rows, with the cells [g] of the column replaced by each in turn."""
    program = model.program
    some = table.take(np.unique(np.linspace(0, table.n_rows - 1, N_BACKGROUND_ROWS).astype(int)))
    base = read_base(some, program.base, program.column_names).copy()
    replaced = [b for b, source in enumerate(program.base) if source.column == column]
    predictor, means = model.predictor(), []
    for cell in cells:
        for b in replaced:
            base[:, b] = program.base[b].read(np.array([cell]))
        means.append(program.head.predictions(predictor.base_scores(base)).reshape(len(base), -1).mean(axis=0))
    return np.array(means)


def _truth(
    values: NDArray[np.float64], shown: NDArray[np.bool_], target: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Mean target of groups of similar values, over the rows that are shown."""
    return np.empty((0, 5)) if target is None else calibration_points(target[shown], values[shown])


def _truth_of_levels(
    places: NDArray[np.int64], n_levels: int, target: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Mean target of each level with enough rows."""
    if target is None:
        return np.empty((0, 5))
    is_share = bool(np.isin(target, (0, 1)).all())
    found = []
    for place in range(n_levels):
        values = target[places == place]
        if len(values) >= _MIN_ROWS:
            found.append([place, *mean_interval(values, is_share=is_share), len(values)])
    return np.array(found).reshape(-1, 5)
