"""Data frame, array or sparse matrix in; typed columns out.

Accepts NumPy arrays (numeric or object), nested lists, SciPy sparse matrices, and every eager data frame that narwhals
knows (pandas, polars, pyarrow, ...). Each column has one of four kinds:

========== =====================================================================================
numeric    integers, floats, decimals, durations and times of day (in seconds)
boolean    true or false, read as 1 and 0
category   strings, categoricals and enums, or whatever the caller declares to be one
datetime   dates and times, read as seconds since 1970 (UTC)
========== =====================================================================================

Missing cells (None, NaN, NaT, null) are NaN in numbers and None in labels. What the columns *mean* to a model is left
to `softwood.tabular.columns`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, overload

import numpy as np

KINDS = ("numeric", "boolean", "category", "datetime")
_NAMES_SHOWN = 5  # of unknown or missing columns


@dataclass(frozen=True)
class Table:
    """A data set with a known kind for each column. Made by `read_table`.

    Attributes
    ----------
    names : tuple of str or None
        Column names, where the data had any.
    kinds : tuple of str
        One of `KINDS` for each column.
    n_rows : int
        Number of rows.
    matrix : ndarray, csr_array or None
        All columns as one real-valued matrix, where the data came as one.
    columns : sequence or None
        One narwhals series or object array per column, where the data did not come as a matrix.
    """

    names: tuple[str, ...] | None
    kinds: tuple[str, ...]
    n_rows: int
    matrix: Any = None
    columns: tuple[Any, ...] | FrameColumns | None = None

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return len(self.kinds)

    def name(self, j: int) -> str:
        """Name of column `j`, or ``x<j>`` where the data has no names."""
        return self.names[j] if self.names is not None else f"x{j}"

    def rows(self, start: int, stop: int) -> Table:
        """Rows `start` to `stop`, without a copy where the container allows it."""
        stop = min(stop, self.n_rows)
        matrix = None if self.matrix is None else self.matrix[start:stop]
        return replace(self, n_rows=stop - start, matrix=matrix, columns=self._columns_of(slice(start, stop)))

    def take(self, rows: np.ndarray) -> Table:
        """The rows with the given numbers, as a copy."""
        matrix = None if self.matrix is None else self.matrix[rows]
        return replace(self, n_rows=len(rows), matrix=matrix, columns=self._columns_of(rows))

    def _columns_of(self, rows: slice | np.ndarray) -> tuple[Any, ...] | FrameColumns | None:
        if isinstance(self.columns, FrameColumns):
            return self.columns.rows(rows)
        return None if self.columns is None else tuple(column[rows] for column in self.columns)

    def select(self, order: Sequence[int]) -> Table:
        """The columns with the given numbers, in that order."""
        names = None if self.names is None else tuple(self.names[j] for j in order)
        matrix = None if self.matrix is None else self.matrix[:, list(order)]
        columns: Any = self.columns
        if isinstance(columns, FrameColumns):
            columns = columns.select(order)
        elif columns is not None:
            columns = tuple(columns[j] for j in order)
        return replace(self, names=names, kinds=tuple(self.kinds[j] for j in order), matrix=matrix, columns=columns)

    def numbers(self, j: int) -> np.ndarray:
        """Column `j` as floats [n_rows], NaN where missing; an error if it cannot be read as numbers."""
        if self.matrix is not None:
            return _matrix_column(self.matrix, j)
        assert self.columns is not None
        column = self.columns[j]
        try:
            values = _array_numbers(column) if isinstance(column, np.ndarray) else _series_numbers(column)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise type(error)(f"Column {self.name(j)!r} must hold numbers, as at fit; {error}") from error
        return values

    def labels(self, j: int) -> np.ndarray:
        """Column `j` as strings [n_rows, object], None where missing. Whole numbers read without a decimal point."""
        column = None if self.columns is None else self.columns[j]
        if column is not None and not isinstance(column, np.ndarray):
            return _series_labels(column)
        return _array_labels(column if column is not None else _matrix_column(self.matrix, j))

    def block(self, numbers: Sequence[int]) -> np.ndarray | None:
        """Some columns as one float64 matrix [n_rows, len(numbers)]; None if they cannot be read at once."""
        return self.columns.block(numbers) if isinstance(self.columns, FrameColumns) else None


def read_table(
    X: Any,
    *,
    kinds: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    categorical: Iterable[int] = (),
) -> Table:
    """Read any accepted container as a `Table`.

    Parameters
    ----------
    X : array-like, sparse matrix, data frame or Table [n_rows, n_columns]
        The data.
    kinds : sequence of str, optional
        Kinds of a table seen earlier: the columns are taken to have these, whatever their present type.
    names : sequence of str, optional
        Names of the columns of a table seen earlier. If X has names too, its columns are put into this order, and
        missing or further ones are an error.
    categorical : iterable of int, optional
        Columns that are categories whatever their type. Ignored if `kinds` is given.

    Examples
    --------
    >>> table = read_table([[1.5, "red"], [None, "blue"]])
    >>> table.kinds
    ('numeric', 'category')
    >>> table.numbers(0)
    array([1.5, nan])
    """
    if isinstance(X, Table):
        table = X
    elif is_frame(X):
        table = _read_frame(X, is_known=kinds is not None)
    else:
        table = _read_matrix(X)
    if names is not None and table.names is not None and table.names != tuple(names):
        table = table.select(_places(table.names, names))
    if kinds is not None:
        if len(kinds) != table.n_columns:
            raise ValueError(f"X must have {len(kinds)} columns, as at fit; got {table.n_columns}.")
        return replace(table, kinds=tuple(kinds))
    chosen = set(categorical)
    return replace(table, kinds=tuple("category" if j in chosen else kind for j, kind in enumerate(table.kinds)))


def _places(present: Sequence[str], known: Sequence[str]) -> list[int]:
    """Where each known column stands among those present; the error is that of scikit-learn's estimators."""
    place = {name: j for j, name in enumerate(present)}
    unseen, missing = sorted(set(present) - set(known)), sorted(set(known) - set(present))
    if unseen or missing or len(present) != len(known):
        message = "The feature names should match those that were passed during fit.\n"
        heads = {"Feature names unseen at fit time:\n": unseen}
        heads["Feature names seen at fit time, yet now missing:\n"] = missing
        for head, names in heads.items():
            if names:
                message += head + "".join(f"- {name}\n" for name in names[:_NAMES_SHOWN])
                message += "- ...\n" if len(names) > _NAMES_SHOWN else ""
        if not unseen and not missing:
            message += "Some names occur more than once.\n"
        raise ValueError(message)
    return [place[name] for name in known]


