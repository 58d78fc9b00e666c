"""The tree ensemble as a PyTorch layer: owns the parameters and how they start; the rest is left to `functional`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from softwood.arguments import ACTIVATIONS, MAX_DEPTH
from softwood.torch.functional import IMPLEMENTATIONS, check_float32_gamma, reachable_leaves, tree_ensemble

PAPER_BOUND = 0.01
INITS = ("paper", "scaled")


class TreeEnsemble(nn.Module):
    """An ensemble of soft decision trees that trains by gradient descent, like any layer.

    Each internal node sends a sample left with a probability that depends on a linear function of its features. Inside
    a soft band of width `gamma` the sample goes both ways, outside it goes one way only, and whatever it does not reach
    is not computed, in the forward pass or in the backward pass. The trees work best on centred, bounded inputs: put
    `nn.BatchNorm1d` in front of them.

    Parameters
    ----------
    in_features, out_features : int
        Sizes of the last dimension of input and output.
    n_trees, depth : int
        A tree of depth d has 2^d - 1 splits and 2^d leaves; d is 1 to 20.
    gamma : float
        Width of the soft band. Small values route hard sooner and compute less, but pass fewer gradients.
    activation : {"smooth_step", "smoother_step", "logistic"}
        The logistic is there for comparison: it reaches every leaf.
    bias : bool
        Whether splits have a bias. Batch normalisation in front of the layer makes up for its absence.
    sum_trees : bool
        Whether the outputs of the trees are added up.
    implementation : {"auto", "native", "dense"}
        See `softwood.torch.tree_ensemble`.
    sparse_grad : bool
        Whether the parameters get sparse gradients that hold the rows the batch reached, as
        ``nn.Embedding(sparse=True)`` does; for `torch.optim.SparseAdam` and `torch.optim.SGD`. Worth it for deep trees.
    init : {"paper", "scaled"}
        "paper" draws all weights uniformly from plus or minus 0.01. "scaled" draws those of the leaves from plus or
        minus 1 / sqrt(n_trees) instead: outputs start at the scale of logits, so that learning rates below 0.01 make
        their way sooner (see the guide). The scale of the splits was found to matter little.
    device, dtype
        Of the parameters.

    Attributes
    ----------
    split_weight : Parameter [n_trees, 2^depth - 1, in_features]
    leaf_weight : Parameter [n_trees, 2^depth, out_features]
    split_bias : Parameter [n_trees, 2^depth - 1] or None

    **Shape**: input [..., in_features]; output [..., out_features], or [..., n_trees, out_features] with
    ``sum_trees=False``.

    Examples
    --------
    >>> import torch
    >>> from softwood.torch import TreeEnsemble
    >>> _ = torch.manual_seed(0)
    >>> layer = TreeEnsemble(in_features=8, out_features=3, n_trees=10, depth=4)
    >>> layer
    TreeEnsemble(in_features=8, out_features=3, n_trees=10, depth=4, gamma=1.0)
    >>> x = torch.randn(32, 8)
    >>> layer(x).shape
    torch.Size([32, 3])

    Before training a sample reaches all of a tree's 16 leaves:

    >>> layer.reachable_leaves(x).float().mean().item()
    16.0
    """

    split_weight: nn.Parameter
    leaf_weight: nn.Parameter
    split_bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_trees: int,
        depth: int,
        *,
        gamma: float = 1.0,
        activation: str = "smooth_step",
        bias: bool = False,
        sum_trees: bool = True,
        implementation: str = "auto",
        sparse_grad: bool = False,
        init: str = "paper",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.n_trees = n_trees
        self.depth = depth
        self.gamma = float(gamma)
        self.activation = activation
        self.sum_trees = sum_trees
        self.implementation = implementation
        self.sparse_grad = sparse_grad
        self.init = init
        self._check_options(torch.get_default_dtype() if dtype is None else dtype)
        placement: dict[str, Any] = {"device": device, "dtype": dtype}
        n_splits = 2**depth - 1
        self.split_weight = nn.Parameter(torch.empty(n_trees, n_splits, in_features, **placement))
        self.leaf_weight = nn.Parameter(torch.empty(n_trees, n_splits + 1, out_features, **placement))
        split_bias = nn.Parameter(torch.empty(n_trees, n_splits, **placement)) if bias else None
        self.register_parameter("split_bias", split_bias)
        self.reset_parameters()

    def _check_options(self, dtype: torch.dtype) -> None:
        for name in ("in_features", "out_features", "n_trees", "depth"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of 1 or more; got {value!r}")
        if self.depth > MAX_DEPTH:
            n_numbers = self.n_trees * 2**self.depth * (self.in_features + self.out_features)
            raise ValueError(
                f"depth must be at most {MAX_DEPTH}; got {self.depth}, whose weights alone would take "
                f"{n_numbers * dtype.itemsize / 2**30:,.1f} GiB, and their gradients as much again: use more trees of "
                "less depth"
            )
        check_float32_gamma(self.gamma)
        for name, options in (("activation", ACTIVATIONS), ("implementation", IMPLEMENTATIONS), ("init", INITS)):
            if getattr(self, name) not in options:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}; got {getattr(self, name)!r}")

    def reset_parameters(self) -> None:
        """Draw new weights as `init` says; biases become zero."""
        leaf_bound = self.n_trees**-0.5 if self.init == "scaled" else PAPER_BOUND
        nn.init.uniform_(self.split_weight, -PAPER_BOUND, PAPER_BOUND)
        nn.init.uniform_(self.leaf_weight, -leaf_bound, leaf_bound)
        if self.split_bias is not None:
            nn.init.zeros_(self.split_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the trees to x [..., in_features]."""
        return tree_ensemble(
            x,
            self.split_weight,
            self.leaf_weight,
            split_bias=self.split_bias,
            activation=self.activation,
            gamma=self.gamma,
            sum_trees=self.sum_trees,
            implementation=self.implementation,
            sparse_grad=self.sparse_grad,
        )

    def reachable_leaves(self, x: Tensor) -> Tensor:
        """Count the leaves that each sample reaches in each tree: what conditional computation has to do for it.

        **Shape**: x [..., in_features]; result [..., n_trees], int32, between 1 and 2^depth.
        """
        return reachable_leaves(
            x, self.split_weight, split_bias=self.split_bias, activation=self.activation, gamma=self.gamma
        )

    def extra_repr(self) -> str:
        """Return the arguments that make this layer what it is; those at their defaults only where they matter most."""
        parts = [
            f"{name}={getattr(self, name)}" for name in ("in_features", "out_features", "n_trees", "depth", "gamma")
        ]
        defaults = {"activation": "smooth_step", "sum_trees": True, "implementation": "auto"}
        defaults |= {"sparse_grad": False, "init": "paper"}
        parts += [f"{name}={getattr(self, name)!r}" for name in defaults if getattr(self, name) != defaults[name]]
        if self.split_bias is not None:
            parts.append("bias=True")
        return ", ".join(parts)
