"""Write the tables and numbers of README.md and docs/tabular.md from declarations and from results kept as JSON.

Usage: python docs/write_tables.py. Each place is marked by a comment that names what stands there; tests compare.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softwood.cli.hyperparameters import option_names
from softwood.training.declaration import Declaration, declarations
from softwood.training.hyperparameters import Hyperparameters, all_declarations

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
PAGES = {ROOT / "README.md": ("results", "suite"), ROOT / "docs" / "tabular.md": ("hyperparameters", "suite")}


def table() -> str:
    """The table of all hyperparameters."""
    shared = declarations(Hyperparameters)
    rows = ["| name | values | default | what | `softwood train` |", "|---|---|---|---|---|"]
    for name, declaration in all_declarations().items():
        only = "" if name in shared else " Classifier only."
        cells = [f"`{name}`", declaration.notation, declaration.default_notation, f"{declaration.help}{only}"]
        rows.append(f"| {' | '.join([*cells, _options(declaration)])} |")
    return "\n".join(rows) + "\n"


def ranks() -> str:
    """The table of ranks among learners."""
    report, units = _suite()
    return str(report.digest(units))


def results() -> str:
    """Three results in a sentence each."""
    return "".join(f"- {sentence}\n" for sentence in (_quality(), _cost_of_depth(), _time_of_training()))


def _quality() -> str:
    report, units = _suite()
    frame = report.common(report.frame_of(units))
    rivals = [name for name in report.RIVALS if name in set(frame["learner"])]
    scores = report.scores_of(frame, ["softwood", *rivals])
    mean_ranks = sum(report.ranks(row) for row in scores.to_numpy()) / len(scores)
    ours, best = mean_ranks[0], min(zip(mean_ranks[1:], rivals, strict=True))
    won, tied, lost = report.wins_ties_losses(scores["softwood"] - scores["xgboost"])
    return (
        f"**Accurate without tuning.** Mean rank {ours:.2f} of 5 on {len(scores)} tables, all learners at their "
        f"defaults; the next is {report.NAMES[best[1]]} with {best[0]:.2f}. Against XGBoost: "
        f"{won} won, {tied} tied, {lost} lost ([table below](#results))."
    )


def _cost_of_depth() -> str:
    rows = json.loads((BENCHMARKS / "depth_scaling.json").read_text())["results"]
    one = {row["depth"]: row["forward_us"] for row in rows if row["leaves"] == 1}
    every = {row["depth"]: row["forward_us"] for row in rows if row["leaves"] is None}
    low, high, dense = min(one), max(one), max(every)
    return (
        f"**Depth is nearly free.** From depth {low} to {high} a tree has {2 ** (high - low):,} times the leaves; "
        f"a row that reaches one of them costs {one[high] / one[low]:.1f} times as much. With all leaves reached, the "
        f"{2 ** (dense - low)} times of depth {dense} cost {every[dense] / every[low]:.0f} times as much "
        "(`python benchmarks/depth_scaling.py`)."
    )


def _time_of_training() -> str:
    units = json.loads((ROOT / "paper" / "results" / "figure_depth.json").read_text())["units"]
    seconds: dict[tuple[str, str], list[float]] = {}
    for name, unit in units.items():
        table, depth, kind, _ = name.split("/")
        if depth == "depth 10":
            seconds.setdefault((table, kind), []).append(unit["result"]["seconds"])
    tables = sorted({table for table, _ in seconds})
    means = {key: sum(values) / len(values) for key, values in seconds.items()}
    ratios = [means[table, "logistic"] / means[table, "smooth_step_adam"] for table in tables]
    return (
        f"**Training is conditional, too.** {min(ratios):.0f} to {max(ratios):.0f} times faster at depth 10 than the "
        f"same trees with logistic routing, on {len(tables)} tables of the paper "
        "([the paper, run again](paper/README.md))."
    )


def _suite() -> tuple[Any, Any]:
    """The module that reports on the suite, and the suite's units."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import suite_report
        import suite_units
    finally:
        sys.path.remove(str(BENCHMARKS))
    return suite_report, suite_units.read_summary(BENCHMARKS / "suite.json")


MAKERS = {"hyperparameters": table, "suite": ranks, "results": results}


def with_tables(page: str, names: Sequence[str]) -> str:
    """The page with its tables as they should be."""
    for name in names:
        block = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- end -->)", re.DOTALL)
        text = MAKERS[name]()
        page, n_tables = block.subn(lambda found, text=text: found[1] + text + found[2], page)  # type: ignore[misc]
        assert n_tables == 1, f"the page must have one place for the table of {name}, between two comments"
    return page


def _options(declaration: Declaration) -> str:
    if not declaration.on_command_line:
        return ""
    return ", ".join(f"`{name}`" for name in option_names(declaration.name))


if __name__ == "__main__":
    for path, names in PAGES.items():
        path.write_text(with_tables(path.read_text(), names))
