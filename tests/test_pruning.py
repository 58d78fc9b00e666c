"""Removal of tables and leaf weights during training."""

from __future__ import annotations

import numpy as np
import pytest

from softwood.tabular.encoding.lookups import fit_lookups
from softwood.training import Loss, MemberData, Samples, TrainingConfig
from softwood.training.lookup_state import LookupState
from softwood.training.pruning import Pruner


def make_state(depth=2, n=600):
    rng = np.random.default_rng(0)
    base = rng.normal(size=(n, 6)).astype(np.float32)
    base[:, 5] = rng.integers(0, 4, n)
    y = np.column_stack([np.tanh(base[:, 0] * 2) + 0.1 * base[:, 1], base[:, 0] * (base[:, 5] > 1)])
    lookups = fit_lookups(base, ["number"] * 5 + ["code"], n_bins=3, rows=np.arange(n), weight=np.ones(n))
    samples = Samples(lookups.cells(base), y, encoding=lookups)
    config = TrainingConfig(
        Loss("squared_error"),
        n_trees=6,
        depth=depth,
        learning_rate=0.02,
        batch_size=64,
        max_epochs=30,
        batch_norm=False,
    )
    return LookupState(config, MemberData(samples, samples, seed=1), n_threads=1, accumulate=False)


def run(state, epochs):
    for epoch in epochs:
        ((_, _, _, loss, *_),) = state.native.run_epoch([state.native], epoch, np.inf, 1)
    return loss


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_the_count_is_that_of_the_trees(depth):
    state = make_state(depth)
    run(state, range(3))
    pruner = Pruner(state)
    for _ in range(3):
        trees = state.trees(state.current(), 1.0)
        n_values = len(trees.values)
        rest = trees.split_bias.size + np.count_nonzero(trees.leaf_weight) + 2
        # Rounding makes some tables vanish, and some splits are out of reach.
        assert 0.9 * (n_values + rest) <= pruner.n_stored() <= 1.2 * (n_values + rest)
        before = pruner.n_stored()
        pruner.remove(before / 3)
        assert before * 0.6 < pruner.n_stored() <= before * 0.72


def test_what_matters_stays_and_what_is_gone_stays_away():
    state = make_state()
    first = run(state, range(10))
    pruner = Pruner(state)
    for epoch in range(10, 20):
        pruner.remove(0.12 * pruner.n_stored())
        run(state, [epoch])
    n = pruner.n_stored()
    last = run(state, range(20, 30))
    assert pruner.n_stored() == n < 200
    assert last < 2 * first + 0.02
    columns = state.trees(state.current(), 1.0).table_column
    assert 0 in columns
    assert np.isin([2, 3, 4], columns).sum() <= 1  # noise


def test_leaves_can_be_spared_and_removals_undone():
    state = make_state()
    run(state, range(4))
    pruner = Pruner(state, leaves=False)
    copied, before = pruner.copy(), pruner.n_stored()
    pruner.remove(before / 2)
    assert np.count_nonzero(state.arrays["leaf_weight"][:, :, ::4]) == 6 * 4 * 2
    assert pruner.n_stored() < 0.6 * before
    run(state, [4])
    pruner.restore(copied)
    assert pruner.n_stored() == before
    pruner.remove(0)
    assert pruner.n_stored() == before
    pruner.remove(1e9)
    assert not state.trees(state.current(), 1.0).table_column.size
