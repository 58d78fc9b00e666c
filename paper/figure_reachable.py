"""Figure 2: leaves that a sample reaches while one tree of depth 10 is trained, batch by batch, for several gammas.

Adam at the constant learning rate 0.1 on batches of 256 after batch normalisation, no biases, as in the paper's
appendix B. Diabetes, the paper's example, with six gammas and five seeds; the 22 other sets with gammas up to 1. What
the tuned models of table 2 reach is read from there.

    python -m paper.figure_reachable
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from paper import published
from paper.auc_report import Scores
from paper.claims import NOT_RUN, Claim, graded, table
from paper.comparison import mean_and_error
from paper.datasets import TABLES, split_table
from paper.runner import Record, Save, Store, Unit, option_parser, run_units
from paper.search import seed_of
from softwood.training import Loss, MemberData, Samples, TrainedMember, TrainingConfig, fit_members

NAME = "figure_reachable"
EXAMPLE = "diabetes"
GAMMAS = (0.01, 0.1, 1.0, 2.0, 5.0, 10.0)
SMALL_GAMMAS = GAMMAS[:3]  # of which the paper says that leaves converge to 1
DEPTH, BATCH_SIZE, LEARNING_RATE, N_EPOCHS, N_SEEDS = 10, 256, 0.1, 100, 5
SETTINGS: Record = {
    "version": 2,
    "depth": DEPTH,
    "learning_rate": LEARNING_RATE,
    "batch_size": BATCH_SIZE,
    "epochs": N_EPOCHS,
}
NEAR_ONE = 1.5  # mean leaves of the last epoch that count as converged to 1
_KEPT_BATCHES = 200  # of longer histories, batches at even steps on a logarithmic scale


def history(options: argparse.Namespace, name: str, gamma: float, seed: int, saved: Record, save: Save) -> Record:
    """Mean number of reachable leaves in each batch."""
    data = split_table(options.data, name, seed)
    x = np.ascontiguousarray(data.X_train, dtype=np.float32)
    config = TrainingConfig(
        Loss("cross_entropy", n_classes=int(data.y_train.max()) + 1),
        n_trees=1,
        depth=DEPTH,
        gamma=gamma,
        bias=False,
        learning_rate=LEARNING_RATE,
        schedule="constant",
        warmup=0.0,
        batch_size=BATCH_SIZE,
        max_epochs=1,
        patience=None,
        optimizer="adam",
    )
    random = np.random.default_rng(seed_of(NAME, name, gamma, seed))
    n_batches = -(-len(x) // BATCH_SIZE)
    leaves: list[float] = []
    member: TrainedMember | None = None
    for _ in range(N_EPOCHS):
        for rows in np.array_split(random.permutation(len(x)), n_batches):
            # One step each: the trainer reports the mean over an "epoch", here of a single batch.
            batch = MemberData(Samples(x, data.y_train, rows=rows), seed=seed, start=member)
            (member,) = fit_members(config, [batch], n_threads=options.threads, keep_state=True)
            leaves.append(member.history[-1].mean_reachable_leaves)
    kept = np.unique(np.geomspace(1, len(leaves), min(len(leaves), _KEPT_BATCHES)).round().astype(int) - 1)
    if name == EXAMPLE:
        kept = np.arange(len(leaves))
    return {
        "first": leaves[0],
        "last_epoch": float(np.mean(leaves[-n_batches:])),
        "largest_of_last_epoch": max(leaves[-n_batches:]),
        "batches": len(leaves),
        "batch": kept.tolist(),
        "leaves": [round(leaves[i], 3) for i in kept],
    }


def units(options: argparse.Namespace) -> list[Unit]:
    """The paper's example first."""
    cases = [(EXAMPLE, gamma, seed) for gamma in GAMMAS for seed in range(N_SEEDS)]
    cases += [(name, gamma, 0) for name in TABLES if name != EXAMPLE for gamma in SMALL_GAMMAS]
    return [
        Unit(f"{name}/gamma {gamma:g}/seed {seed}", partial(history, options, name, gamma, seed), SETTINGS)
        for name, gamma, seed in cases
        if name in options.sets
    ]


# Report -------------------------------------------------------------------------------------------------------------


def _read(results: Path) -> dict[str, Record]:
    units = Store(NAME, results).units
    return {key: record["result"] for key, record in units.items() if record["settings"] == SETTINGS}


def _runs(done: dict[str, Record], name: str, gamma: float) -> list[Record]:
    return [result for key, result in done.items() if key.startswith(f"{name}/gamma {gamma:g}/")]


