"""Files of a table in, a fitted model out, in memory that does not grow with the files.

`prepare` goes over the files twice: the first pass sums up all columns (`softwood.tabular.out_of_core.sketch`), the
second writes the cells that are learned from that to a cache (`softwood.training.row_cache`). `train_on_rows` then
trains as `softwood.tabular.fit.train` does, with `softwood.training.stream` reading the cache once per epoch. A further
pass over the files is made for categories with many levels, and one over single columns whose whole numbers are codes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.model.importance import N_ROWS as N_IMPORTANCE_ROWS
from softwood.tabular.committee import MemberFits, RunOptions, choose_way, train_members
from softwood.tabular.encoding.columns import ColumnFacts
from softwood.tabular.encoding.features import LOOKUP
from softwood.tabular.encoding.lookups import Lookups
from softwood.tabular.evaluation import join_evaluation_sets, make_judge
from softwood.tabular.fit import (
    FitResult,
    assemble,
    code_columns,
    encode,
    starting_score,
    training_config,
)
from softwood.tabular.out_of_core.files import TableFiles, optional_values, target_values
from softwood.tabular.out_of_core.outline import Encoder, LevelSums, Outline
from softwood.tabular.out_of_core.sketch import Piece, Sketch, make_piece, max_sampled_rows, merge, sketch
from softwood.tabular.out_of_core.sketch_file import pack_summary, unpack_summary
from softwood.tabular.reading.cells import labels_of
from softwood.tabular.reading.table import Table, read_table
from softwood.tabular.selection import params_for_columns, select_columns
from softwood.tabular.target import Problem, TargetKind
from softwood.training import MemberData, Samples, TrainingConfig, rules
from softwood.training.judge import EvaluationSet, Judge, Metric, resolve_metric
from softwood.training.lookup_state import weight_bytes
from softwood.training.progress import Callbacks, Progress, RowReport, check_callbacks
from softwood.training.row_cache import RowCache, RowShape, open_cache, read_facts, write_cache
from softwood.training.stream import RowStream, n_held_out_rows, window_bytes

# Bytes per cell of a piece, per cell of the sampled rows, and per sampled row and bin while bins are fitted, as
# measured; and what is taken besides.
_PIECE_CELL_BYTES, _SAMPLE_CELL_BYTES, _BIN_BYTES, _OTHER_BYTES = 40, 24, 16, 128 << 20


@dataclass(frozen=True, eq=False)
class PreparedRows:
    """Rows of a table that are ready to be trained on. Made by `prepare`; close the cache after training.

    Attributes
    ----------
    outline : Outline
        What was learned of the table.
    encoder : Encoder
    cache : RowCache
    given_columns : tuple of str
        Names of the table's columns if some of them were left out by `max_columns`; else empty.
    codes : dict of str to str
        Columns of numbers that are read as categories.
    """

    outline: Outline
    encoder: Encoder
    cache: RowCache
    given_columns: tuple[str, ...] = ()
    codes: dict[str, str] = field(default_factory=dict)

    def sampled(self) -> tuple[Table, Problem]:
        """Rows drawn from the table, with their targets."""
        piece = self.outline.sketch.sample.piece(self.outline.sketch.facts)
        return piece.table, self.outline.problem


@dataclass(frozen=True, eq=False)
class _Passes:
    """How the files are gone through."""

    files: TableFiles
    target: TargetKind
    kinds: tuple[str, ...]
    report: RowReport

    def pieces(self, what: str, columns: Sequence[str] | None = None) -> Iterator[Piece]:
        """Rows of positive weight, piece by piece; some of the feature columns only, if `columns` is given."""
        files = self.files if columns is None else replace(self.files, features=list(columns))
        kinds = dict(zip(self.files.features, self.kinds, strict=True))
        self.report(what, 0, files.n_rows)
        for first, arrow in files.pieces():
            table = read_table(
                arrow.select(files.features), kinds=[kinds[name] for name in files.features], names=files.features
            )
            y = target_values(files, arrow, first)
            weight = optional_values(arrow, files.weight, "sample_weight")
            if files.keeps is not None:
                kept = files.keeps(np.arange(first, first + len(arrow)))
                weight = np.where(kept, 1.0 if weight is None else weight, 0.0)
            offset = optional_values(arrow, files.offset, "offset")
            piece = make_piece(table, y, self.target, first_row=first, sample_weight=weight, offset=offset)
            if piece is not None:
                yield piece
            self.report(what, first + len(arrow), files.n_rows)


def prepare(
    files: TableFiles,
    target: TargetKind,
    params: Mapping[str, Any],
    run: RunOptions,
    *,
    kinds: Sequence[str],
    folder: Path | None,
    memory_limit: int,
) -> PreparedRows:
    """Learn what the columns of a table hold, and write its rows to a cache, or find them in one.

    Parameters
    ----------
    files : TableFiles
    target : TargetKind
    params : mapping
        Checked constructor parameters of an estimator.
    run : RunOptions
    kinds : sequence of str
        Kinds of the feature columns.
    folder : Path, optional
        Where the cache is kept; a temporary one if None.
    memory_limit : int
        Bytes; a table that needs more is refused.
    """
    require_memory(files, params, memory_limit)
    source = files.identity() | {"kinds": list(kinds), "recipe": _settings(target, params)}
    known = None if folder is None else read_facts(folder)
    if known is not None:
        _require_same(folder, known[0]["source"], json.loads(json.dumps(source)))
    passes = _Passes(files, target, tuple(kinds), RowReport(params["verbose"]))
    sums = None
    if known is not None:
        total, sums = unpack_summary(known[1])
        codes = known[0]["codes"]
    else:
        total, codes = _with_codes(_sketch(passes), passes, params)
        total = _selected(total, target, params, run)
    chosen = [column.name for column in total.facts]
    passes = replace(passes, files=replace(files, features=chosen), kinds=tuple(column.kind for column in total.facts))
    given = tuple(files.features) if len(chosen) < len(files.features) else ()
    places = [files.features.index(name) for name in chosen]
    outline = Outline.of(total, target, params_for_columns(params, files.features, places))
    if outline.needs_level_sums and sums is None:
        sums = sum((outline.level_sums(piece) for piece in passes.pieces("levels")), LevelSums())
    encoder = outline.learn(sums, by_level=rules.reads_levels(outline.facts, outline.preprocessor.most_levels))
    config = training_config(outline.params, outline.head, total.n_rows)
    require_memory(files, outline.params, memory_limit, encoder.lookups, weight_bytes(config, encoder.lookups))
    cache = _open(folder, encoder, known[0]) if known is not None and folder is not None else None
    if cache is None:
        cache = _write(folder, passes, outline, encoder, {"source": source, "codes": codes}, pack_summary(total, sums))
    encoder = replace(encoder, base=encoder.base[:N_IMPORTANCE_ROWS].copy(), crossed={})
    return PreparedRows(outline, encoder, cache, given, codes)


def require_memory(
    files: TableFiles,
    params: Mapping[str, Any],
    memory_limit: int,
    lookups: Lookups | None = None,
    member_bytes: int = 0,
) -> None:
    """Refuse a table that needs more memory than is allowed; sizes do not follow the limit, so that results do not.

    The lookups, and the bytes that the weights of a member take, are known after the passes over the files.
    """
    p = len(files.features)
    # Dates and categories have several base columns; most tables have fewer.
    q = 2 * p if lookups is None else len(lookups.columns)
    n_members = params["n_members"] if isinstance(params["n_members"], int) else 4
    n_sampled = min(files.n_rows, max_sampled_rows(p))
    n_bins = params["n_bins"] if isinstance(params["n_bins"], int) else rules.most_bins(files.n_rows)
    bins = _BIN_BYTES * n_sampled * n_bins
    piece = _PIECE_CELL_BYTES * min(files.n_rows, files.piece_rows) * (p + 2)
    training = window_bytes(files.n_rows, q) + n_members * n_held_out_rows(files.n_rows, q) * (4 * q + 16)
    training += (n_members + 1) * member_bytes  # once more while the arrays of one are made
    needed = _OTHER_BYTES + _SAMPLE_CELL_BYTES * n_sampled * p + max(bins, piece, training)
    if needed > memory_limit:
        raise ValueError(
            f"memory_limit must be at least {needed / 1e6:.0f} MB for a table of {p} columns; got "
            f"{memory_limit / 1e6:.0f} MB. Allow more, train fewer members or trees, or leave out columns, first "
            "those with many levels."
        )


def _settings(target: TargetKind, params: Mapping[str, Any]) -> list[str]:
    """Parameters that decide how columns are summed up; others show in the checksum of what is learned."""
    names = ("column_kinds", "categorical_features", "max_columns", "monotonic_cst")
    loss = getattr(target.loss, "name", target.loss)
    return [str(target.is_classification), str(loss), *(str(params[name]) for name in names)]


def _require_same(folder: Path | None, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    words = {"files": "other files (or they have changed since)", "columns": "other columns or types"}
    words |= {"roles": "another target, weight or offset", "rows": "other rows of the files", "kinds": "other kinds"}
    for name, value in now.items():
        if then.get(name) != value:
            raise ValueError(
                f"The cache {str(folder)!r} must be of the same files and settings; it was made of "
                f"{words.get(name, 'other settings')}. Remove the folder, or name another with cache=... (--cache)."
            )


def _sketch(passes: _Passes) -> Sketch:
    total: Sketch | None = None
    for piece in passes.pieces("columns"):
        one = sketch(piece, passes.target)
        total = one if total is None else merge(total, one)
    if total is None:
        raise ValueError("A table must have rows of positive weight; these files have none.")
    return total


def _with_codes(total: Sketch, passes: _Passes, params: Mapping[str, Any]) -> tuple[Sketch, dict[str, str]]:
    """The sketch with columns of codes read as categories; as `train` does, by the evidence of the sampled rows."""
    piece = total.sample.piece(total.facts)
    problem = passes.target.problem(piece.y, piece.n_rows, piece.weight)
    found = code_columns(piece.table, problem, params, np.arange(piece.n_rows))
    if not found:
        return total, {}
    names = [total.facts[j].name for j in found]
    as_categories = replace(
        passes, kinds=tuple("category" if j in found else kind for j, kind in enumerate(passes.kinds))
    )
    counted: list[list[ColumnFacts]] = []
    for some in as_categories.pieces("codes", names):
        counted.append([ColumnFacts.of(some.table, i) for i in range(len(names))])
        counted = [[reduce(ColumnFacts.joined, of) for of in zip(*counted, strict=True)]]
    facts, columns = list(total.facts), list(total.sample.columns)
    for j, of in zip(found, counted[0], strict=True):
        facts[j], columns[j] = of, labels_of(columns[j])
    for sums in total.sums:
        sums.missing[found] = 0.0
    sample = replace(total.sample, columns=tuple(columns))
    return replace(total, facts=tuple(facts), sample=sample), dict.fromkeys(names, "category")


def _selected(total: Sketch, target: TargetKind, params: Mapping[str, Any], run: RunOptions) -> Sketch:
    """The sketch of the columns that `max_columns` leaves, which sampled rows decide."""
    n = len(total.facts)
    if params["max_columns"] is None or params["max_columns"] >= n:
        return total
    piece = total.sample.piece(total.facts)
    problem = target.problem(piece.y, piece.n_rows, piece.weight).with_offset(piece.offset)
    chosen = select_columns(piece.table, problem, params, run, present=list(range(n)))
    return replace(
        total,
        facts=tuple(total.facts[j] for j in chosen),
        sums=tuple(replace(sums, missing=sums.missing[chosen]) for sums in total.sums),
        sample=replace(total.sample, columns=tuple(total.sample.columns[j] for j in chosen)),
    )


def _open(folder: Path, encoder: Encoder, facts: Mapping[str, Any]) -> RowCache:
    if facts["encoder"] != encoder.checksum():
        raise ValueError(
            f"The cache {str(folder)!r} must be of the same settings; it was made with another n_bins, class_weight or "
            "version of softwood. Remove the folder, or name another with cache=... (--cache)."
        )
    return open_cache(folder)


def _write(
    folder: Path | None, passes: _Passes, outline: Outline, encoder: Encoder, facts: dict[str, Any], summary: bytes
) -> RowCache:
    checksum = encoder.checksum()
    n_targets = 1 if outline.problem.y.ndim == 1 else outline.problem.y.shape[1]
    n_offsets = 0 if outline.problem.offset is None else outline.problem.offset.shape[1]
    shape = RowShape(len(encoder.lookups.columns), n_targets, encoder.mean_weight is not None, n_offsets)
    identity = hashlib.sha256(json.dumps([facts["source"], checksum], sort_keys=True).encode()).hexdigest()
    return write_cache(
        folder,
        shape,
        (encoder.encode(piece) for piece in passes.pieces("cells")),
        n_rows=outline.sketch.n_rows,
        identity=identity,
        facts=facts | {"encoder": checksum},
        summary=summary,
    )


def train_on_rows(
    prepared: PreparedRows,
    given: Mapping[str, Any],
    run: RunOptions,
    *,
    validation: Sequence[tuple[Table, Problem]] = (),
) -> FitResult:
    """Fit a model; parameters as those of `softwood.tabular.fit.train`."""
    outline, encoder, cache = prepared.outline, prepared.encoder, prepared.cache
    params, head, problem = outline.params, outline.head, outline.problem
    metric, functions = resolve_metric(params["eval_metric"]), check_callbacks(params["callbacks"])
    deadline = None if params["time_limit"] is None else time.monotonic() + params["time_limit"]
    rng = np.random.default_rng(run.seed)
    stream = RowStream(cache, encoder.lookups, int(rng.integers(2**62)))
    n_folds = 0 if validation else stream.n_folds(params["validation_fraction"])
    n_trained = cache.n_rows - (cache.n_rows // n_folds if n_folds else 0)
    config = training_config(params, head, n_trained)
    rows = np.arange(len(problem.y))
    offset = starting_score(params, problem, head, problem.scaled_y(head), rows, problem.weight)
    members = _members(stream, config, params["n_members"], n_folds, n_trained, offset, rng)
    if validation:
        members = _with_evaluation_sets(members, prepared, validation, metric)
    elif metric is not None:
        members = [replace(member, judge=_judge(member, problem, head, metric)) for member in members]
    weak_l1 = rules.weak_l1(outline.facts, params) if given["l1"] == "auto" else None
    usual = "R²" if head.task == "regression" else "accuracy"
    shown = usual if metric is None else metric.name
    with Progress(config.max_epochs, shown) if params["verbose"] else nullcontext() as progress:
        stream.report = None if progress is None else progress.rows
        callbacks = Callbacks(config.max_epochs, functions, progress)
        fits = MemberFits(run, callbacks, deadline)
        way = choose_way(fits, config, members, weak_l1=weak_l1)
        trained = train_members(fits, way)
    model = assemble(encoder.preprocessor, [LOOKUP] * len(trained), trained, head, encoder.base)
    if prepared.given_columns:
        model.given_columns = prepared.given_columns
    chosen = {name: params[name] for name in params if given[name] is not params[name] and name != "monotonic_cst"}
    if prepared.codes:
        chosen["column_kinds"] = {**(params["column_kinds"] or {}), **prepared.codes}
    return FitResult(model, trained, chosen | way.changes)


def _members(
    stream: RowStream,
    config: TrainingConfig,
    n_members: int,
    n_folds: int,
    n_trained: int,
    offset: NDArray[np.float64],
    rng: np.random.Generator,
) -> list[MemberData]:
    folds = [i % n_folds if n_folds else 0 for i in range(n_members)]
    held_out = stream.held_out(sorted(set(folds)), n_folds) if n_folds else {}
    n_steps = (-(-n_trained // config.batch_size) + stream.n_windows) * config.max_epochs  # as many at most
    members = []
    for fold in folds:
        other: Samples | None = held_out.get(fold)
        n_own = stream.cache.n_rows - (0 if other is None else len(other.x))
        train = stream.samples(fold, n_folds, n_own)
        members.append(MemberData(train, other, int(rng.integers(2**63)), offset, n_steps=n_steps))
    return members


def _judge(member: MemberData, problem: Problem, head: Any, metric: Metric) -> Judge:
    """Of held-out rows of the cache, which has targets as the trainer sees them."""
    held_out = member.validation
    assert held_out is not None
    trained = held_out.y if problem.y.ndim == 2 else held_out.y[:, 0]
    if head.classes is not None:
        y = trained.astype(np.int64) if head.task == "multilabel" else head.classes[trained.astype(np.int64)]
    else:
        mean, scale = (head.target_mean, head.target_scale)
        y = trained.astype(np.float64) * (scale if problem.y.ndim == 2 else scale[0])
        y = y + (mean if problem.y.ndim == 2 else mean[0])
    weight = None if held_out.sample_weight is None else held_out.sample_weight.astype(np.float64)
    return Judge(head, metric, [EvaluationSet(slice(None), y, trained, weight)])


def _with_evaluation_sets(
    members: Sequence[MemberData],
    prepared: PreparedRows,
    validation: Sequence[tuple[Table, Problem]],
    metric: Metric | None,
) -> list[MemberData]:
    encoder, head = prepared.encoder, prepared.outline.head
    if prepared.given_columns:
        places = [prepared.given_columns.index(column.name) for column in encoder.preprocessor.columns]
        validation = [(table.select(places), problem) for table, problem in validation]
    base, judged, ends = join_evaluation_sets(encoder.preprocessor, validation)
    encoded = encode(
        encoder.preprocessor, encoder.lookups, base, judged.scaled_y(head), judged.weight, judged.score_offset(head)
    )
    found = [replace(member, validation=encoded[LOOKUP]) for member in members]
    if metric is None and len(validation) == 1:
        return found
    return [replace(member, judge=make_judge(member, judged, head, metric, ends)) for member in found]
