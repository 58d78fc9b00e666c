"""Table 2: test AUC of tuned TEL, XGBoost, logistic regression and CART on the 23 tables of PMLB.

TEL twice: by the paper's recipe and by this library's. Besides, LightGBM and CatBoost with the same search, and this
library's defaults, untuned. `python -m paper.run` runs all of it in a sensible order; parts of it are run by

    python -m paper.table_auc --sets pima --learners cart                        # the paper's protocol
    python -m paper.table_auc --splits 3 --rounds 25 --tuning-rows 5000          # reduced

How it is reported is left to `paper.auc_report`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

import numpy as np

from paper.datasets import TABLES, split_table
from paper.learners import LEARNERS
from paper.runner import Record, Save, Store, Unit, option_parser, run_units
from paper.search import (
    EXACT_SPLITS,
    Name,
    add_tuning_options,
    fit_and_score,
    settings_of,
    thinned,
    tune,
    tuning_budget,
)

NAME = "table_auc"


def units(options: argparse.Namespace) -> list[Unit]:
    """Set by set, and learner by learner in each."""
    return [
        unit(options, name, split, learner)
        for name in options.sets
        for learner in options.learners
        for split in range(options.splits)
    ]


def unit(options: argparse.Namespace, name: str, split: int, learner: str) -> Unit:
    """One learner, tuned and judged on one split of one set."""
    budget = tuning_budget(options) if LEARNERS[learner].space else {}
    run = partial(_run, options, Name(name, learner, split))
    return Unit(f"{name}/split {split}/{learner}", run, settings_of(LEARNERS[learner]), budget)


def _run(options: argparse.Namespace, name: Name, saved: Record, save: Save) -> Record:
    learner, data = LEARNERS[name.learner], split_table(options.data, name.table, name.split)
    threads, result, params = options.threads, {}, {}
    if learner.space:
        rows = thinned(data, options.tuning_rows, name.fold_seed)
        found = tune(learner, name, rows, rounds=options.rounds, threads=threads, saved=saved, save=save)
        params, result = found.params, found.record()
    score, model = fit_and_score(learner, params, data, seed=name.seed("final"), threads=threads)
    return {"auc": score, **result, **_size(model)}


def _size(model: object) -> Record:
    """Of this library's models: leaves that a row reaches per tree in the last epoch, and trainable parameters."""
    history = getattr(model, "history_", None)
    if history is None:
        return {}
    last = [leaves for leaves, best in zip(history["mean_reachable_leaves"], history["is_best"], strict=True) if best]
    return {"leaves": round(float(np.mean(last)), 4)}


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = option_parser(__doc__)
    parser.add_argument("--splits", type=int, default=EXACT_SPLITS, help="70/30 splits of each set; default 15")
    parser.add_argument("--sets", nargs="+", choices=TABLES, default=TABLES, metavar="SET")
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS), metavar="LEARNER")
    add_tuning_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> bool:
    """Run what is missing."""
    options = parse_options(arguments)
    return run_units(Store(NAME, options.results, options.units), units(options), options)


if __name__ == "__main__":
    main()
