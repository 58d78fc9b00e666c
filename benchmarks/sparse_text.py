"""Word counts as a sparse matrix, 800 rows of 17,000 columns: time and quality beside LightGBM and logistic regression.

    python benchmarks/sparse_text.py         writes sparse_text.json

Documents are made: words follow Zipf's law, each of four topics prefers 400 words of its own, and most of a document is
common to all. Learners take turns, with one thread and their defaults; times are CPU seconds. Quality is measured on
as many further documents. Memory is the peak that Python allocates during fit and predict.
"""

from __future__ import annotations

import json
import time
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import machine
import softwood

RESULTS = Path(__file__).with_suffix(".json")
N_ROWS, N_WORDS, N_TOPICS, WORDS_PER_TOPIC = 800, 17_000, 4, 400
N_ROUNDS = 3


def documents(n: int, seed: int) -> tuple[Any, np.ndarray]:
    """Counts [n, words] and topics [n]."""
    rng = np.random.default_rng(seed)
    common = 1 / (np.arange(N_WORDS) + 3.7) ** 1.05
    common /= common.sum()
    topics = np.zeros((N_TOPICS, N_WORDS))
    for topic in topics:
        words = rng.choice(np.arange(100, N_WORDS // 3), WORDS_PER_TOPIC, replace=False)
        topic[words] = rng.gamma(0.3, 1, WORDS_PER_TOPIC) * common[words] ** 0.5
        topic /= topic.sum()
    y = rng.integers(0, N_TOPICS, n)
    rows = []
    for topic in y:
        length, share = max(10, int(rng.lognormal(np.log(120), 0.7))), rng.beta(1, 9)
        mixture = (1 - share) * common + share * (0.75 * topics[topic] + 0.25 * topics[rng.integers(N_TOPICS)])
        rows.append(sparse.csr_array(rng.multinomial(length, mixture)[None].astype(float)))
    return sparse.vstack(rows, format="csr"), y


def learners() -> dict[str, Any]:
    return {
        "softwood": softwood.TreeEnsembleClassifier(random_state=0, n_jobs=1),
        "softwood, one member": softwood.TreeEnsembleClassifier(random_state=0, n_jobs=1, n_members=1),
        "lightgbm": lightgbm.LGBMClassifier(n_jobs=1, verbose=-1),
        "logistic regression": LogisticRegression(max_iter=1000),
    }


def measure(X: Any, y: np.ndarray) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {name: {"fit_seconds": [], "predict_seconds": []} for name in learners()}
    for _ in range(N_ROUNDS):
        for name, model in learners().items():
            begin = time.process_time()
            model.fit(X[:N_ROWS], y[:N_ROWS])
            found[name]["fit_seconds"].append(round(time.process_time() - begin, 3))
            begin = time.process_time()
            probability = model.predict_proba(X[N_ROWS:])
            found[name]["predict_seconds"].append(round(time.process_time() - begin, 4))
            found[name]["accuracy"] = float(np.mean(probability.argmax(axis=1) == y[N_ROWS:]))
            found[name]["log_loss"] = float(log_loss(y[N_ROWS:], probability))
    return found


def peak_bytes(X: Any, y: np.ndarray) -> dict[str, int]:
    model = learners()["softwood"].fit(X[:50], y[:50])
    tracemalloc.start()
    model.fit(X[:N_ROWS], y[:N_ROWS])
    at_fit = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    model.predict_proba(X[N_ROWS:])
    at_predict = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"fit": at_fit, "predict": at_predict, "dense_float32": 4 * N_ROWS * N_WORDS}


def main() -> None:
    warnings.simplefilter("ignore")  # of names that LightGBM made up
    results: dict[str, Any] = {"versions": machine.versions(("lightgbm", "scikit-learn", "scipy")), "tables": {}}
    counts, y = documents(2 * N_ROWS, 0)
    for name, X in {"counts": counts, "tf-idf": TfidfTransformer().fit_transform(counts)}.items():
        found = measure(X, y)
        results["tables"][name] = {"non_zeros": int(X.nnz), "learners": found, "peak_bytes": peak_bytes(X, y)}
        rival = np.median(found["lightgbm"]["fit_seconds"])
        for learner, values in found.items():
            seconds = np.median(values["fit_seconds"])
            ratio = f"{seconds / rival:.1f} times lightgbm"
            print(f"{name} {learner}: {seconds:.2f} s ({ratio}), accuracy {values['accuracy']:.3f}, "
                  f"log loss {values['log_loss']:.3f}")  # fmt: skip
        print(results["tables"][name]["peak_bytes"])
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
