"""One ensemble in training: its arrays, its compiled trainer, and the best parameters so far.

Input: a configuration and rows. Output: the state between two epochs, as arrays and a few numbers, which is what
checkpoints hold. When to stop is left to `loop`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from softwood import _core
from softwood.arguments import FloatArray, check_activation
from softwood.model.parts import BatchNorm, Trees
from softwood.tabular.encoding.features import Encoding
from softwood.training.samples import VALIDATION_SCORES, EpochRecord, MemberData, Samples, StopReason, TrainedMember

if TYPE_CHECKING:
    from softwood.training.config import TrainingConfig

_UPDATES = {"adam": 0, "lazy_adam": 1, "auto": 2}
_NORMALISATION = {False: 0, True: 1, "fixed": 2}
_MASK_VALUES = 2**20  # random numbers for feature masks that are held at once


class MemberState:
    """Arrays and counters of one member, and the compiled trainer that works on them in place."""

    TRAINED: tuple[str, ...] = ("split_weight", "split_bias", "leaf_weight", "scale", "shift")
    arrays: dict[str, Any]
    validation_scores: FloatArray | None = None  # raw scores [n, k] after the last epoch

    def __init__(self, config: TrainingConfig, member: MemberData, *, n_threads: int, accumulate: bool) -> None:
        self.config = config = replace(config, **member.changes)
        self.dtype = member.train.x.dtype
        self.best_epoch = -1
        self.best_loss = np.inf
        self.best: dict[str, FloatArray] | None = None
        self.best_gamma = config.gamma
        self.history: list[EpochRecord] = []
        self.stopped_by: StopReason | None = None

        self.n_steps = _n_steps(config, member)
        self.native: Any = self._make_native(member, n_threads=n_threads, accumulate=accumulate)
        if member.start is not None and member.start.optimizer_state is not None:
            self.native.adam_step = int(member.start.optimizer_state["adam_step"])

    def _make_native(self, member: MemberData, *, n_threads: int, accumulate: bool) -> Any:
        """Fill `arrays` and return the compiled trainer."""
        config = self.config
        train = _native_samples(member.train, self.dtype)
        n_targets, n_features = train["targets"].shape[1], member.train.n_features
        n_outputs = config.loss.outputs_for(n_targets)
        self.arrays = _initial_arrays(config, member, n_features, n_outputs)
        if config.batch_norm:
            self._set_statistics(member, train, member.train.n_rows, n_threads, accumulate)
        settings = native_settings(config, member, n_targets) | {"n_features": n_features}
        validation = None
        if member.validation is not None:
            validation = _native_samples(member.validation, self.dtype) | self._scores_of(member.validation, n_outputs)
        return _native_class(self.dtype)(settings, self.arrays, train, validation, config.loss.native_callable())

    def _set_statistics(
        self, member: MemberData, train: dict[str, Any], n_rows: int, n_threads: int, accumulate: bool
    ) -> None:
        """Exact mean and variance of the training rows, merged with those of earlier rows if `accumulate`."""
        p = member.train.n_features
        mean, variance = np.empty(p), np.empty(p)
        _native_class(self.dtype).column_statistics(train, mean, variance, n_threads)
        before = _linear(member.start).batch_norm if accumulate and member.start is not None else None
        if before is not None:
            share = n_rows / (n_rows + before.n_rows)
            gap = mean - before.mean
            variance = variance * share + before.variance * (1 - share) + gap * gap * share * (1 - share)
            mean = before.mean + gap * share
            n_rows += before.n_rows
        self.n_rows_seen = n_rows
        self.arrays["mean"] = mean.astype(self.dtype)
        self.arrays["variance"] = variance.astype(self.dtype)

    def _scores_of(self, validation: Samples, n_outputs: int) -> dict[str, FloatArray]:
        """Where the compiled trainer writes the scores of validation rows after each epoch."""
        dtype = self.dtype if self.dtype.kind == "f" else np.float32  # cells of lookups are integers
        self.validation_scores = np.zeros((validation.n_rows, n_outputs), dtype=dtype)
        return {"scores": self.validation_scores}

    @staticmethod
    def run_epoch(
        states: Sequence[MemberState], epoch: int, seconds_left: float, n_threads: int
    ) -> list[tuple[Any, ...]]:
        """One epoch of each member; what it did, as the compiled trainer tells it (EpochOutcome in the core)."""
        natives = [state.native for state in states]
        return natives[0].run_epoch(natives, epoch, seconds_left, n_threads)

    def current(self) -> dict[str, FloatArray]:
        """Copies of the parameters that evaluation uses, the last ones or their averages, and the scores it found."""
        names = [name for name in self.TRAINED if name in self.arrays]
        found = {name: self.arrays.get(f"{name}.evaluated", self.arrays[name]).copy() for name in names}
        return found if self.validation_scores is None else found | {VALIDATION_SCORES: self.validation_scores.copy()}

    def keep_best(self, epoch: int, loss: float) -> None:
        """Remember the current parameters. The assignment comes last: an interrupt leaves the old or the new ones."""
        best = self.current()
        self.best, self.best_epoch, self.best_loss, self.best_gamma = best, epoch, loss, self.native.gamma

    def hold_band(self, record: EpochRecord) -> None:
        """Narrow the soft bands no further if rows reached few enough leaves in an epoch."""
        most = self.config.hold_at_reach
        if most is not None and record.mean_reachable_leaves <= most * (1 << self.config.depth):
            self.native.hold_gamma(record.gamma)

    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of everything that a later fit needs to continue from the last step, parameters included."""
        state: dict[str, npt.NDArray[Any]] = {name: array.copy() for name, array in self.arrays.items()}
        state["adam_step"] = np.asarray(self.native.adam_step, dtype=np.int64)
        return state

    def trees(self, parameters: dict[str, FloatArray], gamma: float) -> Trees:
        """The trees of some parameters, the current ones or the best."""
        config, norm = self.config, None
        if config.batch_norm:
            norm = BatchNorm(
                mean=self.arrays["mean"],
                variance=self.arrays["variance"],
                scale=parameters["scale"],
                shift=parameters["shift"],
                epsilon=config.batch_norm_epsilon,
                n_rows=self.n_rows_seen,
            )
        frozen = np.isinf(self.arrays["split_weight.second_moment"])
        return Trees(
            split_weight=parameters["split_weight"],
            split_bias=parameters.get("split_bias"),
            leaf_weight=parameters["leaf_weight"],
            offset=self.arrays["offset"],
            gamma=gamma,
            activation=config.activation,
            batch_norm=norm,
            feature_mask=~frozen if frozen.any() else None,
        )


