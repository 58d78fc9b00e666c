"""Fit loop over the native trainers: several ensembles ("members") at once, early stopping, history, checkpoints.

Input: a finite float matrix or cells of lookups, numeric targets, row numbers. Output: trees with their batch
normalisation, and what happened in each epoch. Encoding of tables is left to `softwood.tabular`, prediction and files
to `softwood.model`, the arithmetic of a step to the core.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from softwood.arguments import FloatArray, check_n_threads
from softwood.ops import get_num_threads
from softwood.tabular.encoding.lookups import Lookups
from softwood.training.checkpoint import read_checkpoint, write_checkpoint
from softwood.training.config import TrainingConfig
from softwood.training.lookup_state import LookupState
from softwood.training.samples import (
    VALIDATION_SCORES,
    EpochRecord,
    MemberData,
    StopReason,
    StreamedSamples,
    TrainedMember,
    check_members,
)
from softwood.training.state import MemberState
from softwood.training.stream import StreamState

EpochCallback = Callable[[list[EpochRecord]], "bool | None"]


def fit_members(
    config: TrainingConfig,
    members: Sequence[MemberData],
    *,
    n_threads: int | None = None,
    callback: EpochCallback | None = None,
    time_limit: float | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 30.0,
    resume: bool = False,
    run_seed: int = 0,
    keep_state: bool = False,
    accumulate: bool = False,
) -> list[TrainedMember]:
    """Train all members, in parallel over members when threads allow, and return them in the same order.

    The result is the same to the bit for any `n_threads`. Ctrl-C and `time_limit` take effect within a step: training
    stops, the best epoch so far is restored, and the members come back with `stopped_by` "interrupt" or "time_limit".
    The caller decides whether to raise KeyboardInterrupt again.

    Parameters
    ----------
    config : TrainingConfig
    members : sequence of MemberData
        Their tables may differ (two encodings, say), but share dtype and number of targets.
    n_threads : int, optional
        At most this many threads; the library's setting if None.
    callback : callable, optional
        Called after each epoch with one `EpochRecord` per member still in training; returning True stops all.
    time_limit : float, optional
        Seconds.
    checkpoint : path, optional
        File that is rewritten every `checkpoint_every` seconds at the end of an epoch (0: after each epoch). It is
        never deleted: a finished run leaves its last state.
    resume : bool
        Continue from `checkpoint` if that file exists; the result equals that of the uninterrupted run to the bit. A
        file of another configuration or other data is refused with a ValueError.
    run_seed : int
        Seed that the caller made the members' seeds of; kept in the checkpoint, see `prepare_checkpoint`.
    keep_state : bool
        Return the optimiser's moments too, of the last step rather than of the best epoch.
    accumulate : bool
        With `MemberData.start`: merge its batch-norm statistics with those of the new rows rather than replace them,
        for tables that come in pieces.

    Raises
    ------
    ValueError
        If shapes, dtypes or targets do not fit, or the checkpoint is of another run or damaged.
    FloatingPointError
        If a loss is not finite; the message names the likely causes.

    Examples
    --------
    >>> from softwood.training import Loss, Samples
    >>> x = np.random.default_rng(0).normal(size=(200, 3))
    >>> config = TrainingConfig(Loss("squared_error"), n_trees=4, depth=2, max_epochs=30, learning_rate=0.05)
    >>> (member,) = fit_members(config, [MemberData(Samples(x, x[:, 0] > 0, rows=np.arange(150)))])
    >>> member.history[-1].train_loss < 0.1
    True
    """
    config.check()
    check_members(config.loss, members)
    threads = check_n_threads(n_threads) or get_num_threads()
    states = [_state_class(member)(config, member, n_threads=threads, accumulate=accumulate) for member in members]
    fit = _Fit(config, members, states, threads, callback, checkpoint, checkpoint_every, run_seed)
    if resume and checkpoint is not None and os.path.exists(checkpoint):
        fit.next_epoch = read_checkpoint(checkpoint, config, members, states)
    fit.run(np.inf if time_limit is None else time.monotonic() + time_limit)
    return [_trained(state, keep_state) for state in states]


@dataclass
class _Fit:
    """The loop over epochs."""

    config: TrainingConfig
    members: Sequence[MemberData]
    states: list[MemberState]
    n_threads: int
    callback: EpochCallback | None
    checkpoint: str | os.PathLike[str] | None
    checkpoint_every: float
    run_seed: int = 0
    next_epoch: int = 0

    def run(self, deadline: float) -> None:
        saved_at = time.monotonic()
        try:
            while self.next_epoch < self.config.max_epochs and self.active():
                before = self.next_epoch
                self.run_epoch(deadline)
                if self.next_epoch == before:  # cut short: only the ends of epochs can be continued from
                    break
                due = not self.active() or self.next_epoch == self.config.max_epochs
                if self.checkpoint is not None and (due or time.monotonic() - saved_at >= self.checkpoint_every):
                    self.save(self.checkpoint)
                    saved_at = time.monotonic()
        except KeyboardInterrupt:
            self.stop("interrupt")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the checkpoint; a disk that is full or gone must not end a fit of hours."""
        try:
            write_checkpoint(path, self.config, self.members, self.states, self.next_epoch, self.run_seed)
        except OSError as error:
            warnings.warn(
                f"The checkpoint {os.fspath(path)} could not be saved ({error}); training continues.", stacklevel=2
            )

    def active(self) -> list[int]:
        return [i for i, state in enumerate(self.states) if state.stopped_by is None]

    def stop(self, reason: StopReason) -> None:
        for i in self.active():
            self.states[i].stopped_by = reason

    def run_epoch(self, deadline: float) -> None:
        active = self.active()
        states = [self.states[i] for i in active]
        outcomes = states[0].run_epoch(states, self.next_epoch, deadline - time.monotonic(), self.n_threads)
        records = []
        for i, (status, steps_done, *numbers) in zip(active, outcomes, strict=True):
            if status == NOT_FINITE:
                raise not_finite(self.config, i, self.next_epoch, steps_done)
            record = EpochRecord(self.next_epoch, *numbers)
            if status == _COMPLETED:
                record = self.note(i, record)
            records.append(record)
        if any(outcome[0] == _STOPPED for outcome in outcomes):
            self.stop("time_limit")
            return
        self.next_epoch += 1
        if self.callback is not None and self.callback(records):
            self.stop("callback")

    def note(self, i: int, record: EpochRecord) -> EpochRecord:
        """Add the record to the history, keep the parameters if they are the best, and stop if patience is over."""
        state, config, judge = self.states[i], self.config, self.members[i].judge
        criterion = record.validation_loss
        if judge is not None and self.members[i].validation is not None:
            assert state.validation_scores is not None
            found = judge(state.validation_scores)
            loss = record.validation_loss if found.loss is None else found.loss
            metric = record.validation_metric if found.metric is None else found.metric
            record = replace(record, validation_loss=loss, validation_metric=metric, metrics=found.metrics)
            criterion = loss if found.criterion is None else found.criterion
        state.history.append(record)
        state.hold_band(record)
        if self.members[i].validation is None:
            return record
        if np.isnan(criterion) and callable(config.loss.name):
            raise ValueError(
                "validation rows need a loss function that returns (gradient, loss); it returned the gradient only: "
                "return both, or train without validation rows."
            )
        if record.epoch >= config.best_after:
            if criterion < state.best_loss:
                state.keep_best(record.epoch, criterion)
            if config.patience is not None and record.epoch - state.best_epoch >= config.patience:
                state.stopped_by = "patience"
        return record


