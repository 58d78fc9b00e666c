"""The learners that are compared, their search spaces, and how they are tuned and judged.

A `Learner` is a search space and a function that makes a classifier of what was drawn from it. `tune` looks for good
parameters by TPE and stratified 5-fold cross-validation inside the training rows, `fit_and_score` judges them on the
test rows. Spaces of TEL, XGBoost, logistic regression and CART are those of the paper's appendix.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, train_test_split

from paper.datasets import Split
from paper.runner import Record, Save

Params = dict[str, Any]
Space = dict[str, BaseDistribution]
N_FOLDS = 5

LEARNING_RATE = CategoricalDistribution((1e-1, 1e-2, 1e-3, 1e-4, 1e-5))
# The mixture of 0 and a log-uniform distribution: "l2" is drawn in every round and used in those with "with_l2".
L2: Space = {"with_l2": CategoricalDistribution((False, True)), "l2": FloatDistribution(1e-8, 1e2, log=True)}


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
        The first round's parameters, a point of the space. A short search then never ends with nothing sensible.
    """

    title: str
    make: Callable[[Params, int, int], Any]
    space: Space = field(default_factory=dict)
    first: Params = field(default_factory=dict)


# The learners -------------------------------------------------------------------------------------------------------

TRAINING_SPACE: Space = {
    "learning_rate": LEARNING_RATE,
    "batch_size": CategoricalDistribution((32, 64, 128, 256, 512)),
    "max_epochs": IntDistribution(5, 100),
}
GAMMA = FloatDistribution(1e-4, 1.0, log=True)
FIRST_TRAINING: Params = {"learning_rate": 0.01, "batch_size": 64, "max_epochs": 50}


def make_tel(params: Params, seed: int, threads: int) -> Any:
    """One ensemble of this library on standardised columns; what the space does not name stands at its default.

    The number of epochs is tuned and the last one kept, as in the paper: no rows are held out of a fit.
    """
    from softwood import TreeEnsembleClassifier

    plain = {"n_members": 1, "encoding": "standard", "validation_fraction": None, "patience": None}
    return TreeEnsembleClassifier(**{**plain, **params}, random_state=seed, n_jobs=threads)


def _make_tel_default(params: Params, seed: int, threads: int) -> Any:
    from softwood import TreeEnsembleClassifier

    return TreeEnsembleClassifier(**params, random_state=seed, n_jobs=threads)


def _make_xgboost(params: Params, seed: int, threads: int) -> Any:
    from xgboost import XGBClassifier

    names = {"l2": "reg_lambda"}
    params = {names.get(name, name): value for name, value in params.items()}
    return XGBClassifier(**params, min_child_weight=0, random_state=seed, n_jobs=threads)


def _make_lightgbm(params: Params, seed: int, threads: int) -> Any:
    from lightgbm import LGBMClassifier

    names = {"l2": "reg_lambda"}
    params = {names.get(name, name): value for name, value in params.items()}
    return LGBMClassifier(**params, random_state=seed, n_jobs=threads, verbose=-1)


def _make_catboost(params: Params, seed: int, threads: int) -> Any:
    from catboost import CatBoostClassifier

    names = {"l2": "l2_leaf_reg", "n_estimators": "iterations", "max_depth": "depth"}
    params = {names.get(name, name): value for name, value in params.items()}
    return CatBoostClassifier(
        **params, random_seed=seed, thread_count=threads, verbose=False, allow_writing_files=False
    )


