"""Members in rounds of tasks on shards: shards on the workers in, trained members out.

All tasks of an epoch are sent at once, and each is a pure function: what is lost with a worker is computed again. The
state of each epoch comes to the client, from which the next epoch starts, so that no more than one epoch is ever
computed again; a checkpoint holds what the client knows. What a task computes is left to `softwood.training.rounds`.
"""

from __future__ import annotations

import os
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.dask.checkpoint import Course, read_courses, write_courses
from softwood.dask.collections import gather
from softwood.model.parts import Head
from softwood.tabular.out_of_core.outline import EncodedRows, Encoder
from softwood.training import EpochRecord, Samples, TrainedMember, TrainingConfig, rules
from softwood.training.judge import Judge
from softwood.training.rounds import (
    CommonState,
    RoundPlan,
    ShardResult,
    advance,
    evaluate,
    follow,
    gamma_after,
    initial_state,
    pool,
    run_round,
    trees_of,
)

# Steps of a round, about: enough for a twentieth of the bytes that sums of gradients would take.
_ROUND_STEPS = 80
# Rows of a step on a shard: fewer take longer per row, more leave too few steps between two averages.
_BATCH = 128
# Of the rate that makes steps on shards go as far as those on one machine; the whole of it is unsteady.
_RATE = 0.5
# Results that one task averages; of more shards, averages are averaged.
_GROUP = 8


@dataclass(frozen=True, eq=False)
class Shard:
    """Encoded rows of one shard, and a number by which members hold some of them out."""

    rows: EncodedRows
    fold: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ShardMember:
    """What the rounds of one member need to know beside the shards.

    Attributes
    ----------
    seed : int
    held_out_fold : tuple of (number, number of folds)
        Rows of this fold are not trained on; with 0 folds all rows are.
    validation : Validation, optional
    changes : mapping of str to value
        As in `MemberData`.
    """

    seed: int
    held_out_fold: tuple[int, int]
    validation: Validation | None
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Validation:
    """Rows that decide the best epoch: shards on the workers, the fold of them that counts, and the scores' judge."""

    shards: list[Any]
    fold: tuple[int, int]
    judge: Judge


def places_of_shards(client: Any, n_shards: int) -> list[dict[str, Any]]:
    """Where the tasks of each shard go, as options of `submit`: workers in turn, and others if one is lost.

    Without this, Dask may send two shards to the worker that has the common state, and leave another one idle.
    """
    workers = sorted(client.nthreads())
    return [
        {"workers": [workers[s % len(workers)]], "allow_other_workers": True} if workers else {}
        for s in range(n_shards)
    ]


@dataclass(eq=False)
class Traffic:
    """What the rounds of a fit took; lists with one entry for each epoch of each member.

    Attributes
    ----------
    rounds : list of int
    bytes_sent : list of int
        The common state to each shard and its result back, in each round. Less crosses the network if several shards
        lie on one worker.
    gradient_bytes : list of int
        What a sum of gradients in every step of the same epoch would have sent.
    work_seconds : list of float
        Time in steps, summed over all shards.
    waiting_seconds : list of float
        Time in which threads of workers did not make steps: averages, evaluation, transfers, and waiting.
    """

    rounds: list[int] = field(default_factory=list)
    bytes_sent: list[int] = field(default_factory=list)
    gradient_bytes: list[int] = field(default_factory=list)
    work_seconds: list[float] = field(default_factory=list)
    waiting_seconds: list[float] = field(default_factory=list)


