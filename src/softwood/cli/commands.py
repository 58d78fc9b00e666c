"""The command `softwood`: what each subcommand is called, which options it has, and what it prints.

The work is done elsewhere: files by `softwood.cli.tablefile`, targets by `softwood.cli.task`, metrics by
`softwood.cli.metrics`, search by `softwood.cli.tune`, explanations, pictures and the report by
`softwood.explain`. Errors are turned into one line by `softwood.__main__`.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table as ScreenTable

import softwood
from softwood.cli.console import (
    AsJson,
    Drop,
    Jobs,
    ModelFile,
    Seed,
    Source,
    Target,
    Task,
    as_json_text,
    examples,
    kinds_of,
    open_known,
    open_table,
    print_files,
    print_metrics,
    print_notes,
    require_place,
    require_source,
)
from softwood.cli.example_tables import EXAMPLES, load_example
from softwood.cli.explaining import explain, plot, report
from softwood.cli.hyperparameters import option_names, with_hyperparameters
from softwood.cli.metrics import compute_metrics
from softwood.cli.tablefile import NO_ROWS, BatchWriter, TableFileError, read_batches
from softwood.cli.task import LearningTask, class_labels, learning_task, model_columns, require_column
from softwood.model.container import write_whole

app = typer.Typer(
    help="Soft decision trees for tables: train, judge, apply and explain a model without writing code.",
    epilog=f"A table is a .csv, .tsv (also .gz) or .parquet file, or a built-in one: {', '.join(EXAMPLES)}.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(softwood.__version__)
        raise typer.Exit


@app.command(
    epilog=examples(
        "softwood train breast-cancer --report",
        "softwood train data.csv --target churned --drop id",
        "softwood train sales.parquet -t price --task regression --max-epochs 20 --out price.safetensors",
    )
)
@with_hyperparameters
def train(
    source: Source,
    target: Target = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Model file to write.")] = Path("model.safetensors"),
    task: Task = "auto",
    drop: Drop = None,
    test_fraction: Annotated[float, typer.Option(help="Share of rows held out to judge the model.")] = 0.2,
    params: Annotated[Path | None, typer.Option(help="JSON file of hyperparameters, as tune writes.")] = None,
    random_state: Seed = 0,
    n_jobs: Jobs = None,
    report: Annotated[bool, typer.Option("--report", help="Also write test rows, plots and an HTML report.")] = False,
    as_json: AsJson = False,
    hyperparameters: dict[str, Any] = {},  # noqa: B006 (never changed; each becomes an option)
) -> None:
    """Train a model on a table, judge it on rows held out, write it to a file. Ctrl-C keeps the best epoch so far."""
    started = time.monotonic()
    require_place(out, (".safetensors",))
    frame, target, task = open_table(source, target, task)
    found = learning_task(frame, target, task=task, drop=drop or ())
    print_notes(found.notes)
    training_rows, test_rows = found.split(test_fraction, random_state)
    training, test = found.take(training_rows), found.take(test_rows)
    chosen = _read_params(params) | hyperparameters
    estimator = _estimator(found.task, chosen, random_state, n_jobs, verbose=not as_json)
    interrupted = _fit(estimator, training)
    metrics = compute_metrics(estimator, test.features, test.target)
    estimator.save(out)
    run = {
        "softwood": softwood.__version__,
        "source": source,
        "target": target,
        "task": found.task,
        "rows": {"training": len(training_rows), "test": len(test_rows)},
        "columns": kinds_of(estimator),
        "parameters": estimator.model_.estimator["params"],
        "seed": random_state,
        "seconds": round(time.monotonic() - started, 2),
        "interrupted": interrupted,
        "metrics": metrics,
        "history": estimator.history_,
    }
    files = {"model": out, "run": out.with_suffix(".json")}
    write_whole(files["run"], as_json_text(run).encode())
    if report:
        files |= _write_report_files(out, estimator, test)
    names = {key: str(path) for key, path in files.items()}
    if as_json:
        print(as_json_text({key: value for key, value in run.items() if key != "history"} | {"files": names}))
    else:
        title = f"{found.task} of {target!r}: {len(training_rows)} rows to learn from, {len(test_rows)} held out"
        print_metrics(metrics, title)
        print_files(names)
    if interrupted:
        sys.exit(130)


@app.command(epilog=examples("softwood evaluate model.safetensors new.csv --target churned --json"))
def evaluate(model: ModelFile, source: Source, target: Target = None, as_json: AsJson = False) -> None:
    """Judge a model on rows with a known target."""
    estimator, test = open_known(model, source, target)
    print_notes(test.notes)
    if _is_training_table(model, source):
        print_notes([f"{source} is the table that the model was trained on: expect worse metrics on new rows."])
    metrics = compute_metrics(estimator, test.features, test.target)
    if as_json:
        print(as_json_text({"rows": len(test.target), "target": test.target_name, "metrics": metrics}))
        return
    print_metrics(metrics, f"{model} on {len(test.target)} rows of {source}")


@app.command(
    epilog=examples(
        "softwood predict model.safetensors new.csv -o out.csv --keep id",
        "softwood predict model.safetensors huge.parquet -o out.parquet --batch-rows 100000",
        "softwood predict model.safetensors new.csv | head",
    )
)
def predict(
    model: ModelFile,
    source: Source,
    out: Annotated[str, typer.Option("--out", "-o", help="File (.csv, .tsv, .parquet); - prints CSV.")] = "-",
    keep: Annotated[list[str] | None, typer.Option(help="Column to copy to the output; may be repeated.")] = None,
    batch_rows: Annotated[int, typer.Option(min=1, help="Rows held in memory at once, about.")] = 65_536,
    n_jobs: Jobs = None,
) -> None:
    """Predict rows of a table of any length, batch by batch: class labels and probabilities, or values."""
    estimator = softwood.load(model)
    estimator.set_params(n_jobs=n_jobs)
    require_source(source)
    if out != "-":
        require_place(Path(out))
    kinds = kinds_of(estimator)
    batches = (
        iter([load_example(source)[0]]) if source in EXAMPLES else read_batches(source, kinds, batch_rows=batch_rows)
    )
    with BatchWriter(out) as writer:
        for batch in batches:
            writer.write(_predictions(estimator, batch, keep or ()))
        if writer.n_rows == 0:
            raise TableFileError(NO_ROWS.format(source))
    if out != "-":
        print(f"{writer.n_rows} rows written to {out}", file=sys.stderr)


@app.command(epilog=examples("softwood info model.safetensors", "softwood info model.safetensors --json"))
def info(model: ModelFile, as_json: AsJson = False) -> None:
    """Say what a model file holds: task, columns, trees, training."""
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
        "numbers": sum(m.trees.split_weight.size + m.trees.leaf_weight.size for m in fitted.members),
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


@app.command(
    epilog=examples(
        "softwood tune data.csv -t churned --trials 50 --out best.json",
        "softwood train data.csv -t churned --params best.json --n-members 6",
        "softwood tune data.csv -t churned --storage postgresql://host/studies",
    )
)
def tune(
    source: Source,
    target: Target = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials to run now.")] = 50,
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")] = 5,
    storage: Annotated[str | None, typer.Option(help="Optuna storage URL; a file beside --out if not given.")] = None,
    study: Annotated[str | None, typer.Option(help="Name of the study; made of table and target if not given.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="JSON file for the best parameters.")] = Path("best.json"),
    task: Task = "auto",
    drop: Drop = None,
    n_members: Annotated[
        int, typer.Option(*option_names("n_members"), min=1, help="Number of ensembles averaged in each trial.")
    ] = 1,
    time_limit: Annotated[float | None, typer.Option(help="Start no trial after this many seconds.")] = None,
    random_state: Annotated[
        int, typer.Option(*option_names("random_state"), min=0, help="Seed of folds and fits; trials always differ.")
    ] = 0,
    n_jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Search for good parameters by cross-validation, in a study that can be stopped, resumed and shared."""
    from softwood.cli.tune import Search, best_so_far, run_search, without_password

    require_place(out, (".json",))
    frame, target, task = open_table(source, target, task)
    found = learning_task(frame, target, task=task, drop=drop or ())
    print_notes(found.notes)
    name = study or f"{Path(source).name} {target}"
    storage = storage or f"sqlite:///{out.with_suffix('.db')}"
    search = Search(found, n_folds=folds, n_members=n_members, seed=random_state, n_jobs=n_jobs)
    interrupted = False
    try:
        best = run_search(search, study=name, storage=storage, n_trials=trials, time_limit=time_limit, quiet=as_json)
    except KeyboardInterrupt:
        kept = best_so_far(search, study=name, storage=storage)
        if kept is None:
            raise
        best, interrupted = kept, True
        print_notes(["Interrupted: the best trial so far is written. The same command goes on with the study."])
    write_whole(out, as_json_text(best.params).encode())
    if as_json:
        print(as_json_text({"study": name, "storage": without_password(storage), **asdict(best)}))
    else:
        _print_best(best, source, target, out, without_password(storage))
    if interrupted:
        sys.exit(130)


