"""Dask collections and Parquet paths in, partitions with their targets out; checks of the cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Seconds to wait for the first worker.
WORKER_TIMEOUT = 30.0


@dataclass(frozen=True, eq=False)
class Partitions:
    """A table in partitions: delayed tables, and delayed targets and weights beside them.

    Attributes
    ----------
    tables, targets : list of Delayed
    weights : list of Delayed, or None
    """

    tables: list[Any]
    targets: list[Any]
    weights: list[Any] | None


def is_collection(X: Any) -> bool:
    """Whether X is a Dask DataFrame or Array."""
    from dask.base import is_dask_collection

    return bool(is_dask_collection(X))


def read_partitions(X: Any, y: Any, sample_weight: Any = None) -> Partitions:
    """Partitions of a Dask DataFrame or Array, or of Parquet files; y may be the name of a column of a frame."""
    if isinstance(X, (str, os.PathLike)) or (isinstance(X, list) and all(isinstance(x, (str, os.PathLike)) for x in X)):
        from dask.dataframe import read_parquet

        X = read_parquet([os.fspath(x) for x in X] if isinstance(X, list) else os.fspath(X))
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
    return Partitions(tables, targets, weights)


def whole(partitions: Partitions, client: Any) -> tuple[Any, Any, Any]:
    """The whole table, its targets and weights, in the memory of this process."""
    tables, targets, weights = client.gather(
        client.compute([partitions.tables, partitions.targets, partitions.weights or []], sync=False)
    )
    kept = [i for i, table in enumerate(tables) if len(table)] or [0]
    joined = [_join([part[i] for i in kept]) for part in (tables, targets) if part]
    return joined[0], joined[1], _join([weights[i] for i in kept]) if weights else None


def first_rows(partitions: Partitions, client: Any) -> Any:
    """Rows of the first partition that has any; they say what columns hold."""
    tables = client.compute(partitions.tables)
    lengths = client.gather([client.submit(len, table) for table in tables])
    if not any(lengths):
        raise ValueError("A table must have rows; all partitions are empty.")
    table = tables[int(np.flatnonzero(lengths)[0])]
    return client.submit(lambda rows: rows[:10_000], table).result()


def _join(parts: Sequence[Any]) -> Any:
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


def find_client(client: Any) -> Any:
    """The given client, or the current one, whose workers all have this version of softwood."""
    from distributed import get_client

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
