"""What a checkpoint may say: the state of a fit that this configuration could be in, or it is refused.

The members that a run starts with tell shapes, types and what training never changes. How far parameters may have
moved since follows from Adam: no step is longer than the learning rate times a constant of its two decay rates, and a
first moment is at most a multiple of the root of the second one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from softwood.arguments import check_gamma
from softwood.model.file_checks import check_texts, is_number, is_whole, require
from softwood.training.samples import VALIDATION_SCORES, EpochRecord, StopReason

if TYPE_CHECKING:
    from softwood.training.config import TrainingConfig
    from softwood.training.state import MemberState

# Arrays that training reads and never writes.
_CONSTANT = ("offset", "block_columns", "mean", "variance")
# Rounding in float32 lets parameters and moments pass their bounds by this factor, or by this much.
_SLACK_FACTOR, _SLACK = 1.1, 1e-15


def check_checkpoint(
    config: TrainingConfig,
    states: Sequence[MemberState],
    metadata: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Raise a ModelFileError if the members could not be in the state that the metadata and arrays describe."""
    check_texts(metadata)
    next_epoch, members = metadata["next_epoch"], metadata["members"]
    require(is_whole(next_epoch, 0, config.max_epochs), f"its next epoch is {next_epoch!r}")
    require(isinstance(members, list) and len(members) == len(states), "it has another number of members")
    for i, (state, described) in enumerate(zip(states, members, strict=True)):
        _check_counters(config, state, described, next_epoch)
        own = {name.removeprefix(f"{i}/"): a for name, a in arrays.items() if name.startswith(f"{i}/")}
        _check_arrays(config, state, described, own)
    owners = {f"{i}" for i in range(len(states))}
    require(all(name.partition("/")[0] in owners for name in arrays), "it has arrays of other members")


def _check_counters(config: TrainingConfig, state: MemberState, described: Any, next_epoch: int) -> None:
    require(is_whole(described["schedule_step"], 0, state.n_steps), "a member has made an impossible number of steps")
    first = state.native.adam_step
    require(
        is_whole(described["adam_step"], first, first + state.n_steps), "Adam has made an impossible number of steps"
    )
    require(is_whole(described["best_epoch"], -1, max(next_epoch - 1, -1)), "a best epoch has not been")
    require(isinstance(described["has_best"], bool), "has_best must be true or false")
    require(described["has_best"] == (described["best_epoch"] >= 0), "a best epoch has no parameters")
    require(
        type(described["best_loss"]) is float and not math.isnan(described["best_loss"]), "a best loss is no number"
    )
    require(type(described["best_gamma"]) in (int, float), "a best gamma is no number")
    check_gamma(described["best_gamma"], np.dtype(state.dtype if state.dtype == np.float64 else np.float32))
    reason = described["stopped_by"]
    require(reason is None or reason in get_args(StopReason), f"{reason!r} is no reason to stop")
    history = described["history"]
    require(isinstance(history, list) and len(history) <= config.max_epochs, "a history is too long")
    names = {f.name for f in dataclasses.fields(EpochRecord)}
    mappings = {f.name for f in dataclasses.fields(EpochRecord) if f.default_factory is not dataclasses.MISSING}
    for epoch, record in enumerate(history):
        require(isinstance(record, dict) and record.keys() == names, "a history has other columns")
        require(record["epoch"] == epoch, "the epochs of a history are out of order")
        require(type(record["epoch"]) is int and epoch < max(next_epoch, 1), "a history has epochs that have not been")
        require(all(_are_numbers(value) for value in record.values()), "a history holds what is no number")
        has_mappings = all(isinstance(value, dict) == (name in mappings) for name, value in record.items())
        require(has_mappings, "a history has metrics of a wrong type")


def _are_numbers(value: Any) -> bool:
    if isinstance(value, (dict, list)):
        return all(map(_are_numbers, value.values() if isinstance(value, dict) else value))
    return is_number(value)


def _check_arrays(
    config: TrainingConfig, state: MemberState, described: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    best = state.current()
    expected = dict(state.arrays)
    if described["has_best"]:
        expected |= {f"best/{name}": array for name, array in best.items()}
    require(arrays.keys() == expected.keys(), "it has other arrays than this fit")
    for name, array in arrays.items():
        now = expected[name]
        require(array.shape == now.shape and array.dtype == now.dtype, f"array {name} has another shape or type")
    scores = arrays.get(f"best/{VALIDATION_SCORES}")
    require(scores is None or bool(np.isfinite(scores).all()), "scores of validation rows are not finite")
    steps = described["adam_step"]
    for name in state.TRAINED:
        if name in arrays:
            _check_parameter(config, state.arrays, arrays, name, described["schedule_step"])
    for name, array in arrays.items():
        if name in _CONSTANT:
            require(np.array_equal(array, state.arrays[name]), f"array {name} has changed")
        elif name.endswith("_step"):
            require(bool(np.all(array >= 0) and np.all(array <= steps)), f"array {name} counts impossible steps")


def _check_parameter(
    config: TrainingConfig, start: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray], name: str, steps: int
) -> None:
    """A parameter, its averages and its best values lie within Adam's reach, and its moments fit each other."""
    beta1, beta2 = config.betas
    longest = max(1.0, (1 - beta1) / math.sqrt(1 - beta2)) * config.learning_rate
    reach = _SLACK_FACTOR * (float(np.abs(start[name]).max(initial=0)) + (steps + 1) * longest) + _SLACK
    for part in (name, f"{name}.average", f"{name}.evaluated", f"best/{name}"):
        if part in arrays:
            require(
                bool(np.all(np.abs(arrays[part]) <= reach)), f"array {part} lies outside of what training can reach"
            )
    first, second = arrays[f"{name}.first_moment"], arrays[f"{name}.second_moment"]
    frozen = np.isinf(start[f"{name}.second_moment"])
    require(bool(np.all(second >= 0)), f"second moments of {name} are negative or no numbers")
    require(bool(np.all(np.isinf(second[frozen]))), f"{name} is trained where it should be constant")
    require(bool(np.all(np.isfinite(first))), f"first moments of {name} are not finite")
    if beta1 * beta1 < beta2:
        ratio = (1 - beta1) / math.sqrt((1 - beta2) * (1 - beta1 * beta1 / beta2))
        with np.errstate(over="ignore"):
            most = _SLACK_FACTOR * ratio * np.sqrt(second.astype(np.float64)) + _SLACK
        require(bool(np.all(np.abs(first) <= most)), f"moments of {name} do not fit each other")
