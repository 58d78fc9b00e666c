"""Tables from every container have the same kinds, numbers and labels."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse

from softwood.tabular.reading.table import read_table, resolve_columns

CELLS = {
    "count": [1, 2, None],
    "size": [1.5, None, -2.0],
    "flag": [True, None, False],
    "colour": ["red", None, "blue"],
    "when": [dt.datetime(1970, 1, 1, 0, 0, 1), None, dt.datetime(2020, 2, 29, 12)],
    "day": [dt.date(1970, 1, 2), None, dt.date(2020, 1, 3)],
    "took": [dt.timedelta(days=1), None, dt.timedelta(seconds=3)],
    "clock": [dt.time(1, 2, 3), None, dt.time(4)],
}
KINDS = ("numeric", "numeric", "boolean", "category", "datetime", "datetime", "numeric", "numeric")
NUMBERS = {
    0: [1, 2, np.nan],
    1: [1.5, np.nan, -2],
    2: [1, np.nan, 0],
    4: [1, np.nan, 1582977600],
    5: [86400, np.nan, 1578009600],
    6: [86400, np.nan, 3],
    7: [3723, np.nan, 14400],
}
FRAMES = {
    "pandas": pd.DataFrame(CELLS),
    "pandas nullable": pd.DataFrame(CELLS).convert_dtypes(),
    "pandas pyarrow": pd.DataFrame(CELLS).convert_dtypes(dtype_backend="pyarrow"),
    "polars": pl.DataFrame(CELLS),
    "pyarrow": pa.table(CELLS),
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_every_frame_reads_alike(frame):
    table = read_table(frame)
    assert table.names == tuple(CELLS)
    assert table.kinds == KINDS
    assert table.n_rows == 3
    for j, expected in NUMBERS.items():
        np.testing.assert_array_equal(table.numbers(j), expected)
    assert table.labels(3).tolist() == ["red", None, "blue"]


def test_object_array_reads_like_a_frame():
    table = read_table(np.array([CELLS[name] for name in ("count", "flag", "colour", "when")], dtype=object).T)
    assert table.kinds == ("numeric", "boolean", "category", "datetime")
    assert table.names is None
    assert table.name(2) == "x2"
    np.testing.assert_array_equal(table.numbers(0), [1, 2, np.nan])
    np.testing.assert_array_equal(table.numbers(3), NUMBERS[4])
    assert table.labels(2).tolist() == ["red", None, "blue"]


def test_time_zones_read_as_utc():
    when = pd.Series(pd.to_datetime(["2020-01-01 01:00"])).dt.tz_localize("Europe/Berlin")
    assert read_table(pd.DataFrame({"when": when})).numbers(0).tolist() == [1577836800.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, np.float16])
def test_numeric_matrices_keep_their_values(dtype):
    X = np.arange(6).reshape(3, 2).astype(dtype)
    table = read_table(X)
    assert table.kinds == ("numeric", "numeric")
    np.testing.assert_array_equal(table.numbers(1), [1, 3, 5])
    assert (table.numbers(0).base is not None) == (dtype in (np.float32, np.float64))  # a view, not a copy


def test_sparse_matrices():
    X = scipy.sparse.csr_array(np.array([[0.0, 2.0], [1.0, 0.0]]))
    table = read_table(X)
    assert table.numbers(1).tolist() == [2, 0]
    assert table.rows(1, 2).numbers(0).tolist() == [1]
    assert table.take(np.array([1, 0])).numbers(0).tolist() == [1, 0]


def test_labels_of_numbers_do_not_depend_on_their_type():
    whole = read_table(pd.DataFrame({"code": [3, 7]}), categorical=[0])
    floats = read_table(np.array([[3.0], [7.0]]), categorical=[0])
    categories = read_table(pd.DataFrame({"code": pd.Categorical([3, None, 7])}))
    assert whole.kinds == floats.kinds == categories.kinds == ("category",)
    assert whole.labels(0).tolist() == floats.labels(0).tolist() == ["3", "7"]
    assert categories.labels(0).tolist() == ["3", None, "7"]


def test_categoricals_and_enums():
    frame = pl.DataFrame({"a": ["x", "y"], "b": ["x", "y"]})
    frame = frame.with_columns(pl.col("a").cast(pl.Categorical), pl.col("b").cast(pl.Enum(["x", "y"])))
    table = read_table(frame)
    assert table.kinds == ("category", "category")
    assert table.labels(1).tolist() == ["x", "y"]


def test_known_kinds_win_over_present_types():
    table = read_table(pd.DataFrame({"code": ["3", "7"]}), kinds=("numeric",))
    assert table.numbers(0).tolist() == [3, 7]
    with pytest.raises(ValueError, match=r"Column 'code' must hold numbers, as at fit; .*'red'"):
        read_table(pd.DataFrame({"code": pd.Series(["red"], dtype=object)}), kinds=("numeric",)).numbers(0)
    with pytest.raises(ValueError, match=r"X must have 2 columns, as at fit; got 1\."):
        read_table([[1.0]], kinds=("numeric", "numeric"))


def test_all_missing_columns_are_numeric():
    assert read_table(pl.DataFrame({"a": [None, None]})).kinds == ("numeric",)
    assert np.isnan(read_table(pa.table({"a": [None, None]})).numbers(0)).all()


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pl.DataFrame({"a": [[1], [2]]}), "column 'a' has dtype List.*Convert or drop it"),
        (pd.DataFrame({"a": []}), "0 sample"),
        (pd.DataFrame(index=[0, 1]), "0 feature"),
    ],
)
def test_unusable_frames_are_refused(frame, message):
    with pytest.raises((TypeError, ValueError), match=message):
        read_table(frame)


def test_category_of_no_hashable_type_is_refused():
    with pytest.raises(TypeError, match="Column 'x0' cannot be read: A category must be a string or a real number"):
        read_table(np.array([[{"a": 1}], ["x"]], dtype=object))


def test_rows_and_take():
    table = read_table(pl.DataFrame(CELLS))
    assert table.rows(1, 99).n_rows == 2
    assert table.rows(2, 3).labels(3).tolist() == ["blue"]
    assert table.take(np.array([2, 0])).labels(3).tolist() == ["blue", "red"]


def test_resolve_columns():
    table = read_table(pd.DataFrame({"a": [1], "b": [2]}))
    assert resolve_columns("from_dtype", table) == resolve_columns(None, table) == []
    assert resolve_columns(["b"], table) == resolve_columns([1], table) == resolve_columns([False, True], table) == [1]
    for wrong, message in [(["c"], r"\['c'\] are not among \['a', 'b'\]"), ([2], "0 to 1"), ([True], "2 columns")]:
        with pytest.raises(ValueError, match=message):
            resolve_columns(wrong, table)
