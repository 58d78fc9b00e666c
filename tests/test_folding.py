"""What prediction leaves out: scaling goes into weights, needless subtrees are dropped, and scores stay the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from softwood.model.lowering import fold_encoding, lower
from softwood.model.parts import ModelMember
from softwood.model.program import TreeGroup
from test_predictor import random_model, reference_scores


def with_trees(model, **arrays):
    """The same model with other arrays in its only member."""
    (member,) = model.members
    changed = ModelMember(member.encoding, replace(member.trees, **arrays))
    return replace(model, members=[changed])


def groups(model) -> tuple[TreeGroup, ...]:
    (member,) = lower(model).members
    return member.groups


def arrays(model):
    trees = model.members[0].trees
    return trees.split_weight.copy(), trees.split_bias.copy(), trees.leaf_weight.copy()


def rows(n=200, p=5):
    return np.random.default_rng(1).normal(size=(n, p))


def assert_same_scores(model, X=None):
    X = rows() if X is None else X
    np.testing.assert_allclose(model.raw_scores(X), reference_scores(model, X), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(model.predictor().predict(X[3]), model.predictor().predict(X)[3])


def test_nothing_to_drop_leaves_the_trees_alone():
    (group,) = groups(random_model(m=4, d=3))
    assert group.depth == 3
    assert len(group.leaf_weight) == 4


@pytest.mark.parametrize(("bias", "child"), [(0.5, 1), (-0.5, 2), (7.0, 1)])
def test_a_split_that_sends_every_row_one_way(bias, child):
    """The root of tree 2 always goes to one child, whose subtree then is the tree."""
    model = random_model(m=4, d=3)
    w, b, o = arrays(model)
    w[2, 0], b[2, 0] = 0, bias
    model = with_trees(model, split_weight=w, split_bias=b, leaf_weight=o)
    low, high = groups(model)
    assert (low.depth, len(low.leaf_weight)) == (2, 1)
    assert (high.depth, len(high.leaf_weight)) == (3, 3)
    np.testing.assert_array_equal(low.split_weight[0], w[2, [child, 2 * child + 1, 2 * child + 2]])
    np.testing.assert_array_equal(low.leaf_weight[0], o[2, :4] if child == 1 else o[2, 4:])
    assert_same_scores(model)


def test_a_split_that_is_soft_for_all_rows_stays():
    model = random_model(m=1, d=2)
    w, b, _ = arrays(model)
    w[0, 0], b[0, 0] = 0, 0.49  # gamma is 1
    model = with_trees(model, split_weight=w, split_bias=b)
    assert groups(model)[0].depth == 2
    assert_same_scores(model)


def test_logistic_splits_are_never_hard():
    model = random_model(m=1, d=2, activation="logistic")
    w, b, _ = arrays(model)
    w[0, 0], b[0, 0] = 0, 3.0
    model = with_trees(model, split_weight=w, split_bias=b)
    assert groups(model)[0].depth == 2
    assert_same_scores(model)


def test_twin_subtrees():
    """Both children of the root are the same tree, and the leaves of one split of the other tree are equal."""
    model = random_model(m=2, d=3)
    w, b, o = arrays(model)
    for array in (w, b):
        array[0, [2, 5, 6]] = array[0, [1, 3, 4]]
    o[0, 4:] = o[0, :4]
    o[1, 7] = o[1, 6]
    model = with_trees(model, split_weight=w, split_bias=b, leaf_weight=o)
    low, high = groups(model)
    assert (low.depth, high.depth) == (2, 3)
    np.testing.assert_array_equal(high.split_weight[0, 6], 0)  # nothing to decide, nothing to compute with
    assert_same_scores(model)
    b[0, 2] += 1e-3  # no twins any more
    assert [g.depth for g in groups(with_trees(model, split_bias=b))] == [3]


def test_a_tree_of_one_value():
    model = random_model(m=3, d=4, k=2)
    _, _, o = arrays(model)
    o[1] = o[1, :1]
    model = with_trees(model, leaf_weight=o)
    low, high = groups(model)
    assert (low.depth, len(low.leaf_weight), high.depth) == (1, 1, 4)
    assert_same_scores(model)
    assert model.predictor().n_bytes < random_model(m=3, d=4, k=2).predictor().n_bytes


@pytest.mark.parametrize("activation", ["smooth_step", "logistic"])
@pytest.mark.parametrize("seed", range(6))
def test_random_needless_parts(seed, activation):
    rng = np.random.default_rng(seed)
    model = random_model(m=7, d=5, k=2, activation=activation, seed=seed)
    w, b, o = arrays(model)
    constant = rng.random(b.shape) < 0.3
    w[constant] = 0
    b[constant] *= 4
    o[rng.random(o.shape[:2]) < 0.6] = 0
    model = with_trees(model, split_weight=w, split_bias=b, leaf_weight=o)
    n_decisions = sum(int(g.split_weight.any(axis=2).sum()) for g in groups(model))
    assert n_decisions < int(w.any(axis=2).sum())
    assert_same_scores(model)


def test_scales_go_into_the_weights():
    model = random_model(m=4, d=3)
    encoding = model.preprocessor.encodings["standard"]
    mean = np.array([0, 1e6, -3, 0, 5], dtype=np.float32)
    scale = np.array([1, 3.0, 1e-8, 1e9, 0.1], dtype=np.float32)
    model.preprocessor.encodings["standard"] = changed = replace(encoding, mean=mean, scale=scale)
    np.testing.assert_allclose(groups(model)[0].split_weight, model.members[0].trees.split_weight * scale, rtol=1e-6)
    np.testing.assert_allclose(fold_encoding(changed).bound, 1e6 / scale, rtol=1e-6)
    X = rows() / scale + mean
    X[0], X[1, 2] = np.nan, 1e30
    assert_same_scores(model, X)


def test_scales_that_weights_cannot_hold_stay_with_the_features():
    model = random_model(m=4, d=3)
    encoding = model.preprocessor.encodings["standard"]
    scale = np.array([1, 1, 1e-36, 1, 1e30], dtype=np.float32)
    model.preprocessor.encodings["standard"] = changed = replace(encoding, scale=scale)
    assert fold_encoding(changed).bound is None
    np.testing.assert_array_equal(groups(model)[0].split_weight, model.members[0].trees.split_weight)
    assert_same_scores(model, rows() / scale)
