"""What a model makes of many rows: which columns count, and which nodes are used.

*Importances* are those of `softwood.model.importance`: how far raw scores move when a split's routing is replaced by
a coin with the same average odds, shared among the columns by the variance of what each brings to the split. They are
stored with the model.

*Contributions of columns* (`column_contributions`) split the raw scores of a row. Let v_i be the mean output below node
i over background rows, weighted by how much of each row arrives there. Going from i to its children changes what is
expected of the row by P(x -> i) (S v_left + (1 - S) v_right - v_i). These changes add up to T(x) - v_root, and each is
shared among the inputs of the split in proportion to |w_f (x_f - mean x_f)|.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood import ops, reference
from softwood.model.model import Model, model_of

# Floats held at once while all nodes of a tree are walked for many rows.
_MAX_FLOATS = 1 << 24


def importances(estimator: Any) -> list[tuple[str, float]]:
    """(column, importance) of each column, the largest first; they sum to 1.

    Examples
    --------
    >>> from softwood import TreeEnsembleRegressor
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> regressor = TreeEnsembleRegressor(n_members=1, max_features=1.0, random_state=0).fit(X, 3 * X[:, 1])
    >>> importances(regressor)[0][0]
    'x1'
    """
    model = model_of(estimator)
    order = np.argsort(-model.importances, kind="stable")
    return [(model.column_names[j], float(model.importances[j])) for j in order]


@dataclass(frozen=True, eq=False)
class Usage:
    """How much of a model some rows use. One entry a member in each list.

    Attributes
    ----------
    mean_reachable_leaves : list of ndarray [m]
        Leaves that a row reaches, on average, in each tree.
    traffic : list of ndarray [m, 2^(d+1) - 1]
        Mean probability of arriving at each node.
    """

    mean_reachable_leaves: list[NDArray[np.float64]]
    traffic: list[NDArray[np.float64]]

    @property
    def unused_splits(self) -> list[NDArray[np.bool_]]:
        """Whether no row reaches a split [m, 2^d - 1]."""
        return [traffic[:, : traffic.shape[1] // 2] == 0 for traffic in self.traffic]

    @property
    def unused_leaves(self) -> list[NDArray[np.bool_]]:
        """Whether no row reaches a leaf [m, 2^d]."""
        return [traffic[:, traffic.shape[1] // 2 :] == 0 for traffic in self.traffic]


def usage(estimator: Any, X: Any) -> Usage:
    """Traffic at each node, reachable leaves and unused nodes, over the rows of a table."""
    model = model_of(estimator)
    inputs = model.inputs(X)
    reachable, traffic = [], []
    for i, (member, (w, b, _)) in enumerate(zip(model.members, model.folded, strict=True)):
        x = inputs[member.encoding].astype(np.float64)
        activation, gamma = member.trees.activation, member.trees.gamma
        counts = ops.reachability(x, w, split_bias=b, activation=activation, gamma=gamma)
        reachable.append(counts.leaves.mean(axis=0, dtype=np.float64))
        traffic.append(np.array([_traffic(model, i, tree, x) for tree in range(len(w))]))
    return Usage(reachable, traffic)


def tree_traffic(estimator: Any, X: Any, trees: Sequence[tuple[int, int]]) -> list[NDArray[np.float64]]:
    """What `usage` says of the traffic at the nodes [2^(d+1) - 1] of some trees, given by member and number."""
    model = model_of(estimator)
    inputs = model.inputs(X)
    return [_traffic(model, i, tree, inputs[model.members[i].encoding].astype(np.float64)) for i, tree in trees]


def _traffic(model: Model, member: int, tree: int, x: np.ndarray) -> NDArray[np.float64]:
    return sum(reach.sum(axis=0) for _, _, reach in _walk(model, member, tree, x)) / len(x)


@dataclass(frozen=True, eq=False)
class Contributions:
    """Raw scores of rows, shared out among columns: ``base + values.sum(axis=1)`` are the raw scores.

    Attributes
    ----------
    columns : list of str
    values : ndarray [n, n_columns, k]
    base : ndarray [k]
        Mean raw scores of the background rows.
    """

    columns: list[str]
    values: NDArray[np.float64]
    base: NDArray[np.float64]


def column_contributions(estimator: Any, X: Any, *, background: Any = None) -> Contributions:
    """Share the raw scores of each row out among the columns; the module's description has the definition.

    Parameters
    ----------
    estimator : fitted estimator or Model
    X : table [n]
    background : table, optional
        Rows that say what is usual; X itself if None. A few hundred are enough.

    Examples
    --------
    >>> from softwood import TreeEnsembleRegressor
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> regressor = TreeEnsembleRegressor(n_members=2, n_trees=3, random_state=0).fit(X, X[:, 0])
    >>> found = column_contributions(regressor, X[:5], background=X)
    >>> bool(np.allclose(found.base + found.values.sum(axis=1), regressor.model_.raw_scores(X[:5])))
    True
    """
    model = model_of(estimator)
    inputs = model.inputs(X)
    usual = inputs if background is None else model.inputs(background)
    n = len(next(iter(inputs.values())))
    values = np.zeros((n, model.n_columns, model.n_outputs))
    base = np.zeros(model.n_outputs)
    for i, (member, (w, _, o)) in enumerate(zip(model.members, model.folded, strict=True)):
        x, others = (each[member.encoding].astype(np.float64) for each in (inputs, usual))
        columns = model.program.column_of_feature(member.encoding)
        is_column = (columns[:, None] == np.arange(model.n_columns)).astype(np.float64)
        distance = np.abs(x - others.mean(axis=0))
        base += member.trees.offset
        for tree in range(len(w)):
            expected = _node_means(model, i, tree, others, o[tree])
            base += expected[0]
            for rows, left, reach in _walk(model, i, tree, x):
                n_splits = left.shape[1]
                child = expected[1:].reshape(n_splits, 2, -1)
                change = left[..., None] * child[:, 0] + (1 - left[..., None]) * child[:, 1] - expected[:n_splits]
                change *= reach[:, :n_splits, None]
                values[rows] += _share(change, distance[rows], np.abs(w[tree]), is_column)
    return Contributions(model.column_names, values / len(model.members), base / len(model.members))


def _share(change: np.ndarray, distance: np.ndarray, weight: np.ndarray, is_column: np.ndarray) -> np.ndarray:
    """Changes [n, splits, k] shared among columns [n, columns, k] by weight [splits, p] times distance [n, p]."""
    shared = np.zeros((len(change), is_column.shape[1], change.shape[2]))
    for i in range(len(weight)):
        size = distance * weight[i]
        # A row that is usual in every input of the split still needs its change accounted for.
        size[size.sum(axis=1) <= 0] = weight[i] if weight[i].any() else 1.0
        share = (size / size.sum(axis=1, keepdims=True)) @ is_column
        shared += share[:, :, None] * change[:, i, None, :]
    return shared


def _node_means(model: Model, member: int, tree: int, x: np.ndarray, leaf_weight: np.ndarray) -> np.ndarray:
    """Mean output below each node [nodes, k] over rows, weighted by how much of each arrives; unused: the leaves'."""
    n_splits = len(leaf_weight) - 1
    total, mass = np.zeros((2 * n_splits + 1, leaf_weight.shape[1])), np.zeros(2 * n_splits + 1)
    for _, _, reach in _walk(model, member, tree, x):
        mass += reach.sum(axis=0)
    total[n_splits:] = mass[n_splits:, None] * leaf_weight
    plain = np.concatenate([np.zeros((n_splits, leaf_weight.shape[1])), leaf_weight])
    for i in reversed(range(n_splits)):
        total[i] = total[2 * i + 1] + total[2 * i + 2]
        plain[i] = (plain[2 * i + 1] + plain[2 * i + 2]) / 2
    return np.where(mass[:, None] > 0, total / np.maximum(mass, 1e-300)[:, None], plain)


