"""Losses of the native trainer: which number is minimised, and how raw scores become predictions.

Input: the name of a loss, its parameters, the targets. Output: a checked `Loss`, the number of outputs it needs,
the best constant score to start from, and the inverse link that turns raw scores into predictions. Values and gradients
while training are the core's; this module has what is done once per fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from softwood.arguments import FloatArray
from softwood.model.program import Link

CustomLoss = Callable[[FloatArray, FloatArray, FloatArray], FloatArray | tuple[FloatArray, float]]

# The order is that of LossKind in the core.
LossName = Literal[
    "cross_entropy",
    "binary_cross_entropy",
    "squared_error",
    "absolute_error",
    "huber",
    "quantile",
    "poisson",
    "gamma",
    "tweedie",
]
LOSS_NAMES: tuple[str, ...] = get_args(LossName)
_CUSTOM = len(LOSS_NAMES)
_LOG_LINK = ("poisson", "gamma", "tweedie")
# Shares of classes nearer to 0 or 1 than this start from the score of this one.
_SMALLEST_SHARE = 1e-6
# Mean that the logarithm of a mean of 0 starts from.
_SMALLEST_MEAN = 1e-30
_FIXED_POINT_STEPS = 30


@dataclass(frozen=True)
class Loss:
    """What the trainer minimises: a mean over rows and outputs, each row times its sample weight.

    Parameters
    ----------
    name : str or callable
        "cross_entropy" (softmax over `n_classes` outputs; targets are class numbers), "binary_cross_entropy" (one logit
        per target; targets in [0, 1]), "squared_error", "absolute_error", "huber", "quantile" (pinball loss; one output
        per target and quantile, quantiles of one target side by side), "poisson", "gamma", "tweedie" (the last three
        score the logarithm of the mean). A callable gets `predictions` [n, k], `targets` [n, t] and `sample_weight` [n]
        of a batch and returns the gradient of the loss with respect to the predictions, [n, k], or that and the loss.
        It is used as it comes: dividing by the number of rows is left to the callable.
    n_classes : int, optional
        Number of classes, for "cross_entropy" only.
    n_outputs : int, optional
        Number of outputs, for a callable only; one per target if None.
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

    def check(self) -> None:
        """Raise a ValueError that says what is wrong with the parameters, if anything is."""
        if not callable(self.name) and self.name not in LOSS_NAMES:
            raise ValueError(f"loss must be a callable or one of {', '.join(LOSS_NAMES)}; got {self.name!r}.")
        if self.name == "cross_entropy" and (self.n_classes is None or self.n_classes < 2):
            raise ValueError(f"cross_entropy needs n_classes >= 2; got {self.n_classes}.")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be at least 0 and below 1; got {self.label_smoothing}.")
        if not self.delta > 0:
            raise ValueError(f"delta must be positive; got {self.delta}.")
        if not isinstance(self.quantiles, Sequence) or not all(isinstance(q, Real) for q in self.quantiles):
            raise ValueError(f"quantiles must be a tuple of numbers, such as (0.1, 0.9); got {self.quantiles!r}.")
        if not self.quantiles or not all(0 < q < 1 for q in self.quantiles):
            raise ValueError(f"quantiles must lie between 0 and 1; got {self.quantiles}.")
        if not 1 < self.power < 2:
            raise ValueError(
                f"power must lie between 1 and 2; got {self.power}: for 1 use the loss 'poisson', for 2 'gamma'."
            )

    def check_targets(self, y: npt.NDArray[Any]) -> None:
        """Raise a ValueError if `y` [n, t] holds values that the loss is not defined for."""
        if not np.isfinite(y).all():
            raise ValueError("targets must be finite; got NaN or infinity: drop those rows or fill them in.")
        low, high = float(y.min()), float(y.max())
        if self.name == "cross_entropy":
            assert self.n_classes is not None
            if y.shape[1] == self.n_classes and low >= 0 and np.allclose(y.sum(axis=1), 1, atol=1e-4):
                return
            if y.shape[1] != 1 or low < 0 or high >= self.n_classes or (y != np.floor(y)).any():
                raise ValueError(
                    f"cross_entropy needs one column of class numbers 0 to {self.n_classes - 1}, or the share of each "
                    "class in a column of its own; "
                    f"got {y.shape[1]} column(s) with values from {low:g} to {high:g}."
                )
        elif self.name == "binary_cross_entropy" and (low < 0 or high > 1):
            raise ValueError(f"binary_cross_entropy needs targets in [0, 1]; got values from {low:g} to {high:g}.")
        elif self.name in ("poisson", "tweedie") and low < 0:
            raise ValueError(f"{self.name} needs targets >= 0; got {low:g}.")
        elif self.name == "gamma" and low <= 0:
            raise ValueError(f"gamma needs targets > 0; got {low:g}: for targets with zeros use 'tweedie'.")

    def outputs_for(self, n_targets: int) -> int:
        """Return the number of outputs k that the trees need for `n_targets` target columns."""
        if self.name == "cross_entropy":
            return self.n_classes or 0
        if self.name == "quantile":
            return n_targets * len(self.quantiles)
        return self.n_outputs or n_targets if callable(self.name) else n_targets

    def value(self, scores: FloatArray, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> float:
        """Return the mean loss of raw scores [n, k], as training minimises it: a mean over outputs of weighted rows.

        Examples
        --------
        >>> Loss("squared_error").value(np.array([[1.0], [2.0]]), [1.0, 4.0])
        2.0
        """
        scores = np.asarray(scores, dtype=np.float64)
        targets = np.asarray(y, dtype=np.float64).reshape(len(scores), -1)
        weight = np.ones(len(scores)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        if callable(self.name):
            result = self.name(scores, targets, weight)
            return float(result[1]) if isinstance(result, tuple) else float("nan")
        return float(np.average(self._values(scores, targets).mean(axis=1), weights=weight))

    def _values(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        """Losses [n, k] of scores [n, k] and targets [n, t], or [n, 1] for the softmax."""
        smoothing = self.label_smoothing
        if self.name == "cross_entropy":
            log_p = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
            if targets.shape[1] > 1:
                right = (targets * log_p).sum(axis=1, keepdims=True)
            else:
                right = np.take_along_axis(log_p, targets.astype(np.intp), axis=1)
            return -(1 - smoothing) * right - smoothing * log_p.mean(axis=1, keepdims=True)
        if self.name == "binary_cross_entropy":
            return np.logaddexp(0, scores) - scores * (targets * (1 - smoothing) + smoothing / 2)
        if self.name == "poisson":
            return np.exp(scores) - targets * scores
        if self.name == "gamma":
            return targets * np.exp(-scores) + scores
        if self.name == "tweedie":
            p = self.power
            return np.exp((2 - p) * scores) / (2 - p) - targets * np.exp((1 - p) * scores) / (1 - p)
        if self.name == "quantile":
            shortfall = np.repeat(targets, len(self.quantiles), axis=1) - scores
            levels = np.tile(self.quantiles, targets.shape[1])
            return np.maximum(levels * shortfall, (levels - 1) * shortfall)
        size = np.abs(scores - targets)
        if self.name == "absolute_error":
            return size
        squares = size**2
        return squares if self.name == "squared_error" else np.where(
            size > self.delta, self.delta * (size - self.delta / 2), squares / 2
        )  # fmt: skip

    def best_constant(self, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> npt.NDArray[np.float64]:
        """Return the constant raw score [k] of least loss on `y` (zeros for a callable): a start for the offset.

        Examples
        --------
        >>> Loss("quantile", quantiles=(0.25, 0.5)).best_constant([1.0, 2.0, 3.0, 4.0, 5.0])
        array([2., 3.])
        """
        targets = np.asarray(y, dtype=np.float64)
        targets = targets.reshape(len(targets), -1)
        weight = np.ones(len(targets)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        if callable(self.name):
            return np.zeros(self.outputs_for(targets.shape[1]))
        if self.name == "cross_entropy":
            shares = np.bincount(targets[:, 0].astype(np.intp), weight, minlength=self.n_classes or 0) / weight.sum()
            scores = np.log(np.maximum(shares, _SMALLEST_SHARE))
            return scores - scores.mean()
        if self.name in ("absolute_error", "huber", "quantile"):
            quantiles = self.quantiles if self.name == "quantile" else (0.5,)
            return np.array([_weighted_quantile(t, weight, q) for t in targets.T for q in quantiles])
        means = weight @ targets / weight.sum()
        if self.name == "binary_cross_entropy":
            return _logit(np.clip(means, _SMALLEST_SHARE, 1 - _SMALLEST_SHARE))
        return np.log(np.maximum(means, _SMALLEST_MEAN)) if self.name in _LOG_LINK else means

    def best_constant_beside(
        self, offset: FloatArray, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
    ) -> npt.NDArray[np.float64]:
        """Return the constant [k] of least loss when it is added to offsets [n, k]; not for a callable (zeros).

        Examples
        --------
        >>> Loss("poisson").best_constant_beside(np.log([[1.0], [3.0]]), [2.0, 6.0]).round(6)  # a rate of 2
        array([0.693147])
        """
        targets = np.asarray(y, dtype=np.float64).reshape(len(offset), -1)
        weight = np.ones(len(offset)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        if callable(self.name):
            return np.zeros(offset.shape[1])
        if self.name in _LOG_LINK:
            power = {"poisson": 1.0, "gamma": 2.0}.get(self.name, self.power)
            seen = weight @ (targets * np.exp((1 - power) * offset))
            expected = weight @ np.exp((2 - power) * offset)
            return np.log(np.maximum(seen / expected, _SMALLEST_MEAN))
        if self.name not in ("cross_entropy", "binary_cross_entropy"):
            return self.best_constant(targets - offset[:, :: offset.shape[1] // targets.shape[1]], weight)
        goal = self.best_constant(y, weight)
        constant = np.zeros(offset.shape[1])
        for _ in range(_FIXED_POINT_STEPS):  # move by what the mean prediction still lacks
            means = np.average(self.predictions(offset + constant), axis=0, weights=weight)
            means = np.clip(means, _SMALLEST_SHARE, 1 - _SMALLEST_SHARE)
            reached = _logit(means) if self.name == "binary_cross_entropy" else np.log(means) - np.log(means).mean()
            constant += goal - reached
        return constant

    def predictions(self, scores: FloatArray) -> FloatArray:
        """Turn raw scores [n, k] into predictions [n, k]: class probabilities, means or quantiles.

        For a callable, predictions are the scores.
        """
        return self.link.inverse(scores)

    @property
    def link(self) -> Link:
        """How scores become predictions."""
        if self.name in ("cross_entropy", "binary_cross_entropy"):
            return Link.SOFTMAX if self.name == "cross_entropy" else Link.BINARY
        return Link.EXPONENTIAL if self.name in _LOG_LINK else Link.IDENTITY

    def native_settings(self, n_targets: int) -> dict[str, Any]:
        """The loss as the compiled trainer takes it."""
        return {
            "loss": _CUSTOM if callable(self.name) else LOSS_NAMES.index(self.name),
            "n_outputs": self.outputs_for(n_targets),
            "n_targets": n_targets,
            "label_smoothing": self.label_smoothing,
            "delta": self.delta,
            "power": self.power,
            "quantiles": list(self.quantiles),
        }

    def native_callable(self) -> Callable[..., tuple[FloatArray, float]] | None:
        """The callable, with its result checked and completed; None for a named loss."""
        if not callable(self.name):
            return None
        function = self.name

        def checked(predictions: FloatArray, targets: FloatArray, weight: FloatArray) -> tuple[FloatArray, float]:
            result = function(predictions, targets, weight)
            gradient, value = result if isinstance(result, tuple) else (result, np.nan)
            gradient = np.ascontiguousarray(gradient, dtype=predictions.dtype)
            if gradient.shape != predictions.shape:
                raise ValueError(
                    f"a loss function must return the gradient in the shape of the predictions, {predictions.shape}; "
                    f"got {gradient.shape}."
                )
            return gradient, float(value)

        return checked


def _logit(share: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.log(share / (1 - share))


def _weighted_quantile(values: FloatArray, weight: FloatArray, quantile: float) -> float:
    """The smallest value that at least this share of the weight does not exceed."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(reached, quantile * reached[-1] * (1 - 1e-12))])
