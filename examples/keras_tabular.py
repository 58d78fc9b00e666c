"""A tree ensemble in a Keras model, on any backend: tell tumours apart in scikit-learn's breast-cancer table.

    python examples/keras_tabular.py --backend jax

Trains batch normalisation, 20 trees of depth 6 and a softmax by ``model.fit``, and shows how many leaves a sample
reaches before and after. The three backends start from the same weights, see the same batches and end at the same AUC.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

N_TREES, DEPTH, N_CLASSES = 20, 6, 2


def load_table(seed: int) -> tuple[np.ndarray, ...]:
    """Standardised training and validation rows, and their classes."""
    x, y = load_breast_cancer(return_X_y=True)
    x_train, x_valid, y_train, y_valid = train_test_split(x, y, test_size=0.3, stratify=y, random_state=seed)
    scaler = StandardScaler().fit(x_train)
    return scaler.transform(x_train).astype("float32"), scaler.transform(x_valid).astype("float32"), y_train, y_valid


def make_model(n_features: int, seed: int) -> Any:
    """Batch normalisation, trees, softmax; each backend gets the same initial trees."""
    import keras

    from softwood.keras import TreeEnsemble

    keras.utils.set_random_seed(seed)
    trees = TreeEnsemble(N_CLASSES, n_trees=N_TREES, depth=DEPTH, name="trees")
    model = keras.Sequential(
        [keras.Input((n_features,)), keras.layers.BatchNormalization(), trees, keras.layers.Softmax()]
    )
    rng = np.random.default_rng(seed)
    trees.set_weights([rng.uniform(-0.01, 0.01, weight.shape) for weight in trees.weights])
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main() -> None:
    """Train, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["tensorflow", "jax", "torch"], help="default: Keras's own choice")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.backend:
        os.environ["KERAS_BACKEND"] = arguments.backend  # read when Keras is imported

    x_train, x_valid, y_train, y_valid = load_table(arguments.seed)
    model = make_model(x_train.shape[1], arguments.seed)
    trees = model.get_layer("trees")
    leaves_before = trees.reachable_leaves(x_valid).mean()

    start = time.perf_counter()
    history = model.fit(
        x_train,
        y_train,
        validation_data=(x_valid, y_valid),
        epochs=arguments.epochs,
        batch_size=32,
        shuffle=False,  # the split has shuffled the rows, and backends do not share a generator
        verbose=0,
    )
    seconds = time.perf_counter() - start

    import keras

    normalise = model.layers[0]
    leaves_after = trees.reachable_leaves(keras.ops.convert_to_numpy(normalise(x_valid))).mean()
    auc = roc_auc_score(y_valid, model.predict(x_valid, verbose=0)[:, 1])
    print(f"backend              {keras.backend.backend()}")
    print(f"training             {len(x_train)} rows, {arguments.epochs} epochs, {seconds:.1f} s")
    print(f"training loss        {history.history['loss'][0]:.3f} -> {history.history['loss'][-1]:.3f}")
    print(f"validation accuracy  {history.history['val_accuracy'][-1]:.3f}")
    print(f"validation AUC       {auc:.4f}")
    print(f"leaves reached       {leaves_before:.1f} -> {leaves_after:.1f} of {2**DEPTH} a tree and sample")
    print("What to look at: the AUC is about the same on each backend, and each sample now reaches only a few leaves.")


if __name__ == "__main__":
    main()
