"""Members of a model as independent tasks: their data in, the trained members out, bit-identical to a local fit.

The arrays go to every worker once, so that a task that was lost with its worker can run again on another one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from softwood.training import MemberData, Samples, TrainedMember, TrainingConfig, fit_members

_ARRAYS = ("x", "y", "sample_weight", "rows", "offset")


class MemberTasks:
    """`softwood.training.fit_members` with a task for each member; threads are those of a task."""

    def __init__(self, client: Any, n_threads: int = 1) -> None:
        self.client = client
        self.n_threads = n_threads

    def __call__(
        self,
        config: TrainingConfig,
        members: Sequence[MemberData],
        *,
        callback: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        n_threads: int | None = None,
        **options: Any,
    ) -> list[TrainedMember]:
        """Train the members, each on some worker. Checkpoints are written there, one file per member."""
        if getattr(callback, "functions", None):
            raise ValueError(
                "callbacks are called after each epoch, which members that train on workers cannot do; leave callbacks "
                "out, or use strategy='shards'."
            )
        arrays: dict[int, Any] = {}
        light = [
            replace(
                member,
                train=_without_arrays(member.train, arrays),
                validation=None if member.validation is None else _without_arrays(member.validation, arrays),
            )
            for member in members
        ]
        sent = self.client.scatter(list(arrays.values()), broadcast=True, hash=False)
        tables = dict(zip(arrays, sent, strict=True))
        paths = [None if checkpoint is None else f"{os.fspath(checkpoint)}.{i}" for i in range(len(light))]
        futures = [
            self.client.submit(
                _fit_one,
                config,
                member,
                tables,
                options | {"checkpoint": path, "n_threads": self.n_threads},
                pure=False,
            )
            for member, path in zip(light, paths, strict=True)
        ]
        try:
            return self.client.gather(futures)
        except BaseException:
            self.client.cancel(futures)
            raise


def _fit_one(
    config: TrainingConfig, member: MemberData, tables: dict[int, Any], options: dict[str, Any]
) -> TrainedMember:
    validation = None if member.validation is None else _with_arrays(member.validation, tables)
    member = replace(member, train=_with_arrays(member.train, tables), validation=validation)
    return fit_members(config, [member], **options)[0]


def _without_arrays(samples: Samples, arrays: dict[int, Any]) -> Samples:
    """The samples with a number in the place of each array, which is kept in `arrays`: many members share them."""
    named = {name: getattr(samples, name) for name in _ARRAYS if getattr(samples, name) is not None}
    arrays |= {id(array): array for array in named.values()}
    numbers: dict[str, Any] = {name: id(array) for name, array in named.items()}
    return replace(samples, **numbers)


def _with_arrays(samples: Samples, arrays: dict[int, Any]) -> Samples:
    named = {name: getattr(samples, name) for name in _ARRAYS if getattr(samples, name) is not None}
    found: dict[str, Any] = {name: arrays[number] for name, number in named.items()}
    return replace(samples, **found)
