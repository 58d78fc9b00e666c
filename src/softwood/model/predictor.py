"""A prediction program in, a compiled predictor out: rows of a table to predictions without the rest of the library.

The work of a row (columns to base row, encodings, trees, head) is done by the compiled core, which holds the weights in
the order in which it reads them. Labels and dates are turned into numbers by `softwood.tabular.reading.table`. Only
this module knows the form in which the core takes a program.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood import _core
from softwood.arguments import check_activation, check_n_threads
from softwood.model.lookup_trees import LookupTrees
from softwood.model.program import FoldedMember, Link, PredictionHead, Program
from softwood.ops import get_num_threads
from softwood.tabular.encoding.base_columns import (
    BaseColumn,
    CalendarPart,
    CalendarUnit,
    Code,
    TargetMean,
    Value,
    read_base,
)
from softwood.tabular.encoding.lookups import Lookup
from softwood.tabular.reading.table import Table, warn_of_infinity

# Rows that are read at once where a table is not a matrix of numbers.
_BLOCK_ROWS = 16_384
# Copying so many rows costs less than looking at them.
_FEW_ROWS = 64


class Predictor:
    """A model compiled for prediction. Immutable, picklable, and safe to use from many threads at once.

    The global interpreter lock is released while the core works. A row's raw scores are the same to the last bit
    whatever the rows beside it, the number of threads and the machine's instruction set (but for
    `activation="logistic"`, whose exponentials may be rounded differently there).

    `predict`, `predict_proba` and `raw_scores` take a table [n, p] of any kind that `fit` takes, or one row [p] as a
    one-dimensional array or a list. One row gives what a table of one row gives, without the first axis. An array of
    floats is the fastest row in a model without categories; `predict_row` is as fast with categories.

    Parameters
    ----------
    program : Program
        As `Model.program` has it; `Model.predictor` and the estimators' `predictor` make the predictor of a model.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> import softwood
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> classifier = softwood.TreeEnsembleClassifier(n_members=1, max_epochs=5, random_state=0).fit(X, y)
    >>> predictor = classifier.predictor()
    >>> predictor.predict(X).shape, predictor.predict_proba(X).shape
    ((569,), (569, 2))
    >>> int(predictor.predict(X[0])), predictor.predict_proba(X[0]).shape
    (0, (2,))
    >>> bool(np.all(predictor.predict_proba(X[0]) == classifier.predict_proba(X)[0]))
    True
    """

    __slots__ = (
        "_has_labels",
        "_has_numbers_only",
        "_has_plain_rows",
        "_n_columns",
        "_n_outputs",
        "_n_scores",
        "_native",
        "_shape",
        "program",
    )

    def __init__(self, program: Program) -> None:
        self.program = program
        names = list(program.encodings)
        self._native = _core.Predictor(
            len(program.columns),
            program.n_scores,
            [_native_base_column(column) for column in program.base],
            [encoding.arrays() for encoding in program.encodings.values()],
            [_native_lookup(lookup) for lookup in program.lookups],
            [_native_member(member, names) for member in program.members],
            _native_head(program.head),
        )
        self._n_columns = len(program.columns)
        self._has_labels = "category" in program.kinds
        self._has_plain_rows = not self._has_labels and program.head.classes is not None
        self._has_numbers_only = all(kind in ("numeric", "boolean") for kind in program.kinds)
        self._n_outputs = program.n_outputs
        self._n_scores = program.n_scores
        self._shape = program.head.shape(program.n_scores)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.program,)

    def __repr__(self) -> str:
        return f"Predictor({self._n_columns} columns, {self._n_outputs} outputs, {self.n_bytes} bytes of weights)"

    @property
    def n_bytes(self) -> int:
        """Memory of the weights as they are laid out."""
        return self._native.n_bytes

    def predict(self, X: Any, *, n_threads: int | None = None) -> Any:
        """Class labels, or predicted values.

        Parameters
        ----------
        X : table [n, p], or one row [p]
        n_threads : int, optional
            Upper bound on threads; a single row is always computed by the calling thread.

        Returns
        -------
        ndarray
            [n] for a table; for several labels, targets or quantiles [n, labels], [n, t], [n, q] or [n, t, q]. One row:
            without the first axis.
        """
        if self.program.head.classes is None:
            return self._outputs(X, n_threads)
        row = _one_row(X)
        labels = self.program.head.labels(self._run(X if row is None else row[None], n_threads, raw_scores=True))
        return labels if row is None else labels[0]

    __call__ = predict

    def predict_proba(self, X: Any, *, n_threads: int | None = None) -> NDArray[np.float64]:
        """Class probabilities [n, classes] of a table, or [classes] of one row.

        Parameters
        ----------
        X, n_threads
            As in `predict`.
        """
        if self._has_plain_rows and isinstance(X, np.ndarray) and X.ndim == 1:  # the usual request of a server
            return self.predict_row(X)
        if self.program.head.classes is None:
            raise ValueError("predict_proba needs a classifier; this model is a regression: call predict.")
        return self._outputs(X, n_threads)

    def predict_row(self, row: NDArray[np.floating[Any]] | Sequence[Any]) -> NDArray[np.float64]:
        """Class probabilities [classes] or values [outputs] of one row of numbers [p]: the fastest call for one row.

        Dates are seconds since 1970 (UTC), categories the codes that `category_code` gives (-1: none of the known), and
        NaN is a missing cell. Values of several targets and quantiles stand target by target.
        """
        output = np.empty(self._n_outputs)
        if not isinstance(row, np.ndarray):
            row = _as_row(row)
        if row.ndim == 1 and len(row) == len(self.program.given_columns):
            row = row[list(self.program.places)]
        if row.shape != (self._n_columns,):
            raise ValueError(f"X must have {self._n_columns} columns, as at fit; got a row of shape {row.shape}.")
        if row.dtype.char not in "fd" or not row.flags.c_contiguous:
            row = self._as_numbers(row)
        infinite_column = self._native.predict_row(row, output)
        if infinite_column >= 0:
            warn_of_infinity(self.program.columns[infinite_column].name)
            self._native.predict_row(_held(row), output)
        return output

    def raw_scores(self, X: Any, *, n_threads: int | None = None) -> NDArray[np.float64]:
        """Raw scores [n, k] of a table, or [k] of one row: the mean over members of offset plus sum of trees."""
        row = _one_row(X)
        scores = self._run(X if row is None else row[None], n_threads, raw_scores=True)
        return scores if row is None else scores[0]

    def base_scores(self, base: NDArray[np.float32], *, n_threads: int | None = None) -> NDArray[np.float64]:
        """Raw scores [n, k] of rows of the base matrix [n, q]; see `softwood.tabular.encoding.base_columns`."""
        scores = np.empty((len(base), self.program.n_scores))
        base = np.ascontiguousarray(base, dtype=np.float32)
        self._native.predict_base(base, True, scores, check_n_threads(n_threads) or get_num_threads())
        return scores

    def category_code(self, column: int | str, label: str | None) -> int:
        """Code of a category for `predict_row`; `column` is a number or a name, None a missing cell."""
        number = column if isinstance(column, int) else self.program.column_names.index(column)
        code = self.program.codes.get(number)
        if code is None:
            name = self.program.columns[number].name
            raise ValueError(f"Column {name!r} holds no categories; give its number itself.")
        return int(code.encode([label])[0])

    def _outputs(self, X: Any, n_threads: int | None) -> Any:
        """What the head makes of the scores, for a table or one row."""
        row = _one_row(X)
        if row is None:
            return self._run(X, n_threads).reshape(-1, *self._shape)
        values = self._run(row[None], n_threads)[0] if self._has_labels else self.predict_row(row)
        return values.reshape(self._shape)[()]

    def _as_numbers(self, row: np.ndarray) -> NDArray[np.float64]:
        """One row as contiguous float64; dates and other objects are read as those of a table are."""
        if row.dtype.kind in "fiub" or all(isinstance(cell, (int, float)) for cell in row.tolist()):
            return np.ascontiguousarray(row, dtype=np.float64)
        table = self.program.read(row[None])
        return np.array([table.numbers(j)[0] for j in range(table.n_columns)], dtype=np.float64)

    def _run(self, X: Any, n_threads: int | None, *, raw_scores: bool = False) -> NDArray[np.float64]:
        """Outputs [n, n_outputs] or raw scores [n, k] of a table."""
        program = self.program
        threads = check_n_threads(n_threads) or get_num_threads()
        n_outputs = self._n_scores if raw_scores else self._n_outputs
        if type(X) is np.ndarray and X.ndim == 2 and X.dtype.char in "fd":  # the usual call of a server
            rows = np.ascontiguousarray(X) if len(X) <= _FEW_ROWS else X  # a row of a table stored by columns
            if self._reads_matrix(rows):
                return self._run_matrix(rows, raw_scores, np.empty((len(X), n_outputs)), threads)
        table = program.read(X)
        output = np.empty((table.n_rows, n_outputs))
        if table.matrix is not None and self._reads_matrix(table.matrix):
            return self._run_matrix(table.matrix, raw_scores, output, threads)
        for first in range(0, table.n_rows, _BLOCK_ROWS):
            some = table.rows(first, first + _BLOCK_ROWS)
            part = output[first : first + _BLOCK_ROWS]
            matrix = self._matrix_of(some)
            if matrix is not None:
                self._run_matrix(matrix, raw_scores, part, threads)
            else:
                base = read_base(some, program.base, program.column_names)
                self._native.predict_base(base, raw_scores, part, threads)
        return output

    def _matrix_of(self, table: Table) -> np.ndarray | None:
        """The table as a matrix that the core can read; None if there are categories, or it has to go by columns."""
        if self._has_labels:
            return None
        matrix = table.matrix
        if matrix is None and self._has_numbers_only:
            matrix = table.block(range(self._n_columns))
        if not isinstance(matrix, np.ndarray):
            return None
        return np.ascontiguousarray(matrix, dtype=None if matrix.dtype.char in "fd" else np.float64)

    def _reads_matrix(self, matrix: Any) -> bool:
        """Whether the core can read this matrix where it is."""
        return (
            not self._has_labels
            and isinstance(matrix, np.ndarray)
            and matrix.ndim == 2
            and matrix.shape[0] > 0
            and matrix.shape[1] == self._n_columns
            and matrix.dtype.char in "fd"
            and matrix.strides[1] == matrix.itemsize
            and matrix.strides[0] % matrix.itemsize == 0
            and matrix.flags.aligned
        )

    def _run_matrix(
        self, matrix: np.ndarray, raw_scores: bool, output: NDArray[np.float64], threads: int
    ) -> NDArray[np.float64]:
        infinite_column = self._native.predict(matrix, raw_scores, output, threads)
        if infinite_column >= 0:
            warn_of_infinity(self.program.columns[infinite_column].name)
            self._native.predict(_held(matrix), raw_scores, output, threads)
        return output


def load_predictor(path: str | os.PathLike[str]) -> Predictor:
    """Read a file that `save` wrote as a `Predictor`, for servers: NumPy and safetensors are all it needs.

    Neither scikit-learn nor pandas nor SciPy is imported. No code in the file is run.

    Raises
    ------
    softwood.model.ModelFileError
        If the file is damaged, truncated, hostile, or was written by a newer version.

    Examples
    --------
    >>> import os, tempfile
    >>> import softwood
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = softwood.TreeEnsembleRegressor(n_members=1, n_trees=4, max_epochs=5, random_state=0).fit(X, X[:, 0])
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> model.save(path)
    >>> bool(np.all(softwood.load_predictor(path).predict(X) == model.predict(X)))
    True
    """
    from softwood.model.file import read_model

    return read_model(path).predictor()


def _held(values: np.ndarray) -> np.ndarray:
    """A copy in which infinities are the largest numbers of the type; NaN stays."""
    largest = np.finfo(values.dtype).max
    return np.ascontiguousarray(np.clip(values, -largest, largest))


def _one_row(X: Any) -> np.ndarray | None:
    """The one row that X is, as a one-dimensional array; None if X is a table."""
    if isinstance(X, np.ndarray):
        return X if X.ndim == 1 else None
    return _as_row(X) if isinstance(X, (list, tuple)) and len(X) and np.ndim(X[0]) == 0 else None


def _as_row(cells: Any) -> np.ndarray:
    """A list or another sequence of cells as an array of one dimension."""
    if not isinstance(cells, Sequence) or isinstance(cells, (str, bytes)):
        raise TypeError(
            f"A row must be a one-dimensional array or a list of numbers; got {type(cells).__name__}. Tables go to "
            "predict."
        )
    row = np.empty(len(cells), dtype=object)
    row[:] = list(cells)
    return row


# The core's form of a program; the numbers are those of its enumerations ---------------------------------------------

_NUMBER, _CODE, _TARGET_MEAN = 0, 1, 5
_CALENDAR_UNITS = {CalendarUnit.MONTH: 2, CalendarUnit.WEEKDAY: 3, CalendarUnit.HOUR: 4}
_LINKS = {Link.IDENTITY: 0, Link.EXPONENTIAL: 1, Link.BINARY: 2, Link.SOFTMAX: 3, Link.LOGISTIC: 4}


def _native_base_column(column: BaseColumn) -> dict[str, Any]:
    form = {"source": column.column, "offset": 0.0, "unit": 1.0, "n_levels": 0, "missing_code": -1, "means": []}
    if isinstance(column, Value):
        return form | {"kind": _NUMBER, "offset": column.offset, "unit": column.unit}
    if isinstance(column, CalendarPart):
        return form | {"kind": _CALENDAR_UNITS[column.unit]}
    code = column if isinstance(column, Code) else column.code
    form |= {"n_levels": len(code.levels), "missing_code": code.missing_code}
    if isinstance(column, TargetMean):
        return form | {"kind": _TARGET_MEAN, "means": column.means.tolist()}
    return form | {"kind": _CODE}


def _native_lookup(lookup: Lookup) -> dict[str, Any]:
    return {"base_column": lookup.base_column, "knots": lookup.knots, "n_codes": lookup.n_codes}


def _native_member(member: FoldedMember | LookupTrees, encodings: list[str]) -> dict[str, Any]:
    form = {"activation": check_activation(member.activation), "gamma": member.gamma, "offset": member.offset}
    if isinstance(member, LookupTrees):
        arrays = ("table_begin", "table_column", "values", "split_bias", "leaf_weight", "step", "leaf_scale")
        return form | {"lookups": {name: getattr(member, name) for name in arrays}}
    names = ("split_weight", "split_bias", "leaf_weight")
    trees = [{name: getattr(group, name) for name in names} for group in member.groups]
    return form | {"encoding": encodings.index(member.encoding), "rounder": member.rounder, "trees": trees}


def _native_head(head: PredictionHead) -> dict[str, Any]:
    return {
        "link": _LINKS[head.link],
        "target_mean": [] if head.target_mean is None else head.target_mean.tolist(),
        "target_scale": [] if head.target_scale is None else head.target_scale.tolist(),
        "quantile_rank": list(head.quantile_ranks),
    }
