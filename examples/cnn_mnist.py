"""Trees on top of a convolutional network, against dense layers on the same one (the paper's CNN-TEL and CNN-Dense).

Both networks share the body: two 3x3 convolutions of f and 2f filters, 2x2 max pooling, dropout, batch normalisation.
CNN-Dense goes on with wide dense layers; CNN-TEL with one narrow dense layer and a tree ensemble.

    pip install 'softwood[torch,cli]'
    python examples/cnn_mnist.py --dataset fashion-mnist
    python examples/cnn_mnist.py --data my/folder/with/the/four/idx/files --head tel

The test set is read once, at the end. To compare settings use --validation, which holds out the last 10,000 training
images and never touches the test set.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from softwood.torch import TreeEnsemble

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
IMAGE_SIZE = 28
N_CLASSES = 10
N_VALIDATION = 10_000


def read_idx(path: Path) -> np.ndarray:
    """Read a file in the IDX format: a big-endian header (type, number of dimensions, their lengths), then bytes."""
    with gzip.open(path) as file:
        header = file.read(4)
        shape = np.frombuffer(file.read(4 * header[3]), dtype=">i4")
        return np.frombuffer(file.read(), dtype=np.uint8).reshape(shape)


def load_images(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Return images [n, 1, 28, 28] in [0, 1] and labels [n] of `part`, "train" or "t10k"."""
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
    return torch.tensor(images, dtype=torch.float32).div_(255.0).unsqueeze(1), torch.tensor(labels, dtype=torch.int64)


def convolutional_body(filters: int, dropout: float) -> tuple[list[nn.Module], int]:
    """Return the layers up to batch normalisation, and how many features leave them."""
    side = (IMAGE_SIZE - 4) // 2
    n_features = 2 * filters * side * side
    layers = [
        nn.Conv2d(1, filters, 3),
        nn.ReLU(),
        nn.Conv2d(filters, 2 * filters, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.BatchNorm1d(n_features),
    ]
    return layers, n_features


def cnn_tel(args: argparse.Namespace) -> nn.Sequential:
    """Return the network whose last layer is a tree ensemble."""
    body, n_features = convolutional_body(args.filters, args.dropout)
    trees = TreeEnsemble(args.units, N_CLASSES, args.trees, args.depth, gamma=args.gamma, init="scaled")
    return nn.Sequential(*body, nn.Linear(n_features, args.units), nn.ReLU(), trees)


def cnn_dense(args: argparse.Namespace) -> nn.Sequential:
    """Return the twin that ends in dense layers."""
    body, width = convolutional_body(args.filters, args.dropout)
    head: list[nn.Module] = []
    for _ in range(args.dense_layers):
        head += [nn.Linear(width, args.dense_units), nn.ReLU()]
        width = args.dense_units
    return nn.Sequential(*body, *head, nn.Linear(width, N_CLASSES))


def train(
    name: str, model: nn.Module, data: tuple[Tensor, Tensor], args: argparse.Namespace, progress: Progress
) -> None:
    """Train by Adam and cross-entropy (softmax is part of the loss)."""
    images, labels = data
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate, fused=True)
    batches_an_epoch = -(-len(images) // args.batch_size)
    bar = progress.add_task(name, total=args.epochs * batches_an_epoch, loss=float("nan"))
    model.train()
    running = None
    for _ in range(args.epochs):
        for batch in torch.randperm(len(images)).split(args.batch_size):
            loss = functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
            progress.update(bar, advance=1, loss=running)


@torch.inference_mode()
def evaluate(model: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy."""
    model.eval()
    logits = torch.cat([model(images) for images in data[0].split(1000)])
    accuracy = (logits.argmax(dim=1) == data[1]).float().mean().item()
    return accuracy, functional.cross_entropy(logits, data[1]).item()


@torch.inference_mode()
def mean_reachable_leaves(model: nn.Module, images: Tensor) -> float | None:
    """Return how many leaves of a tree an image reaches on average, if the network ends in trees."""
    *body, trees = model.children()
    if not isinstance(trees, TreeEnsemble):
        return None
    return trees.reachable_leaves(nn.Sequential(*body).eval()(images)).float().mean().item()


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=("mnist", "fashion-mnist"), default="fashion-mnist")
    parser.add_argument("--data", type=Path, help="folder of the four .gz files; default: ../shared/data/<dataset>")
    parser.add_argument("--head", choices=("tel", "dense", "both"), default="both")
    parser.add_argument("--filters", type=int, default=8, help="f of the first convolution; the second has 2f")
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--units", type=int, default=48, help="width of CNN-TEL's dense layer")
    parser.add_argument("--trees", type=int, default=20)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--gamma", type=float, default=3.0)
    parser.add_argument("--dense-layers", type=int, default=2, help="of CNN-Dense, before its output layer")
    parser.add_argument("--dense-units", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seeds", type=int, default=1, help="repetitions, with seeds 0, 1, ...")
    parser.add_argument("--limit", type=int, help="use this many training images only")
    parser.add_argument("--threads", type=int, help="threads to use; default: all cores")
    parser.add_argument("--validation", action="store_true", help="hold out training images, leave the test set alone")
    parser.add_argument("--json", type=Path, help="also write what was run and what came out to this file")
    return parser.parse_args(argv)


def load_parts(args: argparse.Namespace) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the images to train on and those to be judged by."""
    folder = args.data or SHARED_DATA / args.dataset
    images, labels = load_images(folder, "train")
    if args.validation:
        held_out = images[-N_VALIDATION:], labels[-N_VALIDATION:]
        images, labels = images[:-N_VALIDATION], labels[:-N_VALIDATION]
    else:
        held_out = load_images(folder, "t10k")
    return (images[: args.limit], labels[: args.limit]), held_out


def main(argv: list[str] | None = None) -> list[dict]:
    """Train the networks that were asked for and show a table of how they did."""
    args = parse_arguments(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    training, held_out = load_parts(args)
    builders = {"CNN-TEL": cnn_tel, "CNN-Dense": cnn_dense}
    if args.head != "both":
        builders = {name: build for name, build in builders.items() if name.lower().endswith(args.head)}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
    )
    results = []
    with Progress(*columns, TimeRemainingColumn()) as progress:
        for seed in range(args.seeds):
            for name, build in builders.items():
                torch.manual_seed(seed)
                model = build(args)
                start = time.perf_counter()
                train(name, model, training, args, progress)
                seconds = time.perf_counter() - start
                accuracy, loss = evaluate(model, held_out)
                results.append(
                    {
                        "model": name,
                        "seed": seed,
                        "parameters": sum(p.numel() for p in model.parameters()),
                        "accuracy": accuracy,
                        "loss": loss,
                        "seconds": seconds,
                        "reachable_leaves": mean_reachable_leaves(model, held_out[0][:1000]),
                    }
                )
    show(results, "validation" if args.validation else "test")
    if args.json:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        settings.pop("data")
        args.json.write_text(json.dumps({"settings": settings, "results": results}, indent=2) + "\n")
    return results


def show(results: list[dict], part: str) -> None:
    """Print the table of results."""
    table = Table(title=f"Results on the {part} images")
    for heading in ("model", "seed", "parameters", "accuracy", "loss", "leaves reached a tree", "training time"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in results:
        leaves = "" if row["reachable_leaves"] is None else f"{row['reachable_leaves']:.1f}"
        numbers = (str(row["seed"]), f"{row['parameters']:,}", f"{row['accuracy']:.4f}", f"{row['loss']:.4f}", leaves)
        table.add_row(row["model"], *numbers, f"{row['seconds']:.0f} s")
    Console().print(table)


if __name__ == "__main__":
    main()