def _make_logistic_regression(params: Params, seed: int, threads: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(**params, max_iter=1000)


def _make_cart(params: Params, seed: int, threads: int) -> Any:
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(**params, random_state=seed)


_BOOSTING: Space = {"learning_rate": LEARNING_RATE, "n_estimators": IntDistribution(1, 500)}
_FIRST_BOOSTING: Params = {"learning_rate": 0.1, "n_estimators": 100, "with_l2": True, "l2": 1.0}

LEARNERS = {
    "tel": Learner(
        "TEL",
        make_tel,
        {**TRAINING_SPACE, "gamma": GAMMA, "depth": IntDistribution(2, 8), "n_trees": IntDistribution(1, 100), **L2},
        {**FIRST_TRAINING, "gamma": 1.0, "depth": 4, "n_trees": 64, "with_l2": False, "l2": 1e-8},
    ),
    "xgboost": Learner(
        "XGBoost",
        _make_xgboost,
        {**_BOOSTING, "max_depth": IntDistribution(2, 20), **L2},
        {**_FIRST_BOOSTING, "max_depth": 6},
    ),
    "logistic_regression": Learner(
        "L2 logistic regression", _make_logistic_regression, {"C": FloatDistribution(1e-8, 1e4, log=True)}, {"C": 1.0}
    ),
    "cart": Learner("CART", _make_cart, {"max_depth": IntDistribution(2, 20)}, {"max_depth": 6}),
    "lightgbm": Learner(
        "LightGBM",
        _make_lightgbm,
        {**_BOOSTING, "num_leaves": IntDistribution(4, 256, log=True), **L2},
        {**_FIRST_BOOSTING, "num_leaves": 31},
    ),
    "catboost": Learner(
        "CatBoost",
        _make_catboost,
        {**_BOOSTING, "max_depth": IntDistribution(2, 8), **L2},
        {**_FIRST_BOOSTING, "max_depth": 6},
    ),
    "tel_default": Learner("TEL, defaults", _make_tel_default),
}


# Tuning and judging -------------------------------------------------------------------------------------------------


def auc(y: NDArray[np.int64], probability: NDArray[np.float64]) -> float:
    """Area under the ROC curve; with more than two classes the mean of each class against the rest.

    Examples
    --------
    >>> auc(np.array([0, 0, 1, 1]), np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5], [0.2, 0.8]]))
    0.75
    """
    if probability.shape[1] == 2:
        return float(roc_auc_score(y, probability[:, 1]))
    return float(np.mean([roc_auc_score(y == c, probability[:, c]) for c in np.unique(y)]))


def fit_and_score(learner: Learner, params: Params, split: Split, *, seed: int, threads: int) -> float:
    """AUC on the test rows after a fit on the training rows; 0.5 where training diverged.

    Without L2 and a least weight of leaves, boosting can divide by nothing, too.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the paper's settings make lbfgs stop at its limit; names of columns
        model = learner.make(used(params), seed, threads)
        try:
            model.fit(split.X_train, split.y_train)
        except Exception as error:
            # CatBoost's class, for linear systems without a solution, is known by name so that it need not be there.
            if isinstance(error, FloatingPointError) or type(error).__name__ == "CatBoostError":
                return 0.5
            raise
        probability = np.asarray(model.predict_proba(split.X_test), dtype=np.float64)
    return auc(split.y_test, probability) if np.isfinite(probability).all() else 0.5


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


def tune(
    learner: Learner, split: Split, *, rounds: int, seed: int, threads: int, saved: Record, save: Save
) -> tuple[Params, float]:
    """The best parameters of a number of rounds and their mean AUC over folds of the training rows.

    Parameters
    ----------
    saved : dict
        What an earlier call saved: its rounds are not repeated if they saw as many rows. The outcome is that of an
        uninterrupted search.
    save : callable
        Called with what there is after each round.
    """
    n_rows = len(split.y_train)
    trials = [dict(trial) for trial in saved.get("trials", [])] if saved.get("rows") == n_rows else []
    folds = list(StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed).split(split.X_train, split.y_train))
    while len(trials) < rounds:
        params = learner.first if not trials else _next_params(learner.space, trials, seed)
        scores = [
            fit_and_score(learner, params, _inner(split, training, test), seed=seed, threads=threads)
            for training, test in folds
        ]
        trials.append({"params": params, "auc": round(float(np.mean(scores)), 6)})
        save({"rows": n_rows, "trials": trials})
    best = max(trials[:rounds], key=lambda trial: trial["auc"])
    return best["params"], best["auc"]


def _next_params(space: Space, trials: list[Record], seed: int) -> Params:
    """What TPE draws after the given trials; by them and the seed alone, so that a search can be taken up again."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=1000 * seed + len(trials))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in trials:
        study.add_trial(optuna.create_trial(params=trial["params"], distributions=space, value=trial["auc"]))
    params = study.ask(fixed_distributions=space).params
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in params.items()}


def _inner(split: Split, training: NDArray[np.int64], test: NDArray[np.int64]) -> Split:
    return Split(split.X_train[training], split.y_train[training], split.X_train[test], split.y_train[test])


# The budget ---------------------------------------------------------------------------------------------------------


def add_tuning_options(parser: argparse.ArgumentParser, *, rounds: int) -> None:
    """The options that all experiments with tuning have."""
    parser.add_argument("--rounds", type=int, default=rounds, help=f"tuning rounds; default {rounds}, in the paper 50")
    parser.add_argument(
        "--tuning-rows", type=int, default=2000, help="training rows that tuning sees at most; default 2000, 0: all"
    )
    parser.add_argument("--full", action="store_true", help="the paper's protocol")


def tuning_budget(options: argparse.Namespace) -> dict[str, float | None]:
    """The budget of a tuned unit."""
    return {"rounds": options.rounds, "tuning_rows": options.tuning_rows or None}


def words_on_tuning(units: Mapping[str, Record]) -> str:
    """What went into the tuning of finished units, whose names begin with that of their set.

    Examples
    --------
    >>> budgets = {"a/tel": 10, "b/tel": 10, "c/tel": 5}
    >>> units = {key: {"result": {}, "budget": {"rounds": n, "tuning_rows": 2000}} for key, n in budgets.items()}
    >>> words_on_tuning(units)
    'Tuning rounds: 10, some of c: 5 (paper: 50). Training rows that tuning sees at most: 2000 (paper: all).'
    """
    sets_of: dict[int, set[str]] = {}
    rows = set()
    for key, record in units.items():
        if "result" in record and "rounds" in record["budget"]:
            sets_of.setdefault(record["budget"]["rounds"], set()).add(key.split("/")[0])
            rows.add(str(record["budget"]["tuning_rows"] or "all"))
    most, *fewer = sorted(sets_of, reverse=True)
    words = "".join(f", some of {', '.join(sorted(sets_of[rounds]))}: {rounds}" for rounds in fewer)
    return (
        f"Tuning rounds: {most}{words} (paper: 50). Training rows that tuning sees at most: "
        f"{', '.join(sorted(rows))} (paper: all)."
    )


def thinned(split: Split, max_rows: int | None, seed: int) -> Split:
    """The split with at most this many training rows (0 or None: all), stratified by class."""
    if not max_rows or len(split.y_train) <= max_rows:
        return split
    X, _, y, _ = train_test_split(
        split.X_train, split.y_train, train_size=max_rows, random_state=seed, stratify=split.y_train
    )
    return replace(split, X_train=X, y_train=y)
