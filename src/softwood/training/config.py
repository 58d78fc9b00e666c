"""Settings of a fit: how the ensembles are built and trained, with their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from softwood.arguments import Activation, check_activation
from softwood.training.declaration import Integer, Number, Unchecked, check_fields
from softwood.training.hyperparameters import (
    Count,
    Depth,
    Optimizer,
    Penalty,
    Positive,
    Share,
    all_declarations,
)
from softwood.training.losses import Loss

_DEFAULT = {name: declaration.default for name, declaration in all_declarations().items()}


@dataclass(frozen=True)
class TrainingConfig:
    """How the members of one fit are built and trained; the same for all of them.

    Parameters
    ----------
    loss : Loss
        What is minimised.
    n_trees, depth, activation, bias
        Shape of each ensemble; `bias` adds a learned bias to each split.
    gamma, gamma_end, gamma_window
        Width of the soft band. With `gamma_end` it moves geometrically from `gamma` to `gamma_end` while training goes
        through `gamma_window`, a pair of shares of all steps, and is constant before and after.
    hold_at_reach : float, optional
        Gamma stays as it is once rows reach at most this share of the leaves on average.
    init_scale : float
        Split and leaf weights start uniform in plus or minus this; biases start at 0.
    max_features : float
        Share of the columns that each split may use, a random choice made once per split; at least one is kept. With
        an encoding, a column is all features that read the same base column.
    learning_rate, schedule, warmup
        Highest learning rate; "cosine" (linear warm-up over the share `warmup` of all steps, then a half cosine to 0)
        or "constant" (after the same warm-up).
    batch_size : int
        Largest number of rows per step. Batches of an epoch differ in size by one at most, so that no tiny batch is
        left over.
    max_epochs, patience, best_after
        Largest number of epochs; a member stops after `patience` epochs without a better validation loss (None: never).
        Epochs before `best_after` are never the best (useful when gamma is still being narrowed).
    l1 : float
        Decoupled L1 on split weights: after each update they move towards 0 by learning rate times `l1`, and stop there
        (a proximal step, so exact zeros occur; not scaled by Adam's denominator).
    l2 : float
        The paper's penalty on split weights: `l2 / 2 * ||w||^2` is part of the loss; its gradient passes through Adam.
    weight_decay : float
        Decoupled decay of leaf weights, as in AdamW.
    batch_norm : bool or "fixed"
        True: inputs are normalised by the statistics of each batch, with learned scale and shift. "fixed": by those of
        all training rows, with learned scale and shift. False: not at all. Either way the fitted statistics are exact
        over the training rows: batch normalisation stands first, so they need no moving average.
    optimizer : {"auto", "adam", "lazy_adam"}
        "adam" updates every row in each step, as torch.optim.Adam does. "lazy_adam" updates only the rows of splits and
        leaves that got a gradient; moments, penalties and decay of the others stand still. That is another algorithm,
        and a step costs what the batch reached. "auto" decides per tree and step: lazily when less than half of the
        tree's splits got a gradient.
    betas, epsilon
        Adam's.
    ema : float, optional
        Decay per step of the exponential average of all parameters (started without bias); validation and the result
        then use the averages.
    batch_norm_epsilon : float
        Added to variances.
    """

    loss: Loss
    n_trees: Count = _DEFAULT["n_trees"]
    depth: Depth = _DEFAULT["depth"]
    gamma: Positive = _DEFAULT["gamma"]
    gamma_end: Positive | None = _DEFAULT["gamma_end"]
    gamma_window: Annotated[tuple[float, float], Unchecked("two rising shares in [0, 1]")] = (0.0, 1.0)
    hold_at_reach: Share | None = None
    activation: Activation = _DEFAULT["activation"]
    bias: bool = True
    init_scale: Positive = 0.01
    max_features: Share = 1.0
    learning_rate: Positive = 0.004
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: Annotated[float, Number(0, 1, open_high=True)] = 0.1
    batch_size: Count = 64
    max_epochs: Count = 50
    patience: Count | None = 15
    best_after: Annotated[int, Integer(0)] = 0
    l1: Penalty = 0.0
    l2: Penalty = _DEFAULT["l2"]
    weight_decay: Penalty = 0.0
    batch_norm: bool | Literal["fixed"] = True
    optimizer: Optimizer = _DEFAULT["optimizer"]
    betas: Annotated[tuple[float, float], Unchecked("two numbers in [0, 1)")] = (0.9, 0.999)
    epsilon: Positive = 1e-8
    ema: Annotated[float, Number(0, 1, open_low=True, open_high=True)] | None = None
    batch_norm_epsilon: Positive = 1e-5

    def check(self) -> None:
        """Raise a ValueError that names the first setting that is out of range, if any is."""
        check_activation(self.activation)
        check_fields(self)
        self.loss.check()
        rules = {
            "gamma_window": ("two rising shares in [0, 1]", 0 <= self.gamma_window[0] <= self.gamma_window[1] <= 1),
            "betas": ("two numbers in [0, 1)", len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)),
        }
        for name, (words, holds) in rules.items():
            if not holds:
                raise ValueError(f"{name} must be {words}; got {getattr(self, name)!r}.")
