"""Encodings against hand-computed values, unseen and missing cells, merging of rows, and the way through plain data."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from softwood.tabular.columns import Preprocessor, learn_columns, merge_rows
from softwood.tabular.features import LARGEST_FEATURE, FeatureKind, fit_encodings
from softwood.tabular.table import read_table
from softwood.training import Member, Samples, TrainingConfig, fit_members
from softwood.training.losses import Loss


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


def test_standard_encoding_standardises():
    X = np.array([[1.0], [2.0], [3.5], [6.0]])
    preprocessor, _ = fitted(X)
    np.testing.assert_allclose(encode(preprocessor, X), (X - X.mean()) / X.std(), rtol=1e-6)


def test_piecewise_encoding_by_hand():
    x = np.linspace(0, 100, 101)[:, None]
    x[-1] = 1e4  # an outlier
    preprocessor, _ = fitted(x)
    found = preprocessor.encodings["piecewise"]
    assert kinds_of(found) == ["soft_clip"] + ["ramp"] * 8
    encoded = encode(preprocessor, x, "piecewise")
    z = (x[:, 0] - 50) / 50.5  # quartiles lie between rows: 24.75 and 75.25
    clipped = z / np.sqrt(1 + (z / 3) ** 2)
    np.testing.assert_allclose(encoded[:, 0], (clipped - clipped.mean()) / clipped.std(), rtol=1e-5)
    knots = found.start[1:]
    assert np.all(np.diff(knots) > 0)
    ramp = np.clip((x[:, 0] - knots[3]) / (knots[4] - knots[3]), 0, 1)
    np.testing.assert_allclose(encoded[:, 4], (ramp - ramp.mean()) / ramp.std(), rtol=1e-4, atol=1e-5)
    assert np.abs(encoded).max() < 10.5  # one row of 101 at the end of the last ramp


def test_integers_of_few_levels_become_flags():
    X = np.array([0, 1, 2, 2, 5] * 4, dtype=float)[:, None]
    preprocessor, _ = fitted(X)
    for name in ("standard", "piecewise"):
        assert kinds_of(preprocessor.encodings[name]) == ["level"] * 4
    assert kinds_of(fitted(X[:, :] + 0.5)[0].encodings["standard"]) == ["linear"]  # not integers
    assert kinds_of(fitted(np.arange(11.0)[:, None])[0].encodings["standard"]) == ["linear"]  # too many
    assert kinds_of(fitted(np.array([[0.0], [1.0]]))[0].encodings["piecewise"]) == ["linear"]  # too few


def test_bins_keep_within_their_budget():
    rng = np.random.default_rng(0)
    for n_columns, n_bins in ((3, 8), (32, 8), (64, 4), (200, 2)):
        found = fit_encodings(rng.normal(size=(300, n_columns)).astype(np.float32), ["number"] * n_columns)["piecewise"]
        n_ramps = int((found.kind == FeatureKind.RAMP).sum())
        assert n_ramps == min(n_columns * n_bins, 256)


def test_missing_numbers():
    X = np.array([[1.0, 1.0], [3.0, 2.0], [np.nan, 3.5]])
    preprocessor, _ = fitted(X)
    assert kinds_of(preprocessor.encodings["standard"]) == ["linear", "linear", "missing"]
    encoded = encode(preprocessor, [[np.nan, np.nan]])
    # Missing cells stand at the mean; only the column that had some in training has an indicator.
    np.testing.assert_allclose(encoded, [[0, 0, np.sqrt(2)]], rtol=1e-6)


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
    names = np.array([f"city {i}" for i in range(20)])
    city = rng.integers(0, 20, 2000)
    y = (rng.random(2000) < city / 20).astype(float)
    X = pd.DataFrame({"city": names[city]})
    preprocessor, base = fitted(X, y)
    assert kinds_of(preprocessor.encodings["standard"]) == ["linear"]
    fitted_means = preprocessor.target_means[0]
    assert fitted_means.shape == (21, 1)
    by_level = [y[names[city] == level].mean() for level in preprocessor.columns[0].levels]
    np.testing.assert_allclose(fitted_means[:-1, 0], by_level, atol=0.03)
    np.testing.assert_allclose(fitted_means[-1, 0], y.mean(), rtol=1e-6)  # an unseen city
    assert not np.allclose(base[:, 1], fitted_means[city, 0])  # in training, a row's own label is left out
    unseen = preprocessor.read(read_table(pd.DataFrame({"city": ["Atlantis"]}), kinds=preprocessor.kinds))
    np.testing.assert_allclose(unseen[0], [-1, y.mean()], rtol=1e-6)


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


def test_column_of_ids_is_reported():
    X = pd.DataFrame({"id": [f"id {i}" for i in range(50)], "x": np.arange(50.0)})
    with pytest.warns(UserWarning, match="Column 'id' has 50 categories, each in one row only"):
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


def test_large_offsets_and_extreme_units_survive_float32():
    X = np.column_stack([1e9 + np.arange(50) / 8, 1e200 * np.arange(50), 1e-200 * np.arange(50)])
    preprocessor, base = fitted(X)
    assert np.all(np.diff(base, axis=0) > 0)
    assert np.isfinite(encode(preprocessor, X * 1e50, "piecewise")).all()
    assert np.isfinite(encode(preprocessor, [[-1e308, 1e308, 1e308]])).all()


def test_infinity_is_refused():
    with pytest.raises(ValueError, match="Input X contains infinity in column 'size'"):
        fitted(pd.DataFrame({"size": [1.0, np.inf]}))
    preprocessor, _ = fitted(np.array([[1.0], [2.0]], dtype=np.float32))
    with pytest.raises(ValueError, match="infinity in column 'x0'"):
        preprocessor.read(read_table(np.array([[np.inf]], dtype=np.float32)))


def test_constant_table_has_one_idle_input():
    preprocessor, _ = fitted(np.ones((5, 2)))
    np.testing.assert_array_equal(encode(preprocessor, np.ones((3, 2))), np.zeros((3, 1)))


def test_float32_table_is_not_copied():
    X = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    table = read_table(X)
    assert np.shares_memory(learn_columns(table).read(table), X)


def test_sparse_equals_dense():
    X = np.random.default_rng(0).poisson(0.3, size=(200, 5)).astype(float)
    dense, sparse = fitted(X)[0], fitted(scipy.sparse.csr_array(X))[0]
    for name in ("standard", "piecewise"):
        np.testing.assert_array_equal(encode(dense, X, name), encode(sparse, scipy.sparse.csc_array(X), name))


def test_weights_of_rows_equal_copies_of_rows():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(40, 2)).astype(np.float32)
    weight = rng.integers(1, 4, 40)
    once = fit_encodings(base, ["number"] * 2, weight=weight.astype(float))["standard"]
    repeated = fit_encodings(np.repeat(base, weight, axis=0), ["number"] * 2)["standard"]
    np.testing.assert_allclose(once.mean, repeated.mean, rtol=1e-6)
    np.testing.assert_allclose(once.scale, repeated.scale, rtol=1e-6)


def test_merge_rows():
    base = np.array([[1, np.nan], [0.0, 2], [1, np.nan], [-0.0, 2], [1, np.nan], [7, 7]], dtype=np.float32)
    y = np.array([0, 1, 0, 1, 1, 0])
    rows, weight = merge_rows(base, y, np.array([1.0, 2, 3, 4, 5, 0]))
    assert {(int(r), float(w)) for r, w in zip(rows, weight, strict=True)} == {(0, 4.0), (1, 6.0), (4, 5.0)}
    order = np.random.default_rng(0).permutation(6)
    shuffled, shuffled_weight = merge_rows(base[order], y[order], np.array([1.0, 2, 3, 4, 5, 0])[order])
    np.testing.assert_array_equal(base[order][shuffled], base[rows])
    np.testing.assert_array_equal(shuffled_weight, weight)


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


def numpy_encoding(found, base):
    """The definition of `softwood.tabular.features`, feature by feature."""
    columns = []
    for f in range(found.n_features):
        x = base[:, found.source[f]]
        kind = FeatureKind(found.kind[f]).name.lower()
        if kind == "soft_clip":
            z = np.clip((x - found.start[f]) * found.rate[f], -1e6, 1e6)
            r = z / np.sqrt(1 + (z / 3) * (z / 3))
        elif kind == "ramp":
            r = np.clip((x - found.start[f]) * found.rate[f], 0, 1)
        elif kind == "level":
            r = (x == found.start[f]).astype(np.float32)
        else:
            r = np.isnan(x).astype(np.float32) if kind == "missing" else x
        value = np.clip((r - found.mean[f]) * found.scale[f], -1e6, 1e6)
        columns.append(value if kind == "missing" else np.where(np.isnan(x), np.float32(0), value))
    return np.stack(columns, axis=1)


def test_the_core_holds_features_within_the_same_bound():
    base = np.array([[-3e38], [1.0], [3e38]], dtype=np.float32)
    found = fit_encodings(np.array([[-1.0], [1.0]], dtype=np.float32), ["number"])["standard"]
    np.testing.assert_array_equal(found.transform(base)[:, 0], [-LARGEST_FEATURE, 1, LARGEST_FEATURE])


def test_core_computes_the_definition_to_the_bit():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(1000, 4)).astype(np.float32) * np.float32([1, 1e-3, 1e5, 1])
    base[:, 3] = rng.integers(0, 6, 1000)
    base[rng.random(base.shape) < 0.1] = np.nan
    extreme = np.array([[1e38, -1e38, np.nan, 9], [-0.0, 0.0, 1e-40, -1]], dtype=np.float32)
    for found in fit_encodings(base, ["number"] * 4).values():
        for rows in (base, extreme, base[:0]):
            with np.errstate(over="ignore"):
                expected = numpy_encoding(found, rows)
            np.testing.assert_array_equal(found.evaluate(rows), expected)
            for n_threads in (1, 3):
                np.testing.assert_array_equal(found.transform(rows, n_threads=n_threads), expected)


def test_training_on_encoded_rows_equals_training_on_their_encoding():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(300, 3)).astype(np.float32)
    base[::7, 1] = np.nan
    y = (base[:, 0] > 0).astype(float)
    found = fit_encodings(base, ["number"] * 3)["piecewise"]
    for batch_norm in (False, True):
        settings = TrainingConfig(Loss("binary_cross_entropy"), n_trees=4, max_epochs=2, batch_norm=batch_norm)
        train, held_out = np.arange(200), np.arange(200, 300)
        fits = []
        for samples in (Samples(base, y, encoding=found), Samples(found.transform(base), y)):
            parts = replace(samples, rows=train), replace(samples, rows=held_out)
            fits.append(fit_members(settings, [Member(*parts)])[0])
        np.testing.assert_array_equal(fits[0].trees.split_weight, fits[1].trees.split_weight)
        assert [r.validation_loss for r in fits[0].history] == [r.validation_loss for r in fits[1].history]