class ShardRounds:
    """`softwood.training.fit_members` in rounds of tasks on shards, one member after the other."""

    def __init__(
        self, client: Any, shards: list[Any], encoder: Encoder, offset: NDArray[np.float64], n_rows: int
    ) -> None:
        self.client, self.shards, self.encoder, self.offset = client, shards, encoder, offset
        self.n_rows = n_rows
        self.traffic = Traffic()

    def __call__(
        self,
        config: TrainingConfig,
        members: Sequence[ShardMember],
        *,
        callback: Any = None,
        time_limit: float | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 30.0,
        resume: bool = False,
        run_seed: int = 0,
        **options: Any,
    ) -> list[TrainedMember]:
        """Train the members; what the options mean is said in `fit_members`."""
        config.check()
        plans = [self.plan(config, member) for member in members]
        run = _Run(self, plans, members, checkpoint, checkpoint_every, run_seed)
        until = np.inf if time_limit is None else time.monotonic() + time_limit
        return run.fit(callback, until, resume)

    def plan(self, config: TrainingConfig, member: ShardMember) -> RoundPlan:
        """How the rounds of a member go: steps as far, on the whole, as those of a fit on one machine.

        On a shard a step has fewer rows and so more noise, by which Adam divides; the rate grows with the number of
        shards, because each of them makes only its share of the steps.
        """
        config = replace(config, **member.changes)
        n, n_folds = len(self.shards), member.held_out_fold[1]
        batch = min(config.batch_size, _BATCH)
        noise = (batch / config.batch_size) ** 0.5
        n_trained = self.n_rows * (1 - 1 / n_folds if n_folds else 1)
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

    def count(self, plan: RoundPlan, state: CommonState, work: float, seconds: float) -> None:
        """Note an epoch in `traffic`."""
        n = len(self.shards)
        parameters = sum(array.nbytes for name, array in state.arrays.items() if "." not in name)
        one_way = sum(array.nbytes for array in state.arrays.values())
        threads = sum(self.client.nthreads().values())
        self.traffic.rounds.append(plan.n_rounds)
        self.traffic.bytes_sent.append(plan.n_rounds * n * (state.nbytes + one_way))
        self.traffic.gradient_bytes.append(plan.n_rounds * plan.n_round_steps * n * 2 * parameters)
        self.traffic.work_seconds.append(work)
        self.traffic.waiting_seconds.append(max(0.0, threads * seconds - work))


@dataclass(eq=False)
class _Run:
    """One call of `ShardRounds`: the courses of its members, and where they are saved."""

    rounds: ShardRounds
    plans: list[RoundPlan]
    members: Sequence[ShardMember]
    checkpoint: str | os.PathLike[str] | None
    checkpoint_every: float
    run_seed: int
    courses: list[Course] = field(default_factory=list)
    saved_at: float = field(default_factory=time.monotonic)
    facts: dict[str, Any] | None = None

    def fit(self, callback: Any, until: float, resume: bool) -> list[TrainedMember]:
        starts = [Course(initial_state(plan)) for plan in self.plans]
        if self.checkpoint is not None:
            self.facts = self._facts()
            if resume and os.path.exists(self.checkpoint):
                self.courses = read_courses(self.checkpoint, self.facts, self.plans, starts)
        self.courses += starts[len(self.courses) :]
        for i, course in enumerate(self.courses):
            epochs = _Epochs(self.rounds, self.plans[i], self.members[i])
            now = time.monotonic()
            end = now + (until - now) / (len(self.courses) - i)  # members get equal shares of a time limit
            try:
                while course.stopped_by is None and len(course.history) < self.plans[i].config.max_epochs:
                    epochs.run(course)
                    if callback is not None and callback([course.history[-1]]):
                        course.stopped_by = "callback"
                    elif time.monotonic() > end:
                        course.stopped_by = course.stopped_by or "time_limit"
                    self._save(course)
            except KeyboardInterrupt:
                course.stopped_by = "interrupt"
            if course.stopped_by in ("interrupt", "callback"):
                for later in self.courses[i + 1 :]:
                    later.stopped_by = course.stopped_by
        return [_trained(plan, course) for plan, course in zip(self.plans, self.courses, strict=True)]

    def _save(self, course: Course) -> None:
        """Write the checkpoint if it is due; a disk that is full or gone must not end a fit of hours."""
        if self.checkpoint is None or self.facts is None:
            return
        is_last = course.stopped_by is not None or len(course.history) == self.plans[0].config.max_epochs
        if not is_last and time.monotonic() - self.saved_at < self.checkpoint_every:
            return
        try:
            write_courses(self.checkpoint, self.facts, self.courses, self.run_seed)
        except OSError as error:
            warnings.warn(
                f"The checkpoint {os.fspath(self.checkpoint)} could not be saved ({error}); training continues.",
                stacklevel=2,
            )
        self.saved_at = time.monotonic()

    def _facts(self) -> dict[str, Any]:
        """What must not differ between a run and its continuation, with checksums of all rows."""
        from softwood.training.checkpoint import config_facts

        rounds = self.rounds
        facts = config_facts(self.plans[0].config)
        facts["seeds"] = [member.seed for member in self.members]
        facts["changes"] = [dict(member.changes) for member in self.members]
        facts["folds"] = [list(member.held_out_fold) for member in self.members]
        facts["encoder"] = rounds.encoder.checksum()
        validation = self.members[0].validation
        facts["metric"] = None if validation is None else validation.judge.name
        shards = [*rounds.shards, *([] if validation is None else validation.shards)]
        facts["train rows"] = gather(rounds.client, [rounds.client.submit(_checksum, s, pure=False) for s in shards])
        return facts


