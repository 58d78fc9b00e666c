"""Exact pruning of trees of lookups: the same function of fewer parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from softwood import reference
from softwood.model.lookup_trees import LookupTrees, round_tables
from softwood.model.simplify import simplified
from softwood.tabular.encoding.lookups import Lookup

LOOKUPS = (Lookup(0, np.array([-1, 0, 2], dtype=np.float32)), Lookup(1, np.zeros(0, np.float32), 3))
GAMMA = 0.5


def rows(n=300):
    rng = np.random.default_rng(5)
    base = np.column_stack([rng.normal(size=n), rng.integers(-1, 4, n)]).astype(np.float32)
    base[::11, 0] = np.nan
    return base


def scores(trees, base):
    """Raw scores by definition, in float64."""
    routing = reference.route(trees.split_values(LOOKUPS, base).astype(np.float64), trees.activation, trees.gamma)
    n_splits = trees.split_bias.shape[1]
    reach = reference.reach_probability(routing.left, routing.right)[:, :, n_splits:]
    return np.einsum("nml,mlk->nk", reach, trees.leaf_weight.astype(np.float64)) + trees.offset


def make(tables, m, depth, *, bias=None, leaves=None, k=2, seed=0, activation="smooth_step"):
    rng = np.random.default_rng(seed)
    n_splits = 2**depth - 1
    arrays, step = round_tables(tables, m * n_splits, GAMMA)
    bias = rng.normal(size=(m, n_splits)) / 10 if bias is None else bias
    leaves = rng.normal(size=(m, n_splits + 1, k)) if leaves is None else leaves
    return LookupTrees(
        **arrays,
        split_bias=np.asarray(bias, dtype=np.float32),
        leaf_weight=np.asarray(leaves, dtype=np.float32),
        offset=rng.normal(size=np.shape(leaves)[2]).astype(np.float32),
        step=step,
        gamma=GAMMA,
        activation=activation,
        n_trainable=0,
    )


def some_tables(m, depth, share, seed=0):
    rng = np.random.default_rng(seed)
    n_splits = m * (2**depth - 1)
    pairs = [(split, c) for split in range(n_splits) for c in range(2) if rng.random() < share]
    return [(split, c, rng.normal(size=LOOKUPS[c].n_entries) / 3) for split, c in pairs]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_scores_stay_and_nothing_grows(seed, depth, share):
    trees = make(some_tables(6, depth, share, seed), 6, depth, seed=seed)
    lean = simplified(trees, LOOKUPS)
    np.testing.assert_allclose(scores(lean, rows()), scores(trees, rows()), atol=2e-6)
    assert len(lean.leaf_weight) <= 6
    assert len(lean.values) <= len(trees.values)
    assert lean.needed_nodes()[0].sum() <= trees.needed_nodes()[0].sum()
    again = simplified(lean, LOOKUPS)
    assert len(again.values) == len(lean.values)
    np.testing.assert_array_equal(again.leaf_weight, lean.leaf_weight)


def test_trees_of_constant_output_become_part_of_the_offset():
    trees = make([(3, 0, np.array([-1.0, 0, 1, 0]))], 3, 2)  # only the root of the second tree reads a column
    lean = simplified(trees, LOOKUPS)
    assert lean.leaf_weight.shape == (1, 4, 2)
    splits, leaves = lean.needed_nodes()
    assert splits.tolist() == [[True, False, False]]
    assert leaves.sum() == 2
    np.testing.assert_allclose(scores(lean, rows()), scores(trees, rows()), atol=1e-6)
    nothing = simplified(make([], 3, 2), LOOKUPS)
    assert len(nothing.leaf_weight) == 1
    assert not nothing.needed_nodes()[0].any()


def test_splits_with_equal_sides_go():
    leaves = np.array([[[1.0], [1.0], [2.0], [3.0]]])
    trees = make([(i, 0, np.array([-1.0, 0, 1, 0])) for i in range(3)], 1, 2, leaves=leaves)
    lean = simplified(trees, LOOKUPS)
    assert np.diff(lean.table_begin).tolist() == [1, 0, 1]
    np.testing.assert_allclose(scores(lean, rows()), scores(trees, rows()), atol=1e-6)
    flat = simplified(replace(trees, leaf_weight=np.ones((1, 4, 1), np.float32)), LOOKUPS)
    assert not len(flat.table_column)


def test_a_constant_side_is_mixed_into_the_other_one():
    tables = [(1, 0, np.array([-1.0, 0, 1, 0]))]  # the root sends 84% of each row to the only split that reads a column
    trees = make(tables, 1, 2, bias=[[0.1, 0.0, 0.0]])
    lean = simplified(trees, LOOKUPS)
    splits, leaves = lean.needed_nodes()
    assert splits.tolist() == [[False, True, False]]
    assert leaves.tolist() == [[True, True, False, False]]
    assert not lean.leaf_weight[0, 2:].any()
    np.testing.assert_allclose(scores(lean, rows()), scores(trees, rows()), atol=1e-6)


def test_subtrees_that_no_row_can_reach_go():
    tables = [
        (0, 0, np.array([0.4, 0.5, 0.6, 0.7])),
        (1, 0, np.array([-1.0, 0, 1, 0])),
        (2, 0, np.array([-1.0, 0, 1, 0])),
    ]
    trees = make(tables, 1, 2, bias=[[0.0, 0.0, 0.0]])
    lean = simplified(trees, LOOKUPS)
    assert np.diff(lean.table_begin).tolist() == [0, 1, 0]
    assert not lean.leaf_weight[0, 2:].any()
    np.testing.assert_array_equal(scores(lean, rows()), scores(trees, rows()))


def test_logistic_trees_are_left_as_they_are():
    trees = make(some_tables(2, 2, 0.2), 2, 2, activation="logistic")
    assert simplified(trees, LOOKUPS) is trees
    assert all(nodes.all() for nodes in trees.needed_nodes())
