"""The suite by which the tabular recipe is judged: 72 tables, softwood beside its rivals, all with their defaults.

Rivals are XGBoost, LightGBM, CatBoost and a random forest; `softwood_single` is softwood with ``n_members=1``. All get
the same 70/30 splits (stratified by class, seed = number of the split) and the same number of threads; `learners` says
how each gets its categories and missing cells. A unit is one learner on one split of one table. Each finished unit is
one JSON file in the folder of units, under "rivals" or under the tag of softwood's recipe, so that a run goes on where
it was stopped, and recipes share their rivals. A unit that fails is kept too, with its error.

    python benchmarks/suite.py --splits 3 --threads 2                       # run what is missing, then report
    python benchmarks/suite.py --splits 3 --restore                         # without the rivals that suite.json has
    python benchmarks/suite.py --report --tag 0.1.0 --summary --picture     # report; write suite.json and the picture
    python benchmarks/suite.py --learners softwood --tag slow --parameters "learning_rate=0.001, encoding=piecewise"
    python benchmarks/suite.py --compare 0.1.0 slow                         # paired differences: tags or summary files
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import learners
import machine
import suite_report
from suite_tables import ROOT, DataTable, default_folder, find_tables, read_table, split_rows
from suite_units import RIVALS_TAG, Unit, read_units, restore_rivals, unit_path, write_json, write_summary

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "SOFTWOOD_NUM_THREADS")
SUMMARY = ROOT / "benchmarks" / "suite.json"
_SIZES = {name: (low, high) for name, low, high in suite_report.SIZE_CLASSES}


# Plan ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A unit to run: what a worker needs to know."""

    path: Path
    table: str
    split: int
    learner: str
    parameters: dict[str, Any]
    facts: dict[str, Any]

    @property
    def cost(self) -> float:
        """Cells times outputs: what the time of a fit grows with."""
        return float(self.facts["rows"] * self.facts["columns"] * max(1, self.facts["classes"]))


def plan(options: argparse.Namespace, paths: dict[str, Path]) -> list[Task]:
    """All units that the options ask for: split by split, and cheap tables first."""
    tasks = []
    for name, path in paths.items():
        if options.tables and name not in options.tables:
            continue
        facts = read_table(path).facts()
        for learner in options.learners:
            parameters = options.parameters if learner in learners.SOFTWOOD else {}
            tasks += [Task(path, name, split, learner, parameters, facts) for split in options.splits]
    chosen = [task for task in tasks if is_chosen({"table": task.table, **task.facts}, options)]
    return sorted(chosen, key=lambda task: (task.split, task.cost, task.table))


def is_chosen(about: Mapping[str, Any], options: argparse.Namespace) -> bool:
    """Whether the options ask for a table, or for the table, split and learner of a unit."""
    low, high = _SIZES.get(options.size, (0, float("inf")))
    return (
        low <= about["rows"] < high
        and (options.max_rows is None or about["rows"] <= options.max_rows)
        and (options.tables is None or about["table"] in options.tables)
        and about.get("split", options.splits[0]) in options.splits
        and about.get("learner", options.learners[0]) in options.learners
    )


def tag_of(task: Task, options: argparse.Namespace) -> str:
    """Rivals do not depend on softwood's recipe, so all recipes share them."""
    return options.tag if task.learner in learners.SOFTWOOD else RIVALS_TAG


def missing(tasks: Sequence[Task], options: argparse.Namespace) -> tuple[list[Task], list[Unit]]:
    """Tasks without a unit on disk, and the units of the others."""
    left, done = [], []
    for task in tasks:
        path = unit_path(options.units, tag_of(task, options), task.table, task.split, task.learner)
        unit = json.loads(path.read_text()) if path.exists() else None
        if unit is None or (options.retry and unit["status"] == "failed"):
            left.append(task)
        elif unit["parameters"] != json.loads(json.dumps(task.parameters)):
            raise SystemExit(
                f"Units of one tag must have the same --parameters; {path} has {unit['parameters']}, and these are "
                f"{task.parameters}. Choose another --tag."
            )
        else:
            done.append(unit)
    return left, done


# Workers ------------------------------------------------------------------------------------------------------------


