"""Lookup columns by hand, and trained trees of lookups against the loss that training found."""

from __future__ import annotations

import numpy as np
import pytest

from softwood import TreeEnsembleRegressor, reference
from softwood.tabular.encoding.lookups import fit_lookups
from softwood.training import Loss, Member, Samples, TrainingConfig, fit_members


def lookups_of(base, roles=None, n_bins=4):
    base = np.asarray(base, dtype=np.float32)
    rows = np.arange(len(base))
    return fit_lookups(base, roles or ["number"] * base.shape[1], n_bins=n_bins, rows=rows, weight=np.ones(len(base)))


def decoded(cells):
    return (cells & 0xFFFF).tolist(), np.round((cells >> 16) / 65535, 4).tolist()


def test_numbers_have_an_entry_and_a_fraction():
    lookups = lookups_of([[0.0], [10.0], [20.0], [40.0]])
    assert lookups.columns[0].knots.tolist() == [0, 10, 20, 40]
    rows = np.array([[0], [5], [10], [25], [40], [99], [-3], [np.nan]], dtype=np.float32)
    entries, fractions = decoded(lookups.cells(rows)[:, 0])
    position = [e + f for e, f in zip(entries, fractions, strict=True)]
    assert position == [0, 0.5, 1, 2.25, 3, 3, 0, 4]  # held at the ends; a missing cell has an entry of its own


def test_knots_of_longer_columns_are_quantiles():
    column = np.arange(1001.0)[:, None] ** 2
    knots = lookups_of(column, n_bins=4).columns[0].knots
    np.testing.assert_allclose(knots, [0, 250.5**2, 500**2, 749.5**2, 1000**2], rtol=0.01)


def test_columns_that_are_nearly_always_0_keep_their_other_values():
    column = np.zeros((1000, 1))
    column[::50, 0] = np.arange(1, 21) / 10
    np.testing.assert_allclose(lookups_of(column, n_bins=8).columns[0].knots, [0, 0.1, 1.05, 2.0], rtol=1e-6)
    np.testing.assert_allclose(lookups_of(1 - column, n_bins=2).columns[0].knots, [-1, 0.9, 1], rtol=1e-6)
    model = TreeEnsembleRegressor(n_members=1, n_trees=8, learning_rate=0.05, max_features=1.0, random_state=0)
    assert model.fit(column, column[:, 0]).score(column, column[:, 0]) > 0.9


def test_categories_have_an_entry_per_code_and_one_for_others():
    lookups = lookups_of([[0.0], [1.0], [3.0], [3.0]], ["code"])
    column = lookups.columns[0]
    assert (column.n_entries, len(column.knots)) == (5, 0)
    assert (column.level_scale > 0).tolist() == [True, True, False, True, False]
    entries, fractions = decoded(lookups.cells(np.array([[0], [3], [7], [-1]], dtype=np.float32))[:, 0])
    assert (entries, fractions) == ([0, 3, 4, 4], [0] * 4)


def test_columns_without_information_are_left_out():
    constant = np.ones((5, 1))
    assert lookups_of(constant) is None
    missing = np.array([[1.0], [np.nan], [1.0], [np.nan], [1.0]])
    assert len(lookups_of(missing).columns) == 1  # missing or not is something
    both = np.hstack([constant, np.arange(5.0)[:, None]])
    assert [column.base_column for column in lookups_of(both).columns] == [1]


def table(n=240):
    rng = np.random.default_rng(0)
    base = rng.normal(size=(n, 5)).astype(np.float32)
    base[:, 1] = rng.integers(0, 5, n)  # few whole numbers
    base[:, 2] = rng.integers(-1, 4, n)  # codes, and some that are none
    base[rng.random(n) < 0.2, 3] = np.nan
    base[:, 4] = rng.integers(0, 90, n)  # so many codes that they are trained lazily
    y = base[:, 0] * (base[:, 1] > 2) + np.isnan(base[:, 3]) - 0.5 * (base[:, 2] == 1) + 0.01 * base[:, 4]
    return base, y, ["number", "number", "code", "number", "code"]


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 6, 9])
@pytest.mark.parametrize("max_features", [0.4, 1.0])
def test_trees_have_the_loss_that_training_found(depth, max_features):
    base, y, roles = table()
    lookups = lookups_of(base, roles, n_bins=6)
    assert [column.is_lazy for column in lookups.columns] == [False] * 4 + [True]
    samples = Samples(lookups.cells(base), y, encoding=lookups, rows=np.arange(160))
    held_out = Samples(samples.x, y, encoding=lookups, rows=np.arange(160, 240))
    config = TrainingConfig(
        Loss("squared_error"), n_trees=3, depth=depth, max_epochs=4, learning_rate=0.05, gamma=0.5, batch_size=32,
        max_features=max_features, batch_norm=False, ema=0.9, l1=0.01,
    )  # fmt: skip
    (trained,) = fit_members(config, [Member(samples, held_out, offset=np.array([y.mean()]))])
    trees, plain = trained.trees, [column.lookup for column in lookups.columns]
    routing = reference.route(trees.split_values(plain, base[160:]), "smooth_step", trees.gamma)
    reach = reference.reach_probability(routing.left, routing.right)[:, :, 2**depth - 1 :]
    scores = np.einsum("nml,mlk->nk", reach, trees.leaf_weight)
    loss = np.mean(np.square(scores[:, 0] + trees.offset[0] - y[160:]))
    np.testing.assert_allclose(trained.best_loss, loss, rtol=5e-3)  # tables are rounded
    assert trained.best_loss < trained.history[0].train_loss
    if max_features < 1:  # a split uses two of five columns
        assert np.diff(trees.table_begin).max() == 2


def test_values_between_and_beyond_whole_numbers():
    x = np.random.default_rng(0).integers(1, 6, 600).astype(float)[:, None]
    model = TreeEnsembleRegressor(n_members=1, random_state=0).fit(x, 10 * x[:, 0])
    at = model.predict([[4.0], [4.5], [5.0], [6.0], [-3.0], [1.0]])
    assert at[0] < at[1] < at[2]
    assert at[2] == at[3]
    assert at[4] == at[5]
    np.testing.assert_allclose(at[[0, 2]], [40, 50], atol=0.5)


def test_whole_numbers_with_many_rows_each_have_a_weight_for_each_value():
    rng = np.random.default_rng(0)
    hour = rng.integers(0, 24, 4000).astype(np.float32)
    for n, has_weights in ((4000, True), (3000, False)):
        base = hour[:n, None]
        (column,) = fit_lookups(base, ["number"], n_bins=8, rows=np.arange(n), weight=np.ones(n)).columns
        assert (column.n_levels == column.n_entries == 25) == has_weights
        assert (len(column.knots) == 24) == has_weights


def test_values_that_many_rows_have_are_knots_with_their_neighbours():
    rng = np.random.default_rng(0)
    x = np.where(rng.random(5000) < 0.8, 0, np.round(rng.exponential(50, 5000), 1)).astype(np.float32)
    (column,) = fit_lookups(x[:, None], ["number"], n_bins=12, rows=np.arange(5000), weight=np.ones(5000)).columns
    above = np.unique(x)[1]
    assert {np.float32(0), above} <= set(column.knots)
    assert np.count_nonzero(column.knots > 0) >= 10
