"""The command `compress`: a model and a table in, a small model that predicts almost the same out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as ScreenTable

import softwood
from softwood.cli.console import (
    AsJson,
    Jobs,
    ModelFile,
    Source,
    Target,
    as_json_text,
    kinds_of,
    print_notes,
    read_source,
    require_apart,
    require_place,
)
from softwood.cli.task import known_task, model_columns

_ROWS = {
    "trees": ("n_trees", "{:,d}"),
    "parameters": ("n_parameters", "{:,d}"),
    "bytes": ("n_bytes", "{:,d}"),
    "leaves reached per tree": ("leaves_reached", "{:.1f}"),
    "microseconds per row": ("microseconds_per_row", "{:.2f}"),
}


def compress(
    model: ModelFile,
    source: Source,
    out: Annotated[Path, typer.Option("--out", "-o", help="Model file to write.")],
    target: Target = None,
    max_parameters: Annotated[int | None, typer.Option(min=1, help="Largest number of stored values.")] = None,
    max_loss: Annotated[float | None, typer.Option(help="Largest relative rise of the loss, such as 0.01.")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="Draw loss against size: .png, .pdf or .svg.")] = None,
    n_jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Teach one small ensemble to predict what a model predicts, on rows like those it will be used for."""
    require_place(out, (".safetensors",))
    require_apart([out], {"model": model, "table": source})
    if picture is not None:
        require_place(picture, (".png", ".pdf", ".svg"))
    estimator = softwood.load(model)
    estimator.set_params(n_jobs=n_jobs, random_state=0)
    frame = read_source(source, kinds_of(estimator))
    name = target or estimator.model_.target_name
    if target is not None or name in frame.column_names:
        known = known_task(frame, estimator.model_, str(name))
        print_notes(known.notes)
        X, y = known.features, known.target
    else:
        X, y = model_columns(frame, estimator.model_), None
    small = estimator.compress(X, y, max_parameters=max_parameters, max_loss=max_loss)
    small.save(out)
    if picture is not None:
        from softwood.explain import plot

        plot.save(plot.plot_compression(small), picture)
    found = small.compression_
    if as_json:
        print(as_json_text({"model": str(out), **asdict(found)}))
        return
    _print(found, out)


def _print(found: Any, out: Path) -> None:
    screen = ScreenTable("", "before", "after")
    for title, (field, style) in _ROWS.items():
        screen.add_row(title, *(style.format(getattr(size, field)) for size in (found.before, found.after)))
    if found.before.score == found.before.score:  # not NaN
        scores = (f"{size.score:.4f} ± {size.standard_error:.4f}" for size in (found.before, found.after))
        screen.add_row(f"{found.metric}, rows left out", *scores)
    screen.add_row("agreement", "", f"{found.agreement:.2%}")
    screen.add_row("expected rise of the loss", "", f"{found.expected_loss:.2%}")
    Console().print(screen)
    print(f"written: {out}")
