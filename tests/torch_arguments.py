"""Random tensors for the PyTorch layer, its call on them, and gradients by a loss: what several test modules share."""

import pytest

torch = pytest.importorskip("torch")

from softwood.torch import tree_ensemble  # noqa: E402


def make_arguments(
    *, n=6, p=4, k=3, m=2, depth=3, scale=0.4, bias=True, dtype=torch.float64, requires_grad=True, seed=0
):
    """Random x, split_weight, leaf_weight and split_bias; with gamma 1 some nodes are fractional and some are not."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(n, p), (m, 2**depth - 1, p), (m, 2**depth, k), (m, 2**depth - 1)]
    scales = [1.0, scale, 1.0, 0.1]
    tensors = [
        (torch.randn(shape, generator=generator, dtype=dtype) * size).requires_grad_(requires_grad)
        for shape, size in zip(shapes, scales, strict=True)
    ]
    return tensors if bias else [*tensors[:3], None]


def call(x, split_weight, leaf_weight, split_bias=None, **options):
    return tree_ensemble(x, split_weight, leaf_weight, split_bias=split_bias, **options)


def gradients_of(arguments, **options):
    """Gradients by a loss that weighs all outputs differently."""
    given = [argument for argument in arguments if argument is not None]
    output = call(*arguments, **options)
    weights = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).reshape(output.shape)
    return torch.autograd.grad((output * weights).sum(), given)
