"""Checkpoints of a fit: everything that training needs to continue, in one safetensors file.

Input: the members between two epochs. Output: a file that is complete at any moment (written to a temporary file,
then renamed), and later the members as they were. A checkpoint belongs to one configuration and one set of tables;
others are refused. Models are saved by `model`, not here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from softwood.model.container import ModelFileError
from softwood.model.file_checks import is_whole, require
from softwood.model.whole_file import require_regular, write_whole
from softwood.training.checkpoint_checks import check_checkpoint
from softwood.training.samples import EpochRecord, MemberData, StreamedSamples
from softwood.training.state import MemberState

if TYPE_CHECKING:
    from softwood.training.config import TrainingConfig

_FORMAT = "softwood checkpoint"
_VERSION = 1


def write_checkpoint(
    path: str | os.PathLike[str],
    config: TrainingConfig,
    members: Sequence[MemberData],
    states: Sequence[MemberState],
    next_epoch: int,
    run_seed: int = 0,
) -> None:
    """Write the members' state so that a kill at any moment leaves the old or the new file whole."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    described = []
    for i, state in enumerate(states):
        arrays.update({f"{i}/{name}": array for name, array in state.arrays.items()})
        if state.best is not None:
            arrays.update({f"{i}/best/{name}": array for name, array in state.best.items()})
        described.append(
            {
                "schedule_step": state.native.schedule_step,
                "adam_step": state.native.adam_step,
                "best_epoch": state.best_epoch,
                "best_loss": float(state.best_loss),
                "best_gamma": state.best_gamma,
                "has_best": state.best is not None,
                "stopped_by": state.stopped_by,
                "history": [dataclasses.asdict(record) for record in state.history],
            }
        )
    metadata = {
        "next_epoch": next_epoch,
        "run_seed": run_seed,
        "run": _run_facts(config, members),
        "members": described,
    }
    write_state(path, arrays, metadata)


def write_state(path: str | os.PathLike[str], arrays: dict[str, npt.NDArray[Any]], metadata: dict[str, Any]) -> None:
    """Write arrays and their description; `metadata` has the facts of the run as "run" and its seed as "run_seed".

    A kill at any moment leaves the old or the new file whole.
    """
    from safetensors.numpy import save

    metadata = {"version": _VERSION, **metadata, "checksum": checksum(arrays)}
    write_whole(path, save(arrays, {"format": _FORMAT, "state": json.dumps(metadata)}))


