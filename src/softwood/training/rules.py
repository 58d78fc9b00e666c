"""What "auto" means: hyperparameters as functions of how long and wide a table is, and of the task.

Input: the size of a table, and the hyperparameters that are already known. Output: one value per rule. The
declarations in `softwood.training.hyperparameters` name the rules; docs/hyperparameters.md explains them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Steps over which the learning rate rises at the start.
WARMUP_STEPS = 50
# From this many rows on, held-out rows can tell a strong from a weak L1 penalty, and whether two members are enough.
_MIN_ROWS_TO_JUDGE = 2000
_WEAK_L1 = 0.03
# From so many rows of classes, or of numbers, on, soft bands are narrowed after training, until rows reach this share
# of the leaves.
_MIN_ROWS_OF_CLASSES, _MIN_ROWS_OF_NUMBERS, _FEW_LEAVES = 2000, 8000, 0.22
# Rows beyond which an epoch has more steps than that of any shorter table: the batch no longer grows.
_ROWS_OF_LARGEST_BATCH = 1024 * 64 * 2**0.5
_BINS_OF_SHORT_REGRESSIONS = 24
# Levels of a category that are worth a weight per split, and rows that each needs on average.
_MOST_LEVELS, _MIN_ROWS_PER_LEVEL = 10_000, 4
# Rows per level that leave no doubt of it.
_MANY_ROWS_PER_LEVEL = 500
# Steps that all but the smallest tables can get, steps without progress that end a fit of a short and of a long table,
# and steps over which parameters are averaged.
_MIN_STEPS, _PATIENCE_STEPS, _PATIENCE_STEPS_OF_LONG, _AVERAGE_STEPS = 3000, 300, 250, 50


@dataclass(frozen=True)
class TableFacts:
    """What the value "auto" of a hyperparameter may depend on.

    Attributes
    ----------
    task : {"binary", "multiclass", "multilabel", "regression"}
    n_rows : int
        Training rows; a whole weight of 2 counts twice.
    n_columns : int
        Columns that the features are made of.
    n_classes : int
        Number of classes or labels; 0 for a regression.
    """

    task: str
    n_rows: int
    n_columns: int
    n_classes: int = 0


Known = Mapping[str, Any]


def batch_size(facts: TableFacts, known: Known) -> int:
    """A power of two near n / 64, from 32 to 1024: an epoch takes about 64 steps on tables of middle length."""
    batch = 32
    while batch < 1024 and batch * 64 * 2**0.5 < facts.n_rows:
        batch *= 2
    return batch


def max_epochs(facts: TableFacts, known: Known) -> int:
    """50, and up to 1,000 where an epoch has few steps; `patience` ends most fits earlier."""
    return min(1000, max(50, -(-_MIN_STEPS // _steps_per_epoch(facts.n_rows, known))))


def patience(facts: TableFacts, known: Known) -> int:
    """4 epochs, and up to 100 where an epoch has few steps."""
    n_steps = _PATIENCE_STEPS if facts.n_rows < _MIN_ROWS_TO_JUDGE else _PATIENCE_STEPS_OF_LONG
    return min(100, max(4, -(-n_steps // _steps_per_epoch(facts.n_rows, known))))


def l1(facts: TableFacts, known: Known) -> float:
    """A weight stays 0 unless the mean of its gradient exceeds this share of the gradient's spread over batches.

    The mean over an epoch of k steps is uncertain by 1 / sqrt(k) of that spread. While the batch grows with the number
    of rows, k and the share stay the same; where the batch has reached its largest size, the share falls.
    """
    if facts.n_rows < _MIN_ROWS_TO_JUDGE:
        return 0.1
    share = 0.05 if facts.task == "regression" and known["n_members"] == 1 else 0.15
    return share * _less_noise(facts)


def weak_l1(facts: TableFacts, known: Known) -> float | None:
    """The penalty that the first of several members tries beside `l1`; None if none is tried."""
    if facts.n_rows < _MIN_ROWS_TO_JUDGE or known["n_members"] == 1:
        return None
    return _WEAK_L1 * _less_noise(facts)


def tries_levels(facts: TableFacts, known: Known, n_levels: int) -> bool:
    """Whether the first of several members also tries to read categories level by level, instead of by target means.

    `n_levels` is that of the largest such category. Levels of many rows have effects of their own that a mean cannot
    tell, but each costs a weight per split.
    """
    are_known = 0 < n_levels <= min(_MOST_LEVELS, facts.n_rows / _MIN_ROWS_PER_LEVEL)
    return are_known and facts.n_rows >= _MIN_ROWS_TO_JUDGE and known["n_members"] > 1


def reads_levels(facts: TableFacts, n_levels: int) -> bool:
    """Whether categories of a table in files are read level by level; no trial is made, as cells are written once."""
    return 0 < n_levels <= min(_MOST_LEVELS, facts.n_rows / _MANY_ROWS_PER_LEVEL)


def n_bins(facts: TableFacts, known: Known) -> int:
    """About 2 n^(1/4): 8 for 250 rows, 20 for 10,000, 36 for 100,000; 24 for regressions of few rows.

    A number says more of where a value of its target lies than a class does.
    """
    is_short = facts.task == "regression" and facts.n_rows < _MIN_ROWS_TO_JUDGE
    return _BINS_OF_SHORT_REGRESSIONS if is_short else most_bins(facts.n_rows)


def most_bins(n_rows: int) -> int:
    """Bins of a column of a table with so many rows."""
    return int(min(128, max(4, round(2 * n_rows**0.25))))


def max_reach(facts: TableFacts, known: Known) -> float:
    """0.22 where bands may be narrowed after training; 1 narrows nothing."""
    if known["gamma_end"] is not None or known["activation"] == "logistic":
        return 1.0
    n_least = _MIN_ROWS_OF_NUMBERS if facts.task == "regression" else _MIN_ROWS_OF_CLASSES
    return _FEW_LEAVES if facts.n_rows >= n_least else 1.0


def max_features(facts: TableFacts, known: Known) -> float:
    """A quarter of the columns, at least three and at most 48."""
    n_columns = max(1, facts.n_columns)
    return min(1.0, max(0.25, 3 / n_columns), 48 / n_columns)


def n_members(facts: TableFacts, known: Known) -> int:
    """6, or at most 4 from 2,000 rows on."""
    return 4 if may_stop_adding(facts) else 6


def may_stop_adding(facts: TableFacts) -> bool:
    """Whether two members are trained first, and others only where those two differ enough on held-out rows."""
    return facts.n_rows >= _MIN_ROWS_TO_JUDGE


def compact(facts: TableFacts, known: Known) -> bool:
    """No: on the paper's sets the log-loss of taught ensembles is 2% higher in the median (benchmarks/compact.json).

    1% would have been acceptable. It is far higher where the members are almost always sure; the AUC hardly changes.
    """
    return False


def average_decay(n_rows: int, known: Known) -> float:
    """Decay per step of the average of parameters: over an epoch, and over `_AVERAGE_STEPS` steps at least."""
    return 1 - 1 / max(_AVERAGE_STEPS, _steps_per_epoch(n_rows, known))


def warmup(n_rows: int, known: Known) -> float:
    """Share of all steps in which the learning rate rises."""
    return min(0.5, WARMUP_STEPS / (_steps_per_epoch(n_rows, known) * int(known["max_epochs"])))


def _less_noise(facts: TableFacts) -> float:
    """Noise of an epoch's mean gradient, beside that of tables whose batch grows with them."""
    return min(1.0, (_ROWS_OF_LARGEST_BATCH / facts.n_rows) ** 0.5)


def _steps_per_epoch(n_rows: int, known: Known) -> int:
    return -(-n_rows // int(known["batch_size"]))
