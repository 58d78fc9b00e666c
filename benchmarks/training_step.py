"""Whole training steps (batch norm, trees, cross-entropy, Adam) of the native trainer beside dense PyTorch.

    python benchmarks/training_step.py [--rounds 30] [--output benchmarks/training_step.json]

One thread, float32, p 32, k 3. The rival is the same network as matrix products with fused Adam. Both start from the
same weights; before anything is timed, the losses of their first batches are compared. Times are CPU times of the
process, rounds are interleaved, and each ratio is taken within a round, so that other load on the machine matters
little. "initial" is the state of fresh weights, in which a sample reaches nearly all leaves; "trained" has about one
node in ten fractional. The learning rate is so small that a state stays what it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import softwood
from softwood.training import MemberData, Samples, TrainingConfig
from softwood.training.losses import Loss
from softwood.training.state import MemberState

N_FEATURES, N_CLASSES, N_BATCHES = 32, 3, 64
STILL = 1e-9  # learning rate


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the result."""

    state: str
    n: int
    depth: int
    gamma: float
    at_least: float  # times faster
    rival: str = "dense PyTorch, fused Adam"
    optimizer: Any = "auto"
    n_trees: int = 10


CASES = (
    Case("trained", 256, 10, 0.1, 100),
    Case("trained", 256, 6, 1.0, 25),
    Case("initial", 256, 6, 1.0, 7),
    Case("trained", 32, 6, 1.0, 30),
    Case("trained", 32, 15, 0.1, 10, rival="native, dense Adam", optimizer="lazy_adam"),
)


def make_member(case: Case) -> MemberData:
    random = np.random.default_rng(0)
    x = random.normal(size=(case.n * N_BATCHES, N_FEATURES)).astype(np.float32)
    return MemberData(Samples(x, random.integers(0, N_CLASSES, len(x))))


def make_native(case: Case, member: MemberData, optimizer: Any) -> MemberState:
    config = TrainingConfig(
        Loss("cross_entropy", n_classes=N_CLASSES),
        n_trees=case.n_trees,
        depth=case.depth,
        gamma=case.gamma,
        bias=False,
        batch_size=case.n,
        learning_rate=STILL,
        schedule="constant",
        warmup=0.0,
        max_epochs=10**6,
        optimizer=optimizer,
    )
    state = MemberState(config, member, n_threads=1, accumulate=False)
    if case.state == "trained":
        # Inputs are standard normal after batch norm: a tenth of t = <w, x> falls into the band for this norm of w.
        norm = case.gamma / 2 / 0.12566
        weight = state.arrays["split_weight"]
        weight *= norm / np.linalg.norm(weight, axis=2, keepdims=True)
    return state


class NativeSteps:
    """Steps of one native member; an epoch has N_BATCHES of them."""

    def __init__(self, state: MemberState) -> None:
        self.state = state
        self.epoch = 0

    def run(self, seconds: float) -> float:
        """Time a step, in seconds, over at least `seconds`."""
        n_steps, started = 0, time.process_time()
        while True:
            (self.outcome,) = self.state.native.run_epoch([self.state.native], self.epoch, np.inf, 1)
            self.epoch += 1
            n_steps += N_BATCHES
            if (taken := time.process_time() - started) >= seconds:
                return taken / n_steps


