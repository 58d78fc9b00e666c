"""The same table gives the same model from every container; awkward columns work, or are named."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import softwood
from softwood.cli.tablefile import read_file
from softwood.tabular.reading.table import read_table

TINY = {"n_members": 1, "n_trees": 2, "depth": 2, "max_epochs": 2, "random_state": 0, "n_jobs": 1}
N = 40


def texts(n=N, seed=0):
    """Every column as a text file has it; None is a missing cell."""
    rng = np.random.default_rng(seed)
    days = [dt.datetime(2012, 1, 1) + dt.timedelta(days=int(d), hours=int(h)) for d, h in rng.integers(0, 24, (n, 2))]
    return {
        "size": [None if i == 3 else repr(float(v)) for i, v in enumerate(rng.normal(size=n).round(3))],
        "count": [str(v) for v in rng.integers(0, 90, n)],
        "large": [str(2**53 + int(v)) for v in rng.integers(0, 2**60, n)],
        "zip": [f"{v:05d}" for v in rng.choice([1234, 501, 99999], n)],
        "flag": [str(bool(v)).lower() for v in rng.integers(0, 2, n)],
        "colour": [None if v == "" else str(v) for v in rng.choice(["red", "blue", ""], n)],
        "iso": [day.date().isoformat() for day in days],
        "zulu": [day.strftime("%Y-%m-%dT%H:%M:%SZ") for day in days],
        "day first": [day.strftime("%d-%m-%Y %H:%M") for day in days],
        "month first": [day.strftime("%m/%d/%Y") for day in days],
        "clock": [day.strftime("%H:%M:%S") for day in days],
    }


def containers(folder):
    columns = texts()
    lines = [",".join(columns), *(",".join(cell or "" for cell in row) for row in zip(*columns.values(), strict=True))]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    parquet.write_table(pa.table(columns), folder / "t.parquet")
    empty = {name: [cell or "" for cell in cells] for name, cells in columns.items()}
    typed = pd.read_csv(folder / "t.csv", dtype={"zip": str}, parse_dates=["iso", "zulu"])
    return {
        "csv": read_file(folder / "t.csv"),
        "parquet": read_file(folder / "t.parquet"),
        "pandas objects": pd.DataFrame(columns, dtype=object),
        "pandas strings": pd.DataFrame(columns).convert_dtypes(),
        "pandas, types found": typed,
        "polars": pl.DataFrame(columns),
        "polars, empty texts": pl.DataFrame(empty),
        "pyarrow": pa.table(columns),
        "array of objects": pd.DataFrame(empty, dtype=object).to_numpy(),
    }


KINDS = {
    "size": "numeric",
    "count": "numeric",
    "large": "numeric",
    "zip": "category",
    "flag": "boolean",
    "colour": "category",
    "iso": "datetime",
    "zulu": "datetime",
    "day first": "datetime_day_first",
    "month first": "datetime",
    "clock": "numeric",
}


def test_all_containers_read_alike_and_give_the_same_model(tmp_path):
    first, answers = None, None
    y = np.arange(N) % 2
    for name, frame in containers(tmp_path).items():
        table = read_table(frame)
        assert dict(zip(KINDS, table.kinds, strict=True)) == KINDS, name
        cells = [table.labels(j) if kind == "category" else table.numbers(j) for j, kind in enumerate(table.kinds)]
        first = first or cells
        for column, own, expected in zip(KINDS, cells, first, strict=True):
            np.testing.assert_array_equal(own, expected, err_msg=f"{column} of {name}")
        if name in ("csv", "polars, empty texts", "array of objects"):
            found = softwood.TreeEnsembleClassifier(**TINY).fit(frame, y).predict_proba(frame)
            answers = found if answers is None else answers
            np.testing.assert_array_equal(found, answers, err_msg=name)


def test_rows_are_read_as_the_table_of_the_fit_was(tmp_path):
    """One row cannot tell whether the day comes first."""
    frame = pd.DataFrame(texts())
    model = softwood.TreeEnsembleClassifier(**TINY).fit(frame, np.arange(N) % 2)
    model.save(tmp_path / "m.safetensors")
    again = softwood.load(tmp_path / "m.safetensors")
    whole = model.predict_proba(frame)
    for i in range(N):
        np.testing.assert_array_equal(again.predict_proba(frame.iloc[[i]])[0], whole[i])


def test_kinds_can_be_declared():
    frame = pd.DataFrame({"zip": [1234, 501] * 20, "when": ["03-02-2012", "04-02-2012"] * 20, "n": ["07", "08"] * 20})
    kinds = {"zip": "category", 1: "date", "n": "numeric"}
    model = softwood.TreeEnsembleClassifier(**TINY, column_kinds=kinds)
    with pytest.warns(UserWarning, match="Column 'when' holds dates whose day and month cannot be told apart"):
        model.fit(frame, np.arange(40) % 2)
    assert model.model_.preprocessor.kinds == ("category", "datetime_day_first", "numeric")
    for wrong, says in {
        "zap": "column_kinds must name columns of the table; 'zap' is not among",
        3: "column_kinds must name columns of the table; 3 is not among",
    }.items():
        with pytest.raises(ValueError, match=says):
            model.set_params(column_kinds={wrong: "date"}).fit(frame, np.arange(40) % 2)
    with pytest.raises(ValueError, match=r"column_kinds must be one of date, numeric, .*; got 'day' for column 'zip'"):
        model.set_params(column_kinds={"zip": "day"}).fit(frame, np.arange(40) % 2)
    with pytest.raises(ValueError, match=r"column_kinds must map names .*; got list\."):
        model.set_params(column_kinds=["zip"]).fit(frame, np.arange(40) % 2)


@pytest.mark.parametrize("container", [pd.DataFrame, lambda frame: frame.to_numpy()], ids=["frame", "array"])
def test_columns_that_are_declared_boolean_hold_truth_values(container):
    frame = pd.DataFrame({"a": [0.0, 1.0, np.nan, 1.0] * 10, "b": np.arange(40.0)})
    model = softwood.TreeEnsembleRegressor(**TINY, column_kinds={0: "boolean"}).fit(container(frame), frame["b"])
    assert model.model_.preprocessor.kinds == ("boolean", "numeric")
    with pytest.raises(ValueError, match=r"Column '(b|x1)' must hold true or false, or 1 and 0, as column_kinds"):
        softwood.TreeEnsembleRegressor(**TINY, column_kinds={1: "boolean"}).fit(container(frame), frame["b"])


def test_a_text_that_is_no_number_is_named():
    frame = pd.DataFrame({"price": ["1.5", "$2", "3"] * 10})
    with pytest.raises(ValueError, match=r"Column 'price' must hold numbers; could not convert '\$2' to a number"):
        softwood.TreeEnsembleClassifier(**TINY, column_kinds={"price": "numeric"}).fit(frame, np.arange(30) % 2)


def fit_and_predict(frame, y=None):
    y = np.arange(len(frame)) % 2 if y is None else y
    model = softwood.TreeEnsembleClassifier(**TINY).fit(frame, y)
    assert np.isfinite(model.predict_proba(frame)).all()
    return model


def test_types_of_pandas_that_others_refuse():
    x = np.random.default_rng(0).normal(size=N)
    frame = pd.DataFrame({"x": x})
    frame["cut"] = pd.cut(frame["x"], 3)
    frame["interval"] = pd.arrays.IntervalArray.from_breaks(np.arange(N + 1) // 8)
    frame["sparse"] = pd.arrays.SparseArray((x > 1).astype(float), fill_value=0.0)
    frame["period"] = pd.period_range("2020-01", periods=N, freq="M")
    frame["int128"] = [10**20 + i for i in range(N)]
    frame["decimal"] = pd.array(np.arange(N), dtype=pd.ArrowDtype(pa.decimal128(30, 2)))
    model = fit_and_predict(frame)
    kinds = ("numeric", "category", "category", "numeric", "datetime", "numeric", "numeric")
    assert model.model_.preprocessor.kinds == kinds


def test_integers_beyond_two_to_the_53_stay_apart_as_categories():
    codes = [2**53, 2**53 + 1, 2**62 + 1]
    for frame in (pd.DataFrame({"id": codes}), np.array(codes)[:, None], pl.DataFrame({"id": codes})):
        assert read_table(frame, categorical=[0]).labels(0).tolist() == [str(code) for code in codes]


def test_names_that_occur_twice_are_refused_by_name():
    twice = pd.DataFrame([[1, 2, 3], [4, 5, 6]], columns=["a", "b", "a"])
    for frame in (twice, pa.table([pa.array([1, 2])] * 2, names=["a", "a"])):
        with pytest.raises(ValueError, match=r"Column names must differ; 'a' occurs twice\. Rename or drop one\."):
            softwood.TreeEnsembleClassifier(**TINY).fit(frame, [0, 1])


def test_labels_that_are_missing_or_dates_are_refused_with_the_remedy():
    frame = pd.DataFrame({"x": np.arange(4.0)})
    says = r"y must hold a class label in every row; 1 of 4 are missing, the first in row 2\. Leave such rows out\."
    for y in (
        ["a", "b", None, "a"],
        pd.Series(["a", "b", np.nan, "a"]),
        pd.Series(["a", "b", pd.NA, "a"], dtype="string"),
    ):
        with pytest.raises(ValueError, match=says):
            softwood.TreeEnsembleClassifier(**TINY).fit(frame, y)
    with pytest.raises(ValueError, match=r"y must hold class labels; got dates or durations\. Convert them to texts"):
        softwood.TreeEnsembleClassifier(**TINY).fit(frame, pd.date_range("2020", periods=4))
    with pytest.raises(ValueError, match=r"y must hold numbers; got dates or durations\. Convert them"):
        softwood.TreeEnsembleRegressor(**TINY).fit(frame, pd.date_range("2020", periods=4))


def test_labels_that_are_objects():
    frame = pd.DataFrame({"x": np.arange(40.0)})
    for y in (np.arange(40) < 20, np.arange(40) // 20 + 3):
        plain = softwood.TreeEnsembleClassifier(**TINY).fit(frame, y)
        objects = softwood.TreeEnsembleClassifier(**TINY).fit(frame, y.astype(object))
        assert objects.classes_.dtype == plain.classes_.dtype
        np.testing.assert_array_equal(objects.predict_proba(frame), plain.predict_proba(frame))
    for y, kind in ((pd.cut(frame["x"], 2), "Interval"), (pd.Series([(0, 1), 2] * 20), "int and tuple")):
        with pytest.raises(ValueError, match=rf"texts, whole numbers or truth values; got {kind}\. Convert them to te"):
            softwood.TreeEnsembleClassifier(**TINY).fit(frame, y)


def test_all_ids_are_named_at_once():
    frame = pd.DataFrame({"id": [f"id {i}" for i in range(N)], "x": np.arange(N), "key": [f"k{i}" for i in range(N)]})
    with pytest.warns(UserWarning, match="Nothing can be learned from columns 'id', 'key': each text there occurs in"):
        fit_and_predict(frame)
