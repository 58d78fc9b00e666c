"""Which columns a model may do without: at most `max_columns` are kept, those whose splits decide most.

Of a wide sparse matrix, `softwood.tabular.screening` leaves a few hundred columns to begin with.

The constraint is that on the number of groups, where a group is all tables that read one column of the table, in every
split and member (a group L0 constraint, as in Ibrahim, Behdin and Mazumder's Skinny Trees, NeurIPS 2023). It is met by
hard thresholding in rounds: a few members are trained, groups are compared by what they decide on training rows
(`softwood.model.importance`), and the smallest ones are set to zero permanently. Unlike in the reference, each round
trains from the start: splits see a random part of the columns, and those whose columns are gone get others.

Input: a table and its targets. Output: numbers of columns. The model itself is trained by `softwood.tabular.fit`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from softwood.model.model import Model
from softwood.tabular.committee import RunOptions
from softwood.tabular.encoding.monotone import restrict_monotone
from softwood.tabular.fit import FitResult, train, train_on_piece
from softwood.tabular.reading.table import Table
from softwood.tabular.screening import screen_columns
from softwood.tabular.target import Problem

# Members per round, and trees of each at least: with fewer, chance decides which columns splits may use. A round keeps
# this share of the columns at least, and the last one `max_columns`.
_N_MEMBERS, _N_TREES, _KEPT_SHARE = 2, 64, 1 / 3
# Rows beyond this many say little more about which columns matter.
_MAX_ROWS = 20_000
# Share of a time limit that all rounds together may take.
_TIME_SHARE = 0.3

Evaluation = Sequence[tuple[Table, Problem]]


def train_on_selected(
    table: Table,
    problem: Problem,
    params: Mapping[str, Any],
    run: RunOptions,
    *,
    validation: Evaluation = (),
    previous: Model | None = None,
) -> FitResult:
    """What `softwood.tabular.fit.train` does, with at most `params["max_columns"]` columns of the table.

    If training continues from a model, that model's columns are kept.
    """
    begin = time.monotonic()
    screened = screen_columns(table, problem) if previous is None else []
    if previous is not None or not _is_too_wide(table, screened, params):
        fitted = train(table, problem, params, run, validation=validation, previous=previous)
        return fitted if previous is None else _part_of(previous.given_columns, fitted)
    selected = select_columns(table, problem, params, run, present=screened, validation=validation)
    params = params_for_columns(params, _names(table), selected)
    if params["time_limit"] is not None:
        params["time_limit"] = max(1e-9, params["time_limit"] - (time.monotonic() - begin))
    some = [(_some_columns(other, selected), judged) for other, judged in validation]
    return _part_of(_names(table), train(_some_columns(table, selected), problem, params, run, validation=some))


def train_on_selected_piece(
    table: Table, problem: Problem, params: Mapping[str, Any], run: RunOptions, *, previous: FitResult | None
) -> FitResult:
    """What `softwood.tabular.fit.train_on_piece` does; the first piece decides which columns are kept."""
    screened = screen_columns(table, problem) if previous is None else []
    if previous is not None or not _is_too_wide(table, screened, params):
        fitted = train_on_piece(table, problem, params, run, previous=previous)
        return fitted if previous is None else _part_of(previous.model.given_columns, fitted)
    selected = select_columns(table, problem, params, run, present=screened)
    params = params_for_columns(params, _names(table), selected)
    return _part_of(_names(table), train_on_piece(_some_columns(table, selected), problem, params, run, previous=None))


def select_columns(
    table: Table,
    problem: Problem,
    params: Mapping[str, Any],
    run: RunOptions,
    *,
    present: list[int],
    validation: Evaluation = (),
) -> list[int]:
    """Numbers, rising, of the `params["max_columns"]` columns of `present` whose splits decide most; all if None."""
    limit = params["time_limit"]
    deadline = np.inf if limit is None else time.monotonic() + _TIME_SHARE * limit
    if table.n_rows > _MAX_ROWS:
        rows = np.sort(np.random.default_rng(run.seed).choice(table.n_rows, _MAX_ROWS, replace=False))
        table, problem = table.take(rows), problem.take(rows)
    while params["max_columns"] is not None and len(present) > params["max_columns"]:
        n_kept = max(params["max_columns"], int(np.ceil(_KEPT_SHARE * len(present))))
        changes: dict[str, Any] = {"n_members": _N_MEMBERS, "recipe": "softwood", "encoding": "auto", "verbose": 0}
        changes |= {
            "callbacks": None,
            "compact": False,
            "batch_norm": False,
            "l2": 0.0,
            "n_trees": max(_N_TREES, params["n_trees"]),
        }
        if limit is not None:
            changes["time_limit"] = max(1e-9, deadline - time.monotonic())
        found = train(
            _some_columns(table, present),
            problem,
            {**params_for_columns(params, _names(table), present), **changes},
            replace(run, checkpoint=None, resume=False),
            validation=[(_some_columns(other, present), judged) for other, judged in validation],
        )
        if any(member.stopped_by == "interrupt" for member in found.trained):
            raise KeyboardInterrupt("Training was interrupted while columns were being selected; there is no model.")
        order = np.argsort(-found.model.importances, kind="stable")
        present = sorted(present[j] for j in order[:n_kept].tolist())
    return present


def _is_too_wide(table: Table, screened: list[int], params: Mapping[str, Any]) -> bool:
    return len(screened) < table.n_columns or (params["max_columns"] or np.inf) < len(screened)


def params_for_columns(params: Mapping[str, Any], names: Sequence[str], columns: Sequence[int]) -> dict[str, Any]:
    """Parameters for a table that has some of the named columns only."""
    return {**params, "monotonic_cst": restrict_monotone(params["monotonic_cst"], names, columns)}


def _some_columns(table: Table, columns: Sequence[int]) -> Table:
    """Some columns of a table, under the names that they have in the whole table."""
    return replace(table.select(columns), names=tuple(table.name(j) for j in columns))


def _names(table: Table) -> tuple[str, ...]:
    return tuple(table.name(j) for j in range(table.n_columns))


def _part_of(given_columns: tuple[str, ...], fitted: FitResult) -> FitResult:
    """The same, with a model that knows which columns it was chosen from."""
    fitted.model.given_columns = given_columns
    return fitted
