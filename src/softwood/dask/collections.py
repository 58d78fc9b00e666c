"""Dask collections and Parquet paths in, partitions on the workers out; checks of the cluster and of what they hold."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softwood.tabular.out_of_core.files import ParquetPart, open_files

# Seconds to wait for a worker: the first one, or another one when all have gone.
WORKER_TIMEOUT = 30.0
# Seconds between two looks at the cluster while results are awaited.
_LOOK_EVERY = 2.0
# Rows of a partition that say what its columns hold.
_FIRST_ROWS = 10_000
_NOTHING = "nothing"


@dataclass(frozen=True, eq=False)
class Partitions:
    """A table in partitions: delayed tables, and delayed targets and weights beside them.

    Attributes
    ----------
    tables, targets : list of Delayed
    weights : list of Delayed, or None
    files : list of ParquetPart
        Where the table comes from, if it was named by local paths.
    """

    tables: list[Any]
    targets: list[Any]
    weights: list[Any] | None
    files: list[ParquetPart]


@dataclass(frozen=True)
class PartFacts:
    """What one partition has: rows, columns by name with what they hold, and targets per row."""

    n_rows: int
    columns: tuple[tuple[str, str], ...]
    n_targets: int


@dataclass(frozen=True, eq=False)
class LoadedParts:
    """Partitions in the memory of the workers: futures of (table, target, weight), and what they have."""

    parts: list[Any]
    facts: list[PartFacts]

    @property
    def n_rows(self) -> int:
        """Rows of all partitions."""
        return sum(facts.n_rows for facts in self.facts)

    @property
    def first_rows(self) -> list[int]:
        """Number of each partition's first row in the whole table."""
        return [0, *np.cumsum([facts.n_rows for facts in self.facts])[:-1].tolist()]


def is_collection(X: Any) -> bool:
    """Whether X is a Dask DataFrame or Array."""
    from dask.base import is_dask_collection

    return bool(is_dask_collection(X))


def read_partitions(X: Any, y: Any, sample_weight: Any = None) -> Partitions:
    """Partitions of a Dask DataFrame or Array, or of Parquet files; y may be the name of a column of a frame."""
    files: list[ParquetPart] = []
    if isinstance(X, (str, os.PathLike)) or (isinstance(X, list) and all(isinstance(x, (str, os.PathLike)) for x in X)):
        X, files = _read_parquet([os.fspath(x) for x in X] if isinstance(X, list) else os.fspath(X), y, sample_weight)
    if not is_collection(X):
        raise TypeError(
            f"X must be a Dask DataFrame, a Dask Array or a path of Parquet files; got {type(X).__name__}. Use "
            "TreeEnsembleClassifier or TreeEnsembleRegressor for tables in memory."
        )
    for name, values in (("y", y), ("sample_weight", sample_weight)):
        if isinstance(values, str) and values not in getattr(X, "columns", ()):
            raise ValueError(f"{name} must be the name of a column of X; got {values!r}.")
    named = [values for values in (y, sample_weight) if isinstance(values, str)]
    pieces = _pieces(X)
    # Columns are taken out of partitions: a frame of fewer columns may be read in other partitions.
    tables = [piece.drop(columns=named) for piece in pieces] if named else pieces
    targets = _beside(pieces, y, "y")
    weights = None if sample_weight is None else _beside(pieces, sample_weight, "sample_weight")
    return Partitions(tables, targets, weights, files)


def load_partitions(partitions: Partitions, client: Any) -> LoadedParts:
    """Read each partition on some worker, once, and check that they belong to one table."""
    weights = partitions.weights or [None] * len(partitions.tables)
    parts = client.compute([list(part) for part in zip(partitions.tables, partitions.targets, weights, strict=True)])
    described = [client.submit(_describe, part, pure=False) for part in parts]
    try:
        facts: list[PartFacts] = gather(client, described)
    except RuntimeError:  # no workers
        raise
    except Exception as error:
        # Dask's error does not name the file: read them all, which names the one that is damaged inside.
        gather(client, [client.submit(_require_readable, file, pure=False) for file in partitions.files])
        bad = next((i for i, future in enumerate(described) if future.status == "error"), 0)
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"Each partition must be readable as a table; partition {bad} is not ({reason}). "
            "X.partitions[number].compute() shows where the error comes from."
        ) from error
    _require_one_table(facts)
    return LoadedParts(parts, facts)


