"""Speed of the kernels against rivals: `make bench`, or `python benchmarks/kernels.py [--seconds S] [--only NAME ...]`.

Every contestant is checked against the oracle before it is timed. Times are medians of calls that take turns in one
run, so that a slow moment of the machine hits all alike. One-thread times are the thread's CPU time, which leaves out
the turns of other processes. Prints tables and writes benchmarks/results/kernels.json with all times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from machine import facts
from rivals import DenseTorch, DenseTorchByHand, Literal, Rival, Softwood, Workload
from softwood import ops, reference

RESULTS = Path(__file__).parent / "results" / "kernels.json"
ISAS = ["baseline", "avx2", "avx512"]
TURN = 0.02  # seconds
STEP_SHAPES = [  # workload, required gains over dense PyTorch and over the literal algorithm (None: shown only)
    (Workload("trained", d=6), 15, 5),
    (Workload("trained", d=10), 100, 5),
    (Workload("trained", d=6, n=32), 20, None),
    (Workload("initial", d=6), 3, 8),
    (Workload("initial", d=10), 3, 8),
]
SHARE_SHAPES = [  # workload, required share of sgemm's speed on reached nodes, forward
    (Workload("initial", p=30), 0.60),
    (Workload("initial", p=180), 0.85),
    (Workload("trained", p=30), 0.20),
    (Workload("trained", p=180), None),
]


class Bench:
    """Runs measurements, remembers them, and says which requirements were met."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.records: list[dict[str, Any]] = []
        self.verdicts: list[tuple[str, float, str, bool | None]] = []

    def race(
        self, label: str, calls: dict[str, Callable[[], Any]], clock: Callable[[], float] = time.thread_time
    ) -> dict[str, float]:
        """Median seconds of each call. They take turns; a turn of short calls has many, so that they find their data in
        the caches, as the steps of a training loop do."""
        repeats = {}
        for name, call in calls.items():
            call()
            start = time.perf_counter()
            call()
            repeats[name] = max(1, int(TURN / (time.perf_counter() - start + 1e-9)))
        times: dict[str, list[float]] = {name: [] for name in calls}
        deadline = time.perf_counter() + self.seconds
        while time.perf_counter() < deadline or min(map(len, times.values())) < 5:
            for name, call in calls.items():
                start = clock()
                for _ in range(repeats[name]):
                    call()
                times[name].append((clock() - start) / repeats[name])
        self.records.append({"label": label, "clock": clock.__name__, "seconds": times})
        return {name: statistics.median(values) for name, values in times.items()}

    def judge(self, what: str, value: float, bar: float | None, least: bool = True, unit: str = "x") -> None:
        met = None if bar is None else (value >= bar if least else value <= bar)
        required = "" if bar is None else f"{'at least' if least else 'at most'} {bar:g}{unit}"
        self.verdicts.append((what, value, required, met))
        mark = {None: "", True: "yes", False: "NO"}[met]
        print(f"  {what:<66} {value:>9.2f}{unit}  {required:<14} {mark}", flush=True)


def check(workload: Workload, rival: Rival, activation: str = "smooth_step") -> None:
    """Refuse to time what is wrong."""
    x, w, o, g = workload.arrays()
    options: dict[str, Any] = {"gamma": workload.gamma, "activation": activation}
    if workload.d <= 10:
        want = [reference.forward(x, w, o, **options), *reference.backward(g, x, w, o, **options)[:3]]
    else:  # the dense oracle would take too long
        literal = Literal(workload)
        want = [literal.forward().copy(), *literal.step()]
    for name, got, exact in zip(("output", "x", "split", "leaf"), [rival.forward(), *rival.step()], want, strict=True):
        error = np.linalg.norm(got - exact) / np.linalg.norm(exact)
        if not error < 1e-4:
            raise AssertionError(f"{type(rival).__name__} on {workload.name}: relative error {error:.1e} of {name}")


def steps(bench: Bench) -> None:
    """Forward and backward against all rivals."""
    for workload, dense_bar, literal_bar in STEP_SHAPES:
        print(f"\nForward + backward, one thread: {workload.name}, k {workload.k}, gamma {workload.gamma:g}")
        contestants: dict[str, Rival] = {
            "softwood": Softwood(workload),
            "dense PyTorch": DenseTorch(workload),
            "dense PyTorch, logistic": DenseTorch(workload, "logistic"),
            "dense PyTorch, backward by hand": DenseTorchByHand(workload),
            "literal algorithm": Literal(workload),
        }
        for name, rival in contestants.items():
            check(workload, rival, "logistic" if "logistic" in name else "smooth_step")
        median = bench.race(f"step: {workload.name}", {name: rival.step for name, rival in contestants.items()})
        ours = median.pop("softwood")
        print(f"  {'softwood':<66} {ours * 1e6:>9.0f} us")
        for name, seconds in median.items():
            bar = {"dense PyTorch": dense_bar, "literal algorithm": literal_bar}.get(name)
            bench.judge(f"gain over {name} ({seconds * 1e6:.0f} us)", seconds / ours, bar)


def shares(bench: Bench) -> None:
    """Share of sgemm's speed that the forward pass reaches, counting only nodes that are reached."""
    print("\nForward, one thread, against torch.mm on 1024 x 1024 matrices: share of its speed on reached nodes")
    a = torch.randn(1024, 1024)
    for workload, bar in SHARE_SHAPES:
        rival = Softwood(workload)
        check(workload, rival)
        median = bench.race(f"share: {workload.name}", {"softwood": rival.forward, "sgemm": lambda: torch.mm(a, a)})
        sgemm = 2 * 1024**3 / median["sgemm"]
        reached = ops.reachability(rival.x, rival.w, gamma=workload.gamma).internal_nodes.sum()
        ours = 2 * workload.p * float(reached) / median["softwood"]
        what = f"{workload.name}: {ours / 1e9:.1f} of {sgemm / 1e9:.1f} GFLOP/s"
        bench.judge(what, 100 * ours / sgemm, None if bar is None else 100 * bar, unit="%")


