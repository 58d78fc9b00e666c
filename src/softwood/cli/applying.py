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
    Source,
    Target,
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
from softwood.cli.metrics import compute_metrics
from softwood.cli.tablefile import NO_ROWS, BatchWriter, TableFileError, local_file, read_batches
from softwood.cli.task import class_labels, model_columns, require_column
from softwood.model.parameter_counts import ParameterCounts


def evaluate(
    model: ModelFile, source: Source, target: Target = None, delimiter: Delimiter = None, as_json: AsJson = False
) -> None:
    """Evaluate a model on rows with a known target."""
    estimator, test = open_known(model, source, target, delimiter=delimiter)
    print_notes(test.notes)
    if _is_training_table(model, source):
        print_notes([f"{source} is the table that the model was trained on: expect worse metrics on new rows."])
    metrics = compute_metrics(estimator, test.features, test.target)
    if as_json:
        print(as_json_text({"rows": len(test.target), "target": test.target_name, "metrics": metrics}))
        return
    print_metrics(metrics, f"{model} on {len(test.target)} rows of {source}")


def predict(
    model: ModelFile,
    source: Source,
    out: Annotated[str, typer.Option("--out", "-o", help="File (.csv, .tsv, .parquet); - prints CSV.")] = "-",
    keep: Annotated[list[str] | None, typer.Option(help="Column to copy to the output; may be repeated.")] = None,
    batch_rows: Annotated[int, typer.Option(min=1, help="Approximate number of rows in memory at a time.")] = 65_536,
    delimiter: Delimiter = None,
    escape: Annotated[
        bool, typer.Option("--escape", help="Put ' before texts that spreadsheets take for formulas (= + - @).")
    ] = False,
    n_jobs: Jobs = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per row; with --out, one that says what was written.")
    ] = False,
) -> None:
    """Predict rows of a table of any length, batch by batch: class labels and probabilities, or values."""
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
            write(_predictions(estimator, batch, keep or ()))
            n_rows += len(batch)
        if n_rows == 0:
            raise TableFileError(NO_ROWS.format(path))
    if is_file and as_json:
        print(as_json_text({"rows": n_rows, "file": out}))
    elif is_file:
        print(f"{n_rows} rows written to {out}", file=sys.stderr)


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


def _predictions(estimator: Any, batch: Any, keep: list[str] | tuple[str, ...]) -> Any:
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
