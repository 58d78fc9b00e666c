"""A fitted model in, a compiled predictor out: rows of a table to predictions without the rest of the library.

The work of a row (columns to base row, encodings, trees, head) is done by the compiled core, which holds the weights in
the order in which it reads them, as `softwood.model.program` leaves them. Labels and dates are turned into numbers by
`softwood.tabular.table`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from softwood import _core
from softwood.arguments import check_activation, check_n_threads
from softwood.model.program import FoldedMember, fold_member, folded_encoding
from softwood.ops import get_num_threads
from softwood.tabular.columns import CALENDAR_PARTS, Preprocessor
from softwood.tabular.table import infinity_error, read_table

if TYPE_CHECKING:
    from softwood.model.parts import Head, ModelMember

LINKS = ("identity", "exponential", "binary", "softmax")
_BASE_KINDS = ("value", "code", *CALENDAR_PARTS, "target")
# Rows that are read at once where a table is not a matrix of numbers.
_BLOCK_ROWS = 16_384


class Predictor:
    """A model compiled for prediction. Immutable, picklable, and safe to use from many threads at once.

    The global interpreter lock is released while the core works. A row's raw scores are the same to the last bit
    whatever the rows beside it, the number of threads and the machine's instruction set (but for
    `activation="logistic"`, whose exponentials may be rounded differently there).

    Parameters
    ----------
    preprocessor : Preprocessor
    members : sequence of ModelMember
    head : Head
        The parts of a `softwood.model.Model`; `Model.predictor` and the estimators' `predictor` hand them over.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> import softwood
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> classifier = softwood.TreeEnsembleClassifier(n_members=1, max_epochs=5, random_state=0).fit(X, y)
    >>> predictor = classifier.predictor()
    >>> predictor.predict(X[0]).shape, predictor.predict(X).shape
    ((2,), (569, 2))
    >>> bool(np.all(predictor.predict(X[0]) == classifier.predict_proba(X)[0]))
    True
    """

    __slots__ = ("_has_labels", "_n_columns", "_n_predictions", "_native", "_parts", "_shape")

    def __init__(self, preprocessor: Preprocessor, members: Sequence[ModelMember], head: Head) -> None:
        if callable(head.loss.name):  # prediction needs its link only, the identity
            head = replace(head, loss=replace(head.loss, name="squared_error"))
        self._parts = (preprocessor, tuple(members), head)
        names = list(preprocessor.encodings)
        n_outputs = members[0].trees.leaf_weight.shape[2]
        self._native = _core.Predictor(
            len(preprocessor.columns),
            n_outputs,
            base_columns(preprocessor),
            [folded_encoding(encoding) for encoding in preprocessor.encodings.values()],
            [
                _native_member(
                    fold_member(member, preprocessor.encodings[member.encoding]), names.index(member.encoding)
                )
                for member in members
            ],
            native_head(head),
        )
        self._n_columns = len(preprocessor.columns)
        self._has_labels = "category" in preprocessor.kinds
        self._n_predictions = 2 if head.task == "binary" else n_outputs
        self._shape: tuple[int, ...] | None = None  # of a regression's row: targets and quantiles, where several
        if head.target_mean is not None:
            n_targets = len(head.target_mean)
            self._shape = tuple(size for size in (n_targets, n_outputs // n_targets) if size > 1)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._parts

    def __repr__(self) -> str:
        return f"Predictor({self._n_columns} columns, {self._n_predictions} outputs, {self.n_bytes} bytes of weights)"

    @property
    def n_bytes(self) -> int:
        """Memory of the weights as they are laid out."""
        return self._native.n_bytes

    def predict(self, X: Any, *, n_threads: int | None = None) -> NDArray[np.float64]:
        """Class probabilities or predicted values.

        Parameters
        ----------
        X : ndarray [p], or table [n, p] of any kind that `fit` takes
            A one-dimensional array is one row. A NumPy row of floats of a model without categories is the fastest.
        n_threads : int, optional
            Threads at most; a single row is always done by the calling thread.

        Returns
        -------
        ndarray
            [outputs] for one row; for a table as the estimator: [n, classes], or [n], [n, targets], ...
        """
        if isinstance(X, np.ndarray) and X.ndim == 1:
            return self.predict_row(X) if not self._has_labels else self._predict_table(X[None], n_threads)[0]
        values = self._predict_table(X, n_threads)
        return values if self._shape is None else values.reshape(len(values), *self._shape)

    __call__ = predict

    def predict_row(self, row: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Predictions [outputs] for one row of numbers [p].

        Dates are seconds since 1970 (UTC), categories the codes that `category_code` gives (-1: none of the known), and
        NaN is a missing cell.
        """
        output = np.empty(self._n_predictions)
        if row.shape != (self._n_columns,):
            raise ValueError(f"X must have {self._n_columns} columns, as at fit; got a row of shape {row.shape}.")
        if row.dtype.char not in "fd" or not row.flags.c_contiguous:
            row = np.ascontiguousarray(row, dtype=np.float64)
        infinite_column = self._native.predict_row(row, output)
        if infinite_column >= 0:
            raise infinity_error(self._parts[0].columns[infinite_column].name)
        return output

    def raw_scores(self, X: Any, *, n_threads: int | None = None) -> NDArray[np.float64]:
        """Raw scores [n, k] of a table: the mean over members of offset plus sum of trees."""
        return self._predict_table(X, n_threads, raw_scores=True)

    def category_code(self, column: int | str, label: str | None) -> int:
        """Code of a category for `predict_row`; `column` is a number or a name, None a missing cell."""
        columns = self._parts[0].columns
        number = column if isinstance(column, int) else [c.name for c in columns].index(column)
        levels = columns[number].levels
        if levels is None:
            raise ValueError(f"Column {columns[number].name!r} holds no categories; give its number itself.")
        return levels.index(label) if label in levels else -1

    def _predict_table(self, X: Any, n_threads: int | None, raw_scores: bool = False) -> NDArray[np.float64]:
        preprocessor, members, _ = self._parts
        threads = check_n_threads(n_threads) or get_num_threads()
        table = read_table(X, kinds=preprocessor.kinds)
        width = members[0].trees.leaf_weight.shape[2] if raw_scores else self._n_predictions
        output = np.empty((table.n_rows, width))
        if not self._has_labels and _is_float_matrix(table.matrix):
            infinite_column = self._native.predict(table.matrix, raw_scores, output, threads)
            if infinite_column >= 0:
                raise infinity_error(preprocessor.columns[infinite_column].name)
            return output
        for first in range(0, table.n_rows, _BLOCK_ROWS):
            base = preprocessor.read(table.rows(first, first + _BLOCK_ROWS))
            self._native.predict_base(base, raw_scores, output[first : first + _BLOCK_ROWS], threads)
        return output