def whole(loaded: LoadedParts, client: Any) -> tuple[Any, Any, Any]:
    """The whole table, its targets and weights, in the memory of this process."""
    kept = [i for i, facts in enumerate(loaded.facts) if facts.n_rows] or [0]
    parts = gather(client, [loaded.parts[i] for i in kept])
    tables, targets, weights = zip(*parts, strict=True)
    return _join(tables), _join(targets), None if weights[0] is None else _join(weights)


def first_rows(loaded: LoadedParts, client: Any) -> Any:
    """Rows that say what columns hold: of the first partition, and of others where it has only missing cells."""
    facts = loaded.facts
    chosen = [next(i for i, some in enumerate(facts) if some.n_rows)]
    for j in range(len(facts[chosen[0]].columns)):
        known = [i for i, some in enumerate(facts) if some.n_rows and some.columns[j][1] != _NOTHING]
        if known and not any(i in known for i in chosen):
            chosen.append(known[0])
    heads = gather(client, [client.submit(_first_rows, loaded.parts[i], pure=False) for i in chosen])
    return _join(heads)


def gather(client: Any, futures: Any) -> Any:
    """Results of futures; a RuntimeError, instead of waiting for ever, if the cluster has lost all workers for good."""
    from distributed import TimeoutError, wait

    alive = time.monotonic()
    while futures:
        try:
            wait(futures, timeout=_LOOK_EVERY)
            break
        except TimeoutError as error:
            # Its frames refer to themselves and to the futures of the callers, whose results would stay on the workers,
            # and be computed again when one is lost, until Python collects cycles.
            error.with_traceback(None)
            if client.nthreads():
                alive = time.monotonic()
            elif time.monotonic() - alive > WORKER_TIMEOUT:
                raise RuntimeError(
                    f"The cluster must have a worker; all have gone, and none has come for {WORKER_TIMEOUT:g} s. Start "
                    "workers, and fit again (from a checkpoint, if there is one)."
                ) from None
    return client.gather(futures)


def find_client(client: Any) -> Any:
    """The given client, or the current one, whose workers all have this version of softwood."""
    from distributed import TimeoutError, get_client

    import softwood

    if client is None:
        try:
            client = get_client()
        except ValueError as error:
            raise ValueError(
                "A Dask estimator needs a cluster; there is no current client. Make one first: "
                "`from distributed import Client; client = Client()`, or give client=..."
            ) from error
    try:
        client.wait_for_workers(1, timeout=WORKER_TIMEOUT)
    except TimeoutError as error:
        raise RuntimeError(f"The cluster must have a worker; none came within {WORKER_TIMEOUT:g} s.") from error

    def version() -> str:  # a function of its own reaches workers by value: they need no softwood to read it
        import softwood

        return softwood.__version__

    found = client.run(version, on_error="return")
    for worker, answer in found.items():
        if answer != softwood.__version__:
            what = f"has version {answer}" if isinstance(answer, str) else f"cannot import it ({answer!r})"
            raise RuntimeError(
                f"Every worker must have softwood {softwood.__version__}, as here; worker {worker} {what}. Install it "
                "there in the same version."
            )
    return client


def _read_parquet(paths: str | list[str], y: Any, sample_weight: Any) -> tuple[Any, list[ParquetPart]]:
    """A Dask DataFrame, and the files that it reads if they are local."""
    from dask.dataframe import read_parquet

    is_local = all("://" not in path for path in ([paths] if isinstance(paths, str) else paths))
    files: list[ParquetPart] = []
    if is_local and isinstance(y, str):  # Dask takes the columns of the first file for those of all
        files = open_files(paths, y, sample_weight if isinstance(sample_weight, str) else None).parts
    try:
        return read_parquet(paths), files
    except Exception as error:
        raise ValueError(
            f"X must name Parquet files that can be read; {paths!r} cannot be ({type(error).__name__}: {error})."
        ) from error