def work(connection: Connection, cores: Sequence[int], threads: int) -> None:
    """Run tasks as they come, on some cores; a worker keeps the last table and warms each learner up once."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    table: DataTable | None = None
    warm: set[tuple[str, bool]] = set()
    while (task := _next_task(connection)) is not None:
        try:
            if table is None or table.name != task.table:
                table = read_table(task.path)
            is_regression = table.task == "regression"
            if (task.learner, is_regression) not in warm:  # the first fit of a library pays for loading it
                warm_up(task.learner, table.task, threads)
                warm.add((task.learner, is_regression))
            result = learners.run_learner(
                task.learner, table, split_rows(table, task.split), threads=threads, seed=task.split, **task.parameters
            )
            connection.send({"status": "done", **result})
        except Exception as error:
            note = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
            connection.send({"status": "failed", **note})


def _next_task(connection: Connection) -> Task | None:
    try:
        return connection.recv()
    except EOFError:  # the run was killed
        return None


def warm_up(learner: str, task: str, threads: int) -> None:
    """Fit to a few made-up rows."""
    estimator = learners.make_estimator(learner, task, threads=threads, seed=0)
    x = [[i % 7, i % 5, i % 3] for i in range(60)]
    estimator.fit(x, [i % 2 for i in range(60)])


@contextmanager
def threads_in_environment(threads: int) -> Iterator[None]:
    """Let processes that are started here load their libraries with this number of threads."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Worker:
    """A process that runs one task at a time. If it dies, its task has failed, and the next one gets a new process."""

    def __init__(self, slot: int, threads: int) -> None:
        available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
        self.cores = sorted({available[(slot * threads + i) % len(available)] for i in range(threads)})
        self.threads = threads
        self.task: Task | None = None
        self.started = 0.0
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        # Not a daemon, for joblib gives those one thread. It ends when the pipe closes.
        self.process = context.Process(target=work, args=(theirs, self.cores, self.threads))
        with threads_in_environment(self.threads):
            self.process.start()
        theirs.close()

    def send(self, task: Task) -> None:
        self.task, self.started = task, time.monotonic()
        self.connection.send(task)

    def receive(self) -> tuple[Task, Unit]:
        """The finished task and what came of it."""
        assert self.task is not None
        task, self.task = self.task, None
        try:
            result = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            result = {"status": "failed", "error": f"The process ended with code {self.process.exitcode}."}
            self._start()
        return task, {**result, "seconds": time.monotonic() - self.started}

    def stop(self) -> None:
        if self.task is None:
            self.connection.send(None)
            self.process.join(5)
        self.process.terminate()


def run_tasks(tasks: Sequence[Task], jobs: int, threads: int) -> Iterator[tuple[Task, Unit]]:
    """Run tasks in order on several workers; yield each with its result as soon as it is done."""
    queue = list(reversed(tasks))
    workers = [Worker(slot, threads) for slot in range(min(jobs, len(tasks)))]
    try:
        for worker in workers:
            worker.send(queue.pop())
        while busy := {worker.connection: worker for worker in workers if worker.task is not None}:
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                yield worker.receive()
                if queue:
                    worker.send(queue.pop())
    finally:
        for worker in workers:
            worker.stop()


# Runs ---------------------------------------------------------------------------------------------------------------


class TimeLeft:
    """Guess of the time left: each learner's seconds per cell so far, times the cells that are left to it."""

    def __init__(self, tasks: Sequence[Task], jobs: int) -> None:
        self.left = list(tasks)
        self.jobs = jobs
        self.seconds: dict[str, float] = {}
        self.cost: dict[str, float] = {}

    def note(self, task: Task, seconds: float) -> str:
        """Count a finished task; return the guess in words."""
        self.left.remove(task)
        self.seconds[task.learner] = self.seconds.get(task.learner, 0) + seconds
        self.cost[task.learner] = self.cost.get(task.learner, 0) + task.cost
        overall = sum(self.seconds.values()) / max(1.0, sum(self.cost.values()))
        rates = {name: self.seconds[name] / max(1.0, self.cost[name]) for name in self.seconds}
        guess = sum(rates.get(other.learner, overall) * other.cost for other in self.left) / self.jobs
        return f"{guess / 3600:.1f} h" if guess >= 5400 else f"{guess / 60:.0f} min"


def run(options: argparse.Namespace, paths: dict[str, Path]) -> None:
    """Run what is missing and keep it."""
    if options.restore:
        print(f"{restore_rivals(options.units, SUMMARY)} units of rivals were taken from {SUMMARY}", flush=True)
    tasks = plan(options, paths)
    left, done = missing(tasks, options)
    print(f"{len(done)} of {len(tasks)} units are on disk: {options.units}", flush=True)
    if not left:
        return
    about = {"commit": machine.commit(), "versions": machine.versions(learners.PACKAGES)}
    common = {**about, "threads": options.threads, "noisy": options.noisy}
    clock = TimeLeft(left, options.jobs)
    for i, (task, result) in enumerate(run_tasks(left, options.jobs, options.threads), start=1):
        tag = tag_of(task, options)
        key = {"table": task.table, "split": task.split, "learner": task.learner, "tag": tag}
        finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        unit = {**key, **task.facts, "parameters": task.parameters, **result, **common, "finished": finished}
        write_json(unit_path(options.units, tag, task.table, task.split, task.learner), unit)
        if options.log:
            log(options.log, unit)
        time_left = clock.note(task, result["seconds"])
        print(f"[{i}/{len(left)}] {brief(unit)}; about {time_left} left", flush=True)


