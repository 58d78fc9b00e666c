"""A PyTorch without the calls that it does not publish: the same results by the fallbacks."""

import importlib

import pytest

torch = pytest.importorskip("torch")

from softwood.torch import eager, internals, native, tree_ensemble  # noqa: E402
from torch_arguments import call, gradients_of, make_arguments  # noqa: E402

CALLS = (
    "_are_functorch_transforms_active",
    "_len_torch_dispatch_stack",
    "_get_tracing_state",
    "_functorch.is_legacy_batchedtensor",
    "_functorch.get_interpreter_stack",
    "_functorch.TransformType",
    "_autograd._top_saved_tensors_default_hooks",
    "_autograd._get_current_graph_task_keep_graph",
)
WATCHERS = CALLS[:3]


@pytest.fixture
def without(monkeypatch):
    """Return a function that takes calls away from PyTorch while softwood looks for them."""

    def take_away(*paths):
        with monkeypatch.context() as patch:
            for path in paths:
                *parents, name = path.split(".")
                place = torch._C
                for parent in parents:
                    place = getattr(place, parent)
                patch.delattr(place, name)
            importlib.reload(internals)

    yield take_away
    importlib.reload(internals)


def test_this_pytorch_has_them_all(without):
    """Or the others of this module would compare the fallbacks with themselves."""
    found = dict(vars(internals))
    without(*CALLS)
    names = [name for name, value in found.items() if not name.startswith("__") and vars(internals)[name] is not value]
    calls = {"has_transforms", "count_dispatch_modes", "get_tracing_state", "is_batched", "get_saved_tensor_hooks"}
    assert calls | {"keeps_graph", "_get_interpreters", "_vmap"} <= set(names)


@pytest.fixture(params=[(name,) for name in CALLS] + [CALLS], ids=lambda names: names[0] if len(names) == 1 else "all")
def missing(request, without):
    without(*request.param)
    return request.param


def test_values_and_gradients(missing):
    arguments = make_arguments()
    torch.testing.assert_close(call(*arguments), call(*arguments, implementation="dense"))
    for gradient, wanted in zip(gradients_of(arguments), gradients_of(arguments, implementation="dense"), strict=True):
        torch.testing.assert_close(gradient, wanted)
    assert eager.is_plain_eager(*arguments) == (not set(WATCHERS) & set(missing))


def test_transforms_of_torch_func(missing):
    x, *weights = make_arguments(requires_grad=False)

    def loss(x, implementation="auto"):
        return call(x, *weights, implementation=implementation).square().sum()

    torch.testing.assert_close(torch.func.grad(loss)(x), torch.func.grad(lambda x: loss(x, "dense"))(x))
    by_row = torch.func.vmap(lambda row: call(row, *weights))(x)
    torch.testing.assert_close(by_row, call(x, *weights, implementation="dense"))
    per_sample = torch.func.vmap(torch.func.grad(loss))(x)
    torch.testing.assert_close(per_sample, torch.func.grad(lambda x: loss(x, "dense"))(x))


def test_batched_gradients(missing):
    arguments = make_arguments()
    output = call(*arguments)
    grad_outputs = torch.randn(4, *output.shape, dtype=output.dtype)
    batched = torch.autograd.grad(output, arguments, grad_outputs, is_grads_batched=True, retain_graph=True)
    single = torch.autograd.grad(output, arguments, grad_outputs[2])
    for a, b in zip(batched, single, strict=True):
        torch.testing.assert_close(a[2], b)


def test_compiled_code(without):
    without(*CALLS)
    x, *weights = make_arguments(requires_grad=False)
    compiled = torch.compile(lambda x: call(x, *weights), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), call(x, *weights, implementation="dense"))
    torch._dynamo.reset()


def test_the_native_kernels_still_run(without, monkeypatch):
    """Through the operator if it is unknown what is active; by the dense form only if torch.func cannot be excluded."""
    arguments = make_arguments(requires_grad=False)
    calls = []
    forward = native.forward
    monkeypatch.setattr(native, "forward", lambda *given: calls.append(1) or forward(*given))
    for paths, n_calls in ((WATCHERS, 1), (CALLS[3:], 1), (CALLS, 0)):
        without(*paths)
        calls.clear()
        call(*arguments)
        assert len(calls) == n_calls, paths


def test_a_tape_is_kept_if_the_end_of_the_graph_is_unknown(without, monkeypatch):
    without(*CALLS[-2:])
    tapes = []
    backward = native.backward
    monkeypatch.setattr(native, "backward", lambda *given: tapes.append(given[4]) or backward(*given))
    arguments = make_arguments()
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda packed: packed):
        output = call(*arguments)
    output.sum().backward(retain_graph=True)
    output.sum().backward()
    assert tapes[0] is tapes[1] is not None


def test_sparse_gradients_say_that_they_need_plain_eager_mode(without):
    x, split_weight, leaf_weight, _ = make_arguments()
    without(WATCHERS[0])
    with pytest.raises(RuntimeError, match="sparse_grad=True works in plain eager mode only"):
        tree_ensemble(x, split_weight, leaf_weight, sparse_grad=True)


def test_the_published_apply_gives_the_same(monkeypatch):
    arguments = make_arguments()
    expected = gradients_of(arguments)
    monkeypatch.setattr(eager, "_apply_function", eager.NativeFunction.apply)
    for gradient, wanted in zip(gradients_of(arguments), expected, strict=True):
        assert torch.equal(gradient, wanted)


def test_the_published_apply_serves_where_there_is_no_plainer_one(monkeypatch):
    class Top:
        apply = "what is published"

    class Function(Top):
        apply = "what is published for Function"

    for stands_for_pytorchs, expected in ((Top, Function.apply), (Function, Top.apply)):
        monkeypatch.setattr(torch.autograd, "Function", stands_for_pytorchs)
        assert internals.plain_apply(type("Mine", (Function,), {})) == expected
