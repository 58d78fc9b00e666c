"""What a fit takes and gives back, ensemble by ensemble: rows of tables in, trees and a history out.

The classes here only hold arrays; `check_members` refuses what the trainer cannot take. Training is done by `loop`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from softwood.arguments import FloatArray
from softwood.model.lookup_trees import LookupTrees
from softwood.model.parts import Trees
from softwood.tabular.encoding.features import Encoding
from softwood.tabular.encoding.lookups import Lookups
from softwood.training.judge import ScoreJudge
from softwood.training.losses import Loss

_FINITE_BLOCK = 1 << 16
VALIDATION_SCORES = "validation_scores"  # beside the parameters of the best epoch

StopReason = Literal["max_epochs", "patience", "time_limit", "interrupt", "callback"]


@dataclass(frozen=True, eq=False)
class Samples:
    """Rows of a table with their targets; several may share one table, which is never copied.

    Parameters
    ----------
    x : ndarray [n, p], float32 or float64, C-contiguous, finite
    y : ndarray [n] or [n, t]
        Targets; for "cross_entropy" class numbers 0 to n_classes - 1, or the share of each class [n, n_classes].
    sample_weight : ndarray [n], optional
        Not negative. Scaled inside so that the mean over these rows is 1.
    rows : ndarray of int, optional
        Which rows of the table belong; all if None.
    encoding : Encoding or Lookups, optional
        With an `Encoding`, the trees see the encoded rows of x, a base matrix in which NaN stands for a missing value.
        Rows are encoded as they are needed, so that no encoded table is held in memory. With `Lookups`, x has their
        cells (uint32), and the splits are sums of lookups.
    offset : ndarray [n, k], optional
        Added to the scores of each row, not trained.
    """

    x: FloatArray
    y: NDArray[Any]
    sample_weight: NDArray[Any] | None = None
    rows: NDArray[np.integer[Any]] | None = None
    encoding: Encoding | Lookups | None = None
    offset: NDArray[Any] | None = None

    @property
    def n_features(self) -> int:
        """Number of inputs p that the trees see."""
        return self.x.shape[1] if self.encoding is None else self.encoding.n_features

    @property
    def n_rows(self) -> int:
        """Number of rows that belong."""
        return len(self.x) if self.rows is None else len(self.rows)


class RowSource(Protocol):
    """Rows of cells that lie on a disk; see `softwood.training.stream.RowStream`."""

    @property
    def identity(self) -> str:
        """Changes with the rows and their order."""


@dataclass(frozen=True, eq=False)
class StreamedSamples(Samples):
    """Rows of a source that are read again in each epoch; `x` and `y` have none, but their types and columns.

    `softwood.training.stream` trains on them. All members of a fit have the same source, and share what is read.

    Parameters
    ----------
    source : RowSource
    fold, n_folds : int
        Rows of this fold do not belong; with 0 folds, all do.
    n_streamed : int
        Number of rows that belong.
    """

    source: RowSource | None = None
    fold: int = 0
    n_folds: int = 0
    n_streamed: int = 0

    @property
    def n_rows(self) -> int:
        """Number of rows that belong."""
        return self.n_streamed

    @property
    def identity(self) -> list[Any]:
        """Changes with the rows and their order; for checkpoints."""
        assert self.source is not None
        return [self.source.identity, self.fold, self.n_folds]


@dataclass(frozen=True)
class EpochRecord:
    """What one epoch of one member did; losses are weighted means, `validation_loss` is NaN without validation rows.

    `validation_metric` is the share of right classes, or R squared of predicted means, on the validation rows; NaN for
    losses that know neither. With a `Judge` it is the judge's metric, and `metrics` has the numbers of every evaluation
    set by name.
    """

    epoch: int
    train_loss: float
    validation_loss: float
    mean_reachable_leaves: float
    learning_rate: float
    gamma: float
    seconds: float
    validation_metric: float = float("nan")
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class MemberData:
    """What one member, an ensemble of a model, is trained on and starts from.

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
        Continue from these trees instead of random ones, with the moments of the optimiser if it has them. Lookups
        need the `seed` with which they were trained, since it decides the columns of each split.
    changes : mapping of str to value
        Fields of the configuration that have another value for this member, such as `l1` or `depth`.
    judge : ScoreJudge, optional
        Decides the best epoch by the scores of the validation rows, instead of their loss.
    n_steps : int, optional
        Steps of the whole fit, for the schedule of rates, where `train` has only a part of the rows.
    """

    train: Samples
    validation: Samples | None = None
    seed: int = 0
    offset: FloatArray | None = None
    start: TrainedMember | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    judge: ScoreJudge | None = None
    n_steps: int | None = None


@dataclass(frozen=True, eq=False)
class TrainedMember:
    """Result of one member: its best trees, which epoch they are from (counted from 0), and the history.

    `validation_scores` [n, k] are the raw scores of the validation rows, in their order, in the best epoch.
    `optimizer_state` (only with `keep_state=True`) lets a later call continue where this one stopped; see
    `MemberData.start`. `weights` are those that trees of lookups were made of, for the same purpose.
    """

    trees: Trees | LookupTrees
    best_epoch: int
    best_loss: float
    history: list[EpochRecord] = field(default_factory=list)
    stopped_by: StopReason = "max_epochs"
    validation_scores: FloatArray | None = None
    optimizer_state: dict[str, NDArray[Any]] | None = None
    weights: dict[str, FloatArray] | None = None


def check_members(loss: Loss, members: Sequence[MemberData]) -> None:
    if not members:
        raise ValueError("members must hold at least one member; got none.")
    first = _check_samples(members[0].train, loss, "members[0].train")
    for i, member in enumerate(members):
        if not 0 <= member.seed < 2**64:
            raise ValueError(f"seed must be an integer from 0 to 2^64 - 1; got {member.seed} in members[{i}].")
        kinds = {"train": member.train, "validation": member.validation}
        for kind, samples in kinds.items():
            if samples is None:
                continue
            name = f"members[{i}].{kind}"
            dtype, n_targets = _check_samples(samples, loss, name)
            if (dtype, n_targets) != first:
                raise ValueError(
                    f"all tables must share dtype and number of targets; members[0].train has {first[0]} and "
                    f"{first[1]}, {name} has {dtype} and {n_targets}."
                )
            if samples.n_features != member.train.n_features:
                raise ValueError(
                    f"{name}.x must have the {member.train.n_features} columns of the training table; "
                    f"got {samples.n_features}."
                )


def _check_samples(samples: Samples, loss: Loss, name: str) -> tuple[np.dtype[Any], int]:
    x, y = samples.x, np.asarray(samples.y)
    if isinstance(samples, StreamedSamples):  # whose rows were checked when they were written
        return x.dtype, y.shape[1]
    if isinstance(samples.encoding, Lookups):
        if x.dtype != np.uint32 or x.ndim != 2 or not x.flags.c_contiguous or x.shape[1] != samples.n_features:
            raise ValueError(f"{name}.x must be the cells that its lookups made; got {x.dtype} of shape {np.shape(x)}.")
    elif (
        not isinstance(x, np.ndarray)
        or x.ndim != 2
        or x.dtype not in (np.float32, np.float64)
        or not x.flags.c_contiguous
    ):
        raise ValueError(
            f"{name}.x must be a C-contiguous float32 or float64 array [n, p]; "
            f"got {getattr(x, 'dtype', type(x).__name__)} of shape {np.shape(x)}: use numpy.ascontiguousarray."
        )
    rows = slice(None) if samples.rows is None else np.asarray(samples.rows)
    if len(x) == 0 or x.shape[1] == 0 or (samples.rows is not None and len(samples.rows) == 0):
        raise ValueError(f"{name} must hold at least one row and one column; got x of shape {x.shape}.")
    if isinstance(rows, np.ndarray) and (rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= len(x)):
        raise ValueError(f"{name}.rows must be row numbers from 0 to {len(x) - 1}; got {rows.dtype} {rows[:3]}...")
    if y.ndim not in (1, 2) or len(y) != len(x):
        raise ValueError(f"{name}.y must have one row for each of the {len(x)} rows of x; got shape {y.shape}.")
    if samples.encoding is None:  # which makes features finite
        _check_finite(x, name)
    targets = y.reshape(len(y), -1)[rows]
    loss.check_targets(targets)
    if samples.sample_weight is not None:
        weight = np.asarray(samples.sample_weight)
        if weight.shape != (len(x),) or not np.isfinite(weight).all() or (weight < 0).any() or not weight[rows].any():
            raise ValueError(
                f"{name}.sample_weight must be {len(x)} finite numbers >= 0, not all of them 0; "
                f"got shape {weight.shape}."
            )
    if samples.offset is not None:
        shape = (len(x), loss.outputs_for(targets.shape[1]))
        if np.shape(samples.offset) != shape or not np.isfinite(samples.offset).all():
            raise ValueError(f"{name}.offset must be finite, of shape {shape}; got shape {np.shape(samples.offset)}.")
    return x.dtype, targets.shape[1]


def _check_finite(x: FloatArray, name: str) -> None:
    """Block by block: a mask of the whole table would be a quarter of its size."""
    for begin in range(0, len(x), _FINITE_BLOCK):
        finite = np.isfinite(x[begin : begin + _FINITE_BLOCK])
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            raise ValueError(
                f"{name}.x must be finite; got {x[begin + row, column]} at row {begin + row}, column {column}: "
                "impute or drop such values."
            )
