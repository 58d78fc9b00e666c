"""A tree ensemble in JAX, trained by Optax: tell tumours apart in scikit-learn's breast-cancer table.

    python examples/jax_optax.py

All epochs run inside one compiled ``lax.scan``, so that Python takes no part in the training.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from softwood import ops
from softwood.jax import init, tree_ensemble

N_TREES, DEPTH, BATCH_SIZE = 20, 6, 32


def logits(params: dict[str, Any], x: jax.Array) -> jax.Array:
    """Score of the second class, [n]."""
    return tree_ensemble(x, **params)[:, 0]


def train(
    params: dict[str, Any], x: jax.Array, y: jax.Array, key: jax.Array, n_epochs: int, learning_rate: float
) -> tuple[dict[str, Any], jax.Array]:
    """Fit the parameters by Adam; returns them with the mean loss of each epoch."""
    optimiser = optax.adam(learning_rate)
    n_batches = len(x) // BATCH_SIZE

    def loss(params: dict[str, Any], rows: jax.Array) -> jax.Array:
        return optax.sigmoid_binary_cross_entropy(logits(params, x[rows]), y[rows]).mean()

    def step(state: tuple[Any, Any], rows: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
        params, optimiser_state = state
        value, gradients = jax.value_and_grad(loss)(params, rows)
        updates, optimiser_state = optimiser.update(gradients, optimiser_state)
        return (optax.apply_updates(params, updates), optimiser_state), value

    def epoch(state: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
        order = jax.random.permutation(key, len(x))[: n_batches * BATCH_SIZE]
        state, values = jax.lax.scan(step, state, order.reshape(n_batches, BATCH_SIZE))
        return state, values.mean()

    state = params, optimiser.init(params)
    (params, _), losses = jax.lax.scan(epoch, state, jax.random.split(key, n_epochs))
    return params, losses


def main() -> None:
    """Train, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    table = load_breast_cancer()
    split = train_test_split(table.data, table.target, test_size=0.3, stratify=table.target, random_state=0)
    scaler = StandardScaler().fit(split[0])
    x_train, x_valid = (jnp.asarray(scaler.transform(x), jnp.float32) for x in split[:2])
    y_train, y_valid = split[2:]

    init_key, train_key = jax.random.split(jax.random.key(arguments.seed))
    params = init(init_key, x_train.shape[1], n_outputs=1, n_trees=N_TREES, depth=DEPTH)
    fit = jax.jit(train, static_argnames=("n_epochs", "learning_rate"))
    data = params, x_train, jnp.asarray(y_train), train_key
    run = fit.lower(*data, n_epochs=arguments.epochs, learning_rate=arguments.learning_rate).compile()
    start = time.perf_counter()
    trained, losses = jax.block_until_ready(run(*data))
    seconds = time.perf_counter() - start

    auc = roc_auc_score(y_valid, logits(trained, x_valid))
    leaves = [ops.reachability(np.asarray(x_valid), np.asarray(p["split_weight"])).leaves for p in (params, trained)]
    print(f"training             {len(x_train)} rows, {arguments.epochs} epochs, {seconds * 1e3:.0f} ms once compiled")
    print(f"training loss        {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"validation AUC       {auc:.4f}")
    print(f"leaves reached       {leaves[0].mean():.1f} -> {leaves[1].mean():.1f} of {2**DEPTH} a tree and sample")
    print("What to look at: the loss falls, and each sample now reaches only a few leaves.")


if __name__ == "__main__":
    main()
