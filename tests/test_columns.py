"""Columns of a table: unseen and missing cells, target means, dates, merging of rows, and plain data."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from softwood.tabular.encoding.columns import Preprocessor, learn_columns, merge_rows
from softwood.tabular.encoding.features import FeatureKind
from softwood.tabular.reading.table import read_table


def fitted(X, y=None):
    table = read_table(X)
    preprocessor = learn_columns(table, n_target_columns=1 if y is None else y.reshape(len(y), -1).shape[1])
    base = preprocessor.read(table)
    rows = np.arange(table.n_rows)
    if y is not None:
        preprocessor.learn_targets(base, y.reshape(len(y), -1), rows)
    preprocessor.learn_encodings(base)
    return preprocessor, base


def encode(preprocessor, X, name="standard"):
    return preprocessor.encodings[name].transform(preprocessor.read(read_table(X, kinds=preprocessor.kinds)))


def kinds_of(fitted_encoding):
    return [FeatureKind(kind).name.lower() for kind in fitted_encoding.kind]


def test_unseen_and_missing_categories():
    X = pd.DataFrame({"colour": ["red", "green", "blue", "red"], "taste": ["sour", None, "sweet", "sour"]})
    preprocessor, base = fitted(X)
    assert preprocessor.columns[0].levels == ("blue", "green", "red")
    assert preprocessor.columns[1].levels == ("sour", "sweet", None)
    known = preprocessor.encodings["standard"].transform(base)
    flags = known[:, :3] > 0
    np.testing.assert_array_equal(flags, [[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1]])
    unseen = encode(preprocessor, pd.DataFrame({"colour": ["mauve", None], "taste": ["bitter", None]}))
    assert (unseen[0] < 0).all()
    assert (unseen[1, :3] < 0).all()
    assert unseen[1, 5] > 0  # missing is a level of its own where training saw it


def test_many_categories_get_cross_fitted_target_means():
    rng = np.random.default_rng(0)
    names = np.array([f"city {i}" for i in range(25)])
    city = rng.integers(0, 25, 2000)  # fewer than 100 rows per level
    y = (rng.random(2000) < city / 25).astype(float)
    X = pd.DataFrame({"city": names[city]})
    preprocessor, base = fitted(X, y)
    assert kinds_of(preprocessor.encodings["standard"]) == ["linear"]
    fitted_means = preprocessor.target_means[0]
    assert fitted_means.shape == (26, 1)
    by_level = [y[names[city] == level].mean() for level in preprocessor.columns[0].levels]
    np.testing.assert_allclose(fitted_means[:-1, 0], by_level, atol=0.03)
    np.testing.assert_allclose(fitted_means[-1, 0], y.mean(), rtol=1e-6)  # an unseen city
    assert not np.allclose(base[:, 1], fitted_means[city, 0])  # in training, a row's own label is left out
    unseen = preprocessor.read(read_table(pd.DataFrame({"city": ["Atlantis"]}), kinds=preprocessor.kinds))
    np.testing.assert_allclose(unseen[0], [-1, y.mean()], rtol=1e-6)


def test_levels_with_many_rows_each_get_flags():
    for n_levels, has_many in ((20, False), (21, True), (65, True)):
        n = 2000 if n_levels < 65 else 10_000
        labels = [f"c{i % n_levels}" for i in range(n)]
        preprocessor, _ = fitted(pd.DataFrame({"code": labels}), np.arange(n) / n)
        assert preprocessor.columns[0].has_many_levels == has_many
        again = Preprocessor.from_plain(*preprocessor.to_plain())
        assert again.columns == preprocessor.columns


def test_ten_levels_get_flags_and_eleven_target_means():
    for n_levels, has_many in ((10, False), (11, True)):
        preprocessor, _ = fitted(pd.DataFrame({"code": [f"c{i % n_levels}" for i in range(110)]}), np.arange(110.0))
        assert preprocessor.columns[0].has_many_levels == has_many
        assert kinds_of(preprocessor.encodings["standard"]) == (["linear"] if has_many else ["level"] * 10)


def test_trees_see_target_means_or_levels_but_never_both():
    table = read_table(pd.DataFrame({"shop": [f"s{i % 30}" for i in range(300)], "colour": ["red", "blue"] * 150}))
    preprocessor = learn_columns(table)
    assert preprocessor.most_levels == 30
    assert preprocessor.roles() == ["none", "code", "number"]
    assert preprocessor.roles(by_level=True) == ["code", "code", "none"]


def test_target_means_of_a_training_row_leave_out_its_own_fold():
    """Every fifth row is a fold."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"code": [f"c{i}" for i in rng.integers(0, 12, 300)]})
    y = rng.random(300)
    _, before = fitted(X, y)
    fold = np.arange(300) % 5 == 2
    _, after = fitted(X, np.where(fold, y + 1, y))
    np.testing.assert_array_equal(before[fold, 1], after[fold, 1])
    assert np.all(before[~fold, 1] != after[~fold, 1])


