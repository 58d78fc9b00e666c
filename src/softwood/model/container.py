"""JSON and arrays to and from one safetensors file, safe for untrusted files.

The container is that of the safetensors library: eight bytes with the header's length, a JSON header, and the arrays'
bytes. Its metadata has the keys "format" ("softwood"), "format_version" and "model" (JSON). docs/file-format.md
describes what the model's JSON holds; `softwood.model.file` interprets it.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from softwood.model.whole_file import write_whole

FORMAT = "softwood"
FORMAT_VERSION = 2
_REMEDY = "Name a file that softwood wrote: softwood train, or an estimator's save."
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library


class ModelFileError(ValueError):
    """A file that is not a model, is damaged, or was written by a newer softwood."""


def write_container(path: str | os.PathLike[str], metadata: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write JSON-compatible `metadata` and `arrays` to `path`, by way of a temporary file beside it."""
    header = {"format": FORMAT, "format_version": str(FORMAT_VERSION), "model": json.dumps(metadata, allow_nan=True)}
    contents = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata=header)
    write_whole(path, contents)


def read_container(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return metadata and arrays of a model file; a `ModelFileError` says why one cannot be read."""
    name = repr(os.fspath(path))
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header = _read_header(file, size, name)
        metadata = header.get("__metadata__")
        if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
            raise ModelFileError(f"{name} is a safetensors file, but not a softwood model. {_REMEDY}")
        _check_version(metadata.get("format_version"), name)
        _check_length(header, size - file.tell(), name)
        file.seek(0)
        contents = file.read()
    try:
        arrays = load(contents)
        model = json.loads(str(metadata.get("model")))
    except (SafetensorError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{name} is damaged: {error}. Save the model again, or get a fresh copy.") from error
    if not isinstance(model, dict):
        raise ModelFileError(f"{name} is damaged: its model description is not a JSON object.")
    return model, arrays


def _read_header(file: Any, size: int, name: str) -> dict[str, Any]:
    not_a_model = ModelFileError(
        f"{name} is not a softwood model: it does not begin with a safetensors header. {_REMEDY}"
    )
    start = file.read(8)
    n_bytes = int.from_bytes(start, "little")
    if len(start) < 8 or n_bytes < 2 or file.peek(1)[:1] not in (b"{", b""):
        raise not_a_model
    if n_bytes > size - 8:
        raise ModelFileError(
            f"{name} is truncated, or not a softwood model: its header should have {n_bytes} bytes, "
            f"but only {size - 8} follow. Copy or save the file again."
        )
    if n_bytes > _MAX_HEADER_BYTES:
        raise ModelFileError(f"{name} is refused: its header has {n_bytes} bytes, more than {_MAX_HEADER_BYTES}.")
    try:
        header = json.loads(file.read(n_bytes))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{name} is damaged: its header is not valid JSON ({error}).") from None
    if not isinstance(header, dict):
        raise not_a_model
    return header


def _check_version(version: Any, name: str) -> None:
    if not isinstance(version, str) or not version.isascii() or not version.isdigit() or len(version) > 9:
        raise ModelFileError(f"{name} is damaged: its format version is {version!r}, not a number.")
    if int(version) > FORMAT_VERSION:
        raise ModelFileError(
            f"{name} was written by a newer softwood: it has format version {version}, and this softwood reads "
            f"versions up to {FORMAT_VERSION}. Upgrade with pip install --upgrade softwood."
        )


def _check_length(header: dict[str, Any], n_bytes: int, name: str) -> None:
    """Refuse a file that is shorter or longer than its header says; the rest is checked by the safetensors library."""
    ends = [0]
    for key, entry in header.items():
        if key != "__metadata__":
            offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
            if not isinstance(offsets, list) or len(offsets) != 2 or not all(isinstance(o, int) for o in offsets):
                raise ModelFileError(f"{name} is damaged: its header does not say where array {key!r} is.")
            ends.append(offsets[1])
    if max(ends) != n_bytes:
        what = "truncated" if max(ends) > n_bytes else "damaged"
        raise ModelFileError(
            f"{name} is {what}: its arrays should have {max(ends)} bytes, but {n_bytes} follow the header. "
            "Copy or save the file again."
        )
