"""Latency, throughput and size of softwood's predictions beside XGBoost, LightGBM, CatBoost and onnxruntime.

On each table every learner gets the smallest model of its grid whose test AUC comes within `--margin` of the best that
all learners reach, so that models of equal quality are compared. One thread; times are CPU times of the calling thread,
the least of several rounds in which the learners take turns, so that a busy machine hurts none more than another.
Every timed prediction is checked first: C and ONNX against Python, and each learner's single rows against its bulk.

    python benchmarks/predict.py --data ../shared/data/pmlb
    python benchmarks/predict.py --sets spambase --rounds 3
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import machine
import softwood
from fit import auc, read_set
from softwood.export import export

SETS = ("breast-cancer", "spambase", "satimage")
TREES = (1, 2, 5, 10, 20, 50, 100, 200, 400)
BULK_ROWS = 20_000
C_DRIVER = """
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "model.h"
static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
int main(int argc, char **argv) {
    const long n = argc > 1 ? atol(argv[1]) : 0;
    double *rows = malloc((size_t)n * sizeof(double[MODEL_N_COLUMNS])), output[MODEL_N_OUTPUTS], total = 0, best = 1e9;
    if (rows == NULL || fread(rows, sizeof(double[MODEL_N_COLUMNS]), (size_t)n, stdin) != (size_t)n) return 1;
    for (int round = 0; round < 20; ++round) {
        const double start = seconds();
        for (long i = 0; i < n; ++i) {
            if (model_predict(rows + i * MODEL_N_COLUMNS, output) != 0) return 1;
            total += output[0];
        }
        const double taken = (seconds() - start) / (double)n;
        best = taken < best ? taken : best;
    }
    printf("%.3f %.17g", best * 1e6, total);
    free(rows);
    return 0;
}
"""


@dataclass
class Contender:
    """A fitted model of one learner: how it predicts one row and many, and what it weighs."""

    name: str
    size: str
    auc: float
    row: Callable[[np.ndarray], np.ndarray]
    bulk: Callable[[np.ndarray], np.ndarray]
    n_bytes: int
    n_parameters: int
    row_us: list[float] = field(default_factory=list)
    bulk_ns: list[float] = field(default_factory=list)
    c_us: float | None = None


# Learners -----------------------------------------------------------------------------------------------------------


def softwood_models(X: np.ndarray, y: np.ndarray) -> Iterator[tuple[str, Any]]:
    for n_trees in TREES[:7]:
        for depth in (2, 4):
            model = softwood.TreeEnsembleClassifier(
                n_members=1, n_trees=n_trees, depth=depth, learning_rate=0.02, random_state=0, n_jobs=1
            )
            yield f"{n_trees} trees of depth {depth}", model.fit(X, y)


def xgboost_models(X: np.ndarray, y: np.ndarray) -> Iterator[tuple[str, Any]]:
    from xgboost import XGBClassifier

    for n_trees in TREES:
        yield f"{n_trees} rounds", XGBClassifier(n_estimators=n_trees, n_jobs=1, random_state=0).fit(X, y)


def lightgbm_models(X: np.ndarray, y: np.ndarray) -> Iterator[tuple[str, Any]]:
    from lightgbm import LGBMClassifier

    for n_trees in TREES:
        model = LGBMClassifier(n_estimators=n_trees, n_jobs=1, random_state=0, verbose=-1)
        yield f"{n_trees} rounds", model.fit(X, y)


def catboost_models(X: np.ndarray, y: np.ndarray) -> Iterator[tuple[str, Any]]:
    from catboost import CatBoostClassifier

    for n_trees in TREES:
        options = {"thread_count": 2, "random_seed": 0, "verbose": False, "allow_writing_files": False}
        yield f"{n_trees} rounds", CatBoostClassifier(iterations=n_trees, **options).fit(X, y)


LEARNERS = {
    "softwood": softwood_models,
    "xgboost": xgboost_models,
    "lightgbm": lightgbm_models,
    "catboost": catboost_models,
}


def contender(name: str, size: str, model: Any, score: float, folder: Path) -> Contender:
    """How each learner predicts fastest from Python, on one thread."""
    path = folder / f"{name}.model"
    row: Callable[[np.ndarray], np.ndarray]
    bulk: Callable[[np.ndarray], np.ndarray]
    if name == "softwood":
        predictor = model.predictor()
        model.save(path)
        row, bulk = predictor.predict, lambda X: predictor.predict(X, n_threads=1)
        trees = model.model_.members[0].trees
        n_parameters = sum(int(np.count_nonzero(a)) for a in (trees.split_weight, trees.split_bias, trees.leaf_weight))
    elif name == "xgboost":
        booster = model.get_booster()
        booster.set_param({"nthread": 1})
        path = path.with_suffix(".ubj")
        booster.save_model(path)
        row, bulk = lambda x: booster.inplace_predict(x[None]), booster.inplace_predict
        nodes = booster.trees_to_dataframe()["Feature"]
        n_parameters = int((nodes == "Leaf").sum() + 2 * (nodes != "Leaf").sum())
    elif name == "lightgbm":
        booster = model.booster_
        booster.save_model(path)
        row, bulk = lambda x: booster.predict(x[None], num_threads=1), lambda X: booster.predict(X, num_threads=1)
        is_leaf = booster.trees_to_dataframe()["split_feature"].isna()
        n_parameters = int(is_leaf.sum() + 2 * (~is_leaf).sum())
    else:
        model.save_model(str(path))
        row = lambda x: model.predict_proba(x[None], thread_count=1)  # noqa: E731
        bulk = lambda X: model.predict_proba(X, thread_count=1)  # noqa: E731
        n_parameters = len(model.get_leaf_values()) + 2 * 6 * model.tree_count_
    return Contender(name, size, score, row, bulk, path.stat().st_size, n_parameters)


def onnx_contender(model: Any, mine: Contender, folder: Path) -> Contender:
    import onnxruntime

    (path,) = export(model, folder / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    bulk = lambda X: session.run(["probabilities"], {"X": X})[0]  # noqa: E731
    row = lambda x: bulk(x[None])[0]  # noqa: E731
    name = "softwood in onnxruntime"
    return Contender(name, mine.size, mine.auc, row, bulk, path.stat().st_size, mine.n_parameters)


# Measuring ----------------------------------------------------------------------------------------------------------


def c_latency(model: Any, X: np.ndarray, expected: np.ndarray, folder: Path) -> float:
    """Microseconds a row of the exported C, compiled for this machine."""
    export(model, folder / "model.c")
    (folder / "driver.c").write_text(C_DRIVER)
    flags = ["-std=c99", "-O3", "-march=native", "-ffp-contract=off"]
    sources = [str(folder / "model.c"), str(folder / "driver.c")]
    subprocess.run(["cc", *flags, *sources, "-o", str(folder / "model"), "-lm"], check=True)
    rows = X[:500]
    command = [str(folder / "model"), str(len(rows))]
    words = subprocess.run(command, input=rows.tobytes(), capture_output=True, check=True).stdout.split()
    np.testing.assert_allclose(float(words[1]), 20 * expected[:500, 0].sum(), rtol=1e-6)
    return float(words[0])


def seconds(action: Callable[[], Any], repeat: int) -> float:
    start = time.thread_time()
    for _ in range(repeat):
        action()
    return (time.thread_time() - start) / repeat


def measure(contenders: list[Contender], X: np.ndarray, rounds: int) -> None:
    many = np.ascontiguousarray(np.tile(X, (-(-BULK_ROWS // len(X)), 1))[:BULK_ROWS])
    for c in contenders:
        whole = np.asarray(c.bulk(X)).reshape(len(X), -1)
        np.testing.assert_allclose(np.ravel(c.row(X[3])), whole[3], rtol=1e-4, atol=1e-5)
    for _ in range(rounds):
        for c in contenders:
            one = iter(np.tile(np.arange(len(X)), 10))
            c.row_us.append(1e6 * seconds(lambda c=c, one=one: c.row(X[next(one)]), 300))  # type: ignore[misc]
            c.bulk_ns.append(1e9 * seconds(lambda c=c: c.bulk(many), 1) / BULK_ROWS)  # type: ignore[misc]


def equal_models(
    X: tuple[np.ndarray, np.ndarray], y: tuple[np.ndarray, np.ndarray], margin: float
) -> dict[str, tuple[str, Any, float]]:
    """The smallest model of each learner whose AUC is near the best that all of them reach."""
    found = {
        name: [(size, m, auc(y[1], m.predict_proba(X[1]))) for size, m in make(X[0], y[0])]
        for name, make in LEARNERS.items()
    }
    target = min(max(score for *_, score in models) for models in found.values()) - margin
    return {name: next(entry for entry in models if entry[2] >= target) for name, models in found.items()}


def run_table(folder: Path, name: str, rounds: int, margin: float) -> list[dict[str, Any]]:
    X, y = load_breast_cancer(return_X_y=True) if name == "breast-cancer" else read_set(folder, name)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
    chosen = equal_models((X_train, X_test), (y_train, y_test), margin)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        contenders = [contender(learner, *entry[:2], entry[2], place) for learner, entry in chosen.items()]
        mine = chosen["softwood"][1]
        contenders.append(onnx_contender(mine, contenders[0], place))
        contenders[0].c_us = c_latency(mine, X_test, mine.predict_proba(X_test), place)
        measure(contenders, X_test, rounds)
    return [
        {
            "table": name,
            "learner": c.name,
            "size": c.size,
            "auc": c.auc,
            "row_us": min(c.row_us),
            "c_row_us": c.c_us,
            "bulk_ns": min(c.bulk_ns),
            "bytes": c.n_bytes,
            "parameters": c.n_parameters,
            "rounds": {"row_us": c.row_us, "bulk_ns": c.bulk_ns},
        }
        for c in contenders
    ]


def report(results: list[dict[str, Any]]) -> str:
    lines = [
        "| table | learner | model | AUC | row, µs | row in C, µs | bulk, ns/row | file, KiB | parameters |",
        "|---" * 9 + "|",
    ]
    for r in results:
        in_c = "" if r["c_row_us"] is None else f"{r['c_row_us']:.2f}"
        lines.append(
            f"| {r['table']} | {r['learner']} | {r['size']} | {r['auc']:.4f} | {r['row_us']:.1f} | {in_c} "
            f"| {r['bulk_ns']:.0f} | {r['bytes'] / 1024:.0f} | {r['parameters']} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/pmlb"))
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--margin", type=float, default=0.002)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/predict.json"))
    arguments = parser.parse_args()
    results = []
    for name in arguments.sets:
        found = run_table(arguments.data, name, arguments.rounds, arguments.margin)
        print(report(found), flush=True)
        results += found
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"machine": machine.facts(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
