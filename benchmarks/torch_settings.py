"""What initialisation, gamma, depth and number of trees do to a small PyTorch network: the numbers behind the guide.

    python benchmarks/torch_settings.py  # writes benchmarks/results/torch_settings.json

Batch normalisation and trees learn three of the paper's data sets (at most 4,000 rows, standardised, three quarters for
training) by Adam with batches of 128. Shown are loss and accuracy on the held-out quarter and the leaves of a tree that
a sample reaches, each the mean over data sets and two seeds. The rows come from ../shared/data or from --data.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional

from softwood.torch import TreeEnsemble

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "pmlb"
RESULTS = Path(__file__).parent / "results" / "torch_settings.json"
NAMES = ("optdigits", "satimage", "spambase")
N_SEEDS = 2
INIT_EPOCHS = (1, 3, 10)
LAST_EPOCH = (10,)

Split = tuple[Tensor, Tensor, Tensor, Tensor]


def load(folder: Path, name: str) -> Split:
    """Return training features and labels, then held-out ones."""
    table = pd.read_csv(folder / name / f"{name}.tsv.gz", sep="\t").sample(frac=1.0, random_state=0)[:4000]
    labels = torch.from_numpy(np.unique(table["target"], return_inverse=True)[1])
    features = torch.from_numpy(table.drop(columns="target").to_numpy(np.float32))
    n_training = len(labels) * 3 // 4
    mean, deviation = features[:n_training].mean(dim=0), features[:n_training].std(dim=0) + 1e-6
    features = (features - mean) / deviation
    return features[:n_training], labels[:n_training], features[n_training:], labels[n_training:]


def learn(
    split: Split, seed: int, epochs: tuple[int, ...], *, learning_rate: float, **options: object
) -> Iterator[list[float]]:
    """Train, and yield loss, accuracy and reachable leaves on the held-out rows after each of `epochs`."""
    x, y, held_out_x, held_out_y = split
    torch.manual_seed(seed)
    n_features, n_classes = x.shape[1], int(y.max()) + 1
    trees = TreeEnsemble(n_features, n_classes, **options)  # type: ignore[arg-type]
    normalise = nn.BatchNorm1d(n_features)
    network = nn.Sequential(normalise, trees)
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    for epoch in range(1, max(epochs) + 1):
        network.train()
        for batch in torch.randperm(len(x)).split(128):
            optimizer.zero_grad()
            functional.cross_entropy(network(x[batch]), y[batch]).backward()
            optimizer.step()
        if epoch in epochs:
            network.eval()
            with torch.inference_mode():
                logits = network(held_out_x)
                loss = functional.cross_entropy(logits, held_out_y).item()
                accuracy = (logits.argmax(dim=1) == held_out_y).float().mean().item()
                yield [loss, accuracy, trees.reachable_leaves(normalise(held_out_x)).float().mean().item()]


def measure(splits: list[Split], epochs: tuple[int, ...], **options: object) -> dict:
    """Average over data sets and seeds, and print a line."""
    runs = [list(learn(split, seed, epochs, **options)) for split in splits for seed in range(N_SEEDS)]  # type: ignore[arg-type]
    means = np.mean(runs, axis=0)
    shown = [
        f"epoch {epoch}: loss {row[0]:.3f}, accuracy {row[1]:.3f}, {row[2]:.1f} leaves"
        for epoch, row in zip(epochs, means, strict=True)
    ]
    print(" ".join(f"{key} {value}" for key, value in options.items()), "|", "; ".join(shown), flush=True)
    columns = ("loss", "accuracy", "reachable_leaves")
    return {
        **options,
        "after": {
            str(epoch): dict(zip(columns, row.tolist(), strict=True)) for epoch, row in zip(epochs, means, strict=True)
        },
    }


def main() -> None:
    """Run the two tables of the guide."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the PMLB data sets")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file for all numbers")
    args = parser.parse_args()
    splits = [load(args.data, name) for name in NAMES]
    initialisation = [
        measure(splits, INIT_EPOCHS, init=init, learning_rate=rate, gamma=1.0, n_trees=10, depth=5)
        for rate in (0.003, 0.03)
        for init in ("paper", "scaled")
    ]
    shape = [
        measure(splits, LAST_EPOCH, n_trees=n_trees, depth=depth, gamma=gamma, learning_rate=0.01, init="scaled")
        for gamma in (0.01, 0.1, 1.0)
        for n_trees, depth in ((1, 6), (10, 2), (10, 4), (10, 6), (10, 8), (50, 4))
    ]
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"initialisation": initialisation, "shape": shape}, indent=1) + "\n")


if __name__ == "__main__":
    main()
