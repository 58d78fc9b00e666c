"""One ensemble of lookup trees in training, with the protocol of `softwood.training.state.MemberState`.

Comes in: a configuration and rows of cells. Goes out: trees in linear form, which the rest of the library reads: the
weight of a ramp is the difference of a table's values at its two knots, the weight of a flag that of an entry and of
an unseen one. Blocks, lanes and tables are explained in core/include/softwood/lookup.h.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from softwood import _core
from softwood.arguments import FloatArray
from softwood.model.parts import Trees
from softwood.ops import get_num_threads
from softwood.tabular.lookups import Lookups
from softwood.training.samples import MemberData, Samples
from softwood.training.state import MemberState, native_labels, native_settings, with_moments

_LANES, _LEVELS = 16, 4
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

    def _initial_arrays(self, member: MemberData, n_outputs: int) -> dict[str, Any]:
        config, shape, random = self.config, self.shape, np.random.default_rng(member.seed)
        q = len(self.lookups.columns)
        n_allowed = max(1, round(config.max_features * q))
        n_block_columns = min(q, _COLUMNS_PER_SPLIT_COLUMN * n_allowed)
        keys = random.random((shape.n_blocks, q), dtype=np.float32)
        chosen = np.sort(np.argpartition(keys, n_block_columns - 1, axis=1)[:, :n_block_columns], axis=1)
        keys = random.random((shape.n_blocks, n_block_columns, _LANES), dtype=np.float32)
        allowed = np.zeros(keys.shape, dtype=bool)
        np.put_along_axis(allowed, np.argpartition(keys, n_allowed - 1, axis=1)[:, :n_allowed], True, axis=1)
        sizes = np.array([column.n_parameters for column in self.lookups.columns])[chosen]
        mask = np.repeat(allowed.reshape(-1, _LANES), sizes.ravel(), axis=0)

        def uniform(*dimensions: int) -> FloatArray:
            return random.uniform(-config.init_scale, config.init_scale, dimensions).astype(np.float32)

        parameters = {
            "table": np.where(mask, uniform(*mask.shape), np.float32(0)),
            "split_bias": np.zeros((shape.n_blocks, _LANES), dtype=np.float32),
            "leaf_weight": uniform(shape.n_leaf_blocks, n_outputs, _LANES),
        }
        signs = np.array([column.monotone_sign for column in self.lookups.columns])[chosen]
        if signs.any():
            _start_monotone(parameters, np.repeat(signs.ravel(), sizes.ravel()), shape)
        arrays = {name: aligned_copy(array) for name, array in with_moments(parameters, config.ema).items()}
        arrays["table.second_moment"][~mask] = np.inf  # freezes them: see Parameter in the core
        if config.ema:
            steps = {"table_step": "table", "split_step": "split_bias", "leaf_step": "leaf_weight"}
            arrays |= {step: np.zeros(len(parameters[name]), np.int64) for step, name in steps.items()}
        offset = np.zeros(n_outputs) if member.offset is None else member.offset
        arrays["offset"] = np.array(offset, dtype=np.float32)
        arrays["block_columns"] = np.ascontiguousarray(chosen, dtype=np.int32)
        return arrays

    def trees(self, parameters: dict[str, FloatArray], gamma: float) -> Trees:
        """The trees in linear form."""
        values = self._values(parameters["table"])
        weight, bias, mask = self._linear_splits(values, parameters["split_bias"])
        node = self.shape.node_of_lane()
        m, n_splits, p = self.config.n_trees, 2**self.config.depth - 1, weight.shape[2]
        tree = np.repeat(np.arange(m), self.shape.n_blocks // m)
        used = node >= 0
        owner = np.broadcast_to(tree[:, None], node.shape)[used]
        split_weight = np.zeros((m, n_splits, p), dtype=np.float32)
        split_bias = np.zeros((m, n_splits), dtype=np.float32)
        feature_mask = np.zeros((m, n_splits, p), dtype=bool)
        split_weight[owner, node[used]] = weight[used]
        split_bias[owner, node[used]] = bias[used]
        feature_mask[owner, node[used]] = mask[used]
        return Trees(
            split_weight=split_weight,
            split_bias=split_bias,
            leaf_weight=self.shape.leaves(parameters["leaf_weight"]),
            offset=self.arrays["offset"],
            gamma=gamma,
            activation=self.config.activation,
            feature_mask=None if feature_mask.all() else feature_mask,
        )

    def _values(self, table: FloatArray) -> FloatArray:
        entries = np.array([column.n_entries for column in self.lookups.columns])
        values = np.empty((int(entries[self.arrays["block_columns"]].sum()), _LANES), dtype=np.float32)
        columns, block_columns = self.lookups.native_columns, self.arrays["block_columns"]
        _core.lookup_values(columns, block_columns, np.ascontiguousarray(table), values, get_num_threads())
        return values

    def _linear_splits(
        self, values: FloatArray, split_bias: FloatArray
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Weights [blocks, 16, p] and biases [blocks, 16] for the features of the encoding, and what may be trained."""
        lookups = self.lookups
        block_columns = self.arrays["block_columns"]
        _, owner = lookups.features_of
        place = lookups.feature_order
        features = [place[np.flatnonzero(np.array(owner) == c)] for c in range(len(lookups.columns))]
        free = ~np.isinf(self.arrays["table.second_moment"])
        weight = np.zeros((len(block_columns), _LANES, lookups.encoding.n_features))
        mask = np.zeros(weight.shape, dtype=bool)
        bias = split_bias.astype(np.float64)
        row = parameter = 0
        for block, columns in enumerate(block_columns):
            for c in columns:
                column = lookups.columns[c]
                part = values[row : row + column.n_entries].astype(np.float64)
                slopes, constant = _slopes(column, part)
                weight[block][:, features[c]] = slopes.T
                mask[block][:, features[c]] = free[parameter][:, None]
                bias[block] += constant
                row += column.n_entries
                parameter += column.n_parameters
        return weight, bias, mask


