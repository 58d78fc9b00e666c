"""A small table and a small ensemble to train on it, for the tests of the trainer."""

from __future__ import annotations

import dataclasses

import numpy as np

from softwood.model.parts import Trees
from softwood.training import Member, TrainingConfig, fit_members
from softwood.training.losses import Loss

CLASSES = Loss("cross_entropy", n_classes=3)


def table(n: int = 100, p: int = 5, seed: int = 0, dtype=np.float64) -> np.ndarray:
    return np.random.default_rng(seed).normal(2.0, 3.0, size=(n, p)).astype(dtype)


def labels(x: np.ndarray) -> np.ndarray:
    return (x[:, 0] > 2).astype(int) + (x[:, 1] * x[:, 2] > 4)


def small(loss: Loss = CLASSES, **changes) -> TrainingConfig:
    """50 steps of 20 rows; weights large enough that some nodes route hard and some rows get no gradient."""
    settings = dict(
        n_trees=3, depth=3, batch_size=20, max_epochs=10, learning_rate=0.05, init_scale=0.6, optimizer="adam"
    )
    return TrainingConfig(loss, **{**settings, **changes})


def parameters(trees: Trees) -> dict[str, np.ndarray]:
    arrays = {"split_weight": trees.split_weight, "leaf_weight": trees.leaf_weight, "split_bias": trees.split_bias}
    if trees.batch_norm is not None:
        arrays.update(scale=trees.batch_norm.scale, shift=trees.batch_norm.shift)
    return {name: array for name, array in arrays.items() if array is not None}


def start_of(config: TrainingConfig, member: Member) -> Trees:
    """The trees before the first step: those after one epoch at a learning rate of nearly nothing."""
    still = dataclasses.replace(config, max_epochs=1, learning_rate=1e-300, ema=None)
    return fit_members(still, [member])[0].trees
