"""Gamma of the PyTorch layer: saved with the weights, set while training, moved by a schedule, compiled and learned."""

import copy
import io
import math
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

from softwood.torch import GammaSchedule, TreeEnsemble  # noqa: E402
from torch_arguments import call, make_arguments  # noqa: E402


def make_layer(**options):
    """A layer whose output shows its gamma: at 0.3 most samples go one way, at 3 both."""
    torch.manual_seed(0)
    layer = TreeEnsemble(4, 3, 2, 3, bias=True, dtype=torch.float64, **options)
    with torch.no_grad():
        layer.split_weight.normal_(0, 0.3)
        layer.split_bias.normal_(0, 0.1)
        layer.leaf_weight.normal_()
    return layer


def make_x(n=20):
    return torch.randn(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def refuses(error, message):
    return pytest.raises(error, match=re.escape(message))


# --- What is saved with the weights -----------------------------------------------------------------------------------


def saved_and_loaded(state_dict):
    buffer = io.BytesIO()
    torch.save(state_dict, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def through_safetensors(state_dict):
    safetensors = pytest.importorskip("safetensors.torch")
    return safetensors.load(safetensors.save(state_dict))


@pytest.mark.parametrize("carry", [dict, saved_and_loaded, through_safetensors])
@pytest.mark.parametrize("gamma", [0.3, 0.1])  # 0.1 is no number of float32
def test_loading_sets_the_gamma_that_the_weights_were_trained_with(carry, gamma):
    network = nn.Sequential(nn.BatchNorm1d(4, dtype=torch.float64), make_layer(gamma=gamma)).eval()
    other = nn.Sequential(nn.BatchNorm1d(4, dtype=torch.float64), make_layer(gamma=3.0)).eval()
    x = make_x()
    assert not torch.allclose(network(x), other(x))
    state_dict = carry(network.state_dict())
    assert all(isinstance(value, torch.Tensor) for value in state_dict.values())
    other.load_state_dict(state_dict)
    assert other[1].gamma == gamma
    torch.testing.assert_close(other(x), network(x), rtol=0, atol=0)


def test_distributed_checkpoints_hold_gamma(tmp_path):
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    layer, other = make_layer(gamma=0.3), make_layer(gamma=3.0)
    dcp.save(layer.state_dict(), checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    state_dict = other.state_dict()
    dcp.load(state_dict, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    other.load_state_dict(state_dict)
    assert other.gamma == 0.3


def test_state_dicts_without_gamma_load_strictly_and_leave_it():
    network = nn.Sequential(make_layer(gamma=0.3))
    state_dict = {name: value for name, value in network.state_dict().items() if not name.endswith("_extra_state")}
    assert set(state_dict) == {"0.split_weight", "0.leaf_weight", "0.split_bias"}
    other = nn.Sequential(make_layer(gamma=3.0))
    other.load_state_dict(state_dict, strict=True)
    assert other[0].gamma == 3.0
    del state_dict["0.split_bias"]
    with refuses(RuntimeError, 'Missing key(s) in state_dict: "0.split_bias".'):
        other.load_state_dict(state_dict)


@pytest.mark.parametrize("strict", [True, False])
def test_weights_of_another_activation_are_refused(strict):
    network = nn.Sequential(make_layer(activation="logistic", gamma=0.3))
    other = nn.Sequential(make_layer(gamma=3.0))
    message = (
        "0.activation must be 'smooth_step', as in this layer; the saved weights were trained with 'logistic': "
        "make the layer with activation='logistic'"
    )
    with refuses(RuntimeError, message):
        other.load_state_dict(network.state_dict(), strict=strict)
    assert other[0].gamma == 3.0
    with refuses(ValueError, message[2:]):
        other[0].set_extra_state(network[0].get_extra_state())


def test_weights_of_other_sizes_are_refused_by_the_names_of_arguments():
    message = (
        "TreeEnsemble.sizes must be in_features=4, out_features=3, n_trees=2, depth=3, as in this layer; the saved "
        "weights have in_features=5, out_features=3, n_trees=2, depth=4: make the layer with these"
    )
    with refuses(RuntimeError, message):
        TreeEnsemble(4, 3, 2, 3).load_state_dict(TreeEnsemble(5, 3, 2, 4).state_dict())


@pytest.mark.parametrize(
    "state",
    [torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 7.0]), torch.tensor([math.nan, 0.0]), torch.ones(3), {}, 0.5],
)
def test_a_foreign_extra_state_is_refused(state):
    layer = make_layer()
    message = (
        "_extra_state must be a tensor of gamma and the activation's number, as TreeEnsemble saves it; "
        f"got {state!r}: leave it out to keep the layer's own gamma"
    )
    with refuses(RuntimeError, message):
        layer.load_state_dict({**layer.state_dict(), "_extra_state": state})


def test_a_layer_made_without_memory_takes_gamma_and_weights():
    for learn_gamma in (False, True):
        source = make_layer(gamma=0.3, learn_gamma=learn_gamma)
        with torch.device("meta"):
            layer = make_layer(learn_gamma=learn_gamma)
        assert repr(layer)
        assert layer.gamma == 1.0
        layer.load_state_dict(source.state_dict(), assign=True)
        torch.testing.assert_close(layer(make_x()), source(make_x()))
        on_meta = {name: value.to("meta") for name, value in source.state_dict().items()}
        layer.load_state_dict(on_meta, assign=True)  # shapes only: there is no gamma to take
        assert layer.split_weight.is_meta


def test_functional_calls_take_a_whole_state_dict():
    layer, other = make_layer(gamma=0.3), make_layer(gamma=0.3)
    torch.manual_seed(1)
    other.reset_parameters()
    output = torch.func.functional_call(other, layer.state_dict(), (make_x(),))
    torch.testing.assert_close(output, layer(make_x()))


# --- Setting it -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learn_gamma", [False, True])
def test_a_new_gamma_takes_effect_at_the_next_call(learn_gamma):
    layer = make_layer(gamma=3.0, learn_gamma=learn_gamma)
    copied = copy.deepcopy(layer)
    layer.gamma = 0.3
    assert layer.gamma == pytest.approx(0.3, rel=1e-15)
    torch.testing.assert_close(layer(make_x()), make_layer(gamma=0.3)(make_x()))
    torch.testing.assert_close(copied(make_x()), make_layer(gamma=3.0)(make_x()))
    assert torch.equal(layer.reachable_leaves(make_x()), make_layer(gamma=0.3).reachable_leaves(make_x()))


def test_bad_values_are_refused_and_change_nothing():
    layer = make_layer(gamma=0.3)
    limits = "gamma must be a number between 1.2e-38 and 8.3e+37, the width of the soft band"
    message = limits + "; got {}: 1.0 is a good start"
    for value in (0.0, -1.0, math.nan, math.inf, 1e-38):
        with refuses(ValueError, message.format(value)):
            layer.gamma = value
    with refuses(TypeError, "gamma must be a number, the width of the soft band; got 'wide'"):
        layer.gamma = "wide"
    message = "gamma must be a number; got a Parameter: to learn gamma, make the layer with learn_gamma=True"
    with refuses(TypeError, message):
        layer.gamma = nn.Parameter(torch.tensor(1.0))
    with refuses(TypeError, message):
        make_layer(gamma=nn.Parameter(torch.tensor(1.0)))
    assert layer.gamma == 0.3


class TestGammaSchedule:
    def test_moves_as_the_trainer_does(self):
        network = nn.Sequential(make_layer(), nn.Linear(3, 4), make_layer())
        schedule = GammaSchedule(network, start=2.0, end=0.02, n_steps=5)
        seen = []
        for _ in range(7):
            seen.append(network[0].gamma)
            assert network[2].gamma == network[0].gamma == schedule.gamma
            schedule.step()
        assert seen == pytest.approx([2.0, 2.0 * 0.1**0.5, 0.2, 0.2 * 0.1**0.5, 0.02, 0.02, 0.02], rel=1e-14)
        assert seen[-1] == 0.02

    def test_goes_on_from_its_state(self):
        first = GammaSchedule(make_layer(), 1.0, 0.1, 10)
        for _ in range(4):
            first.step()
        layer = make_layer()
        second = GammaSchedule(layer, 5.0, 4.0, 3)
        second.load_state_dict(saved_and_loaded(first.state_dict()))
        assert layer.gamma == first.gamma
        first.step()
        second.step()
        assert layer.gamma == first.gamma == pytest.approx(0.1 ** (5 / 9))
        state = {**first.state_dict(), "n_done": -1}
        message = "state_dict must hold start, end, n_steps, n_done, as GammaSchedule.state_dict() returns them; got {"
        with refuses(ValueError, message):
            second.load_state_dict(state)

    def test_refuses_what_has_no_meaning(self):
        layer = make_layer()
        message = (
            "module must be a TreeEnsemble or a network with one inside; got Linear without any: "
            "pass the network that is trained"
        )
        with refuses(ValueError, message):
            GammaSchedule(nn.Linear(2, 2), 1.0, 0.1, 10)
        with refuses(ValueError, "start must be a positive number, a width of the soft band; got 0"):
            GammaSchedule(layer, 0, 0.1, 10)
        with refuses(ValueError, "end must be a positive number, a width of the soft band; got '1'"):
            GammaSchedule(layer, 1.0, "1", 10)
        with refuses(ValueError, "n_steps must be an integer of 1 or more, the number of training steps; got 2.5"):
            GammaSchedule(layer, 1.0, 0.1, 2.5)
        message = (
            "GammaSchedule needs layers whose gamma is fixed; got one with learn_gamma=True: "
            "either learn gamma or give it a schedule"
        )
        with refuses(ValueError, message):
            GammaSchedule(make_layer(learn_gamma=True), 1.0, 0.1, 10)


# --- Compiled code ----------------------------------------------------------------------------------------------------


def test_compiled_layers_follow_gamma_without_being_compiled_again():
    layer, eager = make_layer(), make_layer()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    schedules = [GammaSchedule(module, 1.0, 0.01, 12) for module in (compiled, eager)]
    for _ in range(12):
        layer.zero_grad()
        eager.zero_grad()
        output, expected = compiled(make_x()), eager(make_x())
        for schedule in schedules:  # also before the backward pass, which belongs to the gamma of the forward pass
            schedule.step()
        torch.testing.assert_close(output, expected)
        output.square().sum().backward()
        expected.square().sum().backward()
        for ours, wanted in zip(layer.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, wanted.grad)
    assert counter.frame_count == 1


def test_the_function_takes_any_gamma_tensor_without_being_compiled_again():
    arguments = make_arguments()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda gamma: call(*arguments, gamma=gamma), backend=counter, fullgraph=True)
    for gamma in (0.25, 0.7, 1.0, 2.0):
        torch.testing.assert_close(compiled(torch.tensor(gamma)), call(*arguments, gamma=torch.tensor(gamma).item()))
    for gamma in (0.0, -1.0, math.nan):  # compiled code cannot raise
        assert compiled(torch.tensor(gamma)).isnan().all()
    assert counter.frame_count == 1


# --- Gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["native", "dense"])
@pytest.mark.parametrize("activation", ["smooth_step", "smoother_step", "logistic"])
@pytest.mark.parametrize("bias", [True, False])
def test_gradient_of_gamma(implementation, activation, bias):
    arguments = [argument for argument in make_arguments(n=3, m=1, depth=2, bias=bias) if argument is not None]
    gamma = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    options = {"activation": activation, "implementation": implementation}

    def output(gamma, *given):
        return call(*given, gamma=gamma, **options)

    torch.testing.assert_close(output(gamma, *arguments), call(*arguments, gamma=1.3, **options))
    assert torch.autograd.gradcheck(output, (gamma, *arguments))
    assert torch.autograd.gradgradcheck(output, (gamma, *arguments))
    assert torch.autograd.gradcheck(lambda gamma: output(gamma, *(given.detach() for given in arguments)), gamma)


def test_gamma_tensors_under_torch_func_and_in_half_precision():
    arguments = make_arguments(requires_grad=False)
    gammas = torch.tensor([0.5, 1.0, 2.0])
    mapped = torch.func.vmap(lambda gamma: call(*arguments, gamma=gamma))(gammas)
    assert mapped.dtype == torch.float64
    for gamma, output in zip(gammas, mapped, strict=True):
        torch.testing.assert_close(output, call(*arguments, gamma=gamma.item()))
    (by_autograd,) = torch.autograd.grad(call(*arguments, gamma=(g := gammas[0].clone().requires_grad_())).sum(), g)
    by_func = torch.func.grad(lambda gamma: call(*arguments, gamma=gamma).sum())(gammas[0])
    torch.testing.assert_close(by_func, by_autograd)
    halves = [argument.to(torch.bfloat16) for argument in arguments]
    output = call(*halves, gamma=torch.tensor([0.7]))
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, call(*halves, gamma=0.7))