_COMPLETED, _STOPPED, NOT_FINITE = 0, 1, 2  # EpochOutcome::Status


def not_finite(config: TrainingConfig, member: int, epoch: int, step: int) -> FloatingPointError:
    causes = [f"learning_rate {config.learning_rate:g} is too large: try a tenth of it"]
    if callable(config.loss.name):
        causes.insert(0, "the loss function returned NaN or infinity: check it for divisions and logarithms")
    elif config.loss.name in ("poisson", "gamma", "tweedie"):
        causes.insert(
            0, "the exponential of a score overflowed: give an offset (Loss.best_constant) or rescale targets"
        )
    else:
        causes.append("targets are very large: standardise them")
    if not config.batch_norm:
        causes.append("inputs are not normalised: set batch_norm=True or standardise them")
    return FloatingPointError(
        f"the loss must stay finite; it became NaN or infinite in epoch {epoch}, step {step} of member {member}. "
        f"Likely causes: {'; '.join(causes)}."
    )


def _state_class(member: MemberData) -> type[MemberState]:
    if isinstance(member.train, StreamedSamples):
        return StreamState
    return LookupState if isinstance(member.train.encoding, Lookups) else MemberState


def scores_of(
    config: TrainingConfig, member: MemberData, trained: TrainedMember, rows: NDArray[np.integer], n_threads: int | None
) -> FloatArray:
    """Raw scores [rows, k] by a trained member of some rows of the table that it was trained on."""
    threads = check_n_threads(n_threads) or get_num_threads()
    data = replace(member, validation=replace(member.train, rows=rows), start=trained, judge=None)
    state = _state_class(member)(replace(config, ema=None), data, n_threads=threads, accumulate=False)
    state.native.evaluate(threads)
    assert state.validation_scores is not None
    return state.validation_scores


def _trained(state: MemberState, keep_state: bool) -> TrainedMember:
    arrays, gamma = (state.current(), state.native.gamma) if state.best is None else (state.best, state.best_gamma)
    best_epoch = state.best_epoch if state.best is not None else len(state.history) - 1
    return TrainedMember(
        trees=state.trees(arrays, gamma),
        best_epoch=best_epoch,
        best_loss=float(state.best_loss) if state.best is not None else float("nan"),
        history=state.history,
        stopped_by=state.stopped_by or "max_epochs",
        validation_scores=None if state.best is None else state.best.get(VALIDATION_SCORES),
        optimizer_state=state.optimizer_state() if keep_state else None,
        weights={name: arrays[name] for name in state.TRAINED} if isinstance(state, LookupState) else None,
    )
