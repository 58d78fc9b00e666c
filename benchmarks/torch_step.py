"""Time of a whole training step in PyTorch: softwood's layer against the dense one, sparse against dense gradients.

    python benchmarks/torch_step.py  # writes benchmarks/torch_step.json

A step is batch normalisation, the layer, cross-entropy, the backward pass and fused Adam, on one thread. The dense
rival is `implementation="dense"`: two matrix products and a product down the levels, the fastest of seven ways tried to
write it in PyTorch. Both networks hold the same weights, and are checked to give the same loss and gradients before
they are timed.

"initial" weights are drawn as `TreeEnsemble` draws them: a sample reaches every leaf. "trained" weights are scaled such
that a tenth of the nodes that a sample visits are fractional, as after a few epochs. A learning rate of zero keeps both
states as they are while the optimiser does all its work. Times are
the CPU's for this process, to which other processes do not add; the rivals take turns in short rounds, so that crowded
caches and clocks fall on both, and ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from machine import facts
from softwood import _core, ops
from softwood.torch import TreeEnsemble

RESULTS = Path(__file__).with_name("torch_step.json")
IN_FEATURES, OUT_FEATURES, N_TREES = 32, 3, 10
TENTH_FRACTIONAL = 3.98  # standard deviation of t / gamma at which |t| < gamma / 2 has probability 0.1


def make_network(depth: int, gamma: float, state: str, **options: object) -> nn.Sequential:
    """Return batch normalisation and trees in the "initial" or "trained" state."""
    torch.manual_seed(0)
    trees = TreeEnsemble(IN_FEATURES, OUT_FEATURES, N_TREES, depth, gamma=gamma, **options)  # type: ignore[arg-type]
    if state == "trained":
        with torch.no_grad():
            trees.split_weight.normal_(0.0, TENTH_FRACTIONAL * gamma / IN_FEATURES**0.5)
            trees.leaf_weight.normal_()
    return nn.Sequential(nn.BatchNorm1d(IN_FEATURES), trees)


def training_step(
    network: nn.Module, x: Tensor, labels: Tensor, optimizers: list[torch.optim.Optimizer]
) -> Callable[[], Tensor]:
    """Return a function that does one step and returns the loss."""

    def step() -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = functional.cross_entropy(network(x), labels)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return step


def fused_adam(network: nn.Module) -> list[torch.optim.Optimizer]:
    """Return the optimiser of the dense gradients."""
    return [torch.optim.Adam(network.parameters(), lr=0.0, fused=True)]


def with_sparse_adam(network: nn.Sequential) -> list[torch.optim.Optimizer]:
    """Return SparseAdam for the trees and fused Adam for batch normalisation. SparseAdam refuses a rate of zero."""
    return [
        torch.optim.SparseAdam(list(network[1].parameters()), lr=1e-30),
        torch.optim.Adam(network[0].parameters(), lr=0.0, fused=True),
    ]


def check_equal(steps: Mapping[str, Callable[[], Tensor]], networks: Mapping[str, nn.Module]) -> None:
    """Refuse to time rivals that compute something else."""
    losses = {name: step().item() for name, step in steps.items()}
    first, second = networks.values()
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        gradients = [parameter.grad.to_dense() for parameter in (a, b) if parameter.grad is not None]
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)
    assert max(losses.values()) - min(losses.values()) < 1e-4, losses


def time_in_turns(
    steps: Mapping[str, Callable[[], object]], n_rounds: int, seconds_a_round: float
) -> dict[str, list[float]]:
    """Return microseconds per step, one number per round."""
    repeats = {}
    for name, step in steps.items():
        step()
        step()
        start = time.process_time()
        step()
        repeats[name] = max(1, int(seconds_a_round / (time.process_time() - start)))
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(n_rounds):
        for name, step in steps.items():
            start = time.process_time()
            for _ in range(repeats[name]):
                step()
            times[name].append((time.process_time() - start) / repeats[name] * 1e6)
    return times


def compare(
    title: str, bar: float, steps: Mapping[str, Callable[[], object]], args: argparse.Namespace, **facts: object
) -> dict:
    """Time two rivals, the slower first, and report their ratio against the bar."""
    times = time_in_turns(steps, args.rounds, args.seconds)
    slow, fast = times.values()
    ratio = statistics.median(a / b for a, b in zip(slow, fast, strict=True))
    medians = {name: statistics.median(values) for name, values in times.items()}
    shown = ", ".join(f"{name} {value:,.0f} us" for name, value in medians.items())
    print(f"{title:42s} {shown}: {ratio:.1f} times faster (bar: {bar})", flush=True)
    return {"case": title, **facts, "bar": bar, "ratio": ratio, "median_us": medians, "rounds_us": times}


def make_batch(n: int) -> tuple[Tensor, Tensor]:
    """Return random features and labels."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, IN_FEATURES, generator=generator), torch.randint(OUT_FEATURES, (n,), generator=generator)


def against_dense(title: str, bar: float, depth: int, gamma: float, state: str, args: argparse.Namespace) -> dict:
    """Compare the native layer with the dense one, both with dense gradients and fused Adam."""
    x, labels = make_batch(256)
    networks = {
        "dense": make_network(depth, gamma, state, implementation="dense"),
        "softwood": make_network(depth, gamma, state),
    }
    steps = {name: training_step(network, x, labels, fused_adam(network)) for name, network in networks.items()}
    check_equal(steps, networks)
    leaves = mean_reachable_leaves(networks["softwood"], x)
    return compare(title, bar, steps, args, n=256, depth=depth, gamma=gamma, state=state, reachable_leaves=leaves)


