"""The commands that learn: `train` and `tune`. Files, targets and search are left to the modules of those names."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
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
    Sources,
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
from softwood.cli.files import infer_long_task, long_table, split_rows, test_metrics
from softwood.cli.hyperparameters import option_names, with_hyperparameters
from softwood.cli.metrics import compute_metrics
from softwood.cli.tablefile import BatchWriter
from softwood.cli.task import LEARNING_TASKS, LearningTask, learning_task
from softwood.model.whole_file import write_whole
from softwood.tabular.out_of_core.files import TableFiles


@with_hyperparameters
def train(
    source: Sources,
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
    cache: Annotated[
        Path | None, typer.Option(help="Folder for encoded rows of files larger than memory, kept for the next run.")
    ] = None,
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
    chosen = _read_params(params) | hyperparameters
    make = partial(_estimator, seed=random_state, n_jobs=n_jobs, verbose=not as_json)
    long = long_table(source, target, drop or ())
    if long is not None:
        fit_options = {"checkpoint": checkpoint, "resume": resume, "cache": cache}
        trained = _train_long(long, task, kinds, chosen, make, test_fraction, random_state, fit_options)
    else:
        frame, target, task = open_table(source, target, task, kinds=kinds, delimiter=delimiter)
        found = learning_task(frame, target, task=task, drop=drop or (), kinds=kinds, strict=strict)
        trained = _train_in_memory(found, chosen, make, test_fraction, random_state, checkpoint, resume)
    estimator, metrics = trained.estimator, trained.metrics
    estimator.save(out)
    run = {
        "softwood": softwood.__version__,
        "source": source,
        "target": target,
        "task": trained.task,
        "rows": {"training": trained.n_training, "test": trained.n_test},
        "columns": kinds_of(estimator),
        "parameters": estimator.model_.estimator["params"],
        "seed": random_state,
        "seconds": round(time.monotonic() - started, 2),
        "interrupted": trained.interrupted,
        "metrics": metrics,
        "history": estimator.history_,
    }
    write_whole(files["run"], as_json_text(run).encode())
    if report and trained.parts is not None:
        files |= _write_report_files(out, estimator, *trained.parts)
    elif report:
        print_notes(["Files larger than memory have no --report; write some rows to a file and run softwood report."])
    names = {key: str(path) for key, path in files.items()}
    if as_json:
        print(as_json_text({key: value for key, value in run.items() if key != "history"} | {"files": names}))
    else:
        title = f"{trained.task} of {target!r}: {trained.n_training} rows for training, {trained.n_test} for the test"
        print_metrics(metrics, title)
        print_files(names)
    if trained.interrupted:
        sys.exit(130)


@dataclass(frozen=True, eq=False)
class _Trained:
    """What came of training: training and test rows (`parts`) if they are in memory."""

    estimator: Any
    task: str
    n_training: int
    n_test: int
    metrics: dict[str, float]
    interrupted: bool
    parts: tuple[LearningTask, LearningTask] | None = None


def _train_in_memory(
    found: LearningTask,
    chosen: dict[str, Any],
    make: Callable[..., Any],
    test_fraction: float,
    seed: int,
    checkpoint: Path | None,
    resume: bool,
) -> _Trained:
    print_notes(found.notes)
    training, test = (found.take(rows) for rows in found.split(test_fraction, seed))
    estimator = make(found.task, {"column_kinds": found.column_kinds} | chosen)
    interrupted = _fit(
        estimator,
        lambda: estimator.fit(training.features, training.target, checkpoint=checkpoint, resume=resume),
        found.target_name,
    )
    metrics = compute_metrics(estimator, test.features, test.target)
    sizes = len(training.target), len(test.target)
    return _Trained(estimator, found.task, *sizes, metrics, interrupted, (training, test))


def _train_long(
    files: TableFiles,
    task: str,
    kinds: dict[str, str],
    chosen: dict[str, Any],
    make: Callable[..., Any],
    test_fraction: float,
    seed: int,
    fit_options: dict[str, Any],
) -> _Trained:
    """Train on files that are not read into memory; test rows are drawn by the hashes of their numbers."""
    if task not in ("auto", *LEARNING_TASKS):
        raise ValueError(f"The task must be auto, classification or regression; got {task!r}.")
    task = infer_long_task(files) if task == "auto" else task
    training, test = split_rows(files, test_fraction, seed)
    estimator = make(task, {"column_kinds": kinds or None} | chosen)
    interrupted = _fit(estimator, lambda: estimator._fit_files(training, **fit_options), str(files.target))
    metrics, n_test = test_metrics(estimator, test)
    return _Trained(estimator, task, files.n_rows - n_test, n_test, metrics, interrupted)


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
        raise ValueError(f"Parameters must be those of {kind.__name__}; {unknown[0]!r} is not one of them. Remove it.")
    return kind(**params, random_state=seed, n_jobs=n_jobs, verbose=int(verbose))


def _fit(estimator: Any, fit: Callable[[], Any], target: str) -> bool:
    """Train. Returns whether Ctrl-C stopped it; in the first epoch there is nothing to keep, so it is raised again."""
    interrupted = False
    try:
        fit()
    except KeyboardInterrupt:
        epochs = estimator.history_["epoch"] if hasattr(estimator, "model_") else []
        if not epochs:
            raise
        print_notes(
            [f"Interrupted after {max(epochs) + 1} epochs: the best of them is kept. Press Ctrl-C again to quit."]
        )
        interrupted = True
    estimator.model_.target_name = target
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
