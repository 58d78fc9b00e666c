"""What a model makes of many rows: which columns count, and which nodes are used.

*Importances* are those of `softwood.model.importance`: how far raw scores move when a split's routing is replaced by
a coin with the same average odds, shared among the columns by the variance of what each brings to the split. They are
stored with the model.

*Contributions of columns* (`column_contributions`) split the raw scores of a row. Let v_i be the mean output below node
i over background rows, weighted by how much of each row arrives there. Going from i to its children changes what is
expected of the row by P(x -> i) (S v_left + (1 - S) v_right - v_i). These changes add up to T(x) - v_root, and each is
shared among the columns in proportion to how far what each brings to the split is from its mean over the background.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood import reference
from softwood.model.member_rows import MemberRows
from softwood.model.model import model_of

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
    """How much of a model some rows use. Each list has one entry per member.

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
    reachable, traffic = [], []
    for rows in model.rows(X):
        walks = [_mean_walk(rows, tree) for tree in range(rows.n_trees)]
        traffic.append(np.array([reach for reach, _ in walks]))
        reachable.append(np.array([n_leaves for _, n_leaves in walks]))
    return Usage(reachable, traffic)


def tree_traffic(estimator: Any, X: Any, trees: Sequence[tuple[int, int]]) -> list[NDArray[np.float64]]:
    """What `usage` says of the traffic at the nodes [2^(d+1) - 1] of some trees, given by member and number."""
    model = model_of(estimator)
    rows = model.rows(X)
    return [_mean_walk(rows[i], tree)[0] for i, tree in trees]


def _mean_walk(rows: MemberRows, tree: int) -> tuple[NDArray[np.float64], float]:
    """Mean probability of arriving at each node of a tree, and mean number of leaves reached."""
    total, n_leaves, n_rows = np.zeros(0), 0, 0
    for some, _, reach in walk(rows, tree):
        total = reach.sum(axis=0) + (total if len(total) else 0)
        n_leaves += int(np.count_nonzero(reach[:, reach.shape[1] // 2 :]))
        n_rows = some.stop
    return total / n_rows, n_leaves / n_rows


@dataclass(frozen=True, eq=False)
class Contributions:
    """Raw scores of rows, divided among columns: ``base + values.sum(axis=1)`` are the raw scores.

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
    """Divide the raw scores of each row among the columns; the module's docstring has the definition.

    Parameters
    ----------
    estimator : fitted estimator or Model
    X : table [n]
    background : table, optional
        Rows that define the average; X itself if None. A few hundred are enough.

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
    members = model.rows(X)
    usual = members if background is None else model.rows(background)
    values = np.zeros((model.program.read(X).n_rows, model.n_columns, model.n_outputs))
    base = np.sum([member.trees.offset.astype(np.float64) for member in model.members], axis=0)
    for rows, others in zip(members, usual, strict=True):
        for tree in range(rows.n_trees):
            expected = _node_means(others, tree)
            base += expected[0]
            for some, left, reach in walk(rows, tree):
                n_splits = left.shape[1]
                child = expected[1:].reshape(n_splits, 2, -1)
                change = left[..., None] * child[:, 0] + (1 - left[..., None]) * child[:, 1] - expected[:n_splits]
                change *= reach[:, :n_splits, None]
                for split in np.flatnonzero(change.any(axis=(0, 2))).tolist():
                    values[some] += _shares(rows, others, tree, split)[some, :, None] * change[:, split, None, :]
    return Contributions(model.column_names, values / len(model.members), base / len(model.members))


def _shares(rows: MemberRows, others: MemberRows, tree: int, split: int) -> np.ndarray:
    """Shares of the columns in what a split does to each row [n, n_columns]."""
    distance = np.abs(rows.effects(tree, split) - others.effects(tree, split).mean(axis=0))
    # A row that is usual in every column of the split still needs its change accounted for.
    is_usual = distance.sum(axis=1) <= 0
    if is_usual.any():
        weight = rows.weights(tree, split)
        distance[is_usual] = weight if weight.any() else 1.0
    return distance / distance.sum(axis=1, keepdims=True)


def _node_means(rows: MemberRows, tree: int) -> np.ndarray:
    """Mean output below each node [nodes, k] over rows, weighted by how much of each arrives; unused: the leaves'."""
    leaf_weight = rows.leaf_weight[tree]
    n_splits = len(leaf_weight) - 1
    total, mass = np.zeros((2 * n_splits + 1, leaf_weight.shape[1])), np.zeros(2 * n_splits + 1)
    for _, _, reach in walk(rows, tree):
        mass += reach.sum(axis=0)
    total[n_splits:] = mass[n_splits:, None] * leaf_weight
    plain = np.concatenate([np.zeros((n_splits, leaf_weight.shape[1])), leaf_weight])
    for i in reversed(range(n_splits)):
        total[i] = total[2 * i + 1] + total[2 * i + 2]
        plain[i] = (plain[2 * i + 1] + plain[2 * i + 2]) / 2
    return np.where(mass[:, None] > 0, total / np.maximum(mass, 1e-300)[:, None], plain)


def walk(rows: MemberRows, tree: int) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Blocks of rows: (rows, left [rows, 2^d - 1], reach [rows, 2^(d+1) - 1]) of one tree."""
    t = rows.split_values(tree)
    block = max(1, _MAX_FLOATS // (2 * t.shape[1] + 1))
    for first in range(0, len(t), block):
        some = slice(first, min(first + block, len(t)))
        routing = reference.route(t[some], rows.activation, rows.gamma)
        yield some, routing.left, reference.reach_probability(routing.left, routing.right)


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
