"""Table 3: a convolutional network that ends in dense layers against one that ends in trees, on three image sets.

Both share the body: two 3x3 convolutions of f and 2f filters, 2x2 max pooling, dropout, batch normalisation. CNN-Dense
goes on with two wide dense layers, CNN-TEL with one narrow dense layer and trees. There is no search: configurations
are fixed, for all sets and both networks alike, within the paper's ranges and with its ratio of parameters of about 8.
The test images are looked at after each epoch, and only the last epoch counts.

    python -m paper.table_images                 # f 8, 5 epochs, 2 seeds: about 40 minutes
    python -m paper.table_images --epochs 15     # what the report shows
    python -m paper.table_images --full          # f 32, 50 epochs, 5 seeds
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paper import published
from paper.comparison import mean_and_error, p_value
from paper.datasets import IMAGES, read_images
from paper.runner import Record, Save, Store, Unit, option_parser, run_units

NAME = "table_images"
NETWORKS = {"dense": "CNN-Dense", "tel": "CNN-TEL"}
N_CLASSES = 10
FIXED = {
    "dropout": 0.3,
    "batch_size": 128,
    "learning_rate": 1e-3,
    "dense_layers": 2,
    "dense_units": 512,
    "tel_units": 64,
    "trees": 20,
    "depth": 4,
    "gamma": 1.0,
}


def build(kind: str, shape: tuple[int, int, int], filters: int) -> Any:
    """One of the two networks for images of the given shape (channels, height, width)."""
    from torch import nn

    from softwood.torch import TreeEnsemble

    width = 2 * filters * ((shape[1] - 4) // 2) * ((shape[2] - 4) // 2)
    layers: list[Any] = [nn.Conv2d(shape[0], filters, 3), nn.ReLU(), nn.Conv2d(filters, 2 * filters, 3), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(FIXED["dropout"]), nn.BatchNorm1d(width)]
    if kind == "tel":
        units = int(FIXED["tel_units"])
        trees = TreeEnsemble(
            units, N_CLASSES, int(FIXED["trees"]), int(FIXED["depth"]), gamma=FIXED["gamma"], init="scaled"
        )
        return nn.Sequential(*layers, nn.Linear(width, units), nn.BatchNorm1d(units), trees)
    for _ in range(int(FIXED["dense_layers"])):
        layers += [nn.Linear(width, int(FIXED["dense_units"])), nn.ReLU()]
        width = int(FIXED["dense_units"])
    return nn.Sequential(*layers, nn.Linear(width, N_CLASSES))


def train(options: argparse.Namespace, name: str, kind: str, seed: int, saved: Record, save: Save) -> Record:
    """Train by Adam and cross-entropy; accuracy and loss on the test images after the last epoch."""
    import torch
    from torch.nn.functional import cross_entropy

    torch.set_num_threads(options.threads)
    torch.manual_seed(seed)
    images, labels = _tensors(options.data, name, "train", options.limit)
    test = _tensors(options.data, name, "test", None)
    model = build(kind, tuple(images.shape[1:]), options.filters)
    optimizer = torch.optim.Adam(model.parameters(), lr=FIXED["learning_rate"], fused=True)
    history = []
    for _ in range(options.epochs):
        model.train()
        for rows in torch.randperm(len(images)).split(int(FIXED["batch_size"])):
            loss = cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        history.append(_judge(model, *test))
    accuracy, loss = history[-1]
    return {
        "accuracy": accuracy,
        "loss": loss,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "history": [[round(a, 5), round(b, 5)] for a, b in history],
    }


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


# Report -------------------------------------------------------------------------------------------------------------


def section(results: Path, pictures: Path) -> str:
    """The report's part on this table."""
    units = {key: unit for key, unit in Store(results / f"{NAME}.json").units.items() if "result" in unit}
    if not units:
        return "not run"
    lines = ["| set | network | accuracy | loss | parameters | paper: accuracy | loss | parameters |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    notes = []
    for name in IMAGES:
        runs = {kind: _runs(units, name, kind) for kind in NETWORKS}
        for kind, title in NETWORKS.items():
            lines.append(f"| {name} | {title} | {_our_cells(runs[kind])} | {_paper_cells(name, kind)} |")
        notes += _verdict(name, runs)
    settings = sorted({_words({**unit["budget"], **unit["settings"]}) for unit in units.values()})
    return (
        f"Run: {'; '.join(settings)}. Mean ± standard error over seeds.\n\n"
        + "\n".join(lines)
        + "\n\n"
        + "\n".join(notes)
    )


def _runs(units: dict[str, Record], name: str, kind: str) -> list[Record]:
    return [unit["result"] for key, unit in sorted(units.items()) if key.startswith(f"{name}/{kind}/")]


def _our_cells(runs: list[Record]) -> str:
    if not runs:
        return "not run | not run | not run"
    (accuracy, accuracy_error), (loss, loss_error) = (
        mean_and_error([run[what] for run in runs]) for what in ("accuracy", "loss")
    )
    errors = ["" if np.isnan(error) else f" ± {error:.4f}" for error in (accuracy_error, loss_error)]
    return f"{accuracy:.4f}{errors[0]} | {loss:.4f}{errors[1]} | {runs[0]['parameters']:,}"


def _paper_cells(name: str, kind: str) -> str:
    (accuracy, accuracy_error), (loss, loss_error), size = published.IMAGES[name][kind]
    return f"{accuracy:.4f} ± {accuracy_error:.4f} | {loss:.4f} ± {loss_error:.4f} | {size:,}"


def _verdict(name: str, runs: dict[str, list[Record]]) -> list[str]:
    if not (runs["dense"] and runs["tel"]):
        return []
    n = min(map(len, runs.values()))
    dense, tel = ([run["loss"] for run in runs[kind][:n]] for kind in ("dense", "tel"))
    change = np.mean(tel) / np.mean(dense) - 1
    ratio = runs["dense"][0]["parameters"] / runs["tel"][0]["parameters"]
    p = p_value(tel, dense)
    tested = "" if np.isnan(p) else f" (paired t-test over {n} seeds: p = {p:.2g})"
    loss = f"CNN-TEL's loss is {change:+.0%} against CNN-Dense's{tested}"
    return [f"- {name}: {loss}, with {ratio:.1f} times fewer parameters."]


def _words(settings: Record) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in settings.items() if value is not None)


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing."""
    parser = option_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=IMAGES, default=IMAGES, metavar="SET")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--filters", type=int, default=8)
    parser.add_argument("--limit", type=int, help="training images at most")
    parser.add_argument("--full", action="store_true", help="the paper's sizes and repetitions, without its search")
    options = parser.parse_args(arguments)
    if options.full:
        options.epochs, options.seeds, options.filters = 50, 5, 32
    settings = {"filters": options.filters, "limit": options.limit, **FIXED}
    units = [
        Unit(
            f"{name}/{kind}/seed {seed}",
            partial(train, options, name, kind, seed),
            settings,
            {"epochs": options.epochs},
        )
        for seed in range(options.seeds)
        for name in options.sets
        for kind in NETWORKS
    ]
    run_units(Store(options.results / f"{NAME}.json"), units, options)


if __name__ == "__main__":
    main()
