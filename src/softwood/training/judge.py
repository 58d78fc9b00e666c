"""Scores of validation rows in, the numbers that are shown and decide the best epoch out.

A `Judge` knows the targets of the validation rows of one member, which may be several evaluation sets one after the
other, and the metric that the caller chose. The loop over epochs gives it the raw scores after each epoch. Without a
metric and with one set no judge is needed: the compiled trainer computes the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from softwood.model.parts import Head

# What scikit-learn calls the metrics for more than two classes, by the name of that for two.
_FOR_SEVERAL_CLASSES = {"roc_auc": "roc_auc_ovr", "f1": "f1_macro", "precision": "precision_macro"}
_FOR_SEVERAL_CLASSES |= {"recall": "recall_macro", "jaccard": "jaccard_macro"}


@dataclass(frozen=True, eq=False)
class Metric:
    """A number that says how good predictions are.

    Attributes
    ----------
    name : str
    function : callable(head, y, scores, weight)
        Its value for raw scores [n, k]; y as the caller has it, `weight` None for equal weights.
    greater_is_better : bool
    """

    name: str
    function: Callable[[Any, np.ndarray, np.ndarray, np.ndarray | None], float]
    greater_is_better: bool


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """Some of the validation rows: class labels or targets as the caller has them, and as the trainer sees them."""

    rows: slice
    y: np.ndarray
    trained_y: np.ndarray
    weight: NDArray[np.float64] | None


@dataclass(frozen=True)
class Judgement:
    """Of one epoch: what is minimised, and what goes into the history; None where the trainer's number stays."""

    criterion: float | None
    loss: float | None
    metric: float | None
    metrics: dict[str, float]


class ScoreJudge(Protocol):
    """Whatever tells the numbers of an epoch from the scores of the validation rows."""

    @property
    def name(self) -> str:
        """Name of the metric, or of the loss if there is none; for checkpoints."""

    def __call__(self, scores: np.ndarray) -> Judgement:
        """The numbers of one epoch, from the scores [n, k] of all validation rows."""


@dataclass(frozen=True, eq=False)
class Judge:
    """See the module's description. The last set decides.

    Examples
    --------
    >>> from softwood.model.parts import Head
    >>> from softwood.training.losses import Loss
    >>> head = Head("regression", Loss("squared_error"), None, np.zeros(1), np.ones(1))
    >>> y = np.array([1.0, 2.0])
    >>> judge = Judge(head, resolve_metric("mean_absolute_error"), [EvaluationSet(slice(None), y, y, None)])
    >>> judge(np.array([[1.5], [2.5]])).criterion
    0.5
    """

    head: Head
    metric: Metric | None
    sets: Sequence[EvaluationSet]

    @property
    def name(self) -> str:
        """Name of the metric, or of the loss if there is none; for checkpoints."""
        return "loss" if self.metric is None else self.metric.name

    def __call__(self, scores: np.ndarray) -> Judgement:
        """The numbers of one epoch, from the scores [n, k] of all validation rows."""
        metrics: dict[str, float] = {}
        loss, value = None, None
        for i, some in enumerate(self.sets):
            part = scores[some.rows].astype(np.float64)
            if len(self.sets) > 1:
                loss = self.head.loss.value(part, some.trained_y, some.weight)
                metrics[f"validation_{i}_loss"] = loss
            if self.metric is not None:
                value = self._measure(self.metric, some, part)
                if len(self.sets) > 1:
                    metrics[f"validation_{i}_{self.metric.name}"] = value
        if self.metric is None or value is None:
            return Judgement(loss, loss, None, metrics)
        if np.isnan(value):
            raise ValueError(
                f"eval_metric must be a number on the validation rows; {self.metric.name!r} gave NaN. Does each class "
                "occur among them, and is the metric one for this kind of target?"
            )
        return Judgement(-value if self.metric.greater_is_better else value, loss, value, metrics)

    def _measure(self, metric: Metric, some: EvaluationSet, scores: np.ndarray) -> float:
        try:
            return float(metric.function(self.head, some.y, scores, some.weight))
        except (TypeError, ValueError) as error:
            hint = ""
            if self.head.task == "multiclass" and metric.name in _FOR_SEVERAL_CLASSES:
                hint = f" With more than two classes, try {_FOR_SEVERAL_CLASSES[metric.name]!r}."
            raise type(error)(
                f"eval_metric {metric.name!r} must give a number for the true and predicted values of the validation "
                f"rows; it failed: {error}{hint}"
            ) from error


def resolve_metric(chosen: Any) -> Metric | None:
    """The metric that `eval_metric` names: a name, a scorer of scikit-learn, a callable(y, prediction), or None.

    Names are those of scikit-learn's scorers; the part "neg_" of a name may be left out, which turns the sign. As
    scikit-learn has it, a callable whose name ends in _loss, _error or _deviance is minimised, any other maximised.

    Examples
    --------
    >>> resolve_metric("log_loss").greater_is_better, resolve_metric("roc_auc").greater_is_better
    (False, True)
    """
    if chosen is None:
        return None
    if isinstance(chosen, str):
        return _named_metric(chosen)
    if not callable(chosen):
        raise ValueError(f"eval_metric must be a name, a callable(y, prediction) or None; got {chosen!r}.")
    if hasattr(chosen, "_score_func"):  # scikit-learn's make_scorer
        return Metric(chosen._score_func.__name__, lambda *args: _score(chosen, *args), greater_is_better=True)
    name = getattr(chosen, "__name__", type(chosen).__name__)

    def value(head: Head, y: np.ndarray, scores: np.ndarray, weight: np.ndarray | None) -> float:
        predicted = head.predictions(scores)
        return chosen(y, predicted[:, 1] if head.task == "binary" else predicted)

    return Metric(name, value, not name.endswith(("_loss", "_error", "_deviance")))


def _named_metric(name: str) -> Metric:
    from sklearn.metrics import get_scorer, get_scorer_names

    known = set(get_scorer_names())
    is_turned = name not in known and f"neg_{name}" in known
    if not is_turned and name not in known:
        raise ValueError(
            f"eval_metric must be the name of a scorer of scikit-learn, with or without 'neg_'; got {name!r}. "
            "sklearn.metrics.get_scorer_names() lists them."
        )
    scorer = get_scorer(f"neg_{name}" if is_turned else name)
    sign = -1 if is_turned else 1
    return Metric(name, lambda *args: sign * _score(scorer, *args), greater_is_better=not is_turned)


def _score(scorer: Any, head: Head, y: np.ndarray, scores: np.ndarray, weight: np.ndarray | None) -> float:
    from softwood.training.scored import scored_estimator

    options = {} if weight is None else {"sample_weight": weight}
    return float(scorer(scored_estimator(head, scores), np.empty((len(y), 1)), y, **options))
