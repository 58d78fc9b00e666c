"""One small fitted model for each thing that a prediction can need, and rows that are hard to predict."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd

import softwood
from softwood import reference
from softwood.training.losses import Loss

SMALL = {"n_members": 2, "n_trees": 6, "depth": 4, "max_epochs": 8, "random_state": 0, "n_jobs": 1}
NAMES = (
    "binary",
    "multiclass",
    "labels",
    "mixed",
    "regression",
    "quantiles",
    "poisson",
    "targets",
    "batch_norm",
    "smoother",
    "logistic",
)
CITIES = [f"city {i}" for i in range(15)] + ["Zürich", 'a "quoted" \\ one??/', "", "tab\tand\nline"]


def numbers(n: int, *, seed: int = 0, holes: float = 0.0) -> np.ndarray:
    """Columns of very different size and place, float64 [n, 9]; some cells missing."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 9)) * [1, 1, 1e-3, 1e4, 1, 1, 1, 1, 1] + [0, 50, 0, 0, 1e6, 0, 0, 0, 0]
    X[:, 7] = rng.integers(0, 4, n)
    X[:, 8] = np.exp(3 * X[:, 8])
    X[rng.random(X.shape) < holes] = np.nan
    return X


def mixed(n: int, *, seed: int = 0, unseen: bool = False) -> pd.DataFrame:
    """Numbers with holes, few and many categories, booleans and dates, before and after 1970."""
    rng = np.random.default_rng(seed)
    colours, cities = ["red", "blue", None], list(CITIES)
    if unseen:
        colours, cities = [*colours, "octarine", "Red"], [*cities, "Ankh-Morpork", None]
    seconds = rng.uniform(-3e9, 3e9, n)
    table = pd.DataFrame(
        {
            "size": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
            "größe": rng.integers(0, 5, n),
            "colour": rng.choice(np.array(colours, dtype=object), n),
            "city": rng.choice(np.array(cities, dtype=object), n),
            "member": rng.random(n) < 0.5,
            "since": pd.to_datetime(seconds.astype("int64"), unit="s"),
        }
    )
    table.loc[rng.random(n) < 0.05, "since"] = pd.NaT
    return table


@cache
def fitted(name: str) -> softwood.TreeEnsembleClassifier | softwood.TreeEnsembleRegressor:
    """A fitted estimator; the same one at each call."""
    if name == "mixed":
        table = mixed(600)
        y = np.where((table["size"] > 0) ^ (table["colour"] == "red") ^ (table["city"] < "city 2"), "yes", "no")
        return softwood.TreeEnsembleClassifier(**SMALL).fit(table, y)
    X = numbers(500, holes=0.05)
    Z = np.nan_to_num(X)
    signal = Z[:, 0] + Z[:, 0] * (Z[:, 1] - 50) + (Z[:, 7] == 2)
    if name in ("binary", "batch_norm", "smoother", "logistic"):
        options = {"batch_norm": {"batch_norm": True, "gamma": 0.3}, "smoother": {"activation": "smoother_step"}}
        options["logistic"] = {"activation": "logistic", "gamma": 0.2}
        return softwood.TreeEnsembleClassifier(**SMALL, **options.get(name, {})).fit(X, signal > 0)
    if name == "multiclass":
        return softwood.TreeEnsembleClassifier(**SMALL).fit(X, np.digitize(signal, [-0.5, 0.5]))
    if name == "labels":
        labels = np.column_stack([signal > 0, Z[:, 0] > 1, Z[:, 7] == 2])
        return softwood.TreeEnsembleClassifier(**SMALL).fit(X, labels)
    if name == "targets":
        return softwood.TreeEnsembleRegressor(**SMALL).fit(X, np.column_stack([signal, 1000 * Z[:, 1] + 5]))
    loss = {"regression": "auto", "poisson": "poisson"}.get(name) or Loss("quantile", quantiles=(0.9, 0.1, 0.5))
    return softwood.TreeEnsembleRegressor(**SMALL, loss=loss).fit(X, np.floor(np.exp(signal.clip(-2, 2))))


def rows(name: str, n: int, *, seed: int = 1):
    """New rows for a model: missing cells, categories that training did not see, values far outside."""
    if name == "mixed":
        return mixed(n, seed=seed, unseen=True)
    X = numbers(n, seed=seed, holes=0.1)
    X[0] = np.nan
    X[1], X[2] = 1e38, -1e300
    return X


def predictions(name: str, X) -> np.ndarray:
    """Class probabilities or values that the model of this name predicts, as a matrix."""
    model = fitted(name).model_
    values = model.predict(X) if model.head.classes is None else model.predict_proba(X)
    return values.reshape(len(X), -1)


def reference_scores(model, X) -> np.ndarray:
    """Raw scores in float64, from the split values that explanations see."""
    total = 0.0
    for member, rows_of_member in zip(model.members, model.rows(X), strict=True):
        for tree in range(rows_of_member.n_trees):
            reach = leaf_probabilities(rows_of_member, tree)
            total = total + reach @ rows_of_member.leaf_weight[tree]
        total = total + member.trees.offset
    return total / len(model.members)


def leaf_probabilities(rows_of_member, tree) -> np.ndarray:
    """Probabilities of reaching each leaf of a tree [n, 2^d]."""
    t = rows_of_member.split_values(tree)
    routing = reference.route(t, rows_of_member.activation, rows_of_member.gamma)
    return reference.reach_probability(routing.left, routing.right)[:, t.shape[1] :]
