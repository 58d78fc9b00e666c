"""Trained members in, the same members with narrower soft bands out: rows then reach few leaves.

Trees need wide bands while they learn from labels: wide bands smooth the noise out. Afterwards, they do not. Each
member is trained for some more steps on its own scores, which have no noise, while its bands become narrower, until
rows reach few enough leaves (`TrainingConfig.hold_at_reach`). So narrowing is a fit like any other, whose targets are
scores; `narrowing_members` prepares it, and `narrowed` puts its outcome behind the history of the first fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.training.config import TrainingConfig
from softwood.training.judge import Judgement, ScoreJudge
from softwood.training.loop import scores_of
from softwood.training.losses import Link, Loss
from softwood.training.samples import MemberData, Samples, TrainedMember

# Share of the steps in which bands become narrower.
_NARROWING_SHARE = 0.8
# Rows, and scores of rows, that a member learns from at most, and rows per step: without noise, fewer are enough.
_MOST_ROWS, _MOST_SCORES, _MOST_ROWS_OF_STEP = 1 << 15, 1 << 25, 512
# Relative rise of a validation loss that is too much: errors of members are largely independent, so that the loss of
# their mean rises by as many times less as there are members.
_MOST_RISE = 0.01


@dataclass(frozen=True)
class _Rates:
    """What suits a kind of targets: steps, and smallest gamma and L1 penalty relative to the first fit's."""

    n_steps: int
    gamma: float
    l1: float


_OF_PROBABILITIES, _OF_NUMBERS = _Rates(448, 0.05, 0.15), _Rates(640, 0.1, 1.0)


