"""Epochs over rows that are too many for memory: blocks of a cache in random order, a window of them at a time.

A block is a run of neighbouring rows, a window a few hundred blocks. An epoch goes through all blocks in an order that
follows from the seed and the epoch. The rows of each window are loaded, shuffled by the trainer, and trained on with
the state that the window before left. All members of a fit share the windows, so that an epoch reads the cache once;
each leaves out the rows of its own fold. Blocks and windows depend on the number of columns and rows alone: results do
not depend on the memory that a caller allows, nor on threads.

Input: a `StreamedSamples` per member. Output: what an epoch of `softwood.training.state.MemberState` gives. Files
are left to `row_cache`, epochs and early stopping to `loop`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood import _core
from softwood.tabular.encoding.lookups import Lookups
from softwood.tabular.out_of_core.files import mixed
from softwood.training.lookup_state import BlockShape, LookupState
from softwood.training.row_cache import RowBuffer, RowCache
from softwood.training.samples import MemberData, Samples, StreamedSamples
from softwood.training.state import MemberState, native_labels, native_settings

# Cells of a block: 256 KB, enough to be read at once from any disk. Cells of a window: 64 MB.
_BLOCK_CELLS, _WINDOW_CELLS = 1 << 16, 1 << 24
# Held-out rows of a member at most, and their cells.
_MAX_HELD_OUT_ROWS, _MAX_HELD_OUT_CELLS = 1 << 18, 1 << 23

Report = Callable[[str, int, int], None]


def window_bytes(n_rows: int, n_columns: int) -> int:
    """Memory of a window, with the order of its rows."""
    return min(n_rows, _WINDOW_CELLS // n_columns + 1) * (4 * n_columns + 40)


def n_held_out_rows(n_rows: int, n_columns: int) -> int:
    """Rows that a member holds out of a long table, at most."""
    return min(n_rows, _MAX_HELD_OUT_ROWS, max(1, _MAX_HELD_OUT_CELLS // n_columns))


class RowStream:
    """Windows of a cache, and the memory that they are read into.

    Parameters
    ----------
    cache : RowCache
    lookups : Lookups
        Those that made the cells.
    seed : int
        Decides folds and the order of blocks.
    report : callable, optional
        Told after each window what is done, how many rows are through, and of how many.
    """

    def __init__(self, cache: RowCache, lookups: Lookups, seed: int, report: Report | None = None) -> None:
        self.cache, self.lookups, self.seed, self.report = cache, lookups, seed, report
        q, n = cache.shape.n_columns, cache.n_rows
        self.block_rows = max(1, _BLOCK_CELLS // q)
        self.n_blocks = -(-n // self.block_rows)
        self.n_windows = -(-self.n_blocks // max(1, _WINDOW_CELLS // (self.block_rows * q)))
        self.window_rows = -(-self.n_blocks // self.n_windows) * self.block_rows
        self._buffer: RowBuffer | None = None

    @property
    def identity(self) -> str:
        """Changes with the rows and their order."""
        return f"{self.cache.identity} {self.seed}"

    def n_folds(self, fraction: float | None) -> int:
        """Number of folds, one of which a member holds out: by the share of rows, and fewer rows of long tables."""
        if fraction is None:
            return 0
        n = self.cache.n_rows
        return max(2, round(1 / fraction), -(-n // n_held_out_rows(n, self.cache.shape.n_columns)))

    def folds_of(self, numbers: NDArray[np.integer], n_folds: int) -> NDArray[np.int64]:
        """Fold of each row, by its number."""
        return (mixed(numbers, self.seed) % np.uint64(max(1, n_folds))).astype(np.int64)

    def samples(self, fold: int, n_folds: int, n_rows: int) -> StreamedSamples:
        """The rows of all folds but one."""
        shape = self.cache.shape
        return StreamedSamples(
            np.zeros((0, shape.n_columns), np.uint32),
            np.zeros((0, shape.n_targets), np.float32),
            encoding=self.lookups,
            source=self,
            fold=fold,
            n_folds=n_folds,
            n_streamed=n_rows,
        )

    def held_out(self, folds: Sequence[int], n_folds: int) -> dict[int, Samples]:
        """The rows of some folds, in memory."""
        found: dict[int, list[dict[str, Any]]] = {fold: [] for fold in folds}
        for buffer, numbers in self._windows(np.arange(self.n_blocks)):
            of_row = self.folds_of(numbers, n_folds)
            for fold, parts in found.items():
                rows = np.flatnonzero(of_row == fold)
                names = self.cache.shape.parts()
                parts.append({name: buffer.part(name)[rows] for name in names})
        samples = {}
        for fold, parts in found.items():
            joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            weight = joined.get("weight")
            samples[fold] = Samples(
                joined["cells"],
                joined["targets"],
                None if weight is None else weight[:, 0],
                encoding=self.lookups,
                offset=joined.get("offset"),
            )
        return samples

    def epoch(self, epoch: int) -> Iterator[tuple[RowBuffer, NDArray[np.int64]]]:
        """The windows of an epoch: rows, and their numbers."""
        return self._windows(np.random.default_rng([self.seed, epoch]).permutation(self.n_blocks))

    def _windows(self, order: NDArray[np.int64]) -> Iterator[tuple[RowBuffer, NDArray[np.int64]]]:
        if self._buffer is None:
            self._buffer = RowBuffer(self.cache.shape, self.window_rows)
        for blocks in np.array_split(order, self.n_windows):
            first = np.sort(blocks) * self.block_rows
            end = np.minimum(first + self.block_rows, self.cache.n_rows)
            yield self._buffer, self.cache.read(zip(first.tolist(), end.tolist(), strict=True), self._buffer)


class StreamState(LookupState):
    """A member whose training rows come in windows."""

    def _make_native(self, member: MemberData, *, n_threads: int, accumulate: bool) -> Any:
        samples = member.train
        assert isinstance(samples, StreamedSamples)
        assert isinstance(samples.encoding, Lookups)
        assert isinstance(samples.source, RowStream)
        self.lookups, self.samples, self.member, self.stream = samples.encoding, samples, member, samples.source
        self.shape = BlockShape(self.config.n_trees, self.config.depth)
        cache = self.stream.cache
        self.n_targets = cache.shape.n_targets
        n_outputs = self.config.loss.outputs_for(self.n_targets)
        self.arrays = self._initial_arrays(member, n_outputs)
        self._validation: dict[str, Any] | None = None
        if member.validation is not None:
            of_member = {"cells": member.validation.x, **native_labels(member.validation, np.float32)}
            self._validation = of_member | self._scores_of(member.validation, n_outputs)
        # A trainer on one row, for the counters and gamma before the first window.
        one = RowBuffer(cache.shape, 1)
        cache.read([(0, 1)], one)
        return self._native_on(one, np.zeros(1, np.int64), is_last=True)

    def turn_to(self, buffer: RowBuffer, numbers: NDArray[np.int64], *, is_last: bool) -> None:
        """Go on with the rows of another window; validation rows are scored after the last one of an epoch."""
        rows = np.arange(len(numbers))
        if self.samples.n_folds:
            rows = np.flatnonzero(self.stream.folds_of(numbers, self.samples.n_folds) != self.samples.fold)
        native = self._native_on(buffer, rows, is_last=is_last)
        native.adam_step, native.schedule_step = self.native.adam_step, self.native.schedule_step
        self.native = native

    def _native_on(self, buffer: RowBuffer, rows: NDArray[np.int64], *, is_last: bool) -> Any:
        weight = buffer.part("weight")
        train = {
            "cells": buffer.part("cells"),
            "targets": buffer.part("targets"),
            "weight": None if weight is None else weight[:, 0],
            "rows": rows,
            "offset": buffer.part("offset"),
        }
        settings = native_settings(self.config, self.member, self.n_targets)
        validation = self._validation if is_last else None
        custom = self.config.loss.native_callable()
        return _core.LookupMember(settings, self.lookups.native_columns, self.arrays, train, validation, custom)

    @staticmethod
    def run_epoch(
        states: Sequence[MemberState], epoch: int, seconds_left: float, n_threads: int
    ) -> list[tuple[Any, ...]]:
        """One epoch of each member, window by window."""
        streamed = [state for state in states if isinstance(state, StreamState)]
        assert len(streamed) == len(states)
        stream = streamed[0].stream
        totals = [_Total() for _ in streamed]
        started, done = time.monotonic(), 0
        what = f"epoch {epoch + 1}"
        if stream.report is not None:
            stream.report(what, 0, stream.cache.n_rows)
        for w, (buffer, numbers) in enumerate(stream.epoch(epoch)):
            for state in streamed:
                state.turn_to(buffer, numbers, is_last=w == stream.n_windows - 1)
            natives = [state.native for state in streamed]
            left = seconds_left - (time.monotonic() - started)
            outcomes = natives[0].run_epoch(natives, epoch * stream.n_windows + w, left, n_threads)
            for total, outcome in zip(totals, outcomes, strict=True):
                total.add(outcome)
            done += len(numbers)
            if stream.report is not None:
                stream.report(what, done, stream.cache.n_rows)
            if any(outcome[0] != 0 for outcome in outcomes):
                break
        seconds = time.monotonic() - started
        return [total.outcome(seconds) for total in totals]


class _Total:
    """What all windows of an epoch did; see EpochOutcome in the core."""

    def __init__(self) -> None:
        self.n_steps, self.loss = 0, 0.0
        self.last: tuple[Any, ...] = ()

    def add(self, outcome: tuple[Any, ...]) -> None:
        """Count one more window. Windows count by their steps, whose sizes differ by a row at most."""
        n_steps, loss = outcome[1:3]
        self.n_steps += n_steps
        self.loss += n_steps * loss if n_steps else 0.0
        self.last = outcome

    def outcome(self, seconds: float) -> tuple[Any, ...]:
        """The outcome of the epoch."""
        status, _, _, validation_loss, leaves, rate, gamma, _, metric = self.last
        loss = self.loss / self.n_steps if self.n_steps else float("nan")
        return status, self.n_steps, loss, validation_loss, leaves, rate, gamma, seconds, metric
