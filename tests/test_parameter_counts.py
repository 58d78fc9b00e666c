"""Trainable, stored and read weights, by hand and through a file; and the packing of integers."""

from __future__ import annotations

import numpy as np
import pytest

import softwood
from softwood.model.packing import differences, pack_integers, pack_text, runs, unpack_integers, unpack_text

SMALL = {"n_members": 1, "n_trees": 3, "depth": 2, "max_epochs": 2, "random_state": 0, "max_features": 1.0}


def table(n=200):
    X = np.random.default_rng(0).normal(size=(n, 2))
    return X, X[:, 0] + X[:, 1]


def test_counts_of_lookups(tmp_path):
    X, y = table()
    model = softwood.TreeEnsembleRegressor(**SMALL, n_bins=4).fit(X, y)
    counts = model.n_parameters_
    # Two columns of 5 knots: 4 ramps, a linear term and a missing cell, in 9 splits; biases; leaves.
    assert counts.trainable == 9 * 2 * 6 + 9 + 12
    trees = model.model_.members[0].trees
    assert counts.stored == 6 * len(trees.table_column) + 9 + 12 + 1
    # At most every split with two values of two tables, and every leaf; at least one way through each tree.
    assert 3 * 2 + 3 < counts.read <= 9 * 5 + 12 + 1
    model.save(tmp_path / "m.safetensors")
    assert softwood.load(tmp_path / "m.safetensors").n_parameters_ == counts


def test_a_row_of_hard_trees_would_read_one_way():
    X, y = table()
    model = softwood.TreeEnsembleRegressor(**SMALL, gamma=1e-4).fit(X, y)
    tables = np.diff(model.model_.members[0].trees.table_begin).max()
    assert model.n_parameters_.read <= 3 * (2 * (2 * tables + 1) + 1) + 1 + 0.5
    assert np.isnan(model.harden().n_parameters_.read)


def test_counts_of_linear_splits():
    X, y = table()
    model = softwood.TreeEnsembleRegressor(**SMALL, encoding="standard", batch_norm=True).fit(X, y)
    counts = model.n_parameters_
    p = model.model_.preprocessor.encodings["standard"].n_features
    n_biases = 0 if model.model_.members[0].trees.split_bias is None else 9
    assert counts.trainable == 9 * p + n_biases + 12 + 2 * p
    assert counts.stored <= 9 * p + 9 + 12 + 1
    assert counts.read <= counts.stored


@pytest.mark.parametrize("dtype", [np.int16, np.int32])
def test_packed_integers_come_back(dtype):
    rng = np.random.default_rng(0)
    limits = np.iinfo(dtype)
    for values in (rng.integers(-9, 9, 1000), np.array([limits.min, limits.max, 0, -1]), np.zeros(0)):
        values = values.astype(dtype)
        np.testing.assert_array_equal(unpack_integers(pack_integers(values), len(values), dtype), values)
        begin = np.arange(0, len(values), 2)
        np.testing.assert_array_equal(runs(differences(values, begin), begin), values)
    assert len(pack_integers(np.zeros(10_000, dtype))) < 100


@pytest.mark.parametrize("count", [999, 1001, 10**15, -1])
def test_another_count_is_refused(count):
    with pytest.raises(ValueError, match=r"integers|bytes"):
        unpack_integers(pack_integers(np.zeros(1000, np.int16)), count, np.int16)


def test_damaged_bytes_are_refused():
    packed = pack_integers(np.arange(100, dtype=np.int16))
    for damaged in (packed[:-1], np.append(packed, packed[:1]), packed.astype(np.int16), packed[::-1].copy()):
        with pytest.raises(ValueError, match="packed"):
            unpack_integers(damaged, 100, np.int16)
    assert unpack_text(pack_text("größe")) == "größe"