class TorchSteps:
    """The same network as two matrix products and elementwise tensor operations."""

    def __init__(self, case: Case, member: MemberData, state: MemberState) -> None:
        self.case = case
        self.x = torch.from_numpy(member.train.x)
        self.y = torch.from_numpy(np.asarray(member.train.y))
        n_splits = 2**case.depth - 1
        flat = state.arrays["split_weight"].reshape(case.n_trees * n_splits, N_FEATURES)
        self.split_weight = torch.nn.Parameter(torch.from_numpy(flat.copy()))
        leaves = state.arrays["leaf_weight"].reshape(case.n_trees * (n_splits + 1), N_CLASSES)
        self.leaf_weight = torch.nn.Parameter(torch.from_numpy(leaves.copy()))
        self.norm = torch.nn.BatchNorm1d(N_FEATURES)
        parameters = [self.split_weight, self.leaf_weight, *self.norm.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=STILL, fused=True)
        self.generator = torch.Generator().manual_seed(0)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        m, d = self.case.n_trees, self.case.depth
        t = self.norm(x) @ self.split_weight.T
        v = (t / self.case.gamma + 0.5).clamp(0, 1)
        left = (v * v * (3 - 2 * v)).view(len(x), m, 2**d - 1)
        reach = left.new_ones(len(x), m, 1)
        for level in range(d):
            s = left[:, :, 2**level - 1 : 2 ** (level + 1) - 1]
            to_left = reach * s
            reach = torch.stack((to_left, reach - to_left), dim=-1).view(len(x), m, -1)
        scores = reach.view(len(x), -1) @ self.leaf_weight
        return torch.nn.functional.cross_entropy(scores, y)

    def run(self, seconds: float) -> float:
        n_steps, started = 0, time.process_time()
        while True:
            order = torch.randperm(len(self.x), generator=self.generator)
            for rows in order.split(self.case.n):
                self.optimizer.zero_grad()
                self.loss(self.x[rows], self.y[rows]).backward()
                self.optimizer.step()
                n_steps += 1
                taken = time.process_time() - started
                if taken >= seconds and n_steps >= 3:
                    return taken / n_steps


def check_same_loss(native: NativeSteps, rival: TorchSteps) -> None:
    """Mean loss over an epoch's batches, on both sides: the rival must compute what the trainer computes."""
    native.run(0)
    with torch.no_grad():
        losses = [
            rival.loss(x, y).item()
            for x, y in zip(rival.x.split(rival.case.n), rival.y.split(rival.case.n), strict=True)
        ]
    ours = native.outcome[2]
    # The batches are other ones, so the means differ by the batch statistics.
    if abs(ours - np.mean(losses)) > 0.02 * abs(ours):
        raise AssertionError(f"the two sides compute different losses: {ours} and {np.mean(losses)}")


def measure(case: Case, rounds: int) -> dict[str, Any]:
    member = make_member(case)
    state = make_native(case, member, case.optimizer)
    native = NativeSteps(state)
    run_rival: Callable[[float], float]
    if "PyTorch" in case.rival:
        torch_steps = TorchSteps(case, member, state)
        check_same_loss(native, torch_steps)
        run_rival = torch_steps.run
    else:
        run_rival = NativeSteps(make_native(case, member, "adam")).run
        native.run(0)
    run_rival(0.05)
    pairs = np.array([(native.run(0.03), run_rival(0.15)) for _ in range(rounds)])
    ratios = pairs[:, 1] / pairs[:, 0]
    low, median, high = np.quantile(ratios, [0.1, 0.5, 0.9])
    return {
        **dataclasses.asdict(case),
        "mean_reachable_leaves": native.outcome[4],
        "native_us": float(np.median(pairs[:, 0]) * 1e6),
        "rival_us": float(np.median(pairs[:, 1]) * 1e6),
        "times_faster": float(median),
        "times_faster_10_to_90": [float(low), float(high)],
        "rounds_us": (pairs * 1e6).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("training_step.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    print("| state | n | d | gamma | leaves reached | native us | rival us | times faster (10-90%) | wanted | rival |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        result = measure(case, arguments.rounds)
        results.append(result)
        low, high = result["times_faster_10_to_90"]
        print(
            f"| {case.state} | {case.n} | {case.depth} | {case.gamma:g} | {result['mean_reachable_leaves']:.1f} | "
            f"{result['native_us']:.0f} | {result['rival_us']:.0f} | {result['times_faster']:.1f} "
            f"({low:.1f}-{high:.1f}) | {case.at_least:g} | {case.rival} |",
            flush=True,
        )
    facts = {
        "machine": platform.processor() or platform.machine(),
        "instruction_set": softwood.ops.instruction_set(),
        "torch": torch.__version__,
        "softwood": softwood.__version__,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({"facts": facts, "results": results}, indent=1))


if __name__ == "__main__":
    main()
