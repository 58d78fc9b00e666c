"""Encoded rows in, files of fixed-width rows out, which are read back block by block.

A cache holds what training reads of a table: cells, targets, and weights and offsets where there are any, each in a
file of its own. It lies in a folder that the caller names, or in temporary files without a name, which vanish with the
process however it ends. A folder is a cache once it has its description, which is written last: after a kill there is
none, and the next writer starts over.

Blocks are read by plain reads into memory that the caller owns: pages of a memory map would count as memory of the
process, and a file cut short would end it by a signal.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from softwood.model.whole_file import write_whole

DESCRIPTION, SUMMARY = "cache.json", "summary.safetensors"
_FORMAT = "softwood row cache"
_VERSION = 1


class EncodedRows(Protocol):
    """Rows to write; see `softwood.tabular.out_of_core.outline.EncodedRows`."""

    @property
    def cells(self) -> Any: ...
    @property
    def targets(self) -> Any: ...
    @property
    def weight(self) -> Any: ...
    @property
    def offset(self) -> Any: ...


@dataclass(frozen=True)
class RowShape:
    """What a row consists of: cells, targets, a weight or none, offsets or none."""

    n_columns: int
    n_targets: int
    has_weight: bool
    n_offsets: int

    def parts(self) -> dict[str, tuple[type[np.generic], int]]:
        """Type and numbers per row of each file."""
        found: dict[str, tuple[type[np.generic], int]] = {"cells": (np.uint32, self.n_columns)}
        found["targets"] = (np.float32, self.n_targets)
        if self.has_weight:
            found["weight"] = (np.float32, 1)
        if self.n_offsets:
            found["offset"] = (np.float32, self.n_offsets)
        return found

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in all files."""
        return sum(4 * width for _, width in self.parts().values())


class RowBuffer:
    """Memory for rows of a cache, filled by `RowCache.read`."""

    def __init__(self, shape: RowShape, n_most: int) -> None:
        self.n_rows = 0
        self._arrays = {name: np.empty((n_most, width), dtype) for name, (dtype, width) in shape.parts().items()}

    def part(self, name: str) -> Any:
        """The rows of one file [n_rows, width]; None if the cache has none."""
        array = self._arrays.get(name)
        return None if array is None else array[: self.n_rows]

    def into(self, name: str, first: int, n: int) -> memoryview:
        """Bytes of some rows of one file."""
        return memoryview(self._arrays[name][first : first + n].reshape(-1).view(np.uint8))  # type: ignore[arg-type]


class RowCache:
    """Rows that were written by `write_cache`."""

    def __init__(self, files: Mapping[str, Any], shape: RowShape, n_rows: int, identity: str, where: str) -> None:
        self._files, self.shape, self._n_rows, self._identity, self.where = files, shape, n_rows, identity, where

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self._n_rows

    @property
    def identity(self) -> str:
        """Changes with the rows."""
        return self._identity

    def read(self, runs: Iterable[tuple[int, int]], buffer: RowBuffer) -> NDArray[np.int64]:
        """Fill the buffer with runs of rows, each (first, end), and return the numbers of the rows."""
        runs = list(runs)
        filled = 0
        for first, end in runs:
            for name, (_, width) in self.shape.parts().items():
                self._read_exactly(name, 4 * width * first, buffer.into(name, filled, end - first))
            filled += end - first
        buffer.n_rows = filled
        return np.concatenate([np.arange(first, end) for first, end in runs])

    def _read_exactly(self, name: str, place: int, into: memoryview) -> None:
        file = self._files[name]
        file.seek(place)
        done = 0
        while done < len(into):
            n = file.readinto(into[done:])
            if not n:
                raise OSError(
                    f"The cache {self.where} must hold {self._n_rows:,} rows; its file {name!r} is shorter. Was it "
                    "changed? Remove the cache and fit again."
                )
            done += n

    def close(self) -> None:
        """Close all files; temporary ones vanish."""
        for file in self._files.values():
            file.close()

    def __enter__(self) -> RowCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_cache(
    folder: Path | None,
    shape: RowShape,
    pieces: Iterable[EncodedRows],
    *,
    n_rows: int,
    identity: str,
    facts: Mapping[str, Any],
    summary: bytes = b"",
) -> RowCache:
    """Write the rows of all pieces; `facts` (plain data) and `summary` are what `read_facts` gives back later.

    Raises
    ------
    OSError
        If there is no room. Nothing is then left of the cache.
    """
    where = tempfile.gettempdir() if folder is None else os.fspath(folder)
    is_new = folder is not None and not folder.exists()
    files: dict[str, Any] = {}
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        _require_room(where, n_rows * shape.row_bytes)
        for name in shape.parts():
            path = None if folder is None else folder / name
            files[name] = tempfile.TemporaryFile(buffering=0) if path is None else open(path, "w+b", buffering=0)  # noqa: SIM115
        for piece in pieces:
            for name, (dtype, _) in shape.parts().items():
                _write_all(files[name], np.ascontiguousarray(getattr(piece, name), dtype=dtype))
        if folder is not None:
            for file in files.values():
                os.fsync(file.fileno())
            write_whole(folder / SUMMARY, summary)
            about = {"format": _FORMAT, "version": _VERSION, "shape": asdict(shape), "n_rows": n_rows}
            write_whole(folder / DESCRIPTION, json.dumps(about | {"identity": identity, "facts": facts}).encode())
    except BaseException as error:
        for file in files.values():
            file.close()
        if folder is not None:
            _remove(folder, shape, whole=is_new)
        if isinstance(error, OSError):
            needed = n_rows * shape.row_bytes
            raise OSError(
                f"The cache needs {needed / 1e9:.2f} GB in {where}; it cannot be written ({error}). Free room there, "
                "or name a folder on another disk with cache=... (--cache); TMPDIR moves temporary ones."
            ) from error
        raise
    return RowCache(files, shape, n_rows, identity, where)