def _start_monotone(parameters: dict[str, FloatArray], row_signs: npt.NDArray[np.int64], shape: BlockShape) -> None:
    """Give weights of monotone columns the sign that they must have, and order leaves; see lookup_monotone.h."""
    signs = row_signs[:, None]
    table = parameters["table"]
    parameters["table"] = np.where(signs == 0, table, -signs * np.abs(table)).astype(np.float32)
    leaves = parameters["leaf_weight"]
    k = leaves.shape[1]
    by_tree = np.moveaxis(leaves.reshape(shape.n_trees, -1, k, _LANES), 2, 1).reshape(shape.n_trees, k, -1)
    ordered = np.sort(by_tree, axis=2).reshape(shape.n_trees, k, -1, _LANES)
    parameters["leaf_weight"] = np.moveaxis(ordered, 1, 2).reshape(leaves.shape)


def _slopes(column: Any, values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Weights [features of the column, 16] and constant [16] that give the values [n_entries, 16] of its entries."""
    if len(column.knots):
        n_ramps = len(column.knots) - 1
        slopes = np.diff(values[: n_ramps + 1], axis=0)
        if column.monotone_sign:  # rounding of the values must not turn one
            slopes = -column.monotone_sign * np.maximum(-column.monotone_sign * slopes, 0)
        constant = values[0] + column.ramp_mean[:n_ramps].astype(np.float64) @ slopes
        if column.level_scale[-1] > 0:
            slopes = np.vstack([slopes, values[-1] - constant])
        return slopes, constant
    codes = column.level_scale > 0
    slopes = values[codes] - values[-1]
    return slopes, values[-1] + column.level_mean[codes].astype(np.float64) @ slopes


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
                lanes = np.full(_LANES, -1)
                for level in range(n_levels):
                    first = (1 << level) - 1
                    heap = (1 << (depth + level)) - 1 + (position << level)
                    lanes[first : 2 * first + 1] = heap + np.arange(first + 1)
                of_tree.append(lanes)
        return np.tile(np.array(of_tree), (self.n_trees, 1))

    def leaves(self, leaf_weight: FloatArray) -> FloatArray:
        """Leaf weights [m, 2^d, k] of those of leaf blocks [m * leaf blocks, k, 16]."""
        n_levels = self.root_levels if len(self.depths) == 1 else _LEVELS
        kept = leaf_weight[:, :, :: 1 << (_LEVELS - n_levels)]
        k = leaf_weight.shape[1]
        return np.ascontiguousarray(np.moveaxis(kept, 1, 2).reshape(self.n_trees, 1 << self.depth, k))


def aligned(shape: tuple[int, ...]) -> FloatArray:
    """Zeros (float32) whose vectors of 16 lie in one line of the cache each, which makes training faster."""
    n = int(np.prod(shape))
    memory = np.zeros(n + _LANES, dtype=np.float32)
    first = -memory.ctypes.data % 64 // 4
    return memory[first : first + n].reshape(shape)


def aligned_copy(array: FloatArray) -> FloatArray:
    """A copy in memory as `aligned` gives it."""
    copy = aligned(array.shape)
    copy[...] = array
    return copy


def _native_samples(samples: Samples) -> dict[str, Any]:
    return {"cells": samples.x, **native_labels(samples, np.float32)}
