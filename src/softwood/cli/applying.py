"""The commands that use a model: `evaluate`, `predict`, `info` and `export`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table as ScreenTable

import softwood
from softwood.cli.console import (
    AsJson,
    Delimiter,
    Jobs,
    ModelFile,
    Sources,
    Target,
    Workers,
    as_json_text,
    checked_delimiter,
    kinds_of,
    open_known,
    plain,
    print_metrics,
    print_notes,
    require_apart,
    require_place,
    require_source,
    run_file,
)
from softwood.cli.example_tables import EXAMPLES, load_example
from softwood.cli.files import evaluate_files, find_files, names_files, predict_files
from softwood.cli.metrics import compute_metrics
from softwood.cli.tablefile import NO_ROWS, BatchWriter, TableFileError, local_file, read_batches
from softwood.cli.task import class_labels, model_columns, require_column
from softwood.model.parameter_counts import ParameterCounts


def evaluate(
    model: ModelFile,
    source: Sources,
    target: Target = None,
    workers: Workers = 1,
    delimiter: Delimiter = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on rows with a known target."""
    if names_files(source):
        _evaluate_files(model, source, target, workers, delimiter, as_json)
        return
    estimator, test = open_known(model, source, target, delimiter=delimiter)
    print_notes(test.notes)
    if _is_training_table(model, source):
        print_notes([f"{source} is the table that the model was trained on: expect worse metrics on new rows."])
    metrics = compute_metrics(estimator, test.features, test.target)
    _print_evaluation(metrics, len(test.target), test.target_name, f"{model} on {{}} rows of {source}", as_json)


def _evaluate_files(
    model: Path, source: str, target: str | None, workers: int, delimiter: str | None, as_json: bool
) -> None:
    target = target or softwood.load(model).model_.target_name
    if target is None:
        raise ValueError(f"Name the column of true values with --target; {model} does not record its target.")
    options = {"n_jobs": 1 if workers > 1 else None, "batch_rows": 65_536, "delimiter": checked_delimiter(delimiter)}
    metrics, n_rows = evaluate_files(model, find_files(source), target, workers, options)
    _print_evaluation(metrics, n_rows, target, f"{model} on {{}} rows of {source}", as_json)


def _print_evaluation(metrics: dict[str, float], n_rows: int, target: str, title: str, as_json: bool) -> None:
    if as_json:
        print(as_json_text({"rows": n_rows, "target": target, "metrics": metrics}))
    else:
        print_metrics(metrics, title.format(n_rows))


def predict(
    model: ModelFile,
    source: Sources,
    out: Annotated[
        str, typer.Option("--out", "-o", help="File (.csv, .tsv, .parquet), or folder for many; - prints CSV.")
    ] = "-",
    keep: Annotated[list[str] | None, typer.Option(help="Column to copy to the output; may be repeated.")] = None,
    batch_rows: Annotated[int, typer.Option(min=1, help="Approximate number of rows in memory at a time.")] = 65_536,
    delimiter: Delimiter = None,
    escape: Annotated[
        bool, typer.Option("--escape", help="Put ' before texts that spreadsheets take for formulas (= + - @).")
    ] = False,
    n_jobs: Jobs = None,
    workers: Workers = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per row; with --out, one that says what was written.")
    ] = False,
) -> None:
    """Predict rows of a table of any length, batch by batch: class labels and probabilities, or values.

    Of a folder or a glob in quotes ('in/*.parquet'), each file's predictions go to a file of the same name in --out.
    """
    if names_files(source):
        options: dict[str, Any] = {
            "n_jobs": n_jobs or (1 if workers > 1 else None),
            "batch_rows": batch_rows,
            "keep": keep or (),
        }
        options |= {"escape": escape, "delimiter": checked_delimiter(delimiter)}
        _predict_files(model, source, out, workers, options, as_json)
        return
    estimator = softwood.load(model)
    estimator.set_params(n_jobs=n_jobs)
    require_source(source)
    is_file = out != "-"
    if is_file:
        require_place(Path(out))
        require_apart([Path(out)], {"table": source, "model": model})
    n_rows = 0
    with local_file(source) as path, _writer(out, escape=escape, as_json=as_json) as write:
        for batch in _batches(source, path, kinds_of(estimator), batch_rows, checked_delimiter(delimiter)):
            write(predictions(estimator, batch, keep or ()))
            n_rows += len(batch)
        if n_rows == 0:
            raise TableFileError(NO_ROWS.format(path))
    if is_file and as_json:
        print(as_json_text({"rows": n_rows, "file": out}))
    elif is_file:
        print(f"{n_rows} rows written to {out}", file=sys.stderr)


def _predict_files(model: Path, source: str, out: str, workers: int, options: dict[str, Any], as_json: bool) -> None:
    if out == "-":
        raise ValueError("Predictions of many files need a folder; name it with --out.")
    files = find_files(source)
    n_rows, empty = predict_files(model, files, Path(out), workers, options)
    if empty:
        print_notes([f"{len(empty)} files have no rows and were skipped, the first of them {empty[0]}."])
    if as_json:
        print(as_json_text({"rows": n_rows, "files": len(files) - len(empty), "folder": out}))
    else:
        print(f"{n_rows} rows of {len(files) - len(empty)} files written to {out}", file=sys.stderr)