def threads(bench: Bench) -> None:
    print("\nTwo threads against one, forward + backward")
    workload = Workload("trained", m=100)
    rivals = {n: Softwood(workload, n_threads=n) for n in (1, 2)}
    check(workload, rivals[2])
    pair = [Softwood(workload), Softwood(workload)]
    with ThreadPoolExecutor(2) as pool:

        def two_apart() -> None:
            for future in [pool.submit(rival.step) for rival in pair]:
                future.result()

        calls: dict[str, Callable[[], Any]] = {"one": rivals[1].step, "two": rivals[2].step, "two apart": two_apart}
        median = bench.race(f"threads: {workload.name}", calls, clock=time.perf_counter)
    bench.judge(f"{workload.name} ({median['one'] * 1e6:.0f} us on one)", median["one"] / median["two"], 1.6)
    bench.judge("the machine itself: two steps at once, apart", 2 * median["one"] / median["two apart"], None)


def depth(bench: Bench) -> None:
    """Growth of the time of a step from depth 10 to 15, and memory at depth 15."""
    print("\nFrom depth 10 to depth 15, trained, forward + backward, one thread")
    rivals = {(d, reuse): Softwood(Workload("trained", d=d), reuse=reuse) for d in (10, 15) for reuse in (True, False)}
    for (d, _), rival in rivals.items():
        check(Workload("trained", d=d), rival)
    calls = {f"d {d}, {'reused' if reuse else 'fresh'}": rival.step for (d, reuse), rival in rivals.items()}
    median = bench.race("depth", calls)
    for kind, bar in (("reused", 6), ("fresh", None)):
        shallow, deep = median[f"d 10, {kind}"], median[f"d 15, {kind}"]
        what = f"time, gradients in {kind} memory ({shallow * 1e6:.0f} to {deep * 1e6:.0f} us)"
        bench.judge(what, deep / shallow, bar, least=False)
    peak = json.loads(_child("--child", "memory").stdout)
    bench.records.append({"label": "memory", **peak})
    bench.judge("peak memory beyond weights and gradients at depth 15", peak["megabytes"], 64, least=False, unit=" MB")


def instruction_sets(bench: Bench) -> None:
    """The same step in processes of their own, which take turns."""
    print("\nInstruction sets, forward + backward, one thread: initial and trained, d 6, p 30")
    best = ISAS.index(ops.instruction_set())
    times: dict[str, list[dict[str, float]]] = {isa: [] for isa in ISAS[: best + 1]}
    for _ in range(3):
        for isa in times:
            times[isa].append(json.loads(_child("--child", "steps", SOFTWOOD_ISA=isa).stdout))
    bench.records.append({"label": "instruction sets", "seconds": times})
    median = {isa: {s: statistics.median(r[s] for r in runs) for s in runs[0]} for isa, runs in times.items()}
    for state in ("initial", "trained"):
        for isa in ISAS:
            shown = f"{median[isa][state] * 1e6:.0f} us" if isa in median else "not on this machine"
            print(f"  {state}, {isa:<58} {shown:>12}")
        if "avx512" in median:
            ratio = median["avx2"][state] / median["avx512"][state]
            bench.judge(f"{state}: AVX2 against AVX-512", ratio, 2, least=False)


def _child(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)


def child_steps() -> dict[str, float]:
    bench = Bench(seconds=1)
    return {s: bench.race(s, {s: Softwood(Workload(s)).step})[s] for s in ("initial", "trained")}


def child_memory() -> dict[str, float]:
    """Peak of resident memory over steps at depth 15, beyond the weights and fully touched gradients (Linux only)."""
    deep = Softwood(Workload("trained", d=15))
    deep.gradients = ops.backward(deep.g[:0], deep.x[:0], deep.w, deep.o)  # memory for all rows, none of them used
    for gradient in (deep.gradients.split_weight, deep.gradients.leaf_weight):
        assert gradient is not None
        gradient[...] = 0
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the present
    before = _peak_megabytes()
    for _ in range(3):
        deep.step()
    return {"megabytes": _peak_megabytes() - before, "before": before}


def _peak_megabytes() -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


SECTIONS = {"steps": steps, "shares": shares, "threads": threads, "depth": depth, "instruction_sets": instruction_sets}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="time for each group of contestants")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--child", choices=("steps", "memory"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.child:
        print(json.dumps(child_steps() if arguments.child == "steps" else child_memory()))
        return
    machine = facts()
    print(json.dumps(machine, indent=1))
    bench = Bench(arguments.seconds)
    for section in arguments.only:
        SECTIONS[section](bench)
    RESULTS.parent.mkdir(exist_ok=True)
    verdicts = [dict(zip(("what", "value", "required", "met"), verdict, strict=True)) for verdict in bench.verdicts]
    RESULTS.write_text(json.dumps({"machine": machine, "verdicts": verdicts, "records": bench.records}, indent=1))
    n_missed = sum(met is False for *_, met in bench.verdicts)
    print(f"\n{n_missed} requirements missed. All times: {os.path.relpath(RESULTS)}")


if __name__ == "__main__":
    main()