class _Epochs:
    """Epochs of one member."""

    def __init__(self, rounds: ShardRounds, plan: RoundPlan, member: ShardMember) -> None:
        self.rounds, self.plan, self.member = rounds, plan, member
        self.client, self.key = rounds.client, f"softwood-{uuid.uuid4().hex[:8]}"
        self.sent = self.client.submit(_same, plan, key=f"{self.key}-plan")

    def run(self, course: Course) -> None:
        """One pass over all rows and the evaluation after it; all tasks are sent at once."""
        started = time.perf_counter()
        epoch, plan, client = len(course.history), self.plan, self.client
        key = f"{self.key}-{epoch}"
        common = client.submit(_same, course.state, key=f"{key}-state")
        followed = client.submit(_same, course.averages, key=f"{key}-averages")
        kept, told = [common, followed], []
        places = places_of_shards(client, len(self.rounds.shards))
        for r in range(plan.n_rounds):
            results = [
                client.submit(
                    _run_round, self.sent, common, shard, s, *self.member.held_out_fold, key=f"{key}-{r}-{s}", **place
                )
                for s, (shard, place) in enumerate(zip(self.rounds.shards, places, strict=True))
            ]
            common = client.submit(advance, common, self._pool(results, f"{key}-pool-{r}"), key=f"{key}-common-{r}")
            told.append(client.submit(_told, common, key=f"{key}-told-{r}"))
            followed = client.submit(follow, self.sent, followed, common, key=f"{key}-followed-{r}")
            kept += [common, followed]
        tasks = []
        if self.member.validation is not None:
            judged, fold = self.member.validation.shards, self.member.validation.fold
            tasks = [
                client.submit(_scores, self.sent, common, followed, shard, *fold, key=f"{key}-scores-{s}", **place)
                for s, (shard, place) in enumerate(zip(judged, places_of_shards(client, len(judged)), strict=True))
            ]
        numbers, scores, course.state, course.averages = gather(client, [told, tasks, common, followed])
        loss, leaves = (float(np.mean([n[j] for n in numbers])) for j in range(2))
        gamma = gamma_after(plan, course.state.n_rounds)
        record = EpochRecord(epoch, loss, np.nan, leaves, plan.config.learning_rate, gamma, 0.0)
        self.rounds.count(plan, course.state, sum(n[2] for n in numbers), time.perf_counter() - started)
        self._note(course, record, np.concatenate(scores) if scores else None, started)

    def _pool(self, results: list[Any], key: str) -> list[Any]:
        """At most `_GROUP` means that stand for all results, by a tree whose shape depends on their number alone."""
        level = 0
        while len(results) > _GROUP:
            groups = [results[i : i + _GROUP] for i in range(0, len(results), _GROUP)]
            results = [self.client.submit(pool, group, key=f"{key}-{level}-{g}") for g, group in enumerate(groups)]
            level += 1
        return results

    def _note(self, course: Course, record: EpochRecord, scores: NDArray[np.float32] | None, started: float) -> None:
        """Add the epoch to the history, keep its parameters if they are the best, and stop if patience is over."""
        config = self.plan.config
        criterion = np.nan
        if scores is not None:
            assert self.member.validation is not None
            criterion, record = _judged(self.member.validation.judge, scores, record)
        course.history.append(replace(record, seconds=time.perf_counter() - started))
        if scores is None or criterion < course.best_loss:
            course.keep_best(criterion)
        if scores is not None and config.patience is not None and record.epoch - course.best_epoch >= config.patience:
            course.stopped_by = "patience"


