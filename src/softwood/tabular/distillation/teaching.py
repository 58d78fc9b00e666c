"""A lesson in, a student out: a small ensemble that has learned a model's scores.

Scores have no noise, so shallow trees of few, coarse tables suffice where training on labels would want many. While a
student learns, it loses the tables and leaf weights that matter least (`softwood.training.pruning`), as long as the
loss allows. Then its leaves are fitted once more, in closed form, and what is idle is taken out
(`softwood.model.simplify`). Which students are tried is left to `softwood.tabular.distillation.compress`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from softwood import reference
from softwood.model.lookup_trees import LookupTrees
from softwood.model.model import Model
from softwood.model.parts import ModelMember
from softwood.model.simplify import simplified
from softwood.ops import get_num_threads
from softwood.tabular.distillation.compression import stored_parameters
from softwood.tabular.distillation.lesson import Lesson, expected_loss, lesson_scores
from softwood.tabular.encoding.features import LOOKUP
from softwood.tabular.encoding.lookups import Lookup, Lookups, fit_lookups
from softwood.training import Loss, MemberData, Samples, TrainingConfig
from softwood.training.lookup_state import LookupState
from softwood.training.loop import NOT_FINITE, not_finite
from softwood.training.pruning import Pruner

# Columns that a split may use at the start: a share, and a number at least and at most.
_COLUMN_SHARE, _MIN_COLUMNS, _MAX_COLUMNS = 0.3, 3, 24
# Epochs, and those after which pruning begins and ends. It removes at most this share of the stored numbers per epoch,
# less the nearer the loss is to its limit, and is undone if that made the loss so many times as high and too high.
_EPOCHS, _FIRST_PRUNING, _LAST_PRUNING = 16, 2, 12
_PRUNED_SHARE, _UNDONE_RISE = 0.35, 2.0
# Where a student cannot keep to the limit, the limit is so many times its lowest loss so far.
_TOLERATED_RISE = 1.07
# Weight of the old leaves when new ones are fitted, relative to the mean probability of reaching a leaf; and rows.
_LEAF_RIDGE, _MAX_LEAF_ROWS = 1e-3, 10_000
_BLOCK_ROWS = 2048


@dataclass(frozen=True)
class StudentShape:
    """What a student starts from.

    Attributes
    ----------
    n_trees, depth : int
    gamma : float
        Width of its soft bands.
    n_bins : int
        Bins of a number.
    """

    n_trees: int
    depth: int = 2
    gamma: float = 0.4
    n_bins: int = 3

    def n_fixed(self, n_outputs: int) -> int:
        """Numbers other than those of tables, before pruning."""
        n_leaves = 1 << self.depth
        return self.n_trees * (n_leaves - 1 + n_leaves * n_outputs) + n_outputs


@dataclass(frozen=True, eq=False)
class Student:
    """One attempt.

    Attributes
    ----------
    model : Model
        The taught model.
    expected_loss : float
        On held-out rows; see `softwood.tabular.distillation.lesson.expected_loss`.
    stages : list of (int, float)
        Stored numbers and expected loss after each epoch of pruning.
    """

    model: Model
    expected_loss: float
    stages: list[tuple[int, float]] = field(default_factory=list)

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.model.members[0].trees.leaf_weight)

    @property
    def n_parameters(self) -> int:
        """Numbers that the model stores."""
        return stored_parameters(self.model)


def teach(
    model: Model,
    lesson: Lesson,
    shape: StudentShape,
    *,
    n_parameters: int,
    max_loss: float | None,
    seed: int,
    n_threads: int | None = None,
    signs: Mapping[int, int] | None = None,
    hopeless: float = np.inf,
) -> Student | None:
    """Train a student, which loses what it can do without.

    It is cut down to `n_parameters` stored numbers; with `max_loss` only as long as the expected loss stays below that,
    or near its lowest.
    None if the loss is `hopeless` when pruning could begin.
    """
    preprocessor = copy.copy(model.preprocessor)
    n = len(lesson.base)
    roles = preprocessor.roles(by_level=preprocessor.reads_levels)
    columns = fit_lookups(
        lesson.base, roles, n_bins=shape.n_bins, rows=np.arange(n), weight=np.ones(n), signs=signs,
        numbers_have_weights=False,
    )  # fmt: skip
    if columns is None:
        raise ValueError("compress needs a column of X with two values at least; got none.")
    preprocessor.use(columns)
    lookups = preprocessor.lookups
    pruning = _Pruning(n_parameters, max_loss, hopeless)
    state = _trained(model, lesson, shape, columns, pruning, seed=seed, n_threads=n_threads, leaves=not signs)
    if state is None:
        return None
    trees = simplified(state.trees(state.current(), state.native.gamma), lookups)
    if not signs:  # leaves of monotone trees are ordered
        trees = simplified(refit_leaves(trees, lookups, lesson.base, lesson.target), lookups)
    trees = replace(
        trees,
        leaf_weight=(trees.leaf_weight * lesson.scale).astype(np.float32),
        offset=(trees.offset * lesson.scale + lesson.centre).astype(np.float32),
    )
    members = [ModelMember(LOOKUP, trees)]
    taught = replace(model, preprocessor=preprocessor, members=members, importance_rows=lesson.importance_rows)
    scores = taught.predictor().base_scores(lesson.held_out_base, n_threads=n_threads)
    return Student(taught, expected_loss(model.head, lesson.held_out_scores, scores), pruning.stages)


def _trained(
    model: Model,
    lesson: Lesson,
    shape: StudentShape,
    columns: Lookups,
    pruning: _Pruning,
    *,
    seed: int,
    n_threads: int | None,
    leaves: bool,
) -> LookupState | None:
    """A state after training; None if that was given up."""
    config = TrainingConfig(
        Loss("squared_error"), n_trees=shape.n_trees, depth=shape.depth, gamma=shape.gamma, learning_rate=0.01,
        max_features=_max_features(columns.n_features), schedule="cosine", warmup=0.05, batch_size=256,
        max_epochs=_EPOCHS, patience=None, batch_norm=False,
    )  # fmt: skip
    config.check()
    held_out_target = (lesson_scores(model.head, lesson.held_out_scores) - lesson.centre) / lesson.scale
    train, held_out = (
        Samples(columns.cells(base, n_threads=n_threads), target, encoding=columns)
        for base, target in ((lesson.base, lesson.target), (lesson.held_out_base, held_out_target))
    )
    threads = n_threads or get_num_threads()
    state = LookupState(config, MemberData(train, held_out, seed=seed), n_threads=threads, accumulate=False)
    pruner = Pruner(state, leaves=leaves)
    for epoch in range(config.max_epochs):
        ((status, n_steps, *_),) = state.native.run_epoch([state.native], epoch, np.inf, threads)
        if status == NOT_FINITE:
            raise not_finite(config, 0, epoch, n_steps)
        assert state.validation_scores is not None
        scores = state.validation_scores * lesson.scale + lesson.centre
        if not pruning.after_epoch(epoch, pruner, expected_loss(model.head, lesson.held_out_scores, scores)):
            return None
    return state


def _max_features(n_columns: int) -> float:
    return min(1.0, max(_COLUMN_SHARE, _MIN_COLUMNS / n_columns), _MAX_COLUMNS / n_columns)


class _Pruning:
    """What is removed after each epoch."""

    def __init__(self, n_parameters: int, max_loss: float | None, hopeless: float) -> None:
        self.n_parameters, self.max_loss, self.hopeless = n_parameters, max_loss, hopeless
        self.stages: list[tuple[int, float]] = []
        self.n_at_first, self.best = 0, np.inf
        self.before: tuple[float, dict[str, NDArray[np.float32]]] | None = None
        self.is_over = False

    def after_epoch(self, epoch: int, pruner: Pruner, loss: float) -> bool:
        """Remove what may go; whether to go on."""
        if epoch < _FIRST_PRUNING or epoch > _LAST_PRUNING + 1:
            return True
        n = pruner.n_stored()
        self.stages.append((n, loss))
        if epoch == _FIRST_PRUNING and loss > self.hopeless:
            return False
        self.n_at_first, self.best = self.n_at_first or n, min(self.best, loss)
        if self.max_loss is not None:
            self._keep_to_loss(epoch, pruner, n, loss, max(self.max_loss, _TOLERATED_RISE * self.best))
            return True
        left = 1 - min(1.0, (epoch - _FIRST_PRUNING + 1) / (_LAST_PRUNING - _FIRST_PRUNING))
        pruner.remove(n - (self.n_parameters + max(0, self.n_at_first - self.n_parameters) * left**3))
        return True

    def _keep_to_loss(self, epoch: int, pruner: Pruner, n: int, loss: float, most: float) -> None:
        if self.before is not None and loss > max(most, _UNDONE_RISE * self.before[0]):
            pruner.restore(self.before[1])
            self.is_over = True
        self.before = None
        if not self.is_over and epoch <= _LAST_PRUNING and loss < most:
            self.before = loss, pruner.copy()
            pruner.remove(min(_PRUNED_SHARE * (1 - loss / most) ** 0.5 * n, n - self.n_parameters))


def refit_leaves(
    trees: LookupTrees, lookups: tuple[Lookup, ...], base: NDArray[np.float32], target: NDArray[np.float64]
) -> LookupTrees:
    """The same splits with the leaves that fit targets [n, k] best, by least squares; leaf weights of 0 stay 0."""
    m, n_leaves, k = trees.leaf_weight.shape
    base, target = base[:_MAX_LEAF_ROWS], target[:_MAX_LEAF_ROWS]
    product, moment = np.zeros((m * n_leaves, m * n_leaves)), np.zeros((m * n_leaves, k))
    for first in range(0, len(base), _BLOCK_ROWS):
        rows = slice(first, first + _BLOCK_ROWS)
        values = trees.split_values(lookups, base[rows]).astype(np.float64)
        routing = reference.route(values, trees.activation, trees.gamma)
        reach = reference.reach_probability(routing.left, routing.right)[:, :, n_leaves - 1 :].reshape(len(values), -1)
        product += reach.T @ reach
        moment += reach.T @ (target[rows] - trees.offset)
    old = trees.leaf_weight.reshape(m * n_leaves, k).astype(np.float64)
    ridge = _LEAF_RIDGE * float(np.trace(product)) / (m * n_leaves)
    new = np.zeros_like(old)
    for output in range(k):
        used = np.flatnonzero(old[:, output])
        system = product[np.ix_(used, used)] + ridge * np.eye(len(used))
        new[used, output] = np.linalg.solve(system, moment[used, output] + ridge * old[used, output])
    return replace(trees, leaf_weight=new.reshape(trees.leaf_weight.shape).astype(np.float32))