def is_sparse(X: Any) -> bool:
    """Whether `X` is a sparse matrix or array of SciPy; SciPy is not imported to find that out."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and sparse.issparse(X)


def is_frame(X: Any) -> bool:
    """Whether `X` is an eager data frame that narwhals knows."""
    if isinstance(X, (np.ndarray, list, tuple)) or is_sparse(X):
        return False
    import narwhals as nw

    return nw.dependencies.is_into_dataframe(X)


def resolve_columns(chosen: Any, table: Table) -> list[int]:
    """Column numbers for `chosen`: numbers, names or a mask; "from_dtype" and None choose none."""
    if chosen is None or (isinstance(chosen, str) and chosen == "from_dtype"):
        return []
    chosen = np.asarray(chosen)
    if chosen.ndim != 1:
        raise ValueError(f"categorical_features must be one-dimensional; got shape {chosen.shape}.")
    if chosen.dtype.kind == "b":
        if len(chosen) != table.n_columns:
            raise ValueError(
                f"A mask of categorical_features must have one entry for each of {table.n_columns} columns; "
                f"got {len(chosen)}."
            )
        return np.flatnonzero(chosen).tolist()
    if chosen.dtype.kind in "iu":
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < table.n_columns):
            raise ValueError(f"categorical_features must lie in 0 to {table.n_columns - 1}; got {chosen.tolist()}.")
        return chosen.tolist()
    names = list(table.names or ())
    missing = [str(name) for name in chosen if name not in names]
    if missing:
        raise ValueError(
            f"categorical_features must be names of columns; {missing} are not among "
            f"{names or 'those of a table without names: give numbers'}."
        )
    return [names.index(name) for name in chosen]


def require_finite(values: np.ndarray, name: str) -> None:
    """Raise a ValueError that names the column if `values` hold an infinity (NaN is a missing value, and allowed)."""
    with np.errstate(invalid="ignore", over="ignore"):
        suspicious = not np.isfinite(values.sum(dtype=np.float64))
    if suspicious and np.isinf(values).any():
        raise infinity_error(name)


def infinity_error(name: str) -> ValueError:
    """The error for a column that holds an infinity."""
    return ValueError(
        f"Input X contains infinity in column {name!r}; values must be finite, or NaN where they are missing. "
        "Replace the infinities, for example with NaN."
    )


# Arrays -------------------------------------------------------------------------------------------------------------


def _read_matrix(X: Any) -> Table:
    if not (type(X) is np.ndarray and X.ndim == 2 and X.size and X.dtype.kind in "fiub"):  # else: nothing to check
        from sklearn.utils import check_array

        X = check_array(X, accept_sparse="csr", dtype=None, ensure_all_finite=False)
    n_rows, n_columns = X.shape
    if X.dtype.kind == "f" and X.dtype.itemsize > 8:
        X = X.astype(np.float64)
    if X.dtype.kind in "fiu":
        return Table(None, ("numeric",) * n_columns, n_rows, matrix=X)
    if X.dtype.kind == "b":
        return Table(None, ("boolean",) * n_columns, n_rows, matrix=X)
    if is_sparse(X):
        raise TypeError(f"A sparse X must hold real numbers; got dtype {X.dtype}. Convert it with X.astype(float).")
    if X.dtype.kind == "M":
        columns = tuple(X[:, j] for j in range(n_columns))
        return Table(None, ("datetime",) * n_columns, n_rows, columns=columns)
    X = X.astype(object)
    columns = tuple(X[:, j] for j in range(n_columns))
    return Table(None, tuple(_object_kind(column) for column in columns), n_rows, columns=columns)


def _matrix_column(matrix: Any, j: int) -> np.ndarray:
    column = matrix[:, [j]].toarray()[:, 0] if is_sparse(matrix) else matrix[:, j]
    return column if column.dtype.kind == "f" and column.dtype.itemsize >= 4 else column.astype(np.float64)


def _object_kind(values: np.ndarray) -> str:
    """Kind of an object array, from the types of its cells that are not missing."""
    types = {type(value) for value in values if not _is_missing(value)}
    if any(issubclass(t, str) for t in types):
        return "category"
    if types and all(issubclass(t, (bool, np.bool_)) for t in types):
        return "boolean"
    if types and all(hasattr(t, "toordinal") or issubclass(t, np.datetime64) for t in types):
        return "datetime"
    return "numeric"


def _is_missing(value: Any) -> bool:
    """None, NaN, NaT or pandas.NA; the last is neither equal to itself nor a truth value."""
    if value is None:
        return True
    try:
        return bool(value != value)
    except TypeError:
        return type(value).__name__ == "NAType"
    except ValueError:  # an array in a cell
        return False


def _array_numbers(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "M":
        seconds = values.astype("datetime64[us]").astype(np.int64) / 1e6
        return np.where(np.isnat(values), np.nan, seconds)
    if values.dtype.kind != "O":
        return values.astype(np.float64)
    present = np.array([not _is_missing(value) for value in values], dtype=bool)
    result = np.full(len(values), np.nan)
    kept = values[present]
    if len(kept) and (hasattr(kept[0], "toordinal") or isinstance(kept[0], np.datetime64)):
        result[present] = kept.astype("datetime64[us]").astype(np.int64) / 1e6
    elif len(kept) and hasattr(kept[0], "tzinfo"):
        result[present] = [_seconds_of_day(time) for time in kept]
    else:
        result[present] = kept.astype(np.float64)
    return result


def _seconds_of_day(time: Any) -> float:
    return np.nan if time is None else time.hour * 3600 + time.minute * 60 + time.second + time.microsecond / 1e6


def _array_labels(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "O":
        try:
            label_of = {value: _label(value) for value in set(values.tolist())}
        except TypeError as error:
            raise TypeError(
                f"A category must be a string or a real number; {error}. Convert the column to strings first."
            ) from error
        return np.array([label_of[value] for value in values.tolist()], dtype=object)
    distinct, inverse = np.unique(values, return_inverse=True)
    return np.array([_label(value) for value in distinct.tolist()], dtype=object)[inverse]


def _label(value: Any) -> str | None:
    if _is_missing(value):
        return None
    if isinstance(value, (float, np.floating)) and float(value).is_integer() and abs(float(value)) < 2**53:
        return str(int(value))
    if isinstance(value, (str, int, float, np.generic, timedelta)) or hasattr(value, "isoformat"):
        return str(value)
    raise TypeError(f"got {type(value).__name__!r}")


# Data frames --------------------------------------------------------------------------------------------------------


class FrameColumns(Sequence[Any]):
    """The columns of a data frame, each read when it is asked for: a narwhals series, or an array of objects."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame
        self._read: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.frame.columns)

    @overload
    def __getitem__(self, j: int) -> Any: ...

    @overload
    def __getitem__(self, j: slice) -> Sequence[Any]: ...

    def __getitem__(self, j: int | slice) -> Any:
        if isinstance(j, slice):
            return [self[i] for i in range(*j.indices(len(self)))]
        if j not in self._read:
            import narwhals as nw

            series = self.frame[:, range(len(self))[j]]
            self._read[j] = series.to_numpy() if series.dtype == nw.Object else series
        return self._read[j]

    def rows(self, rows: slice | np.ndarray) -> FrameColumns:
        """The columns with some of the rows only."""
        return FrameColumns(self.frame[rows])

    def select(self, order: Sequence[int]) -> FrameColumns:
        """Some of the columns, in another order."""
        return FrameColumns(self.frame[:, list(order)])

    def block(self, numbers: Sequence[int]) -> np.ndarray | None:
        """Some columns as one matrix of floats [n, len(numbers)], NaN where missing.

        None if their types need to be read one by one. A frame of thousands of columns is read a hundred times faster
        at once than by its series.
        """
        import narwhals as nw

        frame = self.frame.to_native()
        is_all = len(numbers) == len(self)
        if nw.dependencies.is_pandas_dataframe(frame):
            some = frame if is_all else frame.iloc[:, list(numbers)]
            if not all(isinstance(dtype, np.dtype) and dtype.kind in "fiub" for dtype in some.dtypes.to_numpy()):
                return None
            return some.to_numpy(dtype=np.float64)
        if nw.dependencies.is_polars_dataframe(frame):
            some = frame if is_all else frame[:, list(numbers)]
            if not all(dtype.is_float() or dtype.is_integer() for dtype in some.dtypes):
                return None
            return some.to_numpy().astype(np.float64, copy=False)
        return None