def test_bad_gamma_tensors_are_refused():
    message = (
        "gamma must be a number or a tensor of one element, for all trees; got shape (2,): "
        "to give trees bands of their own, scale their split_weight and split_bias"
    )
    with refuses(ValueError, message):
        call(*make_arguments(), gamma=torch.ones(2))
    message = "gamma must be a number between 1.2e-38 and 8.3e+37, the width of the soft band; got -1.0"
    with refuses(ValueError, message):
        call(*make_arguments(), gamma=torch.tensor(-1.0))


@pytest.mark.parametrize("sparse_grad", [False, True])
def test_gamma_is_learned_with_the_weights(sparse_grad):
    layer = make_layer(gamma=2.0, learn_gamma=True, sparse_grad=sparse_grad)
    shown = "gamma=2.0, sparse_grad=True, learn_gamma=True" if sparse_grad else "gamma=2.0, learn_gamma=True"
    assert repr(layer).endswith(f"{shown}, bias=True)")
    target = make_layer(gamma=0.5)(make_x(400)).detach()
    splits = [layer.split_weight, layer.leaf_weight, layer.split_bias]
    for weight in splits:  # the target's own: gamma alone has to find its value
        weight.requires_grad_(False)
    optimizer = torch.optim.Adam([layer.log_gamma], lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        (layer(make_x(400)) - target).square().mean().backward()
        optimizer.step()
    assert layer.gamma == pytest.approx(0.5, rel=1e-3)
    for weight in splits:
        weight.requires_grad_(True)
    layer(make_x()).sum().backward()
    assert all(weight.grad.is_sparse == sparse_grad for weight in splits)
    fixed = make_layer(gamma=layer.gamma)
    fixed(make_x()).sum().backward()
    for weight, name in zip(splits, ("split_weight", "leaf_weight", "split_bias"), strict=True):
        torch.testing.assert_close(weight.grad.to_dense(), getattr(fixed, name).grad)


def test_a_learned_gamma_is_saved_as_a_parameter():
    layer = make_layer(gamma=0.3, learn_gamma=True)
    other = make_layer(gamma=3.0, learn_gamma=True)
    other.load_state_dict(saved_and_loaded(layer.state_dict()))
    assert torch.equal(other.log_gamma, layer.log_gamma)
    torch.testing.assert_close(other(make_x()), layer(make_x()), rtol=0, atol=0)
    message = (
        "TreeEnsemble.gamma must be a fixed number, as in this layer; the saved one was learned: "
        "make the layer with learn_gamma=True"
    )
    with refuses(RuntimeError, message):
        make_layer().load_state_dict(layer.state_dict())
    with refuses(RuntimeError, 'Missing key(s) in state_dict: "log_gamma"'):
        layer.load_state_dict(make_layer().state_dict())
    layer.load_state_dict(make_layer(gamma=0.7).state_dict(), strict=False)
    assert layer.gamma == pytest.approx(0.7)


# --- Import -----------------------------------------------------------------------------------------------------------


def test_the_layer_needs_neither_scikit_learn_nor_pandas():
    code = """
import sys, torch, softwood.torch
layer = softwood.torch.TreeEnsemble(4, 3, 2, 3)
softwood.torch.GammaSchedule(layer, 1.0, 0.1, 3).step()
layer(torch.randn(5, 4)).sum().backward()
print([name for name in ("sklearn", "pandas", "scipy", "softwood.estimators") if name in sys.modules])
assert {"FittedModel", "from_model", "to_model"} <= set(dir(softwood.torch))
print(softwood.torch.from_model.__module__, "sklearn" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[]", "softwood.torch.fitted True"]


def test_unknown_names_are_refused():
    import softwood.torch

    with refuses(AttributeError, "module 'softwood.torch' has no attribute 'forest'"):
        _ = softwood.torch.forest
