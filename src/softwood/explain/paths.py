"""The way of one row through a model: what it reaches, what that adds to the scores, and the splits in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood import reference
from softwood.explain.split_rules import SplitRule, split_rule
from softwood.explain.tree_view import check_tree
from softwood.model.member_rows import MemberRows, member_rows
from softwood.model.model import Model, model_of


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
    members = model.rows(one)
    trees = [_tree_path(rows, i, tree, len(members)) for i, rows in enumerate(members) for tree in range(rows.n_trees)]
    offset = np.asarray(np.mean([member.trees.offset for member in model.members], axis=0, dtype=np.float64))
    scores = model.raw_scores(one)
    return DecisionPath(trees, offset, scores[0], model.head.predictions(scores)[0])


def _one_row(model: Model, X: Any, row: int) -> Any:
    table = model.program.read(X)
    if not 0 <= row < table.n_rows:
        raise ValueError(f"The row must be 0 to {table.n_rows - 1}, as the table has {table.n_rows}; got {row}.")
    return table.rows(row, row + 1)


def _tree_path(rows: MemberRows, member: int, tree: int, n_members: int) -> TreePath:
    """The way of the first row."""
    t, leaf_weight = rows.split_values(tree)[0], rows.leaf_weight[tree]
    routing = reference.route(t, rows.activation, rows.gamma)
    reach, left, leaves = {0: 1.0}, {}, {}
    waiting = [0]
    while waiting:
        i = waiting.pop()
        if i >= len(t):
            leaves[i] = reach[i] * leaf_weight[i - len(t)] / n_members
            continue
        left[i] = float(routing.left[i])
        for child, probability in ((2 * i + 1, left[i]), (2 * i + 2, float(routing.right[i]))):
            if probability > 0:
                reach[child] = reach[i] * probability
                waiting.append(child)
    return TreePath(member, tree, left, dict(sorted(reach.items())), dict(sorted(leaves.items())))


def rules(estimator: Any, X: Any, row: int = 0, *, member: int = 0, tree: int = 0) -> list[SplitRule]:
    """The splits that one row meets on its most likely path through one tree, in units of the table.

    ``str(rule)`` is a sentence; `softwood.explain.split_rules.SplitRule` has the numbers behind it.

    Examples
    --------
    >>> from softwood import TreeEnsembleRegressor
    >>> X = np.random.default_rng(0).normal(size=(300, 1)) * 10 + 50
    >>> settings = {"n_members": 1, "n_trees": 1, "depth": 1, "gamma": 0.1, "random_state": 0, "encoding": "standard"}
    >>> regressor = TreeEnsembleRegressor(**settings).fit(X, X[:, 0] > 50)
    >>> [rule] = rules(regressor, [[80.0]])
    >>> rule.terms[0].name, rule.goes_left in (True, False)
    ('x0', True)
    """
    model = model_of(estimator)
    check_tree(model, member, tree)
    one = _one_row(model, X, row)
    base = model.preprocessor.read(one)
    rows = member_rows(model, member, base)
    path = _tree_path(rows, member, tree, len(model.members))
    return [split_rule(model, member, tree, i, base[0], path.left[i]) for i in path.hard_path[:-1]]
