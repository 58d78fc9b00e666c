"""The sketch of a table in; everything that is learned before training, and the cells of its pieces, out.

Ranges, categories, classes and the head come from exact facts. Knots and scales are fitted to the sampled rows, by the
same code as for a table in memory, which samples as many rows. ::

    total = merge(sketch(piece_0, target), sketch(piece_1, target))
    outline = Outline.of(total, target, params)
    encoder = outline.learn(outline.level_sums(piece_0) + outline.level_sums(piece_1))
    rows = encoder.encode(piece_0)

`LevelSums` are sums of floating-point numbers: add those of pieces in a fixed order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.model.parts import Head
from softwood.tabular.encoding.base_columns import CalendarPart, Value
from softwood.tabular.encoding.codes import find_codes
from softwood.tabular.encoding.columns import Preprocessor, learn_from_facts
from softwood.tabular.encoding.features import LOOKUP
from softwood.tabular.encoding.lookups import Lookups
from softwood.tabular.encoding.monotone import monotone_signs
from softwood.tabular.encoding.target_means import TargetSums
from softwood.tabular.out_of_core.sketch import Piece, Sketch
from softwood.tabular.reading.table import Table, resolve_kinds
from softwood.tabular.target import Problem, TargetKind
from softwood.training.hyperparameters import resolve_auto
from softwood.training.rules import TableFacts


@dataclass(frozen=True, eq=False)
class LevelSums:
    """Sums of the targets by level, of each category with many levels."""

    by_column: Mapping[int, TargetSums] = field(default_factory=dict)

    def __add__(self, other: LevelSums) -> LevelSums:
        if not self.by_column or not other.by_column:
            return self if self.by_column else other
        return LevelSums({j: sums + other.by_column[j] for j, sums in self.by_column.items()})


@dataclass(frozen=True, eq=False)
class Outline:
    """What a sketch says about a table, except target means by level, which need a second pass over all rows.

    Attributes
    ----------
    target : TargetKind
        With the classes, and their weights by label.
    preprocessor : Preprocessor
        Without target means and lookups.
    problem : Problem
        That of the sampled rows.
    head : Head
    facts : TableFacts
    params : dict
        Hyperparameters without any "auto" that depends on the table.
    """

    sketch: Sketch
    target: TargetKind
    preprocessor: Preprocessor
    problem: Problem
    head: Head
    facts: TableFacts
    params: dict[str, Any]

    @classmethod
    def of(cls, sketch: Sketch, target: TargetKind, params: Mapping[str, Any]) -> Outline:
        """What the sketch of a whole table says, with the rules for "auto" of a table in memory."""
        target = _with_classes(target, sketch)
        sample = sketch.sample
        problem = target.problem(sample.y, len(sample.y), sample.weight).with_offset(sample.offset)
        preprocessor = learn_from_facts(sketch.facts, problem.n_target_columns)
        facts = problem.facts(sketch.n_rows, len(preprocessor.base_columns()))
        head = _head(problem, sketch)
        if params["max_reach"] == "auto":
            params = {**params, "max_reach": 1.0}
        elif params["max_reach"] != 1:
            raise ValueError(
                f"max_reach must be 1 or 'auto' for a table in files or shards; got {params['max_reach']!r}. Read the "
                "table into memory, or leave max_reach out."
            )
        return cls(sketch, target, preprocessor, problem, head, facts, resolve_auto(params, facts))

    def find_codes(self, table: Table) -> list[int]:
        """Numeric columns that are better read as categories, by the sampled rows; `table` tells which were declared.

        None where the caller wants numbers as they are.
        """
        params = self.params
        if params["recipe"] == "paper" or params["encoding"] != "auto" or params["monotonic_cst"] is not None:
            return []
        sample = self.sketch.sample.piece(self.sketch.facts).table
        rows = np.arange(sample.n_rows)
        return find_codes(sample, self.problem.target_columns(), rows, resolve_kinds(params["column_kinds"], table))

    @property
    def needs_level_sums(self) -> bool:
        """Whether there are categories with many levels."""
        return any(column.has_many_levels for column in self.preprocessor.columns)

    def level_sums(self, piece: Piece) -> LevelSums:
        """Sums of one piece; those of all pieces are added up in their order."""
        problem = self.target.problem(piece.y, piece.n_rows, piece.weight)
        codes = self.preprocessor.codes(self.preprocessor.read(piece.table))
        return LevelSums(self.preprocessor.target_sums(codes, problem.target_columns() - self._centre(), piece.fold))

    def _centre(self) -> NDArray[np.float64]:
        """About the mean of the targets [n_target_columns]."""
        if self.problem.task == "regression":
            return np.mean([sums.ends.mean(axis=0) for sums in self.sketch.sums], axis=0)
        shares = self.sketch.class_counts / self.sketch.n_rows
        return shares[1:] if self.problem.task == "binary" else shares

    def learn(self, sums: LevelSums | None = None, *, by_level: bool = False) -> Encoder:
        """Fit target means and lookups, which complete what turns rows of the table into cells.

        With `by_level` trees read categories with many levels level by level; levels that no sampled row has count as
        unseen.
        """
        crossed: dict[int, NDArray[np.float32]] = {}
        if self.needs_level_sums:
            assert sums is not None
            crossed = self.preprocessor.learn_target_means(sums.by_column, self._centre())
        piece = self.sketch.sample.piece(self.sketch.facts)
        base = _read(self.preprocessor, piece, crossed)
        signs = monotone_signs(self.params["monotonic_cst"], self.preprocessor, self.problem.task, (LOOKUP,))
        lookups = self.preprocessor.learn_encodings(
            base,
            names=(LOOKUP,),
            n_bins=self.params["n_bins"],
            rows=np.arange(piece.n_rows),
            weight=self.problem.weight,
            signs=signs,
            missing_shares=self._missing_shares(),
            by_level=by_level,
        )
        if lookups is None:
            raise ValueError("A table must have a column with two different values; all columns are constant.")
        has_weights = self.target.class_weight is not None or not all(sums.all_ones for sums in self.sketch.sums)
        mean_weight = float(self.problem.weight.mean()) if has_weights else None
        return Encoder(self.target, self.preprocessor, lookups, self.head, crossed, mean_weight, base)

    def _missing_shares(self) -> dict[int, float]:
        """Share of missing cells in the whole table, by number of base column."""
        weight = sum(sums.weight for sums in self.sketch.sums)
        missing = np.sum([sums.missing for sums in self.sketch.sums], axis=0) / weight
        columns = enumerate(self.preprocessor.base_columns())
        return {b: float(missing[c.column]) for b, c in columns if isinstance(c, (Value, CalendarPart))}


def _with_classes(target: TargetKind, sketch: Sketch) -> TargetKind:
    """The target with its classes, and weights by label instead of "balanced"."""
    if sketch.classes is None:
        return target
    classes = replace(target, class_weight=None).problem(sketch.classes, len(sketch.classes)).classes  # two at least
    weights = target.class_weight
    if isinstance(weights, str) and weights == "balanced":
        balanced = sketch.n_rows / (len(sketch.classes) * sketch.class_counts)
        weights = dict(zip(sketch.classes.tolist(), balanced.tolist(), strict=True))
    return replace(target, classes=classes, class_weight=weights)


def _head(problem: Problem, sketch: Sketch) -> Head:
    """The head for all rows; mean and spread of a regression's targets are those of the ends of all pieces."""
    if problem.task != "regression":
        return Head(problem.task, problem.loss, problem.classes)
    ends = np.concatenate([sums.ends for sums in sketch.sums])
    weight = np.repeat([sums.weight / 2 for sums in sketch.sums], 2)
    return Problem(ends, weight, "regression", problem.loss).fit_head(np.arange(len(ends)), weight)


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """Rows as the trainer reads them: cells [n, q], targets [n, t], weights [n] or None, offsets [n, k] or None."""

    cells: NDArray[np.uint32]
    targets: NDArray[np.float32]
    weight: NDArray[np.float32] | None = None
    offset: NDArray[np.float32] | None = None


