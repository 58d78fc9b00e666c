"""Search for good hyperparameters: an Optuna study over their declared ranges, judged by cross-validation.

A `Search` says what is learned and how a trial is judged; `run_search` runs trials in a study that is kept in a
storage, so that it can be stopped, resumed and shared by several machines. After each fold a trial that does worse
than the median of the others is stopped. Needs optuna: pip install 'softwood[tune]'.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.model_selection import KFold, StratifiedKFold

from softwood.cli.metrics import compute_metrics
from softwood.cli.task import LearningTask
from softwood.estimators import TreeEnsembleClassifier, TreeEnsembleRegressor
from softwood.tabular.reading.table import read_table
from softwood.training.hyperparameters import SearchRange, SearchValues, all_declarations

try:
    import optuna
except ImportError as error:
    raise ImportError("Searching for parameters needs optuna: pip install 'softwood[tune]'.") from error

# Several processes may start one study at the same time.
_ATTEMPTS = 10


@dataclass(frozen=True)
class Best:
    """Outcome of a search: the best trial's parameters and score, and how many trials have ended."""

    params: dict[str, Any]
    metric: str
    value: float
    n_trials: int
    n_pruned: int


@dataclass(frozen=True, eq=False)
class Search:
    """What a trial does: cross-validate the parameters that it suggests.

    Classifications are judged by the area under the ROC curve, regressions by R²; more is better in both.
    """

    task: LearningTask
    n_folds: int = 5
    n_members: int = 1
    seed: int = 0
    n_jobs: int | None = None

    @property
    def metric(self) -> str:
        """Name of the metric that is maximised; see `softwood.cli.metrics.METRICS`."""
        return "roc_auc" if self.task.task == "classification" else "r2"

    def terms(self) -> dict[str, Any]:
        """What must be the same in all trials of a study for their scores to be comparable."""
        return {
            "metric": self.metric,
            "folds": self.n_folds,
            "members": self.n_members,
            "seed": self.seed,
            "rows": len(self.task.target),
            "columns": read_table(self.task.features).n_columns,
        }

    def suggest(self, trial: optuna.Trial) -> dict[str, Any]:
        """Hyperparameters drawn from their declared search ranges, which are those of the paper's appendix."""
        searched = {name: d.search for name, d in all_declarations().items() if d.search is not None}
        return {name: _draw(trial, name, search) for name, search in searched.items()}

    def folds(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Row numbers (training, test) of each fold, the same in every trial."""
        target = self.task.target
        if len(target) < self.n_folds:
            raise ValueError(f"{self.n_folds} folds need as many rows; there are {len(target)}. Use fewer folds.")
        options = {"n_splits": self.n_folds, "shuffle": True, "random_state": self.seed}
        if self.task.task == "regression":
            return list(KFold(**options).split(target))
        smallest = int(np.unique(target, return_counts=True)[1].min())
        if smallest < self.n_folds:
            raise ValueError(
                f"Each class needs a row in each of {self.n_folds} folds; the rarest has {smallest}. "
                "Use fewer folds, or leave out the rarest class."
            )
        return list(StratifiedKFold(**options).split(target, target))

    def __call__(self, trial: optuna.Trial) -> float:
        """Mean metric over folds; raises `optuna.TrialPruned` when the trial is not worth continuing."""
        kind = TreeEnsembleRegressor if self.task.task == "regression" else TreeEnsembleClassifier
        params = self.suggest(trial) | {"n_members": self.n_members}
        trial.set_user_attr("params", params)
        scores: list[float] = []
        for step, (training_rows, test_rows) in enumerate(self.folds()):
            training, test = self.task.take(training_rows), self.task.take(test_rows)
            kinds = self.task.column_kinds
            estimator = kind(**params, column_kinds=kinds, random_state=self.seed, n_jobs=self.n_jobs)
            try:
                estimator.fit(training.features, training.target)
            except FloatingPointError as error:  # too high a learning rate is a bad trial, not an error
                raise optuna.TrialPruned(str(error)) from error
            scores.append(compute_metrics(estimator, test.features, test.target)[self.metric])
            trial.report(float(np.mean(scores)), step)
            if step + 1 < self.n_folds and trial.should_prune():
                raise optuna.TrialPruned
        return float(np.mean(scores))


def _draw(trial: optuna.Trial, name: str, search: SearchRange | SearchValues) -> Any:
    if isinstance(search, SearchValues):
        return trial.suggest_categorical(name, list(search.values))
    if search.or_zero and not trial.suggest_categorical(f"with_{name}", [False, True]):
        return 0.0
    if isinstance(search.low, int) and isinstance(search.high, int):
        return trial.suggest_int(name, search.low, search.high, log=search.log)
    return trial.suggest_float(name, search.low, search.high, log=search.log)


def run_search(
    search: Search,
    *,
    study: str,
    storage: str | None = None,
    n_trials: int = 50,
    time_limit: float | None = None,
    quiet: bool = False,
    client: Any = None,
) -> Best:
    """Run trials of a new or existing study, and return its best trial.

    Parameters
    ----------
    search : Search
    study : str
        Its name in the storage.
    storage : str, optional
        Optuna storage URL, such as ``sqlite:///study.db``; in memory only if None.
    n_trials : int
        Trials to run now.
    time_limit : float, optional
        Start no further trial after this many seconds.
    quiet : bool
        Print no line for each trial.
    client : distributed.Client, optional
        Run each trial as a task on a Dask cluster. All workers must reach the storage.
    """
    search.folds()  # refuse a table that cannot be cross-validated before a study is made
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    made = _open_study(study, storage, search.seed)
    _require_same_search(made, search)
    try:
        if client is not None:
            _run_on_cluster(client, search, made, storage, n_trials, time_limit, quiet)
        else:
            made.optimize(search, n_trials=n_trials, timeout=time_limit, callbacks=[] if quiet else [_print_trial])
    except optuna.exceptions.StorageInternalError as error:
        raise ValueError(
            f"The storage {without_password(storage or '')!r} failed during the search ({_first_line(error)}). "
            "Finished trials are kept: run the same command to continue."
        ) from error
    best = _best(made, search.metric)
    if best is None:
        raise ValueError(f"No trial of study {study!r} was completed. Run more trials, or check the table.")
    return best


def _run_on_cluster(
    client: Any,
    search: Search,
    study: optuna.Study,
    storage: str | None,
    n_trials: int,
    time_limit: float | None,
    quiet: bool,
) -> None:
    """Run trials as tasks; what is lost with a worker, Dask runs again as a further trial."""
    from distributed import as_completed

    from softwood.dask.collections import find_client

    if storage is None:
        raise ValueError("A search on a cluster needs a storage that all workers can reach; got None. Set its URL.")
    find_client(client)
    deadline = None if time_limit is None else time.time() + time_limit
    sent = client.scatter(replace(search, n_jobs=search.n_jobs or 1), broadcast=True, hash=False)
    trials = [client.submit(_run_trial, sent, study.study_name, storage, deadline, pure=False) for _ in range(n_trials)]
    try:
        for trial in as_completed(trials):
            number = trial.result()
            if number is not None and not quiet:
                _print_trial(study, study.trials[number])
    finally:
        client.cancel(trials)


def _run_trial(search: Search, name: str, storage: str, deadline: float | None) -> int | None:
    """Run one trial and return its number; None if it is too late for another one."""
    if deadline is not None and time.time() > deadline:
        return None
    ended: list[int] = []
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = _open_study(name, storage, search.seed)
    study.optimize(search, n_trials=1, callbacks=[lambda _, trial: ended.append(trial.number)])
    return ended[0]


def best_so_far(search: Search, *, study: str, storage: str) -> Best | None:
    """The best of a study's trials, for a search that was interrupted; None if none is complete."""
    return _best(_open_study(study, storage, search.seed), search.metric)


def _open_study(name: str, storage: str | None, seed: int) -> optuna.Study:
    """Make a study, or open the one of that name."""
    for attempt in reversed(range(_ATTEMPTS)):
        try:
            # Seconds for which a process waits until another has written its trial.
            patient = {"engine_kwargs": {"connect_args": {"timeout": 60}}}
            is_file = storage is not None and storage.startswith("sqlite:")
            return optuna.create_study(
                study_name=name,
                storage=optuna.storages.RDBStorage(storage, **patient) if is_file else storage,
                direction="maximize",
                load_if_exists=True,
                # Processes that share a storage must not all draw the same.
                sampler=optuna.samplers.TPESampler(seed=None if storage else seed),
                pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
            )
        except Exception as error:  # whatever the database's driver raises
            if attempt == 0 or not _is_clash(error):
                shown = without_password(storage or "")
                raise ValueError(f"The storage {shown!r} cannot be opened ({_first_line(error)}). Check it.") from error
        time.sleep(0.2)  # another process was making the same tables: next time they are there
    raise AssertionError("the last attempt returns or raises")


def _require_same_search(study: optuna.Study, search: Search) -> None:
    """Refuse to continue a study whose scores cannot be compared with those of this search."""
    for name, value in search.terms().items():
        known = study.user_attrs.get(name, value)
        if known != value:
            raise ValueError(
                f"Study {study.study_name!r} was started with {name} = {known!r}; this search has {value!r}, so "
                "scores cannot be compared. Choose another --study name, or the same settings."
            )
        study.set_user_attr(name, value)


def _best(study: optuna.Study, metric: str) -> Best | None:
    """The best complete trial, and how many have ended (a trial that was killed never does)."""
    state = optuna.trial.TrialState
    states = [trial.state for trial in study.get_trials(deepcopy=False)]
    n_complete, n_pruned = states.count(state.COMPLETE), states.count(state.PRUNED)
    if n_complete == 0:
        return None
    params = dict(study.best_trial.user_attrs["params"])
    return Best(params, metric, study.best_value, n_complete + n_pruned, n_pruned)


def _is_clash(error: Exception) -> bool:
    """Whether a driver reports tables or rows that another process has created in the meantime."""
    said = f"{error} {error.__cause__}"
    return any(words in said for words in ("already exists", "UNIQUE constraint", "duplicate key", "Duplicate entry"))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def without_password(storage: str) -> str:
    """A storage URL as it may be shown.

    Examples
    --------
    >>> without_password("mysql://me:secret@host/studies")
    'mysql://me:***@host/studies'
    """
    return re.sub(r"(://[^:/@]*:)[^@]*@", r"\1***@", storage)


def _print_trial(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    complete = trial.state == optuna.trial.TrialState.COMPLETE
    try:
        best = f"{study.best_value:.4f} (trial {study.best_trial.number})"
    except ValueError:  # none is complete yet
        best = "none yet"
    outcome = f"{trial.value:.4f}" if complete else trial.state.name.lower()
    print(f"trial {trial.number}: {outcome}, best {best}", file=sys.stderr, flush=True)