@contextmanager
def _writer(out: str, *, escape: bool, as_json: bool) -> Iterator[Callable[[Any], None]]:
    """A function that takes predictions batch by batch, to a file or to standard output as CSV or lines of JSON."""
    if out == "-" and as_json:
        yield _print_rows
        return
    with BatchWriter(out, escape=escape) as writer:
        yield writer.write


def _print_rows(table: Any) -> None:
    for row in table.to_pylist():
        print(json.dumps(plain(row), ensure_ascii=False, default=str))


def _batches(source: str, path: str, kinds: dict[str, str], batch_rows: int, delimiter: str | None) -> Iterator[Any]:
    if source in EXAMPLES:
        return iter([load_example(source)[0]])
    return read_batches(path, kinds, batch_rows=batch_rows, delimiter=delimiter)


def _parameters(counts: ParameterCounts) -> dict[str, Any]:
    read = None if np.isnan(counts.read) else round(counts.read, 1)
    return {"trainable": counts.trainable, "stored": counts.stored, "read_by_a_row": read}


def info(model: ModelFile, as_json: AsJson = False) -> None:
    """Show what a model file holds: task, columns, trees, training."""
    estimator = softwood.load(model)
    fitted = estimator.model_
    trees = fitted.members[0].trees
    facts: dict[str, Any] = {
        "file": str(model),
        "bytes": model.stat().st_size,
        "task": fitted.head.task,
        "target": fitted.target_name,
        "classes": None if fitted.head.classes is None else class_labels(fitted.head.classes),
        "members": len(fitted.members),
        "trees_per_member": trees.leaf_weight.shape[0],
        "depth": trees.leaf_weight.shape[1].bit_length() - 1,
        "activation": trees.activation,
        "gamma": round(float(trees.gamma), 6),
        "parameters": _parameters(fitted.n_parameters),
        "epochs": max(fitted.history.get("epoch", []), default=-1) + 1,
        "columns": kinds_of(estimator),
    }
    if as_json:
        print(as_json_text(facts))
        return
    columns = facts.pop("columns")
    screen = ScreenTable("", "", show_header=False)
    for key, value in facts.items():
        if value is not None:
            if isinstance(value, dict):
                value = [f"{number} {name.replace('_', ' ')}" for name, number in value.items() if number is not None]
            screen.add_row(key.replace("_", " "), ", ".join(value) if isinstance(value, list) else str(value))
    console = Console()
    console.print(screen)
    screen = ScreenTable("column", "kind", "importance")
    for j in np.argsort(-fitted.importances)[:20]:
        name = fitted.column_names[j]
        screen.add_row(name, columns[name], f"{fitted.importances[j]:.3f}")
    console.print(screen)
    if len(columns) > 20:
        console.print(f"and {len(columns) - 20} more columns (--json lists them all)")


def export(
    model: ModelFile,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="File to write: .onnx, or .c (with a header beside it).")],
    as_json: AsJson = False,
) -> None:
    """Write a model as an ONNX graph or as C, for use without softwood."""
    from softwood.export import export as write_export

    require_place(out, (".onnx", ".c"))
    require_apart([out, out.with_suffix(".h")], {"model": model})
    files = write_export(softwood.load(model), out)
    if as_json:
        print(as_json_text({"files": [str(path) for path in files]}))
        return
    for path in files:
        print(f"{path} written", file=sys.stderr)


def predictions(estimator: Any, batch: Any, keep: list[str] | tuple[str, ...]) -> Any:
    """Predictions of a batch as an Arrow table."""
    import pyarrow as pa

    columns = {name: batch.column(require_column(name, batch.column_names)) for name in keep}
    features = model_columns(batch, estimator.model_)
    if not hasattr(estimator, "classes_"):
        predicted = estimator.model_.predict(features)
        outputs = predicted.reshape(len(predicted), -1)
        names = ["prediction"] if outputs.shape[1] == 1 else [f"prediction {j}" for j in range(outputs.shape[1])]
        return pa.table(columns | dict(zip(names, outputs.T, strict=True)))
    predicted, head = estimator.model_.predict_proba(features), estimator.model_.head
    labels = class_labels(head.classes)
    if head.task == "multilabel":
        columns |= {f"prediction {label}": (predicted[:, c] > 0.5).astype(int) for c, label in enumerate(labels)}
    else:
        columns["prediction"] = pa.array(head.classes[predicted.argmax(axis=1)].tolist())
    return pa.table(columns | {f"probability {label}": predicted[:, c] for c, label in enumerate(labels)})


def _is_training_table(model: Path, source: str) -> bool:
    try:
        run = json.loads(run_file(model).read_text())
        return bool(run["source"] == source)
    except (OSError, ValueError, KeyError, TypeError):
        return False
