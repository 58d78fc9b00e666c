"""Table 3: a convolutional network that ends in dense layers against one that ends in trees, on three image sets.

The sizes are the paper's, decoded from its numbers of parameters: convolutions of 32 and 64 filters; CNN-Dense with 5
dense layers of 512 units (4 on Fashion-MNIST); CNN-TEL with a dense layer of 64 units, batch normalisation, and 48
trees of depth 4. `count_parameters` gives the paper's numbers to the last digit. What cannot be decoded is fixed for
both networks alike: Adam at 0.001, batches of 128, dropout 0.3, gamma 1. There is no search. A tenth of the training
images is held out; the epoch of the best held-out accuracy (what the paper tunes for) and the last epoch are both
reported.

    python -m paper.table_images --sets fashion-mnist cifar10
    python -m paper.table_images --sets mnist --seeds 2

Training can be killed at any moment: it goes on from the last finished epoch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paper import published
from paper.claims import FAILS, HOLDS, IN_PART, Claim, table
from paper.comparison import mean_and_error, p_value
from paper.datasets import IMAGES, read_images
from paper.runner import Record, Save, Store, Unit, option_parser, run_units
from paper.search import seed_of

NAME = "table_images"
NETWORKS = {"dense": "CNN-Dense", "tel": "CNN-TEL"}
N_CLASSES, N_SEEDS, N_EPOCHS, HELD_OUT_SHARE = 10, 3, 30, 0.1
SIZES: Record = {"filters": 32, "dense_units": 512, "tel_units": 64, "trees": 48, "depth": 4}
DENSE_LAYERS = {"mnist": 5, "fashion-mnist": 4, "cifar10": 5}
FIXED: Record = {"version": 2, "dropout": 0.3, "batch_size": 128, "learning_rate": 1e-3, "gamma": 1.0}
WHEN = {"chosen": "epoch chosen on held-out images", "last": "last epoch"}


def build(kind: str, name: str, shape: tuple[int, int, int], filters: int = SIZES["filters"]) -> Any:
    """One of the two networks for images of the given shape (channels, height, width)."""
    from torch import nn

    from softwood.torch import TreeEnsemble

    width = 2 * filters * ((shape[1] - 4) // 2) * ((shape[2] - 4) // 2)
    layers: list[Any] = [nn.Conv2d(shape[0], filters, 3), nn.ReLU(), nn.Conv2d(filters, 2 * filters, 3), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(FIXED["dropout"]), nn.BatchNorm1d(width)]
    if kind == "tel":
        units = SIZES["tel_units"]
        trees = TreeEnsemble(units, N_CLASSES, SIZES["trees"], SIZES["depth"], gamma=FIXED["gamma"])
        return nn.Sequential(*layers, nn.Linear(width, units), nn.BatchNorm1d(units), trees)
    for _ in range(DENSE_LAYERS[name]):
        layers += [nn.Linear(width, SIZES["dense_units"]), nn.ReLU()]
        width = SIZES["dense_units"]
    return nn.Sequential(*layers, nn.Linear(width, N_CLASSES))


def count_parameters(model: Any) -> int:
    """As Keras counts: weights, running statistics of batch norm, and the layer's gamma."""
    from torch import nn

    from softwood.torch import TreeEnsemble

    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]
    n_trees_layers = sum(isinstance(module, TreeEnsemble) for module in model.modules())
    return sum(p.numel() for p in model.parameters()) + sum(2 * norm.num_features for norm in norms) + n_trees_layers


