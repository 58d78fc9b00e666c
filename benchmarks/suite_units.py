"""Finished units of the suite: one JSON file each while a run goes on, and one summary file that is kept.

The summary lists the names of the fields once and then one row per unit, so that 1,300 units take a few hundred KB.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Unit = dict[str, Any]

RIVALS_TAG = "rivals"
TABLE_FIELDS = ("source", "task", "rows", "columns", "classes")
UNIT_FIELDS = (
    "table", "split", "learner", "tag", "status", "auc", "log_loss", "accuracy", "r2", "rmse", "fit_seconds",
    "fit_cpu_seconds",
    "predict_seconds_per_row", "file_bytes", "peak_mib", "leaves_share", "leaves_per_tree", "members", "best_epochs",
    "epochs", "threads", "noisy", "commit", "error",
)  # fmt: skip


def unit_path(folder: Path, tag: str, table: str, split: int, learner: str) -> Path:
    """Where one unit is kept."""
    return folder / tag / table / f"{learner}-{split}.json"


def write_json(path: Path, content: Any, **options: Any) -> None:
    """Write a file that is never half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content, **options) + "\n")
    temporary.replace(path)


def read_units(folder: Path, *names: str) -> list[Unit]:
    """Units of some tags in a folder of units. A name may also be a folder, or a summary file, elsewhere."""
    units = []
    for name in names:
        place = folder / name if (folder / name).is_dir() else Path(name)
        if place.is_file():
            units += read_summary(place)
        else:
            units += [json.loads(path.read_text()) for path in sorted(place.glob("*/*.json"))]
    if not units:
        raise SystemExit(f"There must be units of {' or '.join(names)} in {folder}; there are none. Run them first.")
    return units


def write_summary(path: Path, units: Sequence[Unit], facts: dict[str, Any]) -> None:
    """Write all units to one file, one line each, with what is known of the machine and its software."""
    facts_of_tables = {unit["table"]: [unit[name] for name in TABLE_FIELDS] for unit in units if "rows" in unit}
    runs = sorted({json.dumps({k: unit[k] for k in ("tag", "parameters", "versions")}) for unit in units})
    rows = [json.dumps([_short(unit.get(name)) for name in UNIT_FIELDS], separators=(",", ":")) for unit in units]
    parts = [
        f'"machine": {json.dumps(facts)}',
        f'"runs": [\n{",".join(runs)}\n]',
        f'"table_fields": {json.dumps(TABLE_FIELDS)}',
        f'"tables": {json.dumps(facts_of_tables)}',
        f'"unit_fields": {json.dumps(UNIT_FIELDS)}',
        '"units": [\n' + ",\n".join(sorted(rows)) + "\n]",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{" + ",\n".join(parts) + "}\n")


def read_summary(path: Path) -> list[Unit]:
    """Units of a summary file."""
    content = json.loads(path.read_text())
    tables = {name: dict(zip(content["table_fields"], row, strict=True)) for name, row in content["tables"].items()}
    runs = {run["tag"]: run for run in content["runs"]}
    units = [dict(zip(content["unit_fields"], row, strict=True)) for row in content["units"]]
    return [
        {**runs.get(u["tag"], {}), **tables.get(u["table"], {}), **{k: v for k, v in u.items() if v is not None}}
        for u in units
    ]


def restore_rivals(folder: Path, summary: Path) -> int:
    """Make unit files of the rivals in a summary, where there are none yet; return how many were made."""
    made = 0
    for unit in read_summary(summary) if summary.exists() else ():
        path = unit_path(folder, RIVALS_TAG, unit["table"], unit["split"], unit["learner"])
        if unit["tag"] == RIVALS_TAG and unit["status"] == "done" and not path.exists():
            write_json(path, unit)
            made += 1
    return made


def _short(value: Any) -> Any:
    """Nine digits are more than any metric means."""
    return float(f"{value:.9g}") if isinstance(value, float) else value
