"""recipe="paper": what the paper fixes is fixed, what it tunes is free, and the model goes everywhere models go."""

from __future__ import annotations

import re

import numpy as np
import pytest

import softwood
from softwood import TreeEnsembleClassifier, TreeEnsembleRegressor
from softwood.training.hyperparameters import PAPER_FIXES, all_declarations, apply_recipe

FAST = {"recipe": "paper", "n_trees": 4, "depth": 3, "learning_rate": 0.05, "random_state": 0}


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers of few values beside a number, and three classes."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.integers(5, size=200), rng.normal(size=200) * 1e4, rng.integers(2, size=200)])
    return x, (x[:, 0] > 1).astype(int) + (x[:, 1] > 0)


@pytest.fixture(scope="module")
def fitted(rows: tuple[np.ndarray, np.ndarray]) -> TreeEnsembleClassifier:
    return TreeEnsembleClassifier(**FAST, max_epochs=40).fit(*rows)


def test_what_the_paper_fixes_is_in_the_model(fitted: TreeEnsembleClassifier) -> None:
    (member,) = fitted.model_.members
    trees = member.trees
    assert trees.split_weight.shape == (4, 7, 3)  # one input per column: no flags, no ramps
    assert trees.split_bias is None
    assert trees.feature_mask is None
    assert trees.batch_norm is not None
    assert np.all(trees.offset == 0)
    history = fitted.history_
    assert history["is_best"] == [False] * 39 + [True]  # the last epoch
    assert set(history["learning_rate"]) == {0.05}
    assert np.isnan(history["validation_loss"]).all()


def test_it_learns_and_travels(fitted: TreeEnsembleClassifier, rows: tuple[np.ndarray, np.ndarray], tmp_path) -> None:
    x, y = rows
    assert fitted.score(x, y) > 0.9
    fitted.save(tmp_path / "model.safetensors")
    loaded = softwood.load(tmp_path / "model.safetensors")
    assert loaded.recipe == "paper"
    np.testing.assert_array_equal(loaded.predict_proba(x), fitted.predict_proba(x))
    np.testing.assert_allclose(fitted.predictor().predict_proba(x), fitted.predict_proba(x), rtol=1e-5, atol=1e-6)


def test_scale_and_origin_of_columns_do_not_matter(rows: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = rows
    moved = x * [100.0, 1e-3, 3.0] + [5.0, 2.0, -1.0]
    params = FAST | {"batch_size": len(y), "max_epochs": 3}  # one batch: the order of rows follows from their contents
    a, b = (TreeEnsembleClassifier(**params).fit(table, y).predict_proba(table) for table in (x, moved))
    np.testing.assert_allclose(a, b, atol=1e-3)


def test_a_batch_is_a_step_of_dense_adam_after_batch_normalisation(rows: tuple[np.ndarray, np.ndarray]) -> None:
    """One step against PyTorch: weights of ±0.01, batch norm with the statistics of the batch, Adam on all weights."""
    torch = pytest.importorskip("torch")
    from softwood.torch import TreeEnsemble

    x, y = rows
    params = FAST | {"batch_size": len(y), "learning_rate": 1e-9}  # one step that moves nothing shows where it starts
    start = TreeEnsembleClassifier(**params, max_epochs=1).fit(x, y).model_.members[0].trees
    after = TreeEnsembleClassifier(**params | {"learning_rate": 0.01}, max_epochs=1).fit(x, y).model_.members[0].trees
    assert 0 < np.abs(start.split_weight).max() <= 0.0101
    layer = TreeEnsemble(3, 3, 4, 3, gamma=1.0)
    norm = torch.nn.BatchNorm1d(3)
    with torch.no_grad():
        layer.split_weight.copy_(torch.tensor(start.split_weight))
        layer.leaf_weight.copy_(torch.tensor(start.leaf_weight))
    optimizer = torch.optim.Adam([*layer.parameters(), *norm.parameters()], lr=0.01)
    inputs = torch.tensor((x - x.mean(axis=0)) / x.std(axis=0), dtype=torch.float32)
    torch.nn.functional.cross_entropy(layer(norm(inputs)), torch.tensor(y)).backward()
    optimizer.step()
    np.testing.assert_allclose(after.leaf_weight, layer.leaf_weight.detach().numpy(), atol=2e-4)
    same = np.isclose(after.split_weight, layer.split_weight.detach().numpy(), atol=2e-4)
    assert same.mean() > 0.95  # Adam's first step is the sign of the gradient, which rounding decides where it is 0


OTHER = {
    "n_members": 2, "gamma_end": 0.1, "max_reach": 0.3, "max_features": 0.5, "patience": 3,
    "validation_fraction": 0.25, "l1": 0.5, "weight_decay": 0.5, "batch_norm": "fixed",
    "optimizer": "lazy_adam", "encoding": "piecewise",
}  # fmt: skip


@pytest.mark.parametrize("name", PAPER_FIXES)
def test_a_parameter_that_is_fixed_cannot_be_set(name: str, rows: tuple[np.ndarray, np.ndarray]) -> None:
    message = (
        f"recipe='paper' requires {name}={PAPER_FIXES[name]!r}; got {OTHER[name]!r}: leave {name} at its default, or "
        "use recipe='softwood'."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        TreeEnsembleClassifier(**FAST, **{name: OTHER[name]}).fit(*rows)
    for allowed in (all_declarations()[name].default, PAPER_FIXES[name]):
        applied = apply_recipe(TreeEnsembleClassifier(recipe="paper", **{name: allowed}).get_params())
        assert applied[name] == PAPER_FIXES[name]


def test_the_default_recipe_changes_nothing() -> None:
    params = TreeEnsembleClassifier(l1=0.3).get_params()
    assert apply_recipe(params) == params


def test_regressors_and_pieces(rows: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = rows
    regressor = TreeEnsembleRegressor(**FAST, max_epochs=60).fit(x, x[:, 0])
    assert regressor.score(x, x[:, 0]) > 0.8
    pieces = TreeEnsembleClassifier(**FAST)
    for _ in range(2):
        pieces.partial_fit(x, y)
    assert pieces.model_.members[0].trees.split_bias is None
