"""The commands that learn: `train` and `tune`. Files, targets and search are left to the modules of those names."""

from __future__ import annotations

import json
import shlex
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import softwood
from softwood.cli.console import (
    AsJson,
    Categorical,
    Date,
    Delimiter,
    Drop,
    Jobs,
    Numeric,
    Seed,
    Source,
    Strict,
    Target,
    Task,
    as_json_text,
    declared_kinds,
    kinds_of,
    open_table,
    print_files,
    print_metrics,
    print_notes,
    require_apart,
    require_place,
    run_file,
)
from softwood.cli.hyperparameters import option_names, with_hyperparameters
from softwood.cli.metrics import compute_metrics
from softwood.cli.tablefile import BatchWriter
from softwood.cli.task import LearningTask, learning_task
from softwood.model.whole_file import write_whole


@with_hyperparameters
def train(
    source: Source,
    target: Target = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Model file to write.")] = Path("model.safetensors"),
    task: Task = "auto",
    drop: Drop = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    date: Date = None,
    strict: Strict = False,
    delimiter: Delimiter = None,
    test_fraction: Annotated[float, typer.Option(help="Share of rows held out to evaluate the model.")] = 0.2,
    params: Annotated[Path | None, typer.Option(help="JSON file of hyperparameters, as tune writes.")] = None,
    random_state: Seed = 0,
    n_jobs: Jobs = None,
    checkpoint: Annotated[Path | None, typer.Option(help="File to save the state of training to, every 30 s.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from --checkpoint if that file exists.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Also write test rows, plots and an HTML report.")] = False,
    as_json: AsJson = False,
    hyperparameters: dict[str, Any] = {},  # noqa: B006 (never changed; each becomes an option)
) -> None:
    """Train a model on a table, test it on held-out rows, write it to a file. Ctrl-C keeps the best epoch so far."""
    started = time.monotonic()
    files = {"model": out, "run": run_file(out)}
    require_place(out, (".safetensors",))
    inputs = {"table": source, "file of parameters": params}
    require_apart([*files.values(), _test_rows_file(out)], inputs)
    if checkpoint is not None:
        require_place(checkpoint)
        require_apart([checkpoint], inputs)
    elif resume:
        raise ValueError("--resume needs --checkpoint FILE, the file to continue from.")
    kinds = declared_kinds(categorical, numeric, date)
    frame, target, task = open_table(source, target, task, kinds=kinds, delimiter=delimiter)
    found = learning_task(frame, target, task=task, drop=drop or (), kinds=kinds, strict=strict)
    print_notes(found.notes)
    training_rows, test_rows = found.split(test_fraction, random_state)
    training, test = found.take(training_rows), found.take(test_rows)
    chosen = {"column_kinds": found.column_kinds} | _read_params(params) | hyperparameters
    estimator = _estimator(found.task, chosen, random_state, n_jobs, verbose=not as_json)
    interrupted = _fit(estimator, training, checkpoint, resume)
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
    write_whole(files["run"], as_json_text(run).encode())
    if report:
        files |= _write_report_files(out, estimator, training, test)
    names = {key: str(path) for key, path in files.items()}
    if as_json:
        print(as_json_text({key: value for key, value in run.items() if key != "history"} | {"files": names}))
    else:
        title = f"{found.task} of {target!r}: {len(training_rows)} rows for training, {len(test_rows)} for the test"
        print_metrics(metrics, title)
        print_files(names)
    if interrupted:
        sys.exit(130)


