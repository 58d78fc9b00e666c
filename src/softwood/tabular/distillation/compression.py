"""Two models and some rows in, what the smaller one saves and costs out: sizes, time and score before and after."""

from __future__ import annotations

import os
import tempfile
import timeit
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.model.model import Model
from softwood.model.parameter_counts import count_parameters
from softwood.tabular.reading.table import Table

_USAGE_ROWS = 100  # to count leaves reached


@dataclass(frozen=True)
class CompressedSize:
    """What one model takes, and how good it is.

    Attributes
    ----------
    n_trees, n_parameters, n_bytes : int
        Trees and stored numbers; bytes of the model file.
    leaves_reached : float
        Leaves of a tree that a row reaches, on average.
    microseconds_per_row : float
        Time of a prediction in bulk, with one thread.
    score, standard_error : float
        Accuracy or R² (of several quantiles, of those nearest to the median) on rows that the teaching did not see;
        NaN without y.
    """

    n_trees: int
    n_parameters: int
    n_bytes: int
    leaves_reached: float
    microseconds_per_row: float
    score: float = float("nan")
    standard_error: float = float("nan")


@dataclass(frozen=True)
class Compression:
    """What `compress` did.

    Attributes
    ----------
    before, after : CompressedSize
    metric : {"accuracy", "r2"}
    agreement : float
        Share of held-out rows whose predicted class is the same; of a regression, R² of the new predictions against
        the old ones.
    expected_loss : float
        Expected rise of the loss on held-out rows if the old predictions are right: of the log-loss relative to the old
        model's; of a regression, mean squared difference relative to the variance of predictions.
    tried : list of dict
        "n_trees", "n_parameters" and "expected_loss" of each ensemble that was tried, while it was cut down and at
        the end.
    """

    before: CompressedSize
    after: CompressedSize
    metric: str
    agreement: float
    expected_loss: float
    tried: list[dict[str, float]]

    def __str__(self) -> str:
        old, new = self.before, self.after
        text = (
            f"{old.n_parameters:,} to {new.n_parameters:,} parameters ({old.n_parameters / new.n_parameters:.0f} times "
            f"fewer), {old.n_bytes:,} to {new.n_bytes:,} bytes, {old.leaves_reached:.1f} to {new.leaves_reached:.1f} "
            f"leaves reached, {old.microseconds_per_row:.1f} to {new.microseconds_per_row:.1f} us per row; "
            f"agreement {self.agreement:.2%}"
        )
        if np.isnan(old.score):
            return text
        return f"{text}; {self.metric} {old.score:.4f} to {new.score:.4f} (standard error {new.standard_error:.4f})"


def compare(
    before: Model, after: Model, tried: list[dict[str, float]], expected_loss: float, X: Table, y: NDArray[Any] | None
) -> Compression:
    """Measure two models on rows that the teaching did not see, with their targets if these are known."""
    is_regression = before.head.task == "regression"
    old, new = before.predict(X), after.predict(X)
    if is_regression:
        agreement = 1 - float(np.mean((new - old) ** 2)) / max(float(np.var(old, axis=0).mean()), 1e-300)
    else:
        agreement = float(np.mean(_same_rows(new, old)))
    return Compression(
        before=_size(before, X, old, y),
        after=_size(after, X, new, y),
        metric="r2" if is_regression else "accuracy",
        agreement=agreement,
        expected_loss=expected_loss,
        tried=tried,
    )


def _size(model: Model, X: Table, predicted: NDArray[Any], y: NDArray[Any] | None) -> CompressedSize:
    from softwood.explain import usage

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        model.save(path)
        n_bytes = os.path.getsize(path)
    some = X.rows(0, min(X.n_rows, _USAGE_ROWS))
    reached = usage(model, some).mean_reachable_leaves
    n_trees = sum(len(member.trees.leaf_weight) for member in model.members)
    score, error = (np.nan, np.nan) if y is None else _score(model, predicted, y)
    seconds = min(timeit.repeat(lambda: model.raw_scores(X, n_threads=1), number=1, repeat=3))
    return CompressedSize(
        n_trees, stored_parameters(model), n_bytes, float(np.mean(np.concatenate(reached))),
        1e6 * seconds / X.n_rows, score, error,
    )  # fmt: skip


def _same_rows(labels: NDArray[Any], others: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether the class [n], or all labels [n, k], of each row are the same."""
    return np.asarray((labels == others).reshape(len(labels), -1).all(axis=1))


def _score(model: Model, predicted: NDArray[Any], y: NDArray[Any]) -> tuple[float, float]:
    """Accuracy or R², and its standard error over rows."""
    if model.head.task != "regression":
        right = _same_rows(predicted, y)
        return float(right.mean()), float(right.std() / len(right) ** 0.5)
    predicted = model.head.central(predicted)
    y = np.asarray(y, dtype=np.float64).reshape(predicted.shape)
    errors = ((y - predicted) ** 2 / max(float(np.var(y, axis=0).mean()), 1e-300)).reshape(len(y), -1).mean(axis=1)
    return float(1 - errors.mean()), float(errors.std() / len(errors) ** 0.5)


def stored_parameters(model: Model) -> int:
    """Numbers that a model stores; see `softwood.model.parameter_counts`."""
    return count_parameters(model, float("nan")).stored
