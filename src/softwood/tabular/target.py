"""Labels or numbers in, a checked learning problem out: coded targets, weights, loss, and the head that decodes.

Tables are left to `softwood.tabular.reading.table`, training to `softwood.tabular.fit`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite, check_array, column_or_1d, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight

from softwood.model.parts import Head
from softwood.model.program import Link
from softwood.tabular.reading.cells import is_missing
from softwood.tabular.reading.table import column_names, is_sparse
from softwood.training.losses import Loss
from softwood.training.rules import TableFacts

# Losses that mean the same when targets are shifted and scaled; theirs are standardised for training.
SCALED_LOSSES = ("squared_error", "absolute_error", "huber", "quantile")
# Targets of a larger size would overflow in sums and predictions.
_LARGEST_TARGET = 1e300
# Scale of a constant target, relative to its size: predictions differ from it by less than a 1e-9th.
_CONSTANT_SCALE = 1e-6
# Smaller spreads, which only targets next to 0 have, would make quotients overflow.
_SMALLEST_SCALE = 1e-306
# Means outside of this and its reciprocal are divided out of targets whose loss has a logarithmic link.
_LARGEST_LEVEL = 1e15


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be learned: targets, weights, and the loss.

    Attributes
    ----------
    y : ndarray [n] or [n, t]
        Class numbers, or 0 and 1 for each label, or the targets of a regression as they were given.
    weight : ndarray [n]
        Sample weights, not negative, not all 0.
    task : {"binary", "multiclass", "multilabel", "regression"}
    loss : Loss
    classes : ndarray, optional
        Class labels; for "multilabel", the names of the labels.
    offset : ndarray [n, k], optional
        Added to each row's prediction before the link: in units of the target, or of log-odds or logarithms.
    set_weights : tuple of ndarray
        Weights of each of several evaluation sets that were joined.
    """

    y: np.ndarray
    weight: NDArray[np.float64]
    task: str
    loss: Loss
    classes: np.ndarray | None = None
    offset: NDArray[np.float64] | None = None
    set_weights: tuple[NDArray[np.float64], ...] = ()

    @property
    def given_y(self) -> np.ndarray:
        """The targets in the caller's terms: class labels instead of class numbers."""
        return self.classes[self.y] if self.classes is not None and self.task != "multilabel" else self.y

    def row_targets(self) -> np.ndarray:
        """All that a row is to be learned with [n] or [n, ...]: rows that agree in it are the same."""
        if self.offset is None:
            return self.y
        return np.column_stack([self.y.reshape(len(self.y), -1), self.offset])

    def with_offset(self, offset: Any) -> Problem:
        """The same with an offset [n], [n, t] or [n, k] for each row, or without any for None."""
        if offset is None:
            return self
        n_targets = 1 if self.y.ndim == 1 else self.y.shape[1]
        n_scores = self.loss.outputs_for(n_targets)
        n_targets = n_targets if self.task == "regression" else n_scores
        return replace(self, offset=offset_matrix(offset, len(self.y), n_targets, n_scores))

    def score_offset(self, head: Head) -> NDArray[np.float64] | None:
        """The offset [n, k] on the scale of raw scores."""
        return None if self.offset is None else self.offset / score_units(head, self.offset.shape[1])

    @property
    def n_target_columns(self) -> int:
        """Target means of a category with many levels: one per target, or one per class if there are several."""
        if self.task == "multiclass":
            assert self.classes is not None
            return len(self.classes)
        return 1 if self.y.ndim == 1 else self.y.shape[1]

    def target_columns(self) -> NDArray[np.float64]:
        """The targets that categories are encoded by [n, n_target_columns]."""
        if self.task == "multiclass":
            return (self.y[:, None] == np.arange(self.n_target_columns)).astype(np.float64)
        return self.y.reshape(len(self.y), -1).astype(np.float64)

    def facts(self, n_rows: int, n_columns: int) -> TableFacts:
        """What "auto" may depend on, for a table of this size."""
        return TableFacts(self.task, n_rows, n_columns, 0 if self.classes is None else len(self.classes))

    def take(self, rows: np.ndarray) -> Problem:
        """The problem with some of the rows only."""
        offset = None if self.offset is None else self.offset[rows]
        return replace(self, y=self.y[rows], weight=self.weight[rows], offset=offset)

    def fit_head(self, rows: NDArray[np.int64], weight: NDArray[np.float64], *, is_piece: bool = False) -> Head:
        """Head for this problem, with mean and spread of the targets over the given rows where the loss allows it.

        A constant target gets a scale so small that predictions are the constant, unless later pieces of the table
        may have other targets (`is_piece`).
        """
        if self.task != "regression":
            return Head(self.task, self.loss, self.classes)
        y = self.y[rows].reshape(len(rows), -1)
        if self.offset is not None and self.loss.name in SCALED_LOSSES:
            y = y - self.offset[rows, :: self.offset.shape[1] // y.shape[1]]
        mean, scale = np.zeros(y.shape[1]), np.ones(y.shape[1])
        unit = np.exp2(np.frexp(np.abs(y).max(axis=0))[1] - 1.0)  # squares of y / unit neither overflow nor vanish
        unit[unit == 0] = 1.0
        if self.loss.name in SCALED_LOSSES:
            mean = np.average(y / unit, axis=0, weights=weight)
            spread = np.sqrt(np.average(np.square(y / unit - mean), axis=0, weights=weight))
            is_constant = spread <= 1e-12 * np.abs(mean)
            scale = np.where(is_constant, 1 / unit if is_piece else _CONSTANT_SCALE, spread) * unit
            scale = np.maximum(scale, _SMALLEST_SCALE)
            mean = mean * unit
        elif self.loss.link is Link.EXPONENTIAL:
            level = np.average(y / unit, axis=0, weights=weight) * unit
            scale = np.where((level > _LARGEST_LEVEL) | ((level > 0) & (level < 1 / _LARGEST_LEVEL)), level, 1.0)
        return Head(self.task, self.loss, None, mean, scale)

    def scaled_y(self, head: Head) -> np.ndarray:
        """The targets as the trainer sees them."""
        if head.target_mean is None or head.target_scale is None:
            return self.y
        mean, scale = (
            (head.target_mean, head.target_scale) if self.y.ndim == 2 else (head.target_mean[0], head.target_scale[0])
        )
        return (self.y - mean) / scale


@dataclass(frozen=True, eq=False)
class TargetKind:
    """What an estimator makes of a target, before it has seen one: the same for all pieces of a table.

    Attributes
    ----------
    is_classification : bool
    loss, class_weight
        Parameters of the estimator.
    classes : ndarray, optional
        Class labels, once they are known.
    labels : ndarray, optional
        Names of the labels, once they are known, if a row may have several.
    """

    is_classification: bool
    loss: Any = "auto"
    class_weight: Any = None
    classes: np.ndarray | None = None
    labels: np.ndarray | None = None

    def problem(self, y: Any, n_rows: int, sample_weight: Any = None) -> Problem:
        """The learning problem of some rows."""
        if not self.is_classification:
            return regression_problem(y, n_rows, sample_weight, loss=self.loss)
        return classification_problem(
            y,
            n_rows,
            sample_weight,
            class_weight=self.class_weight,
            loss=self.loss,
            classes=self.classes,
            labels=self.labels,
        )


def offset_matrix(offset: Any, n_rows: int, n_targets: int, n_scores: int) -> NDArray[np.float64]:
    """Offsets as [n, k]: one per row for a single target, else one per target or score."""
    values = check_array(offset, dtype=np.float64, ensure_2d=False, input_name="offset")
    values = values.reshape(len(values), -1)
    if len(values) != n_rows or values.shape[1] not in (n_targets, n_scores):
        columns = "" if n_targets == 1 else f", {n_targets}"
        raise ValueError(f"offset must have the shape [{n_rows}{columns}]; got {np.shape(offset)}.")
    return np.repeat(values, n_scores // values.shape[1], axis=1)


def score_units(head: Head, n_scores: int) -> NDArray[np.float64]:
    """What one unit of each raw score [k] is in units of an offset."""
    if head.target_scale is None or head.loss.name not in SCALED_LOSSES:
        return np.ones(n_scores)
    return np.repeat(head.target_scale, n_scores // len(head.target_scale))


def add_offset(head: Head, scores: NDArray[np.float64], offset: Any) -> NDArray[np.float64]:
    """Raw scores [n, k] with offsets, in the units of the target, added to them."""
    k = scores.shape[1]
    n_targets = k if head.target_scale is None else len(head.target_scale)
    return scores + offset_matrix(offset, len(scores), n_targets, k) / score_units(head, k)


def classification_problem(
    y: Any,
    n_rows: int,
    sample_weight: Any = None,
    *,
    class_weight: Any = None,
    loss: Any = "auto",
    classes: np.ndarray | None = None,
    labels: np.ndarray | None = None,
) -> Problem:
    """Check labels and weights.

    `classes` are those of an earlier fit, if there was one, and y may then lack some; `labels` are the names of an
    earlier fit's labels, if each row may have several.
    """
    if labels is not None or (classes is None and has_several_columns(y)):
        return _multilabel_problem(y, n_rows, sample_weight, class_weight=class_weight, loss=loss, known=labels)
    y = class_labels(y)
    weight = _check_weight(sample_weight, y, n_rows)
    seen = np.unique(y[weight > 0])
    if classes is None:
        classes = seen
        if len(classes) < 2:
            raise ValueError(
                f"A classifier needs rows of at least two classes; got one class, {classes.tolist()}. "
                "Check that y is the right column, and that no class lost all its rows to a filter or to zero weights."
            )
    elif not np.isin(seen, classes).all():
        raise ValueError(
            f"y must hold classes that were known at the first fit, {list(classes)}; "
            f"got {seen[~np.isin(seen, classes)].tolist()}. Name all classes at the first call, or fit afresh."
        )
    codes = np.searchsorted(classes, y)
    codes[weight == 0] = np.minimum(codes[weight == 0], len(classes) - 1)
    if class_weight is not None:
        weight = weight * _class_weights(class_weight, y)
    is_binary = len(classes) == 2
    loss = _cross_entropy(loss, None if is_binary else len(classes))
    return Problem(codes, weight, "binary" if is_binary else "multiclass", loss, classes)


def _cross_entropy(loss: Any, n_classes: int | None) -> Loss:
    """The loss of a classifier: a softmax over classes, or one logit per target for None."""
    name = "binary_cross_entropy" if n_classes is None else "cross_entropy"
    if isinstance(loss, Loss):
        loss = replace(loss, name=name, n_classes=n_classes)
    elif loss in ("auto", "cross_entropy", "binary_cross_entropy"):
        loss = Loss(name, n_classes=n_classes)
    else:
        raise ValueError(f"loss of a classifier must be 'auto', 'cross_entropy' or a cross-entropy Loss; got {loss!r}.")
    loss.check()
    return loss


def has_several_columns(y: Any) -> bool:
    """Whether targets are a matrix, data frame or nested list of more than one column."""
    shape: tuple[int, ...] | None = getattr(y, "shape", None)
    if shape is None and isinstance(y, (list, tuple)) and len(y) and np.ndim(y[0]) == 1:
        shape = np.shape(y)
    return shape is not None and len(shape) == 2 and shape[1] > 1


def _multilabel_problem(
    y: Any, n_rows: int, sample_weight: Any, *, class_weight: Any, loss: Any, known: np.ndarray | None
) -> Problem:
    """Labels that each row has or lacks: a matrix, data frame or sparse matrix [n, labels] of 0 and 1."""
    names = column_names(y)
    if is_sparse(y):
        y = y.toarray()
    y = check_array(y, dtype=None, ensure_all_finite=False, input_name="y")
    is_label = np.isin(y, (0, 1))
    if not is_label.all():
        raise ValueError(
            "y of several columns must hold 0 and 1, one column per label that a row has or lacks; got "
            f"{y[~is_label].tolist()[0]!r}. Give one column for one class per row, or use TreeEnsembleRegressor."
        )
    labels = np.arange(y.shape[1]) if names is None else np.array(names)
    if known is not None and (len(labels) != len(known) or (names and known.dtype.kind == "U" and names != [*known])):
        raise ValueError(
            f"y must have the labels of the first fit in the same order, {known.tolist()}; got {labels.tolist()}."
        )
    weight = _check_weight(sample_weight, y, n_rows)
    if class_weight is not None:
        weight = weight * _class_weights(class_weight, y)
    codes = y.astype(np.int64)
    return Problem(codes, weight, "multilabel", _cross_entropy(loss, None), labels if known is None else known)


def class_labels(y: Any) -> np.ndarray:
    """Labels [n], checked."""
    if y is None:
        raise ValueError("A classifier requires y to be passed, but the target y is None.")
    y = column_or_1d(y, warn=True)
    if y.dtype.kind == "f":
        assert_all_finite(y, input_name="y")
    _check_labels(y)
    if y.dtype.kind == "O" and not any(isinstance(label, str) for label in y):
        y = _plain_labels(y)
    check_classification_targets(y)
    return y


def _plain_labels(y: np.ndarray) -> np.ndarray:
    """Truth values or whole numbers that came as objects; an error for other objects."""
    for kind in (bool, int):
        if all(isinstance(label, (kind, np.bool_ if kind is bool else np.integer)) for label in y):
            return y.astype(kind)
    found = sorted({type(label).__name__ for label in y})
    raise ValueError(
        f"y must hold class labels: texts, whole numbers or truth values; got {' and '.join(found)}. Convert them to "
        "texts: y.astype(str)."
    )


def _class_weights(class_weight: Any, y: np.ndarray) -> NDArray[np.float64]:
    """Weight [n] of each row's class."""
    weight = compute_sample_weight(class_weight, y)
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise ValueError(f"class_weight must hold finite numbers of at least 0; got {class_weight}.")
    if not weight.any():
        raise ValueError(f"class_weight must leave at least one class a positive weight; got {class_weight}.")
    return weight


def regression_problem(y: Any, n_rows: int, sample_weight: Any = None, *, loss: Any = "auto") -> Problem:
    """Check targets [n] or [n, t] and weights."""
    if y is None:
        raise ValueError("A regressor requires y to be passed, but the target y is None.")
    if getattr(getattr(y, "dtype", None), "kind", "") in ("m", "M"):
        raise ValueError("y must hold numbers; got dates or durations. Convert them, for example to days since one.")
    y = check_array(y, dtype=np.float64, ensure_2d=False, input_name="y")
    if y.ndim == 2 and y.shape[1] == 1:
        y = column_or_1d(y, warn=True)
    weight = _check_weight(sample_weight, y, n_rows)
    if not isinstance(loss, Loss):
        loss = Loss("squared_error" if isinstance(loss, str) and loss == "auto" else loss)
    if loss.name in ("cross_entropy", "binary_cross_entropy"):
        raise ValueError(f"{loss.name} is a loss of classifiers; use TreeEnsembleClassifier, or another loss.")
    loss.check()
    if np.abs(y).max() > _LARGEST_TARGET:
        raise ValueError(
            f"Targets must lie within plus or minus {_LARGEST_TARGET:g}; got {y.flat[np.abs(y).argmax()]:g}. "
            "Divide them by a constant."
        )
    return Problem(y, weight, "regression", loss)


def _check_labels(y: np.ndarray) -> None:
    """Refuse labels that scikit-learn's checks stumble over: missing ones among texts, and dates."""
    if y.dtype.kind in "mM":
        raise ValueError("y must hold class labels; got dates or durations. Convert them to texts: y.astype(str).")
    missing = [row for row, label in enumerate(y) if is_missing(label)] if y.dtype.kind == "O" else []
    if missing:
        raise ValueError(
            f"y must hold a class label in every row; {len(missing)} of {len(y)} are missing, the first in row "
            f"{missing[0]}. Leave such rows out."
        )


def _check_weight(sample_weight: Any, y: np.ndarray, n_rows: int) -> NDArray[np.float64]:
    if len(y) != n_rows:
        raise ValueError(
            f"X and y must have the same number of rows (inconsistent numbers of samples); got {n_rows} and {len(y)}."
        )
    weight = _check_sample_weight(sample_weight, y, dtype=np.float64)
    if (weight < 0).any():
        raise ValueError("Negative values in data passed to `sample_weight`; weights must be 0 or more.")
    if not weight.any():
        raise ValueError("sample_weight is zero for every row; at least one row needs a positive weight.")
    return weight