def tune(
    source: Source,
    target: Target = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials to run now.")] = 50,
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")] = 5,
    storage: Annotated[str | None, typer.Option(help="Optuna storage URL; a file beside --out if not given.")] = None,
    study: Annotated[str | None, typer.Option(help="Name of the study; from table and target if not given.")] = None,
    dask: Annotated[str | None, typer.Option(help="Address of a Dask scheduler whose workers run the trials.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="JSON file for the best parameters.")] = Path("best.json"),
    task: Task = "auto",
    drop: Drop = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    date: Date = None,
    strict: Strict = False,
    delimiter: Delimiter = None,
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
    require_apart([out, out.with_suffix(".db")], {"table": source})
    kinds = declared_kinds(categorical, numeric, date)
    frame, target, task = open_table(source, target, task, kinds=kinds, delimiter=delimiter)
    found = learning_task(frame, target, task=task, drop=drop or (), kinds=kinds, strict=strict)
    print_notes(found.notes)
    name = study or f"{Path(source).name} {target}"
    place = out.with_suffix(".db")
    storage = storage or f"sqlite:///{place if dask is None else place.absolute()}"
    search = Search(found, n_folds=folds, n_members=n_members, seed=random_state, n_jobs=n_jobs)
    interrupted = False
    run = partial(run_search, search, study=name, storage=storage, n_trials=trials, time_limit=time_limit)
    try:
        with _connected(dask) as client:
            best = run(quiet=as_json, client=client)
    except KeyboardInterrupt:
        kept = best_so_far(search, study=name, storage=storage)
        if kept is None:
            raise
        best, interrupted = kept, True
        print_notes(["Interrupted: the best trial so far is written. The same command continues the study."])
    write_whole(out, as_json_text(best.params).encode())
    if as_json:
        print(as_json_text({"study": name, "storage": without_password(storage), **asdict(best)}))
    else:
        _print_best(best, source, target, out, without_password(storage))
    if interrupted:
        sys.exit(130)


def _connected(address: str | None) -> AbstractContextManager[Any]:
    """A client of the Dask cluster at an address; None without one."""
    if address is None:
        return nullcontext()
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError("--dask needs Dask: pip install 'softwood[dask]'.") from error
    try:
        return Client(address, timeout=30)
    except (OSError, ValueError) as error:
        raise ValueError(f"--dask must be the address of a Dask scheduler, such as tcp://host:8786; {error}") from error


def _print_best(best: Any, source: str, target: str, out: Path, storage: str) -> None:
    print(f"Best of {best.n_trials} trials ({best.n_pruned} pruned): {best.metric} {best.value:.4f}")
    for key, value in best.params.items():
        print(f"  {key:14} {value if isinstance(value, int) else format(value, '.4g')}")
    print_files({"parameters": str(out), "study": storage})
    command = ["softwood", "train", source, "--target", target, "--params", str(out), "--n-members", "6"]
    print(f"Train with them: {shlex.join(command)}")


def _estimator(task: str, params: dict[str, Any], seed: int, n_jobs: int | None, *, verbose: bool) -> Any:
    kind = softwood.TreeEnsembleRegressor if task == "regression" else softwood.TreeEnsembleClassifier
    known = kind().get_params(deep=False)
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise ValueError(f"Parameters must be those of {kind.__name__}; {unknown[0]!r} is not one of them.")
    return kind(**params, random_state=seed, n_jobs=n_jobs, verbose=int(verbose))


def _fit(estimator: Any, training: LearningTask, checkpoint: Path | None = None, resume: bool = False) -> bool:
    """Train. Returns whether Ctrl-C stopped it; in the first epoch there is nothing to keep, so it is raised again."""
    interrupted = False
    try:
        estimator.fit(training.features, training.target, checkpoint=checkpoint, resume=resume)
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
        raise ValueError(f"{path} must hold a JSON object of parameters; it is not valid JSON ({error}).") from None
    if not isinstance(params, dict):
        raise ValueError(f'{path} must hold a JSON object of parameters, such as {{"depth": 5}}.')
    return params


def _write_report_files(out: Path, estimator: Any, training: LearningTask, test: LearningTask) -> dict[str, Path]:
    """Test rows, pictures and the report, beside the model."""
    from softwood.explain.plot import save_all
    from softwood.explain.report import write_report

    files = {"test rows": _test_rows_file(out)}
    with BatchWriter(files["test rows"]) as writer:
        writer.write(test.features.append_column(test.target_name, [test.target.tolist()]))
    files |= save_all(estimator, test.features, out.with_suffix(""))
    files["report"] = out.with_name(f"{out.stem}-report.html")
    write_report(
        files["report"],
        estimator,
        test.features,
        test.target,
        target_name=test.target_name,
        training=(training.features, training.target),
    )
    return files


def _test_rows_file(out: Path) -> Path:
    return out.with_name(f"{out.stem}-test.csv")
