"""Figure 2: leaves that a sample reaches while one tree of depth 10 is trained on diabetes, for several gammas.

Adam at the constant learning rate 0.1 on batches of 256 after batch normalisation, no biases, as in the paper.

    python -m paper.figure_reachable
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np

from paper.comparison import mean_and_error
from paper.datasets import split_table
from paper.runner import Record, Save, Store, Unit, option_parser, run_units
from softwood.training import Loss, MemberData, Samples, TrainingConfig, fit_members

NAME = "figure_reachable"
GAMMAS = (0.01, 0.1, 1.0, 2.0, 5.0, 10.0)
DEPTH = 10


def settings(options: argparse.Namespace) -> Record:
    """What a unit is run with."""
    return {"set": "diabetes", "depth": DEPTH, "learning_rate": 0.1, "batch_size": 256, "epochs": options.epochs}


def history(options: argparse.Namespace, gamma: float, seed: int, saved: Record, save: Save) -> Record:
    """Mean number of reachable leaves in each epoch."""
    data = split_table(options.data, "diabetes", seed)
    config = TrainingConfig(
        Loss("binary_cross_entropy"),
        n_trees=1,
        depth=DEPTH,
        gamma=gamma,
        bias=False,
        learning_rate=0.1,
        schedule="constant",
        warmup=0.0,
        batch_size=256,
        max_epochs=options.epochs,
        patience=None,
        optimizer="adam",
    )
    x = np.ascontiguousarray(data.X_train, dtype=np.float32)
    (member,) = fit_members(config, [MemberData(Samples(x, data.y_train), seed=seed)], n_threads=options.threads)
    leaves = [round(record.mean_reachable_leaves, 3) for record in member.history]
    return {"first": leaves[0], "last": leaves[-1], "leaves": leaves}


def section(results: Path, pictures: Path) -> str:
    """The report's part on this figure."""
    units = Store(results / f"{NAME}.json").units
    if not units:
        return "not run"
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    rows = ["| gamma | first epoch | 5th | 20th | last | paper |", "|---|---|---|---|---|---|"]
    for gamma in GAMMAS:
        runs = [unit["result"]["leaves"] for key, unit in units.items() if key.startswith(f"gamma {gamma:g}/")]
        if not runs:
            rows.append(f"| {gamma:g} | not run | | | | |")
            continue
        mean = np.mean(runs, axis=0)
        axes.plot(np.arange(1, len(mean) + 1), mean, label=f"gamma {gamma:g}")
        cells = [f"{mean[0]:.1f}", f"{mean[4]:.1f}", f"{mean[19]:.1f}"]
        last, error = mean_and_error([run[-1] for run in runs])
        paper = "converges to 1" if gamma <= 1 else "no statement"
        rows.append(f"| {gamma:g} | {' | '.join(cells)} | {last:.2f} ± {error:.2f} | {paper} |")
    axes.set(xlabel="epoch", ylabel="reachable leaves a sample", yscale="log")
    axes.legend(fontsize="small")
    figure.savefig(pictures / f"{NAME}.png")
    n_epochs = len(next(iter(units.values()))["result"]["leaves"])
    return (
        f"![Reachable leaves]({pictures.name}/{NAME}.png)\n\nOf {2**DEPTH} leaves, {n_epochs} epochs; means over seeds "
        "with the standard error of the last epoch. The paper gives a picture and no numbers.\n\n" + "\n".join(rows)
    )


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing."""
    parser = option_parser(__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="the same: nothing is left out by default")
    options = parser.parse_args(arguments)
    units = [
        Unit(f"gamma {gamma:g}/seed {seed}", partial(history, options, gamma, seed), settings(options))
        for gamma in GAMMAS
        for seed in range(options.seeds)
    ]
    run_units(Store(options.results / f"{NAME}.json"), units, options)


if __name__ == "__main__":
    main()