def _judged(judge: Judge, scores: NDArray[np.float32], record: EpochRecord) -> tuple[float, EpochRecord]:
    """What decides the best epoch, and the record with all numbers of the validation rows."""
    found, last = judge(scores), judge.sets[-1]
    part = scores[last.rows].astype(np.float64)
    loss = judge.head.loss.value(part, last.trained_y, last.weight) if found.loss is None else found.loss
    if np.isnan(loss) and callable(judge.head.loss.name):
        raise ValueError(
            "validation rows need a loss function that returns (gradient, loss); it returned the gradient only: "
            "return both, or train without validation rows."
        )
    metric = found.metric
    if metric is None:
        metric = _usual_metric(judge.head, part, last.trained_y.reshape(len(part), -1), last.weight)
    record = replace(record, validation_loss=loss, validation_metric=metric, metrics=found.metrics)
    return loss if found.criterion is None else found.criterion, record


def _usual_metric(head: Head, scores: NDArray[np.float64], y: NDArray[Any], weight: NDArray[Any] | None) -> float:
    """Share of right classes, or R squared of predicted means; see core/src/metric.h."""
    if head.task != "regression":
        right = scores.argmax(axis=1)[:, None] == y if head.task == "multiclass" else (scores > 0) == (y > 0.5)
        return float(np.average(right.mean(axis=1), weights=weight))
    if head.loss.name not in ("squared_error", "absolute_error", "huber"):
        return float("nan")
    residual = np.average(np.square(scores - y), axis=0, weights=weight)
    spread = np.average(np.square(y - np.average(y, axis=0, weights=weight)), axis=0, weights=weight)
    return float(np.mean(1 - residual / spread)) if spread.all() else float("nan")


def _trained(plan: RoundPlan, course: Course) -> TrainedMember:
    best, n_rounds = (course.best, course.best_rounds) if course.best else (course.averages, course.state.n_rounds)
    epoch = course.best_epoch if course.best else len(course.history) - 1
    trees = trees_of(plan, best or course.state.arrays, n_rounds)
    loss = course.best_loss if np.isfinite(course.best_loss) else float("nan")
    return TrainedMember(trees, epoch, loss, course.history, course.stopped_by or "max_epochs")


# Tasks ---------------------------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _checksum(shard: Shard) -> int:
    from softwood.training.checkpoint import checksum

    rows = shard.rows
    arrays = {"cells": rows.cells, "targets": rows.targets, "weight": rows.weight, "offset": rows.offset}
    return checksum({name: array for name, array in arrays.items() if array is not None} | {"fold": shard.fold})


def _samples(plan: RoundPlan, shard: Shard, chosen: NDArray[np.bool_]) -> Samples:
    rows = shard.rows
    return Samples(rows.cells, rows.targets, rows.weight, np.flatnonzero(chosen), plan.lookups, rows.offset)


def is_held_out(shard: Shard, number: int, n_folds: int) -> NDArray[np.bool_]:
    """Which rows [n] of a shard lie in a fold; none if there are 0 folds."""
    return shard.fold % n_folds == number % n_folds if n_folds else np.zeros(len(shard.fold), dtype=bool)


def _run_round(plan: RoundPlan, state: CommonState, shard: Shard, s: int, number: int, n_folds: int) -> ShardResult:
    return run_round(plan, state, _samples(plan, shard, ~is_held_out(shard, number, n_folds)), s)


def _scores(
    plan: RoundPlan, state: CommonState, averages: Any, shard: Shard, number: int, n_folds: int
) -> NDArray[np.float32]:
    return evaluate(plan, state, averages, _samples(plan, shard, is_held_out(shard, number, n_folds)))


def _told(state: CommonState) -> tuple[float, float, float]:
    """Mean loss, mean number of reachable leaves, and seconds of work of the last round."""
    return state.told
