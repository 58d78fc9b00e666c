"""Cells of one column in, their kind, numbers or labels out, whatever container they come in.

A column is an array, or a narwhals series of a data frame. Texts are left to `softwood.tabular.reading.texts`, tables
to `softwood.tabular.reading.table`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np

from softwood.tabular.reading.texts import text_kind, text_numbers


def is_text(column: Any) -> bool:
    """Whether a column holds texts that are not declared to be categories."""
    if isinstance(column, np.ndarray):
        return column.dtype.kind == "U" or (column.dtype.kind == "O" and any(isinstance(v, str) for v in column))
    import narwhals as nw

    return column.dtype == nw.String


def kind_of(column: Any, name: str) -> tuple[str, str | None]:
    """Kind of a column, and a remark if it was guessed."""
    if is_text(column):
        return text_kind(distinct_texts(column))
    if isinstance(column, np.ndarray):
        return _object_kind(column), None
    return _series_kind(column, name), None


def distinct_texts(column: Any) -> list[str]:
    """The texts of a column, each once, without missing cells."""
    some = column if isinstance(column, np.ndarray) else np.array(column.unique().to_list(), dtype=object)
    return sorted(set(labels_of(some).tolist()) - {None})


def numbers_of(column: Any, kind: str) -> np.ndarray:
    """Cells [n] as floats, NaN where missing; texts are read as their kind says."""
    if is_text(column):
        return text_numbers(labels_of(column), kind)
    return _array_numbers(column) if isinstance(column, np.ndarray) else _series_numbers(column)


def labels_of(column: Any) -> np.ndarray:
    """Cells [n, object] as texts, None where missing. Whole numbers read without a decimal point."""
    return _array_labels(column) if isinstance(column, np.ndarray) else _series_labels(column)


# Arrays -------------------------------------------------------------------------------------------------------------


def _object_kind(values: np.ndarray) -> str:
    """Kind of an object array without texts, from the types of its cells that are not missing."""
    types = {type(value) for value in values if not is_missing(value)}
    if types and all(issubclass(t, (bool, np.bool_)) for t in types):
        return "boolean"
    if types and all(hasattr(t, "toordinal") or issubclass(t, np.datetime64) for t in types):
        return "datetime"
    if types and all(t.__name__ == "Interval" for t in types):
        return "category"
    return "numeric"


def is_missing(value: Any) -> bool:
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
    present = np.array([not is_missing(value) for value in values], dtype=bool)
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
    if is_missing(value) or (isinstance(value, str) and not value):
        return None
    if isinstance(value, (float, np.floating)) and float(value).is_integer() and abs(float(value)) < 2**53:
        return str(int(value))
    if isinstance(value, (str, int, float, np.generic, timedelta)) or hasattr(value, "isoformat"):
        return str(value)
    if type(value).__name__ == "Interval":  # of pandas.cut
        return str(value)
    raise TypeError(f"got {type(value).__name__!r}")


# Series of data frames ----------------------------------------------------------------------------------------------


def plain_series(series: Any) -> Any:
    """A series of a type that narwhals reads, or an array: pandas has some that it does not."""
    import narwhals as nw

    if series.dtype == nw.Object:
        return series.to_numpy()
    if series.dtype != nw.Unknown or not nw.dependencies.is_pandas_series(series.to_native()):
        return series
    native = series.to_native()
    kind = type(native.dtype).__name__
    if kind == "PeriodDtype":
        return nw.from_native(native.dt.to_timestamp(), series_only=True)
    if kind == "SparseDtype":
        return nw.from_native(native.sparse.to_dense(), series_only=True)
    return native.to_numpy(dtype=object) if kind == "IntervalDtype" else series


def _series_kind(series: Any, name: str) -> str:
    import narwhals as nw

    dtype = series.dtype
    if dtype.is_numeric() or dtype in (nw.Duration, nw.Time):
        return "numeric"
    if dtype == nw.Boolean:
        return "boolean"
    if dtype in (nw.Categorical, nw.Enum):
        return "category"
    if dtype in (nw.Datetime, nw.Date):
        return "datetime"
    if dtype == nw.Unknown and series.null_count() == len(series):
        return "numeric"
    raise TypeError(
        f"Columns must hold numbers, booleans, strings, categories or dates; column {name!r} has dtype {dtype}. "
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
    if dtype.is_integer():  # Arrow refuses to round those beyond 2^53
        if series.null_count() == 0:
            return series.to_numpy().astype(np.float64)
        return np.array([np.nan if is_missing(value) else float(value) for value in series.to_list()])
    return np.asarray(series.cast(nw.Float64).to_numpy(), dtype=np.float64)


def _series_labels(series: Any) -> np.ndarray:
    if series.dtype.is_integer() and series.null_count() == 0:  # floats would round those beyond 2^53
        return _array_labels(series.to_numpy())
    if series.dtype.is_float():
        return _array_labels(_series_numbers(series))
    return _array_labels(np.array([*series.to_list(), None], dtype=object)[:-1])
