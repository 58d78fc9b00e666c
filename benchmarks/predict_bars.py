"""Time of one prediction at one shape (p 30, depth 6), beside the bars it must clear, and in which state of the trees.

"Trained": split weights normal with standard deviation 4 gamma / sqrt(p), as in benchmarks/rivals.py, so that one split
in ten is fractional and a row reaches about 1.8 of 64 leaves; "soft": weights 27 times smaller, as before training, so
that it reaches nearly all. The bars are for the trained state, which is that of fitted models with a narrow band. Two
classes, columns of different mean and scale, one thread. Each value is CPU time, the least and the median of many
rounds.

    python benchmarks/predict_bars.py
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import machine
from predict import C_DRIVER
from softwood.explain import usage
from softwood.export import export
from softwood.model.model import Model
from softwood.model.parts import Head, ModelMember, Trees
from softwood.tabular.encoding.columns import Column, Preprocessor
from softwood.tabular.encoding.features import Encoding, FeatureKind
from softwood.training.losses import Loss

N_ROWS = 20_000
SPREAD = {"trained": 4.0, "soft": 0.15}
# (microseconds per row from Python, microseconds per row in C, nanoseconds per row in bulk), by number of trees
BARS: dict[int, tuple[float, float, float | None]] = {10: (4.0, 1.0, 300.0), 100: (9.0, 5.0, None)}


def make_model(state: str, m: int, p: int = 30, d: int = 6, gamma: float = 1.0) -> tuple[Model, np.ndarray]:
    """A classifier with random trees, and rows for it [N_ROWS, p] in float64."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    zero, one = np.zeros(p, np.float32), np.ones(p, np.float32)
    kind = np.full(p, FeatureKind.LINEAR, np.uint8)
    encoding = Encoding(np.arange(p, dtype=np.int32), kind, zero, one, normal(p), np.exp(normal(p)))
    trees = Trees(
        split_weight=normal(m, 2**d - 1, p) * np.float32(SPREAD[state] * gamma / np.sqrt(p)),
        split_bias=None,
        leaf_weight=normal(m, 2**d, 1),
        offset=normal(1),
        gamma=gamma,
        activation="smooth_step",
    )
    head = Head("binary", Loss("binary_cross_entropy"), np.array([0, 1]))
    columns = [Column(f"x{j}", "numeric") for j in range(p)]
    model = Model(Preprocessor(columns, encodings={"standard": encoding}), [ModelMember("standard", trees)], head)
    return model, rng.standard_normal((N_ROWS, p)) / encoding.scale + encoding.mean


def leaves_reached(model: Model, X: np.ndarray) -> float:
    return float(usage(model, X).mean_reachable_leaves[0].mean())


def seconds(action: Callable[[], Any], repeat: int, rounds: int) -> list[float]:
    """CPU seconds of one call, in each round."""
    taken = []
    for _ in range(rounds):
        start = time.thread_time()
        for _ in range(repeat):
            action()
        taken.append((time.thread_time() - start) / repeat)
    return taken


class Case:
    """A model in one state, its exported C as a program, and the times measured so far."""

    def __init__(self, state: str, m: int, folder: Path) -> None:
        self.state, self.n_trees = state, m
        self.model, self.X = make_model(state, m)
        self.predictor = self.model.predictor()
        self.single = self.X.astype(np.float32)
        self.times: dict[str, list[float]] = {"row": [], "c_row": [], "bulk": []}
        np.testing.assert_array_equal(self.predictor.predict_proba(self.X[7]), self.predictor.predict_proba(self.X)[7])
        folder.mkdir()
        export(self.model, folder / "model.c")
        (folder / "driver.c").write_text(C_DRIVER)
        self.program = str(folder / "model")
        flags = ["-std=c99", "-O3", "-march=native", "-ffp-contract=off"]
        sources = [str(folder / "model.c"), str(folder / "driver.c")]
        subprocess.run(["cc", *flags, *sources, "-o", self.program, "-lm"], check=True, timeout=300)

    def measure(self, rounds: int) -> None:
        rows = itertools.cycle(list(self.X[:500]))
        self.times["row"] += seconds(lambda: self.predictor.predict_proba(next(rows)), 300, rounds)
        self.times["bulk"] += [
            s / N_ROWS for s in seconds(lambda: self.predictor.predict_proba(self.single, n_threads=1), 1, rounds)
        ]
        some = self.X[:500]
        run = subprocess.run([self.program, "500"], input=some.tobytes(), capture_output=True, check=True, timeout=300)
        microseconds, total = map(float, run.stdout.split())
        np.testing.assert_allclose(total, 20 * self.predictor.predict_proba(some)[:, 0].sum(), rtol=1e-9)
        self.times["c_row"].append(1e-6 * microseconds)

    def summary(self) -> dict[str, Any]:
        found = {name: (min(taken), float(np.median(taken))) for name, taken in self.times.items()}
        reached = leaves_reached(self.model, self.X[:500])
        return {"state": self.state, "trees": self.n_trees, "leaves_reached": reached, **found, "times": self.times}


def report(found: list[dict[str, Any]]) -> str:
    lines = [
        "| state | trees | leaves reached | row from Python, µs | row in C, µs | bulk, ns per row |",
        "|---" * 6 + "|",
    ]
    for r in found:
        bars = BARS[r["trees"]] if r["state"] == "trained" else (None, None, None)
        cells = []
        for (least, median), unit, bar in zip((r["row"], r["c_row"], r["bulk"]), (1e6, 1e6, 1e9), bars, strict=True):
            digits = 0 if unit == 1e9 else 2
            words = "" if bar is None else f" (bar {bar:g}{'' if least * unit <= bar else ', missed'})"
            cells.append(f"{least * unit:.{digits}f}, median {median * unit:.{digits}f}{words}")
        lines.append(f"| {r['state']} | {r['trees']} | {r['leaves_reached']:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=12, help="times that all cases take turns")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of a case in each pass")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("predict_bars.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        cases = [Case(state, m, Path(scratch) / f"{state}{m}") for state in SPREAD for m in BARS]
        for _ in range(arguments.passes):
            for case in cases:
                case.measure(arguments.rounds)
    found = [case.summary() for case in cases]
    print(report(found))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"machine": machine.facts(), "results": found}, indent=1))


if __name__ == "__main__":
    main()
