"""Members with their held-out rows in, trained members out: which way of training suits a table, and how many to train.

Most tables need the strong penalty; tables with little noise and many interactions need almost none. Categories with
many levels are read by target means, or level by level. Only held-out rows can tell what is better, so the first member
is trained in all ways, and the others in the best of them. Where two members agree, others would add nothing. Finally,
soft bands are narrowed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from softwood.training import Loss, MemberData, Samples, TrainedMember, TrainingConfig, fit_members, narrowing
from softwood.training.progress import Callbacks

# Relative fall of the held-out loss that is worth a weight for each level of a category.
_LEAST_GAIN_OF_LEVELS = 0.005
# Relative fall of the loss for which all further members are worth their time.
_LEAST_GAIN_OF_MEMBERS = 0.0025


@dataclass(frozen=True)
class RunOptions:
    """Settings of one run rather than of the model: seed, threads, checkpoints, and what trains the members."""

    seed: int
    n_threads: int | None = None
    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = False
    checkpoint_every: float = 30.0
    fit_members: Callable[..., list[TrainedMember]] | None = None  # trains members elsewhere


@dataclass(frozen=True)
class MemberFits:
    """Trains some members of a run; a run has several such fits, each with a checkpoint of its own."""

    run: RunOptions
    callbacks: Callbacks
    deadline: float | None

    def __call__(self, config: TrainingConfig, members: Sequence[MemberData], suffix: str = "") -> list[TrainedMember]:
        run = self.run
        return (run.fit_members or fit_members)(
            config,
            members,
            n_threads=run.n_threads,
            callback=self.callbacks,
            time_limit=None if self.deadline is None else max(0.0, self.deadline - time.monotonic()),
            checkpoint=None if run.checkpoint is None else os.fspath(run.checkpoint) + suffix,
            checkpoint_every=run.checkpoint_every,
            resume=run.resume,
            run_seed=run.seed,
        )


@dataclass(frozen=True, eq=False)
class Way:
    """How all members of a model are trained.

    Attributes
    ----------
    config : TrainingConfig
    members : sequence of MemberData
    changes : dict
        The penalty that was chosen among several.
    reads_levels : bool
        Whether members read categories level by level.
    trained : list of TrainedMember
        The first member, if several ways were tried.
    is_cut_short : bool
        Whether the time was over, or the user stopped the fit, before the ways could be compared.
    """

    config: TrainingConfig
    members: Sequence[MemberData]
    changes: dict[str, float] = field(default_factory=dict)
    reads_levels: bool = False
    trained: list[TrainedMember] = field(default_factory=list)
    is_cut_short: bool = False


def choose_way(
    fits: MemberFits,
    config: TrainingConfig,
    members: Sequence[MemberData],
    *,
    weak_l1: float | None = None,
    by_level: Sequence[MemberData] | None = None,
) -> Way:
    """Train the first member with either penalty and in either reading; choose what predicts held-out rows best.

    Parameters
    ----------
    fits : MemberFits
    config, members
        The usual way.
    weak_l1 : float, optional
        Another penalty.
    by_level : sequence of MemberData, optional
        The same members, which read categories level by level.
    """
    penalties: list[dict[str, float]] = [{}] if weak_l1 is None else [{}, {"l1": weak_l1}]
    readings = [members] if by_level is None else [members, by_level]
    trials = [replace(reading[0], changes=changes) for reading in readings for changes in penalties]
    if len(trials) == 1 or members[0].validation is None:
        return Way(config, members)
    tried = fits(config, trials, ".first")
    losses = np.array([member.best_loss for member in tried])
    losses[len(penalties) :] += _LEAST_GAIN_OF_LEVELS * np.abs(losses[len(penalties) :])
    best = int(losses.argmin())
    chosen = readings[best // len(penalties)]
    config = replace(config, **trials[best].changes)
    changes = {} if weak_l1 is None else {"l1": config.l1}
    return Way(config, chosen, changes, chosen is by_level, [tried[best]], any(map(_was_stopped, tried)))


def train_members(
    fits: MemberFits, way: Way, are_enough: Callable[[list[TrainedMember]], bool] | None = None
) -> list[TrainedMember]:
    """Train the members that are not trained yet; if two of them `are_enough`, no others."""
    trained, is_cut_short = list(way.trained), way.is_cut_short

    def add(n_members: int, suffix: str = "") -> None:
        nonlocal is_cut_short
        if len(trained) < n_members and not is_cut_short:
            added = fits(way.config, way.members[len(trained) : n_members], suffix)
            trained.extend(added)
            is_cut_short = any(map(_was_stopped, added))

    if are_enough is None:
        add(len(way.members))
    else:
        add(2)
        if not is_cut_short and not are_enough(trained):
            add(len(way.members), ".others")
    return trained


def narrow_members(
    fits: MemberFits, way: Way, trained: Sequence[TrainedMember], max_reach: float
) -> list[TrainedMember]:
    """Narrow the soft bands of members whose rows reach a larger share of the leaves than `max_reach`."""
    result = list(trained)
    is_whole = not any(map(_was_stopped, trained))
    chosen = [i for i, member in enumerate(trained) if is_whole and narrowing.reach(way.config, member) > max_reach]
    if chosen:
        members, before = [way.members[i] for i in chosen], [trained[i] for i in chosen]
        config = narrowing.narrowing_config(way.config, members[0], max_reach)
        lessons = narrowing.narrowing_members(way.config, members, before, n_threads=fits.run.n_threads)
        with suppress(FloatingPointError):  # the trees are fine as they are
            for i, after in zip(chosen, fits(config, lessons, ".narrow"), strict=True):
                result[i] = narrowing.narrowed(trained[i], after, len(trained))
    return [replace(member, weights=None) for member in result]


def _was_stopped(member: TrainedMember) -> bool:
    return member.stopped_by in ("time_limit", "interrupt", "callback")


def are_alike(loss: Loss, scores: Sequence[NDArray[np.float64]], held_out: Samples, n_members: int) -> bool:
    """Whether the mean of `n_members` members is expected to be hardly better than that of two, by their `scores`.

    The first of the two has not seen the held-out rows. A mean's loss falls with the number of members like its
    variance: two reach half of the gain that infinitely many would bring, four reach three quarters.

    Examples
    --------
    >>> held_out = Samples(np.zeros((4, 1)), np.array([2.0, -2.0, 2.0, -2.0]))
    >>> first = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    >>> [are_alike(Loss("squared_error"), (first, first + shift), held_out, 4) for shift in (0.01, 0.5)]
    [True, False]
    """
    rows = slice(None) if held_out.rows is None else held_out.rows
    y, weight = held_out.y[rows], None if held_out.sample_weight is None else held_out.sample_weight[rows]
    offset = 0.0 if held_out.offset is None else held_out.offset[rows]
    first, second = (loss.value(some + offset, y, weight) for some in scores)
    gain = (first + second) / 2 - loss.value(np.mean(scores, axis=0) + offset, y, weight)
    return bool(gain * (1 - 2 / n_members) < _LEAST_GAIN_OF_MEMBERS * abs(first))
