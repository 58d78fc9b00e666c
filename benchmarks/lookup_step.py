"""Training steps of trees of lookups (forward, backward, Adam), beside the same trees with 8 ramps per column.

    python benchmarks/lookup_step.py [--rounds 10] [--output benchmarks/results/lookup_step.json]

One thread, float32, smooth-step, weights as in the first epochs: most samples reach most leaves. Columns have 33 knots,
so that a split on 10 columns is a function of 330 weights. The rival is the trainer with linear splits on 8 ramps per
column, all columns open to every split. Times are CPU times of the process, in microseconds per sample; rounds are
interleaved, so that other load on the machine matters little. `--threads 2` measures wall-clock time instead, of one
member on one and on two threads: this needs a machine that is otherwise idle.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import machine
from softwood import _core
from softwood.training import Member, Samples, TrainingConfig
from softwood.training.lookup_state import aligned
from softwood.training.losses import Loss
from softwood.training.state import MemberState, native_settings

N_TREES, DEPTH, N_KNOTS, N_BATCHES, N_RAMPS = 64, 4, 33, 16, 8
STILL = 1e-9  # learning rate


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the result."""

    n_columns: int
    n_outputs: int
    batch: int


CASES = tuple(Case(q, k, batch) for q in (10, 40) for k in (1, 8) for batch in (64, 256, 1024))


def lookup_member(case: Case) -> Any:
    random = np.random.default_rng(0)
    q, k, n = case.n_columns, case.n_outputs, case.batch * N_BATCHES
    entries = np.full(q, N_KNOTS, np.int32)
    ones, total = np.ones(q * N_KNOTS, np.float32), q * N_KNOTS
    columns = {
        "n_entries": entries,
        "n_knots": entries,
        "n_levels": np.zeros(q, np.int32),
        "lazy": np.zeros(q, np.uint8),
        "ramp_scale": 2 * ones,
        "ramp_mean": ones / 2,
        "linear": np.tile(np.linspace(-1, 1, N_KNOTS, dtype=np.float32), q),
        "level_scale": 0 * ones,
        "level_mean": 0 * ones,
    }
    arrays: dict[str, Any] = {}
    shapes = {"table": (N_TREES * total, 16), "split_bias": (N_TREES, 16), "leaf_weight": (N_TREES, k, 16)}
    for name, shape in shapes.items():
        for part in ("", ".first_moment", ".second_moment"):
            arrays[name + part] = aligned(shape)
        arrays[name][:] = random.uniform(-0.01, 0.01, shape)
    arrays["offset"] = np.zeros(k, np.float32)
    arrays["block_columns"] = np.tile(np.arange(q, dtype=np.int32), (N_TREES, 1))
    cells = random.integers(N_KNOTS - 1, size=(n, q)) | random.integers(2**16, size=(n, q)) << 16
    config = TrainingConfig(
        Loss("squared_error"),
        n_trees=N_TREES,
        depth=DEPTH,
        batch_size=case.batch,
        learning_rate=STILL,
        schedule="constant",
        warmup=0.0,
        max_epochs=10**6,
        optimizer="adam",
    )
    targets = random.normal(size=(n, k)).astype(np.float32)
    cells = cells.astype(np.uint32)
    train = {"cells": cells, "targets": targets, "weight": None, "rows": None}
    settings = native_settings(config, Member(Samples(cells, targets)), k)
    return _core.LookupMember(settings, columns, arrays, train, None, None)


def ramp_member(case: Case) -> Any:
    random = np.random.default_rng(0)
    n = case.batch * N_BATCHES
    x = random.uniform(-1, 1, size=(n, case.n_columns * N_RAMPS)).astype(np.float32)
    config = TrainingConfig(
        Loss("squared_error"),
        n_trees=N_TREES,
        depth=DEPTH,
        batch_size=case.batch,
        learning_rate=STILL,
        schedule="constant",
        warmup=0.0,
        max_epochs=10**6,
        batch_norm=False,
    )
    y = random.normal(size=(n, case.n_outputs))
    return MemberState(config, Member(Samples(x, y)), n_threads=1, accumulate=False).native


def us_per_sample(member: Any, n: int, seconds: float, n_threads: int = 1) -> float:
    """Over at least `seconds`: CPU time on one thread, else wall-clock time."""
    clock = time.process_time if n_threads == 1 else time.perf_counter
    n_epochs, started = 0, clock()
    while True:
        member.run_epoch([member], n_epochs, np.inf, n_threads)
        n_epochs += 1
        if (taken := clock() - started) >= seconds:
            return taken / (n * n_epochs) * 1e6


def measure(case: Case, rounds: int) -> dict[str, Any]:
    n = case.batch * N_BATCHES
    lookups, ramps = lookup_member(case), ramp_member(case)
    for member in (lookups, ramps):
        us_per_sample(member, n, 0)
    pairs = np.array([(us_per_sample(lookups, n, 0.1), us_per_sample(ramps, n, 0.1)) for _ in range(rounds)])
    return {
        **dataclasses.asdict(case),
        "lookup_us_per_sample": float(np.median(pairs[:, 0])),
        "ramps_us_per_sample": float(np.median(pairs[:, 1])),
        "least_lookup_us_per_sample": float(pairs[:, 0].min()),
        "times_faster": float(np.median(pairs[:, 1] / pairs[:, 0])),
        "rounds_us": pairs.tolist(),
    }


def measure_threads(n_threads: int, rounds: int) -> dict[str, Any]:
    case = CASES[1]
    n, member = case.batch * N_BATCHES, lookup_member(case)
    clock = time.perf_counter
    results: dict[int, list[float]] = {}
    for threads in (1, n_threads) * rounds:
        started = clock()
        for epoch in range(10):
            member.run_epoch([member], epoch, np.inf, threads)
        results.setdefault(threads, []).append((clock() - started) / (10 * n) * 1e6)
    return {**dataclasses.asdict(case), "us_per_sample_by_threads": {k: min(v) for k, v in results.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "lookup_step.json")
    arguments = parser.parse_args()
    if arguments.threads > 1:
        print(json.dumps(measure_threads(arguments.threads, arguments.rounds), indent=1))
        return
    results = []
    print("| columns | outputs | batch | us per sample (least) | 8 ramps per column | times faster |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        result = measure(case, arguments.rounds)
        results.append(result)
        print(
            f"| {case.n_columns} | {case.n_outputs} | {case.batch} | {result['lookup_us_per_sample']:.2f} "
            f"({result['least_lookup_us_per_sample']:.2f}) | {result['ramps_us_per_sample']:.2f} "
            f"| {result['times_faster']:.1f} |",
            flush=True,
        )
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(json.dumps({"machine": machine.facts(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
