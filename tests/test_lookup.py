"""Trees of lookups in the core against the dense oracle in float64 (lookup_reference.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from lookup_reference import LANES, Column, Forest, decode, native_columns

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


@pytest.mark.parametrize("depth", range(1, 10))
def test_forward_of_any_depth(depth):
    problem = Problem(depth=depth)
    expected = problem.forest.scores(problem.cells, problem.arrays)
    np.testing.assert_allclose(native_scores(problem), expected, atol=5e-6)


@pytest.mark.parametrize("activation", range(3))
@pytest.mark.parametrize("depth", [3, 6])
def test_forward_of_any_activation(activation, depth):
    problem = Problem(depth=depth, settings={"activation": activation, "gamma": 0.7, "gamma_end": 0.7})
    expected = problem.forest.scores(problem.cells, problem.arrays)
    np.testing.assert_allclose(native_scores(problem), expected, atol=5e-6)


def test_the_oracle_by_hand():
    """One split on one column: knots 0, 1 and a missing entry. t = b + w_ramp scale (f - mean) + w_lin linear."""
    column = Column(
        3,
        2,
        1,
        ramp_scale=np.array([2.0, 0, 0]),
        ramp_mean=np.array([0.25, 0, 0]),
        linear=np.array([-1.0, 1, 0]),
        level_scale=np.array([0, 0, 3.0]),
        level_mean=np.array([0, 0, 0.5]),
    )
    forest = Forest([column], 1, 1, np.array([[0]]), "smooth_step", 10.0)
    table = np.zeros((3, LANES))
    table[:, 0] = [0.1, 0.2, 0.4]  # ramp, linear, level of the missing cell
    bias = np.zeros((1, LANES))
    bias[0, 0] = 0.05
    cells = np.array([[0], [1], [2], [0 | 65535 << 16]], np.uint32)
    centre = 0.4 * 3 * 0.5
    low, high = -0.1 * 2 * 0.25 - 0.2 - centre, 0.1 * 2 * 0.75 + 0.2 - centre
    expected = 0.05 + np.array([low, high, 0.4 * 3 - centre, high])
    np.testing.assert_allclose(forest.split_values(cells, table, bias)[:, 0, 0], expected, rtol=1e-12)
    leaf = np.arange(32.0).reshape(1, 2, LANES)
    np.testing.assert_array_equal(forest.of_leaves(leaf)[0], [[0, 16], [8, 24]])  # a lower split always goes left


@pytest.mark.parametrize("depth", [1, 4, 5, 6, 9])
def test_gradients_of_the_oracle_by_finite_differences(depth):
    problem = Problem(depth=depth, n_trees=2, n_rows=6)
    arrays = problem.values() | {"offset": problem.arrays["offset"]}
    random = np.random.default_rng(5)
    grad_scores = random.normal(size=(6, problem.n_outputs))
    grads, _ = problem.forest.gradients(problem.cells, arrays, grad_scores)
    for name in ("table", "split_bias", "leaf_weight"):
        direction = random.normal(size=arrays[name].shape)
        ends = []
        for step in (1e-6, -1e-6):
            moved = arrays | {name: arrays[name] + step * direction}
            ends.append((problem.forest.scores(problem.cells, moved) * grad_scores).sum())
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx((grads[name] * direction).sum(), rel=1e-4, abs=1e-7)


def numpy_step(problem: Problem, rows: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """The trained arrays and their moments after the first step of Adam, in float64."""
    s = problem.settings
    before = problem.values()
    cells = problem.cells if rows is None else problem.cells[rows]
    targets = problem.targets if rows is None else problem.targets[rows]
    scores = problem.forest.scores(cells, problem.arrays)
    grads, grad_t = problem.forest.gradients(cells, problem.arrays, 2 * (scores - targets) / scores.size)
    untouched = untouched_lazy_rows(problem, cells, grad_t)
    result = {}
    for name, value in before.items():
        is_table = name == "table"
        grad = grads[name] + (s["l2"] * value if is_table else 0)
        first, second = (1 - s["beta1"]) * grad, (1 - s["beta2"]) * grad**2
        frozen = np.isinf(problem.arrays[f"{name}.second_moment"])
        second = np.where(frozen, np.inf, second)
        decay = s["split_weight_decay"] if is_table else s["weight_decay"] if name == "leaf_weight" else 0
        unbiased = np.sqrt(second / (1 - s["beta2"]))
        moved = value * (1 - s["learning_rate"] * decay)
        moved = moved - s["learning_rate"] * (first / (1 - s["beta1"])) / (unbiased + s["epsilon"])
        if is_table and s["l1"]:
            moved = np.sign(moved) * np.maximum(np.abs(moved) - s["learning_rate"] * s["l1"], 0)
        if is_table:
            moved[untouched], first[untouched], second[untouched] = value[untouched], 0, 0
        result |= {name: moved, f"{name}.first_moment": first, f"{name}.second_moment": second}
    return result


def untouched_lazy_rows(problem: Problem, cells: np.ndarray, grad_t: np.ndarray) -> np.ndarray:
    """Which rows of the table are levels of lazy columns that no sample with a gradient has; such rows stand still."""
    forest, (entry, _) = problem.forest, decode(cells)
    result = np.zeros(forest.row[-1], bool)
    for i, c in enumerate(problem.block_columns.ravel()):
        if problem.columns[c].lazy:
            has_gradient = np.any(grad_t[:, i // problem.block_columns.shape[1]], axis=1)
            levels = result[forest.row[i] : forest.row[i + 1]]
            levels[:] = True
            levels[entry[has_gradient, c]] = False
    return result


def check_step(problem: Problem, atol: float = 2e-6) -> None:
    expected = numpy_step(problem)
    run(problem.member())
    for name, value in expected.items():
        scale = 1e-6 + (np.abs(value[np.isfinite(value)]).max() if "moment" in name else 1)
        np.testing.assert_allclose(problem.arrays[name] / scale, value / scale, atol=atol * 10, err_msg=name)


@pytest.mark.parametrize("depth", range(1, 10))
def test_a_step_of_any_depth(depth):
    check_step(Problem(depth=depth))


@pytest.mark.parametrize("activation", range(3))
@pytest.mark.parametrize(("depth", "n_outputs"), [(4, 1), (7, 3)])
def test_a_step_of_any_activation(activation, depth, n_outputs):
    check_step(Problem(depth=depth, n_outputs=n_outputs, settings={"activation": activation, "gamma": 0.8}))


def test_penalties():
    check_step(
        Problem(depth=5, settings={"l1": 0.5, "l2": 0.1, "weight_decay": 3.0, "split_weight_decay": 5.0}), atol=5e-6
    )
