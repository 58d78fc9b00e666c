"""Latency, throughput and size of softwood's predictions beside XGBoost, LightGBM, CatBoost and onnxruntime.

Models of equal quality are compared: on each table the target is the least of the learners' best test AUCs, less a
margin, and every learner gets the model of its grid (numbers of trees, two or three depths, two learning rates) that
reaches it and predicts fastest in bulk. The choice takes minutes and is kept in the results file; with `--again` only
the chosen models are fitted and timed.

One thread; rows are NumPy float32, and each learner is called in its fastest way from Python. Times are CPU times of
the calling thread, the least of several rounds in which the learners take turns. Every timed prediction is checked
first: C and ONNX against Python, and each learner's single rows against its bulk.

    python benchmarks/predict.py
    python benchmarks/predict.py --again
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import machine
from learners import make_estimator
from softwood.export import export
from suite_tables import auc, default_folder, find_tables, read_table

SETS = ("breast-cancer", "spambase", "satimage")
TREES = [1, 2, 5, 10, 20, 30, 50, 70, 100, 200, 400]
BULK_ROWS = 20_000
GRIDS: dict[str, dict[str, list[Any]]] = {
    "softwood": {"n_trees": TREES[:7], "depth": [2, 3, 4], "learning_rate": [0.02, 0.05], "gamma_end": [None, 0.1]},
    "xgboost": {"n_estimators": TREES, "max_depth": [3, 6], "learning_rate": [0.3, 0.1]},
    "lightgbm": {"n_estimators": TREES, "num_leaves": [7, 31], "learning_rate": [0.1, 0.3]},
    "catboost": {"iterations": TREES, "depth": [4, 6], "learning_rate": [None, 0.3]},
}
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


def fit(name: str, params: dict[str, Any], X: np.ndarray, y: np.ndarray) -> Any:
    """A fitted model of one learner."""
    if name == "softwood":
        params = {"n_members": 1, "max_epochs": 50, "patience": 15, **params}
    return make_estimator(name, "binary", threads=1, seed=0, **params).fit(X, y)


def describe(params: dict[str, Any]) -> str:
    """A model in a few words: number of trees and size of a tree."""
    (trees, shape), *_ = itertools.pairwise(params)
    size = "leaves" if shape == "num_leaves" else "deep"
    return f"{params[trees]} {'trees' if trees == 'n_trees' else 'rounds'}, {params[shape]} {size}"


def contender(name: str, params: dict[str, Any], model: Any, score: float, folder: Path) -> Contender:
    """How each learner predicts fastest from Python, on one thread."""
    path = folder / f"{name}.model"
    row: Callable[[np.ndarray], np.ndarray]
    bulk: Callable[[np.ndarray], np.ndarray]
    if name == "softwood":
        predictor = model.predictor()
        model.save(path)
        row, bulk = predictor.predict_proba, lambda X: predictor.predict_proba(X, n_threads=1)
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
    return Contender(name, describe(params), score, row, bulk, path.stat().st_size, n_parameters)


def onnx_contender(model: Any, mine: Contender, folder: Path) -> Contender:
    import onnxruntime

    (path,) = export(model, folder / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    bulk = lambda X: session.run(["probabilities"], {"X": X.astype(np.float64)})[0]  # noqa: E731
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
    subprocess.run(["cc", *flags, *sources, "-o", str(folder / "model"), "-lm"], check=True, timeout=300)
    rows = X[:500].astype(np.float64)
    command = [str(folder / "model"), str(len(rows))]
    words = subprocess.run(command, input=rows.tobytes(), capture_output=True, check=True, timeout=300).stdout.split()
    np.testing.assert_allclose(float(words[1]), 20 * expected[:500, 0].sum(), rtol=1e-6)
    return float(words[0])


def seconds(action: Callable[[], Any], repeat: int) -> float:
    start = time.thread_time()
    for _ in range(repeat):
        action()
    return (time.thread_time() - start) / repeat


def many_rows(X: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.tile(X, (-(-BULK_ROWS // len(X)), 1))[:BULK_ROWS])


def measure(contenders: list[Contender], X: np.ndarray, rounds: int) -> None:
    many = many_rows(X)
    for c in contenders:
        whole = np.asarray(c.bulk(X)).reshape(len(X), -1)
        np.testing.assert_allclose(np.ravel(c.row(X[3])), whole[3], rtol=1e-4, atol=1e-5)
    for _ in range(rounds):
        for c in contenders:
            one = iter(np.tile(np.arange(len(X)), 10))
            c.row_us.append(1e6 * seconds(lambda c=c, one=one: c.row(X[next(one)]), 300))  # type: ignore[misc]
            c.bulk_ns.append(1e9 * seconds(lambda c=c: c.bulk(many), 1) / BULK_ROWS)  # type: ignore[misc]


Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # train X, test X, train y, test y


def read_split(folder: Path, name: str) -> Split:
    if name == "breast-cancer":
        X, y = load_breast_cancer(return_X_y=True)
    else:
        table = read_table(find_tables(folder)[name])
        X, y = table.X.to_numpy(np.float64), table.y
    return train_test_split(X.astype(np.float32), y, test_size=0.3, random_state=0, stratify=y)


def choose(split: Split, margin: float) -> dict[str, dict[str, Any]]:
    """For each learner the fastest of its models that reach the AUC which all of them can reach."""
    X_train, X_test, y_train, y_test = split
    many = many_rows(X_test)
    tried: dict[str, list[tuple[float, float, dict[str, Any]]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, grid in GRIDS.items():
            for values in itertools.product(*grid.values()):
                params = dict(zip(grid, values, strict=True))
                model = fit(name, params, X_train, y_train)
                score = auc(y_test, model.predict_proba(X_test))
                bulk = contender(name, params, model, score, Path(scratch)).bulk
                speed = min(seconds(lambda bulk=bulk: bulk(many), 1) for _ in range(5))  # type: ignore[misc]
                tried.setdefault(name, []).append((score, speed, params))
    target = min(max(score for score, *_ in models) for models in tried.values()) - margin
    return {
        name: min((speed, i, params) for i, (score, speed, params) in enumerate(models) if score >= target)[2]
        for name, models in tried.items()
    }


def run_table(split: Split, name: str, chosen: dict[str, dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    X_train, X_test, y_train, y_test = split
    models = {learner: fit(learner, params, X_train, y_train) for learner, params in chosen.items()}
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        scores = {learner: auc(y_test, model.predict_proba(X_test)) for learner, model in models.items()}
        contenders = [contender(key, chosen[key], model, scores[key], place) for key, model in models.items()]
        mine = models["softwood"]
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
    parser.add_argument("--data", type=Path, default=default_folder(), help="folder of the data sets")
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--margin", type=float, default=0.002)
    parser.add_argument("--again", action="store_true", help="time the models that an earlier run has chosen")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/predict.json"))
    arguments = parser.parse_args()
    chosen = json.loads(arguments.out.read_text())["chosen"] if arguments.again else {}
    results: list[dict[str, Any]] = []
    arguments.out.parent.mkdir(parents=True, exist_ok=True)

    def keep() -> None:
        contents = {"machine": machine.facts(), "chosen": chosen, "results": results}
        arguments.out.write_text(json.dumps(contents, indent=1))

    for name in arguments.sets:
        split = read_split(arguments.data, name)
        if name not in chosen:
            chosen[name] = choose(split, arguments.margin)
            keep()
        found = run_table(split, name, chosen[name], arguments.rounds)
        print(report(found), flush=True)
        results += found
        keep()


if __name__ == "__main__":
    main()
