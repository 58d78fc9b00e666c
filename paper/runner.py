"""Experiments as lists of units: what is finished is kept in one file, what is missing is run.

An experiment module makes `Unit`s and hands them to `run_units`, which runs those that are not in the experiment's
results file yet, in the given order, and saves each as soon as it is done. A process that is killed at any moment can
be started again with the same command. What a unit computes is left to the modules of the tables and figures.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
Record = dict[str, Any]
Save = Callable[[Record], None]

_LEARNING = ("softwood", "scikit-learn", "xgboost", "xgboost-cpu", "lightgbm", "catboost", "torch")
_PACKAGES = (*_LEARNING, "optuna", "numpy", "scipy")
_SECONDS_BETWEEN_SAVES = 5.0


def machine() -> Record:
    """What figures depend on besides code and seeds: processor, Python and versions of packages."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cpu = names[0] if names else platform.machine()
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version(), "versions": versions}


class Store:
    """Records of one experiment in one JSON file, which is replaced as a whole: it is never half written.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "demo.json"
    >>> Store(path).put("pima/split 0/cart", {"result": {"auc": 0.75}})
    >>> Store(path).units["pima/split 0/cart"]["result"]
    {'auc': 0.75}
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.units: dict[str, Record] = {}
        self.runs: list[Record] = []
        self._saved_at = -float("inf")
        if path.exists():
            content = json.loads(path.read_text())
            self.units, self.runs = content["units"], content["runs"]

    def put(self, key: str, record: Record, *, lazily: bool = False) -> None:
        """Keep a record; `lazily` writes only if the last writing is some seconds ago."""
        self.units[key] = record
        if not lazily or time.monotonic() - self._saved_at >= _SECONDS_BETWEEN_SAVES:
            self.write()

    def write(self) -> None:
        """Write everything: one line a unit, so that versions of the file can be compared."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{json.dumps(key)}: {json.dumps(self.units[key])}" for key in sorted(self.units)]
        text = f'{{"runs": {json.dumps(self.runs, indent=1)},\n"units": {{\n' + ",\n".join(lines) + "\n}}\n"
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        self._saved_at = time.monotonic()

    def note_run(self, options: Record) -> int:
        """Number of the entry in `runs` that says on what machine, with what versions and options units are run."""
        entry = {**machine(), "options": options}
        if entry not in self.runs:
            self.runs.append(entry)
        return self.runs.index(entry)


@dataclass(frozen=True)
class Unit:
    """One piece of an experiment.

    Parameters
    ----------
    key : str
        Its name in the results file, such as ``"pima/split 0/tel"``.
    run : callable
        Gets what an earlier, unfinished or smaller run has saved (a dict, maybe empty) and a function to save more of
        it; returns the result.
    settings : dict
        A record with other settings does not count.
    budget : dict
        How much work goes into it, such as tuning rounds; None stands for all there is. A record of at least this
        budget counts, so that a run with a small one never replaces what a larger one has found.
    """

    key: str
    run: Callable[[Record, Save], Record]
    settings: Record = field(default_factory=dict)
    budget: dict[str, float | None] = field(default_factory=dict)

    def is_done(self, record: Record | None) -> bool:
        """Whether a record answers for this unit."""
        if record is None or "result" not in record:
            return False
        enough = all(_amount(record["budget"].get(name, 0)) >= _amount(self.budget[name]) for name in self.budget)
        return record["settings"] == self.settings and enough


def _amount(value: float | None) -> float:
    return float("inf") if value is None else value


def run_units(store: Store, units: Sequence[Unit], options: argparse.Namespace) -> None:
    """Run what is missing, in order, until it is done or `options.stop_after` seconds have passed."""
    missing = [unit for unit in units if not unit.is_done(store.units.get(unit.key))]
    deadline = time.monotonic() + (options.stop_after or float("inf"))
    print(f"{len(units) - len(missing)} of {len(units)} units are done: {store.path}", flush=True)
    if not missing:
        return
    run_number = store.note_run(_plain(vars(options)))
    with _progress(len(missing)) as advance:
        for unit in missing:
            if time.monotonic() >= deadline:
                print("Stopped by --stop-after; the same command goes on.")
                return
            record = _run(store, unit, run_number)
            advance(f"{unit.key}: {_brief(record['result'])}, {record['seconds']:.1f} s")


def _run(store: Store, unit: Unit, run_number: int) -> Record:
    known = store.units.get(unit.key, {})
    if known.get("settings") != unit.settings:
        known = {"settings": unit.settings, "budget": {}, "saved": {}}

    def save(saved: Record) -> None:
        store.put(unit.key, {**known, "saved": saved}, lazily=True)

    started, cpu_started = time.perf_counter(), time.process_time()
    result = unit.run(dict(known.get("saved", {})), save)
    record: Record = {
        "settings": unit.settings,
        "budget": unit.budget,
        "result": result,
        "saved": store.units.get(unit.key, known)["saved"],
        "seconds": round(time.perf_counter() - started, 3),
        "cpu_seconds": round(time.process_time() - cpu_started, 3),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "run": run_number,
    }
    store.put(unit.key, record)
    return record


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """Give a function to call after each unit: it moves a bar on a terminal, and prints a line elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console()
    if not console.is_terminal:
        yield lambda text: print(text, flush=True)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total)
        yield lambda text: progress.update(task, advance=1, description=text)


def _brief(result: Record) -> str:
    numbers = {key: value for key, value in result.items() if isinstance(value, (int, float))}
    return ", ".join(f"{key} {value:.4g}" for key, value in list(numbers.items())[:4])


def _plain(options: Record) -> Record:
    """Options without what says nothing about results: folders of this machine, and when to stop."""
    return {key: value for key, value in options.items() if key not in ("data", "results", "stop_after")}


def option_parser(doc: str | None) -> argparse.ArgumentParser:
    """Parser with the options that every experiment has; `doc` is the docstring of its module."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("SOFTWOOD_DATA", "../shared/data"))
    parser.add_argument("--data", type=Path, default=data, help=f"folder of the data sets; default {data}")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results file")
    parser.add_argument("--stop-after", type=float, metavar="SECONDS", help="start no further unit after this time")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each learner")
    return parser
