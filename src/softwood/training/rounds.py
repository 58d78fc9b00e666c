"""One model over rows in shards, trained in rounds: local steps on each shard, then an average over shards.

Input: the common state and the rows of one shard. Output: the state after the shard's own steps; `pool` and `advance`
make the next common state from those of all shards. Parameters and the moments of Adam are averaged in float64, in the
order of the shards. Every function here is pure: its result depends on its arguments alone, so a lost result can be
computed again anywhere, with the same bits.

Where these functions run is left to the caller: `softwood.dask` sends them to workers.

The method is local SGD with Adam (Stich, 2019; Douillard et al., 2023) with shared moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.arguments import FloatArray
from softwood.model.lookup_trees import LookupTrees
from softwood.tabular.encoding.lookups import Lookups
from softwood.training.config import TrainingConfig
from softwood.training.lookup_state import LookupState, aligned, aligned_copy
from softwood.training.loop import NOT_FINITE, not_finite
from softwood.training.samples import MemberData, Samples

_MOMENTS = ("first_moment", "second_moment")
# Numbers that `pool` averages at a time: they stay in the cache.
_POOLED_AT_ONCE = 1 << 14


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """What all rounds of one member have in common.

    Attributes
    ----------
    config : TrainingConfig
        Of the steps on a shard: its batch size and learning rate. Averages over steps (`ema`) are not taken there, but
        over rounds: see `average_decay`.
    lookups : Lookups
    seed : int
    offset : ndarray [k], optional
        As in `MemberData`.
    n_outputs : int
    n_rounds : int
        Rounds of an epoch.
    n_round_steps : int
        Steps of a shard of mean size in one round.
    average_decay : float
        Decay per round of the average of parameters that is evaluated.
    """

    config: TrainingConfig
    lookups: Lookups
    seed: int
    offset: FloatArray | None
    n_outputs: int
    n_rounds: int
    n_round_steps: int
    average_decay: float

    @property
    def n_steps(self) -> int:
        """Steps of a shard in the whole fit."""
        return self.n_round_steps * self.n_rounds * self.config.max_epochs


@dataclass(frozen=True, eq=False)
class CommonState:
    """Parameters between two rounds; only the weights that training may change.

    Attributes
    ----------
    arrays : dict of str to ndarray
        Parameters and moments. Weights of tables that no split may use are left out.
    constant : dict of str to ndarray
        What training does not change: which weights are trained (packed bits), columns of blocks, offset.
    n_rounds : int
        Rounds that led here.
    told : tuple of float
        Of the last round: mean loss, mean number of reachable leaves, and seconds of work of all shards.
    """

    arrays: dict[str, FloatArray]
    constant: dict[str, NDArray[Any]]
    n_rounds: int = 0
    told: tuple[float, float, float] = (np.nan, np.nan, 0.0)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in (*self.arrays.values(), *self.constant.values()))


@dataclass(frozen=True, eq=False)
class ShardResult:
    """Result of the steps on one shard: parameters and moments, their weight in the average, and the time taken."""

    arrays: dict[str, FloatArray]
    weight: float
    train_loss: float
    mean_reachable_leaves: float
    seconds: float

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


def initial_state(plan: RoundPlan) -> CommonState:
    """The state before the first round."""
    arrays = _at_start(plan).arrays
    trained = np.isfinite(arrays["table.second_moment"])
    packed = {
        part: np.array(arrays[part][trained] if name == "table" else arrays[part])
        for name in LookupState.TRAINED
        for part in (name, *(f"{name}.{moment}" for moment in _MOMENTS))
    }
    constant = {"block_columns": arrays["block_columns"], "offset": arrays["offset"], "trained": np.packbits(trained)}
    return CommonState(packed, constant)


def run_round(plan: RoundPlan, state: CommonState, rows: Samples, shard: int, *, n_threads: int = 1) -> ShardResult:
    """Make the steps of one round on the rows of one shard; the state gives the number of the round.

    Raises
    ------
    FloatingPointError
        If the loss is not finite.
    """
    started = perf_counter()
    epoch, part = divmod(state.n_rounds, plan.n_rounds)
    piece = _piece(rows, plan, shard, epoch, part)
    seed = int(np.random.SeedSequence([plan.seed, shard, state.n_rounds]).generate_state(1, np.uint64)[0]) >> 1
    data = MemberData(replace(rows, rows=piece), seed=seed, offset=plan.offset, n_steps=plan.n_steps)
    member = _ShardState(plan, state, data, n_threads)
    ((status, steps, train_loss, _, leaves, *_),) = member.native.run_epoch([member.native], 0, np.inf, n_threads)
    if status == NOT_FINITE:
        raise not_finite(member.config, shard, epoch, steps)
    weight = len(piece) if rows.sample_weight is None else float(rows.sample_weight[piece].sum())
    return ShardResult(member.packed(), weight, train_loss, leaves, perf_counter() - started)


def pool(results: Sequence[ShardResult]) -> ShardResult:
    """The mean of some shards' results, in float64 and in their order, which stands for all of them."""
    total = sum(result.weight for result in results)
    arrays = {name: np.empty_like(array) for name, array in results[0].arrays.items()}
    for name, mean in arrays.items():
        given = [result.arrays[name].reshape(-1) for result in results]
        for first in range(0, mean.size, _POOLED_AT_ONCE):
            part = slice(first, first + _POOLED_AT_ONCE)
            some = np.zeros(len(given[0][part]), dtype=np.float64)
            for array, result in zip(given, results, strict=True):
                some += array[part] * (result.weight / total)
            mean.reshape(-1)[part] = some
    loss, leaves = (
        sum(getattr(result, name) * (result.weight / total) for result in results)
        for name in ("train_loss", "mean_reachable_leaves")
    )
    return ShardResult(arrays, total, loss, leaves, sum(result.seconds for result in results))


