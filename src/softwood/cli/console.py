"""What commands of the command line share: argument types, opening of tables, printing for people and machines."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table as ScreenTable

import softwood
from softwood.cli.example_tables import EXAMPLES, load_example
from softwood.cli.tablefile import TableFileError, read_file
from softwood.metrics import FIGURES
from softwood.supervised import LearningTask, known_task

Source = Annotated[str, typer.Argument(metavar="TABLE", help="File (.csv, .tsv, .parquet) or built-in table.")]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="Model file written by train.")]
Target = Annotated[str | None, typer.Option("--target", "-t", help="Column to predict.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")]
Task = Annotated[str, typer.Option(help="auto, classification or regression.")]
Drop = Annotated[list[str] | None, typer.Option("--drop", help="Column to leave out; may be repeated.")]
Seed = Annotated[int, typer.Option(help="Same seed, same result, to the bit.")]
Jobs = Annotated[int | None, typer.Option(help="Threads; all cores if not given.")]


def open_table(source: str, target: str | None, task: str = "auto") -> tuple[Any, str, str]:
    """Table, target and task of a file or a built-in table."""
    if source in EXAMPLES:
        frame, known_target, known_task_name = load_example(source)
        return frame, target or known_target, task if target or task != "auto" else known_task_name
    if not os.path.exists(source) and "." not in os.path.basename(source):
        raise TableFileError(
            f"There is no file {source!r}, nor a built-in table of that name: those are {', '.join(EXAMPLES)}."
        )
    frame = read_file(source)
    if target is None:
        raise ValueError(
            f"Say which column to predict with --target; {source} has {', '.join(map(repr, frame.column_names[:20]))}."
        )
    return frame, target, task


def open_known(model: Path, source: str, target: str | None) -> tuple[Any, LearningTask]:
    """A fitted estimator, and a table with the target that it predicts."""
    estimator = softwood.load(model)
    frame, target, _ = open_table(source, target or estimator.model_.target_name)
    return estimator, known_task(frame, estimator.model_, target)


def require_folder(out: Path) -> None:
    if not out.parent.is_dir():
        raise ValueError(f"The folder of {out} must exist; make it with: mkdir -p {out.parent}")


def as_json_text(value: Any) -> str:
    return json.dumps(_plain(value), indent=2, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """JSON has no NaN: it becomes null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def print_notes(notes: list[str]) -> None:
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def print_figures(figures: dict[str, float], title: str) -> None:
    print(title)
    screen = ScreenTable("figure", "value", "better")
    for name, value in figures.items():
        words, more_is_better = FIGURES[name]
        screen.add_row(words, f"{value:.4f}", "higher" if more_is_better else "lower")
    Console().print(screen)


def print_files(files: dict[str, str]) -> None:
    print("Files to look at:")
    for key, path in files.items():
        print(f"  {key:12} {path}")
