"""Fitted models as PyTorch modules and back: same scores, trained on in PyTorch, saved and loaded again."""

import copy
import io
import pickle

import numpy as np
import pytest

from fitted_models import NAMES, fitted, mixed, numbers, rows

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import softwood  # noqa: E402
from softwood.model.linear_form import linear_form  # noqa: E402
from softwood.tabular.reading.table import read_table  # noqa: E402
from softwood.torch import TreeEnsemble, from_model, to_model  # noqa: E402


def scores_of(module, X):
    with torch.no_grad():
        return module(module.read(X)).numpy()


@pytest.mark.parametrize("name", NAMES)
def test_scores_equal_the_models(name):
    model = fitted(name).model_
    X = rows(name, 300)
    expected = model.raw_scores(X)
    assert np.ptp(expected, axis=0).min() > 0.02
    np.testing.assert_allclose(scores_of(from_model(model), X), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_of_the_trees_equal_the_models(name):
    model = fitted(name).model_
    module = from_model(model)
    X = rows(name, 300)
    base = torch.from_numpy(model.preprocessor.read(read_table(X, kinds=model.preprocessor.kinds)))
    for encoding, features in linear_form(model).preprocessor.encodings.items():
        expected = features.evaluate(base.numpy())
        np.testing.assert_allclose(module.encoders[encoding](base).numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_there_and_back_predicts_the_same(name, tmp_path):
    estimator = fitted(name)
    X = rows(name, 100)
    back = to_model(from_model(estimator))
    assert type(back) is type(estimator)
    assert back is not estimator
    if estimator.model_.preprocessor.lookups:  # linear splits do not round fractions between knots
        np.testing.assert_allclose(back.model_.raw_scores(X), estimator.model_.raw_scores(X), rtol=2e-4, atol=2e-4)
    else:
        np.testing.assert_array_equal(back.predict(X), estimator.predict(X))
    back.save(tmp_path / "back.safetensors")
    np.testing.assert_array_equal(softwood.load(tmp_path / "back.safetensors").predict(X), back.predict(X))


def test_numbers_go_in_as_they_stand_in_the_table():
    estimator = fitted("binary")
    assert any(column.offset for column in estimator.model_.preprocessor.columns), "the fourth column is near a million"
    X = numbers(50, seed=3, holes=0.1)
    scores = from_model(estimator)(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(scores[:, 0], estimator.decision_function(X), rtol=2e-5, atol=2e-5)
    kept = from_model(estimator).float().double().float()(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(kept, scores, rtol=1e-5, atol=1e-5)


def test_from_a_file_an_estimator_a_model_and_one_member(tmp_path):
    estimator = fitted("multiclass")
    X = rows("multiclass", 40)
    path = tmp_path / "model.safetensors"
    estimator.save(path)
    whole = scores_of(from_model(estimator), X)
    np.testing.assert_array_equal(scores_of(from_model(path), X), whole)
    np.testing.assert_array_equal(scores_of(from_model(estimator.model_), X), whole)
    parts = [from_model(str(path), member=i) for i in range(2)]
    np.testing.assert_allclose(np.mean([scores_of(part, X) for part in parts], axis=0), whole, rtol=1e-5, atol=1e-6)
    assert np.abs(scores_of(parts[0], X) - whole).max() > 1e-3
    alone = to_model(parts[1])
    assert isinstance(alone, softwood.TreeEnsembleClassifier)
    assert len(alone.model_.members) == 1
    np.testing.assert_allclose(alone.model_.raw_scores(X), scores_of(parts[1], X), rtol=2e-5, atol=2e-5)
    assert isinstance(to_model(from_model(estimator.model_)), softwood.model.Model)


def train(module, X, loss_of, *, steps=30):
    x = module.read(X)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(module(x))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", ["binary", "batch_norm", "multiclass", "mixed", "regression", "targets"])
def test_trained_on_in_pytorch_and_put_back(name, tmp_path):
    estimator = fitted(name)
    X = mixed(200, seed=5) if name == "mixed" else numbers(200, seed=5, holes=0.05)
    before = estimator.predict(X)
    n_scores = estimator.model_.n_outputs
    labels = torch.arange(200) % max(2, n_scores)
    module = from_model(estimator)
    loss_of = {
        "multiclass": lambda scores: functional.cross_entropy(scores, labels),
        "regression": lambda scores: (scores - 3).square().mean(),
        "targets": lambda scores: (scores - 3).square().mean(),
    }.get(name, lambda scores: functional.binary_cross_entropy_with_logits(scores[:, 0], labels.float()))
    losses = train(module, X, loss_of)
    assert losses[-1] < losses[0] - 0.05
    back = to_model(module)
    np.testing.assert_allclose(back.model_.raw_scores(X), scores_of(module, X), rtol=2e-5, atol=2e-5)
    assert np.abs(back.model_.raw_scores(X) - estimator.model_.raw_scores(X)).max() > 0.1
    np.testing.assert_array_equal(estimator.predict(X), before)
    back.save(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(softwood.load(tmp_path / "model.safetensors").predict(X), back.predict(X))


def test_batch_normalisation_in_training_mode_moves_its_statistics():
    module = from_model(fitted("batch_norm"))
    X = numbers(100, seed=5)
    module.train()
    train(module, X, lambda scores: scores.square().mean(), steps=3)
    module.eval()
    back = to_model(module)
    old, new = (e.model_.members[0].trees.batch_norm for e in (fitted("batch_norm"), back))
    assert np.abs(new.mean - old.mean).max() > 1e-3
    np.testing.assert_allclose(back.model_.raw_scores(X), scores_of(module, X), rtol=2e-5, atol=2e-5)


def test_splits_keep_to_the_features_they_may_use():
    estimator = fitted("binary")
    members = linear_form(estimator.model_).members
    masks = [member.trees.feature_mask for member in members]
    assert all(mask is not None and not mask.all() for mask in masks)
    module = from_model(estimator)
    train(module, numbers(100, seed=5), lambda scores: scores.square().mean(), steps=3)
    for member, mask, before in zip(to_model(module).model_.members, masks, members, strict=True):
        assert not member.trees.split_weight[~mask].any()
        assert (member.trees.split_weight != before.trees.split_weight)[mask].mean() > 0.1
        np.testing.assert_array_equal(member.trees.feature_mask, mask)
    with torch.no_grad():
        module.members[0].trees.split_weight.normal_()
    assert not to_model(module).model_.members[0].trees.split_weight[~masks[0]].any()


def test_missing_cells_have_a_gradient_of_zero():
    module = from_model(fitted("binary"))
    X = numbers(60, seed=5, holes=0.3)
    x = torch.from_numpy(X).requires_grad_()
    module(x).square().sum().backward()
    assert x.grad.isfinite().all()
    assert not x.grad[torch.from_numpy(np.isnan(X))].any()
    assert x.grad.abs().max() > 0


def test_the_trainer_goes_on_from_the_new_weights():
    X, y = numbers(200, seed=5), np.arange(200) % 2 == 1
    estimator = softwood.TreeEnsembleClassifier(n_members=1, n_trees=3, depth=3, max_epochs=2, random_state=0)
    module = from_model(estimator.partial_fit(X, y))
    with torch.no_grad():
        module.members[0].trees.leaf_weight.fill_(100)
    back = to_model(module).partial_fit(X, y)
    leaf_weight = back.model_.members[0].trees.leaf_weight
    assert 90 < leaf_weight.min() < 100


def test_a_member_can_be_replaced_by_other_trees():
    estimator = fitted("multiclass")
    module = from_model(estimator, member=0)
    n_inputs = module.members[0].trees.in_features
    module.members[0].trees = TreeEnsemble(n_inputs, 3, n_trees=4, depth=2, gamma=0.5, bias=True, init="scaled")
    with pytest.raises(ValueError, match=r"feature_mask must have the shape \(4, 3, \d+\) of split_weight"):
        to_model(module)
    module.members[0].feature_mask = None
    X = rows("multiclass", 30)
    np.testing.assert_allclose(to_model(module).model_.raw_scores(X), scores_of(module, X), rtol=2e-5, atol=2e-5)
    for trees, error, message in (
        (TreeEnsemble(n_inputs, 2, 4, 2), ValueError, rf"must have {n_inputs} inputs and 3 outputs.*got {n_inputs}"),
        (TreeEnsemble(n_inputs, 3, 4, 2, sum_trees=False), TypeError, "with sum_trees=True"),
        (nn.Linear(n_inputs, 3), TypeError, r"members\[0\].trees must be a TreeEnsemble"),
        (TreeEnsemble(n_inputs, 3, 4, 2, dtype=torch.bfloat16), TypeError, "call module.float.. first"),
    ):
        module.members[0].trees = trees
        with pytest.raises(error, match=message):
            to_model(module)


def test_importances_stay_those_of_the_source_or_are_measured_anew():
    X = numbers(120)
    estimator = softwood.TreeEnsembleClassifier(n_members=1, n_trees=3, depth=3, max_epochs=2, random_state=0)
    estimator.fit(X, X[:, 0] > 0)
    module = from_model(estimator)
    with torch.no_grad():
        module.members[0].trees.split_weight.normal_()
    anew = to_model(module).feature_importances_
    assert np.abs(anew - estimator.feature_importances_).max() > 1e-3
    kept = to_model(from_model(estimator)).feature_importances_
    np.testing.assert_array_equal(kept, estimator.feature_importances_)


def test_module_is_copied_pickled_compiled_and_exported():
    module = from_model(fitted("batch_norm"))
    x = torch.from_numpy(numbers(20, seed=5, holes=0.1))
    expected = module(x)
    saved = io.BytesIO()
    torch.save(module.state_dict(), saved)
    saved.seek(0)
    restored = from_model(fitted("batch_norm"))
    with torch.no_grad():
        restored.members[0].trees.leaf_weight.zero_()
    restored.load_state_dict(torch.load(saved, weights_only=True))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), restored):
        torch.testing.assert_close(other(x), expected, rtol=0, atol=0)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    torch._dynamo.reset()
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    torch.testing.assert_close(program.module()(x[:7]), expected[:7])


def test_refusals(tmp_path):
    estimator = fitted("binary")
    with pytest.raises(ValueError, match=r"this TreeEnsembleClassifier is not fitted yet\. Call fit first\."):
        from_model(softwood.TreeEnsembleClassifier())
    with pytest.raises(TypeError, match=r"A fitted softwood estimator or Model is needed; got Linear\."):
        from_model(nn.Linear(2, 2))
    with pytest.raises(FileNotFoundError):
        from_model(tmp_path / "absent.safetensors")
    for member in (2, -1, True, "0"):
        with pytest.raises(ValueError, match=r"member must be a number from 0 to 1, or None for all; got"):
            from_model(estimator, member=member)
    with pytest.raises(ValueError, match=r"x must have 9 columns of numbers \[n, 9\]; got shape \(5, 8\): make it"):
        from_model(estimator)(torch.randn(5, 8))
    with pytest.raises(TypeError, match="module must be a FittedModel, as from_model returns it; got Linear"):
        to_model(nn.Linear(2, 2))
    module = from_model(estimator)
    with torch.no_grad():
        module.members[1].trees.leaf_weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"members\[1\].trees.leaf_weight must be finite; training has diverged"):
        to_model(module)
