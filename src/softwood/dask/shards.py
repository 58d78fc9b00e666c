"""One model over all rows of a table in partitions: virtual shards, and rounds of pure tasks on them.

Rows lie in shards by the hash of their number. How many shards there are depends on the rows of the table alone, never
on the workers, so that any cluster gives the same model, bit for bit. Every task is a pure function: what is lost with
a worker is computed again. The state of each epoch comes to the client, from which the next epoch goes on: no more than
one epoch is ever computed again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.dask.collections import Partitions
from softwood.model.importance import N_ROWS as N_IMPORTANCE_ROWS
from softwood.tabular.features import LOOKUP
from softwood.tabular.fit import FitResult, RunOptions, _assemble, _fit, training_config
from softwood.tabular.outline import EncodedRows, Encoder, LevelSums, Outline
from softwood.tabular.sketch import Piece, Sketch, make_piece, merge, sketch
from softwood.tabular.table import read_table
from softwood.tabular.target import TargetKind
from softwood.training import EpochRecord, Samples, TrainedMember, TrainingConfig, rules
from softwood.training.progress import Callbacks
from softwood.training.rounds import (
    CommonState,
    RoundPlan,
    ShardResult,
    average,
    evaluate,
    follow,
    gamma_after,
    initial_state,
    run_round,
    trees_of,
)

# Rows of a shard, about; shorter ones make too few steps between two averages.
_SHARD_ROWS = 100_000
_MIN_SHARDS = 2
# Steps of a round, about: enough for a twentieth of the bytes that sums of gradients would take.
_ROUND_STEPS = 80
# Rows of a step on a shard, up to this many rows of the table and beyond.
_SHORT_TABLE, _SHORT_BATCH, _LONG_BATCH = 200_000, 64, 128
_RATE = 0.7


def n_shards(n_rows: int) -> int:
    """Number of shards of a table."""
    return max(_MIN_SHARDS, n_rows // _SHARD_ROWS)


@dataclass(frozen=True, eq=False)
class Shard:
    """Encoded rows of one shard, and a number by which members hold some of them out."""

    rows: EncodedRows
    fold: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ShardMember:
    """What the rounds of one member need to know beside the shards; the fields that `_fit` reads as in `MemberData`."""

    number: int
    seed: int
    validation: bool | None
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Traffic:
    """Bytes and seconds of all rounds of a fit, one entry per epoch and member."""

    rounds: list[int] = field(default_factory=list)
    bytes_sent: list[int] = field(default_factory=list)
    gradient_bytes: list[int] = field(default_factory=list)
    work_seconds: list[float] = field(default_factory=list)
    waiting_seconds: list[float] = field(default_factory=list)


def fit_shards(
    client: Any,
    partitions: Partitions,
    target: TargetKind,
    params: Mapping[str, Any],
    *,
    seed: int,
    kinds: Sequence[str],
    names: tuple[str, ...] | None,
) -> tuple[FitResult, Outline, Traffic]:
    """Fit a model in rounds. `kinds` and `names` are those of all partitions."""
    weights = partitions.weights or [None] * len(partitions.tables)
    sources = client.compute([list(part) for part in zip(partitions.tables, partitions.targets, weights, strict=True)])
    lengths = client.gather([client.submit(_length, source, pure=False) for source in sources])
    first_rows = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    pieces = [
        client.submit(_read_piece, source, tuple(kinds), names, target, first, pure=False)
        for source, first in zip(sources, first_rows, strict=False)
    ]
    sketches = [client.submit(_sketch, piece, target, pure=False) for piece in pieces]
    total: Sketch | None = client.submit(_merge_all, sketches, pure=False).result()
    if total is None:
        raise ValueError("A table must have rows of positive weight; all partitions are empty.")
    outline = Outline.of(total, target, params)
    sums = None
    if outline.needs_level_sums:
        light = client.submit(_same, outline, pure=False)
        parts = [client.submit(_level_sums, light, piece, pure=False) for piece in pieces]
        sums = client.submit(_add_all, parts, pure=False).result()
    encoder = outline.learn(sums)
    n = n_shards(total.n_rows)
    sent = client.submit(_same, replace(encoder, base=encoder.base[:0]), pure=False)
    cut = [client.submit(_cut, sent, piece, n, seed, pure=False) for piece in pieces]
    shards = [client.submit(_join, [client.submit(_take, c, s, pure=False) for c in cut], pure=False) for s in range(n)]
    fitted, traffic = _train(client, shards, outline, encoder, params, seed)
    return fitted, outline, traffic


def _train(
    client: Any, shards: list[Any], outline: Outline, encoder: Encoder, given: Mapping[str, Any], seed: int
) -> tuple[FitResult, Traffic]:
    params, head, n_rows = outline.params, outline.head, outline.sketch.n_rows
    fraction = params["validation_fraction"]
    n_folds = 0 if fraction is None else max(2, round(1 / fraction))
    rng = np.random.default_rng(seed)
    members = [
        ShardMember(i, int(rng.integers(2**63)), None if n_folds == 0 else True) for i in range(params["n_members"])
    ]
    config = training_config(params, head, n_rows)
    problem = outline.problem
    offset = head.loss.best_constant(problem.scaled_y(head), problem.weight)
    rounds = ShardRounds(client, shards, encoder, offset, n_rows, n_folds)
    deadline = None if params["time_limit"] is None else time.monotonic() + params["time_limit"]
    weak_l1 = rules.weak_l1(outline.facts, params) if given["l1"] == "auto" else None
    run = RunOptions(seed, fit_members=rounds)
    callbacks = Callbacks(config.max_epochs, list(params["callbacks"] or []))
    trained, l1_used = _fit(config, members, weak_l1, run, callbacks, deadline)  # type: ignore[arg-type]
    importance_rows = encoder.base[:N_IMPORTANCE_ROWS]
    model = _assemble(encoder.preprocessor, [LOOKUP] * len(trained), trained, head, importance_rows)
    chosen = {name: params[name] for name in params if given[name] is not params[name]}
    return FitResult(model, trained, chosen | l1_used), rounds.traffic


class ShardRounds:
    """`softwood.training.fit_members` in rounds of tasks on shards."""

    def __init__(
        self,
        client: Any,
        shards: list[Any],
        encoder: Encoder,
        offset: NDArray[np.float64],
        n_rows: int,
        n_folds: int,
    ) -> None:
        self.client, self.shards, self.encoder, self.offset = client, shards, encoder, offset
        self.n_rows, self.n_folds = n_rows, n_folds
        self.traffic = Traffic()

    def __call__(
        self,
        config: TrainingConfig,
        members: Sequence[ShardMember],
        *,
        callback: Any = None,
        time_limit: float | None = None,
        **options: Any,
    ) -> list[TrainedMember]:
        """Train the members one after the other."""
        until = np.inf if time_limit is None else time.monotonic() + time_limit
        return [self._fit_one(config, member, callback, until) for member in members]

    def plan(self, config: TrainingConfig, member: ShardMember) -> RoundPlan:
        """How the rounds of a member go: steps as far, on the whole, as those of a fit on one machine.

        On a shard a step has fewer rows and so more noise, by which Adam divides; the rate grows with the number of
        shards, because each of them makes only its share of the steps.
        """
        config = replace(config, **member.changes)
        n = len(self.shards)
        batch = min(config.batch_size, _SHORT_BATCH if self.n_rows < _SHORT_TABLE else _LONG_BATCH)
        noise = (batch / config.batch_size) ** 0.5
        n_trained = self.n_rows * (1 - 1 / self.n_folds if self.n_folds else 1)
        epoch_steps = max(1.0, n_trained / n / batch)
        n_rounds = max(1, round(epoch_steps / _ROUND_STEPS))
        n_round_steps = max(1, round(epoch_steps / n_rounds))
        known = {"batch_size": batch, "max_epochs": config.max_epochs}
        rows_per_shard = n_round_steps * n_rounds * batch
        local = replace(
            config,
            batch_size=batch,
            learning_rate=config.learning_rate * n * noise * _RATE,
            l1=config.l1 * noise,
            ema=None,
            warmup=rules.warmup(rows_per_shard, known),
        )
        decay = rules.average_decay(rows_per_shard, known) ** n_round_steps
        n_targets = 1 if self.encoder.head.target_mean is None else len(self.encoder.head.target_mean)
        n_outputs = config.loss.outputs_for(n_targets)
        return RoundPlan(
            local, self.encoder.lookups, member.seed, self.offset, n_outputs, n_rounds, n_round_steps, decay
        )

    def _fit_one(self, config: TrainingConfig, member: ShardMember, callback: Any, until: float) -> TrainedMember:
        plan = self.plan(config, member)
        client, key = self.client, f"softwood-{uuid.uuid4().hex[:8]}"
        sent = client.submit(_same, plan, pure=False)
        number = member.number if self.n_folds else -1
        held_out = client.gather([client.submit(_held_out, s, number, self.n_folds, pure=False) for s in self.shards])
        y, weight = (_concatenated([part[i] for part in held_out]) for i in range(2))
        averages: dict[str, Any] = {}
        state = initial_state(plan)
        best: tuple[float, int, Any] = (np.inf, -1, None)
        history: list[EpochRecord] = []
        stopped_by: Any = None
        for epoch in range(config.max_epochs):
            started = time.perf_counter()
            state, averages, loss, work = self._epoch(sent, plan, state, averages, f"{key}-{epoch}", number)
            record = EpochRecord(
                epoch, loss, np.nan, np.nan, plan.config.learning_rate, gamma_after(plan, state.n_rounds), 0.0
            )
            if member.validation:
                tasks = [
                    client.submit(
                        _scores, sent, state, averages, shard, number, self.n_folds, key=f"{key}-{epoch}-scores-{s}"
                    )
                    for s, shard in enumerate(self.shards)
                ]
                scores = np.concatenate(client.gather(tasks))
                record = replace(record, validation_loss=config.loss.value(scores, y, weight))
            seconds = time.perf_counter() - started
            history.append(replace(record, seconds=seconds))
            self._count(plan, state, work, seconds)
            if not member.validation or record.validation_loss < best[0]:
                best = (record.validation_loss, epoch, (averages, state.n_rounds))
            if callback is not None and callback([history[-1]]):
                stopped_by = "callback"
            elif time.monotonic() > until:
                stopped_by = "time_limit"
            elif member.validation and config.patience is not None and epoch - best[1] >= config.patience:
                stopped_by = "patience"
            if stopped_by:
                break
        return TrainedMember(trees_of(plan, *best[2]), best[1], best[0], history, stopped_by or "max_epochs")

    def _epoch(
        self, plan: Any, planned: RoundPlan, state: CommonState, averages: Any, key: str, number: int
    ) -> tuple[CommonState, Any, float, float]:
        """One pass over all rows; all its tasks are sent at once."""
        client = self.client
        common, followed = (
            client.submit(_same, state, key=f"{key}-state"),
            client.submit(_same, averages, key=f"{key}-averages"),
        )
        kept, told = [common, followed], []
        for r in range(planned.n_rounds):
            results = [
                client.submit(_run_round, plan, common, shard, s, number, self.n_folds, key=f"{key}-{r}-{s}")
                for s, shard in enumerate(self.shards)
            ]
            told.append(client.submit(_told, results, key=f"{key}-told-{r}"))
            common = client.submit(average, common, results, key=f"{key}-common-{r}")
            followed = client.submit(follow, plan, followed, common, key=f"{key}-followed-{r}")
            kept += [common, followed]
        numbers = client.gather(told)
        state, averages = client.gather([common, followed])
        return state, averages, float(np.mean([n[0] for n in numbers])), float(np.sum([n[1] for n in numbers]))

    def _count(self, plan: RoundPlan, state: CommonState, work: float, seconds: float) -> None:
        """Each shard receives the common state and sends its own, in every round; a sum of gradients both ways."""
        n = len(self.shards)
        parameters = sum(array.nbytes for name, array in state.arrays.items() if "." not in name)
        one_way = sum(array.nbytes for array in state.arrays.values())
        workers = sum(self.client.nthreads().values())
        self.traffic.rounds.append(plan.n_rounds)
        self.traffic.bytes_sent.append(plan.n_rounds * n * (state.nbytes + one_way))
        self.traffic.gradient_bytes.append(plan.n_rounds * plan.n_round_steps * n * 2 * parameters)
        self.traffic.work_seconds.append(work)
        self.traffic.waiting_seconds.append(max(0.0, workers * seconds - work))


# Tasks ---------------------------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _length(source: Sequence[Any]) -> int:
    return len(source[0])


def _read_piece(
    source: Sequence[Any], kinds: tuple[str, ...], names: tuple[str, ...] | None, target: TargetKind, first_row: int
) -> Piece | None:
    X, y, weight = source
    if not len(X):
        return None
    table = read_table(X, kinds=kinds, names=names)
    return make_piece(table, np.asarray(y), target, first_row=first_row, sample_weight=weight)


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


def _samples(plan: RoundPlan, shard: Shard, chosen: NDArray[np.bool_]) -> Samples:
    rows = shard.rows
    return Samples(rows.cells, rows.targets, rows.weight, np.flatnonzero(chosen), plan.lookups, rows.offset)


def _is_held_out(shard: Shard, number: int, n_folds: int) -> NDArray[np.bool_]:
    return shard.fold % n_folds == number % n_folds if n_folds else np.zeros(len(shard.fold), dtype=bool)


def _held_out(shard: Shard, number: int, n_folds: int) -> tuple[Any, Any]:
    chosen = _is_held_out(shard, number, n_folds)
    return shard.rows.targets[chosen], None if shard.rows.weight is None else shard.rows.weight[chosen]


def _run_round(plan: RoundPlan, state: CommonState, shard: Shard, s: int, number: int, n_folds: int) -> ShardResult:
    return run_round(plan, state, _samples(plan, shard, ~_is_held_out(shard, number, n_folds)), s)


def _scores(
    plan: RoundPlan, state: CommonState, averages: Any, shard: Shard, number: int, n_folds: int
) -> NDArray[np.float32]:
    return evaluate(plan, state, averages, _samples(plan, shard, _is_held_out(shard, number, n_folds)))


def _told(results: Sequence[ShardResult]) -> tuple[float, float]:
    """Mean loss and seconds of work of a round."""
    return float(np.mean([r.train_loss for r in results])), float(sum(r.seconds for r in results))