def train(options: argparse.Namespace, name: str, kind: str, seed: int, saved: Record, save: Save) -> Record:
    """Train by Adam and cross-entropy; accuracy and loss on held-out and test images after each epoch."""
    import torch
    from torch.nn.functional import cross_entropy

    torch.set_num_threads(options.threads)
    torch.manual_seed(seed_of(NAME, name, kind, seed))
    images, labels = _tensors(options.data, name, "train", options.limit)
    held_out = torch.tensor(np.random.default_rng(seed_of(NAME, name, seed)).permutation(len(images)))
    n_held_out = round(HELD_OUT_SHARE * len(images))
    rows, held_out = held_out[n_held_out:], held_out[:n_held_out]
    test = _tensors(options.data, name, "test", options.limit)
    model = build(kind, name, tuple(images.shape[1:]), options.filters)
    optimizer = torch.optim.Adam(model.parameters(), lr=FIXED["learning_rate"], fused=True)
    state = _EpochState(options.units / NAME / f"{name} - {kind} - {seed}.pt")
    history: list[list[float]] = state.restore(model, optimizer, options.epochs)
    while len(history) < options.epochs:
        model.train()
        for batch in rows[torch.randperm(len(rows))].split(FIXED["batch_size"]):
            loss = cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scores = [*_judge(model, images[held_out], labels[held_out]), *_judge(model, *test)]
        history.append([round(score, 6) for score in scores])
        state.keep(model, optimizer, history)
        save({"history": history})
    state.remove()
    chosen = int(np.argmax([held_out_accuracy for held_out_accuracy, *_ in history]))
    result: Record = {"parameters": count_parameters(model), "chosen_epoch": chosen, "history": history}
    for when, epoch in (("chosen", chosen), ("last", len(history) - 1)):
        result[f"{when}_accuracy"], result[f"{when}_loss"] = history[epoch][2:]
    return result


class _EpochState:
    """Weights, optimiser and random numbers after the last finished epoch, in a file beside the unit's."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def restore(self, model: Any, optimizer: Any, n_epochs: int) -> list[list[float]]:
        """Load what there is and return its history; a run of more epochs than are wanted starts anew."""
        import torch

        if not self.path.exists():
            return []
        state = torch.load(self.path, weights_only=True)
        if len(state["history"]) > n_epochs:
            return []
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        history: list[list[float]] = state["history"]
        return history

    def keep(self, model: Any, optimizer: Any, history: list[list[float]]) -> None:
        """Replace the file."""
        import torch

        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
        torch.save({**state, "history": history}, temporary)
        temporary.replace(self.path)

    def remove(self) -> None:
        """Once training is finished."""
        self.path.unlink(missing_ok=True)


def _tensors(folder: Path, name: str, part: str, limit: int | None) -> tuple[Any, Any]:
    import torch

    images, labels = read_images(folder, name, part)
    return torch.tensor(images[:limit], dtype=torch.float32).div_(255.0), torch.tensor(labels[:limit])


def _judge(model: Any, images: Any, labels: Any) -> tuple[float, float]:
    """Accuracy and mean cross-entropy."""
    import torch

    model.eval()
    with torch.inference_mode():
        scores = torch.cat([model(part) for part in images.split(1000)])
    loss = torch.nn.functional.cross_entropy(scores, labels).item()
    return (scores.argmax(dim=1) == labels).float().mean().item(), loss


def settings_for(options: argparse.Namespace) -> Record:
    """What a unit is run with; other sizes than the paper's do not count as its table."""
    return {**FIXED, **SIZES, "filters": options.filters, "limit": options.limit}


def units(options: argparse.Namespace) -> list[Unit]:
    """Seed by seed; the two networks take turns."""
    return [
        Unit(
            f"{name}/{kind}/seed {seed}",
            partial(train, options, name, kind, seed),
            settings_for(options),
            {"epochs": options.epochs},
        )
        for seed in range(options.seeds)
        for name in options.sets
        for kind in NETWORKS
    ]


# Report -------------------------------------------------------------------------------------------------------------


def _read(results: Path) -> dict[str, dict[str, list[Record]]]:
    """Runs of the paper's sizes, by set and network."""
    found: dict[str, dict[str, list[Record]]] = {}
    wanted = settings_for(parse_options([]))
    for key, unit in sorted(Store(NAME, results).units.items()):
        name, kind, _ = key.split("/")
        if unit["settings"] == wanted:
            found.setdefault(name, {kind: [] for kind in NETWORKS})[kind].append(unit)
    return found


