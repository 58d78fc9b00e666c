"""The commands that explain: `explain`, `plot` and `report`. The modules of those names do the work."""

from __future__ import annotations

from enum import Enum
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
    ModelFile,
    Source,
    Target,
    as_json_text,
    kinds_of,
    open_known,
    print_notes,
    read_source,
    require_apart,
    require_place,
)
from softwood.cli.task import class_labels, model_columns
from softwood.explain import DecisionPath, column_contributions, decision_path, importances, rules, usage

PICTURES = (".png", ".pdf", ".svg")
# More rows would not change the pictures and means that are shown.
_MAX_ROWS = 2000

MaybeSource = Annotated[str | None, typer.Argument(metavar="[TABLE]", help="File or built-in table with rows.")]
MaybeModel = Annotated[Path | None, typer.Argument(metavar="[MODEL]", help="Model file written by train.")]
Row = Annotated[int | None, typer.Option(help="Number of a row of the table, from 0.")]


class Picture(str, Enum):
    """What `softwood plot` can draw."""

    history = "history"
    importances = "importances"
    tree = "tree"
    path = "path"
    activations = "activations"


def explain(
    model: ModelFile,
    source: MaybeSource = None,
    row: Row = None,
    delimiter: Delimiter = None,
    as_json: AsJson = False,
) -> None:
    """Show which columns a model uses; with a table, which nodes its rows reach; with --row, how one is predicted."""
    estimator = softwood.load(model)
    found: dict[str, Any] = {"importances": dict(importances(estimator))}
    path = None
    if source is not None:
        X = _features(estimator, source, delimiter)
        found["usage"] = _usage(estimator, X)
        if row is not None:
            path = decision_path(estimator, X, row)
            found["row"] = _row(estimator, X, row, path)
    elif row is not None:
        raise ValueError("--row needs a table: softwood explain MODEL TABLE --row N.")
    if as_json:
        print(as_json_text(found))
        return
    console = Console()
    screen = ScreenTable("column", "importance")
    for name, share in list(found["importances"].items())[:15]:
        screen.add_row(name, f"{share:.3f}")
    console.print(screen)
    if "usage" in found:
        for name, value in found["usage"].items():
            print(f"{name.replace('_', ' ')}: {value:.4g}")
    if path is not None:
        _print_row(console, found["row"])


def plot(
    picture: Annotated[Picture, typer.Argument(help="What to draw.")],
    model: MaybeModel = None,
    source: MaybeSource = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Picture file: .png, .pdf or .svg.")] = None,
    row: Annotated[int, typer.Option(help="Row whose path is drawn, from 0.")] = 0,
    member: Annotated[int | None, typer.Option(help="Member whose tree is drawn.")] = None,
    tree: Annotated[
        int | None, typer.Option(help="Tree that is drawn; the one that decides most if not given.")
    ] = None,
    output: Annotated[int, typer.Option(help="Raw score that leaves show, from 0.")] = 0,
    delimiter: Delimiter = None,
    as_json: AsJson = False,
) -> None:
    """Draw a model: history, importances, tree and path (these two need a TABLE), or the activations (needs none)."""
    from softwood.explain import plot as pictures
    from softwood.explain.tree_view import strongest_trees

    out = out or Path(f"{picture.value}.png")
    require_place(out, PICTURES)
    require_apart([out], {"table": source, "model": model})
    if picture is Picture.activations:
        _print_file(pictures.save(pictures.plot_activations(), out), as_json)
        return
    if model is None:
        raise ValueError(f"Name a model: softwood plot {picture.value} MODEL.")
    estimator = softwood.load(model)
    if picture is Picture.history:
        ax = pictures.plot_history(estimator)
    elif picture is Picture.importances:
        ax = pictures.plot_importances(estimator)
    else:
        if source is None:
            raise ValueError(f"Name a table with rows: softwood plot {picture.value} MODEL TABLE.")
        X = _features(estimator, source, delimiter)
        if member is None and tree is None:
            member, tree = strongest_trees(estimator.model_, X)[0]
        which = {"member": member or 0, "tree": tree or 0, "output": output}
        if picture is Picture.tree:
            ax = pictures.plot_tree(estimator, X.slice(0, _MAX_ROWS), **which)
        else:
            ax = pictures.plot_row_path(estimator, X, row, **which)
    _print_file(pictures.save(ax, out), as_json)