def advance(state: CommonState, results: Sequence[ShardResult]) -> CommonState:
    """The next common state: the mean of all shards' results."""
    pooled = pool(results)
    told = (pooled.train_loss, pooled.mean_reachable_leaves, pooled.seconds)
    return replace(state, arrays=pooled.arrays, n_rounds=state.n_rounds + 1, told=told)


def follow(plan: RoundPlan, averages: dict[str, FloatArray], state: CommonState) -> dict[str, FloatArray]:
    """Averages of the parameters over the rounds so far, which is what evaluation and prediction use."""
    share = (1 - plan.average_decay) / (1 - plan.average_decay**state.n_rounds)  # all weights add up to 1
    return {
        name: (state.arrays[name] * share + averages[name] * (1 - share) if averages else state.arrays[name]).astype(
            np.float32
        )
        for name in LookupState.TRAINED
    }


def evaluate(
    plan: RoundPlan, state: CommonState, averages: dict[str, FloatArray], rows: Samples, *, n_threads: int = 1
) -> NDArray[np.float32]:
    """Raw scores [n, k] of held-out rows."""
    data = MemberData(replace(rows, rows=rows.rows[:1] if rows.rows is not None else np.zeros(1, np.int64)), rows)
    shown = replace(state, arrays=state.arrays | averages)
    member = _ShardState(plan, shown, data, n_threads)
    member.native.evaluate(n_threads)
    assert member.validation_scores is not None
    return member.validation_scores


def trees_of(plan: RoundPlan, averages: dict[str, FloatArray], n_rounds: int) -> LookupTrees:
    """The trees for prediction."""
    start = _at_start(plan)
    trained = np.isfinite(start.arrays["table.second_moment"])
    table = np.zeros(trained.shape, dtype=np.float32)
    table[trained] = averages["table"]
    return start.trees(averages | {"table": table}, gamma_after(plan, n_rounds))


def gamma_after(plan: RoundPlan, n_rounds: int) -> float:
    """Gamma of the last step of `n_rounds` rounds; see `Schedule` in the core."""
    config = plan.config
    end = config.gamma if config.gamma_end is None else config.gamma_end
    begin, until = config.gamma_window
    progress = max(0, n_rounds * plan.n_round_steps - 1) / max(1, plan.n_steps - 1)
    share = min(1.0, max(0.0, (progress - begin) / max(1e-12, until - begin)))
    return end if share == 1 else config.gamma * (end / config.gamma) ** share


def _at_start(plan: RoundPlan) -> LookupState:
    return LookupState.at_start(plan.config, plan.lookups, seed=plan.seed, offset=plan.offset, n_outputs=plan.n_outputs)


def _piece(rows: Samples, plan: RoundPlan, shard: int, epoch: int, part: int) -> NDArray[np.int64]:
    """The rows of one round: each row of a shard is in one round of every epoch."""
    numbers = np.arange(len(rows.x)) if rows.rows is None else np.asarray(rows.rows, dtype=np.int64)
    order = np.random.default_rng([plan.seed, shard, epoch]).permutation(len(numbers))
    n = len(order)
    return numbers[np.sort(order[part * n // plan.n_rounds : (part + 1) * n // plan.n_rounds])]


class _ShardState(LookupState):
    """A member that continues from a common state."""

    def __init__(self, plan: RoundPlan, state: CommonState, data: MemberData, n_threads: int) -> None:
        self._common = state
        self._trained: NDArray[np.bool_]
        super().__init__(plan.config, data, n_threads=n_threads, accumulate=False)
        self.native.adam_step = self.native.schedule_step = state.n_rounds * plan.n_round_steps

    def _initial_arrays(self, member: MemberData, n_outputs: int) -> dict[str, Any]:
        common, constant = self._common.arrays, self._common.constant
        sizes = np.array([column.n_parameters for column in self.lookups.columns])[constant["block_columns"]]
        shape = (int(sizes.sum()), common["split_bias"].shape[1])
        self._trained = np.unpackbits(constant["trained"], count=shape[0] * shape[1]).astype(bool).reshape(shape)
        arrays: dict[str, Any] = {"block_columns": constant["block_columns"], "offset": constant["offset"]}
        for name, array in common.items():
            if name.split(".")[0] == "table":
                arrays[name] = aligned(shape)
                arrays[name][self._trained] = array
            else:
                arrays[name] = aligned_copy(array)
        arrays["table.second_moment"][~self._trained] = np.inf  # freezes them: see Parameter in the core
        return arrays

    def packed(self) -> dict[str, FloatArray]:
        """Parameters and moments as `CommonState` has them."""
        return {
            name: self.arrays[name][self._trained] if name.split(".")[0] == "table" else np.array(self.arrays[name])
            for name in self._common.arrays
        }
