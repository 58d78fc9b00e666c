"""Cost of a sample against the depth of a tree, at 1, 2 and 4 reached leaves: what Theorem 1 of the paper promises.

    python benchmarks/depth_scaling.py                 # about a minute, on a quiet machine
    python benchmarks/depth_scaling.py --draw-only     # the picture, from the results that are there

The forward pass visits N internal nodes and U leaves, O(N p + U k), where N is about U times the depth. The backward
pass visits U - 1 fractional nodes and U leaves, O(U p + U k), whatever the depth. Weights are made so that each sample
reaches exactly U leaves: at U - 1 nodes next to the root the split is exactly in the middle of the soft band, all
others are far outside. One tree, one thread, float32. Times are marginal: the difference between two numbers of
samples divided by their difference, so that what a call costs whatever its samples (such as zeroing gradients of
2^depth rows) cancels. The dense rival is the same tree with logistic routing, which reaches every leaf.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import machine
from softwood import ops

DEPTHS = (4, 6, 8, 10, 12, 14, 16, 18)
DENSE_DEPTHS = (4, 6, 8, 10, 12)
LEAVES = (1, 2, 4)
N_FEATURES, N_OUTPUTS = 32, 4
N_SAMPLES = (2048, 34816)
DENSE_SAMPLES = (32, 1056)
HERE = Path(__file__).parent
RESULTS = HERE / "depth_scaling.json"
PICTURE = HERE.parent / "docs" / "images" / "depth_scaling.svg"


def make_tree(depth: int, n_leaves: int) -> tuple[Any, Any]:
    """Split and leaf weights of a tree in which every sample of +1 and -1 reaches exactly `n_leaves` leaves."""
    random = np.random.default_rng(depth)
    n_splits = 2**depth - 1
    split_weight = np.zeros((1, n_splits, N_FEATURES), dtype=np.float32)
    split_weight[0, np.arange(n_splits), random.integers(N_FEATURES, size=n_splits)] = 1.0  # t is +1 or -1, gamma is 1
    split_weight[0, : n_leaves - 1] = 0.0  # t is 0: both ways
    leaf_weight = random.normal(size=(1, 2**depth, N_OUTPUTS)).astype(np.float32)
    return split_weight, leaf_weight


def seconds(call: Callable[[], Any]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def marginal(run: Callable[[int], Any], sizes: tuple[int, int], rounds: int) -> float:
    """Microseconds per sample: the median over rounds of what the further samples take."""
    for n in sizes:
        run(n)
    times = [(seconds(lambda: run(sizes[0])), seconds(lambda: run(sizes[1]))) for _ in range(rounds)]
    return float(np.median([b - a for a, b in times])) / (sizes[1] - sizes[0]) * 1e6


def measure(depth: int, n_leaves: int | None, rounds: int) -> dict[str, Any]:
    """Forward and backward pass; `n_leaves` None stands for dense logistic routing."""
    dense = n_leaves is None
    sizes = DENSE_SAMPLES if dense else N_SAMPLES
    x = np.random.default_rng(0).choice(np.array([-1, 1], dtype=np.float32), size=(sizes[1], N_FEATURES))
    split_weight, leaf_weight = make_tree(depth, n_leaves or 1)
    kind: dict[str, Any] = {"activation": "logistic" if dense else "smooth_step", "n_threads": 1, "check_finite": False}
    reached = ops.reachability(x, split_weight, activation=kind["activation"], n_threads=1).leaves
    assert np.all(reached == (2**depth if dense else n_leaves)), "each sample must reach the leaves that it should"
    grad = np.ones((sizes[1], N_OUTPUTS), dtype=np.float32)
    tapes = {n: ops.forward(x[:n], split_weight, leaf_weight, with_tape=True, **kind)[1] for n in sizes}

    def forward(n: int) -> None:
        ops.forward(x[:n], split_weight, leaf_weight, **kind)

    def backward(n: int) -> None:
        ops.backward(grad[:n], x[:n], split_weight, leaf_weight, tape=tapes[n], **kind)

    return {
        "depth": depth,
        "leaves": n_leaves,
        "forward_us": marginal(forward, sizes, rounds),
        "backward_us": marginal(backward, sizes, rounds),
    }


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Cost against depth, one panel per pass."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    for axes, what in zip(figure.subplots(1, 2, sharey=True), ("forward", "backward"), strict=True):
        for leaves in (*LEAVES, None):
            points = [result for result in results if result["leaves"] == leaves]
            label = "all leaves (logistic)" if leaves is None else f"{leaves} leaves" if leaves > 1 else "1 leaf"
            depths, costs = [p["depth"] for p in points], [p[f"{what}_us"] for p in points]
            axes.plot(depths, costs, marker="o", markersize=3, linestyle="--" if leaves is None else "-", label=label)
        axes.set(title=f"{what} pass", xlabel="depth", yscale="log")
    figure.axes[0].set_ylabel("microseconds per sample")
    figure.axes[1].legend(fontsize="small", loc="upper right")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--draw-only", action="store_true")
    options = parser.parse_args()
    if not options.draw_only:
        cases: list[tuple[int, int | None]] = [(depth, n) for depth in options.depths for n in LEAVES]
        cases += [(depth, None) for depth in options.depths if depth in DENSE_DEPTHS]
        results = []
        for depth, leaves in cases:
            results.append(measure(depth, leaves, options.rounds))
            print(results[-1], flush=True)
        setting = {"features": N_FEATURES, "outputs": N_OUTPUTS, "trees": 1, "threads": 1, "rounds": options.rounds}
        text = json.dumps({"machine": machine.facts(), "setting": setting, "results": results}, indent=1)
        options.output.write_text(text + "\n")
    draw(json.loads(options.output.read_text())["results"], options.picture)


if __name__ == "__main__":
    main()