def test_target_means_of_several_targets():
    code = np.arange(300) % 15
    y = np.column_stack([code == 3, code % 2, np.zeros(300)]).astype(float)
    preprocessor, base = fitted(pd.DataFrame({"code": [f"c{i:02}" for i in code]}), y)
    means = preprocessor.target_means[0]
    assert base.shape == (300, 4)
    np.testing.assert_allclose(means[:15, 0], np.arange(15) == 3, atol=0.01)
    np.testing.assert_allclose(means[:15, 1], np.arange(15) % 2, atol=0.01)
    np.testing.assert_array_equal(means[:, 2], 0)


def test_rare_levels_stand_for_unseen_ones():
    code = [f"c{i % 12}" for i in range(240)] + [f"rare {i}" for i in range(10)]
    y = np.array([0.0] * 240 + [1.0] * 10)
    preprocessor, _ = fitted(pd.DataFrame({"code": code}), y)
    assert len(preprocessor.columns[0].levels) == 12
    assert preprocessor.target_means[0][-1, 0] > 0.9
    twice, _ = fitted(pd.DataFrame({"code": [*code, "rare 0"]}), np.append(y, 1.0))
    assert twice.columns[0].levels[-1] == "rare 0"


def test_column_of_ids_is_reported():
    X = pd.DataFrame({"id": [f"id {i}" for i in range(50)], "x": np.arange(50.0)})
    with pytest.warns(UserWarning, match="Nothing can be learned from column 'id': each text there occurs in one row"):
        preprocessor, _ = fitted(X)
    assert preprocessor.encodings["standard"].source.tolist() == [1]


def test_dates_keep_their_resolution_and_calendar():
    when = pd.date_range("2020-01-01", periods=400, freq="7h")
    X = pd.DataFrame({"when": when})
    preprocessor, base = fitted(X)
    assert preprocessor.columns[0].calendar == ("month", "weekday", "hour")
    assert np.all(np.diff(base[:, 0]) > 0)
    np.testing.assert_array_equal(base[:, 1], when.month)
    np.testing.assert_array_equal(base[:, 2], when.day_of_week)
    np.testing.assert_array_equal(base[:, 3], when.hour)


def test_calendar_of_missing_dates_and_dates_before_1970():
    when = pd.to_datetime(["1969-12-31 23:59:59", None, "1900-03-01 05:00:00", "2024-02-29 12:00:00"])
    _, base = fitted(pd.DataFrame({"when": when}))
    np.testing.assert_array_equal(base[:, 1:], np.stack([when.month, when.day_of_week, when.hour], axis=1))
    assert np.isnan(base[1]).all()


def test_calendar_parts_that_do_not_vary_are_left_out():
    when = pd.date_range("2020-01-06", periods=5, freq="D")
    assert fitted(pd.DataFrame({"when": when}))[0].columns[0].calendar == ("weekday",)
    assert fitted(pd.DataFrame({"when": when[:1]}))[0].columns[0].calendar == ()


@pytest.mark.parametrize(
    ("low", "high", "offset", "unit"),
    [(1e6, 1e6 + 2, 1e6 + 1, 1), (-2001, -2000, -2000.5, 1), (100, 101, 0, 1), (5, 5, 0, 1), (0, 1e31, 0, 1e31)],
)
def test_only_numbers_that_float32_would_blur_are_moved_or_scaled(low, high, offset, unit):
    column = fitted(np.array([[low], [high]], dtype=float))[0].columns[0]
    assert (column.offset, column.unit) == (offset, unit)


