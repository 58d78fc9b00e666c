"""What a fitted model is made of: trees, the normalisation before them, and the head that makes predictions of scores.

Plain data with a few derived values. `softwood.training` makes the trees, `softwood.model.model` holds all parts
together, `softwood.model.file` writes and reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from softwood.arguments import FloatArray
from softwood.model.lookup_trees import LookupTrees
from softwood.model.program import Link, PredictionHead

if TYPE_CHECKING:
    from softwood.training.losses import Loss

TASKS = ("binary", "multiclass", "multilabel", "regression")


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
    """Parameters of one fitted ensemble of linear splits. Raw scores are offset + sum of trees of the normalised x.

    `split_weight` [m, 2^d - 1, p], `split_bias` [m, 2^d - 1] or None, `leaf_weight` [m, 2^d, k], `offset` [k] (not
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
        w, b = self.split_weight, self.split_bias
        if self.batch_norm is None:
            return w, b, self.leaf_weight
        norm = self.batch_norm
        # In float64: mean / deviation may be large, and the product below then cancels.
        factor = norm.scale.astype(np.float64) / np.sqrt(norm.variance.astype(np.float64) + norm.epsilon)
        constant = norm.shift.astype(np.float64) - norm.mean * factor
        bias = w @ constant if b is None else b + w @ constant
        return (w * factor).astype(w.dtype), bias.astype(w.dtype), self.leaf_weight


@dataclass(frozen=True, eq=False)
class Head:
    """What the scores were trained for; `lowered` says how they become predictions.

    Attributes
    ----------
    task : {"binary", "multiclass", "multilabel", "regression"}
    loss : Loss
        The loss that the scores were trained for; it knows the link.
    classes : ndarray, optional
        Class labels in the order of the outputs (binary: the score is for the second; multilabel: names of the labels).
    target_mean, target_scale : ndarray [t], optional
        Standardisation of the targets of a regression, undone in predictions; t targets.
    """

    task: str
    loss: Loss
    classes: np.ndarray | None = None
    target_mean: NDArray[np.float64] | None = None
    target_scale: NDArray[np.float64] | None = None

    def predictions(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """What `PredictionHead.predictions` gives for raw scores [n, k]."""
        return self.lowered().predictions(scores)

    def central(self, predictions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Predictions of a regression as one number per row and target: of several quantiles that nearest to 0.5."""
        if self.loss.name != "quantile" or len(self.loss.quantiles) == 1:
            return predictions
        return predictions[..., int(np.abs(np.array(self.loss.quantiles) - 0.5).argmin())]

    def lowered(self) -> PredictionHead:
        """The head as the prediction program has it, without the loss."""
        of_task = {"binary": Link.BINARY, "multiclass": Link.SOFTMAX, "multilabel": Link.LOGISTIC}
        link = of_task.get(self.task, self.loss.link)
        ranks: list[int] = []
        if self.loss.name == "quantile":
            ranks = np.argsort(np.argsort(self.loss.quantiles)).tolist()
        return PredictionHead(link, self.classes, self.target_mean, self.target_scale, tuple(ranks))


@dataclass(frozen=True, eq=False)
class ModelMember:
    """One ensemble and the name of the encoding that it reads; trees of lookups read cells instead."""

    encoding: str
    trees: Trees | LookupTrees