@dataclass(frozen=True, eq=False)
class Encoder:
    """Turns rows of the table into cells. Made by `Outline.learn`.

    Attributes
    ----------
    target, preprocessor, lookups, head
        All that was learned.
    crossed : dict of int to ndarray [folds, levels + 1, t]
        Target means that training rows read, by number of the column.
    mean_weight : float, optional
        Weights are divided by it; None if each row has the weight 1.
    base : ndarray [s, q]
        Base matrix of the sampled rows.
    """

    target: TargetKind
    preprocessor: Preprocessor
    lookups: Lookups
    head: Head
    crossed: Mapping[int, NDArray[np.float32]]
    mean_weight: float | None
    base: NDArray[np.float32]

    def encode(self, piece: Piece, *, n_threads: int | None = None) -> EncodedRows:
        """The rows of a piece of the training table."""
        return self._encoded(piece, _read(self.preprocessor, piece, self.crossed), n_threads)

    def encode_held_out(self, piece: Piece, *, n_threads: int | None = None) -> EncodedRows:
        """Rows that are not of the training table: they read target means of all training rows."""
        return self._encoded(piece, self.preprocessor.read(piece.table), n_threads)

    def _encoded(self, piece: Piece, base: NDArray[np.float32], n_threads: int | None) -> EncodedRows:
        problem = self.target.problem(piece.y, piece.n_rows, piece.weight).with_offset(piece.offset)
        targets = problem.scaled_y(self.head).reshape(piece.n_rows, -1)
        self.head.loss.check_targets(targets)
        offset = problem.score_offset(self.head)
        return EncodedRows(
            self.lookups.cells(base, n_threads=n_threads),
            targets.astype(np.float32),
            None if self.mean_weight is None else (problem.weight / self.mean_weight).astype(np.float32),
            None if offset is None else offset.astype(np.float32),
        )

    def checksum(self) -> str:
        """A hash of everything besides the rows that cells, targets, weights and offsets depend on."""
        data, arrays = self.preprocessor.to_plain()
        arrays = arrays | self.lookups.arrays()
        arrays |= {f"crossed.{j}": means for j, means in self.crossed.items()}
        for name in ("target_mean", "target_scale"):
            if getattr(self.head, name) is not None:
                arrays[name] = getattr(self.head, name)
        classes = None if self.target.classes is None else [str(label) for label in self.target.classes.tolist()]
        weights = {str(label): weight for label, weight in (self.target.class_weight or {}).items()}
        found = hashlib.sha256(json.dumps([data, classes, weights, self.mean_weight], sort_keys=True).encode())
        for name in sorted(arrays):
            found.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
        return found.hexdigest()


def _read(preprocessor: Preprocessor, piece: Piece, crossed: Mapping[int, NDArray[np.float32]]) -> NDArray[np.float32]:
    """Base matrix of training rows, with cross-fitted target means."""
    base = preprocessor.read(piece.table)
    if crossed:
        preprocessor.fill_target_means(base, preprocessor.codes(base), piece.fold, crossed)
    return base
