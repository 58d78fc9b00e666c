"""The PyTorch layer: its values and gradients, its life under PyTorch's transformations, and its refusals."""

import copy
import io
import pickle
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from softwood import _core, reference  # noqa: E402
from softwood.torch import TreeEnsemble, native, tree_ensemble  # noqa: E402
from softwood.torch import dense as dense_form  # noqa: E402
from torch_arguments import call, gradients_of, make_arguments  # noqa: E402

ACTIVATIONS = ("smooth_step", "smoother_step", "logistic")
OPERATOR = torch.ops.softwood.tree_ensemble.default
OPERATOR_BACKWARD = torch.ops.softwood.tree_ensemble_backward.default


# --- Values and gradients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["native", "dense"])
def test_value_of_a_tree_computed_by_hand(implementation):
    # Root: t = 0.1, v = 0.6, S = 0.648. Left child: t = 3, beyond the band, S = 1. Right child: t = -0.25, S = 0.15625.
    x = torch.tensor([[0.1, 3.0, -0.25]], dtype=torch.float64)
    split_weight = torch.eye(3, dtype=torch.float64)[None]
    leaf_weight = torch.tensor([[[1.0], [10.0], [100.0], [1000.0]]], dtype=torch.float64)
    expected = 0.648 * 1.0 + 0.352 * (0.15625 * 100.0 + 0.84375 * 1000.0)
    output = tree_ensemble(x, split_weight, leaf_weight, implementation=implementation)
    assert output.item() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("implementation", ["native", "dense"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("sum_trees", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_the_reference(implementation, activation, sum_trees, bias):
    arguments = make_arguments(bias=bias, n=9, depth=4)
    options = {"activation": activation, "gamma": 0.7, "sum_trees": sum_trees}
    arrays = [None if argument is None else argument.detach().numpy() for argument in arguments]
    expected = reference.forward(*arrays[:3], split_bias=arrays[3], **options)
    output = call(*arguments, implementation=implementation, **options)
    np.testing.assert_allclose(output.detach().numpy(), expected, rtol=1e-12, atol=1e-13)

    grad_output = np.linspace(-1, 2, expected.size).reshape(expected.shape)
    expected_gradients = reference.backward(grad_output, *arrays[:3], split_bias=arrays[3], **options)
    for gradient, wanted in zip(
        gradients_of(arguments, implementation=implementation, **options),
        (gradient for gradient in expected_gradients if gradient is not None),
        strict=True,
    ):
        np.testing.assert_allclose(gradient.numpy(), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("implementation", ["native", "dense"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradcheck(implementation, activation):
    arguments = make_arguments()
    options = {"activation": activation, "implementation": implementation}
    assert torch.autograd.gradcheck(lambda *given: call(*given, **options), arguments)
    assert torch.autograd.gradcheck(lambda *given: call(*given, sum_trees=False, gamma=2.0, **options), arguments)


def test_gradcheck_of_the_registered_operator():
    arguments = make_arguments()
    assert torch.autograd.gradcheck(lambda *given: OPERATOR(*given, "smooth_step", 1.0, True), arguments)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_second_derivatives(activation, bias):
    arguments = [argument for argument in make_arguments(n=3, m=1, depth=2, bias=bias) if argument is not None]
    assert torch.autograd.gradgradcheck(lambda *given: call(*given, activation=activation), arguments)


def test_gradient_penalty_through_the_layer():
    arguments = make_arguments(bias=False)
    penalties = {}
    for implementation in ("native", "dense"):
        output = call(*arguments, implementation=implementation)
        (grad_x,) = torch.autograd.grad(output.sum(), arguments[0], create_graph=True)
        penalties[implementation] = torch.autograd.grad(grad_x.square().sum(), arguments[1:3])
    for ours, dense in zip(*penalties.values(), strict=True):
        assert ours.abs().max() > 0
        torch.testing.assert_close(ours, dense)


def test_float32_native_and_dense_agree():
    arguments = make_arguments(n=300, p=30, m=5, depth=6, scale=0.2, dtype=torch.float32)
    torch.testing.assert_close(call(*arguments), call(*arguments, implementation="dense"), rtol=1e-4, atol=1e-5)
    for ours, dense in zip(gradients_of(arguments), gradients_of(arguments, implementation="dense"), strict=True):
        torch.testing.assert_close(ours, dense, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("implementation", ["native", "dense"])
@pytest.mark.parametrize("leading", [(), (5,), (2, 3), (2, 1, 4), (0,), (3, 0)])
@pytest.mark.parametrize("sum_trees", [True, False])
def test_leading_dimensions(implementation, leading, sum_trees):
    layer = TreeEnsemble(4, 3, 2, 3, sum_trees=sum_trees, implementation=implementation, dtype=torch.float64)
    x = torch.randn(*leading, 4, dtype=torch.float64, requires_grad=True)
    output = layer(x)
    assert output.shape == ((*leading, 3) if sum_trees else (*leading, 2, 3))
    rows = layer(x.reshape(-1, 4))
    torch.testing.assert_close(output, rows.reshape(output.shape))
    output.sum().backward()
    assert x.grad.shape == x.shape
    assert layer.reachable_leaves(x).shape == (*leading, 2)


def test_layouts_that_are_not_contiguous():
    x, split_weight, leaf_weight, split_bias = make_arguments(requires_grad=False)
    expected = call(x, split_weight, leaf_weight, split_bias)
    strided = [tensor.mT.contiguous().mT for tensor in (x, split_weight, leaf_weight, split_bias)]
    assert not any(tensor.is_contiguous() for tensor in strided)
    torch.testing.assert_close(call(*strided), expected)
    wide = torch.randn(6, 9, dtype=torch.float64)
    wide[:, 2:6] = x
    torch.testing.assert_close(call(wide[:, 2:6], split_weight, leaf_weight, split_bias), expected)
    torch.testing.assert_close(call(x[::2], split_weight, leaf_weight, split_bias), expected[::2])


def test_gradients_of_layouts_that_are_not_contiguous():
    arguments = make_arguments()
    expected = gradients_of(arguments)
    strided = [tensor.detach().mT.contiguous().mT.requires_grad_() for tensor in arguments]
    for gradient, wanted in zip(gradients_of(strided), expected, strict=True):
        torch.testing.assert_close(gradient, wanted)
    grad_output = torch.randn(3, 6, dtype=torch.float64).mT
    by_layout = [torch.autograd.grad(call(*arguments), arguments, g) for g in (grad_output, grad_output.contiguous())]
    for gradient, wanted in zip(*by_layout, strict=True):
        assert torch.equal(gradient, wanted)


def test_tensors_that_are_not_what_their_memory_holds():
    arguments = make_arguments()
    negated = [torch._neg_view(-tensor.detach()).requires_grad_() for tensor in arguments]
    assert all(tensor.is_neg() for tensor in negated)
    torch.testing.assert_close(call(*negated), call(*arguments))
    for gradient, wanted in zip(gradients_of(negated), gradients_of(arguments), strict=True):
        torch.testing.assert_close(gradient, wanted)
    grad_output = torch.randn(6, 3, dtype=torch.float64)
    for found, wanted in (
        (torch._neg_view(-grad_output), grad_output),
        (torch._efficientzerotensor((6, 3), dtype=torch.float64), 0 * grad_output),
    ):
        by_memory = [torch.autograd.grad(call(*arguments), arguments, g) for g in (found, wanted)]
        for gradient, expected in zip(*by_memory, strict=True):
            torch.testing.assert_close(gradient, expected)


@pytest.fixture
def no_table(monkeypatch):
    """A PyTorch that does not publish how its tensors are read from C."""
    wrapped = {name: native._through_arrays(getattr(native, name)) for name in ("_accepts", "_forward", "_backward")}
    for name, function in wrapped.items():
        monkeypatch.setattr(native, name, function)
    _core.use_exchange(None)
    yield
    _core.use_exchange(native._table)


@pytest.mark.parametrize("sparse_grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arrays_serve_where_tensors_cannot_be_read(request, dtype, sparse_grad):
    arguments = make_arguments(dtype=dtype)
    expected = call(*arguments), *gradients_of(arguments, sparse_grad=sparse_grad)
    request.getfixturevalue("no_table")
    found = call(*arguments), *gradients_of(arguments, sparse_grad=sparse_grad)
    for a, b in zip(found, expected, strict=True):
        assert a.is_sparse == b.is_sparse
        assert torch.equal(a.to_dense(), b.to_dense())


@pytest.mark.parametrize("implementation", ["native", "dense"])
@pytest.mark.parametrize(
    ("n", "m", "depth", "scale"), [(6, 2, 3, 0.4), (100, 3, 8, 0.4), (100, 3, 8, 5.0), (1, 2, 6, 5.0)]
)
def test_nan_stays_in_its_row(implementation, n, m, depth, scale):
    arguments = make_arguments(n=n, m=m, depth=depth, scale=scale)
    expected = call(*arguments)
    x, *weights = arguments
    spoilt = x.detach().clone()
    spoilt[n // 2, 1] = float("nan")
    spoilt.requires_grad_()
    output = call(spoilt, *weights, implementation=implementation)
    kept = [row for row in range(n) if row != n // 2]
    assert output[n // 2].isnan().all()
    torch.testing.assert_close(output[kept], expected[kept])
    output.square().sum().backward()
    assert not spoilt.grad[kept].isnan().any()
    assert weights[1].grad.isnan().any()


@pytest.mark.parametrize("implementation", ["native", "dense"])
def test_diverged_weights_give_nan(implementation):
    arguments = make_arguments(n=20, depth=6, scale=5.0)
    with torch.no_grad():
        arguments[1].fill_(float("nan"))
    output = call(*arguments, implementation=implementation)
    assert output.isnan().all()
    output.square().sum().backward()
    assert arguments[2].grad.isnan().any()


# --- The registered operator under PyTorch's transformations ----------------------------------------------------------


@pytest.mark.parametrize(("sum_trees", "bias", "dtype"), [(True, True, torch.float64), (False, False, torch.float32)])
def test_opcheck(sum_trees, bias, dtype):
    arguments = make_arguments(bias=bias, dtype=dtype)
    torch.library.opcheck(OPERATOR, (*arguments, "smooth_step", 1.0, sum_trees))
    grad_output = torch.randn((6, 3) if sum_trees else (6, 2, 3), dtype=dtype)
    needed = [True, False, True, bias]
    torch.library.opcheck(OPERATOR_BACKWARD, (grad_output, *arguments, "smooth_step", 1.0, sum_trees, needed))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@torch._inductor.config.patch(compile_threads=1)  # no pool of compiling processes to outlive the test
def test_compile_full_graph(backend):
    torch.manual_seed(0)
    network = nn.Sequential(nn.BatchNorm1d(4), TreeEnsemble(4, 3, 2, 3, bias=True, init="scaled"), nn.Linear(3, 2))
    compiled_network = torch.compile(copy.deepcopy(network), backend=backend, fullgraph=True)
    for n in (8, 8, 13):
        x = torch.randn(n, 4)
        expected, output = network(x), compiled_network(x)
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
        for part in (expected, output):
            part.square().sum().backward()
    for wanted, parameter in zip(network.parameters(), compiled_network.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, wanted.grad, rtol=1e-3, atol=1e-4)
    torch._dynamo.reset()


def test_torch_func_inside_compiled_code():
    x, *weights = make_arguments(requires_grad=False)

    def gradient(x):
        return torch.func.grad(lambda row: call(row, *weights).sum())(x)

    compiled = torch.compile(gradient, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), gradient(x))
    torch._dynamo.reset()


@pytest.mark.parametrize("strict", [True, False])
def test_export_with_a_dynamic_batch(strict):
    layer = TreeEnsemble(4, 3, 2, 3, init="scaled").eval()
    batch = torch.export.Dim("batch")
    program = torch.export.export(layer, (torch.randn(6, 4),), dynamic_shapes=({0: batch},), strict=strict)
    assert any(node.target is OPERATOR for node in program.graph.nodes)
    saved = io.BytesIO()
    torch.export.save(program, saved)
    saved.seek(0)
    x = torch.randn(11, 4)
    torch.testing.assert_close(torch.export.load(saved).module()(x), layer(x))


@pytest.mark.parametrize("dynamo", [True, False])
def test_onnx_export_takes_the_dense_form(dynamo, tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    layer = TreeEnsemble(4, 3, 2, 3, bias=True, init="scaled").eval()
    x = torch.randn(6, 4)
    path = tmp_path / "layer.onnx"
    torch.onnx.export(layer, (x,), path, dynamo=dynamo, input_names=["x"], verbose=False)
    session = onnxruntime.InferenceSession(path)
    (output,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(output, layer(x).detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), TreeEnsemble(8, 3, 2, 3, init="scaled"))
    x = torch.randn(6, 4)
    with torch.autocast("cpu", dtype=dtype):
        hidden = network[0](x)
        output = network[1](hidden)
    assert (hidden.dtype, output.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(output, network[1](hidden.float()))
    output.square().sum().backward()
    assert network[1].split_weight.grad.dtype == torch.float32
    assert network[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_are_computed_in_float32(dtype):
    arguments = make_arguments(dtype=torch.float32)
    halves = [argument.detach().to(dtype).requires_grad_() for argument in arguments]
    output = call(*halves)
    assert output.dtype == dtype
    expected = call(*(half.detach().float() for half in halves)).to(dtype)
    torch.testing.assert_close(output, expected, rtol=0, atol=0)
    output.sum().backward()
    assert {half.grad.dtype for half in halves} == {dtype}


@pytest.mark.parametrize("in_dim", [0, 1])
def test_vmap_over_a_batch(in_dim):
    _, *weights = make_arguments(requires_grad=False)
    x = torch.randn(5, 6, 4, dtype=torch.float64)
    output = torch.func.vmap(lambda one: call(one, *weights))(x)
    torch.testing.assert_close(output, call(x, *weights))
    moved = torch.func.vmap(lambda one: call(one, *weights), in_dims=in_dim)(x.movedim(0, in_dim))
    torch.testing.assert_close(moved, output)
    direct = torch.func.vmap(lambda one: OPERATOR(one, *weights, "smooth_step", 1.0, True), in_dims=in_dim)
    torch.testing.assert_close(direct(x.movedim(0, in_dim)), output)


def test_vmap_over_weights_of_several_layers():
    stacked = [make_arguments(requires_grad=False, seed=seed) for seed in range(3)]
    x = stacked[0][0]
    weights = [torch.stack(parts) for parts in zip(*(arguments[1:] for arguments in stacked), strict=True)]
    output = torch.func.vmap(lambda *one: call(x, *one))(*weights)
    for index, arguments in enumerate(stacked):
        torch.testing.assert_close(output[index], call(x, *arguments[1:]))


def test_per_sample_gradients_and_jacobians_by_torch_func():
    x, *weights = make_arguments(requires_grad=False)

    def loss(split_weight, row):
        return call(row, split_weight, *weights[1:]).square().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights[0], x)
    torch.testing.assert_close(per_sample.sum(dim=0), torch.func.grad(loss)(weights[0], x))
    jacobian = torch.func.jacrev(lambda row: call(row, *weights))(x[0])
    expected = torch.func.jacrev(lambda row: call(row, *weights, implementation="dense"))(x[0])
    torch.testing.assert_close(jacobian, expected)


def test_second_derivatives_by_torch_func():
    x, *weights = make_arguments(requires_grad=False)
    hessian = torch.func.hessian(lambda row: call(row, *weights)[0])(x[0])
    (expected,) = torch.autograd.functional.hessian(lambda row: call(row, *weights)[0], (x[0],))[0]
    assert hessian.abs().max() > 0
    torch.testing.assert_close(hessian, expected)


def test_batched_gradients():
    arguments = make_arguments()
    output = call(*arguments)
    grad_outputs = torch.randn(4, *output.shape, dtype=output.dtype)
    batched = torch.autograd.grad(output, arguments, grad_outputs, is_grads_batched=True, retain_graph=True)
    for index, grad_output in enumerate(grad_outputs):
        single = torch.autograd.grad(output, arguments, grad_output, retain_graph=True)
        for a, b in zip(batched, single, strict=True):
            torch.testing.assert_close(a[index], b)


def test_fake_tensors_and_meta_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        layer = TreeEnsemble(4, 3, 2, 3, sum_trees=False)
        assert layer(torch.empty(5, 4)).shape == (5, 2, 3)
    layer = TreeEnsemble(4, 3, 2, 3, bias=True, device="meta")
    output = layer(torch.empty(5, 4, device="meta"))
    assert (output.shape, output.device.type) == ((5, 3), "meta")
    output.sum().backward()
    assert layer.split_weight.grad.shape == layer.split_weight.shape
    assert layer.reachable_leaves(torch.empty(5, 4, device="meta")).shape == (5, 2)


def test_inference_mode():
    arguments = make_arguments()
    expected = call(*arguments)
    with torch.inference_mode():
        output = call(*arguments)
        assert output.is_inference()
        again = call(output @ torch.ones(3, 4, dtype=torch.float64), *arguments[1:])
    torch.testing.assert_close(output, expected.detach())
    assert again.shape == (6, 3)


# --- The module -------------------------------------------------------------------------------------------------------


def test_parameters_and_their_initialisation():
    torch.manual_seed(0)
    layer = TreeEnsemble(5, 2, n_trees=3, depth=4, bias=True)
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "split_weight": (3, 15, 5),
        "leaf_weight": (3, 16, 2),
        "split_bias": (3, 15),
    }
    for weight in (layer.split_weight, layer.leaf_weight):
        assert 0.009 < weight.abs().max() <= 0.01
        assert not torch.equal(weight[0], weight[1])
    assert not layer.split_bias.any()
    assert TreeEnsemble(5, 2, 3, 4).split_bias is None
    scaled = TreeEnsemble(5, 2, n_trees=4, depth=4, init="scaled")
    assert 0.45 < scaled.leaf_weight.abs().max() <= 0.5
    assert scaled.split_weight.abs().max() <= 0.01


def test_repr_tells_what_differs_from_the_defaults():
    assert (
        repr(TreeEnsemble(5, 2, 3, 4)) == "TreeEnsemble(in_features=5, out_features=2, n_trees=3, depth=4, gamma=1.0)"
    )
    layer = TreeEnsemble(5, 2, 3, 4, activation="logistic", bias=True, sum_trees=False, sparse_grad=True, gamma=0.5)
    assert layer.extra_repr().endswith("gamma=0.5, activation='logistic', sum_trees=False, sparse_grad=True, bias=True")


def test_copies_are_equal_and_independent():
    layer = TreeEnsemble(4, 3, 2, 3, bias=True)
    x = torch.randn(5, 4)
    layer(x).sum().backward()
    restored = TreeEnsemble(4, 3, 2, 3, bias=True)
    restored.load_state_dict(layer.state_dict())
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), restored):
        torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)
        with torch.no_grad():
            other.leaf_weight.add_(1)
        assert (other(x) - layer(x)).abs().min() > 0.1


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_reachable_leaves_native_and_dense_agree(activation):
    arguments = make_arguments(n=50, m=3, depth=5, scale=1.0, requires_grad=False)
    layer = TreeEnsemble(4, 3, 3, 5, activation=activation, bias=True, dtype=torch.float64)
    for name, value in zip(("split_weight", "leaf_weight", "split_bias"), arguments[1:], strict=True):
        getattr(layer, name).data.copy_(value)
    counts = layer.reachable_leaves(arguments[0])
    dense = dense_form.reachable_leaves(arguments[0], *arguments[1::2], activation=activation, gamma=1.0)
    assert torch.equal(counts, dense)
    assert (counts.min() == 32) if activation == "logistic" else (1 <= counts.min() < counts.max() <= 32)


WORKERS = """
import torch
from softwood.torch import TreeEnsemble

class RowsThroughTheLayer(torch.utils.data.Dataset):
    def __init__(self, layer, x):
        self.layer, self.x = layer, x
    def __len__(self):
        return len(self.x)
    @torch.no_grad()
    def __getitem__(self, index):
        return self.layer(self.x[index])

torch.manual_seed(0)
layer, x = TreeEnsemble(16, 3, 20, 6, init="scaled"), torch.randn(64, 16)
expected = layer(x).detach()  # by several threads, which do not live on in the workers
data = RowsThroughTheLayer(layer, x)
loader = torch.utils.data.DataLoader(data, batch_size=16, num_workers=2, multiprocessing_context="fork", timeout=60)
torch.testing.assert_close(torch.cat(list(loader)), expected)
print("same rows")
"""


def test_layer_inside_forked_data_loader_workers():
    # In a process of its own: to fork one in which other tests have left threads (of TensorFlow, say) may block.
    run = subprocess.run([sys.executable, "-c", WORKERS], capture_output=True, text=True, timeout=180)
    assert run.stdout == "same rows\n", run.stderr


def test_layer_learns():
    torch.manual_seed(0)
    x = torch.randn(512, 2)
    labels = (x[:, 0] * x[:, 1] > 0).long()
    network = nn.Sequential(nn.BatchNorm1d(2), TreeEnsemble(2, 2, 5, 4, bias=True))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        functional.cross_entropy(network(x), labels).backward()
        optimizer.step()
    assert (network(x).argmax(dim=1) == labels).float().mean() > 0.95
    assert network[1].reachable_leaves(network[0](x)).float().mean() < 4