def _is_float_matrix(matrix: Any) -> bool:
    """Whether the core can read these rows where they are."""
    return (
        isinstance(matrix, np.ndarray)
        and matrix.dtype in (np.float32, np.float64)
        and matrix.strides[1] == matrix.itemsize
        and matrix.strides[0] % matrix.itemsize == 0
        and matrix.flags.aligned
    )


def base_columns(preprocessor: Preprocessor) -> list[dict[str, Any]]:
    """Each base column as plain data: kind, source, offset, unit, n_levels, missing_code and target means."""
    found = []
    for j, part in preprocessor.base_columns():
        column = preprocessor.columns[j]
        kind, *which = part.split()
        levels = column.levels or ()
        means = preprocessor.target_means[j][:, int(which[0])].tolist() if kind == "target" else []
        found.append(
            {
                "kind": _BASE_KINDS.index(kind),
                "source": j,
                "offset": column.offset,
                "unit": column.unit,
                "n_levels": len(levels),
                "missing_code": levels.index(None) if None in levels else -1,
                "means": means,
            }
        )
    return found


def is_plain(columns: list[dict[str, Any]]) -> bool:
    """Whether base rows are the table's rows, rounded."""
    return all(
        c["kind"] == 0 and c["source"] == b and c["offset"] == 0 and c["unit"] == 1 for b, c in enumerate(columns)
    )


def native_head(head: Head) -> dict[str, Any]:
    """The head as plain data: link, scaling of targets, and the rank of each quantile."""
    link = {"binary": "binary", "multiclass": "softmax"}.get(head.task, head.loss.link)
    scaling = [[] if a is None else a.tolist() for a in (head.target_mean, head.target_scale)]
    is_quantile = head.loss.name == "quantile"
    rank = np.argsort(np.argsort(head.loss.quantiles)).tolist() if is_quantile else []
    return {
        "link": LINKS.index(link),
        "target_mean": scaling[0],
        "target_scale": scaling[1],
        "quantile_rank": rank,
    }


def _native_member(member: FoldedMember, encoding: int) -> dict[str, Any]:
    names = ("split_weight", "split_bias", "leaf_weight")
    return {
        "encoding": encoding,
        "activation": check_activation(member.activation),
        "gamma": member.gamma,
        "rounder": member.rounder,
        "offset": member.offset,
        "trees": [{name: getattr(group, name) for name in names} for group in member.groups],
    }