def section(results: Path, pictures: Path) -> str:
    """The report's part on this figure."""
    done = _read(results)
    if not done:
        return "not run"
    _draw(done, pictures / f"{NAME}.png")
    rows = []
    for gamma in GAMMAS:
        runs = _runs(done, EXAMPLE, gamma)
        if runs:
            last, error = mean_and_error([run["last_epoch"] for run in runs])
            first = np.mean([run["first"] for run in runs])
            largest = max(run["largest_of_last_epoch"] for run in runs)
            cells = [f"{first:.1f}", f"{last:.2f} ± {error:.2f}", f"{largest:.2f}"]
            rows.append([f"{gamma:g}", *cells, published.REACHABLE_LEAVES if gamma <= 1 else "no statement"])
    parts = [
        f"![Reachable leaves]({pictures.name}/{NAME}.png)",
        f"One tree of {2**DEPTH} leaves on {EXAMPLE}, {N_EPOCHS} epochs, every batch counted, {N_SEEDS} seeds. Left: "
        "the paper's figure. Right: all sets at gamma 1.",
        table(["gamma", "first batch", "last epoch", "largest batch of the last epoch", "paper"], rows),
        f"All sets: mean of the last epoch, and what the tuned models of table 2 reach per tree (of TEL (paper), over "
        f"splits). A set counts as converged below {NEAR_ONE} leaves.",
        table(
            ["set", *(f"gamma {gamma:g}" for gamma in SMALL_GAMMAS), "tuned TEL (paper)", "its trees"],
            [_set_row(done, Scores.read(results), name) for name in sorted(TABLES)],
        ),
    ]
    return "\n\n".join(parts)


def _set_row(done: dict[str, Record], scores: Scores, name: str) -> list[str]:
    cells = []
    for gamma in SMALL_GAMMAS:
        runs = _runs(done, name, gamma)
        cells.append(f"{np.mean([run['last_epoch'] for run in runs]):.2f}" if runs else NOT_RUN)
    tuned = [record["result"] for record in scores.records["tel_paper"].get(name, {}).values()]
    if not tuned:
        return [name, *cells, NOT_RUN, ""]
    leaves, depth = (float(np.mean(x)) for x in ([r["leaves"] for r in tuned], [r["params"]["depth"] for r in tuned]))
    gamma = float(np.median([result["params"]["gamma"] for result in tuned]))
    return [name, *cells, f"{leaves:.2f}", f"mean depth {depth:.1f}, median gamma {gamma:.2g}"]


def claims(results: Path) -> list[Claim]:
    """What the paper says of this figure."""
    done, text = _read(results), "With gamma of at most 1, the leaves that a sample reaches converge to 1, on all sets"
    by_set = {name: [np.mean([run["last_epoch"] for run in _runs(done, name, gamma)]) for gamma in SMALL_GAMMAS
                     if _runs(done, name, gamma)] for name in TABLES}  # fmt: skip
    by_set = {name: values for name, values in by_set.items() if values}
    if not by_set:
        return [Claim(text, "section 2, figure 2")]
    near = [name for name, values in by_set.items() if max(values) < NEAR_ONE]
    worst = max(by_set, key=lambda name: max(by_set[name]))
    most = f"{worst} {max(by_set[worst]):.2f}"
    words = f"below {NEAR_ONE} on {len(near)} of {len(by_set)} sets after {N_EPOCHS} epochs; most: {most}"
    share = len(near) / len(by_set)
    protocol = f"exact; {N_SEEDS} seeds on {EXAMPLE}, one on the others"
    return [Claim(text, "section 2, figure 2", words, protocol, graded(share, holds=1.0, in_part=0.5))]


def _draw(done: dict[str, Record], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for gamma in GAMMAS:
        runs = _runs(done, EXAMPLE, gamma)
        if runs:
            per_epoch = runs[0]["batches"] / N_EPOCHS
            left.plot(
                np.array(runs[0]["batch"]) / per_epoch,
                np.mean([run["leaves"] for run in runs], axis=0),
                lw=1,
                label=f"gamma {gamma:g}",
            )
    for name in TABLES:
        for run in _runs(done, name, 1.0)[:1]:
            right.plot((np.array(run["batch"]) + 1) * N_EPOCHS / run["batches"], run["leaves"], lw=0.8)
    left.set(title=EXAMPLE, xlabel="epoch", ylabel="reachable leaves per sample", yscale="log")
    right.set(title="23 sets, gamma 1", xlabel="epoch", xscale="log")
    left.legend(fontsize="x-small")
    figure.savefig(path)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = option_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=TABLES, default=TABLES, metavar="SET")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> bool:
    """Run what is missing."""
    options = parse_options(arguments)
    return run_units(Store(NAME, options.results, options.units), units(options), options)


if __name__ == "__main__":
    main()