def _print_best(best: Any, source: str, target: str, out: Path, storage: str) -> None:
    print(f"Best of {best.n_trials} trials ({best.n_pruned} pruned): {best.metric} {best.value:.4f}")
    for key, value in best.params.items():
        print(f"  {key:14} {value if isinstance(value, int) else format(value, '.4g')}")
    print_files({"parameters": str(out), "study": storage})
    command = ["softwood", "train", source, "--target", target, "--params", str(out), "--n-members", "6"]
    print(f"Train with them: {shlex.join(command)}")


@app.command(
    epilog=examples("softwood export model.safetensors model.onnx", "softwood export model.safetensors model.c")
)
def export(
    model: ModelFile,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="File to write: .onnx, or .c (with a header beside it).")],
) -> None:
    """Write a model as an ONNX graph or as C, for use without softwood."""
    from softwood.export import export as write_export

    require_place(out, (".onnx", ".c"))
    for path in write_export(softwood.load(model), out):
        print(f"{path} written", file=sys.stderr)


app.command(
    epilog=examples("softwood explain model.safetensors", "softwood explain model.safetensors new.csv --row 3")
)(explain)
app.command(
    epilog=examples(
        "softwood plot importances model.safetensors",
        "softwood plot tree model.safetensors new.csv --out tree.pdf",
        "softwood plot path model.safetensors new.csv --row 3 --member 0 --tree 5",
    )
)(plot)
app.command(epilog=examples("softwood report model.safetensors test.csv --out report.html"))(report)