def test_large_offsets_and_extreme_units_survive_float32():
    X = np.column_stack([1e9 + np.arange(50) / 8, 1e200 * np.arange(50), 1e-200 * np.arange(50)])
    preprocessor, base = fitted(X)
    assert np.all(np.diff(base, axis=0) > 0)
    assert np.isfinite(encode(preprocessor, X * 1e50, "piecewise")).all()
    assert np.isfinite(encode(preprocessor, [[-1e308, 1e308, 1e308]])).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_infinity_is_the_largest_finite_value(dtype):
    X = np.array([[1.0], [np.inf], [3.0], [-np.inf]], dtype=dtype)
    with pytest.warns(UserWarning, match="Column 'x0' holds infinities, which are read as the largest finite value"):
        preprocessor, base = fitted(X)
    np.testing.assert_array_equal(base, [[1], [3], [3], [1]])
    assert np.isinf(X[1, 0])
    with pytest.warns(UserWarning, match="Column 'x0' holds infinities"):  # known: 3 may be absent here
        held = preprocessor.read(read_table(np.array([[np.inf], [2.0]], dtype=dtype), kinds=("numeric",)))
    np.testing.assert_array_equal(held, [[np.finfo(np.float32).max], [2]])


def test_float32_table_is_not_copied():
    X = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    table = read_table(X)
    assert np.shares_memory(learn_columns(table).read(table), X)


@pytest.mark.parametrize("block_rows", [7, 65_536])
def test_sparse_equals_dense(monkeypatch, block_rows):
    monkeypatch.setattr("softwood.tabular.encoding.columns._BLOCK_ROWS", block_rows)
    X = np.random.default_rng(0).poisson(0.3, size=(200, 5)).astype(float)
    dense, sparse = fitted(X)[0], fitted(scipy.sparse.csr_array(X))[0]
    for name in ("standard", "piecewise"):
        np.testing.assert_array_equal(encode(dense, X, name), encode(sparse, scipy.sparse.csc_array(X), name))


def test_numbers_beyond_float32_become_its_largest():
    preprocessor, _ = fitted(np.array([[1.0], [2.0]]))
    largest = np.finfo(np.float32).max
    base = preprocessor.read(read_table([[1e300], [-1e300], [3.0]]))
    np.testing.assert_array_equal(base, np.array([[largest], [-largest], [3.0]], dtype=np.float32))


def test_merge_rows():
    base = np.array([[1, np.nan], [0.0, 2], [1, np.nan], [-0.0, 2], [1, np.nan], [7, 7]], dtype=np.float32)
    y = np.array([0, 1, 0, 1, 1, 0])
    rows, weight, count, standing_for = merge_rows(base, y, np.array([1.0, 2, 3, 4, 5, 0]))
    np.testing.assert_array_equal(count, weight)
    np.testing.assert_array_equal(standing_for, [0, 1, 0, 1, 4, -1])
    np.testing.assert_array_equal(merge_rows(base, y, np.array([1.0, 2, 3, 4, 5.5, 0]))[2], np.where(rows == 4, 1, 2))
    assert {(int(r), float(w)) for r, w in zip(rows, weight, strict=True)} == {(0, 4.0), (1, 6.0), (4, 5.0)}
    order = np.random.default_rng(0).permutation(6)
    shuffled, shuffled_weight, *_ = merge_rows(base[order], y[order], np.array([1.0, 2, 3, 4, 5, 0])[order])
    np.testing.assert_array_equal(base[order][shuffled], base[rows])
    np.testing.assert_array_equal(shuffled_weight, weight)


def test_rows_that_share_a_key_but_differ_stay_apart(monkeypatch):
    monkeypatch.setattr("softwood.tabular.encoding.columns._mix", lambda key, values: key)
    base = np.array([[1.0], [1.0], [2.0], [1.0]], dtype=np.float32)
    rows, weight, *_ = merge_rows(base, np.array([0.0, 0.0, 0.0, 5.0]), np.ones(4))
    assert rows.tolist() == [0, 2, 3]
    assert weight.tolist() == [2, 1, 1]


def test_every_nan_is_the_same():
    other_nan = np.array([0x7FC00001], dtype=np.uint32).view(np.float32)[0]
    rows, weight, *_ = merge_rows(np.array([[np.nan], [other_nan]], dtype=np.float32), np.zeros(2), np.ones(2))
    assert (len(rows), weight.tolist()) == (1, [2])


def test_plain_data_round_trip():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "number": np.where(rng.random(300) < 0.1, np.nan, rng.normal(1e8, 1, 300)),
            "few": rng.choice(["a", "b", None], 300),
            "many": rng.choice([f"m{i}" for i in range(12)], 300),
            "when": pd.date_range("2020-01-01", periods=300, freq="5h"),
        }
    )
    preprocessor, _ = fitted(X, rng.integers(0, 2, 300))
    data, arrays = preprocessor.to_plain()
    again = Preprocessor.from_plain(json.loads(json.dumps(data)), arrays)
    assert again.columns == preprocessor.columns
    for name in ("standard", "piecewise"):
        np.testing.assert_array_equal(encode(again, X, name), encode(preprocessor, X, name))
