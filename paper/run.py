"""Every run that the report is made of, in the order of what is worth having first; one command, resumable.

    python -m paper.run --units DIR                    # go on from what is there
    python -m paper.run --units DIR --only table_auc   # one experiment
    python -m paper.run --list                         # stages, finished units, hours spent and left; runs nothing

Processes may be stopped or killed at any moment. ``python -m paper.collect --units DIR`` turns finished units into the
results files, ``python -m paper.render`` those into the report.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paper.costs import unit_seconds
from paper.datasets import TABLES
from paper.runner import Record, Store, Unit, option_parser, run_units
from paper.search import N_FOLDS, REDUCED

# The sets that are run by the paper's protocol, in the order of their cost.
EXACT_SETS = TABLES[:12]
REDUCED_SETS = tuple(name for name in TABLES if name not in EXACT_SETS and name != "sleep")
_REDUCED = ("--rounds", str(REDUCED["rounds"]), "--tuning-rows", str(REDUCED["tuning_rows"]))
_FIRST_PASS = ("--splits", "3", *_REDUCED)


@dataclass(frozen=True)
class Stage:
    """Arguments of one experiment's command, and what they are for."""

    title: str
    experiment: str
    arguments: tuple[str, ...] = ()

    def units(self, common: Sequence[str]) -> tuple[list[Unit], argparse.Namespace]:
        """Units of this stage, and the options that they are run with."""
        module: Any = importlib.import_module(f"paper.{self.experiment}")
        options = module.parse_options([*self.arguments, *common])
        return module.units(options), options


def _auc(title: str, sets: Sequence[str], learners: Sequence[str], *more: str) -> Stage:
    return Stage(title, "table_auc", ("--sets", *sets, "--learners", *learners, *more))


def _activations(title: str, sets: Sequence[str], recipe: str, *more: str) -> Stage:
    return Stage(title, "table_activations", ("--sets", *sets, "--recipes", recipe, *more))


RIVALS = ("logistic_regression", "cart", "xgboost")
_TELS = ("tel_softwood", "default")
STAGES = (
    Stage("Figure 1", "figure_activations"),
    Stage("Related systems", "related_systems"),
    Stage("Figure 2", "figure_reachable"),
    _activations("Table 1, TEL (paper)", EXACT_SETS, "paper"),
    _auc("Table 2, first pass: all learners of the paper", EXACT_SETS, (*RIVALS, "tel_paper", *_TELS), *_FIRST_PASS),
    _auc("Table 2, reduced: rivals and TEL (paper)", REDUCED_SETS, (*RIVALS, "tel_paper"), *_FIRST_PASS),
    _auc("Table 2, reduced: TEL (softwood)", REDUCED_SETS, _TELS, *_FIRST_PASS),
    _activations("Table 1, TEL (paper), reduced", (*REDUCED_SETS, "sleep"), "paper", *_FIRST_PASS),
    _auc("Table 2, exact: the paper's rivals and TEL (paper)", EXACT_SETS, (*RIVALS, "tel_paper")),
    Stage("Figure 4, sets done so far", "figure_trees"),
    _auc("Table 2, sleep: rivals and TEL (paper)", ("sleep",), (*RIVALS, "tel_paper"), "--splits", "1", *_REDUCED),
    _auc("Table 2, exact: TEL (softwood)", EXACT_SETS, _TELS),
    _auc("Table 2, sleep: TEL (softwood)", ("sleep",), _TELS, "--splits", "1", *_REDUCED),
    _activations("Table 1, TEL (softwood)", EXACT_SETS, "softwood"),
    _activations("Table 1, TEL (softwood), reduced", (*REDUCED_SETS, "sleep"), "softwood", *_FIRST_PASS),
    Stage("Figure 4, all sets", "figure_trees"),
    Stage("Table 3, Fashion-MNIST and CIFAR-10", "table_images", ("--sets", "fashion-mnist", "cifar10")),
    _auc("Table 2, exact: LightGBM and CatBoost", EXACT_SETS, ("lightgbm", "catboost")),
    Stage("Table 3, MNIST", "table_images", ("--sets", "mnist", "--seeds", "2")),
)


def progress_of(stage: Stage, common: Sequence[str] = ()) -> Record:
    """How far a stage is: finished units, hours spent on them, and hours that the others need, by learner and set.

    A unit that is missing is expected to cost what finished units of the same set and learner did on average, else what
    `paper.costs` measured, else what finished units of the same learner did; None if there is nothing to go by.
    """
    units, options = stage.units(common)
    records = Store(stage.experiment, options.results, options.units).units
    costs, fits = dict[str, list[float]](), unit_seconds(options.results)
    done = []
    for unit in units:
        record = records.get(unit.key)
        if unit.is_done(record):
            assert record is not None
            done.append(record["cpu_seconds"])
            for kind in _kinds(unit):
                costs.setdefault(kind, []).append(record["cpu_seconds"])
    left: float | None = 0.0
    for unit in units:
        if unit.is_done(records.get(unit.key)):
            continue
        same, similar = _kinds(unit)
        expected = costs.get(same)
        if expected is None and stage.experiment == "table_auc" and same in fits:
            expected = [fits[same] * (1 + N_FOLDS * float(unit.budget.get("rounds") or 0))]
        expected = costs.get(similar) if expected is None else expected
        left = None if left is None or expected is None else left + float(np.mean(expected))
    return {
        "done": len(done),
        "units": len(units),
        "hours": sum(done) / 3600,
        "left": None if left is None else left / 3600,
    }


def _kinds(unit: Unit) -> list[str]:
    """What units of about the same cost share: first the set and the learner, then the learner."""
    parts = unit.key.split("/")
    return [f"{parts[0]}/{parts[-1]}", parts[-1]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing."""
    parser = option_parser(__doc__)
    parser.add_argument("--only", nargs="+", metavar="EXPERIMENT", help="run these experiments only, such as table_auc")
    parser.add_argument("--list", action="store_true", help="say what is done and what is left")
    options = parser.parse_args(arguments)
    common = ["--data", str(options.data), "--results", str(options.results), "--units", str(options.units)]
    for stage in STAGES:
        if options.only and stage.experiment not in options.only:
            continue
        if options.list:
            state = progress_of(stage, common)
            left = "unknown" if state["left"] is None else f"{state['left']:.1f}"
            print(f"{stage.title}: {state['done']} of {state['units']} units, {state['hours']:.1f} h, left {left} h")
            continue
        units, stage_options = stage.units(common)
        print(stage.title, flush=True)
        run_units(Store(stage.experiment, stage_options.results, stage_options.units), units, stage_options)


if __name__ == "__main__":
    main()
