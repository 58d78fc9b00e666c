"""What the PyTorch layer refuses, and in which words."""

import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from softwood.torch import TreeEnsemble, tree_ensemble  # noqa: E402


def make_arguments():
    """A batch of 6 and two trees of depth 3: x, split_weight, leaf_weight, split_bias."""
    return [torch.randn(shape, dtype=torch.float64) for shape in ((6, 4), (2, 7, 4), (2, 8, 3), (2, 7))]


def call(x, split_weight, leaf_weight, split_bias=None, **options):
    return tree_ensemble(x, split_weight, leaf_weight, split_bias=split_bias, **options)


def refuses(error, message):
    return pytest.raises(error, match=re.escape(message))


def test_bad_input_to_the_layer():
    layer = TreeEnsemble(4, 3, 2, 3)
    with refuses(ValueError, "x must have 4 features in its last dimension, as split_weight has; got shape (5, 3)"):
        layer(torch.randn(5, 3))
    with refuses(ValueError, "got shape ()"):
        layer(torch.tensor(1.0))
    with refuses(TypeError, "x must be a floating-point tensor; got torch.int64: convert it, for example by x.float()"):
        layer(torch.ones(5, 4, dtype=torch.int64))
    with refuses(TypeError, "x and split_weight must have one dtype; got torch.float64 and torch.float32"):
        layer(torch.randn(5, 4, dtype=torch.float64))
    with refuses(ValueError, "x and split_weight must be on one device; got meta and cpu"):
        layer(torch.randn(5, 4, device="meta"))


@pytest.mark.parametrize("implementation", ["native", "dense"])
def test_bad_weights(implementation):
    x, split_weight, leaf_weight, split_bias = make_arguments()
    for weights, error, message in (
        ((split_weight[0], leaf_weight, None), ValueError, r"split_weight must .*got shape \(7, 4\)"),
        ((split_weight[:, :6], leaf_weight, None), ValueError, r"split_weight must .*shape \(2, 6, 4\)"),
        ((split_weight, leaf_weight[:, :7], None), ValueError, r"leaf_weight must .*\[2, 8, .*got shape \(2, 7, 3\)"),
        ((split_weight, leaf_weight, split_bias[:, :6]), ValueError, r"split_bias must .*2, 7.*got shape \(2, 6\)"),
        (
            (split_weight, leaf_weight.float(), None),
            TypeError,
            "x and leaf_weight must have one dtype; got torch.float64 and",
        ),
    ):
        with pytest.raises(error, match=message):
            call(x, *weights, implementation=implementation)


@pytest.mark.parametrize("implementation", ["native", "dense"])
def test_bad_options(implementation):
    arguments = make_arguments()
    for options, message in (
        ({"gamma": 0.0}, "gamma must be a .*; got 0.0"),
        ({"gamma": float("nan")}, "gamma must be a .*; got nan"),
        ({"activation": "step"}, "activation must be one of 'smooth_step', 'smoother_step', 'logistic'; got 'step'"),
    ):
        with pytest.raises(ValueError, match=message):
            call(*arguments, implementation=implementation, **options)


def test_bad_implementation():
    arguments = make_arguments()
    with refuses(ValueError, "implementation must be one of 'auto', 'native', 'dense'; got 'fast'"):
        call(*arguments, implementation="fast")
    with refuses(ValueError, "sparse_grad=True needs the native implementation"):
        call(*arguments, implementation="dense", sparse_grad=True)
    with refuses(ValueError, "implementation='native' serves neither ONNX export nor the derivatives of torch.func"):
        torch.func.grad(lambda x: call(x, *arguments[1:], implementation="native").sum())(arguments[0])
    on_meta = [argument.to("meta") for argument in arguments]
    with refuses(ValueError, "implementation='native' runs on the CPU, and x is on 'meta'"):
        call(*on_meta, implementation="native")


def test_bad_construction():
    for name in ("in_features", "out_features", "n_trees", "depth"):
        sizes = {"in_features": 4, "out_features": 3, "n_trees": 2, "depth": 3}
        for value in (0, -1, 2.5):
            with refuses(ValueError, f"{name} must be an integer of 1 or more; got {value}"):
                TreeEnsemble(**{**sizes, name: value})
    with refuses(ValueError, "depth must be at most 20; got 21, whose weights alone would take 0.1 GiB"):
        TreeEnsemble(4, 3, 2, 21)
    with refuses(ValueError, "init must be one of 'paper', 'scaled'; got 'zeros'"):
        TreeEnsemble(4, 3, 2, 3, init="zeros")
    allowed = "gamma must be a number between 1.2e-38 and 8.3e+37, the width of the soft band"
    with refuses(ValueError, f"{allowed}; got -1.0"):
        TreeEnsemble(4, 3, 2, 3, gamma=-1)


def test_absent_torch_names_the_extra():
    code = "import sys; sys.modules['torch'] = None; import softwood; softwood.torch"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode != 0
    assert "softwood.torch needs PyTorch, which is not installed: pip install 'softwood[torch]'" in run.stderr