def _join(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if hasattr(parts[0], "iloc"):
        import pandas

        return pandas.concat(parts)
    return np.concatenate([np.asarray(part) for part in parts])


def _pieces(collection: Any) -> list[Any]:
    if getattr(collection, "ndim", 2) == 2 and hasattr(collection, "rechunk"):
        collection = collection.rechunk({1: -1})
    return list(np.ravel(collection.to_delayed()))


def _beside(tables: list[Any], values: Any, name: str) -> list[Any]:
    """What belongs to each partition of a table: one of its columns, or the partitions of another collection."""
    if isinstance(values, str):
        return [table[values] for table in tables]
    if not is_collection(values):
        raise TypeError(
            f"{name} must be a Dask collection with the partitions of X, or the name of a column of X; got "
            f"{type(values).__name__}."
        )
    n = len(tables)
    pieces = _pieces(values)
    if len(pieces) != n:
        raise ValueError(
            f"{name} must have the partitions of X; X has {n} and {name} {len(pieces)}. Take both from one frame, or "
            "repartition one of them."
        )
    return pieces


def _describe(part: Sequence[Any]) -> PartFacts:
    X, y, weight = part
    for name, values in (("y", y), ("sample_weight", weight)):
        if values is not None and len(values) != len(X):
            raise ValueError(f"{name} must have as many rows as X; got {len(values)} and {len(X)}")
    if hasattr(X, "columns"):
        columns = tuple((str(name), _content(X.iloc[:, j])) for j, name in enumerate(X.columns))
    else:
        columns = tuple((str(j), _content(X[:, j])) for j in range(X.shape[1]))
    return PartFacts(len(X), columns, 1 if np.ndim(y) == 1 else int(np.shape(y)[1]))


def _content(column: Any) -> str:
    """What a column of a partition holds."""
    from pandas import isna
    from pandas.api.types import infer_dtype, is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype, is_object_dtype

    if isna(column[:1]).all() and isna(column).all():
        return _NOTHING
    dtype = column.dtype
    if is_bool_dtype(dtype):
        return "booleans"
    if is_numeric_dtype(dtype):
        return "numbers"
    if is_datetime64_any_dtype(dtype):
        return "dates"
    if not is_object_dtype(dtype):
        return "texts"
    found = infer_dtype(column, skipna=True)
    kinds = {"boolean": "booleans", "date": "dates", "datetime": "dates"}
    numbers = ("integer", "floating", "mixed-integer-float", "decimal")
    return "numbers" if found in numbers else kinds.get(found, "texts")


def _require_readable(file: ParquetPart) -> None:
    file.require_readable()


def _first_rows(part: Sequence[Any]) -> Any:
    return part[0][:_FIRST_ROWS]


def _require_one_table(facts: Sequence[PartFacts]) -> None:
    filled = [(i, some) for i, some in enumerate(facts) if some.n_rows]
    if not filled:
        raise ValueError("A table must have rows; all partitions are empty.")
    known: dict[int, tuple[str, int]] = {}  # by column: what it holds, and the partition that says so
    first = filled[0][1]
    for i, some in filled:
        names, other = ([name for name, _ in columns.columns] for columns in (first, some))
        if names != other:
            differing = sorted({*names} ^ {*other}) or other
            raise ValueError(
                f"All partitions must have the same columns; partition {i} differs from partition {filled[0][0]} in "
                f"{', '.join(differing)}."
            )
        if some.n_targets != first.n_targets:
            raise ValueError(f"y must have {first.n_targets} columns in each partition; {some.n_targets} in {i}.")
        for j, (name, content) in enumerate(some.columns):
            if content != _NOTHING:
                before, where = known.setdefault(j, (content, i))
                if before != content:
                    raise ValueError(
                        f"A column must hold the same type in all partitions; {name!r} holds {before} in partition "
                        f"{where} and {content} in partition {i}. Convert it first, as by frame.astype."
                    )
