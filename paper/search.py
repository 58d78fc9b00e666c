"""How learners are tuned and judged: TPE over stratified 5-fold cross-validation inside the training rows.

A search is reproducible from its name alone, (set, learner, split): every random choice is seeded by it. Folds are
seeded by (set, split), so that all learners see the same ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.model_selection import StratifiedKFold, train_test_split

from paper.datasets import Split
from paper.learners import Learner, Params, used
from paper.runner import Record, Save

N_FOLDS = 5
# Part of the settings of each tuned unit: raise it when the search changes, and what older ones saved is discarded.
SEARCH_VERSION = 2
# Rounds before TPE starts to model what it has seen: the fixed first point and nine random ones.
N_STARTUP = 10


def seed_of(*parts: object) -> int:
    """A seed below 2^31 that depends on all parts.

    Examples
    --------
    >>> seed_of("pima", "cart", 0) == seed_of("pima", "cart", 0) != seed_of("pima", "cart", 1)
    True
    """
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "little") & (2**31 - 1)


@dataclass(frozen=True)
class Name:
    """What a search is about; all its seeds come from here."""

    table: str
    learner: str
    split: int

    def seed(self, purpose: str, *more: object) -> int:
        """Seed of one random choice."""
        return seed_of(purpose, self.table, self.learner, self.split, *more)

    @property
    def fold_seed(self) -> int:
        """Seed of the folds, the same for all learners."""
        return seed_of("folds", self.table, self.split)


def auc(y: NDArray[np.int64], probability: NDArray[np.float64]) -> float:
    """Area under the ROC curve; with more than two classes the mean of each class against the rest.

    Examples
    --------
    >>> auc(np.array([0, 0, 1, 1]), np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5], [0.2, 0.8]]))
    0.75
    """
    if probability.shape[1] == 2:
        return _rank_auc(y == 1, probability[:, 1])
    return float(np.mean([_rank_auc(y == c, probability[:, c]) for c in np.unique(y)]))


def _rank_auc(positive: NDArray[np.bool_], score: NDArray[np.float64]) -> float:
    """The same as scikit-learn's `roc_auc_score`, whose checks take longer than many a fit here."""
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    if not n_positive or not n_negative:
        raise ValueError(f"AUC needs rows of both kinds; got {n_positive} positive and {n_negative} negative ones.")
    ranks = rankdata(score)[positive].sum()
    return float((ranks - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def fit_and_score(learner: Learner, params: Params, split: Split, *, seed: int, threads: int) -> tuple[float, Any]:
    """AUC on the test rows after a fit on the training rows, and the model; 0.5 and None where training diverged.

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
                return 0.5, None
            raise
        probability = np.asarray(model.predict_proba(split.X_test), dtype=np.float64)
    return (auc(split.y_test, probability), model) if np.isfinite(probability).all() else (0.5, None)


@dataclass(frozen=True)
class Found:
    """Outcome of a search: the best parameters and their round, their mean AUC over folds, and the first point's."""

    params: Params
    auc: float
    first_auc: float
    best_round: int

    def record(self) -> Record:
        """For a unit's result."""
        return {
            "validation_auc": self.auc,
            "first_auc": self.first_auc,
            "best_round": self.best_round,
            "params": self.params,
        }


def tune(learner: Learner, name: Name, split: Split, *, rounds: int, threads: int, saved: Record, save: Save) -> Found:
    """The best parameters of a number of rounds.

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
    cross = StratifiedKFold(N_FOLDS, shuffle=True, random_state=name.fold_seed)
    parts = [inner_split(split, *fold) for fold in cross.split(split.X_train, split.y_train)]
    known = {_identity(trial["params"]): trial["auc"] for trial in trials}
    while len(trials) < rounds:
        params = _next_params(learner, name, trials)
        if _identity(params) not in known:  # what was drawn before scores the same, as seeds do not depend on the round
            scores = [
                fit_and_score(learner, params, part, seed=name.seed("fold", i), threads=threads)[0]
                for i, part in enumerate(parts)
            ]
            known[_identity(params)] = float(np.mean(scores))
        trials.append({"params": params, "auc": known[_identity(params)]})
        save({"rows": n_rows, "trials": trials})
    scores = [trial["auc"] for trial in trials[:rounds]]
    best = int(np.argmax(scores))
    return Found(trials[best]["params"], scores[best], scores[0], best)


def _next_params(learner: Learner, name: Name, trials: list[Record]) -> Params:
    """What TPE draws after the given trials: by them and the name alone, so that a search can be taken up again."""
    import optuna

    if not trials:
        return dict(learner.first)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(n_startup_trials=N_STARTUP, seed=name.seed("round", len(trials)))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in trials:
        study.add_trial(optuna.create_trial(params=trial["params"], distributions=learner.space, value=trial["auc"]))
    params = study.ask(fixed_distributions=learner.space).params
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in params.items()}


def _identity(params: Params) -> str:
    """The same for parameters that make the same classifier."""
    return json.dumps(used(params), sort_keys=True)


def draw_points(learner: Learner, name: Name, number: int) -> list[Params]:
    """The first points of a search in which all score the same: the first is fixed, the others are random."""
    trials: list[Record] = []
    for _ in range(number):
        trials.append({"params": _next_params(learner, name, trials), "auc": 0.5})
    return [trial["params"] for trial in trials]


def inner_split(split: Split, training: NDArray[np.int64], test: NDArray[np.int64]) -> Split:
    """Training and test rows of a fold of the training rows."""
    return Split(split.X_train[training], split.y_train[training], split.X_train[test], split.y_train[test])


# The budget ---------------------------------------------------------------------------------------------------------

Budget = dict[str, "float | None"]
EXACT: Budget = {"rounds": 50, "tuning_rows": None}
EXACT_SPLITS = 15
REDUCED: Budget = {"rounds": 25, "tuning_rows": 5000}


def settings_of(learner: Learner) -> Record:
    """Settings of a tuned unit: versions of the search and of the learner."""
    return {"search": SEARCH_VERSION, "learner": learner.version}


def add_tuning_options(parser: argparse.ArgumentParser) -> None:
    """The options that all experiments with tuning have."""
    rounds, rows = EXACT["rounds"], REDUCED["tuning_rows"]
    parser.add_argument("--rounds", type=int, default=rounds, help=f"tuning rounds; default {rounds}, as in the paper")
    parser.add_argument(
        "--tuning-rows",
        type=int,
        default=0,
        help=f"training rows that tuning sees at most; default 0: all, as in the paper; {rows} in reduced runs",
    )


def tuning_budget(options: argparse.Namespace) -> Budget:
    """The budget of a tuned unit."""
    return {"rounds": options.rounds, "tuning_rows": options.tuning_rows or None}


def thinned(split: Split, max_rows: int | None, seed: int) -> Split:
    """The split with at most this many training rows (0 or None: all), stratified by class."""
    if not max_rows or len(split.y_train) <= max_rows:
        return split
    X, _, y, _ = train_test_split(
        split.X_train, split.y_train, train_size=max_rows, random_state=seed, stratify=split.y_train
    )
    return replace(split, X_train=X, y_train=y)
