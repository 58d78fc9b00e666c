"""Courses of members on shards to a file between two epochs, and back: what is left when the client is lost.

The file is that of `softwood.training.checkpoint`: written whole, refused if it is of another fit or damaged.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from softwood.arguments import FloatArray
from softwood.model.file_checks import check_texts, is_whole, require
from softwood.training.checkpoint import read_state, write_state
from softwood.training.lookup_state import LookupState
from softwood.training.rounds import CommonState, RoundPlan
from softwood.training.samples import EpochRecord, StopReason


@dataclass(eq=False)
class Course:
    """Where the rounds of one member stand between two epochs.

    Attributes
    ----------
    state : CommonState
    averages : dict of str to ndarray
        Averages of the parameters over rounds; empty before the first.
    best, best_rounds, best_epoch, best_loss
        Averages in the best epoch so far, the rounds and the epoch that they are from, and what decided.
    history : list of EpochRecord
    stopped_by : str, optional
        Why training has ended, if it has.
    """

    state: CommonState
    averages: dict[str, FloatArray] = field(default_factory=dict)
    best: dict[str, FloatArray] = field(default_factory=dict)
    best_rounds: int = 0
    best_epoch: int = -1
    best_loss: float = float("inf")
    history: list[EpochRecord] = field(default_factory=list)
    stopped_by: StopReason | None = None

    def keep_best(self, criterion: float) -> None:
        """Let the epoch that has just ended be the best."""
        self.best, self.best_rounds = self.averages, self.state.n_rounds
        self.best_epoch, self.best_loss = len(self.history) - 1, criterion


def write_courses(path: str | os.PathLike[str], run: dict[str, Any], courses: Sequence[Course], run_seed: int) -> None:
    """Write all courses; `run` has what must not differ in a continuation."""
    arrays: dict[str, NDArray[Any]] = {}
    described = []
    for i, course in enumerate(courses):
        if not course.history:
            break  # not begun
        parts = {"state": course.state.arrays, "average": course.averages, "best": course.best}
        arrays |= {f"{i}/{part}/{name}": array for part, some in parts.items() for name, array in some.items()}
        told = {name: getattr(course, name) for name in ("best_rounds", "best_epoch", "best_loss", "stopped_by")}
        if course.stopped_by == "time_limit":
            told["stopped_by"] = None  # a continuation has time again
        history = [asdict(record) for record in course.history]
        described.append(told | {"n_rounds": course.state.n_rounds, "history": history})
    write_state(path, arrays, {"run_seed": run_seed, "run": run, "members": described})


def read_courses(
    path: str | os.PathLike[str], run: dict[str, Any], plans: Sequence[RoundPlan], starts: Sequence[Course]
) -> list[Course]:
    """The courses of the members that had begun; `starts` are those before the first round.

    Raises
    ------
    softwood.model.ModelFileError
        If the file is damaged or of another fit.
    """

    def check(metadata: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        check_texts(metadata)
        members = metadata["members"]
        require(isinstance(members, list) and 0 < len(members) <= len(plans), "it has another number of members")
        for i, described in enumerate(members):
            own = {name.removeprefix(f"{i}/"): a for name, a in arrays.items() if name.startswith(f"{i}/")}
            _check(plans[i], starts[i], described, own)

    arrays, metadata = read_state(path, run, check)
    courses = []
    for i, (described, start) in enumerate(zip(metadata["members"], starts, strict=False)):
        parts = {part: _part(arrays, f"{i}/{part}/") for part in ("state", "average", "best")}
        state = replace(start.state, arrays=parts["state"], n_rounds=described["n_rounds"])
        told = {name: described[name] for name in ("best_rounds", "best_epoch", "best_loss", "stopped_by")}
        history = [EpochRecord(**record) for record in described["history"]]
        courses.append(Course(state, parts["average"], parts["best"], history=history, **told))
    return courses


def _part(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, FloatArray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _check(plan: RoundPlan, start: Course, described: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise an error if a member could not be in this state."""
    trained = {name: start.state.arrays[name] for name in LookupState.TRAINED}
    expected = {f"state/{name}": array for name, array in start.state.arrays.items()}
    expected |= {f"{part}/{name}": array for part in ("average", "best") for name, array in trained.items()}
    require(arrays.keys() <= expected.keys(), "it has other arrays than this fit")
    require({*expected} - {*arrays} <= {f"best/{name}" for name in trained}, "arrays are missing")
    for name, array in arrays.items():
        shape, dtype = expected[name].shape, expected[name].dtype
        require(array.shape == shape and array.dtype == dtype, f"array {name} has another shape or type")
        require(bool(np.isfinite(array).all()), f"array {name} is not finite")
        require(not name.endswith("second_moment") or bool((array >= 0).all()), f"array {name} is negative")
    history, reason = described["history"], described["stopped_by"]
    names = {f.name for f in fields(EpochRecord)}
    require(isinstance(history, list) and 0 < len(history) <= plan.config.max_epochs, "a history is too long")
    require(all(isinstance(r, dict) and r.keys() == names for r in history), "a history has other columns")
    require([r["epoch"] for r in history] == [*range(len(history))], "the epochs of a history are out of order")
    require(described["n_rounds"] == len(history) * plan.n_rounds, "it has made an impossible number of rounds")
    require(is_whole(described["best_epoch"], -1, len(history) - 1), "a best epoch has not been")
    require(described["best_rounds"] == (described["best_epoch"] + 1) * plan.n_rounds, "a best round has not been")
    require(type(described["best_loss"]) is float, "a best loss is no number")
    require(reason is None or reason in get_args(StopReason), f"{reason!r} is no reason to stop")