def open_cache(folder: Path) -> RowCache:
    """The rows of a folder that is a cache; see `read_facts`."""
    about = _described(folder)
    shape = RowShape(**about["shape"])
    files = {name: open(folder / name, "rb", buffering=0) for name in shape.parts()}  # noqa: SIM115 - RowCache has them
    return RowCache(files, shape, int(about["n_rows"]), str(about["identity"]), os.fspath(folder))


def read_facts(folder: Path) -> tuple[dict[str, Any], bytes] | None:
    """`facts` and `summary` of the cache in a folder; None if there is none and one may be written there."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise ValueError(f"cache must be a folder; {os.fspath(folder)!r} is a file. Name a new folder.")
    if not (folder / DESCRIPTION).exists():
        known = {"cells", "targets", "weight", "offset", SUMMARY}
        foreign = sorted(p.name for p in folder.iterdir() if p.name not in known and not _is_temporary(p.name))
        if foreign:
            raise ValueError(
                f"cache must be a new or empty folder, or a cache that an earlier fit wrote; {os.fspath(folder)!r} "
                f"holds {foreign[0]!r}. Name another folder."
            )
        return None
    return _described(folder)["facts"], (folder / SUMMARY).read_bytes()


def _described(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / DESCRIPTION).read_bytes())
        if about["format"] != _FORMAT or about["version"] != _VERSION:
            raise ValueError(f"it is of version {about['version']}")
        shape = RowShape(**about["shape"])
        for name, (_, width) in shape.parts().items():
            if (folder / name).stat().st_size != 4 * width * about["n_rows"]:
                raise ValueError(f"its file {name!r} has another length")
        if not isinstance(about["facts"], dict):
            raise ValueError("it has no facts")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"The cache {os.fspath(folder)!r} is damaged ({error}): remove the folder, and fit again."
        ) from error
    return about


def _is_temporary(name: str) -> bool:
    return name.startswith((f".{DESCRIPTION}.", f".{SUMMARY}."))


def _require_room(where: str, n_bytes: int) -> None:
    free = shutil.disk_usage(where).free
    if free < n_bytes:
        raise OSError(f"{free / 1e9:.2f} GB are free")


def _write_all(file: Any, array: NDArray[Any]) -> None:
    data = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    while len(data):
        data = data[file.write(data) :]


def _remove(folder: Path, shape: RowShape, *, whole: bool) -> None:
    for name in (*shape.parts(), SUMMARY, DESCRIPTION):
        with contextlib.suppress(OSError):
            os.remove(folder / name)
    if whole:
        with contextlib.suppress(OSError):
            folder.rmdir()
