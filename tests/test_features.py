"""Encodings against hand-computed values and their definition in NumPy, and training on encoded rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from softwood.tabular.encoding.features import LARGEST_FEATURE, FeatureKind, fit_encodings, summarise
from softwood.training import Member, Samples, TrainingConfig, fit_members
from softwood.training.losses import Loss
from test_columns import encode, fitted, kinds_of


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
    expected = (ramp - ramp.mean()) / ramp.std() / np.sqrt(8)
    np.testing.assert_allclose(encoded[:, 4], expected, rtol=1e-4, atol=1e-5)
    assert np.abs(encoded).max() < 10.5  # one row of 101 at the end of the last ramp


def test_integers_of_few_levels_become_flags():
    X = np.array([0, 1, 2, 2, 5] * 4, dtype=float)[:, None]
    preprocessor, _ = fitted(X)
    assert kinds_of(preprocessor.encodings["standard"]) == ["ramp"] + ["level"] * 4
    assert kinds_of(preprocessor.encodings["piecewise"]) == ["ramp"] * 4 + ["level"] * 4  # a knot at each value
    beyond, within = encode(preprocessor, [[9.0], [3.5]]), encode(preprocessor, [[5.0], [2.0]])
    assert beyond[0, 0] == within[0, 0] > beyond[1, 0] > within[1, 0]  # held at the ends, rising between
    assert kinds_of(fitted(X[:, :] + 0.5)[0].encodings["standard"]) == ["linear"]  # not integers
    assert kinds_of(fitted(np.arange(11.0)[:, None])[0].encodings["standard"]) == ["linear"]  # too many
    assert kinds_of(fitted(np.array([[0.0], [1.0]]))[0].encodings["piecewise"]) == ["linear"]  # too few


def test_bins_keep_within_their_budget():
    rng = np.random.default_rng(0)
    for n_columns, n_bins in ((3, 8), (32, 8), (128, 4), (300, 2)):
        found = fit_encodings(rng.normal(size=(300, n_columns)).astype(np.float32), ["number"] * n_columns)["piecewise"]
        n_ramps = int((found.kind == FeatureKind.RAMP).sum())
        assert n_ramps == min(n_columns * n_bins, 512)


def test_missing_numbers():
    X = np.array([[1.0, 1.0], [3.0, 2.0], [np.nan, 3.5]])
    preprocessor, _ = fitted(X)
    assert kinds_of(preprocessor.encodings["standard"]) == ["linear", "linear", "missing"]
    encoded = encode(preprocessor, [[np.nan, np.nan]])
    # Missing cells stand at the mean; only the column that had some in training has an indicator.
    np.testing.assert_allclose(encoded, [[0, 0, np.sqrt(2)]], rtol=1e-6)


def test_constant_table_has_one_idle_input():
    preprocessor, _ = fitted(np.ones((5, 2)))
    np.testing.assert_array_equal(encode(preprocessor, np.ones((3, 2))), np.zeros((3, 1)))


def test_weights_of_rows_equal_copies_of_rows():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(40, 2)).astype(np.float32)
    weight = rng.integers(1, 4, 40)
    once = fit_encodings(base, ["number"] * 2, weight=weight.astype(float))["standard"]
    repeated = fit_encodings(np.repeat(base, weight, axis=0), ["number"] * 2)["standard"]
    np.testing.assert_allclose(once.mean, repeated.mean, rtol=1e-6)
    np.testing.assert_allclose(once.scale, repeated.scale, rtol=1e-6)


def numpy_encoding(found, base):
    """The definition of `softwood.tabular.encoding.features`, feature by feature."""
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


@pytest.mark.parametrize("weighted", [False, True])
def test_moments_of_ramps_and_levels_are_those_of_their_definitions(weighted):
    random = np.random.default_rng(0)
    values = np.append(random.normal(size=300), [0.5, 0.5, 2.0, 2.0, 2.0])
    weight = random.uniform(0.1, 2, len(values)) if weighted else np.ones(len(values))
    summary = summarise(values.astype(np.float32), np.arange(len(values)), weight, "number")
    knots = np.array([-1.0, 0.5, 0.75, 2.0])
    ramps = np.clip((summary.values - knots[:-1, None]) / np.diff(knots)[:, None], 0, 1)
    levels = np.array([-9.0, 0.5, 2.0])
    flags = (summary.values == levels[:, None]).astype(float)
    for found, functions in ((summary.ramp_moments(knots), ramps), (summary.level_moments(levels), flags)):
        np.testing.assert_allclose(found, summary.moments(functions), rtol=1e-9, atol=1e-12)
