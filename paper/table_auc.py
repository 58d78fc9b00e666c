"""Table 2: test AUC of tuned TEL, XGBoost, logistic regression and CART on the 23 tables of PMLB.

Besides, LightGBM and CatBoost tuned with the same budget, and TEL with this library's defaults, untuned.

    python -m paper.table_auc                              # a budget of about 40 minutes on two cores
    python -m paper.table_auc --sets pima --rounds 20      # more rounds go on from those that are done
    python -m paper.table_auc --full                       # the paper's protocol: 50 rounds, 15 splits, all rows
"""

from __future__ import annotations

import argparse
from functools import partial

from paper.datasets import TABLES, split_table
from paper.learners import LEARNERS, fit_and_score, thinned, tune
from paper.runner import Record, Save, Store, Unit, option_parser, run_units

NAME = "table_auc"


def units(options: argparse.Namespace) -> list[Unit]:
    """Split by split, so that an unfinished run covers all sets."""
    return [
        unit(options, name, split, learner)
        for split in range(options.splits)
        for name in options.sets
        for learner in options.learners
    ]


def unit(options: argparse.Namespace, name: str, split: int, learner: str) -> Unit:
    """One learner, tuned and judged on one split of one set."""
    tuned = bool(LEARNERS[learner].space)
    settings = {"tuning_rows": options.tuning_rows} if tuned else {}
    run = partial(_run, options, name, split, learner)
    return Unit(f"{name}/split {split}/{learner}", run, settings, options.rounds if tuned else 0)


def _run(options: argparse.Namespace, name: str, split: int, key: str, saved: Record, save: Save) -> Record:
    learner, data = LEARNERS[key], split_table(options.data, name, split)
    seeds = {"seed": split, "threads": options.threads}
    if not learner.space:
        return {"auc": fit_and_score(learner, {}, data, **seeds)}
    rows = thinned(data, options.tuning_rows, split)
    params, inner = tune(learner, rows, rounds=options.rounds, saved=saved, save=save, **seeds)
    return {"auc": fit_and_score(learner, params, data, **seeds), "validation_auc": inner, "params": params}


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = option_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="tuning rounds of each learner, set and split")
    parser.add_argument("--splits", type=int, default=1, help="70/30 splits of each set")
    parser.add_argument("--sets", nargs="+", choices=TABLES, default=TABLES, metavar="SET")
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS), metavar="LEARNER")
    parser.add_argument("--tuning-rows", type=int, default=2000, help="training rows that tuning sees at most")
    parser.add_argument("--full", action="store_true", help="the paper's protocol")
    options = parser.parse_args(arguments)
    if options.full:
        options.rounds, options.splits, options.tuning_rows = 50, 15, None
    return options


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing."""
    options = parse_options(arguments)
    run_units(Store(options.results / f"{NAME}.json"), units(options), options)


if __name__ == "__main__":
    main()
