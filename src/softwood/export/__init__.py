"""Models that leave Python: `export(model, path)` writes C or ONNX, by the suffix of the path.

Each target has a module of its own, which turns a prediction program (`softwood.model.program`) into the contents of
files; here they are written, all or none.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from softwood.model.model import model_of
from softwood.model.whole_file import write_whole

__all__ = ["ExportError", "export"]


class ExportError(ValueError):
    """A model that the target cannot express, or a path that names no target."""


def export(model: Any, path: str | os.PathLike[str]) -> list[Path]:
    """Write a fitted model for use without Python, or without softwood.

    Parameters
    ----------
    model : estimator or Model
        A fitted estimator, or what `softwood.load` gave.
    path : path
        ``*.onnx`` for a graph of standard operators (needs ``pip install 'softwood[onnx]'``), ``*.c`` for one C99 file
        and a header beside it.

    Returns
    -------
    list of Path
        The files written. A file is written whole or not at all, and no file is left behind when one fails.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_breast_cancer
    >>> import softwood
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> classifier = softwood.TreeEnsembleClassifier(n_members=1, max_epochs=2, random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [file.name for file in export(classifier, Path(folder) / "tumour.c")]
    ['tumour.h', 'tumour.c']
    """
    path = Path(path)
    program = model_of(model).program
    if path.suffix == ".c":
        from softwood.export.c import c_source

        header, source = c_source(program, path.stem)
        return _write_all({path.with_suffix(".h"): header.encode(), path: source.encode()})
    if path.suffix == ".onnx":
        from softwood.export.onnx import onnx_graph

        return _write_all({path: onnx_graph(program).SerializeToString()})
    raise ExportError(f"The path of an export must end in .onnx or .c; got {path.name!r}.")


def _write_all(contents: dict[Path, bytes]) -> list[Path]:
    was_there = {path: path.exists() for path in contents}
    try:
        for path, data in contents.items():
            write_whole(path, data)
    except BaseException:
        for path, existed in was_there.items():
            if not existed:
                with contextlib.suppress(OSError):
                    path.unlink()
        raise
    return list(contents)
