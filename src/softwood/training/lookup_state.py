"""One ensemble of lookup trees in training, with the protocol of `softwood.training.state.MemberState`.

Input: a configuration and rows of cells. Output: trees of lookups, as prediction reads them. Blocks, lanes and the
weights that tables are made of are explained in core/include/softwood/lookup.h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from softwood import _core
from softwood.arguments import FloatArray
from softwood.model.lookup_trees import LookupTrees, round_leaves, round_tables
from softwood.ops import get_num_threads
from softwood.tabular.encoding.lookups import Lookups
from softwood.training.samples import MemberData, Samples
from softwood.training.state import MemberState, native_labels, native_settings, with_moments

if TYPE_CHECKING:
    from softwood.training.config import TrainingConfig

LANES, _LEVELS = 16, 4
# Columns of a block for each column that one of its splits may use.
_COLUMNS_PER_SPLIT_COLUMN = 2


class LookupState(MemberState):
    """Arrays and counters of one member, and the compiled trainer that works on them in place."""

    TRAINED = ("table", "split_bias", "leaf_weight")

    def _make_native(self, member: MemberData, *, n_threads: int, accumulate: bool) -> Any:
        config = self.config
        lookups = member.train.encoding
        assert isinstance(lookups, Lookups)
        self.lookups = lookups
        train = _native_samples(member.train)
        n_targets = train["targets"].shape[1]
        self.shape = BlockShape(config.n_trees, config.depth)
        n_outputs = config.loss.outputs_for(n_targets)
        self.arrays = self._initial_arrays(member, n_outputs)
        validation = None
        if member.validation is not None:
            validation = _native_samples(member.validation) | self._scores_of(member.validation, n_outputs)
        settings = native_settings(config, member, n_targets)
        return _core.LookupMember(
            settings, lookups.native_columns, self.arrays, train, validation, config.loss.native_callable()
        )

    @classmethod
    def at_start(
        cls, config: TrainingConfig, lookups: Lookups, *, seed: int, offset: FloatArray | None, n_outputs: int
    ) -> LookupState:
        """A member that cannot be trained: `arrays` as they are before the first step, and `trees` of any others."""
        state = cls.__new__(cls)
        state.config, state.lookups, state.shape = config, lookups, BlockShape(config.n_trees, config.depth)
        state.arrays = state._random_arrays(seed, offset, n_outputs)
        return state

    def _initial_arrays(self, member: MemberData, n_outputs: int) -> dict[str, Any]:
        arrays = self._random_arrays(member.seed, member.offset, n_outputs)
        if member.start is not None:
            weights = member.start.weights
            assert weights is not None, "lookups go on from their weights only"
            assert member.start.trees.gamma == self.config.gamma
            for name, values in weights.items():
                for copy in (name, f"{name}.evaluated"):
                    if copy in arrays:
                        arrays[copy][...] = values
        return arrays

    def _random_arrays(self, seed: int, given_offset: FloatArray | None, n_outputs: int) -> dict[str, Any]:
        config, shape, random = self.config, self.shape, np.random.default_rng(seed)
        q = len(self.lookups.columns)
        n_allowed, n_block_columns = _columns_per_split_and_block(config, q)
        keys = random.random((shape.n_blocks, q), dtype=np.float32)
        chosen = np.sort(np.argpartition(keys, n_block_columns - 1, axis=1)[:, :n_block_columns], axis=1)
        keys = random.random((shape.n_blocks, n_block_columns, LANES), dtype=np.float32)
        allowed = np.zeros(keys.shape, dtype=bool)
        np.put_along_axis(allowed, np.argpartition(keys, n_allowed - 1, axis=1)[:, :n_allowed], True, axis=1)
        sizes = np.array([column.n_parameters for column in self.lookups.columns])[chosen]
        mask = np.repeat(allowed.reshape(-1, LANES), sizes.ravel(), axis=0)

        def uniform(*dimensions: int) -> FloatArray:
            return random.uniform(-config.init_scale, config.init_scale, dimensions).astype(np.float32)

        parameters = {
            "table": np.where(mask, uniform(*mask.shape), np.float32(0)),
            "split_bias": np.zeros((shape.n_blocks, LANES), dtype=np.float32),
            "leaf_weight": uniform(shape.n_leaf_blocks, n_outputs, LANES),
        }
        signs = np.array([column.monotone_sign for column in self.lookups.columns])[chosen]
        if signs.any():
            _start_monotone(parameters, np.repeat(signs.ravel(), sizes.ravel()), shape)
        arrays = {name: aligned_copy(array) for name, array in with_moments(parameters, config.ema).items()}
        arrays["table.second_moment"][~mask] = np.inf  # freezes them: see Parameter in the core
        if config.ema:
            steps = {"table_step": "table", "split_step": "split_bias", "leaf_step": "leaf_weight"}
            arrays |= {step: np.zeros(len(parameters[name]), np.int64) for step, name in steps.items()}
        offset = np.zeros(n_outputs) if given_offset is None else given_offset
        arrays["offset"] = np.array(offset, dtype=np.float32)
        arrays["block_columns"] = np.ascontiguousarray(chosen, dtype=np.int32)
        return arrays

    def trees(self, parameters: dict[str, FloatArray], gamma: float) -> LookupTrees:  # type: ignore[override]
        """The trees for prediction: tables of values instead of weights, and all numbers rounded."""
        tables, bias = self._tables(parameters)
        lookups = [column.lookup for column in self.lookups.columns]
        is_narrowed = self.config.hold_at_reach is not None
        arrays, step = round_tables(tables, bias.size, gamma, n_trees=self.config.n_trees, is_narrow=is_narrowed)
        trees = LookupTrees(
            **arrays,
            split_bias=(np.rint(bias.astype(np.float64) / step) * step).astype(np.float32),
            leaf_weight=round_leaves(self.shape.leaves(parameters["leaf_weight"])),
            offset=self.arrays["offset"],
            step=step,
            gamma=gamma,
            activation=self.config.activation,
            n_trainable=self.n_trainable,
        )
        return trees.without_idle_tables(lookups)

    @property
    def n_trainable(self) -> int:
        """Weights that steps may change."""
        sizes = np.array([column.n_parameters for column in self.lookups.columns])[self.arrays["block_columns"]]
        has_node = np.repeat(self.shape.node_of_lane() >= 0, sizes.sum(axis=1), axis=0)
        n_weights = int(np.sum(has_node & ~np.isinf(self.arrays["table.second_moment"])))
        n_leaves, n_outputs = 1 << self.config.depth, self.arrays["leaf_weight"].shape[1]
        return n_weights + self.config.n_trees * (n_leaves - 1 + n_leaves * n_outputs)

    def _tables(
        self, parameters: dict[str, FloatArray]
    ) -> tuple[list[tuple[int, int, FloatArray]], npt.NDArray[np.float32]]:
        """(split, column, values) of each table that may differ from zero, and biases [m, 2^d - 1]."""
        values = self._values(parameters["table"])
        node, n_splits = self.shape.node_of_lane(), 2**self.config.depth - 1
        tree = np.arange(len(node)) // (len(node) // self.config.n_trees)
        split = np.where(node >= 0, tree[:, None] * n_splits + node, -1)
        bias = np.zeros(self.config.n_trees * n_splits, dtype=np.float32)
        bias[split[split >= 0]] = parameters["split_bias"][split >= 0]
        tables = []
        row = 0
        for block, columns in enumerate(self.arrays["block_columns"].tolist()):
            for c in columns:
                column = self.lookups.columns[c]
                part = values[row : row + column.n_entries]
                if column.monotone_sign:  # rounding of the values must not turn a slope
                    hold = np.minimum if column.monotone_sign > 0 else np.maximum
                    n_knots = len(column.knots)
                    part = np.concatenate([hold.accumulate(part[:n_knots], axis=0), part[n_knots:]])
                for lane in np.flatnonzero(part.any(axis=0) & (split[block] >= 0)).tolist():
                    tables.append((int(split[block, lane]), c, part[:, lane]))
                row += len(part)
        return tables, bias.reshape(self.config.n_trees, n_splits)

    def _values(self, table: FloatArray) -> FloatArray:
        entries = np.array([column.n_entries for column in self.lookups.columns])
        values = np.empty((int(entries[self.arrays["block_columns"]].sum()), LANES), dtype=np.float32)
        columns, block_columns = self.lookups.native_columns, self.arrays["block_columns"]
        _core.lookup_values(columns, block_columns, np.ascontiguousarray(table), values, get_num_threads())
        return values


def weight_bytes(config: TrainingConfig, lookups: Lookups) -> int:
    """Memory of a member's table weights: these, what the optimiser keeps of them, and those of the best epoch."""
    q = len(lookups.columns)
    share = _columns_per_split_and_block(config, q)[1] / q  # of the columns, which blocks draw at random
    n_rows = BlockShape(config.n_trees, config.depth).n_blocks * share * sum(c.n_parameters for c in lookups.columns)
    n_arrays = len(with_moments({"table": np.zeros(0)}, config.ema)) + 1
    return int(4 * n_arrays * LANES * n_rows)