def _walk(model: Model, member: int, tree: int, x: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Blocks of rows: (rows, left [rows, 2^d - 1], reach [rows, 2^(d+1) - 1]) of one tree."""
    trees = model.members[member].trees
    w, b, _ = model.folded[member]
    n_splits = w.shape[1]
    block = max(1, _MAX_FLOATS // (2 * n_splits + 1))
    for first in range(0, len(x), block):
        rows = slice(first, min(first + block, len(x)))
        t = x[rows] @ w[tree].T + (0.0 if b is None else b[tree])
        routing = reference.route(t.astype(np.float64), trees.activation, trees.gamma)
        yield rows, routing.left, reference.reach_probability(routing.left, routing.right)


def shap_explanation(estimator: Any, X: Any, *, background: Any = None) -> Any:
    """`column_contributions` as a `shap.Explanation`, for the plots of the shap package.

    The values are not Shapley values: they are this module's contributions, which also add up to the raw scores.
    """
    try:
        import shap
    except ImportError as error:
        raise ImportError("shap_explanation needs the shap package: pip install shap") from error
    found = column_contributions(estimator, X, background=background)
    values = found.values[:, :, 0] if found.values.shape[2] == 1 else found.values
    base = np.broadcast_to(found.base if found.values.shape[2] > 1 else found.base[0], (len(values), *values.shape[2:]))
    table = model_of(estimator).program.read(X)
    data = np.empty((table.n_rows, table.n_columns), dtype=object)
    for j, kind in enumerate(table.kinds):
        data[:, j] = table.labels(j) if kind == "category" else table.numbers(j)
    return shap.Explanation(values=values, base_values=np.array(base), data=data, feature_names=found.columns)
