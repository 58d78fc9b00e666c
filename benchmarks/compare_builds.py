"""Is a change slower? Times of two checkouts of softwood, each built in place, in processes that take turns.

    git worktree add ../before HEAD~1      # and build it: make build
    python benchmarks/compare_builds.py ../before . --rounds 5

Each process times the rows of kernels.py, training_step.py and predict_bars.py with the modules of its own checkout, so
the benchmarks may differ as the library does, as long as they keep the names that are used below. Times are CPU times,
the least of many calls in a process; the table has the median over processes and its ratio. One thread, float32.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

TURN, SECONDS = 0.02, 0.6  # of one turn of calls, of all turns of a row
LIMIT = 1.05


def least(call: Callable[[], Any]) -> float:
    """Seconds of a call: the least mean of a turn."""
    call()
    start = time.perf_counter()
    call()
    repeats = max(1, int(TURN / (time.perf_counter() - start + 1e-9)))
    means: list[float] = []
    deadline = time.perf_counter() + SECONDS
    while time.perf_counter() < deadline or len(means) < 5:
        start = time.thread_time()
        for _ in range(repeats):
            call()
        means.append((time.thread_time() - start) / repeats)
    return min(means)


Rows = Iterator[tuple[str, Callable[[], float]]]


def kernel_rows() -> Rows:
    """Forward without a tape, and forward + backward."""
    from rivals import Softwood, Workload

    shapes = (("trained", 6, 256), ("trained", 10, 256), ("trained", 6, 32), ("initial", 6, 256), ("initial", 10, 256))
    for state, d, n in shapes:
        rival = Softwood(Workload(state, d=d, n=n))
        yield f"forward: {state}, d {d}, n {n}", partial(least, rival.forward)
        yield f"forward + backward: {state}, d {d}, n {n}", partial(least, rival.step)


def training_rows() -> Rows:
    """Whole steps of the native trainer."""
    import training_step

    def best(case: Any) -> float:
        member = training_step.make_member(case)
        steps = training_step.NativeSteps(training_step.make_native(case, member, case.optimizer))
        return min(steps.run(0.05) for _ in range(12))

    for case in training_step.CASES:
        yield f"training step: {case.state}, d {case.depth}, n {case.n}", partial(best, case)


def prediction_rows() -> Rows:
    """One row from Python, one row in exported C, many rows."""
    import predict_bars

    def best(case: Any, kind: str) -> float:
        while len(case.times[kind]) < 4:
            case.measure(4)
        return float(min(case.times[kind]))

    with tempfile.TemporaryDirectory() as scratch:
        for state in predict_bars.SPREAD:
            case = predict_bars.Case(state, 10, Path(scratch) / state)
            for kind, words in (("row", "one row"), ("c_row", "one row in C"), ("bulk", "per row of many")):
                yield f"prediction, {words}: {state}, 10 trees", partial(best, case, kind)


PARTS = {"kernels": kernel_rows, "training": training_rows, "prediction": prediction_rows}


def run(checkout: Path, part: str, match: str) -> dict[str, float]:
    """The rows of a part whose names contain `match`, timed in a process of the checkout."""
    if not list((checkout / "src" / "softwood").glob("_core*")):
        raise SystemExit(f"{checkout} must have its native module in src/softwood; found none. Build it there first.")
    paths = os.pathsep.join(str((checkout / name).resolve()) for name in ("src", "benchmarks"))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", __file__, "--part", part, "--match", match]
    found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(found)  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, help="the build before and the build after")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each build")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--match", default="", help="only rows whose names contain this")
    parser.add_argument("--out", type=Path, help="all times as JSON")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        rows = PARTS[arguments.part]()
        print(json.dumps({row: measure() for row, measure in rows if arguments.match in row}))
        return
    if len(arguments.checkouts) != 2:
        parser.error(f"two checkouts are needed, the build before and the build after; got {len(arguments.checkouts)}")
    times: dict[str, tuple[list[float], list[float]]] = {}
    for part in arguments.only:
        for _ in range(arguments.rounds):
            for side, checkout in enumerate(arguments.checkouts):
                for row, seconds in run(checkout, part, arguments.match).items():
                    times.setdefault(row, ([], []))[side].append(seconds)
    print("| row | before, µs | after, µs | ratio |\n|---|---|---|---|")
    for row, (before, after) in times.items():
        old, new = statistics.median(before), statistics.median(after)
        print(f"| {row} | {old * 1e6:.2f} | {new * 1e6:.2f} | {new / old:.3f}{' slower' * (new > LIMIT * old)} |")
    if arguments.out:
        arguments.out.write_text(json.dumps(times, indent=1))


if __name__ == "__main__":
    main()
