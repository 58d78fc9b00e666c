"""The learners that are compared, and their search spaces.

A `Learner` is a search space and a function that makes a classifier of what was drawn from it. Spaces of TEL, XGBoost,
logistic regression and CART are those of the paper's appendix; where this library declares a range for a
hyperparameter, it comes from there. How they are tuned and judged is left to `paper.search`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from softwood.training.hyperparameters import SearchRange, SearchValues, all_declarations

Params = dict[str, Any]
Space = dict[str, BaseDistribution]


@dataclass(frozen=True)
class Learner:
    """One way to learn.

    Parameters
    ----------
    title : str
        How tables call it.
    make : callable
        (params, seed, threads) -> an unfitted classifier.
    space : dict
        What is tuned; empty for a learner that is used as it is.
    first : dict
        The first round's parameters, a point of the space. The report says how often the search beats it.
    version : int
        Raised when the learner changes, so that older units do not count.
    """

    title: str
    make: Callable[[Params, int, int], Any]
    space: Space = field(default_factory=dict)
    first: Params = field(default_factory=dict)
    version: int = 1


def declared_space(*names: str) -> Space:
    """Search ranges of this library's hyperparameters, as declared.

    A range with "or zero" becomes a coin and the range: the mixture of 0 and a log-uniform distribution.

    Examples
    --------
    >>> declared_space("depth")
    {'depth': IntDistribution(high=8, log=False, low=2, step=1)}
    >>> list(declared_space("l2"))
    ['with_l2', 'l2']
    """
    space: Space = {}
    for name in names:
        search = all_declarations()[name].search
        if isinstance(search, SearchValues):
            space[name] = CategoricalDistribution(search.values)
            continue
        assert isinstance(search, SearchRange), f"{name} has no declared search range"
        if search.or_zero:
            space[f"with_{name}"] = CategoricalDistribution((False, True))
        if isinstance(search.low, int) and isinstance(search.high, int):
            space[name] = IntDistribution(search.low, search.high, log=search.log)
        else:
            space[name] = FloatDistribution(search.low, search.high, log=search.log)
    return space


def used(params: Params) -> Params:
    """Parameters of a classifier, from those drawn: without the mixture's coin.

    Examples
    --------
    >>> used({"with_l2": False, "l2": 3.0}), used({"with_l2": True, "l2": 3.0})
    ({'l2': 0.0}, {'l2': 3.0})
    """
    params = dict(params)
    if not params.pop("with_l2", True):
        params["l2"] = 0.0
    return params


# How each is made ---------------------------------------------------------------------------------------------------


def make_tel_paper(params: Params, seed: int, threads: int) -> Any:
    """The paper's TEL: batch normalisation, linear splits without bias, constant rate, last epoch."""
    from softwood import TreeEnsembleClassifier

    return TreeEnsembleClassifier(recipe="paper", **params, random_state=seed, n_jobs=threads)


def make_tel_softwood(params: Params, seed: int, threads: int) -> Any:
    """One ensemble of this library; what `params` does not name stands at its default."""
    from softwood import TreeEnsembleClassifier

    return TreeEnsembleClassifier(**{"n_members": 1, **params}, random_state=seed, n_jobs=threads)


def _make_default(params: Params, seed: int, threads: int) -> Any:
    from softwood import TreeEnsembleClassifier

    return TreeEnsembleClassifier(**params, random_state=seed, n_jobs=threads)


def _make_xgboost(params: Params, seed: int, threads: int) -> Any:
    """Exact greedy splits: what version 0.90, the paper's, chose on tables of this size."""
    from xgboost import XGBClassifier

    params = _renamed(params, {"l2": "reg_lambda"})
    return XGBClassifier(**params, tree_method="exact", min_child_weight=0, random_state=seed, n_jobs=threads)


def _make_lightgbm(params: Params, seed: int, threads: int) -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(**_renamed(params, {"l2": "reg_lambda"}), random_state=seed, n_jobs=threads, verbose=-1)


def _make_catboost(params: Params, seed: int, threads: int) -> Any:
    from catboost import CatBoostClassifier

    params = _renamed(params, {"l2": "l2_leaf_reg", "n_estimators": "iterations", "max_depth": "depth"})
    fixed = {"random_seed": seed, "thread_count": threads, "verbose": False, "allow_writing_files": False}
    return CatBoostClassifier(**params, **fixed)


def _make_logistic_regression(params: Params, seed: int, threads: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(**params, max_iter=1000)


def _make_cart(params: Params, seed: int, threads: int) -> Any:
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(**params, random_state=seed)


def _renamed(params: Params, names: dict[str, str]) -> Params:
    return {names.get(name, name): value for name, value in params.items()}


# The learners -------------------------------------------------------------------------------------------------------

# The paper's grid of learning rates; this library declares a continuous range with the same ends.
_LEARNING_RATES: Space = {"learning_rate": CategoricalDistribution((1e-1, 1e-2, 1e-3, 1e-4, 1e-5))}
TRAINING_SPACE: Space = {**_LEARNING_RATES, **declared_space("batch_size", "max_epochs")}
FIRST_TRAINING: Params = {"learning_rate": 0.01, "batch_size": 64, "max_epochs": 50}

_BOOSTING: Space = {**_LEARNING_RATES, "n_estimators": IntDistribution(1, 500), **declared_space("l2")}
_FIRST_BOOSTING: Params = {"learning_rate": 0.1, "n_estimators": 100, "with_l2": True, "l2": 1.0}

LEARNERS = {
    "tel_paper": Learner(
        "TEL (paper)",
        make_tel_paper,
        {**TRAINING_SPACE, **declared_space("gamma", "depth", "n_trees", "l2")},
        {**FIRST_TRAINING, "gamma": 1.0, "depth": 4, "n_trees": 64, "with_l2": False, "l2": 1e-8},
    ),
    "tel_softwood": Learner(
        "TEL (softwood)",
        make_tel_softwood,
        declared_space("learning_rate", "gamma", "depth", "n_trees"),
        {**{name: all_declarations()[name].default for name in ("learning_rate", "gamma", "depth")}, "n_trees": 64},
    ),
    "xgboost": Learner(
        "XGBoost",
        _make_xgboost,
        {**_BOOSTING, "max_depth": IntDistribution(2, 20)},
        {**_FIRST_BOOSTING, "max_depth": 6},
    ),
    "logistic_regression": Learner(
        "L2 logistic regression", _make_logistic_regression, {"C": FloatDistribution(1e-8, 1e4, log=True)}, {"C": 1.0}
    ),
    "cart": Learner("CART", _make_cart, {"max_depth": IntDistribution(2, 20)}, {"max_depth": 6}),
    "lightgbm": Learner(
        "LightGBM",
        _make_lightgbm,
        {**_BOOSTING, "num_leaves": IntDistribution(4, 256, log=True)},
        {**_FIRST_BOOSTING, "num_leaves": 31},
    ),
    "catboost": Learner(
        "CatBoost",
        _make_catboost,
        {**_BOOSTING, "max_depth": IntDistribution(2, 8)},
        {**_FIRST_BOOSTING, "max_depth": 6},
    ),
    "default": Learner("softwood, defaults", _make_default),
}
