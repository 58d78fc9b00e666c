"""Experiments as lists of units: finished ones are kept, missing ones are run.

An experiment module makes `Unit`s and hands them to `run_units`, which runs those that are missing, in the given order.
Each unit is a file of its own in the folder of ``--units``, replaced as a whole after each step, so a process can be
stopped or killed at any moment and started again with the same command. ``python -m paper.collect`` turns that folder
into the results files that are committed. What a unit computes is left to the modules of the tables and figures.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
UNITS = Path(__file__).parent / "units"
Record = dict[str, Any]
Save = Callable[[Record], None]

_LEARNING = ("softwood", "scikit-learn", "xgboost", "xgboost-cpu", "lightgbm", "catboost", "torch")
_PACKAGES = (*_LEARNING, "optuna", "numpy", "scipy")
_SECONDS_BETWEEN_SAVES = 5.0


def machine() -> Record:
    """What results depend on besides code and seeds: processor, Python and versions of packages."""
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


@functools.cache
def commit() -> str:
    """Commit of the code that runs, with "+" if tracked files other than results differ from it; or "unknown"."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!paper/results", ":!paper/*.md")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


class Store:
    """Records of one experiment: those of its committed results file, and newer ones from a folder of unit files.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> store = Store("demo", folder / "results", folder / "units")
    >>> store.put("pima/split 0/cart", {"result": {"auc": 0.75}})
    >>> Store("demo", folder / "results", folder / "units").units["pima/split 0/cart"]["result"]
    {'auc': 0.75}
    >>> Store("demo", folder / "results").units
    {}
    """

    def __init__(self, name: str, results: Path = RESULTS, units: Path | None = None) -> None:
        self.path = results / f"{name}.json"
        self.folder = None if units is None else units / name
        self.units: dict[str, Record] = {}
        self.runs: list[Record] = []
        self._saved_at: dict[str, float] = {}
        if self.path.exists():
            content = json.loads(self.path.read_text())
            self.units, self.runs = content["units"], content["runs"]
        for file in sorted(self.folder.glob("*.json")) if self.folder is not None else ():
            record = json.loads(file.read_text())
            key = record.pop("key")
            if record.get("finished", "9") >= self.units.get(key, {}).get("finished", ""):  # unfinished: newest
                self.units[key] = record

    def put(self, key: str, record: Record, *, lazily: bool = False) -> None:
        """Write a record to its unit file; `lazily` does so only if the last time is some seconds ago."""
        assert self.folder is not None, "records are written to unit files, and this store has no folder for them"
        self.units[key] = record
        if lazily and time.monotonic() - self._saved_at.get(key, -float("inf")) < _SECONDS_BETWEEN_SAVES:
            return
        _replace(self.folder / f"{key.replace('/', ' - ')}.json", json.dumps({"key": key, **record}) + "\n")
        self._saved_at[key] = time.monotonic()

    def collect(self) -> int:
        """Write all finished units to the results file, one line each, and return their number.

        What an unfinished search needs to go on is left out; it stays in the unit files.
        """
        done = {key: dict(record) for key, record in sorted(self.units.items()) if "result" in record}
        for record in done.values():
            record.pop("saved", None)
            if not isinstance(record["run"], int):
                if record["run"] not in self.runs:
                    self.runs.append(record["run"])
                record["run"] = self.runs.index(record["run"])
        used = sorted({record["run"] for record in done.values()})
        lines = [f"{json.dumps(key)}: {json.dumps({**r, 'run': used.index(r['run'])})}" for key, r in done.items()]
        runs = json.dumps([self.runs[i] for i in used], indent=1)
        _replace(self.path, f'{{"runs": {runs},\n"units": {{\n' + ",\n".join(lines) + "\n}}\n")
        return len(done)


def _replace(path: Path, text: str) -> None:
    """Write a file as a whole: it is never half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@dataclass(frozen=True)
class Unit:
    """One piece of an experiment.

    Parameters
    ----------
    key : str
        Its name, such as ``"pima/split 0/tel_paper"``.
    run : callable
        Gets what an earlier, unfinished or smaller run has saved (a dict, maybe empty) and a function to save more of
        it; returns the result.
    settings : dict
        A record with other settings does not count, nor does what it saved.
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
        return record["settings"] == self.settings and is_enough(record["budget"], self.budget)


def is_enough(budget: Mapping[str, float | None], wanted: Mapping[str, float | None]) -> bool:
    """Whether a budget reaches another in everything that the other names."""
    return all(_amount(budget.get(name, 0)) >= _amount(wanted[name]) for name in wanted)


def _amount(value: float | None) -> float:
    return float("inf") if value is None else value


def run_units(store: Store, units: Sequence[Unit], options: argparse.Namespace) -> bool:
    """Run what is missing, in order, until `options.stop_after` seconds have passed; whether all is done."""
    missing = [unit for unit in units if not unit.is_done(store.units.get(unit.key))]
    deadline = time.monotonic() + (options.stop_after or float("inf"))
    print(f"{store.path.stem}: {len(units) - len(missing)} of {len(units)} units are done", flush=True)
    if not missing:
        return True
    run = {**machine(), "options": _plain(vars(options))}
    with _progress(len(missing)) as advance:
        for unit in missing:
            if time.monotonic() >= deadline:
                print("Stopped by --stop-after; the same command goes on.")
                return False
            record = run_unit(store, unit, run)
            advance(f"{unit.key}: {_brief(record['result'])}, {record['cpu_seconds']:.1f} s")
    return True


def run_unit(store: Store, unit: Unit, run: Record) -> Record:
    """Run one unit and keep its record."""
    known = store.units.get(unit.key, {})
    if known.get("settings") != unit.settings:
        known = {"settings": unit.settings, "budget": {}, "saved": {}}

    def save(saved: Record) -> None:
        store.put(unit.key, {**known, "saved": saved}, lazily=True)

    started = time.process_time()
    spent = known.get("saved", {}).get("cpu_seconds", 0.0)
    result = unit.run(
        dict(known.get("saved", {})),
        lambda saved: save({**saved, "cpu_seconds": round(spent + time.process_time() - started, 2)}),
    )
    record: Record = {
        "settings": unit.settings,
        "budget": unit.budget,
        "result": result,
        "saved": store.units.get(unit.key, known).get("saved", {}),
        "cpu_seconds": round(spent + time.process_time() - started, 2),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "run": run,
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


# Options that say nothing about results: folders of this machine, what is run and when to stop.
_WITHOUT_EFFECT = (
    "data",
    "results",
    "units",
    "stop_after",
    "sets",
    "learners",
    "splits",
    "only",
    "depths",
    "recipes",
    "contenders",
    "repetitions",
    "seeds",
)


def _plain(options: Record) -> Record:
    return {key: value for key, value in options.items() if key not in _WITHOUT_EFFECT}


def option_parser(doc: str | None) -> argparse.ArgumentParser:
    """Parser with the options that every experiment has; `doc` is the docstring of its module."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("SOFTWOOD_DATA", "../shared/data"))
    parser.add_argument("--data", type=Path, default=data, help=f"folder of the data sets; default {data}")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results files")
    parser.add_argument("--units", type=Path, default=UNITS, help="folder of unit files; default paper/units")
    parser.add_argument("--stop-after", type=float, metavar="SECONDS", help="start no further unit after this time")
    parser.add_argument("--threads", type=int, default=1, help="threads of each learner; default 1")
    return parser
