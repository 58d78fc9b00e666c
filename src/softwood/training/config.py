"""Settings of a fit: how the ensembles are built and trained, with their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from softwood.arguments import MAX_DEPTH, check_activation
from softwood.training.losses import Loss


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
    init_scale : float
        Split and leaf weights start uniform in plus or minus this; biases start at 0.
    max_features : float
        Share of the features that each split may use, a random choice made once per split. At least one is kept.
    learning_rate, schedule, warmup
        Highest learning rate; "cosine" (linear warm-up over the share `warmup` of all steps, then a half cosine to 0)
        or "constant" (after the same warm-up).
    batch_size : int
        Rows a step at most. Batches of an epoch differ in size by one at most, so that no tiny batch is left over.
    max_epochs, patience, best_after
        Epochs at most; a member stops after `patience` epochs without a better validation loss (None: never). Epochs
        before `best_after` are never the best (useful when gamma is still being narrowed).
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
    n_trees: int = 64
    depth: int = 4
    gamma: float = 1.0
    gamma_end: float | None = None
    gamma_window: tuple[float, float] = (0.0, 1.0)
    activation: Literal["smooth_step", "smoother_step", "logistic"] = "smooth_step"
    bias: bool = True
    init_scale: float = 0.01
    max_features: float = 1.0
    learning_rate: float = 0.004
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: float = 0.1
    batch_size: int = 64
    max_epochs: int = 50
    patience: int | None = 15
    best_after: int = 0
    l1: float = 0.0
    l2: float = 0.0
    weight_decay: float = 0.0
    batch_norm: bool | Literal["fixed"] = True
    optimizer: Literal["auto", "adam", "lazy_adam"] = "auto"
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    ema: float | None = None
    batch_norm_epsilon: float = 1e-5

    def check(self) -> None:
        """Raise a ValueError that names the first setting that is out of range, if any is."""
        self.loss.check()
        check_activation(self.activation)
        gamma_end = self.gamma if self.gamma_end is None else self.gamma_end
        rules = [
            ("n_trees", "at least 1", self.n_trees >= 1),
            ("depth", f"1 to {MAX_DEPTH}", 1 <= self.depth <= MAX_DEPTH),
            ("gamma", "positive", self.gamma > 0),
            ("gamma_end", "positive or None", gamma_end > 0),
            ("gamma_window", "two rising shares in [0, 1]", 0 <= self.gamma_window[0] <= self.gamma_window[1] <= 1),
            ("init_scale", "positive", self.init_scale > 0),
            ("max_features", "in (0, 1]", 0 < self.max_features <= 1),
            ("learning_rate", "positive", self.learning_rate > 0),
            ("schedule", "'cosine' or 'constant'", self.schedule in ("cosine", "constant")),
            ("warmup", "in [0, 1)", 0 <= self.warmup < 1),
            ("batch_size", "at least 1", self.batch_size >= 1),
            ("max_epochs", "at least 1", self.max_epochs >= 1),
            ("patience", "at least 1 or None", self.patience is None or self.patience >= 1),
            ("l1", "at least 0", self.l1 >= 0),
            ("l2", "at least 0", self.l2 >= 0),
            ("weight_decay", "at least 0", self.weight_decay >= 0),
            ("batch_norm", "True, False or 'fixed'", self.batch_norm in (True, False, "fixed")),
            ("optimizer", "'auto', 'adam' or 'lazy_adam'", self.optimizer in ("auto", "adam", "lazy_adam")),
            ("betas", "two numbers in [0, 1)", all(0 <= beta < 1 for beta in self.betas) and len(self.betas) == 2),
            ("epsilon", "positive", self.epsilon > 0),
            ("ema", "in (0, 1) or None", self.ema is None or 0 < self.ema < 1),
            ("batch_norm_epsilon", "positive", self.batch_norm_epsilon > 0),
        ]
        for name, requirement, holds in rules:
            if not holds:
                raise ValueError(f"{name} must be {requirement}; got {getattr(self, name)!r}.")
