"""The tree ensemble as a PyTorch layer: owns the parameters, gamma, how they start and how they are saved.

What a call computes is left to `functional`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling  # a name in this module saves 50 ns per call of a layer

from softwood.arguments import ACTIVATIONS, MAX_DEPTH
from softwood.torch.functional import (
    IMPLEMENTATIONS,
    LARGEST_GAMMA,
    SMALLEST_GAMMA,
    check_float32_gamma,
    reachable_leaves,
    tree_ensemble,
)

PAPER_BOUND = 0.01
INITS = ("paper", "scaled")


class TreeEnsemble(nn.Module):
    """An ensemble of soft decision trees that trains by gradient descent, like any layer.

    Each internal node sends a sample left with a probability that depends on a linear function of its features. Inside
    a soft band of width `gamma` the sample goes both ways, outside it goes one way only. Nodes that it does not reach
    are not computed, neither in the forward nor in the backward pass. The trees work best on centred, bounded inputs:
    put `nn.BatchNorm1d` in front of them.

    Parameters
    ----------
    in_features, out_features : int
        Sizes of the last dimension of input and output.
    n_trees, depth : int
        A tree of depth d has 2^d - 1 splits and 2^d leaves; d is 1 to 20.
    gamma : float
        Width of the soft band. Small values route hard sooner and compute less, but pass fewer gradients. The attribute
        can be set at any time; `softwood.torch.GammaSchedule` changes it step by step.
    activation : {"smooth_step", "smoother_step", "logistic"}
        "logistic" is meant for comparisons: with it, every sample reaches every leaf.
    bias : bool
        Whether splits have a bias. Batch normalisation in front of the layer makes up for its absence.
    sum_trees : bool
        Whether the outputs of the trees are summed.
    implementation : {"auto", "native", "dense"}
        See `softwood.torch.tree_ensemble`.
    sparse_grad : bool
        Whether the parameters get sparse gradients that hold the rows the batch reached, as
        ``nn.Embedding(sparse=True)`` does; for `torch.optim.SparseAdam` and `torch.optim.SGD`. Worth it for deep trees.
    learn_gamma : bool
        Whether gamma is learned with the weights, as the parameter `log_gamma`, starting from `gamma`.
    init : {"paper", "scaled"}
        "paper" draws all weights uniformly from plus or minus 0.01. "scaled" draws those of the leaves from plus or
        minus 1 / sqrt(n_trees) instead: outputs start at the scale of logits, so that learning rates below 0.01
        converge sooner (see the guide). The scale of the splits matters little.
    device, dtype
        Device and data type of the parameters.

    Attributes
    ----------
    split_weight : Parameter [n_trees, 2^depth - 1, in_features]
    leaf_weight : Parameter [n_trees, 2^depth, out_features]
    split_bias : Parameter [n_trees, 2^depth - 1] or None
    log_gamma : Parameter [1] or None
        Natural logarithm of gamma if gamma is learned, which keeps it positive.
    gamma : float
        The width of the soft band.

    Notes
    -----
    `state_dict` holds gamma and the activation beside the parameters, as one more tensor, ``_extra_state``. Loading it
    sets gamma to that of the saved weights, and is an error in a layer with another activation. A state dict without
    that tensor leaves gamma as it is.

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
    log_gamma: nn.Parameter | None

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
        learn_gamma: bool = False,
        init: str = "paper",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.n_trees = n_trees
        self.depth = depth
        self.activation = activation
        self.sum_trees = sum_trees
        self.implementation = implementation
        self.sparse_grad = sparse_grad
        self.learn_gamma = bool(learn_gamma)
        self.init = init
        self._check_options(torch.get_default_dtype() if dtype is None else dtype)
        placement: dict[str, Any] = {"device": device, "dtype": dtype}
        n_splits = 2**depth - 1
        self.split_weight = nn.Parameter(torch.empty(n_trees, n_splits, in_features, **placement))
        self.leaf_weight = nn.Parameter(torch.empty(n_trees, n_splits + 1, out_features, **placement))
        split_bias = nn.Parameter(torch.empty(n_trees, n_splits, **placement)) if bias else None
        self.register_parameter("split_bias", split_bias)
        self.register_parameter("log_gamma", nn.Parameter(torch.empty(1, **placement)) if learn_gamma else None)
        self.gamma = gamma
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
        for name, options in (("activation", ACTIVATIONS), ("implementation", IMPLEMENTATIONS), ("init", INITS)):
            if getattr(self, name) not in options:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}; got {getattr(self, name)!r}")

    @property
    def gamma(self) -> float:
        """The width of the soft band; a new value takes effect at the next call."""
        if self.log_gamma is None or self.log_gamma.is_meta:
            return self._gamma
        return math.exp(self.log_gamma.item())

    @gamma.setter
    def gamma(self, value: float) -> None:
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"gamma must be a number, the width of the soft band; got {value!r}") from None
        check_float32_gamma(number)
        self._gamma = number
        # The same for compiled code, which would be compiled again for another number. A new tensor each time: the old
        # one may be held for a backward pass to come. With a dimension: torch.compile takes a scalar for a number.
        self._gamma_tensor = torch.tensor([self._gamma], dtype=torch.float64, device="cpu")
        if self.log_gamma is not None:
            nn.init.constant_(self.log_gamma, math.log(self._gamma))

    def reset_parameters(self) -> None:
        """Draw new weights as `init` says; biases become zero, a learned gamma what it was set to last."""
        leaf_bound = self.n_trees**-0.5 if self.init == "scaled" else PAPER_BOUND
        nn.init.uniform_(self.split_weight, -PAPER_BOUND, PAPER_BOUND)
        nn.init.uniform_(self.leaf_weight, -leaf_bound, leaf_bound)
        if self.split_bias is not None:
            nn.init.zeros_(self.split_bias)
        if self.log_gamma is not None:
            nn.init.constant_(self.log_gamma, math.log(self._gamma))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the trees to x [..., in_features]."""
        gamma: float | Tensor
        if self.learn_gamma:
            gamma = self.log_gamma.exp()  # type: ignore[union-attr]
        elif is_compiling():  # a tensor; reading the number would make compiled code depend on its value
            gamma = self._gamma_tensor
        else:
            gamma = self._gamma
        return tree_ensemble(
            x,
            self.split_weight,
            self.leaf_weight,
            split_bias=self.split_bias,
            activation=self.activation,
            gamma=gamma,
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

    def get_extra_state(self) -> Tensor:
        """Return what changes the function, besides parameters: gamma (0 if it is learned) and the activation's number.

        A plain tensor, as are all other entries of a state dict: safetensors and distributed checkpoints take it.
        """
        gamma = 0.0 if self.learn_gamma else self._gamma
        return torch.tensor([gamma, ACTIVATIONS[self.activation]], dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Take gamma from a state dict; refuse what a layer of another kind has saved."""
        problem = self._mismatch(state)
        if problem:
            raise ValueError(problem)
        if not state.is_meta and state[0] != 0:
            self.gamma = state[0].item()

    def _mismatch(self, state: Any) -> str | None:
        """Return why an extra state does not belong to this layer; None if it does, or has no values (meta)."""
        if isinstance(state, Tensor) and state.is_meta:
            return None
        gamma, number = state.tolist() if isinstance(state, Tensor) and state.shape == (2,) else (-1.0, -1.0)
        activations = [name for name, code in ACTIVATIONS.items() if code == number]
        if not activations or not (SMALLEST_GAMMA <= gamma <= LARGEST_GAMMA or gamma == 0):
            return (
                "_extra_state must be a tensor of gamma and the activation's number, as TreeEnsemble saves it; "
                f"got {state!r}: leave it out to keep the layer's own gamma"
            )
        if activations != [self.activation]:
            return (
                f"activation must be {self.activation!r}, as in this layer; the saved weights were trained with "
                f"{activations[0]!r}: make the layer with activation={activations[0]!r}"
            )
        if gamma == 0 and not self.learn_gamma:
            return (
                "gamma must be a fixed number, as in this layer; the saved one was learned: "
                "make the layer with learn_gamma=True"
            )
        return None

    def _size_mismatch(self, split_weight: Any, leaf_weight: Any) -> str | None:
        """Return how saved weights differ from the layer's in the arguments that make them; None if they do not."""
        if not all(isinstance(weight, Tensor) and weight.ndim == 3 for weight in (split_weight, leaf_weight)):
            return None
        n_trees, n_leaves, n_outputs = leaf_weight.shape
        saved = (split_weight.shape[2], n_outputs, n_trees, n_leaves.bit_length() - 1)
        own = (self.in_features, self.out_features, self.n_trees, self.depth)
        if saved == own:
            return None
        required, came = (
            "in_features={}, out_features={}, n_trees={}, depth={}".format(*sizes) for sizes in (own, saved)
        )
        return f"sizes must be {required}, as in this layer; the saved weights have {came}: make the layer with these"

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load as any module does, but name what does not match, and accept state dicts without gamma."""
        key = f"{prefix}_extra_state"
        problems = [self._size_mismatch(*(state_dict.get(prefix + name) for name in ("split_weight", "leaf_weight")))]
        if key in state_dict and (problem := self._mismatch(state_dict[key])):
            problems.append(problem)
            state_dict = {name: value for name, value in state_dict.items() if name != key}
        error_msgs += [f"{prefix or 'TreeEnsemble.'}{problem}" for problem in problems if problem]
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if key in missing_keys and key not in state_dict:
            missing_keys.remove(key)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Add a parameter, as any module does, but for gamma, which is a number."""
        if name == "gamma":
            raise TypeError(
                "gamma must be a number; got a Parameter: to learn gamma, make the layer with learn_gamma=True"
            )
        super().register_parameter(name, param)

    def extra_repr(self) -> str:
        """Return the arguments that make this layer what it is; those at their defaults only where they matter most."""
        parts = [f"{name}={getattr(self, name)}" for name in ("in_features", "out_features", "n_trees", "depth")]
        parts.append(f"gamma={self._gamma}")  # also if learned: the value may be spread over processes
        defaults = {"activation": "smooth_step", "sum_trees": True, "implementation": "auto"}
        defaults |= {"sparse_grad": False, "learn_gamma": False, "init": "paper"}
        parts += [f"{name}={getattr(self, name)!r}" for name in defaults if getattr(self, name) != defaults[name]]
        if self.split_bias is not None:
            parts.append("bias=True")
        return ", ".join(parts)