def _read_frame(X: Any, *, is_known: bool) -> Table:
    """Read a data frame; `is_known`: the kinds of its columns are known, and need not be found out."""
    import narwhals as nw

    frame = nw.from_native(X, eager_only=True)
    names = tuple(str(name) for name in frame.columns)
    n_rows, n_columns = len(frame), len(names)
    if n_columns == 0 or n_rows == 0:
        what = "feature" if n_columns == 0 else "sample"
        raise ValueError(
            f"Found array with 0 {what}(s) (shape={(n_rows, n_columns)}) while a minimum of 1 is required: "
            "a table needs at least one row and one column."
        )
    columns = FrameColumns(frame)
    if is_known:
        return Table(names, ("numeric",) * n_columns, n_rows, columns=columns)
    kinds = tuple(_series_kind(frame[:, j], columns[j]) for j in range(n_columns))
    return Table(names, kinds, n_rows, columns=columns)


def _series_kind(series: Any, column: Any) -> str:
    import narwhals as nw

    dtype = series.dtype
    if isinstance(column, np.ndarray):
        return _object_kind(column)
    if dtype.is_numeric() or dtype in (nw.Duration, nw.Time):
        return "numeric"
    if dtype == nw.Boolean:
        return "boolean"
    if dtype in (nw.String, nw.Categorical, nw.Enum):
        return "category"
    if dtype in (nw.Datetime, nw.Date):
        return "datetime"
    if dtype == nw.Unknown and series.null_count() == len(series):
        return "numeric"
    raise TypeError(
        f"Columns must hold numbers, booleans, strings, categories or dates; column {series.name!r} has dtype {dtype}. "
        "Convert or drop it."
    )


def _series_numbers(series: Any) -> np.ndarray:
    import narwhals as nw

    dtype = series.dtype
    if dtype in (nw.Float32, nw.Float64) and series.null_count() == 0:
        return series.to_numpy()
    if dtype in (nw.Datetime, nw.Date):
        series = series.cast(nw.Datetime("us")) if dtype == nw.Date else series
        return series.dt.timestamp("us").cast(nw.Float64).to_numpy() / 1e6
    if dtype == nw.Duration:
        return series.dt.total_microseconds().cast(nw.Float64).to_numpy() / 1e6
    if dtype == nw.Time:
        return np.array([_seconds_of_day(value) for value in series.to_list()], dtype=np.float64)
    if dtype == nw.Unknown:
        return np.full(len(series), np.nan)
    return np.asarray(series.cast(nw.Float64).to_numpy(), dtype=np.float64)


def _series_labels(series: Any) -> np.ndarray:
    if series.dtype.is_numeric():
        return _array_labels(_series_numbers(series))
    return _array_labels(np.array(series.to_list(), dtype=object))
