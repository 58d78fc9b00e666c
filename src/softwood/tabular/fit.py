"""A table and its targets in, a fitted model out: how the estimators train.

Each member holds out a different fold to choose its best epoch, and the raw scores of all members are averaged. Left to
others: what "auto" means (`softwood.training.rules`), checks of labels and scikit-learn's interface
(`softwood.estimators`), and the loop over epochs (`softwood.training`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.model.importance import N_ROWS as N_IMPORTANCE_ROWS
from softwood.model.linear_form import linear_form
from softwood.model.model import Model
from softwood.model.parts import Head, ModelMember, Trees
from softwood.tabular.committee import (
    MemberFits,
    RunOptions,
    are_alike,
    choose_way,
    narrow_members,
    train_members,
)
from softwood.tabular.encoding.codes import find_codes
from softwood.tabular.encoding.columns import Preprocessor, learn_columns, merge_rows
from softwood.tabular.encoding.features import ENCODING_NAMES, LOOKUP
from softwood.tabular.encoding.lookups import Lookups, fit_lookups
from softwood.tabular.encoding.monotone import monotone_signs, refuse_monotone
from softwood.tabular.evaluation import join_evaluation_sets, make_judge
from softwood.tabular.reading.table import Table, resolve_kinds
from softwood.tabular.target import Problem
from softwood.training import EpochRecord, MemberData, Samples, TrainedMember, TrainingConfig, fit_members, rules
from softwood.training.hyperparameters import resolve_auto
from softwood.training.judge import Metric, resolve_metric
from softwood.training.progress import Callbacks, Progress, check_callbacks

# A fold with fewer rows cannot choose the best epoch.
_MIN_HELD_OUT_ROWS = 2


@dataclass(frozen=True, eq=False)
class FitResult:
    """Outcome of one call.

    Attributes
    ----------
    model : Model
    trained : list of TrainedMember
        The members, with what a later call needs to continue.
    chosen : dict
        Value chosen for each hyperparameter that was "auto".
    oof_scores : ndarray [n, k], optional
        Raw scores of each row of the table by the members that held it out; NaN where none did.
    """

    model: Model
    trained: list[TrainedMember]
    chosen: dict[str, Any] = field(default_factory=dict)
    oof_scores: NDArray[np.float64] | None = None


def training_config(params: Mapping[str, Any], head: Head, n_rows: int) -> TrainingConfig:
    """Translate checked constructor parameters of an estimator, without any "auto", for members of `n_rows` rows."""
    settings = {f.name: params[f.name] for f in fields(TrainingConfig) if f.name in params}
    settings |= {"loss": head.loss, "schedule": "constant"}
    if params["recipe"] == "paper":
        return TrainingConfig(**settings | {"bias": False, "warmup": 0.0})
    averages = {"warmup": rules.warmup(n_rows, params), "ema": rules.average_decay(n_rows, params)}
    return TrainingConfig(**settings | averages)


def deal_folds(y: np.ndarray, n_folds: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Fold of each row [n]: of `n_folds` consecutive rows in the order of y, each goes to a different fold.

    Classes are thus spread evenly, and so are sets of labels and the values of a regression's (first) target.
    """
    n = len(y)
    order = np.lexsort((rng.random(n), *reversed(y.reshape(n, -1).T)))
    n_groups = -(-n // n_folds)
    dealt = np.argsort(rng.random((n_groups, n_folds)), axis=1).ravel()[:n]
    folds = np.empty(n, dtype=np.int64)
    folds[order] = dealt
    return folds


def train(
    table: Table,
    problem: Problem,
    params: Mapping[str, Any],
    run: RunOptions,
    *,
    validation: Sequence[tuple[Table, Problem]] = (),
    previous: Model | None = None,
) -> FitResult:
    """Fit a model.

    Parameters
    ----------
    table, problem
        Training rows and their targets.
    params : mapping
        Checked constructor parameters of an estimator.
    run : RunOptions
    validation : sequence of (Table, Problem)
        Evaluation sets, the last of which decides the best epoch of every member; without any, each member holds out a
        fold of the training rows.
    previous : Model, optional
        Continue from this model and keep its preprocessing; lookups become linear splits.
    """
    previous = None if previous is None else linear_form(previous)
    metric, functions = resolve_metric(params["eval_metric"]), check_callbacks(params["callbacks"])
    deadline = None if params["time_limit"] is None else time.monotonic() + params["time_limit"]
    rng = np.random.default_rng(run.seed)
    n_given, kept = table.n_rows, np.flatnonzero(problem.weight)
    if len(kept) < n_given:
        table, problem = table.take(kept), problem.take(kept)
    read = _read_rows(table, problem, params, previous)
    preprocessor, base, rows, weight = read.preprocessor, read.base, read.rows, read.weight
    facts = problem.facts(len(rows), base.shape[1])
    given, params = params, resolve_auto(params, facts)
    if previous is not None:
        refuse_monotone(params["monotonic_cst"], "warm_start")
        params = _grown(params, given, previous)
    encodings, lookups, levels = _encodings(params, previous), None, None
    if previous is None:
        lookups, levels = _learn_inputs(preprocessor, base, problem, params, encodings, rows, weight)
    head = problem.fit_head(rows, weight) if previous is None else _kept_head(previous.head, problem, params)
    members, other = _deal_members(read, problem, head, params, encodings, lookups, validation, metric, previous, rng)
    by_level = None if levels is None else _reading(levels, members, base, other)
    config = training_config(params, head, members[0].train.n_rows)
    weak_l1 = rules.weak_l1(facts, params) if given["l1"] == "auto" else None
    usual = "R²" if head.task == "regression" else "accuracy"
    shown = usual if metric is None else metric.name
    with Progress(config.max_epochs, shown) if params["verbose"] else nullcontext() as progress:
        callbacks = Callbacks(config.max_epochs, functions, progress)
        fits = MemberFits(run, callbacks, deadline)
        way = choose_way(fits, config, members, weak_l1=weak_l1, by_level=by_level)
        if way.reads_levels and levels is not None:
            preprocessor.use(levels)
        are_enough = None
        if given["n_members"] == "auto" and previous is None and rules.may_stop_adding(facts):
            held_out = members[0].validation
            are_enough = partial(_are_enough, preprocessor, encodings, head, other, held_out, run.n_threads)
        trained = narrow_members(fits, way, train_members(fits, way, are_enough), params["max_reach"])
    model = assemble(preprocessor, encodings[: len(trained)], trained, head, base[rows[:N_IMPORTANCE_ROWS]])
    chosen = {name: params[name] for name in params if given[name] is not params[name]}
    if given["n_members"] == "auto":
        chosen["n_members"] = len(trained)
    oof_scores = None
    if not validation and members[0].validation is not None:
        oof_scores = np.full((n_given, model.n_outputs), np.nan)
        oof_scores[kept] = _out_of_fold(members, trained, len(base))[read.standing_for]
    if read.codes:
        chosen["column_kinds"] = {**(params["column_kinds"] or {}), **dict.fromkeys(read.codes, "category")}
    return FitResult(model, trained, chosen | way.changes, oof_scores)


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of a table as they are trained on.

    Attributes
    ----------
    preprocessor : Preprocessor
    base : ndarray [n, q]
        The base matrix.
    rows : ndarray
        Training rows in the order of their contents; of equal ones, the first stands for all.
    weight : ndarray
        Of each of them.
    standing_for : ndarray [n]
        Which row stands for each.
    codes : list of str
        Names of the columns of numbers that are read as categories.
    """

    preprocessor: Preprocessor
    base: NDArray[np.float32]
    rows: NDArray[np.int64]
    weight: NDArray[np.float64]
    standing_for: NDArray[np.int64]
    codes: list[str]


def _read_rows(table: Table, problem: Problem, params: Mapping[str, Any], previous: Model | None) -> _Rows:
    """Learn what the columns hold, by a previous model or anew, and read the table."""
    if previous is not None:
        return _rows(table, problem, previous.preprocessor)
    read = _rows(table, problem, learn_columns(table, n_target_columns=problem.n_target_columns))
    codes = code_columns(table, problem, params, read.rows)
    if not codes:
        return read
    kinds = ["category" if j in codes else kind for j, kind in enumerate(table.kinds)]
    table = replace(table, kinds=tuple(kinds))
    preprocessor = learn_columns(table, n_target_columns=problem.n_target_columns)
    return _rows(table, problem, preprocessor, [table.name(j) for j in codes])


def _rows(table: Table, problem: Problem, preprocessor: Preprocessor, codes: Sequence[str] = ()) -> _Rows:
    base = preprocessor.read(table)
    rows, weight, count, standing_for = merge_rows(base, problem.row_targets(), problem.weight)
    return _Rows(
        preprocessor, base, np.repeat(rows, count), np.repeat(weight / count, count), standing_for, list(codes)
    )


def _deal_members(
    read: _Rows,
    problem: Problem,
    head: Head,
    params: Mapping[str, Any],
    encodings: Sequence[str],
    lookups: Lookups | None,
    validation: Sequence[tuple[Table, Problem]],
    metric: Metric | None,
    previous: Model | None,
    rng: np.random.Generator,
) -> tuple[list[MemberData], NDArray[np.float32]]:
    """What each member is trained on and judged by, and the base matrix that has its held-out rows."""
    base, rows, y = read.base, read.rows, problem.scaled_y(head)
    weight = _scatter(read.weight, rows, len(base))
    data = encode(read.preprocessor, lookups, base, y, weight, problem.score_offset(head))
    other, judged, ends = base, problem, [0]
    if validation:
        other, judged, ends = join_evaluation_sets(read.preprocessor, validation)
        of_judged = judged.scaled_y(head), judged.weight, judged.score_offset(head)
        held_out = encode(read.preprocessor, lookups, other, *of_judged)
        splits: list[Split] = [(replace(data[name], rows=rows), held_out[name]) for name in encodings]
    else:
        splits = _hold_out(data, encodings, y, rows, params["validation_fraction"], rng)
    members = _members(splits, starting_score(params, problem, head, y, rows, read.weight), rng, previous)
    if metric is not None or len(validation) > 1:
        members = [replace(member, judge=make_judge(member, judged, head, metric, ends)) for member in members]
    return members, other


def _learn_inputs(
    preprocessor: Preprocessor,
    base: NDArray[np.float32],
    problem: Problem,
    params: Mapping[str, Any],
    encodings: Sequence[str],
    rows: NDArray[np.int64],
    weight: NDArray[np.float64],
) -> tuple[Lookups | None, Lookups | None]:
    """Fit target means and the members' encodings; return lookups, and others by level where those are to be tried."""
    preprocessor.learn_targets(base, problem.target_columns(), rows)
    signs = monotone_signs(params["monotonic_cst"], preprocessor, problem.task, encodings)
    how: dict[str, Any] = {"n_bins": params["n_bins"], "rows": rows, "weight": weight, "signs": signs}
    lookups = preprocessor.learn_encodings(base, names=tuple(dict.fromkeys(encodings)), **how)
    facts = problem.facts(len(rows), base.shape[1])
    if lookups is None or not rules.tries_levels(facts, params, preprocessor.most_levels):
        return lookups, None
    return lookups, fit_lookups(base, preprocessor.roles(by_level=True), **how)


def code_columns(table: Table, problem: Problem, params: Mapping[str, Any], rows: NDArray[np.int64]) -> list[int]:
    """Columns of numbers to read as categories: none where the caller wants numbers as they are."""
    if params["recipe"] == "paper" or params["encoding"] != "auto" or params["monotonic_cst"] is not None:
        return []
    return find_codes(table, problem.target_columns(), rows, resolve_kinds(params["column_kinds"], table))


def _are_enough(
    preprocessor: Preprocessor,
    encodings: Sequence[str],
    head: Head,
    base: NDArray[np.float32],
    held_out: Samples | None,
    n_threads: int | None,
    two: Sequence[TrainedMember],
) -> bool:
    """Whether two members agree so well on held-out rows of the base matrix that others would add nothing."""
    if held_out is None:
        return False
    some = base if held_out.rows is None else base[held_out.rows]
    members = [ModelMember(name, member.trees) for name, member in zip(encodings, two, strict=False)]
    models = [Model(preprocessor, [member], head) for member in members]
    scores = [model.predictor().base_scores(some, n_threads=n_threads) for model in models]
    return are_alike(head.loss, scores, held_out, len(encodings))


def _reading(
    lookups: Lookups,
    members: Sequence[MemberData],
    base: NDArray[np.float32],
    validation_base: NDArray[np.float32],
) -> list[MemberData]:
    """The same members, whose trees read other lookups of the base matrices."""
    cells = lookups.cells(base)
    validation_cells = cells if validation_base is base else lookups.cells(validation_base)
    return [
        replace(
            member,
            train=replace(member.train, x=cells, encoding=lookups),
            validation=member.validation and replace(member.validation, x=validation_cells, encoding=lookups),
        )
        for member in members
    ]


def _out_of_fold(members: Sequence[MemberData], trained: Sequence[TrainedMember], n_rows: int) -> NDArray[np.float64]:
    """Mean raw score [n, k] of each row over the times that a member held it out; NaN where no member did."""
    k = trained[0].trees.leaf_weight.shape[2]
    total, n = np.zeros((n_rows, k)), np.zeros((n_rows, 1))
    for data, member in zip(members, trained, strict=False):  # fewer, if training was cut short
        held_out = None if data.validation is None else data.validation.rows
        if held_out is not None and member.validation_scores is not None:
            np.add.at(total, held_out, member.validation_scores)
            np.add.at(n, held_out, 1)
    return np.divide(total, n, out=np.full_like(total, np.nan), where=n > 0)


def _encodings(params: Mapping[str, Any], previous: Model | None = None) -> list[str]:
    """Which encoding each member reads: lookups, unless the caller chose another or what they do not support."""
    name = params["encoding"]
    if previous is not None:  # its members keep the encoding that they were trained with
        known = list(previous.preprocessor.encodings)
        kept = [member.encoding for member in previous.members]
        return kept + [name if name in known else known[0]] * (params["n_members"] - len(kept))
    if name == "auto":
        name = "piecewise" if params["batch_norm"] or params["l2"] else LOOKUP
    return [name] * params["n_members"]


def _kept_head(head: Head, problem: Problem, params: Mapping[str, Any]) -> Head:
    """The head of a model that goes on: its loss must stay, and files do not hold functions."""
    if isinstance(params["loss"], str) and params["loss"] == "auto":
        return head
    if callable(head.loss.name) and callable(problem.loss.name):
        return replace(head, loss=problem.loss)
    if problem.loss != head.loss:
        old, new = head.loss, problem.loss
        words = (old, new) if old.name == new.name else (repr(old.name), repr(new.name))
        raise ValueError(
            f"With warm_start or partial_fit the loss must stay as it is; the fitted model has {words[0]}, got "
            f"{words[1]}. Set it back, or start over with warm_start=False."
        )
    return head


def _grown(params: Mapping[str, Any], given: Mapping[str, Any], previous: Model) -> dict[str, Any]:
    """The parameters of a warm start, which may add trees and members to a model, but cannot take any away."""
    known, first = list(previous.preprocessor.encodings), previous.members[0].trees
    kept = {
        "batch_norm": (isinstance(first, Trees) and first.batch_norm is not None, bool(params["batch_norm"])),
        "encoding": (known[0], known[0] if params["encoding"] in ("auto", *known) else params["encoding"]),
    }
    for name, (value, got) in kept.items():
        if got != value:
            raise ValueError(
                f"With warm_start {name} must stay as it is; the fitted model has {value!r}, got {got!r}. Set it back, "
                "or start over with warm_start=False."
            )
    m, n_leaves, _ = previous.members[0].trees.leaf_weight.shape
    before = {"n_trees": m, "depth": n_leaves.bit_length() - 1, "n_members": len(previous.members)}
    params = dict(params)
    if given["n_members"] == "auto":
        params["n_members"] = before["n_members"]
    for name, value in before.items():
        if params[name] < value or (name == "depth" and params[name] != value):
            rule = "stay as it is" if name == "depth" else "not get smaller"
            raise ValueError(
                f"With warm_start {name} must {rule}; the fitted model has {value}, got {params[name]}. Set it back, "
                "or start over with warm_start=False."
            )
    return params


def train_on_piece(
    table: Table, problem: Problem, params: Mapping[str, Any], run: RunOptions, *, previous: FitResult | None
) -> FitResult:
    """Train for one pass over one piece of a longer table, at a constant learning rate and without held-out rows.

    The first piece decides the preprocessing. Memory is proportional to the size of the piece.
    """
    refuse_monotone(params["monotonic_cst"], "partial_fit")
    rng = np.random.default_rng(run.seed)
    rows = np.flatnonzero(problem.weight)
    params = resolve_auto(params, problem.facts(len(rows), table.n_columns))
    encodings = _encodings(params)
    if params["encoding"] == "auto":  # later pieces may lie outside of the first one's knots
        encodings = [ENCODING_NAMES[i % 2] for i in range(params["n_members"])]
    if previous is not None:
        preprocessor = previous.model.preprocessor
        base = preprocessor.read(table)
        encodings = [member.encoding for member in previous.model.members]
        m, n_leaves, _ = previous.trained[0].trees.leaf_weight.shape
        if previous.trained[0].optimizer_state is None:  # a taught ensemble has a shape of its own
            params = {**params, "n_trees": max(m, params["n_trees"]), "depth": n_leaves.bit_length() - 1}
    else:
        preprocessor = learn_columns(table.take(rows), n_target_columns=problem.n_target_columns)
        base = preprocessor.read(table)
        preprocessor.learn_targets(base, problem.target_columns(), rows)
        names = tuple(dict.fromkeys(encodings))
        weight = problem.weight[rows]
        n_bins = params["n_bins"]
        preprocessor.learn_encodings(base, names=names, n_bins=n_bins, rows=rows, weight=weight, is_piece=True)
    if previous is not None:
        head = _kept_head(previous.model.head, problem, params)
    else:
        head = problem.fit_head(rows, problem.weight[rows], is_piece=True)
    y = problem.scaled_y(head)
    data = encode(preprocessor, None, base, y, problem.weight)
    splits: list[Split] = [(replace(data[name], rows=rows), None) for name in encodings]
    offset = starting_score(params, problem, head, y, rows, problem.weight[rows])
    members = _members(splits, offset, rng, None if previous is None else previous.model)
    if previous is not None:
        members = [replace(member, start=start) for member, start in zip(members, previous.trained, strict=True)]
    config = replace(training_config(params, head, len(rows)), warmup=0.0, ema=None, max_epochs=1, patience=None)
    trained = fit_members(config, members, n_threads=run.n_threads, keep_state=True, accumulate=previous is not None)
    model = assemble(preprocessor, encodings, trained, head, base[rows[:N_IMPORTANCE_ROWS]])
    if previous is not None:
        model.history = _append(previous.model.history, model.history)
    return FitResult(model, trained)


def restart(model: Model) -> FitResult:
    """A fitted model as the result of an earlier piece, with linear splits and without the optimiser's moments."""
    model = linear_form(model)
    return FitResult(model, [TrainedMember(member.trees, best_epoch=0, best_loss=np.nan) for member in model.members])


def _scatter(values: np.ndarray, rows: np.ndarray, n: int) -> np.ndarray:
    result = np.zeros(n)
    result[rows] = values
    return result


def encode(
    preprocessor: Preprocessor,
    lookups: Lookups | None,
    base: NDArray[np.float32],
    y: np.ndarray,
    weight: NDArray[np.float64],
    offset: NDArray[np.float64] | None = None,
) -> dict[str, Samples]:
    """The rows as each encoding shows them; table, targets and weights are shared."""
    sample_weight = None if np.all(weight == 1) else weight
    if lookups is not None:
        return {LOOKUP: Samples(lookups.cells(base), y, sample_weight, encoding=lookups, offset=offset)}
    return {
        name: Samples(base, y, sample_weight, encoding=encoding, offset=offset)
        for name, encoding in preprocessor.encodings.items()
    }


def starting_score(
    params: Mapping[str, Any],
    problem: Problem,
    head: Head,
    y: np.ndarray,
    rows: NDArray[np.int64],
    weight: NDArray[np.float64],
) -> NDArray[np.float64]:
    """What the trees are added to: the best constant, or 0 in the paper's classifier."""
    offset = problem.score_offset(head)
    if offset is None:
        best = head.loss.best_constant(y[rows], weight)
    else:
        best = head.loss.best_constant_beside(offset[rows], y[rows], weight)
    return np.zeros_like(best) if params["recipe"] == "paper" and head.task != "regression" else best


Split = tuple[Samples, "Samples | None"]


def _hold_out(
    data: dict[str, Samples],
    encodings: Sequence[str],
    y: np.ndarray,
    rows: NDArray[np.int64],
    fraction: float | None,
    rng: np.random.Generator,
) -> list[Split]:
    """Training and held-out rows of each member; nothing is held out of a table too short for it."""
    n_folds = 0 if fraction is None else min(max(2, round(1 / fraction)), len(rows) // _MIN_HELD_OUT_ROWS)
    if n_folds < 2:
        return [(replace(data[name], rows=rows), None) for name in encodings]
    folds = deal_folds(y[rows], n_folds, rng)
    masks = [folds == i % n_folds for i in range(len(encodings))]
    return [
        (replace(data[name], rows=rows[~mask]), replace(data[name], rows=rows[mask]))
        for name, mask in zip(encodings, masks, strict=True)
    ]


def _members(
    splits: Sequence[Split], offset: NDArray[np.float64], rng: np.random.Generator, previous: Model | None
) -> list[MemberData]:
    members = []
    for i, (training, held_out) in enumerate(splits):
        start = None
        if previous is not None and i < len(previous.members):
            start = TrainedMember(previous.members[i].trees, best_epoch=0, best_loss=np.nan)
        members.append(MemberData(training, held_out, int(rng.integers(2**63)), offset, start))
    return members


def assemble(
    preprocessor: Preprocessor,
    encodings: Sequence[str],
    trained: Sequence[TrainedMember],
    head: Head,
    importance_rows: NDArray[np.float32],
) -> Model:
    members = [ModelMember(name, member.trees) for name, member in zip(encodings, trained, strict=True)]
    columns = [f.name for f in fields(EpochRecord) if f.name != "metrics"]
    metrics = list(dict.fromkeys(name for member in trained for record in member.history for name in record.metrics))
    history: dict[str, list[Any]] = {name: [] for name in ("member", *columns, "is_best", *metrics)}
    for i, member in enumerate(trained):
        for record in member.history:
            history["member"].append(i)
            for name in columns:
                history[name].append(getattr(record, name))
            for name in metrics:
                history[name].append(record.metrics.get(name, float("nan")))
            history["is_best"].append(record.epoch == member.best_epoch)
    return Model(preprocessor, members, head, history, importance_rows=importance_rows)


def _append(before: dict[str, list[Any]], after: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """History of a further piece after that of earlier ones; only the last counts as best."""
    n_epochs = max(before["epoch"], default=-1) + 1
    unknown = [float("nan")] * len(before["epoch"])  # of columns that an older version did not record
    joined = {key: before.get(key, unknown) + after[key] for key in after}
    joined["epoch"] = before["epoch"] + [epoch + n_epochs for epoch in after["epoch"]]
    joined["is_best"] = [False] * len(before["epoch"]) + after["is_best"]
    return joined