def _columns_per_split_and_block(config: TrainingConfig, n_columns: int) -> tuple[int, int]:
    n_allowed = max(1, round(config.max_features * n_columns))
    return n_allowed, min(n_columns, _COLUMNS_PER_SPLIT_COLUMN * n_allowed)


def _start_monotone(parameters: dict[str, FloatArray], row_signs: npt.NDArray[np.int64], shape: BlockShape) -> None:
    """Give weights of monotone columns the sign that they must have, and order leaves; see lookup_monotone.h."""
    signs = row_signs[:, None]
    table = parameters["table"]
    parameters["table"] = np.where(signs == 0, table, -signs * np.abs(table)).astype(np.float32)
    leaves = parameters["leaf_weight"]
    k = leaves.shape[1]
    by_tree = np.moveaxis(leaves.reshape(shape.n_trees, -1, k, LANES), 2, 1).reshape(shape.n_trees, k, -1)
    ordered = np.sort(by_tree, axis=2).reshape(shape.n_trees, k, -1, LANES)
    parameters["leaf_weight"] = np.moveaxis(ordered, 1, 2).reshape(leaves.shape)


class BlockShape:
    """How the blocks of trees of one depth lie in heap order; see LookupShape in the core."""

    def __init__(self, n_trees: int, depth: int) -> None:
        self.n_trees, self.depth = n_trees, depth
        self.root_levels = depth - _LEVELS * ((depth - 1) // _LEVELS)
        # Depth of the root of the blocks of each level of blocks.
        self.depths = [0, *range(self.root_levels, depth, _LEVELS)]

    @property
    def n_blocks(self) -> int:
        """Blocks of all trees."""
        return self.n_trees * sum(1 << depth for depth in self.depths)

    @property
    def n_leaf_blocks(self) -> int:
        """Blocks of all trees that hold leaves."""
        return self.n_trees << self.depths[-1]

    def node_of_lane(self) -> npt.NDArray[np.int64]:
        """Node, in heap order of its tree, of each lane [blocks of all trees, 16]; -1 for lanes without one."""
        of_tree = []
        for depth in self.depths:
            n_levels = self.root_levels if depth == 0 else _LEVELS
            for position in range(1 << depth):
                lanes = np.full(LANES, -1)
                for level in range(n_levels):
                    first = (1 << level) - 1
                    heap = (1 << (depth + level)) - 1 + (position << level)
                    lanes[first : 2 * first + 1] = heap + np.arange(first + 1)
                of_tree.append(lanes)
        return np.tile(np.array(of_tree), (self.n_trees, 1))

    def leaf_lanes(self) -> npt.NDArray[np.bool_]:
        """Which lanes [16] of leaf blocks are leaves."""
        n_levels = self.root_levels if len(self.depths) == 1 else _LEVELS
        return np.arange(LANES) % (1 << (_LEVELS - n_levels)) == 0

    def leaves(self, leaf_weight: FloatArray) -> FloatArray:
        """Leaf weights [m, 2^d, k] of those of leaf blocks [m * leaf blocks, k, 16]."""
        kept = leaf_weight[:, :, self.leaf_lanes()]
        k = leaf_weight.shape[1]
        return np.ascontiguousarray(np.moveaxis(kept, 1, 2).reshape(self.n_trees, 1 << self.depth, k))


def aligned(shape: tuple[int, ...]) -> FloatArray:
    """Zeros (float32) whose vectors of 16 lie in one line of the cache each, which makes training faster."""
    n = int(np.prod(shape))
    memory = np.zeros(n + LANES, dtype=np.float32)
    first = -memory.ctypes.data % 64 // 4
    return memory[first : first + n].reshape(shape)


def aligned_copy(array: FloatArray) -> FloatArray:
    """A copy in memory as `aligned` gives it."""
    copy = aligned(array.shape)
    copy[...] = array
    return copy


def _native_samples(samples: Samples) -> dict[str, Any]:
    return {"cells": samples.x, **native_labels(samples, np.float32)}
