"""Reports on a fit after each epoch: to the callbacks of the caller, and to people by a progress bar.

The bar is drawn by rich where that is installed and the output is a terminal or a notebook, and printed as plain lines
elsewhere. Ready callbacks are in `softwood.callbacks`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

import numpy as np

from softwood.training.samples import EpochRecord

_SECONDS_BETWEEN_LINES = 2.0


@dataclass(frozen=True)
class EpochSummary:
    """What one epoch did: means over the members that are still in training. Callbacks get one.

    Attributes
    ----------
    step : int
        Epochs that this fit has called callbacks for before this one. Members may be trained one after the other, so
        that `epoch` starts again while `step` continues.
    epoch, max_epochs : int
        Epoch of the members, counted from 0, and their largest number.
    train_loss, validation_loss, validation_metric : float
        NaN where there is none.
    metrics : dict of str to float
        Numbers of each evaluation set, if there are several.
    mean_reachable_leaves, learning_rate, gamma, seconds : float
    members : tuple of EpochRecord
        The same for each member.
    """

    step: int
    epoch: int
    max_epochs: int
    train_loss: float
    validation_loss: float
    validation_metric: float
    metrics: dict[str, float]
    mean_reachable_leaves: float
    learning_rate: float
    gamma: float
    seconds: float
    members: tuple[EpochRecord, ...]


# What is reported of an epoch: names of numbers of an `EpochSummary`, which are means over members.
EPOCH_VALUES = (
    "train_loss",
    "validation_loss",
    "validation_metric",
    "mean_reachable_leaves",
    "learning_rate",
    "gamma",
    "seconds",
)


class Callbacks:
    """Passes each epoch on to the progress bar and to the caller's functions; True of one of these stops the fit."""

    def __init__(self, max_epochs: int, functions: Sequence[Any], progress: Progress | None = None) -> None:
        self.max_epochs = max_epochs
        self.functions = functions
        self.progress = progress
        self.step = 0

    def __call__(self, records: Sequence[EpochRecord]) -> bool:
        """Tell all of the epoch that has just ended."""
        if self.progress is not None:
            self.progress(records)
        if not records or not self.functions:
            return False
        means = {name: float(np.mean([getattr(record, name) for record in records])) for name in EPOCH_VALUES}
        metrics = {name: float(np.mean([record.metrics[name] for record in records])) for name in records[0].metrics}
        summary = EpochSummary(
            self.step, records[0].epoch, self.max_epochs, metrics=metrics, members=tuple(records), **means
        )
        self.step += 1
        answers = [function(summary) for function in self.functions]  # all of them hear of each epoch
        return any(answer is True for answer in answers)


def check_callbacks(callbacks: Any) -> list[Any]:
    """The callbacks as a list; an error if they are anything else than a list of callables or None."""
    if callbacks is None:
        return []
    if not isinstance(callbacks, (list, tuple)) or not all(callable(function) for function in callbacks):
        raise ValueError(f"callbacks must be a list of callables, or None; got {callbacks!r}.")
    return list(callbacks)


class Progress:
    """Callback for `softwood.training.fit_members` that shows how training goes. Use it in a with statement.

    Parameters
    ----------
    max_epochs : int
        Epochs at most.
    metric : str
        What the validation metric is called.
    """

    def __init__(self, max_epochs: int, metric: str) -> None:
        self.max_epochs = max_epochs
        self.metric = metric
        self._epoch, self._n_members = max_epochs, 0
        self._bar: Any = None
        self._task: Any = None
        self._last_line = 0.0
        self._report = RowReport(verbose=True, show=self._show_rows)

    def __enter__(self) -> Progress:
        self._bar = _rich_bar()
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("epoch", total=self.max_epochs, words="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def rows(self, what: str, done: int, total: int) -> None:
        """Show how far an epoch of many rows has come."""
        self._report(what, done, total)

    def _show_rows(self, words: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, words=words)
        else:
            print(words, file=sys.stderr, flush=True)

    def __call__(self, records: Sequence[EpochRecord]) -> None:
        """Show the epoch that has just ended."""
        if not records:
            return
        epoch = records[0].epoch + 1
        if epoch <= self._epoch:  # other members, or the same in another way
            self._n_members = len(records)
        self._epoch = epoch
        words = describe(records, self.metric)
        if len(records) < self._n_members:
            words += f", {self._n_members - len(records)} of {self._n_members} done"
        if self._bar is not None:
            self._bar.update(self._task, completed=epoch, words=words)
        elif epoch in (1, self.max_epochs) or time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            print(f"epoch {epoch}/{self.max_epochs}: {words}", file=sys.stderr, flush=True)


class RowReport:
    """Prints how far a pass over many rows has come, every two seconds: rows per second, and the time left.

    Parameters
    ----------
    verbose : int or bool
        Nothing is printed if it is 0.
    show : callable(str), optional
        What shows the words instead.
    """

    def __init__(self, verbose: int | bool, show: Callable[[str], None] | None = None) -> None:
        self.verbose, self.show = verbose, show
        self._what = ""
        self._started = self._last = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Tell that `done` rows of `total` are through; a pass begins with 0."""
        now = time.monotonic()
        if done == 0 or what != self._what:
            self._what, self._started, self._last = what, now, now
        if not self.verbose or done in (0, total) or now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        words = f"{what}: {describe_rows(done, total, now - self._started)}"
        if self.show is not None:
            self.show(words)
        else:
            print(words, file=sys.stderr, flush=True)


def describe_rows(done: int, total: int, seconds: float) -> str:
    """How far a pass over rows is, in words.

    Examples
    --------
    >>> describe_rows(1_000_000, 4_000_000, 30.0)
    '1,000,000 of 4,000,000 rows, 33,333 rows per second, 0:01:30 left'
    """
    rate = done / max(seconds, 1e-9)
    left = timedelta(seconds=round((total - done) / rate))
    return f"{done:,} of {total:,} rows, {rate:,.0f} rows per second, {left} left"


def describe(records: Sequence[EpochRecord], metric: str) -> str:
    """Means over members of what one epoch did, in words.

    Examples
    --------
    >>> describe([EpochRecord(0, 0.5, 0.25, 3.5, 0.004, 1.0, 0.1, 0.875)], "accuracy")
    'loss 0.5000, validation loss 0.2500, accuracy 0.8750, 3.5 reachable leaves'
    """
    parts = [f"loss {np.mean([r.train_loss for r in records]):.4f}"]
    validation = float(np.mean([r.validation_loss for r in records]))
    if np.isfinite(validation):
        parts.append(f"validation loss {validation:.4f}")
    reached = float(np.mean([r.validation_metric for r in records]))
    if np.isfinite(reached):
        parts.append(f"{metric} {reached:.4f}")
    parts.append(f"{np.mean([r.mean_reachable_leaves for r in records]):.1f} reachable leaves")
    return ", ".join(parts)


def _rich_bar() -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
    except ImportError:
        return None
    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        return None
    columns = (
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}"),
    )
    return RichProgress(TextColumn("epoch"), *columns, console=console)
