"""Fit loop over the native trainer: several ensembles ("members") at once, early stopping, history, checkpoints.

Comes in: a finite float matrix, numeric targets, row numbers. Goes out: trees with their batch normalisation, and what
happened in each epoch. Encoding of tables is left to `preprocess`, prediction and files to `model`, the arithmetic of a
step to the core.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from softwood.losses import Loss

FloatArray = NDArray[np.floating]


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
        Highest learning rate; "cosine" (linear warm-up over the share `warmup` of all steps, then a half cosine to 0) or
        "constant" (after the same warm-up).
    batch_size : int
        Rows a step at most. An epoch is cut into batches whose sizes differ by one at most, so that no tiny batch is left.
    max_epochs, patience, best_after
        Epochs at most; a member stops after `patience` epochs without a better validation loss (None: never). Epochs
        before `best_after` are never the best (useful when gamma is still being narrowed).
    l1 : float
        Decoupled L1 on split weights: after each update they move towards 0 by learning rate times `l1`, and stop there
        (a proximal step, so exact zeros occur; not scaled by Adam's denominator).
    l2 : float
        The paper's penalty on split weights: `l2 / 2 * ||w||^2` is part of the loss, so its gradient passes through Adam.
    weight_decay : float
        Decoupled decay of leaf weights, as in AdamW.
    batch_norm : bool or "fixed"
        True: inputs are normalised by the statistics of each batch, with learned scale and shift. "fixed": by those of
        all training rows, with learned scale and shift. False: not at all. In every case the fitted statistics are exact
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


@dataclass(frozen=True, eq=False)
class Samples:
    """Rows of a table with their targets; several may share one table, which is never copied.

    Parameters
    ----------
    x : ndarray [n, p], float32 or float64, C-contiguous, finite
    y : ndarray [n] or [n, t]
        Targets; class numbers 0 to n_classes - 1 for "cross_entropy".
    sample_weight : ndarray [n], optional
        Not negative. Scaled inside so that the mean over the training rows is 1.
    rows : ndarray of int, optional
        Which rows of the table belong; all if None.
    """

    x: FloatArray
    y: NDArray
    sample_weight: NDArray | None = None
    rows: NDArray[np.integer] | None = None


@dataclass(frozen=True, eq=False)
class BatchNorm:
    """Normalisation before the trees: scale * (x - mean) / sqrt(variance + epsilon) + shift; arrays of shape [p]."""

    mean: FloatArray
    variance: FloatArray
    scale: FloatArray
    shift: FloatArray
    epsilon: float
    n_rows: int


@dataclass(frozen=True, eq=False)
class Trees:
    """Parameters of one fitted ensemble. Raw scores are offset + sum of trees of the normalised x.

    `split_weight` [m, 2^d - 1, p], `split_bias` [m, 2^d - 1] or None, `leaf_weight` [m, 2^d, k], `offset` [k] (fixed, not
    trained), `feature_mask` bool [m, 2^d - 1, p] or None (which features a split may use; needed only to train on).
    `gamma` is that of the epoch the parameters come from.
    """

    split_weight: FloatArray
    split_bias: FloatArray | None
    leaf_weight: FloatArray
    offset: FloatArray
    gamma: float
    activation: str
    batch_norm: BatchNorm | None = None
    feature_mask: NDArray[np.bool_] | None = None

    def folded(self) -> tuple[FloatArray, FloatArray | None, FloatArray]:
        """Return (split_weight, split_bias, leaf_weight) with batch normalisation folded in, for raw inputs."""
        raise NotImplementedError


@dataclass(frozen=True)
class EpochRecord:
    """What one epoch of one member did; losses are weighted means, `validation_loss` is NaN without validation rows."""

    epoch: int
    train_loss: float
    validation_loss: float
    mean_reachable_leaves: float
    learning_rate: float
    gamma: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Member:
    """One ensemble to be trained.

    Parameters
    ----------
    train : Samples
    validation : Samples, optional
        Decides the best epoch. Without it the last epoch is kept.
    seed : int
        Decides initial weights, feature masks and the order of rows.
    offset : ndarray [k], optional
        Added to the trees' sum, not trained; 0 if None. See `Loss.best_constant`.
    start : TrainedMember, optional
        Go on from these trees instead of random ones; moments of the optimiser too if it holds them.
    """

    train: Samples
    validation: Samples | None = None
    seed: int = 0
    offset: FloatArray | None = None
    start: TrainedMember | None = None


@dataclass(frozen=True, eq=False)
class TrainedMember:
    """Result of one member: its best trees, which epoch they are from (counted from 0), and the history.

    `optimizer_state` (only with `keep_state=True`) lets a later call go on where this one stopped; see `Member.start`.
    """

    trees: Trees
    best_epoch: int
    best_loss: float
    history: list[EpochRecord] = field(default_factory=list)
    stopped_by: Literal["max_epochs", "patience", "time_limit", "interrupt", "callback"] = "max_epochs"
    optimizer_state: dict[str, NDArray] | None = None


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
        Go on from `checkpoint` if that file exists; the result equals that of the uninterrupted run to the bit. A file of
        another configuration or other data is refused with a ValueError.
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
    """
    raise NotImplementedError