def _native_class(dtype: npt.DTypeLike) -> Any:
    return _core.TrainerFloat32 if dtype == np.float32 else _core.TrainerFloat64


def _native_samples(samples: Samples, dtype: npt.DTypeLike) -> dict[str, Any]:
    encoding = None if samples.encoding is None else samples.encoding.arrays()
    return {"x": samples.x, "encoding": encoding, **native_labels(samples, dtype)}


def native_labels(samples: Samples, dtype: npt.DTypeLike) -> dict[str, Any]:
    """Targets as floats in two dimensions, weights of mean 1, rows as int64."""
    y = np.asarray(samples.y)
    targets = np.ascontiguousarray(y.reshape(len(y), -1), dtype=dtype)
    rows = None if samples.rows is None else np.ascontiguousarray(samples.rows, dtype=np.int64)
    weight = None
    if samples.sample_weight is not None:
        weight = np.asarray(samples.sample_weight, dtype=np.float64)
        weight = np.ascontiguousarray(weight / weight[slice(None) if rows is None else rows].mean(), dtype=dtype)
    offset = None if samples.offset is None else np.ascontiguousarray(samples.offset, dtype=dtype)
    return {"targets": targets, "weight": weight, "rows": rows, "offset": offset}


def _n_steps(config: TrainingConfig, member: MemberData) -> int:
    if member.n_steps is not None:
        return member.n_steps
    return -(-member.train.n_rows // config.batch_size) * config.max_epochs


def native_settings(config: TrainingConfig, member: MemberData, n_targets: int) -> dict[str, Any]:
    """The configuration as compiled trainers take it."""
    return {
        **config.loss.native_settings(n_targets),
        "seed": member.seed,
        "n_trees": config.n_trees,
        "depth": config.depth,
        "activation": check_activation(config.activation),
        "normalisation": _NORMALISATION[config.batch_norm],
        "batch_norm_epsilon": config.batch_norm_epsilon,
        "batch_size": config.batch_size,
        "learning_rate": config.learning_rate,
        "gamma": config.gamma,
        "gamma_end": config.gamma if config.gamma_end is None else config.gamma_end,
        "anneal_begin": config.gamma_window[0],
        "anneal_end": config.gamma_window[1],
        "warmup": config.warmup,
        "cosine": config.schedule == "cosine",
        "n_steps": _n_steps(config, member),
        "updates": _UPDATES[config.optimizer],
        "beta1": config.betas[0],
        "beta2": config.betas[1],
        "epsilon": config.epsilon,
        "l1": config.l1,
        "l2": config.l2,
        "weight_decay": config.weight_decay,
        "average_decay": config.ema or 0.0,
    }


def with_moments(parameters: dict[str, Any], ema: float | None) -> dict[str, Any]:
    """The parameters, and the optimiser's arrays beside each of them."""
    arrays = dict(parameters)
    for name, array in parameters.items():
        arrays[f"{name}.first_moment"] = np.zeros_like(array)
        arrays[f"{name}.second_moment"] = np.zeros_like(array)
        if ema:
            arrays[f"{name}.average"] = np.zeros_like(array)
            arrays[f"{name}.evaluated"] = array.copy()
    return arrays


def _initial_arrays(config: TrainingConfig, member: MemberData, n_features: int, n_outputs: int) -> dict[str, Any]:
    """Parameters, random or those of `member.start`, and the optimiser's arrays beside each of them."""
    dtype = member.train.x.dtype
    start = member.start
    if start is not None and start.optimizer_state is not None:
        return {name: array.copy() for name, array in start.optimizer_state.items() if name != "adam_step"}
    if start is None:
        encoding = member.train.encoding
        columns = encoding.source if isinstance(encoding, Encoding) else np.arange(n_features)
        arrays, mask = _random_parameters(config, member.seed, columns, n_outputs, dtype)
    else:
        arrays, mask = _parameters_of(start, dtype, config.gamma), _linear(start).feature_mask
        if len(arrays["leaf_weight"]) < config.n_trees:
            arrays, mask = _with_further_trees(arrays, mask, config, member, n_features, n_outputs)
    offset = np.zeros(n_outputs) if member.offset is None else member.offset
    arrays = with_moments(arrays, config.ema)
    if mask is not None:
        arrays["split_weight.second_moment"][~mask] = np.inf  # freezes them: see Parameter in the core
    if config.ema:
        arrays["split_step"] = np.zeros(arrays["split_weight"].shape[:2], np.int64)
        arrays["leaf_step"] = np.zeros(arrays["leaf_weight"].shape[:2], np.int64)
    arrays["offset"] = np.array(offset, dtype=dtype)
    return arrays


def _random_parameters(
    config: TrainingConfig, seed: int, columns: npt.NDArray[np.integer[Any]], n_outputs: int, dtype: npt.DTypeLike
) -> tuple[dict[str, Any], npt.NDArray[np.bool_] | None]:
    """Parameters, and which features [m, 2^d - 1, p] splits may use: all or none of those that read the same column."""
    n_features = len(columns)
    random = np.random.default_rng(seed)
    n_splits = 2**config.depth - 1

    def uniform(*shape: int) -> FloatArray:
        return random.uniform(-config.init_scale, config.init_scale, shape).astype(dtype)

    arrays: dict[str, Any] = {
        "split_weight": uniform(config.n_trees, n_splits, n_features),
        "leaf_weight": uniform(config.n_trees, n_splits + 1, n_outputs),
    }
    if config.bias:
        arrays["split_bias"] = np.zeros((config.n_trees, n_splits), dtype)
    if config.batch_norm:
        arrays["scale"], arrays["shift"] = np.ones(n_features, dtype), np.zeros(n_features, dtype)
    _, column = np.unique(columns, return_inverse=True)
    n_columns = int(column.max()) + 1
    n_allowed = max(1, round(config.max_features * n_columns))
    if n_allowed == n_columns:
        return arrays, None
    mask = np.zeros((config.n_trees, n_splits, n_features), dtype=bool)
    n_at_once = max(1, _MASK_VALUES // (n_splits * n_features))
    for first in range(0, config.n_trees, n_at_once):
        part = mask[first : first + n_at_once]
        keys = random.random((*part.shape[:2], n_columns), dtype=np.float32)
        allowed = np.zeros(keys.shape, dtype=bool)
        np.put_along_axis(allowed, np.argpartition(keys, n_allowed - 1, axis=2)[:, :, :n_allowed], True, axis=2)
        part[:] = allowed[:, :, column]
    arrays["split_weight"][~mask] = 0
    return arrays, mask


def _with_further_trees(
    arrays: dict[str, Any],
    mask: npt.NDArray[np.bool_] | None,
    config: TrainingConfig,
    member: MemberData,
    n_features: int,
    n_outputs: int,
) -> tuple[dict[str, Any], npt.NDArray[np.bool_] | None]:
    """The trees, and random ones beside them up to `config.n_trees`, whose leaves are 0: scores stay what they are."""
    m = len(arrays["leaf_weight"])
    encoding = member.train.encoding
    columns = encoding.source if isinstance(encoding, Encoding) else np.arange(n_features)
    grown, new_mask = _random_parameters(config, member.seed, columns, n_outputs, arrays["leaf_weight"].dtype)
    grown["leaf_weight"][m:] = 0
    for name in ("split_weight", "split_bias", "leaf_weight"):
        if name in arrays and name in grown:
            grown[name][:m] = arrays[name]
    if mask is None and new_mask is None:
        return arrays | grown, None
    joined = np.ones(grown["split_weight"].shape, dtype=bool) if new_mask is None else new_mask
    joined[:m] = True if mask is None else mask
    return arrays | grown, joined


def _linear(start: TrainedMember) -> Trees:
    """The trees to continue from; lookups must be in linear form by now."""
    assert isinstance(start.trees, Trees)
    return start.trees


def _parameters_of(start: TrainedMember, dtype: npt.DTypeLike, gamma: float) -> dict[str, Any]:
    """Those that make the same trees with a soft band of width `gamma`, since only their ratio counts."""
    trees = _linear(start)
    ratio = gamma / trees.gamma
    bias = None if trees.split_bias is None else trees.split_bias * ratio
    arrays = {"split_weight": trees.split_weight * ratio, "split_bias": bias, "leaf_weight": trees.leaf_weight}
    if trees.batch_norm is not None:
        arrays.update(scale=trees.batch_norm.scale, shift=trees.batch_norm.shift)
    return {name: np.array(array, dtype=dtype, order="C") for name, array in arrays.items() if array is not None}
