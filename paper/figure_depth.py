"""Figure 3: time of 50 epochs of training against the depth of trees, smooth-step beside logistic and dense PyTorch.

10 trees, gamma 1, batches of 256, learning rate 0.1, all 50 epochs: the paper's setting, and nothing is scaled up. Here
float32, one thread, in processor time (which on an idle machine is the time that passes). The first two are trained by
this library's native trainer; dense PyTorch trains the smooth-step trees as matrix products with fused Adam, which the
paper does not have. Smooth-step is timed with this library's optimiser, which updates only what a batch reached where
that is less than half, and with Adam on all weights, as Keras has it.

    python -m paper.figure_depth --contenders smooth_step logistic      # about 4 minutes
    python -m paper.figure_depth --stop-after 90                        # in slices: the same command goes on
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paper import published
from paper.claims import Claim, graded, table
from paper.comparison import mean_and_error
from paper.datasets import TABLES, Split, split_table
from paper.runner import Record, Save, Store, Unit, option_parser, run_units
from softwood.training import Loss, MemberData, Samples, TrainingConfig, fit_members

NAME = "figure_depth"
SETS = ("breast-cancer-wisconsin", "churn", "satimage")
DEPTHS = (2, 4, 6, 8, 10)
CONTENDERS = {
    "smooth_step": "smooth-step",
    "smooth_step_adam": "smooth-step, dense Adam",
    "logistic": "logistic",
    "dense": "dense PyTorch",
}
N_TREES, BATCH_SIZE, LEARNING_RATE, N_EPOCHS = 10, 256, 0.1, 50
N_REPETITIONS = 5
SETTINGS = {
    "version": 2,
    "epochs": N_EPOCHS,
    "trees": N_TREES,
    "batch_size": BATCH_SIZE,
    "learning_rate": LEARNING_RATE,
    "gamma": 1.0,
    "clock": "processor, 1 thread",
}


def train_native(data: Split, depth: int, contender: str, seed: int) -> Record:
    """Time of all epochs of the native trainer."""
    activation: Any = "logistic" if contender == "logistic" else "smooth_step"
    config = TrainingConfig(
        Loss("cross_entropy", n_classes=int(data.y_train.max()) + 1),
        n_trees=N_TREES,
        depth=depth,
        activation=activation,
        gamma=1.0,
        bias=False,
        learning_rate=LEARNING_RATE,
        schedule="constant",
        warmup=0.0,
        batch_size=BATCH_SIZE,
        max_epochs=N_EPOCHS,
        patience=None,
        optimizer="adam" if contender == "smooth_step_adam" else "auto",
    )
    member = MemberData(Samples(np.ascontiguousarray(data.X_train, dtype=np.float32), data.y_train), seed=seed)
    started = time.process_time()
    (trained,) = fit_members(config, [member], n_threads=1)
    seconds = time.process_time() - started
    leaves = [record.mean_reachable_leaves for record in trained.history]
    return {
        "seconds": seconds,
        "loss": trained.history[-1].train_loss,
        "mean_reachable_leaves": float(np.mean(leaves)),
    }


def train_dense(data: Split, depth: int, seed: int) -> Record:
    """The same of dense PyTorch."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    x, y = torch.tensor(data.X_train, dtype=torch.float32), torch.tensor(data.y_train)
    n_classes = int(data.y_train.max()) + 1
    norm = torch.nn.BatchNorm1d(x.shape[1])
    split_weight = torch.nn.Parameter(torch.empty(N_TREES * (2**depth - 1), x.shape[1]).uniform_(-0.01, 0.01))
    leaf_weight = torch.nn.Parameter(torch.empty(N_TREES * 2**depth, n_classes).uniform_(-0.01, 0.01))
    optimizer = torch.optim.Adam([*norm.parameters(), split_weight, leaf_weight], lr=LEARNING_RATE, fused=True)
    started = time.process_time()
    for _ in range(N_EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH_SIZE):
            loss = torch.nn.functional.cross_entropy(
                _dense_trees(norm(x[rows]), split_weight, leaf_weight, depth), y[rows]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {"seconds": time.process_time() - started, "loss": loss.item()}


def _dense_trees(x: Any, split_weight: Any, leaf_weight: Any, depth: int) -> Any:
    """Sum of all trees, every leaf of them. Samples stand last: each level is then one block of memory."""
    import torch

    v = torch.addmm(x.new_tensor(0.5), split_weight, x.T).clamp(0, 1)
    left = (v * v * torch.sub(3, v, alpha=2)).view(N_TREES, 2**depth - 1, -1)
    reach = left.new_ones(N_TREES, 1, len(x))
    for level in range(depth):
        to_left = reach * left[:, 2**level - 1 : 2 ** (level + 1) - 1]
        reach = torch.stack((to_left, reach - to_left), dim=2).view(N_TREES, 2 ** (level + 1), -1)
    return reach.view(-1, len(x)).T @ leaf_weight


def _run(
    options: argparse.Namespace, name: str, depth: int, contender: str, seed: int, saved: Record, save: Save
) -> Record:
    data = split_table(options.data, name, 0)
    if contender == "dense":
        return train_dense(data, depth, seed)
    return train_native(data, depth, contender, seed)


# Report -------------------------------------------------------------------------------------------------------------


def seconds_of(units: dict[str, Record], name: str, depth: int, contender: str) -> list[float]:
    """Times of all repetitions."""
    prefix = f"{name}/depth {depth}/{contender}/"
    done = [unit for key, unit in units.items() if key.startswith(prefix) and unit["settings"] == SETTINGS]
    return [unit["result"]["seconds"] for unit in done if "result" in unit]


def section(results: Path, pictures: Path) -> str:
    """The report's part on this figure."""
    units = Store(NAME, results).units
    if not any(seconds_of(units, name, depth, key) for name in SETS for depth in DEPTHS for key in CONTENDERS):
        return "not run"
    _draw(units, pictures / f"{NAME}.png")
    rows = []
    for name in SETS:
        for depth in DEPTHS:
            times = {key: seconds_of(units, name, depth, key) for key in CONTENDERS}
            cells = [_time_cell(times[key]) for key in CONTENDERS]
            ratios = [_ratio_cell(times["logistic"], times[ours]) for ours in ("smooth_step", "smooth_step_adam")]
            rows.append([name, str(depth), *cells, *ratios, _ratio_cell(times["dense"], times["smooth_step"])])
    head = ["set", "depth", *CONTENDERS.values()]
    head += ["logistic / smooth-step", "the same with dense Adam", "dense PyTorch / smooth-step"]
    return (
        f"![Time against depth]({pictures.name}/{NAME}.png)\n\nProcessor seconds of {N_EPOCHS} epochs, one thread, "
        f"mean ± standard error over {N_REPETITIONS} repetitions, or as many as stand in brackets; ratios of means. "
        f"Nothing is scaled up. The paper gives a picture, and says: {published.SPEEDUP}.\n\n" + table(head, rows)
    )


def claims(results: Path) -> list[Claim]:
    """What the paper says of this figure."""
    units, depth, text = (
        Store(NAME, results).units,
        10,
        "Smooth-step trains more than 10 times as fast as logistic routing at depth 10",
    )
    ratios, n_least = {}, N_REPETITIONS
    for name in SETS:
        logistic, smooth = (seconds_of(units, name, depth, key) for key in ("logistic", "smooth_step_adam"))
        if logistic and smooth:
            ratios[name] = float(np.mean(logistic) / np.mean(smooth))
            n_least = min(n_least, len(logistic), len(smooth))
    if not ratios:
        return [Claim(text, "section 4.1, figure 3")]
    words = "with Adam on all weights: " + "; ".join(f"{name} {ratio:.0f} times" for name, ratio in ratios.items())
    protocol = (
        "exact, one thread" if n_least >= N_REPETITIONS else f"{n_least} of {N_REPETITIONS} repetitions, one thread"
    )
    return [Claim(text, "section 4.1, figure 3", words, protocol, graded(min(ratios.values()), holds=10, in_part=5))]


def _time_cell(values: list[float]) -> str:
    if not values:
        return "not run"
    mean, error = mean_and_error(values)
    few = f" ({len(values)})" if len(values) < N_REPETITIONS else ""
    return (f"{mean:.3g}" if np.isnan(error) else f"{mean:.3g} ± {error:.2g}") + few


def _ratio_cell(rival: list[float], ours: list[float]) -> str:
    return f"{np.mean(rival) / np.mean(ours):.1f}" if rival and ours else "not run"


def _draw(units: dict[str, Record], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(SETS)), SETS, strict=True):
        for contender, title in CONTENDERS.items():
            points = {depth: seconds_of(units, name, depth, contender) for depth in DEPTHS}
            done = [depth for depth in DEPTHS if points[depth]]
            axes.plot(done, [np.mean(points[depth]) for depth in done], marker="o", markersize=3, label=title)
        axes.set(title=name, xlabel="depth", yscale="log")
    figure.axes[0].set_ylabel("seconds")
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path)


def units(options: argparse.Namespace) -> list[Unit]:
    """Repetition by repetition; contenders take turns."""
    return [
        Unit(
            f"{name}/depth {depth}/{contender}/{seed}",
            partial(_run, options, name, depth, contender, seed),
            SETTINGS,
        )
        for seed in range(options.repetitions)
        for depth in options.depths
        for name in options.sets
        for contender in options.contenders
    ]


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = option_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=TABLES, default=SETS, metavar="SET")
    parser.add_argument("--depths", nargs="+", type=int, default=DEPTHS)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="CONTENDER")
    parser.add_argument("--repetitions", type=int, default=N_REPETITIONS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> bool:
    """Run what is missing."""
    options = parse_options(arguments)
    return run_units(Store(NAME, options.results, options.units), units(options), options)


if __name__ == "__main__":
    main()
