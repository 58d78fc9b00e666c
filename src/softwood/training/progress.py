"""A progress bar for training: loss, validation metric and mean reachable leaves after each epoch.

Drawn by rich where that is installed and the output is a terminal or a notebook, and printed as plain lines elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from softwood.training.samples import EpochRecord

_SECONDS_BETWEEN_LINES = 2.0


class Progress:
    """Callback for `softwood.training.fit_members` that shows how training goes. Use it in a with statement.

    Parameters
    ----------
    max_epochs : int
        Epochs at most.
    n_members : int
        Members at the start; those that stopped early are reported as done.
    metric : str
        What the validation metric is called.
    """

    def __init__(self, max_epochs: int, n_members: int, metric: str) -> None:
        self.max_epochs = max_epochs
        self.n_members = n_members
        self.metric = metric
        self._bar: Any = None
        self._task: Any = None
        self._last_line = 0.0

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

    def __call__(self, records: Sequence[EpochRecord]) -> None:
        """Show the epoch that has just ended."""
        if not records:
            return
        epoch = records[0].epoch + 1
        words = describe(records, self.metric)
        if len(records) < self.n_members:
            words += f", {self.n_members - len(records)} of {self.n_members} members done"
        if self._bar is not None:
            self._bar.update(self._task, completed=epoch, words=words)
        elif epoch in (1, self.max_epochs) or time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            print(f"epoch {epoch}/{self.max_epochs}: {words}", file=sys.stderr, flush=True)


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