def brief(unit: Unit) -> str:
    """One unit in a few words."""
    name = f"{unit['table']}, split {unit['split']}, {unit['learner']}"
    if unit["status"] == "failed":
        return f"{name}: FAILED, {unit['error'].splitlines()[0][:200]}"
    metric = suite_report.metric_of(unit)
    return f"{name}: {metric} {unit[metric]:.4f}, fit {unit['fit_seconds']:.2f} s"


def log(path: Path, unit: Unit) -> None:
    """Append one line of JSON with the main metric of a unit."""
    metric = suite_report.metric_of(unit) if unit["status"] == "done" else "error"
    line = {name: unit[name] for name in ("table", "split", "learner", "tag")}
    line |= {"metric": metric, "value": unit[metric], "seconds": unit.get("fit_seconds")}
    line |= {name: unit[name] for name in ("log_loss", "rmse") if name in unit}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


# Command line -------------------------------------------------------------------------------------------------------


def parse_parameters(text: str) -> dict[str, Any]:
    """Keyword arguments as in a call; a bare word is a string.

    >>> parse_parameters("learning_rate=0.001, encoding=piecewise, patience=None")
    {'learning_rate': 0.001, 'encoding': 'piecewise', 'patience': None}
    """
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        return {
            str(item.arg): item.value.id if isinstance(item.value, ast.Name) else ast.literal_eval(item.value)
            for item in call.keywords
        }
    except (SyntaxError, ValueError) as error:
        message = f"must be like 'learning_rate=0.001, encoding=piecewise'; got {text!r}."
        raise argparse.ArgumentTypeError(message) from error


def parse_splits(text: str) -> range:
    """Numbers of splits: how many, or the first and the end.

    >>> parse_splits("3"), parse_splits("1:3")
    (range(0, 3), range(1, 3))
    """
    first, _, end = text.rpartition(":")
    try:
        splits = range(int(first or 0), int(end))
    except ValueError:
        splits = range(0)
    if not splits or splits[0] < 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, or FIRST:END like 1:3; got {text!r}.")
    return splits


def option_parser() -> argparse.ArgumentParser:
    """Options: what to run, how, and what to show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, default=default_folder(), help="folder of the data sets; default %(default)s")
    add("--units", type=Path, default=ROOT / "benchmarks" / "results" / "suite", help="folder of the finished units")
    add("--tables", nargs="+", metavar="NAME", help="all by default")
    add("--size", choices=[*_SIZES], help="only tables of this size class")
    add("--max-rows", type=int, metavar="N", help="only tables of at most N rows")
    add("--learners", nargs="+", choices=learners.LEARNERS, default=list(learners.LEARNERS), help="all by default")
    add("--splits", type=parse_splits, default=range(3), help="how many, or which as FIRST:END; default 3, that is 0:3")
    add("--tag", default=f"commit-{machine.commit()}", help="name of softwood's recipe; default %(default)s")
    add("--parameters", type=parse_parameters, default={}, metavar="'NAME=VALUE, ...'", help="softwood's, if not auto")
    add("--threads", type=int, default=2, help="of each learner")
    add("--jobs", type=int, default=1, help="processes, each pinned to --threads cores")
    add("--noisy", action="store_true", help="mark times as not quotable: other work runs on this machine")
    add(
        "--restore",
        action="store_true",
        help="take the rivals that suite.json has; softwood's recipe does not change them",
    )
    add("--retry", action="store_true", help="run failed units again")
    add("--log", type=Path, help="append a line of JSON for each finished unit")
    add("--report", action="store_true", help="only report, run nothing")
    add("--markdown", action="store_true", help="report in Markdown")
    add("--summary", type=Path, nargs="?", const=SUMMARY, help="write all units to one file")
    add("--picture", type=Path, nargs="?", const=ROOT / "docs" / "images" / "suite_rank.svg", help="rank against rows")
    add("--compare", nargs=2, metavar=("A", "B"), help="differences of two recipes: tags, folders or summary files")
    add("--by-table", action="store_true", help="show each table's scores, or differences with --compare")
    return parser


def chosen_units(options: argparse.Namespace, *tags: str) -> list[Unit]:
    """Units on disk that the options ask for."""
    units = [unit for unit in read_units(options.units, *tags) if is_chosen(unit, options)]
    if not units:
        raise SystemExit(f"There must be units of {' or '.join(tags)} that the options ask for; there are none.")
    return units


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, report or compare."""
    options = option_parser().parse_args(arguments)
    if options.compare:
        a, b = (chosen_units(options, name) for name in options.compare)
        print(suite_report.compare(a, b, names=options.compare, options=options))
        return
    if not options.report:
        paths = find_tables(options.data)
        if unknown := set(options.tables or ()) - set(paths):
            raise SystemExit(f"--tables must be names of tables in {options.data}; unknown: {sorted(unknown)}.")
        run(options, paths)
    units = chosen_units(options, RIVALS_TAG, options.tag)
    print(suite_report.report(units, options=options))
    if options.summary:
        write_summary(options.summary, units, machine.facts())
    if options.picture:
        suite_report.draw(units, options.picture)


if __name__ == "__main__":
    main()
