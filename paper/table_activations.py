"""Table 1: test AUC of smooth-step against logistic routing, 10 trees of depth 4, on the 23 tables of PMLB.

Learning rate, batch size, epochs, and gamma or the logistic's temperature are tuned by cross-validated AUC on the
training rows of one split; the best are then trained from several random initialisations.

    python -m paper.table_activations          # a budget of about 40 minutes on two cores
    python -m paper.table_activations --full   # 50 rounds on all training rows, 5 initialisations
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
from optuna.distributions import FloatDistribution

from paper import published
from paper.comparison import is_significant, mean_and_error, wins_ties_losses
from paper.datasets import TABLES, split_table
from paper.learners import (
    FIRST_TRAINING,
    GAMMA,
    TRAINING_SPACE,
    Learner,
    add_tuning_options,
    fit_and_score,
    make_tel,
    thinned,
    tune,
    tuning_budget,
    words_on_tuning,
)
from paper.runner import Record, Save, Store, Unit, option_parser, run_units

NAME = "table_activations"
FIXED = {"n_trees": 10, "depth": 4}
SPLIT = 0


def _learner(title: str, activation: str, gamma: FloatDistribution, first_gamma: float) -> Learner:
    return Learner(
        title,
        lambda params, seed, threads: make_tel({**FIXED, "activation": activation, **params}, seed, threads),
        {**TRAINING_SPACE, "gamma": gamma},
        {**FIRST_TRAINING, "gamma": first_gamma},
    )


LEARNERS = {
    "smooth_step": _learner("Smooth-step", "smooth_step", GAMMA, 1.0),
    "logistic": _learner("Logistic", "logistic", FloatDistribution(1e-4, 1e4, log=True), 0.25),
}


def _run(options: argparse.Namespace, name: str, key: str, saved: Record, save: Save) -> Record:
    learner, data = LEARNERS[key], split_table(options.data, name, SPLIT)
    rows = thinned(data, options.tuning_rows, SPLIT)
    params, inner = tune(
        learner, rows, rounds=options.rounds, seed=SPLIT, threads=options.threads, saved=saved, save=save
    )
    scores = [
        fit_and_score(learner, params, data, seed=seed, threads=options.threads) for seed in range(options.repetitions)
    ]
    return {"auc": float(np.mean(scores)), "validation_auc": inner, "aucs": scores, "params": params}


# Report -------------------------------------------------------------------------------------------------------------


def section(results: Path, pictures: Path) -> str:
    """The report's part on this table."""
    units = Store(results / f"{NAME}.json").units
    if not units:
        return "not run"
    ours: dict[str, dict[str, list[float]]] = {key: {} for key in LEARNERS}
    for name in TABLES:
        for key in LEARNERS:
            result = units.get(f"{name}/{key}", {}).get("result")
            if result:
                ours[key][name] = result["aucs"]
    lines = ["| set | smooth-step | logistic | paper: smooth-step | paper: logistic |", "|---|---|---|---|---|"]
    for name in sorted(TABLES):
        lines.append(f"| {name} | {' | '.join([*_our_cells(ours, name), *_paper_cells(name)])} |")
    means = {key: {name: float(np.mean(values)) for name, values in ours[key].items()} for key in ours}
    both = [name for name in means["smooth_step"] if name in means["logistic"]]
    wins, ties, losses = wins_ties_losses(means["smooth_step"], means["logistic"])
    significant = [name for name in both if is_significant(ours["smooth_step"][name], ours["logistic"][name])]
    return (
        f"{words_on_tuning(units)} Mean test AUC ± standard error over initialisations; a "
        "star: the paired t-test tells the two apart at 0.05.\n\n"
        + "\n".join(lines)
        + f"\n\nSmooth-step wins on {wins}, ties on {ties}, loses on {losses} "
        f"of {len(both)} sets ({len(significant)} differences are significant). The paper: 7, 9, 7."
    )


def _our_cells(ours: dict[str, dict[str, list[float]]], name: str) -> list[str]:
    values = [ours[key].get(name) for key in LEARNERS]
    if values[0] is None or values[1] is None:
        return ["not run" if v is None else _cell(v, False) for v in values]
    star = is_significant(values[0], values[1])
    better = int(np.mean(values[1]) > np.mean(values[0]))
    return [_cell(v, star and i == better) for i, v in enumerate(values) if v is not None]


def _cell(values: list[float], star: bool) -> str:
    mean, error = mean_and_error(values)
    return f"{mean:.3f}{'*' if star else ''} ± {error:.4f}"


def _paper_cells(name: str) -> list[str]:
    return [f"{mean:.3f} ± {error:.4f}" for mean, error in published.ACTIVATION_AUC[name]]


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing."""
    parser = option_parser(__doc__)
    parser.add_argument("--repetitions", type=int, default=5, help="random initialisations after tuning")
    parser.add_argument("--sets", nargs="+", choices=TABLES, default=TABLES, metavar="SET")
    add_tuning_options(parser, rounds=10)
    options = parser.parse_args(arguments)
    if options.full:
        options.rounds, options.tuning_rows = 50, 0
    units = [
        Unit(
            f"{name}/{key}",
            partial(_run, options, name, key),
            budget={**tuning_budget(options), "repetitions": options.repetitions},
        )
        for name in options.sets
        for key in LEARNERS
    ]
    run_units(Store(options.results / f"{NAME}.json"), units, options)


if __name__ == "__main__":
    main()