def _estimator(task: str, params: dict[str, Any], seed: int, n_jobs: int | None, *, verbose: bool) -> Any:
    kind = softwood.TreeEnsembleRegressor if task == "regression" else softwood.TreeEnsembleClassifier
    known = kind().get_params(deep=False)
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise ValueError(f"Parameters must be those of {kind.__name__}; {unknown[0]!r} is not one of them.")
    return kind(**params, random_state=seed, n_jobs=n_jobs, verbose=int(verbose))


def _fit(estimator: Any, training: LearningTask) -> bool:
    """Train. Returns whether Ctrl-C stopped it; in the first epoch, when there is nothing to keep yet, it passes on."""
    interrupted = False
    try:
        estimator.fit(training.features, training.target)
    except KeyboardInterrupt:
        epochs = estimator.history_["epoch"] if hasattr(estimator, "model_") else []
        if not epochs:
            raise
        print_notes(
            [f"Interrupted after {max(epochs) + 1} epochs: the best of them is kept. Press Ctrl-C again to quit."]
        )
        interrupted = True
    estimator.model_.target_name = training.target_name
    return interrupted


def _read_params(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        params = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} must hold a JSON object of parameters; it is no JSON ({error}).") from None
    if not isinstance(params, dict):
        raise ValueError(f'{path} must hold a JSON object of parameters, such as {{"depth": 5}}.')
    return params


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
    predicted = estimator.model_.predict_proba(features)
    columns["prediction"] = pa.array(estimator.classes_[predicted.argmax(axis=1)].tolist())
    labels = class_labels(estimator.classes_)
    return pa.table(columns | {f"probability {label}": predicted[:, c] for c, label in enumerate(labels)})


def _is_training_table(model: Path, source: str) -> bool:
    try:
        run = json.loads(model.with_suffix(".json").read_text())
        return bool(run["source"] == source)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write_report_files(out: Path, estimator: Any, test: LearningTask) -> dict[str, Path]:
    """Test rows, pictures and the report, beside the model."""
    from softwood.explain.plot import save_all
    from softwood.explain.report import write_report

    rows = out.with_name(f"{out.stem}-test.csv")
    with BatchWriter(rows) as writer:
        writer.write(test.features.append_column(test.target_name, [test.target.tolist()]))
    files = {"test rows": rows}
    files |= save_all(estimator, test.features, out.with_suffix(""))
    files["report"] = out.with_name(f"{out.stem}-report.html")
    write_report(files["report"], estimator, test)
    return files
