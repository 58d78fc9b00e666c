"""The tree ensemble layer on scikit-learn's breast-cancer table: forward, backward, and what each sample reaches.

Run it with `python examples/demo.py` where softwood is installed.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import softwood
from softwood import ops, reference

N_TREES, DEPTH, N_STEPS, LEARNING_RATE = 10, 6, 60, 0.5


def main() -> None:
    table = load_breast_cancer()
    x = StandardScaler().fit_transform(table.data).astype(np.float32)
    y = table.target.astype(np.float32)[:, None]
    rng = np.random.default_rng(0)
    w = rng.normal(scale=0.1, size=(N_TREES, 2**DEPTH - 1, x.shape[1])).astype(np.float32)
    o = np.zeros((N_TREES, 2**DEPTH, 1), np.float32)
    print(f"softwood {softwood.__version__}: kernels for {ops.instruction_set()}, {softwood.get_num_threads()} threads")
    print(f"Breast-cancer table: {x.shape[0]} rows, {x.shape[1]} features. {N_TREES} trees of depth {DEPTH}.\n")

    leaves_at_random = rng.standard_normal(o.shape, np.float32)
    error = np.abs(ops.forward(x, w, leaves_at_random) - reference.forward(x, w, leaves_at_random)).max()
    print(f"forward agrees with the dense NumPy definition to {error:.1e}\n")

    print("Plain gradient descent on the logistic loss:")
    print(f"{'step':>6} {'loss':>8} {'accuracy':>9} {'leaves reached of ' + str(2**DEPTH):>22} {'us per step':>10}")
    gradients: ops.Gradients | None = None
    for step in range(N_STEPS + 1):
        start = time.perf_counter()
        score, tape = ops.forward(x, w, o, with_tape=True)
        probability = 1 / (1 + np.exp(-score))
        grad_score = (probability - y) / len(y)
        gradients = ops.backward(grad_score, x, w, o, tape=tape, needs=("split_weight", "leaf_weight"), out=gradients)
        _, grad_w, grad_o, _ = gradients
        w -= LEARNING_RATE * grad_w
        o -= LEARNING_RATE * grad_o
        elapsed = time.perf_counter() - start
        if step % 10 == 0:
            loss = np.logaddexp(0, np.where(y > 0, -score, score)).mean()
            accuracy = ((score > 0) == (y > 0)).mean()
            leaves = ops.reachability(x, w).leaves.mean()
            print(f"{step:>6} {loss:>8.4f} {accuracy:>9.4f} {leaves:>22.1f} {elapsed * 1e6:>10.0f}")

    counts = ops.reachability(x, w)
    assert np.array_equal(counts.fractional_nodes, counts.leaves - 1)
    print(f"""
What to look at: as the trees learn, a sample reaches ever fewer leaves, and only those cost time, forward and backward.
In each tree, a sample meets exactly one fractional split less than it reaches leaves: so it was for all
{counts.leaves.size} pairs of sample and tree.""")


if __name__ == "__main__":
    main()
