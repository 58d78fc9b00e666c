"""Columns are matched by name wherever a fitted model reads a table, and frames of numbers are read at once."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from softwood import TreeEnsembleRegressor, explain
from softwood.tabular.reading.table import FrameColumns, read_table

MISMATCH = "The feature names should match those that were passed during fit.\n"


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(120, 3)), columns=["a", "b", "c"])
    return frame.assign(colour=rng.choice(["red", "blue"], 120))


@pytest.fixture(scope="module")
def fitted(table):
    y = 3 * table.a - table.b + (table.colour == "red")
    return TreeEnsembleRegressor(n_members=1, n_trees=4, max_epochs=10, random_state=0).fit(table, y)


def reordered(frame):
    return frame[list(frame.columns[::-1])]


def torch_read(fitted):
    torch = pytest.importorskip("softwood.torch")
    return lambda X: torch.from_model(fitted).read(X).numpy()


READERS = {
    "Model.predict": lambda fitted: fitted.model_.predict,
    "Model.rows": lambda fitted: lambda X: fitted.model_.rows(X)[0].split_values(0),
    "Predictor.predict": lambda fitted: fitted.predictor().predict,
    "column_contributions": lambda fitted: lambda X: explain.column_contributions(fitted, X).values,
    "decision_path": lambda fitted: lambda X: explain.decision_path(fitted, X, row=3).raw_scores,
    "usage": lambda fitted: lambda X: explain.usage(fitted, X).traffic[0],
    "torch read": torch_read,
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("container", [pd.DataFrame, pl.from_pandas], ids=["pandas", "polars"])
def test_columns_are_matched_by_name(table, fitted, name, container):
    read = READERS[name](fitted)
    expected = read(container(table))
    np.testing.assert_array_equal(read(container(reordered(table))), expected)
    with pytest.raises(
        ValueError, match=MISMATCH + "Feature names unseen at fit time:\n- z\n.*yet now missing:\n- a\n"
    ):
        read(container(table.rename(columns={"a": "z"})))
    with pytest.raises(ValueError, match=MISMATCH + "Feature names seen at fit time, yet now missing:\n- b\n"):
        read(container(table.drop(columns="b")))


def test_the_error_is_that_of_the_estimator(table, fitted):
    for wrong in (table.rename(columns={"a": "z", "b": "y"}), table.drop(columns="b"), table.assign(more=1)):
        with pytest.raises(ValueError, match=MISMATCH) as ours:
            fitted.predictor().predict(wrong)
        with pytest.raises(ValueError, match=MISMATCH) as theirs:
            fitted.predict(wrong)
        assert str(ours.value) == str(theirs.value)


def test_arrays_are_matched_by_position(table, fitted):
    array = table.to_numpy()
    np.testing.assert_array_equal(fitted.predictor().predict(array), fitted.predict(table))


def test_columns_of_an_eval_set_are_matched_by_name(table):
    y = 3 * table.a - table.b
    settings = {"n_members": 1, "n_trees": 4, "max_epochs": 5, "random_state": 0}
    plain = TreeEnsembleRegressor(**settings).fit(table, y, eval_set=(table[:40], y[:40]))
    other = TreeEnsembleRegressor(**settings).fit(table, y, eval_set=(reordered(table)[:40], y[:40]))
    assert other.history_["validation_loss"] == plain.history_["validation_loss"]
    with pytest.raises(ValueError, match=MISMATCH + "Feature names unseen"):
        TreeEnsembleRegressor(**settings).fit(table, y, eval_set=(table.rename(columns={"a": "z"}), y))


@pytest.mark.parametrize("settings", [{}, {"max_columns": 2}], ids=["all columns", "some columns"])
def test_columns_whose_names_are_numbers_are_put_in_order(settings):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(80, 3)), columns=[3, 5, 9])
    y, turned = frame[3] - 2 * frame[9], frame[[9, 3, 5]]
    options = {"n_members": 1, "n_trees": 4, "max_epochs": 5, "random_state": 0, **settings}
    plain = TreeEnsembleRegressor(**options).fit(frame, y, eval_set=(frame[:20], y[:20]))
    other = TreeEnsembleRegressor(**options).fit(frame, y, eval_set=(turned[:20], y[:20]))
    assert other.history_["validation_loss"] == plain.history_["validation_loss"]
    expected = plain.predict(frame)
    for read in (plain.predict, plain.predictor().predict, plain.model_.predict):
        np.testing.assert_array_equal(read(turned), expected)
    np.testing.assert_array_equal(
        plain.predict(frame.set_axis([0, 1, 2], axis=1)), expected
    )  # other names: by position


@pytest.mark.parametrize(
    ("X", "remedy"),
    [(pl.LazyFrame({"a": [1.0], "b": [2.0]}), r"got LazyFrame. Compute it first: X.collect\(\)."),
     ("table.csv", "got str. Read the file first, for example with pandas."),
     ({"a": [1.0]}, r"got dict. Make one of it: pandas.DataFrame\(X\).")],
    ids=["lazy", "path", "dict"],
)  # fmt: skip
def test_what_is_no_table_in_memory_is_refused_with_the_remedy(fitted, X, remedy):
    fit = [] if isinstance(X, str) else [lambda X: TreeEnsembleRegressor().fit(X, [1.0])]  # which takes names of files
    for read in (*fit, fitted.predict, fitted.predictor().predict):
        with pytest.raises(TypeError, match=remedy):
            read(X)


@pytest.mark.parametrize("container", [pd.DataFrame, pl.from_pandas], ids=["pandas", "polars"])
def test_a_frame_of_numbers_is_read_at_once(monkeypatch, container):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 5)), columns=list("abcde"))
    frame.loc[::7, "a"] = np.nan
    frame["d"] = np.arange(60)
    fitted = TreeEnsembleRegressor(n_members=1, n_trees=2, max_epochs=2, random_state=0).fit(frame, frame.d)
    expected = fitted.predictor().predict(frame.to_numpy(dtype=np.float64))

    def refuse(self, j):
        raise AssertionError("a column was read on its own")

    monkeypatch.setattr(FrameColumns, "__getitem__", refuse)
    np.testing.assert_array_equal(fitted.predict(container(frame)), expected)
    np.testing.assert_array_equal(fitted.predict(container(frame[7:8])), expected[7:8])


def test_frames_of_other_types_are_read_column_by_column():
    frame = pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64"), "b": [True, False, True], "c": [0.5, 1.5, 2.5]})
    table = read_table(frame)
    assert table.block([0, 1]) is None
    np.testing.assert_array_equal(table.block([2, 1]), [[0.5, 1], [1.5, 0], [2.5, 1]])
    assert read_table(np.ones((2, 2))).block([0]) is None
    selected = table.select([2, 0])
    assert selected.names == ("c", "a")
    np.testing.assert_array_equal(selected.numbers(1), [1, np.nan, 3])
    np.testing.assert_array_equal(selected.take(np.array([2, 0])).numbers(0), [2.5, 0.5])