def read_state(
    path: str | os.PathLike[str],
    run: dict[str, Any],
    check: Callable[[dict[str, Any], dict[str, npt.NDArray[Any]]], None],
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Arrays and metadata of a file that `write_state` wrote in the same run, and that `check` accepts.

    Raises
    ------
    softwood.model.ModelFileError
        If the file is damaged, of another run, or refused by `check`.
    """
    arrays, metadata = _read(path)
    _require_same_run(path, metadata["run"], run)
    try:
        require(metadata["checksum"] == checksum(arrays), "its checksum differs")
        check(metadata, arrays)
    except (ModelFileError, LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ModelFileError(
            f"checkpoint {os.fspath(path)} is damaged ({error}): remove it and start again."
        ) from error
    return arrays, metadata


def read_checkpoint(
    path: str | os.PathLike[str], config: TrainingConfig, members: Sequence[MemberData], states: Sequence[MemberState]
) -> int:
    """Put the members into the state that the file holds and return the epoch to continue with.

    Raises
    ------
    softwood.model.ModelFileError
        If the file is damaged, of another fit, or in a state that no fit could be in. The members are then unchanged.
    """
    arrays, metadata = read_state(
        path, _run_facts(config, members), lambda *found: check_checkpoint(config, states, *found)
    )
    for i, (state, described) in enumerate(zip(states, metadata["members"], strict=True)):
        for name, array in state.arrays.items():
            np.copyto(array, arrays[f"{i}/{name}"])
        if described["has_best"]:
            prefix = f"{i}/best/"
            state.best = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
        state.native.schedule_step = described["schedule_step"]
        state.native.adam_step = described["adam_step"]
        state.best_epoch = described["best_epoch"]
        state.best_loss = described["best_loss"]
        state.best_gamma = described["best_gamma"]
        state.stopped_by = described["stopped_by"]
        state.history = [EpochRecord(**record) for record in described["history"]]
        for record in state.history:
            state.hold_band(record)
    return int(metadata["next_epoch"])


def prepare_checkpoint(path: str | os.PathLike[str] | None, *, resume: bool) -> int | None:
    """Check before training that the file can be written, and return the seed of the run to resume, if there is one.

    A fit may have several checkpoints, the first of which has the suffix ".first".
    """
    if path is None:
        if resume:
            raise ValueError("resume=True needs the file to go on from; got checkpoint=None. Name it with checkpoint.")
        return None
    folder = os.path.dirname(os.path.realpath(path))
    try:
        if os.path.isdir(path):
            raise IsADirectoryError(f"it is a directory: {os.fspath(path)!r}")
        require_regular(os.path.realpath(path))
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"checkpoint must be a path that can be written to; {os.fspath(path)!r} cannot be ({error}). Choose "
            "another path, or make the directory first."
        ) from error
    for name in (os.fspath(path), os.fspath(path) + ".first") if resume else ():
        if os.path.exists(name):
            seed = _read(name)[1].get("run_seed", 0)
            require(is_whole(seed, 0, 2**32 - 1), f"checkpoint {name} is damaged (its seed is {seed!r}): remove it.")
            return int(seed)
    return None


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    name = os.fspath(path)
    try:
        with safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        metadata = json.loads(about["state"]) if about.get("format") == _FORMAT else None
    except (SafetensorError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"checkpoint {name} is damaged or not a checkpoint ({error}): remove it and start again."
        ) from error
    if about.get("format") != _FORMAT:
        raise ModelFileError(f"{name} must be a checkpoint; it is another safetensors file: choose another path.")
    version = metadata.get("version") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("run"), dict) or type(version) is not int:
        raise ModelFileError(f"checkpoint {name} is damaged (it describes no run): remove it and start again.")
    if version > _VERSION:
        raise ModelFileError(
            f"checkpoint {name} is of format version {version}, this softwood reads up to "
            f"{_VERSION}: resume with the version that wrote it."
        )
    return arrays, metadata


def _run_facts(config: TrainingConfig, members: Sequence[MemberData]) -> dict[str, Any]:
    """What must not differ between a run and its continuation."""
    facts = config_facts(config)
    facts["seeds"] = [member.seed for member in members]
    facts["changes"] = [dict(member.changes) for member in members]
    facts["metrics"] = [None if member.judge is None else member.judge.name for member in members]
    checksums: dict[int, int] = {}  # tables are often shared

    def checksum_of(array: Any) -> int | None:
        if array is None:
            return None
        if id(array) not in checksums:
            checksums[id(array)] = zlib.crc32(np.ascontiguousarray(array).data)
        return checksums[id(array)]

    for kind in ("train", "validation"):
        held = [getattr(member, kind) for member in members]
        for name in ("x", "y", "sample_weight", "rows", "offset"):
            facts[f"{kind} {name}"] = [
                None if samples is None else checksum_of(getattr(samples, name)) for samples in held
            ]
        if any(isinstance(samples, StreamedSamples) for samples in held):
            facts[f"{kind} source"] = [s.identity if isinstance(s, StreamedSamples) else None for s in held]
        facts[f"{kind} encoding"] = [
            None if samples is None or samples.encoding is None else checksum(samples.encoding.arrays())
            for samples in held
        ]
    return json.loads(json.dumps(facts))


def config_facts(config: TrainingConfig) -> dict[str, Any]:
    """All settings, for the comparison of a run with its continuation; a custom loss by its name."""
    facts = dataclasses.asdict(config)
    loss = facts.pop("loss")
    if callable(loss["name"]):
        loss["name"] = getattr(loss["name"], "__qualname__", "callable")
    facts.update({f"loss.{name}": value for name, value in loss.items()})
    return json.loads(json.dumps(facts))


def _require_same_run(path: str | os.PathLike[str], then: dict[str, Any], now: dict[str, Any]) -> None:
    for name in now:
        if then.get(name) != now[name]:
            data = name.startswith(("train ", "validation "))
            what = f"other {name}" if data else f"{name}={then.get(name)!r}, this fit has {name}={now[name]!r}"
            raise ModelFileError(
                f"checkpoint {os.fspath(path)} must be of the same fit; it was made with {what}: "
                "repeat that fit, or remove the file to start a new one."
            )


def checksum(arrays: dict[str, npt.NDArray[Any]]) -> int:
    """Changes with the contents and names of arrays."""
    total = 0
    for name in sorted(arrays):
        total = zlib.crc32(np.ascontiguousarray(arrays[name]).data, zlib.crc32(name.encode(), total))
    return total