def section(results: Path, pictures: Path) -> str:
    """The report's part on this table."""
    runs = _read(results)
    if not runs:
        return "not run"
    rows, notes = [], []
    for name in IMAGES:
        for kind, title in NETWORKS.items():
            done = [unit["result"] for unit in runs.get(name, {}).get(kind, [])]
            paper = published.IMAGES[name][kind]
            cells = [_cell(done, f"{when}_{what}") for when in WHEN for what in ("accuracy", "loss")]
            size = f"{done[0]['parameters']:,}" if done else "not run"
            published_cells = [f"{mean:.4f} ± {error:.4f}" for mean, error in paper[:2]]
            rows.append([name, title, str(len(done)), *cells, size, *published_cells, f"{paper[2]:,}"])
        notes += _verdicts(name, runs.get(name))
    epochs = sorted({unit["budget"]["epochs"] for kinds in runs.values() for units in kinds.values() for unit in units})
    head = ["set", "network", "seeds"]
    head += [
        f"{words}: {what}" if what == "accuracy" else what for words in WHEN.values() for what in ("accuracy", "loss")
    ]
    head += ["parameters", "paper: accuracy", "loss", "parameters"]
    return (
        f"Mean ± standard error over seeds; epochs: {', '.join(map(str, epochs))}. Networks of the paper's sizes.\n\n"
        + table(head, rows)
        + ("\n\n" + "\n".join(notes) if notes else "")
    )


def _cell(done: list[Record], what: str) -> str:
    if not done:
        return "not run"
    mean, error = mean_and_error([result[what] for result in done])
    return f"{mean:.4f}" + ("" if np.isnan(error) else f" ± {error:.4f}")


def _losses(runs: dict[str, list[Record]] | None, when: str) -> tuple[list[float], list[float]]:
    """Losses of both networks over the seeds that both have."""
    n = 0 if runs is None else min(map(len, runs.values()))
    dense, tel = ([unit["result"][f"{when}_loss"] for unit in (runs or {}).get(kind, [])[:n]] for kind in NETWORKS)
    return dense, tel


def _verdicts(name: str, runs: dict[str, list[Record]] | None) -> list[str]:
    lines = []
    for when, words in WHEN.items():
        dense, tel = _losses(runs, when)
        if dense:
            p = p_value(tel, dense)
            tested = "" if np.isnan(p) else f" (paired t-test over {len(dense)} seeds: p = {p:.2g})"
            change = np.mean(tel) / np.mean(dense) - 1
            lines.append(f"- {name}, {words}: CNN-TEL's loss is {change:+.0%} against CNN-Dense's{tested}.")
    return lines


def claims(results: Path) -> list[Claim]:
    """What the paper says of this table."""
    text = "In CNNs, trees instead of dense layers lower the test loss by 7 to 53% with 8 times fewer parameters"
    runs, words, changes, n_least = _read(results), [], [], N_SEEDS
    for name in IMAGES:
        both = [_losses(runs.get(name), when) for when in WHEN]
        if both[0][0]:
            change = [float(np.mean(tel) / np.mean(dense) - 1) for dense, tel in both]
            words.append(f"{name} {change[0]:+.0%} at the chosen epoch, {change[1]:+.0%} at the last")
            changes.append(change)
            n_least = min(n_least, len(both[0][0]))
    if not words:
        return [Claim(text, "section 4.3, table 3")]
    lower = [all(part < 0 for part in change) for change in changes]
    verdict = HOLDS if all(lower) else IN_PART if any(min(change) < 0 for change in changes) else FAILS
    protocol = f"{len(words)} of {len(IMAGES)} sets, at least {n_least} seeds (paper: 5), no search"
    return [Claim(text, "section 4.3, table 3", "; ".join(words), protocol, verdict)]


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = option_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=IMAGES, default=IMAGES, metavar="SET")
    parser.add_argument("--epochs", type=int, default=N_EPOCHS)
    parser.add_argument("--seeds", type=int, default=N_SEEDS)
    parser.add_argument("--filters", type=int, default=SIZES["filters"], help="of the first convolution; paper: 32")
    parser.add_argument("--limit", type=int, help="training and test images at most, for a trial")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> bool:
    """Run what is missing."""
    options = parse_options(arguments)
    return run_units(Store(NAME, options.results, options.units), units(options), options)


if __name__ == "__main__":
    main()
