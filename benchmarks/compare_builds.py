"""Is a change slower? Times of two checkouts of softwood, each built in place, in processes that take turns.

    git worktree add ../before HEAD~1
    make -C ../before build && make build
    python benchmarks/compare_builds.py ../before . --rounds 5

Each process is the Python of a checkout's .venv, and times the rows of kernels.py, training_step.py and predict_bars.py
with the modules of that checkout. So the benchmarks may differ as the library does, as long as they keep the names that
are used below. Times are CPU times, the least of many calls in a process; one thread, float32. The table has medians
over processes, and the median and the quartiles of the ratios of two processes that follow one another: other load on
the machine changes both times of such a pair.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

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


def run(checkout: Path, part: str, match: str) -> dict[str, Any]:
    """Times of the rows whose names contain `match`, from a process of the checkout; or facts on its machine."""
    checkout = checkout.resolve()
    python = checkout / ".venv" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{checkout} must be built in place, but it has no .venv. Run `make build` there first.")
    environment = os.environ | {"PYTHONPATH": str(checkout / "benchmarks"), "OMP_NUM_THREADS": "1"}
    command = [str(python), "-P", __file__, "--part", part, "--match", match]
    found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    measured = json.loads(found)
    if not Path(measured["module"]).is_relative_to(checkout):
        raise SystemExit(f"{python} must import the softwood of its checkout; it imports {measured['module']}.")
    return measured["rows"]  # type: ignore[no-any-return]


def measure(part: str, match: str) -> dict[str, Any]:
    """What a process of a checkout prints."""
    import machine
    from softwood import _core

    rows = machine.facts() if part == "machine" else {row: call() for row, call in PARTS[part]() if match in row}
    return {"module": _core.__file__, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, help="the build before and the build after")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each build")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--match", default="", help="only rows whose names contain this")
    parser.add_argument("--out", type=Path, help="machine, commits and all times as JSON")
    parser.add_argument("--part", choices=[*PARTS, "machine"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(measure(arguments.part, arguments.match)))
        return
    if len(arguments.checkouts) != 2:
        parser.error(f"two checkouts are needed, the build before and the build after; got {len(arguments.checkouts)}")
    times: dict[str, tuple[list[float], list[float]]] = {}
    for part in arguments.only:
        for _ in range(arguments.rounds):
            for side, checkout in enumerate(arguments.checkouts):
                for row, seconds in run(checkout, part, arguments.match).items():
                    times.setdefault(row, ([], []))[side].append(seconds)
    found = []
    print("| row | before, µs | after, µs | ratio | quartiles |\n|---|---|---|---|---|")
    for row, pair in times.items():
        microseconds = [1e6 * statistics.median(seconds) for seconds in pair]
        low, ratio, high = np.quantile([new / old for old, new in zip(*pair, strict=True)], [0.25, 0.5, 0.75]).tolist()
        old, new = (f"{time:.2f}" for time in microseconds)
        print(f"| {row} | {old} | {new} | {ratio:.3f}{' slower' * (ratio > LIMIT)} | {low:.3f} to {high:.3f} |")
        found.append({"row": row, "median_us": microseconds, "ratio": ratio, "quartiles": [low, high], "seconds": pair})
    if arguments.out:
        machines = [run(checkout, "machine", "") for checkout in arguments.checkouts]
        arguments.out.write_text(json.dumps({"machine": machines, "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
