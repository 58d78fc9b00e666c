"""Losses of the native trainer: which number is minimised, and how raw scores become predictions.

Comes in: the name of a loss, its parameters, the targets. Goes out: a checked `Loss`, the number of outputs it needs, the
best constant score to start from, and the inverse link that turns raw scores into predictions. The arithmetic of values
and gradients while training is the core's; here is only what is done once a fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

LOSS_NAMES = (
    "cross_entropy",
    "binary_cross_entropy",
    "squared_error",
    "absolute_error",
    "huber",
    "quantile",
    "poisson",
    "gamma",
    "tweedie",
)

CustomLoss = Callable[
    [NDArray[np.floating], NDArray[np.floating], NDArray[np.floating]],
    "NDArray[np.floating] | tuple[NDArray[np.floating], float]",
]


@dataclass(frozen=True)
class Loss:
    """What the trainer minimises: a mean over rows and outputs, each row times its sample weight.

    Parameters
    ----------
    name : str or callable
        "cross_entropy" (softmax over `n_classes` outputs; targets are class numbers), "binary_cross_entropy" (one logit
        a target; targets in [0, 1]), "squared_error", "absolute_error", "huber", "quantile" (pinball loss; one output a
        target and quantile, quantiles of one target side by side), "poisson", "gamma", "tweedie" (the last three score
        the logarithm of the mean). A callable gets `predictions` [n, k], `targets` [n, t] and `sample_weight` [n] of a
        batch and returns the gradient of the loss with respect to the predictions, [n, k], or that and the loss.
    n_classes : int, optional
        Number of classes, for "cross_entropy" only.
    n_outputs : int, optional
        Number of outputs, for a callable only; one a target if None.
    label_smoothing : float
        Share of each target given evenly to all classes (cross-entropies only).
    delta : float
        Where Huber's loss turns from squared to absolute.
    quantiles : tuple of float
        Quantiles in (0, 1), all estimated at once.
    power : float
        Variance power of Tweedie's distribution, in (1, 2).

    Examples
    --------
    >>> Loss("quantile", quantiles=(0.1, 0.5, 0.9)).outputs_for(n_targets=2)
    6
    """

    name: str | CustomLoss
    n_classes: int | None = None
    n_outputs: int | None = None
    label_smoothing: float = 0.0
    delta: float = 1.0
    quantiles: tuple[float, ...] = (0.5,)
    power: float = 1.5

    def outputs_for(self, n_targets: int) -> int:
        """Return the number of outputs k that the trees need for `n_targets` target columns."""
        raise NotImplementedError

    def best_constant(self, y: ArrayLike, sample_weight: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return the constant raw score [k] of least loss on `y` (zeros for a callable): a start for the offset."""
        raise NotImplementedError

    def predictions(self, scores: NDArray[np.floating]) -> NDArray[np.floating]:
        """Turn raw scores [n, k] into predictions [n, k]: class probabilities, means or quantiles."""
        raise NotImplementedError
