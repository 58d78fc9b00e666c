"""What a unit of table 2 will cost: fits at a few random points of each learner's space, before the long runs.

python -m paper.costs        # a few minutes; `python -m paper.run --list` and the report then know what is left
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.model_selection import StratifiedKFold

from paper.datasets import TABLES, split_table
from paper.learners import LEARNERS
from paper.runner import RESULTS, Record, Save, Store, Unit, option_parser, run_units
from paper.search import N_FOLDS, REDUCED, Name, draw_points, fit_and_score, inner_split, settings_of, thinned

NAME = "costs"
N_POINTS = 5  # drawn at random; the first is the learner's own


def measure(options: argparse.Namespace, name: Name, saved: Record, save: Save) -> Record:
    """Mean processor seconds of a fit on the first fold of the first split."""
    learner, rows = LEARNERS[name.learner], REDUCED["tuning_rows"]
    data = thinned(split_table(options.data, name.table, name.split), int(rows or 0), name.fold_seed)
    cross = StratifiedKFold(N_FOLDS, shuffle=True, random_state=name.fold_seed)
    part = inner_split(data, *next(iter(cross.split(data.X_train, data.y_train))))
    seconds = []
    for i, params in enumerate(draw_points(learner, name, N_POINTS) if learner.space else [{}]):
        started = time.process_time()
        fit_and_score(learner, params, part, seed=name.seed("cost", i), threads=options.threads)
        seconds.append(round(time.process_time() - started, 4))
    return {"seconds_per_fit": float(np.mean(seconds)), "seconds": seconds}


def unit_seconds(results: Path = RESULTS) -> dict[str, float]:
    """Expected seconds of a fit, by "set/learner"; multiply by rounds and folds."""
    units = Store(NAME, results).units
    return {key: record["result"]["seconds_per_fit"] for key, record in units.items()}


def units(options: argparse.Namespace) -> list[Unit]:
    """Set by set."""
    return [
        Unit(f"{name}/{learner}", partial(measure, options, Name(name, learner, 0)), settings_of(LEARNERS[learner]))
        for name in options.sets
        for learner in options.learners
    ]


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = option_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=TABLES, default=TABLES, metavar="SET")
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS), metavar="LEARNER")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> bool:
    """Run what is missing."""
    options = parse_options(arguments)
    return run_units(Store(NAME, options.results, options.units), units(options), options)


if __name__ == "__main__":
    main()
