"""One model over all rows of a table in partitions: partitions in, virtual shards and a model trained on them out.

Rows lie in shards by the hash of their number. How many shards there are depends on the rows of the table alone, never
on the workers, so that any cluster gives the same model, bit for bit. Every task is a pure function: what is lost with
a worker is computed again. Training is left to `softwood.dask.rounds`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.dask.collections import LoadedParts, gather
from softwood.dask.rounds import (
    Shard,
    ShardMember,
    ShardRounds,
    Traffic,
    Validation,
    is_held_out,
    places_of_shards,
)
from softwood.model.importance import N_ROWS as N_IMPORTANCE_ROWS
from softwood.tabular.committee import MemberFits, RunOptions, choose_way, train_members
from softwood.tabular.encoding.features import LOOKUP
from softwood.tabular.evaluation import evaluation_sets, join_evaluation_sets
from softwood.tabular.fit import FitResult, assemble, training_config
from softwood.tabular.out_of_core.outline import EncodedRows, Encoder, LevelSums, Outline
from softwood.tabular.out_of_core.sketch import Piece, Sketch, make_piece, merge, sketch
from softwood.tabular.reading.table import Table, read_table
from softwood.tabular.target import Problem, TargetKind
from softwood.training import rules
from softwood.training.judge import EvaluationSet, Judge, Metric, resolve_metric
from softwood.training.progress import Callbacks, Progress, check_callbacks

# Approximate rows of a shard; shorter shards make too few steps between two averages.
_SHARD_ROWS = 100_000
_MIN_SHARDS = 2
# Bytes of the cells of evaluation sets that go to a worker at a time.
_SENT_BYTES = 1 << 22

# Tables and targets of evaluation sets, which are read when the classes are known.
ReadSets = Callable[[Outline], Sequence[tuple[Table, Problem]]]


def n_shards(n_rows: int) -> int:
    """Number of shards of a table."""
    return max(_MIN_SHARDS, n_rows // _SHARD_ROWS)


def fit_shards(
    client: Any,
    loaded: LoadedParts,
    target: TargetKind,
    params: Mapping[str, Any],
    run: RunOptions,
    *,
    table: Table,
    names: tuple[str, ...] | None,
    read_sets: ReadSets,
) -> tuple[FitResult, Traffic]:
    """Fit a model in rounds. The kinds of the first rows `table`, and `names`, are those of all partitions."""
    metric = resolve_metric(params["eval_metric"])
    kinds = list(table.kinds)
    outline = _outline(client, _read_pieces(client, loaded, target, kinds, names), target, params)
    codes = outline.find_codes(table)
    for j in codes:
        kinds[j] = "category"
    pieces = _read_pieces(client, loaded, target, kinds, names)
    if codes:
        outline = _outline(client, pieces, target, params)
    sums = None
    if outline.needs_level_sums:
        light = client.submit(_same, replace(outline, params={}), pure=False)  # a client and callbacks stay here
        parts = [client.submit(_level_sums, light, piece, pure=False) for piece in pieces]
        (sums,) = gather(client, [client.submit(_add_all, parts, pure=False)])
    encoder = outline.learn(sums)
    shards = _make_shards(client, pieces, encoder, n_shards(outline.sketch.n_rows), run.seed)
    gather(client, [client.submit(_n_rows, shard, pure=False) for shard in shards])
    del pieces
    loaded.parts.clear()  # Dask reads partitions again if it needs to
    sets = read_sets(outline)
    validation = _evaluation_rows(client, encoder, sets, metric) if sets else None
    fitted, traffic = _train(client, shards, outline, encoder, params, run, validation, metric)
    if codes:
        named = {table.name(j): "category" for j in codes}
        fitted.chosen["column_kinds"] = {**(params["column_kinds"] or {}), **named}
    return fitted, traffic


def _read_pieces(
    client: Any, loaded: LoadedParts, target: TargetKind, kinds: Sequence[str], names: tuple[str, ...] | None
) -> list[Any]:
    return [
        client.submit(_read_piece, part, tuple(kinds), names, target, first, pure=False)
        for part, first in zip(loaded.parts, loaded.first_rows, strict=True)
    ]


def _outline(client: Any, pieces: list[Any], target: TargetKind, params: Mapping[str, Any]) -> Outline:
    sketches = [client.submit(_sketch, piece, target, pure=False) for piece in pieces]
    total: Sketch | None = gather(client, [client.submit(_merge_all, sketches, pure=False)])[0]
    if total is None:
        raise ValueError("A table must have rows of positive weight; it has none.")
    return Outline.of(total, target, params)


def _make_shards(client: Any, pieces: list[Any], encoder: Encoder, n: int, seed: int) -> list[Any]:
    sent = client.submit(_same, replace(encoder, base=encoder.base[:0]), pure=False)
    cut = [client.submit(_cut, sent, piece, n, seed, pure=False) for piece in pieces]
    return [
        client.submit(_join, [client.submit(_take, c, s, pure=False) for c in cut], pure=False, **place)
        for s, place in enumerate(places_of_shards(client, n))
    ]


def _evaluation_rows(
    client: Any, encoder: Encoder, sets: Sequence[tuple[Table, Problem]], metric: Metric | None
) -> Validation:
    """The rows of evaluation sets, sent to the workers in pieces."""
    base, problem, ends = join_evaluation_sets(encoder.preprocessor, sets)
    head = encoder.head
    cells = encoder.lookups.cells(base)
    targets = problem.scaled_y(head).reshape(len(cells), -1).astype(np.float32)
    step = max(1, _SENT_BYTES // (cells.itemsize * cells.shape[1]))
    pieces = []
    for first in range(0, len(cells), step):
        rows = EncodedRows(cells[first : first + step], targets[first : first + step])
        pieces.append(client.submit(_same, Shard(rows, np.zeros(len(rows.cells), dtype=np.int64)), pure=False))
    return Validation(pieces, (0, 1), Judge(head, metric, evaluation_sets(problem, head, ends)))


def _held_out_rows(
    client: Any, shards: list[Any], encoder: Encoder, fold: tuple[int, int], metric: Metric | None
) -> Validation:
    """The rows of the training table that a member holds out."""
    held_out = gather(client, [client.submit(_held_out, shard, *fold, pure=False) for shard in shards])
    trained_y, weight = (_concatenated([part[i] for part in held_out]) for i in range(2))
    head = encoder.head
    if head.classes is not None:
        y = head.classes[trained_y[:, 0].astype(np.int64)]
    else:
        y = trained_y * head.target_scale + head.target_mean
        y = y[:, 0] if y.shape[1] == 1 else y
    return Validation(shards, fold, Judge(head, metric, [EvaluationSet(slice(None), y, trained_y, weight)]))


def _train(
    client: Any,
    shards: list[Any],
    outline: Outline,
    encoder: Encoder,
    given: Mapping[str, Any],
    run: RunOptions,
    validation: Validation | None,
    metric: Metric | None,
) -> tuple[FitResult, Traffic]:
    params, head, n_rows = outline.params, outline.head, outline.sketch.n_rows
    functions = check_callbacks(params["callbacks"])
    deadline = None if params["time_limit"] is None else time.monotonic() + params["time_limit"]
    fraction = params["validation_fraction"]
    n_folds = 0 if fraction is None or validation is not None else max(2, round(1 / fraction))
    rng = np.random.default_rng(run.seed)
    members = []
    for i in range(params["n_members"]):
        fold = (i % n_folds if n_folds else 0, n_folds)
        judged = _held_out_rows(client, shards, encoder, fold, metric) if n_folds else validation
        members.append(ShardMember(int(rng.integers(2**63)), fold, judged))
    config = training_config(params, head, n_rows)
    problem = outline.problem
    offset = head.loss.best_constant(problem.scaled_y(head), problem.weight)
    rounds = ShardRounds(client, shards, encoder, offset, n_rows)
    weak_l1 = rules.weak_l1(outline.facts, params) if given["l1"] == "auto" else None
    usual = "R²" if head.task == "regression" else "accuracy"
    shown = usual if metric is None else metric.name
    with Progress(config.max_epochs, shown) if params["verbose"] else nullcontext() as progress:
        callbacks = Callbacks(config.max_epochs, functions, progress)
        run = replace(run, fit_members=rounds)
        fits = MemberFits(run, callbacks, deadline)
        way = choose_way(fits, config, members, weak_l1=weak_l1)  # type: ignore[arg-type]
        trained = train_members(fits, way)
    trained = [member for member in trained if member.history] or trained[:1]  # time may have ended before the last
    importance_rows = encoder.base[:N_IMPORTANCE_ROWS]
    model = assemble(encoder.preprocessor, [LOOKUP] * len(trained), trained, head, importance_rows)
    chosen = {name: params[name] for name in params if given[name] is not params[name]}
    return FitResult(model, trained, chosen | way.changes), rounds.traffic


# Tasks ---------------------------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _n_rows(shard: Shard) -> int:
    return len(shard.fold)


def _read_piece(
    source: Sequence[Any], kinds: tuple[str, ...], names: tuple[str, ...] | None, target: TargetKind, first_row: int
) -> Piece | None:
    X, y, weight = source
    if not len(X):
        return None
    try:
        table = read_table(X, kinds=kinds, names=names)
        return make_piece(table, np.asarray(y), target, first_row=first_row, sample_weight=weight)
    except ValueError as error:  # which counts the rows of the partition
        raise ValueError(f"In the partition that begins with row {first_row} of the table: {error}") from error


def _sketch(piece: Piece | None, target: TargetKind) -> Sketch | None:
    return None if piece is None else sketch(piece, target)


def _merge_all(sketches: Sequence[Sketch | None]) -> Sketch | None:
    total: Sketch | None = None
    for one in sketches:
        if one is not None:
            total = one if total is None else merge(total, one)
    return total


def _level_sums(outline: Outline, piece: Piece | None) -> LevelSums:
    return LevelSums() if piece is None else outline.level_sums(piece)


def _add_all(sums: Sequence[LevelSums]) -> LevelSums:
    return sum(sums, LevelSums())


def _cut(encoder: Encoder, piece: Piece | None, n: int, seed: int) -> list[Shard | None]:
    """The rows of a partition that belong to each shard."""
    if piece is None:
        return [None] * n
    rows = encoder.encode(piece, n_threads=1)
    first, second = _mixed(piece.numbers, seed), _mixed(piece.numbers, seed + 1)
    cuts: list[Shard | None] = []
    for s in range(n):
        chosen = np.flatnonzero(first % np.uint64(n) == s)
        some = EncodedRows(
            rows.cells[chosen],
            rows.targets[chosen],
            None if rows.weight is None else rows.weight[chosen],
            None if rows.offset is None else rows.offset[chosen],
        )
        cuts.append(Shard(some, (second[chosen] >> np.uint64(2)).astype(np.int64)))
    return cuts


def _mixed(numbers: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    z = (numbers + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return z ^ (z >> np.uint64(29))


def _take(cuts: list[Shard | None], s: int) -> Shard | None:
    return cuts[s]


def _join(parts: Sequence[Shard | None]) -> Shard:
    some = [part for part in parts if part is not None]
    rows = EncodedRows(
        np.concatenate([part.rows.cells for part in some]),
        np.concatenate([part.rows.targets for part in some]),
        _concatenated([part.rows.weight for part in some]),
        _concatenated([part.rows.offset for part in some]),
    )
    return Shard(rows, np.concatenate([part.fold for part in some]))


def _concatenated(parts: Sequence[Any]) -> Any:
    return None if parts[0] is None else np.concatenate(parts)


def _held_out(shard: Shard, number: int, n_folds: int) -> tuple[Any, Any]:
    chosen = is_held_out(shard, number, n_folds)
    return shard.rows.targets[chosen], None if shard.rows.weight is None else shard.rows.weight[chosen]
