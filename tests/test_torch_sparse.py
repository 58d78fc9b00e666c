"""Sparse gradients of the PyTorch layer: they equal the dense ones, hold reached rows only, and share no memory."""

import copy
import gc

import pytest

torch = pytest.importorskip("torch")

from softwood.torch import TreeEnsemble, eager, native, tree_ensemble  # noqa: E402


def make_arguments(n=4, depth=7, dtype=torch.float32):
    """A batch that reaches few rows of two deep trees: x, split_weight, leaf_weight, split_bias."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((n, 4), (2, 2**depth - 1, 4), (2, 2**depth, 3), (2, 2**depth - 1))
    scales = (1.0, 5.0, 1.0, 0.1)
    return [
        (torch.randn(shape, generator=generator, dtype=dtype) * scale).requires_grad_()
        for shape, scale in zip(shapes, scales, strict=True)
    ]


def gradients_of(arguments, **options):
    x, split_weight, leaf_weight, split_bias = arguments
    output = tree_ensemble(x, split_weight, leaf_weight, split_bias=split_bias, **options)
    weights = torch.linspace(-1, 2, output.numel()).reshape(output.shape)
    return torch.autograd.grad((output * weights).sum(), arguments)


def test_sparse_gradients_hold_the_reached_rows():
    arguments = make_arguments()
    dense = gradients_of(arguments)
    found = gradients_of(arguments, sparse_grad=True)
    torch.testing.assert_close(found[0], dense[0])
    for gradient, wanted in zip(found[1:], dense[1:], strict=True):
        assert gradient.is_sparse
        assert gradient.is_coalesced()
        assert gradient.sparse_dim() == 2
        torch.testing.assert_close(gradient.to_dense(), wanted)
        assert 0 < gradient.indices().shape[1] <= 4 * 2 * 7
        again = torch.sparse_coo_tensor(gradient.indices(), gradient.values(), gradient.shape, check_invariants=True)
        assert torch.equal(again.coalesce().indices(), gradient.indices())


def test_sparse_gradients_of_successive_steps_do_not_share_memory():
    arguments = make_arguments(n=8)
    first = gradients_of(arguments, sparse_grad=True)
    kept = [gradient.clone() for gradient in first]
    with torch.no_grad():
        arguments[0].neg_()
    second = gradients_of(arguments, sparse_grad=True)
    for gradient, before in zip(first, kept, strict=True):
        assert torch.equal(gradient.to_dense(), before.to_dense())
    for gradient, wanted in zip(second, gradients_of(arguments), strict=True):
        torch.testing.assert_close(gradient.to_dense(), wanted)


def test_memory_is_used_again_and_freed_with_the_parameter(monkeypatch):
    used = []
    backward = native.backward
    monkeypatch.setattr(native, "backward", lambda *passed: used.append(passed[-1]) or backward(*passed))
    layer = TreeEnsemble(4, 3, 2, 6, sparse_grad=True)
    for _ in range(2):
        layer(torch.randn(5, 4)).sum().backward()
    assert used[0] is used[1] is not None
    assert len(eager._scratch) == 1
    layer.zero_grad()
    del layer
    gc.collect()
    assert len(eager._scratch) == 0


def test_sparse_gradients_after_a_change_of_dtype():
    layer = TreeEnsemble(4, 3, 2, 6, sparse_grad=True)
    layer(torch.randn(5, 4)).sum().backward()
    layer.zero_grad()
    layer.double()
    layer(torch.randn(5, 4, dtype=torch.float64)).sum().backward()
    assert layer.split_weight.grad.dtype == torch.float64


def test_sparse_gradients_with_changing_needs_and_batch_sizes():
    layer = TreeEnsemble(4, 3, 2, 6, sparse_grad=True, bias=True, init="scaled")
    twin = copy.deepcopy(layer)
    twin.sparse_grad = False
    with torch.no_grad():
        twin.split_weight.copy_(layer.split_weight.mul_(300))
    for n, frozen in ((8, ()), (5, ("split_weight",)), (3, ("leaf_weight", "split_bias")), (8, ())):
        x = torch.randn(n, 4)
        for module in (layer, twin):
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(name not in frozen)
                parameter.grad = None
            module(x).square().sum().backward()
        for parameter, wanted in zip(layer.parameters(), twin.parameters(), strict=True):
            assert (parameter.grad is None) == (wanted.grad is None)
            if parameter.grad is not None:
                torch.testing.assert_close(parameter.grad.to_dense(), wanted.grad)


def test_stored_gradients_know_that_their_rows_are_in_order():
    layer = TreeEnsemble(4, 3, 2, 6, sparse_grad=True, bias=True)
    for n_backwards in (1, 2):
        layer.zero_grad()
        for _ in range(n_backwards):
            layer(torch.randn(5, 4)).sum().backward()
        for parameter in layer.parameters():
            assert parameter.grad.is_coalesced()
            indices = parameter.grad.indices()
            rows = indices[0] * parameter.shape[1] + indices[1]
            assert (rows.diff() > 0).all()


def test_sparse_adam_moves_reached_rows_only():
    layer = TreeEnsemble(4, 3, 2, 8, sparse_grad=True, init="scaled")
    with torch.no_grad():
        layer.split_weight.mul_(500)
    start = copy.deepcopy(layer)
    optimizer = torch.optim.SparseAdam(layer.parameters(), lr=0.1)
    x = torch.randn(4, 4)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (layer(x) - 1.0).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    moved = (layer.leaf_weight != start.leaf_weight).any(dim=-1)
    assert 0 < moved.sum() < 100
    assert moved.numel() == 512


def test_one_step_of_sparse_adam_equals_adam():
    layer = TreeEnsemble(4, 3, 2, 4, sparse_grad=True, init="scaled", dtype=torch.float64)
    twin = TreeEnsemble(4, 3, 2, 4, dtype=torch.float64)
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(16, 4, dtype=torch.float64)
    for module, kind in ((layer, torch.optim.SparseAdam), (twin, torch.optim.Adam)):
        optimizer = kind(module.parameters(), lr=0.01, eps=1e-14)
        module(x).square().sum().backward()
        optimizer.step()
    for a, b in zip(layer.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_sparse_gradients_refuse_what_they_cannot_do():
    arguments = make_arguments()
    x, split_weight, leaf_weight, _ = arguments
    output = tree_ensemble(x, split_weight, leaf_weight, sparse_grad=True)
    with pytest.raises(RuntimeError, match="sparse_grad=True has first derivatives only"):
        torch.autograd.grad(output.sum(), split_weight, create_graph=True)
    with pytest.raises(RuntimeError, match="sparse_grad=True works in plain eager mode only"):
        torch.func.vmap(lambda x: tree_ensemble(x, split_weight, leaf_weight, sparse_grad=True))(torch.randn(2, 3, 4))
    with pytest.raises(TypeError, match="sparse_grad=True needs float32 or float64 weights"):
        tree_ensemble(*(argument.bfloat16() for argument in arguments[:3]), sparse_grad=True)
