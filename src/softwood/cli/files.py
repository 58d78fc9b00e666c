"""Tables in many files, and files that do not fit into memory: what `train`, `predict` and `evaluate` do with them.

Files are gone through batch by batch. `predict` and `evaluate` share them out to processes, each of which loads the
model once; what a file gives does not depend on which of them reads it.
"""

from __future__ import annotations

import glob
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import softwood
from softwood.cli.metrics import class_metrics, value_metrics
from softwood.cli.tablefile import BatchWriter, TableFileError, read_batches
from softwood.cli.task import MAX_INTEGER_CLASSES, known_task
from softwood.tabular.out_of_core.files import RowShare, TableFiles, is_long, open_files, target_values
from softwood.training.progress import describe_rows

_SECONDS_BETWEEN_LINES = 2.0
_WILD = frozenset("*?[")
_PARQUET = (".parquet", ".pq")

# Estimator and options of this process, which works on one file after the other.
_worker: dict[str, Any] = {}


def names_files(source: str) -> bool:
    """Whether a table is named by a glob or a folder."""
    return os.path.isdir(source) or (bool(_WILD & set(source)) and not os.path.exists(source))


def find_files(source: str) -> list[str]:
    """Table files of a glob, or Parquet files of a folder and those in it, in the order of their names."""
    if os.path.isdir(source):
        inside = glob.glob(os.path.join(glob.escape(source), "**", "*"), recursive=True)
        found = sorted(path for path in inside if path.lower().endswith(_PARQUET) and os.path.isfile(path))
        if not found:
            raise TableFileError(f"{source} is a folder without Parquet files; name a file, or a folder of such files.")
        return found
    found = sorted(path for path in glob.glob(source, recursive=True) if os.path.isfile(path))
    if not found:
        raise TableFileError(f"No file matches {source!r}. Check the path (the current folder is {os.getcwd()}).")
    return found


def long_table(source: str, target: str | None, drop: Sequence[str]) -> TableFiles | None:
    """The files of a table that is not read into memory; None for any other table."""
    is_parquet = source.lower().endswith(_PARQUET) and os.path.isfile(source)
    if target is None or not (is_parquet or names_files(source)):
        return None
    if not is_parquet:
        _require_parquet(source)
    try:
        files = open_files(source, target, drop=drop)
    except ValueError:
        if is_parquet:
            return None  # whoever reads the one file says what is wrong
        raise
    return files if is_long(files) else None


def _require_parquet(source: str) -> None:
    others = [path for path in find_files(source) if not path.lower().endswith(_PARQUET)]
    if others:
        raise TableFileError(f"A table in several files must be in Parquet files; {others[0]} is not one. Convert it.")


def read_files(source: str) -> Any:
    """All rows of the Parquet files of a folder or glob (pyarrow.Table)."""
    _require_parquet(source)
    return open_files(source, []).read()


def infer_long_task(files: TableFiles) -> str:
    """Task for a target, as `softwood.cli.task.infer_task` decides it, without all its values in memory."""
    assert isinstance(files.target, str)
    seen: set[float] = set()
    for first, piece in files.pieces([files.target]):
        values = target_values(files, piece, first)
        if values.dtype.kind in "bUO":
            return "classification"
        values = np.unique(values)
        if values.dtype.kind not in "iuf" or np.any(values != np.rint(values)):
            return "regression"
        seen |= set(values.tolist())
        if len(seen) > MAX_INTEGER_CLASSES:
            return "regression"
    return "classification"


def split_rows(files: TableFiles, test_fraction: float, seed: int) -> tuple[TableFiles, TableFiles]:
    """Training rows and test rows of the same files."""
    if not 0 < test_fraction < 1:
        raise ValueError(f"--test-fraction must be between 0 and 1; got {test_fraction:g}.")
    test = RowShare(test_fraction, seed)
    return replace(files, keeps=replace(test, is_rest=True)), replace(files, keeps=test)


def test_metrics(estimator: Any, files: TableFiles) -> tuple[dict[str, float], int]:
    """Metrics on the rows that `files` keeps, and how many they are."""
    assert files.keeps is not None
    truths, predictions = [], []
    for first, piece in files.pieces():
        rows = np.flatnonzero(files.keeps(np.arange(first, first + len(piece))))
        if len(rows):
            piece = piece.take(rows)
            truths.append(target_values(files, piece, first))
            features = piece.select(files.features)
            is_class = hasattr(estimator, "classes_")
            predictions.append((estimator.predict_proba if is_class else estimator.predict)(features))
    if not truths:
        raise ValueError("The test must have rows; it has none. Use a larger --test-fraction.")
    y, predicted = np.concatenate(truths), np.concatenate(predictions)
    return _metrics(estimator, y, predicted), len(y)


