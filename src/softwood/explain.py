"""What a fitted model looks at: importances, the way of one row through the trees, rules in words, unused nodes.

All functions take a fitted estimator or a `softwood.model.Model`. Nodes of a tree are numbered in heap order (children
of i are 2i+1 and 2i+2); the last 2^d of them are the leaves. A model averages its members, so all contributions are
divided by their number, and those of all trees together with the model's offset are the raw scores of a row.

*Importances* are those of `softwood.importance`: how far raw scores move when a split's routing is replaced by a coin
with the same average odds, shared among the split's inputs by |weight| times spread. They are stored with the model.

*Contributions of columns* (`column_contributions`) split the raw scores of a row. Let v_i be the mean output below node
i over background rows, weighted by how much of each row arrives there. Going from i to its children changes what is
expected of the row by P(x -> i) (S v_left + (1 - S) v_right - v_i). These changes add up to T(x) - v_root, and each is
shared among the inputs of the split in proportion to |w_f (x_f - mean x_f)|.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood import ops
from softwood.importance import left_probability
from softwood.model import Model
from softwood.split_rules import SplitRule, split_rule
from softwood.table import read_table

# Floats held at once while all nodes of a tree are walked for many rows.
_MAX_FLOATS = 1 << 24


def model_of(estimator: Any) -> Model:
    """The model of a fitted estimator; a model is returned as it is."""
    model = getattr(estimator, "model_", estimator)
    if not isinstance(model, Model):
        raise TypeError(
            f"A fitted softwood estimator or model is needed; got {type(estimator).__name__}. Call fit or load first."
        )
    return model


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


# The way of one row -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TreePath:
    """The way of one row through one tree.

    Attributes
    ----------
    member, tree : int
    left : dict of int to float
        Probability of going left at each split that the row reaches.
    reach : dict of int to float
        Probability of arriving at each node, leaves included; nodes that are not reached are absent.
    leaf_contributions : dict of int to ndarray [k]
        What each reached leaf (by node number) adds to the raw scores.
    """

    member: int
    tree: int
    left: dict[int, float]
    reach: dict[int, float]
    leaf_contributions: dict[int, NDArray[np.float64]]

    @property
    def contribution(self) -> NDArray[np.float64]:
        """What the tree adds to the raw scores [k]."""
        return np.sum(list(self.leaf_contributions.values()), axis=0)

    @property
    def hard_path(self) -> list[int]:
        """Nodes from the root to a leaf, by the likelier child at each split."""
        nodes = [0]
        while nodes[-1] in self.left:
            nodes.append(2 * nodes[-1] + (1 if self.left[nodes[-1]] >= 0.5 else 2))
        return nodes


@dataclass(frozen=True, eq=False)
class DecisionPath:
    """The way of one row through a model; ``offset + sum of contributions == raw_scores``.

    Attributes
    ----------
    trees : list of TreePath
    offset : ndarray [k]
        Raw scores before any tree.
    raw_scores : ndarray [k]
    prediction : ndarray
        Class probabilities, or values.
    """

    trees: list[TreePath]
    offset: NDArray[np.float64]
    raw_scores: NDArray[np.float64]
    prediction: NDArray[np.float64]

    def strongest(self, n: int = 5, output: int = 0) -> list[TreePath]:
        """The trees that add or take away most of one raw score."""
        return sorted(self.trees, key=lambda tree: -abs(float(tree.contribution[output])))[:n]


def decision_path(estimator: Any, X: Any, row: int = 0) -> DecisionPath:
    """Follow one row of a table through every tree, into the nodes it reaches only.

    Parameters
    ----------
    estimator : fitted estimator or Model
    X : table
        Anything that `predict` takes.
    row : int
        Which of its rows.

    Examples
    --------
    >>> from softwood import TreeEnsembleRegressor
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> regressor = TreeEnsembleRegressor(n_members=2, n_trees=3, random_state=0).fit(X, X[:, 0])
    >>> path = decision_path(regressor, X, row=7)
    >>> total = path.offset + sum(tree.contribution for tree in path.trees)
    >>> bool(np.allclose(total, path.raw_scores))
    True
    """
    model = model_of(estimator)
    one = _one_row(model, X, row)
    inputs = model.inputs(one)
    trees = []
    for i, (member, (w, b, o)) in enumerate(zip(model.members, model.folded, strict=True)):
        x = inputs[member.encoding][0].astype(np.float64)
        for tree in range(len(w)):
            trees.append(_tree_path(model, i, tree, x, w[tree], None if b is None else b[tree], o[tree]))
    offset = np.asarray(np.mean([member.trees.offset for member in model.members], axis=0, dtype=np.float64))
    scores = model.raw_scores(one)
    return DecisionPath(trees, offset, scores[0], model.head.predictions(scores)[0])


def _one_row(model: Model, X: Any, row: int) -> Any:
    table = read_table(X, kinds=model.preprocessor.kinds)
    if not 0 <= row < table.n_rows:
        raise ValueError(f"The row must be 0 to {table.n_rows - 1}, as the table has {table.n_rows}; got {row}.")
    return table.rows(row, row + 1)


def _tree_path(
    model: Model, member: int, tree: int, x: np.ndarray, w: np.ndarray, b: np.ndarray | None, o: np.ndarray
) -> TreePath:
    trees, n_splits = model.members[member].trees, len(w)
    reach, left, leaves = {0: 1.0}, {}, {}
    waiting = [0]
    while waiting:
        i = waiting.pop()
        if i >= n_splits:
            leaves[i] = reach[i] * o[i - n_splits] / len(model.members)
            continue
        t = float(w[i] @ x + (0.0 if b is None else b[i]))
        left[i] = float(left_probability(np.array(t / trees.gamma), trees.activation))
        for child, probability in ((2 * i + 1, left[i]), (2 * i + 2, 1 - left[i])):
            if probability > 0:
                reach[child] = reach[i] * probability
                waiting.append(child)
    return TreePath(member, tree, left, dict(sorted(reach.items())), dict(sorted(leaves.items())))


def rules(estimator: Any, X: Any, row: int = 0, *, member: int = 0, tree: int = 0) -> list[SplitRule]:
    """The splits that one row meets on its likeliest way through one tree, in units of the table.

    ``str(rule)`` is a sentence; `softwood.split_rules.SplitRule` has the numbers behind it.

    Examples
    --------
    >>> from softwood import TreeEnsembleRegressor
    >>> X = np.random.default_rng(0).normal(size=(300, 1)) * 10 + 50
    >>> settings = {"n_members": 1, "n_trees": 1, "depth": 1, "gamma": 0.1, "random_state": 0}
    >>> regressor = TreeEnsembleRegressor(**settings).fit(X, X[:, 0] > 50)
    >>> [rule] = rules(regressor, [[80.0]])
    >>> rule.terms[0].name, rule.goes_left in (True, False)
    ('x0', True)
    """
    model = model_of(estimator)
    check_tree(model, member, tree)
    one = _one_row(model, X, row)
    name = model.members[member].encoding
    x = model.inputs(one)[name][0].astype(np.float64)
    w, b, o = model.folded[member]
    bias = None if b is None else b[tree]
    path = _tree_path(model, member, tree, x, w[tree], bias, o[tree])
    base = model.preprocessor.read(one)[0]
    gamma = model.members[member].trees.gamma
    return [
        split_rule(model.preprocessor, name, w[tree, i], 0.0 if bias is None else bias[i], gamma, base, path.left[i])
        for i in path.hard_path[:-1]
    ]


def check_tree(model: Model, member: int, tree: int) -> None:
    """Raise a ValueError if the model has no such member or tree."""
    if not 0 <= member < len(model.members):
        raise ValueError(f"The member must be 0 to {len(model.members) - 1}; got {member}.")
    n_trees = len(model.members[member].trees.leaf_weight)
    if not 0 <= tree < n_trees:
        raise ValueError(f"The tree must be 0 to {n_trees - 1}; got {tree}.")


# Many rows ----------------------------------------------------------------------------------------------------------


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
        total = np.zeros((len(w), 2 * w.shape[1] + 1))
        for tree in range(len(w)):
            for _, _, reach in _walk(model, i, tree, x):
                total[tree] += reach.sum(axis=0)
        traffic.append(total / len(x))
    return Usage(reachable, traffic)


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
    column_of = np.array([j for j, _ in model.preprocessor.base_columns()])
    for i, (member, (w, _, o)) in enumerate(zip(model.members, model.folded, strict=True)):
        x, others = (each[member.encoding].astype(np.float64) for each in (inputs, usual))
        columns = column_of[model.preprocessor.encodings[member.encoding].source]
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
        left = left_probability(t / trees.gamma, trees.activation)
        reach = np.ones((len(t), 2 * n_splits + 1))
        for i in range(n_splits):
            reach[:, 2 * i + 1] = reach[:, i] * left[:, i]
            reach[:, 2 * i + 2] = reach[:, i] * (1 - left[:, i])
        yield rows, left, reach


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
    table = read_table(X)
    data = np.empty((table.n_rows, table.n_columns), dtype=object)
    for j, kind in enumerate(table.kinds):
        data[:, j] = table.labels(j) if kind == "category" else table.numbers(j)
    return shap.Explanation(values=values, base_values=np.array(base), data=data, feature_names=found.columns)