def sparse_gradients(title: str, bar: float, depth: int, n: int, args: argparse.Namespace) -> dict:
    """Compare sparse gradients and SparseAdam with dense gradients and fused Adam, on the same native layer."""
    x, labels = make_batch(n)
    networks = {
        "dense gradients": make_network(depth, 0.1, "trained"),
        "sparse gradients": make_network(depth, 0.1, "trained", sparse_grad=True),
    }
    optimizers = (fused_adam(networks["dense gradients"]), with_sparse_adam(networks["sparse gradients"]))
    steps = {
        name: training_step(network, x, labels, chosen)
        for (name, network), chosen in zip(networks.items(), optimizers, strict=True)
    }
    check_equal(steps, networks)
    leaves = mean_reachable_leaves(networks["dense gradients"], x)
    return compare(title, bar, steps, args, n=n, depth=depth, gamma=0.1, state="trained", reachable_leaves=leaves)


def mean_reachable_leaves(network: nn.Sequential, x: Tensor) -> float:
    """Return the leaves of a tree that a sample reaches on average."""
    normalise, trees = network
    assert isinstance(trees, TreeEnsemble)
    return trees.reachable_leaves(normalise(x)).float().mean().item()


class Nothing(torch.autograd.Function):
    """Keeps three tensors and makes their gradients, without any work on them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, split_weight: Tensor, leaf_weight: Tensor) -> Tensor:
        """Return an output of the right shape."""
        ctx.save_for_backward(x, split_weight, leaf_weight)
        return torch.empty(len(x), leaf_weight.shape[2])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, ...]:
        """Return gradients of the right shapes."""
        return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors)


def call_overhead(args: argparse.Namespace) -> dict:
    """Measure what the layer adds to a network beyond its kernels: forward and backward, on a small ensemble.

    The same graph is timed with and without the layer, and the kernels alone on arrays: by `softwood.ops`, which is
    what the overhead is counted from, and for comparison by the compiled functions on memory made before. A function
    that does nothing but make three gradients shows what of it PyTorch takes for any layer of this kind. Single calls
    take turns, each with the others' code in the caches; the tenth percentile is what a call takes that no other
    process disturbs.
    """
    layer = TreeEnsemble(IN_FEATURES, OUT_FEATURES, N_TREES, depth=2)
    x, scale = torch.randn(8, IN_FEATURES), torch.ones(IN_FEATURES, requires_grad=True)
    grad_output, grad_x = torch.ones(8, OUT_FEATURES), torch.ones(8, IN_FEATURES)
    arrays = [tensor.numpy(force=True) for tensor in (x, layer.split_weight, layer.leaf_weight)]
    leaves = (scale, layer.split_weight, layer.leaf_weight)

    def forget() -> None:
        for leaf in leaves:
            leaf.grad = None

    def with_layer() -> None:
        forget()
        layer(x * scale).backward(grad_output)

    def without_layer() -> None:
        forget()
        (x * scale).backward(grad_x)

    def kernels() -> None:
        _, tape = ops.forward(*arrays, with_tape=True, check_finite=False, n_threads=1)
        ops.backward(grad_output.numpy(), *arrays, tape=tape, n_threads=1, needs=("x", "split_weight", "leaf_weight"))

    output, tape = ops.forward(*arrays, with_tape=True)
    gradients = ops.backward(grad_output.numpy(), *arrays, tape=tape)
    marks = [np.zeros(weight.shape[:2], np.uint8) for weight in arrays[1:]]
    options = (None, 0, 1.0, True)  # bias, activation, gamma, sum of trees

    core: Any = _core  # starred arguments are beyond what its overloads can check

    def compiled() -> None:
        tape = core.TapeFloat32()
        core.forward(*arrays, *options, output, tape, 1, False)
        core.backward(grad_output.numpy(), *arrays, *options, tape, *gradients, *marks, 1)

    def empty_function() -> None:
        forget()
        Nothing.apply(x * scale, layer.split_weight, layer.leaf_weight).backward(grad_output)

    steps = {"with layer": with_layer, "without layer": without_layer, "kernels": kernels}
    steps |= {"compiled": compiled, "empty function": empty_function}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(200 * args.rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append((time.perf_counter() - start) * 1e6)
    undisturbed = {name: statistics.quantiles(values, n=10)[0] for name, values in times.items()}
    overhead = undisturbed["with layer"] - undisturbed["without layer"] - undisturbed["kernels"]
    beyond_compiled = undisturbed["with layer"] - undisturbed["without layer"] - undisturbed["compiled"]
    shown = ", ".join(f"{name} {value:.0f} us" for name, value in undisturbed.items())
    print(f"{'call beyond the kernels':42s} {shown}: {overhead:.0f} us (bar: 40)", flush=True)
    print(f"{'call beyond compiled code':42s} {beyond_compiled:.0f} us", flush=True)
    return {
        "case": "call beyond the kernels",
        "bar_us": 40,
        "overhead_us": overhead,
        "beyond_compiled_us": beyond_compiled,
        "tenth_percentile_us": undisturbed,
    }


def main() -> None:
    """Run all cases and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.1, help="for each rival in each round")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file for all numbers")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = [
        call_overhead(args),
        against_dense("trained, n 256, m 10, d 6", 6, 6, 1.0, "trained", args),
        against_dense("initial, n 256, m 10, d 6", 3, 6, 1.0, "initial", args),
        against_dense("trained, n 256, m 10, d 10, gamma 0.1", 50, 10, 0.1, "trained", args),
        against_dense("initial, n 256, m 10, d 10, gamma 0.1", 1, 10, 0.1, "initial", args),
        sparse_gradients("SparseAdam, n 32, m 10, d 15", 5, 15, 32, args),
    ]
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"machine": facts(), "threads": 1, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