def report(
    model: ModelFile,
    source: Source,
    target: Target = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")] = Path("report.html"),
    delimiter: Delimiter = None,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page on a model and rows with a known target: metrics, errors, effects of columns, trees."""
    from softwood.explain.report import write_report

    require_place(out, (".html", ".htm"))
    require_apart([out], {"table": source, "model": model})
    estimator, test = open_known(model, source, target, delimiter=delimiter)
    print_notes(test.notes)
    write_report(out, estimator, test.features, test.target, target_name=test.target_name)
    _print_file(out, as_json)


def _features(estimator: Any, source: str, delimiter: str | None) -> Any:
    """The columns of a table that a model reads."""
    return model_columns(read_source(source, kinds_of(estimator), delimiter=delimiter), estimator.model_)


def _print_file(path: Path, as_json: bool) -> None:
    print(as_json_text({"file": str(path)}) if as_json else path)


def _usage(estimator: Any, X: Any) -> dict[str, float]:
    used = usage(estimator, X.slice(0, _MAX_ROWS))
    return {
        "mean_reachable_leaves_per_tree": float(np.mean(np.concatenate(used.mean_reachable_leaves))),
        "leaves_per_tree": (used.traffic[0].shape[1] + 1) // 2,
        "share_of_unused_splits": float(np.mean(np.concatenate([unused.ravel() for unused in used.unused_splits]))),
        "share_of_unused_leaves": float(np.mean(np.concatenate([unused.ravel() for unused in used.unused_leaves]))),
    }


def _row(estimator: Any, X: Any, row: int, path: DecisionPath) -> dict[str, Any]:
    model = estimator.model_
    output = 0 if model.n_outputs == 1 else int(np.argmax(path.raw_scores))
    shares = column_contributions(model, X.slice(row, 1), background=X.slice(0, _MAX_ROWS))
    values = shares.values[0, :, output]
    order = np.argsort(-np.abs(values), kind="stable")
    best = path.strongest(1, output)[0]
    classes = None if model.head.classes is None else class_labels(model.head.classes)
    prediction = np.atleast_1d(path.prediction).tolist()
    return {
        "row": row,
        "prediction": prediction if classes is None else dict(zip(classes, prediction, strict=True)),
        "raw_score": float(path.raw_scores[output]),
        "raw_score_of": None if classes is None else classes[output if model.n_outputs > 1 else 1],
        "usual_raw_score": float(shares.base[output]),
        "columns": {model.column_names[j]: float(values[j]) for j in order},
        "trees": [
            {
                "member": tree.member,
                "tree": tree.tree,
                "contribution": float(tree.contribution[output]),
                "nodes_reached": len(tree.reach),
                "leaves_reached": len(tree.leaf_contributions),
            }
            for tree in path.strongest(len(path.trees), output)
        ],
        "offset": float(path.offset[output]),
        "rules": [str(rule) for rule in rules(model, X, row, member=best.member, tree=best.tree)],
    }


def _print_row(console: Console, found: dict[str, Any]) -> None:
    prediction = found["prediction"]
    if isinstance(prediction, dict):
        words = ", ".join(f"{name}: {value:.4g}" for name, value in prediction.items())
    else:
        words = ", ".join(f"{value:.4g}" for value in prediction)
    of = "" if found["raw_score_of"] is None else f" for {found['raw_score_of']!r}"
    print(f"\nRow {found['row']}: {words}")
    print(
        f"Raw score{of} {found['raw_score']:+.4g}; rows of this table have {found['usual_raw_score']:+.4g} on average."
    )
    screen = ScreenTable("column", "moves the raw score by")
    for name, value in list(found["columns"].items())[:10]:
        screen.add_row(name, f"{value:+.4f}")
    console.print(screen)
    screen = ScreenTable("member", "tree", "adds to the raw score", "leaves reached")
    for tree in found["trees"][:5]:
        leaves = str(tree["leaves_reached"])
        screen.add_row(str(tree["member"]), str(tree["tree"]), f"{tree['contribution']:+.4f}", leaves)
    console.print(screen)
    first = found["trees"][0]
    print(f"Splits on the most likely path through member {first['member']}, tree {first['tree']}:")
    for rule in found["rules"]:
        print(f"  {rule}")