def narrowing_config(config: TrainingConfig, member: MemberData, max_reach: float) -> TrainingConfig:
    """How members like this one, which were trained by `config`, are narrowed."""
    loss = _loss_to_scores(config.loss)
    rates = _OF_NUMBERS if loss.name == "squared_error" else _OF_PROBABILITIES
    n_rows = min(member.train.n_rows, _most_rows(config, member.train))
    batch_size = min(config.batch_size, _MOST_ROWS_OF_STEP)
    n_epochs = -(-rates.n_steps // -(-n_rows // batch_size))
    return replace(
        config, loss=loss, gamma_end=rates.gamma * config.gamma, gamma_window=(0.0, _NARROWING_SHARE),
        hold_at_reach=max_reach, batch_size=batch_size, max_epochs=n_epochs, patience=None, best_after=n_epochs - 1,
        schedule="cosine", warmup=0.02, ema=None, weight_decay=0.0, l1=rates.l1 * config.l1,
    )  # fmt: skip


def narrowing_members(
    config: TrainingConfig,
    members: Sequence[MemberData],
    trained: Sequence[TrainedMember],
    *,
    n_threads: int | None = None,
) -> list[MemberData]:
    """What each member learns from: its own scores of all rows that it knows, held-out ones included.

    Labels of held-out rows still judge it, since it does not learn these.
    """
    return [
        _narrowing_member(config, member, result, n_threads) for member, result in zip(members, trained, strict=True)
    ]


def narrowed(before: TrainedMember, after: TrainedMember, n_members: int) -> TrainedMember:
    """The narrowed member, with the history of both fits; the member as it was, if that is better for `n_members`."""
    if after.stopped_by != "max_epochs":  # cut short, which the caller must hear of
        return replace(before, stopped_by=after.stopped_by)
    if after.best_loss > before.best_loss + _MOST_RISE * n_members * abs(before.best_loss):
        return before
    first = before.history[-1].epoch + 1
    later = [replace(record, epoch=first + record.epoch) for record in after.history]
    return replace(
        before,
        trees=after.trees,
        weights=after.weights,
        best_epoch=first + after.best_epoch,
        best_loss=before.best_loss if np.isnan(after.best_loss) else after.best_loss,
        history=[*before.history, *later],
    )


def reach(config: TrainingConfig, member: TrainedMember) -> float:
    """Share of the leaves that a row reached on average in the best epoch."""
    record = next(record for record in member.history if record.epoch == member.best_epoch)
    return record.mean_reachable_leaves / (1 << config.depth)


def _narrowing_member(
    config: TrainingConfig, member: MemberData, trained: TrainedMember, n_threads: int | None
) -> MemberData:
    train, held_out = member.train, member.validation
    rows = np.arange(len(train.x)) if train.rows is None else train.rows
    if held_out is not None and held_out.x is train.x and held_out.rows is not None:
        rows = np.concatenate([rows, held_out.rows])  # in an order that does not depend on that of the table
    n_most = _most_rows(config, train)
    if len(rows) > n_most:
        rows = rows[np.sort(np.random.default_rng(member.seed).choice(len(rows), n_most, replace=False))]
    distinct = np.unique(rows)
    targets = _targets(config.loss, scores_of(config, member, trained, distinct, n_threads))
    judge = member.judge
    if held_out is not None:
        if _loss_to_scores(config.loss) != config.loss:
            judge = _LossOfLabels(config.loss, held_out, judge)
        held_out = replace(held_out, y=_labels(config.loss, held_out, targets.shape[1]))
    if len(distinct) < len(train.x):
        train = replace(
            train,
            x=train.x[distinct],
            sample_weight=None if train.sample_weight is None else train.sample_weight[distinct],
            offset=None if train.offset is None else train.offset[distinct],
        )
    lesson = replace(train, y=targets, rows=np.searchsorted(distinct, rows))
    return replace(member, train=lesson, validation=held_out, start=trained, judge=judge, changes={})


def _most_rows(config: TrainingConfig, train: Samples) -> int:
    n_targets = 1 if np.ndim(train.y) == 1 else np.shape(train.y)[1]
    return min(_MOST_ROWS, _MOST_SCORES // config.loss.outputs_for(n_targets))


def _loss_to_scores(loss: Loss) -> Loss:
    """The loss of a member relative to scores: a cross-entropy to probabilities, else the squared difference."""
    if callable(loss.name) or loss.name not in ("cross_entropy", "binary_cross_entropy"):
        return Loss("squared_error")
    return replace(loss, label_smoothing=0.0)


def _targets(loss: Loss, scores: NDArray[Any]) -> NDArray[Any]:
    return scores if _loss_to_scores(loss).name == "squared_error" else loss.predictions(scores)


def _labels(loss: Loss, held_out: Samples, n_outputs: int) -> NDArray[Any]:
    """Labels of held-out rows as targets of the loss to scores; zeros if they cannot be, where none are needed."""
    if not _has_metric(loss):
        return np.zeros((len(held_out.x), n_outputs))
    if loss.name != "cross_entropy":
        return held_out.y
    rows = np.arange(len(held_out.x)) if held_out.rows is None else held_out.rows
    shares = np.zeros((len(held_out.x), n_outputs), dtype=np.float32)  # other rows take no memory
    shares[rows, np.asarray(held_out.y).ravel()[rows].astype(np.intp)] = 1
    return shares


def _has_metric(loss: Loss) -> bool:
    """Whether the compiled trainer has a metric to show for the loss."""
    return (
        loss.link is Link.SOFTMAX
        or loss.link is Link.BINARY
        or loss.name in ("squared_error", "absolute_error", "huber")
    )


@dataclass(frozen=True, eq=False)
class _LossOfLabels:
    """Judges the scores of held-out rows by the member's own loss, where narrowing minimises another."""

    loss: Loss
    held_out: Samples
    judge: ScoreJudge | None

    @property
    def name(self) -> str:
        """Of the metric, for checkpoints."""
        return "loss" if self.judge is None else self.judge.name

    def __call__(self, scores: NDArray[Any]) -> Judgement:
        found = Judgement(None, None, None, {}) if self.judge is None else self.judge(scores)
        rows = slice(None) if self.held_out.rows is None else self.held_out.rows
        weight = None if self.held_out.sample_weight is None else self.held_out.sample_weight[rows]
        loss = self.loss.value(scores, self.held_out.y[rows], weight) if found.loss is None else found.loss
        metric = None if _has_metric(self.loss) else float("nan")
        return replace(
            found,
            criterion=loss if found.criterion is None else found.criterion,
            loss=loss,
            metric=metric if found.metric is None else found.metric,
        )
