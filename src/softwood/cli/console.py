"""What the commands share: argument types, opening of tables, printing as text and as JSON."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table as ScreenTable

import softwood
from softwood.cli.example_tables import EXAMPLES, load_example
from softwood.cli.files import names_files, read_files
from softwood.cli.hyperparameters import option_names
from softwood.cli.metrics import METRICS
from softwood.cli.tablefile import TableFileError, local_file, read_file
from softwood.cli.task import LearningTask, known_task

Source = Annotated[
    str, typer.Argument(metavar="TABLE", help="File (.csv, .tsv, .parquet), built-in table, or - for standard input.")
]
Sources = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="File (.csv, .tsv, .parquet), folder or 'glob' of such files, built-in table, or - for standard input.",
    ),
]
Workers = Annotated[int, typer.Option(min=1, help="Processes that share out the files of a folder or glob.")]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="Model file written by train.")]
Target = Annotated[str | None, typer.Option("--target", "-t", help="Column to predict.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Task = Annotated[str, typer.Option(help="auto, classification or regression.")]
Drop = Annotated[list[str] | None, typer.Option("--drop", help="Column to leave out; may be repeated.")]
_KINDS_PANEL = "Kinds of columns (inferred from their cells unless given; may be repeated)"
Categorical = Annotated[
    list[str] | None, typer.Option("--categorical", help="Column of categories.", rich_help_panel=_KINDS_PANEL)
]
Numeric = Annotated[
    list[str] | None, typer.Option("--numeric", help="Column of numbers.", rich_help_panel=_KINDS_PANEL)
]
Date = Annotated[list[str] | None, typer.Option("--date", help="Column of dates.", rich_help_panel=_KINDS_PANEL)]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Fail on useless columns (ids, no values) instead of leaving them out."),
]
Delimiter = Annotated[
    str | None, typer.Option("--delimiter", help='Separator of cells in a text file, such as "|"; tab for tabs.')
]
Seed = Annotated[
    int,
    typer.Option(
        *option_names("random_state"), min=0, max=2**32 - 1, help="Seed; equal seeds give equal results, bit for bit."
    ),
]
Jobs = Annotated[int | None, typer.Option(*option_names("n_jobs"), help="Number of threads; all cores if not given.")]


def examples(*commands: str) -> str:
    """The end of a command's help, one example per line (the help joins lines, but not paragraphs)."""
    return "\n\n".join(["Examples:", *commands])


def declared_kinds(
    categorical: Sequence[str] | None, numeric: Sequence[str] | None, date: Sequence[str] | None
) -> dict[str, str]:
    """Kinds of columns by name, as the options --categorical, --numeric and --date give them."""
    found: dict[str, str] = {}
    for kind, names in {"category": categorical, "numeric": numeric, "date": date}.items():
        for name in names or ():
            if found.setdefault(name, kind) != kind:
                raise ValueError(
                    f"Column {name!r} must have one type; it is declared as {found[name]} and as {kind}. "
                    "Remove one of the options."
                )
    return found


def open_table(
    source: str,
    target: str | None,
    task: str = "auto",
    *,
    kinds: Mapping[str, str] | None = None,
    delimiter: str | None = None,
) -> tuple[Any, str, str]:
    """Table, target and task of a file or a built-in table."""
    if source in EXAMPLES:
        frame, known_target, known_task_name = load_example(source)
        return frame, target or known_target, task if target or task != "auto" else known_task_name
    frame = read_source(source, kinds, delimiter=delimiter)
    if target is None:
        raise ValueError(
            f"Name the column to predict with --target; {source} has {', '.join(map(repr, frame.column_names[:20]))}."
        )
    return frame, target, task


def read_source(source: str, kinds: Mapping[str, str] | None = None, *, delimiter: str | None = None) -> Any:
    """A file or a built-in table as an Arrow table; columns whose kind is given are read as such."""
    if source in EXAMPLES:
        return load_example(source)[0]
    if names_files(source):
        return read_files(source)
    require_source(source)
    with local_file(source) as path:
        return read_file(path, kinds, delimiter=checked_delimiter(delimiter))


def checked_delimiter(text: str | None) -> str | None:
    """The one character that --delimiter names."""
    delimiter = {"tab": "\t", "\\t": "\t"}.get(text or "", text)
    if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n'):
        raise ValueError(f"--delimiter must be one character, or tab; got {text!r}.")
    return delimiter


def require_source(source: str) -> None:
    """Refuse what is neither a file nor a built-in table, where the name does not even look like a file's."""
    if source not in (*EXAMPLES, "-") and not os.path.exists(source) and "." not in os.path.basename(source):
        raise TableFileError(
            f"There is no file or built-in table {source!r}. Built-in tables are {', '.join(EXAMPLES)}."
        )


def kinds_of(estimator: Any) -> dict[str, str]:
    """Kind of each column that a model reads."""
    return dict(zip(estimator.model_.column_names, estimator.model_.preprocessor.kinds, strict=True))


def open_known(
    model: Path, source: str, target: str | None, *, delimiter: str | None = None
) -> tuple[Any, LearningTask]:
    """A fitted estimator, and a table with the target that it predicts."""
    estimator = softwood.load(model)
    frame = read_source(source, kinds_of(estimator), delimiter=delimiter)
    target = target or estimator.model_.target_name
    if target is None:
        raise ValueError(f"Name the column of true values with --target; {model} does not record its target.")
    return estimator, known_task(frame, estimator.model_, target)


def require_place(out: Path, suffixes: Sequence[str] = ()) -> None:
    """Refuse, before any work is done, a file that could not be written in the end."""
    folder = shlex.quote(str(out.parent))
    if not out.parent.is_dir():
        raise ValueError(f"The folder of {out} must exist; it does not. Create it: mkdir -p {folder}")
    if out.is_dir():
        raise ValueError(f"{out} is a folder; name a file to write, such as {out / 'out'}{(*suffixes, '')[0]}.")
    if not os.access(out.parent, os.W_OK):
        raise ValueError(f"The folder of {out} must be writable; it is not. Choose another with --out.")
    if suffixes and out.suffix.lower() not in suffixes:
        raise ValueError(f"The name of the file to write must end in {' or '.join(suffixes)}; got {str(out)!r}.")


def require_apart(outputs: Iterable[Path], inputs: Mapping[str, str | Path | None]) -> None:
    """Refuse to write over a file that the command reads; `inputs` has them by what they are."""
    for out in outputs:
        for what, path in inputs.items():
            if path is not None and _is_same_file(out, path):
                raise ValueError(
                    f"{out} is the {what} that this command reads, and would be overwritten. "
                    "Name another file with --out."
                )


def _is_same_file(a: str | Path, b: str | Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:  # one of them is not there yet
        return os.path.realpath(a) == os.path.realpath(b)


def run_file(model: Path) -> Path:
    """Where `train` describes the run that made a model; no other command writes files of such names."""
    return model.with_suffix(".run.json")


def as_json_text(value: Any) -> str:
    return json.dumps(plain(value), indent=2, ensure_ascii=False)


def plain(value: Any) -> Any:
    """JSON has no NaN: it becomes null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def print_notes(notes: list[str]) -> None:
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def print_metrics(metrics: dict[str, float], title: str) -> None:
    print(title)
    screen = ScreenTable("metric", "value", "better")
    for name, value in metrics.items():
        words, more_is_better = METRICS[name]
        screen.add_row(words, f"{value:.4f}", "higher" if more_is_better else "lower")
    Console().print(screen)


def print_files(files: dict[str, str]) -> None:
    print("Files to look at:")
    for key, path in files.items():
        print(f"  {key:12} {path}")
