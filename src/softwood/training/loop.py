"""Fit loop over the native trainer: several ensembles ("members") at once, early stopping, history, checkpoints.

Comes in: a finite float matrix, numeric targets, row numbers. Goes out: trees with their batch normalisation, and what
happened in each epoch. Encoding of tables is left to `preprocess`, prediction and files to `model`, the arithmetic of a
step to the core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from softwood.arguments import MAX_DEPTH, check_activation, check_n_threads
from softwood.losses import Loss
from softwood.ops import get_num_threads
from softwood.training.checkpoint import read_checkpoint, write_checkpoint
from softwood.training.member_state import MemberState
from softwood.training.members import (
    BatchNorm,
    EpochRecord,
    Member,
    StopReason,
    TrainedMember,
    Trees,
    check_members,
)


@dataclass(frozen=True)
class TrainingConfig:
    """How the members of one fit are built and trained; the same for all of them.

    Parameters
    ----------
    loss : Loss
        What is minimised.
    n_trees, depth, activation, bias
        Shape of each ensemble; `bias` adds a learned bias to each split.
    gamma, gamma_end, gamma_window
        Width of the soft band. With `gamma_end` it moves geometrically from `gamma` to `gamma_end` while training goes
        through `gamma_window`, a pair of shares of all steps, and is constant before and after.
    init_scale : float
        Split and leaf weights start uniform in plus or minus this; biases start at 0.
    max_features : float
        Share of the features that each split may use, a random choice made once per split. At least one is kept.
    learning_rate, schedule, warmup
        Highest learning rate; "cosine" (linear warm-up over the share `warmup` of all steps, then a half cosine to 0)
        or "constant" (after the same warm-up).
    batch_size : int
        Rows a step at most. Batches of an epoch differ in size by one at most, so that no tiny batch is left over.
    max_epochs, patience, best_after
        Epochs at most; a member stops after `patience` epochs without a better validation loss (None: never). Epochs
        before `best_after` are never the best (useful when gamma is still being narrowed).
    l1 : float
        Decoupled L1 on split weights: after each update they move towards 0 by learning rate times `l1`, and stop there
        (a proximal step, so exact zeros occur; not scaled by Adam's denominator).
    l2 : float
        The paper's penalty on split weights: `l2 / 2 * ||w||^2` is part of the loss; its gradient passes through Adam.
    weight_decay : float
        Decoupled decay of leaf weights, as in AdamW.
    batch_norm : bool or "fixed"
        True: inputs are normalised by the statistics of each batch, with learned scale and shift. "fixed": by those of
        all training rows, with learned scale and shift. False: not at all. Either way the fitted statistics are exact
        over the training rows: batch normalisation stands first, so they need no moving average.
    optimizer : {"auto", "adam", "lazy_adam"}
        "adam" updates every row in each step, as torch.optim.Adam does. "lazy_adam" updates only the rows of splits and
        leaves that got a gradient; moments, penalties and decay of the others stand still. That is another algorithm,
        and a step costs what the batch reached. "auto" decides per tree and step: lazily when less than half of the
        tree's splits got a gradient.
    betas, epsilon
        Adam's.
    ema : float, optional
        Decay per step of the exponential average of all parameters (started without bias); validation and the result
        then use the averages.
    batch_norm_epsilon : float
        Added to variances.
    """

    loss: Loss
    n_trees: int = 64
    depth: int = 4
    gamma: float = 1.0
    gamma_end: float | None = None
    gamma_window: tuple[float, float] = (0.0, 1.0)
    activation: Literal["smooth_step", "smoother_step", "logistic"] = "smooth_step"
    bias: bool = True
    init_scale: float = 0.01
    max_features: float = 1.0
    learning_rate: float = 0.004
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: float = 0.1
    batch_size: int = 64
    max_epochs: int = 50
    patience: int | None = 15
    best_after: int = 0
    l1: float = 0.0
    l2: float = 0.0
    weight_decay: float = 0.0
    batch_norm: bool | Literal["fixed"] = True
    optimizer: Literal["auto", "adam", "lazy_adam"] = "auto"
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    ema: float | None = None
    batch_norm_epsilon: float = 1e-5

    def check(self) -> None:
        """Raise a ValueError that names the first setting that is out of range, if any is."""
        self.loss.check()
        check_activation(self.activation)
        gamma_end = self.gamma if self.gamma_end is None else self.gamma_end
        rules = [
            ("n_trees", "at least 1", self.n_trees >= 1),
            ("depth", f"1 to {MAX_DEPTH}", 1 <= self.depth <= MAX_DEPTH),
            ("gamma", "positive", self.gamma > 0),
            ("gamma_end", "positive or None", gamma_end > 0),
            ("gamma_window", "two rising shares in [0, 1]", 0 <= self.gamma_window[0] <= self.gamma_window[1] <= 1),
            ("init_scale", "positive", self.init_scale > 0),
            ("max_features", "in (0, 1]", 0 < self.max_features <= 1),
            ("learning_rate", "positive", self.learning_rate > 0),
            ("schedule", "'cosine' or 'constant'", self.schedule in ("cosine", "constant")),
            ("warmup", "in [0, 1)", 0 <= self.warmup < 1),
            ("batch_size", "at least 1", self.batch_size >= 1),
            ("max_epochs", "at least 1", self.max_epochs >= 1),
            ("patience", "at least 1 or None", self.patience is None or self.patience >= 1),
            ("l1", "at least 0", self.l1 >= 0),
            ("l2", "at least 0", self.l2 >= 0),
            ("weight_decay", "at least 0", self.weight_decay >= 0),
            ("batch_norm", "True, False or 'fixed'", self.batch_norm in (True, False, "fixed")),
            ("optimizer", "'auto', 'adam' or 'lazy_adam'", self.optimizer in ("auto", "adam", "lazy_adam")),
            ("betas", "two numbers in [0, 1)", all(0 <= beta < 1 for beta in self.betas) and len(self.betas) == 2),
            ("epsilon", "positive", self.epsilon > 0),
            ("ema", "in (0, 1) or None", self.ema is None or 0 < self.ema < 1),
            ("batch_norm_epsilon", "positive", self.batch_norm_epsilon > 0),
        ]
        for name, requirement, holds in rules:
            if not holds:
                raise ValueError(f"{name} must be {requirement}; got {getattr(self, name)!r}.")


EpochCallback = Callable[[list[EpochRecord]], "bool | None"]


def fit_members(
    config: TrainingConfig,
    members: Sequence[Member],
    *,
    n_threads: int | None = None,
    callback: EpochCallback | None = None,
    time_limit: float | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 30.0,
    resume: bool = False,
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
    members : sequence of Member
        Their tables may differ (two encodings, say), but share dtype and number of targets.
    n_threads : int, optional
        At most this many threads; the library's setting if None.
    callback : callable, optional
        Called after each epoch with one `EpochRecord` per member still in training; returning True stops all.
    time_limit : float, optional
        Seconds.
    checkpoint : path, optional
        File that is renewed every `checkpoint_every` seconds at the end of an epoch (0: after each), and removed by
        nobody: a finished run leaves its last state.
    resume : bool
        Go on from `checkpoint` if that file exists; the result equals that of the uninterrupted run to the bit. A
        file of another configuration or other data is refused with a ValueError.
    keep_state : bool
        Return the optimiser's moments too, of the last step rather than of the best epoch.
    accumulate : bool
        With `Member.start`: merge its batch-norm statistics with those of the new rows rather than replace them (for
        tables that come in pieces).

    Raises
    ------
    ValueError
        If shapes, dtypes or targets do not fit, or the checkpoint is of another run or damaged.
    FloatingPointError
        If a loss is not finite; the message names the likely causes.

    Examples
    --------
    >>> from softwood.training import Samples
    >>> x = np.random.default_rng(0).normal(size=(200, 3))
    >>> config = TrainingConfig(Loss("squared_error"), n_trees=4, depth=2, max_epochs=30, learning_rate=0.05)
    >>> (member,) = fit_members(config, [Member(Samples(x, x[:, 0] > 0, rows=np.arange(150)))])
    >>> member.history[-1].train_loss < 0.1
    True
    """
    config.check()
    check_members(config.loss, members)
    threads = check_n_threads(n_threads) or get_num_threads()
    states = [MemberState(config, member, n_threads=threads, accumulate=accumulate) for member in members]
    fit = _Fit(config, members, states, threads, callback, checkpoint, checkpoint_every)
    if resume and checkpoint is not None and os.path.exists(checkpoint):
        fit.next_epoch = read_checkpoint(checkpoint, config, members, states)
    fit.run(np.inf if time_limit is None else time.monotonic() + time_limit)
    return [_trained(state, keep_state) for state in states]


@dataclass
class _Fit:
    """The loop over epochs."""

    config: TrainingConfig
    members: Sequence[Member]
    states: list[MemberState]
    n_threads: int
    callback: EpochCallback | None
    checkpoint: str | os.PathLike[str] | None
    checkpoint_every: float
    next_epoch: int = 0

    def run(self, deadline: float) -> None:
        saved_at = time.monotonic()
        try:
            while self.next_epoch < self.config.max_epochs and self.active():
                self.run_epoch(deadline)
                due = not self.active() or self.next_epoch == self.config.max_epochs
                if self.checkpoint is not None and (due or time.monotonic() - saved_at >= self.checkpoint_every):
                    write_checkpoint(self.checkpoint, self.config, self.members, self.states, self.next_epoch)
                    saved_at = time.monotonic()
        except KeyboardInterrupt:
            self.stop("interrupt")

    def active(self) -> list[int]:
        return [i for i, state in enumerate(self.states) if state.stopped_by is None]

    def stop(self, reason: StopReason) -> None:
        for i in self.active():
            self.states[i].stopped_by = reason

    def run_epoch(self, deadline: float) -> None:
        active = self.active()
        natives = [self.states[i].native for i in active]
        outcomes = natives[0].run_epoch(natives, self.next_epoch, deadline - time.monotonic(), self.n_threads)
        records = []
        for i, (status, steps_done, *numbers) in zip(active, outcomes, strict=True):
            if status == _NOT_FINITE:
                raise _not_finite(self.config, i, self.next_epoch, steps_done)
            record = EpochRecord(self.next_epoch, *numbers)
            if status == _COMPLETED:
                self.note(i, record)
            records.append(record)
        if any(outcome[0] == _STOPPED for outcome in outcomes):
            self.stop("time_limit")
            return
        self.next_epoch += 1
        if self.callback is not None and self.callback(records):
            self.stop("callback")

    def note(self, i: int, record: EpochRecord) -> None:
        """Add the record to the history, keep the parameters if they are the best, and stop if patience is over."""
        state, config = self.states[i], self.config
        state.history.append(record)
        if self.members[i].validation is None:
            return
        if np.isnan(record.validation_loss) and callable(config.loss.name):
            raise ValueError(
                "validation rows need a loss function that returns (gradient, loss); it returned the gradient only: "
                "return both, or train without validation rows."
            )
        if record.epoch < config.best_after:
            return
        if record.validation_loss < state.best_loss:
            state.keep_best(record.epoch, record.validation_loss)
        if config.patience is not None and record.epoch - state.best_epoch >= config.patience:
            state.stopped_by = "patience"


_COMPLETED, _STOPPED, _NOT_FINITE = 0, 1, 2  # EpochOutcome::Status


def _not_finite(config: TrainingConfig, member: int, epoch: int, step: int) -> FloatingPointError:
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


def _trained(state: MemberState, keep_state: bool) -> TrainedMember:
    arrays, gamma = (state.current(), state.native.gamma) if state.best is None else (state.best, state.best_gamma)
    best_epoch = state.best_epoch if state.best is not None else len(state.history) - 1
    config, norm = state.config, None
    if config.batch_norm:
        norm = BatchNorm(
            mean=state.arrays["mean"],
            variance=state.arrays["variance"],
            scale=arrays["scale"],
            shift=arrays["shift"],
            epsilon=config.batch_norm_epsilon,
            n_rows=state.n_rows_seen,
        )
    frozen = np.isinf(state.arrays["split_weight.second_moment"])
    trees = Trees(
        split_weight=arrays["split_weight"],
        split_bias=arrays.get("split_bias"),
        leaf_weight=arrays["leaf_weight"],
        offset=state.arrays["offset"],
        gamma=gamma,
        activation=config.activation,
        batch_norm=norm,
        feature_mask=~frozen if frozen.any() else None,
    )
    return TrainedMember(
        trees=trees,
        best_epoch=best_epoch,
        best_loss=float(state.best_loss) if state.best is not None else float("nan"),
        history=state.history,
        stopped_by=state.stopped_by or "max_epochs",
        optimizer_state=state.optimizer_state() if keep_state else None,
    )