def _metrics(estimator: Any, y: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    if not hasattr(estimator, "classes_"):
        return value_metrics(y, predicted)
    return class_metrics(y, predicted, estimator.classes_)


# Many files -----------------------------------------------------------------------------------------------------------


def predict_files(
    model: Path, files: Sequence[str], folder: Path, n_workers: int, options: dict[str, Any]
) -> tuple[int, list[str]]:
    """Write the predictions of each file to a file of the same name in a folder; rows, and files without any."""
    names = [os.path.basename(path) for path in files]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ValueError(
            f"File names must differ, because predictions go to one folder; {repeated!r} occurs twice. Rename one."
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} must be a folder for the predictions of {len(files)} files; it is a file.")
    for path, name in zip(files, names, strict=True):
        if os.path.realpath(folder / name) == os.path.realpath(path):
            raise ValueError(f"{path} would be overwritten by its predictions. Name another folder with --out.")
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [(path, str(folder / name)) for path, name in zip(files, names, strict=True)]
    counts = _share_out(model, _predict_file, tasks, n_workers, options)
    return sum(counts), [path for path, n in zip(files, counts, strict=True) if n == 0]


def evaluate_files(
    model: Path, files: Sequence[str], target: str, n_workers: int, options: dict[str, Any]
) -> tuple[dict[str, float], int]:
    """Metrics on the rows of all files, and how many they are."""
    found = _share_out(model, _evaluate_file, [(path, target) for path in files], n_workers, options)
    some = [part for part in found if len(part[0])]
    if not some:
        raise TableFileError(f"A table must have rows; {files[0]} and the others have none.")
    y, predicted = (np.concatenate([part[i] for part in some]) for i in range(2))
    return _metrics(softwood.load(model), y, predicted), len(y)


def _share_out(
    model: Path, work: Callable[..., Any], tasks: Sequence[tuple[str, str]], n_workers: int, options: dict[str, Any]
) -> list[Any]:
    """Results of all tasks, in their order. The first error ends the others that have not begun."""
    started, shown, done, n_rows = time.monotonic(), time.monotonic(), 0, 0
    results: list[Any] = [None] * len(tasks)

    def note(i: int, result: Any) -> None:
        nonlocal shown, done, n_rows
        results[i] = result
        done, n_rows = done + 1, n_rows + (result if isinstance(result, int) else len(result[0]))
        if done < len(tasks) and time.monotonic() - shown >= _SECONDS_BETWEEN_LINES:
            shown = time.monotonic()
            total = round(n_rows / done * len(tasks))
            words = describe_rows(n_rows, max(1, total), shown - started).replace(" of ", " of about ", 1)
            print(f"{done} of {len(tasks)} files: {words}", file=sys.stderr, flush=True)

    if n_workers == 1:
        _start(model, options)
        for i, task in enumerate(tasks):
            note(i, work(*task))
        return results
    context = multiprocessing.get_context("spawn")  # threads of this process do not survive a fork
    with ProcessPoolExecutor(min(n_workers, len(tasks)), context, _start, (model, options)) as pool:
        futures: dict[Future[Any], int] = {pool.submit(work, *task): i for i, task in enumerate(tasks)}
        try:
            for future in as_completed(futures):
                note(futures[future], future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)  # files that are being written are finished first
            raise
    return results


def _start(model: Path, options: dict[str, Any]) -> None:
    """Make this process one that works on files."""
    from softwood.cli.console import kinds_of

    estimator = softwood.load(model)
    estimator.set_params(n_jobs=options["n_jobs"])
    _worker.update(options, estimator=estimator, kinds=kinds_of(estimator))


def _batches(path: str) -> Iterator[Any]:
    return read_batches(path, _worker["kinds"], batch_rows=_worker["batch_rows"], delimiter=_worker.get("delimiter"))


def _predict_file(path: str, out: str) -> int:
    """Rows that were written; without any, there is no file."""
    from softwood.cli.applying import predictions

    n_rows = 0
    with BatchWriter(out, escape=_worker.get("escape", False)) as writer:
        for batch in _batches(path):
            try:
                writer.write(predictions(_worker["estimator"], batch, _worker["keep"]))
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
            n_rows += len(batch)
    return n_rows


def _evaluate_file(path: str, target: str) -> tuple[np.ndarray, np.ndarray]:
    """True and predicted values (probabilities of classes) of the rows with a target."""
    estimator = _worker["estimator"]
    predict = estimator.predict_proba if hasattr(estimator, "classes_") else estimator.predict
    truths: list[np.ndarray] = []
    predictions: list[np.ndarray] = []
    for batch in _batches(path):
        try:
            known = known_task(batch, estimator.model_, target)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        truths.append(known.target)
        predictions.append(predict(known.features))
    if not truths:
        return np.zeros(0), np.zeros(0)
    return np.concatenate(truths), np.concatenate(predictions)
