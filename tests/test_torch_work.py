"""Work that the PyTorch layer does not do: gradients that are not needed, traversals that a tape saves, stale tapes."""

import sys

import pytest

torch = pytest.importorskip("torch")

from softwood.torch import TreeEnsemble, native  # noqa: E402
from torch_arguments import call, gradients_of, make_arguments  # noqa: E402


@pytest.fixture
def passes(monkeypatch):
    """What the passes of a test used: the tapes of forward passes, and tapes and needs of backward passes."""
    found = {"forward": [], "backward": [], "needs": []}
    forward, backward = native.forward, native.backward

    def watched_forward(*arguments):
        output, tape = forward(*arguments)
        found["forward"].append(tape)
        return output, tape

    def watched_backward(*arguments):
        needed, tape = arguments[3], arguments[4] if len(arguments) > 4 else None
        found["backward"].append(tape)
        names = ("x", "split_weight", "leaf_weight", "split_bias")
        found["needs"].append({name for name, is_needed in zip(names, needed, strict=True) if is_needed})
        return backward(*arguments)

    monkeypatch.setattr(native, "forward", watched_forward)
    monkeypatch.setattr(native, "backward", watched_backward)
    return found


def test_frozen_tensors_skip_their_gradient_work(passes):
    layer = TreeEnsemble(4, 3, 2, 3, bias=True)
    x = torch.randn(5, 4)
    layer(x).sum().backward()
    layer.requires_grad_(False)
    layer.leaf_weight.requires_grad_(True)
    layer(x).sum().backward()
    layer.requires_grad_(False)
    layer(x.requires_grad_()).sum().backward()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    compiled(x).sum().backward()
    torch._dynamo.reset()
    assert passes["needs"] == [{"split_weight", "leaf_weight", "split_bias"}, {"leaf_weight"}, {"x"}, {"x"}]
    assert x.grad is not None


def test_backward_uses_the_tape_of_the_forward(passes):
    arguments = make_arguments()
    output = call(*arguments)
    output.sum().backward(retain_graph=True)
    first = arguments[1].grad.clone()
    output.sum().backward()
    torch.testing.assert_close(arguments[1].grad, 2 * first)
    (tape,) = passes["forward"]
    assert tape is not None
    assert len(passes["backward"]) == 2
    assert all(used is tape for used in passes["backward"])


def test_tape_is_freed_with_the_saved_tensors(passes):
    output = call(*make_arguments())
    n_held = sys.getrefcount(passes["forward"][0])
    output.sum().backward()
    passes["backward"].clear()
    n_left = sys.getrefcount(passes["forward"][0])
    assert n_left < n_held, "the output is still alive, but its graph has been released"
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        output.sum().backward()


def test_no_tape_without_gradients(passes):
    arguments = make_arguments()
    with torch.no_grad():
        call(*arguments)
    call(*(argument.detach() for argument in arguments))
    assert passes["forward"] == [None, None]


def test_in_place_change_between_forward_and_backward_is_refused():
    arguments = make_arguments()
    output = call(*arguments)
    with torch.no_grad():
        arguments[1].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_saved_tensor_hooks_and_checkpointing_repeat_the_traversal(passes):
    arguments = make_arguments()
    expected = gradients_of(arguments)
    passes["backward"].clear()
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda packed: packed):
        offloaded = gradients_of(arguments)
    assert passes["backward"] == [None], "what the hook packed is a copy, to which the tape does not belong"
    checkpointed_output = torch.utils.checkpoint.checkpoint(call, *arguments, use_reentrant=False)
    weights = torch.linspace(-1, 2, checkpointed_output.numel(), dtype=torch.float64).reshape(checkpointed_output.shape)
    checkpointed = torch.autograd.grad((checkpointed_output * weights).sum(), arguments)
    for wanted, a, b in zip(expected, offloaded, checkpointed, strict=True):
        torch.testing.assert_close(a, wanted)
        torch.testing.assert_close(b, wanted)
