"""Random trees of lookups with their oracle, for the tests of training and of prediction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lookup_reference import LANES, Column, Forest, native_columns
from softwood import _core

ACTIVATIONS = ["smooth_step", "smoother_step", "logistic"]
SQUARED_ERROR, CROSS_ENTROPY, CUSTOM = 2, 0, 9


def number(random: np.random.Generator, n_knots: int, n_levels: int = 0, missing: bool = True) -> Column:
    n = n_knots + missing
    rest = {"level_scale": random.uniform(0.5, 2, n), "level_mean": random.uniform(0, 0.5, n)} if n_levels else {}
    ramps = {"ramp_scale": random.uniform(0.5, 2, n), "ramp_mean": random.uniform(0, 1, n)}
    return Column(n, n_knots, n_levels, linear=random.normal(size=n), **ramps, **rest)


def category(random: np.random.Generator, n: int, lazy: bool = False) -> Column:
    scale = random.uniform(0.5, 2, n)
    scale[-1] = 0  # unseen in training
    return Column(n, 0, n, lazy, level_scale=scale, level_mean=random.uniform(0, 0.5, n))


def random_cells(random: np.random.Generator, columns: list[Column], n: int) -> np.ndarray:
    cells = np.empty((n, len(columns)), np.uint32)
    for c, column in enumerate(columns):
        entry = random.integers(column.n_entries, size=n)
        fraction = random.integers(2**16, size=n) * (random.random(n) < 0.8)
        cells[:, c] = entry | np.where(entry + 1 < column.n_knots, fraction, 0) << 16
    return cells


@dataclass
class Problem:
    """A member with random columns, rows and parameters, and its oracle."""

    depth: int = 4
    n_trees: int = 3
    n_outputs: int = 2
    n_rows: int = 40
    seed: int = 0
    spread: float = 0.3
    columns: list[Column] | None = None
    n_block_columns: int = 4
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        if self.columns is None:
            self.columns = [
                number(random, 5, n_levels=1),
                number(random, 4, n_levels=5),
                number(random, 2, missing=False),
                category(random, 3),
                category(random, 30, lazy=True),
                category(random, 20, lazy=True),
            ]
        self.settings = {
            **dict(n_trees=self.n_trees, depth=self.depth, activation=0, batch_size=10**6, seed=1, learning_rate=0.01),
            **dict(gamma=1.0, gamma_end=1.0, anneal_begin=0.0, anneal_end=1.0, warmup=0.0, cosine=False, n_steps=100),
            **dict(updates=0, beta1=0.9, beta2=0.99, epsilon=0.01, l1=0.0, l2=0.0, weight_decay=0.0),
            **dict(split_weight_decay=0.0, average_decay=0.0, loss=SQUARED_ERROR, n_outputs=self.n_outputs),
            **dict(n_targets=self.n_outputs, label_smoothing=0.0, delta=1.0, power=1.5, quantiles=[]),
        } | self.settings
        n_blocks = self.n_trees * Forest(self.columns, 1, self.depth, np.zeros((0, 1), int), "", 1).places.n_blocks
        keys = random.random((n_blocks, len(self.columns)))
        self.block_columns = np.argsort(keys, axis=1)[:, : self.n_block_columns].astype(np.int32)
        self.forest = Forest(
            self.columns,
            self.n_trees,
            self.depth,
            self.block_columns,
            ACTIVATIONS[self.settings["activation"]],
            self.settings["gamma"],
        )
        self.cells = random_cells(random, self.columns, self.n_rows)
        self.targets = random.normal(size=(self.n_rows, self.settings["n_targets"])).astype(np.float32)
        shapes = {
            "table": (self.forest.row[-1], LANES),
            "split_bias": (n_blocks, LANES),
            "leaf_weight": (self.n_trees * self.forest.places.n_leaf_blocks, self.n_outputs, LANES),
        }
        self.arrays: dict[str, np.ndarray] = {
            name: random.normal(scale=self.spread, size=shape).astype(np.float32) for name, shape in shapes.items()
        }
        self.arrays["offset"] = random.normal(size=self.n_outputs).astype(np.float32)
        for name, shape in shapes.items():
            for part in ("first_moment", "second_moment"):
                self.arrays[f"{name}.{part}"] = np.zeros(shape, np.float32)
            if self.settings["average_decay"]:
                self.arrays[f"{name}.average"] = np.zeros(shape, np.float32)
                self.arrays[f"{name}.evaluated"] = self.arrays[name].copy()
                step = {"table": "table_step", "split_bias": "split_step", "leaf_weight": "leaf_step"}[name]
                self.arrays[step] = np.zeros(shape[0], np.int64)
        self.arrays["block_columns"] = self.block_columns

    def samples(self, rows: np.ndarray | None = None, weight: np.ndarray | None = None, **more: Any) -> dict[str, Any]:
        return {"cells": self.cells, "targets": self.targets, "weight": weight, "rows": rows, **more}

    def member(self, train: Any = None, validation: Any = None, custom_loss: Any = None) -> Any:
        columns = native_columns(self.columns)
        train = self.samples() if train is None else train
        return _core.LookupMember(self.settings, columns, self.arrays, train, validation, custom_loss)

    def values(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(self.arrays[name], np.float64) for name in ("table", "split_bias", "leaf_weight")}

    def loss_gradient(self, scores: np.ndarray) -> np.ndarray:
        return 2 * (scores - self.targets) / scores.size


def run(member: Any, epoch: int = 0, n_threads: int = 1) -> Any:
    return member.run_epoch([member], epoch, np.inf, n_threads)[0]


def native_scores(problem: Problem, n_threads: int = 1) -> np.ndarray:
    """Scores of all rows by the present parameters: a step of length 0, then validation."""
    settings, problem.settings = problem.settings, problem.settings | {"learning_rate": 0.0}
    scores = np.full((problem.n_rows, problem.n_outputs), np.nan, np.float32)
    run(problem.member(validation=problem.samples(scores=scores)), n_threads=n_threads)
    problem.settings = settings
    return scores
