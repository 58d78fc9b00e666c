"""Scikit-learn estimators: `TreeEnsembleClassifier` and `TreeEnsembleRegressor`.

A table and labels or numbers go in, a fitted `softwood.model.Model` comes out as `model_`. This module only has what
scikit-learn's conventions ask for: checks of X and y, labels, tags. Parameters are declared in
`softwood.training.hyperparameters`, training is done by `softwood.tabular.fit`, prediction by `softwood.model`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from softwood.model.model import Model
from softwood.tabular.committee import RunOptions
from softwood.tabular.distillation.compress import Limits, can_teach, compress_model
from softwood.tabular.distillation.compression import Compression
from softwood.tabular.evaluation import read_evaluation_sets
from softwood.tabular.fit import FitResult, restart
from softwood.tabular.fitted import FittedAttributes
from softwood.tabular.loading import plain_parameters
from softwood.tabular.out_of_core.files import TableFiles, are_files, first_rows, is_long, open_files, read_whole
from softwood.tabular.out_of_core.fit_files import prepare, train_on_rows
from softwood.tabular.reading.table import Table, read_table, require_table, resolve_columns, resolve_kinds
from softwood.tabular.selection import train_on_selected, train_on_selected_piece
from softwood.tabular.target import Problem, TargetKind, add_offset, has_several_columns
from softwood.tabular.threads import threads_for
from softwood.training import TrainedMember
from softwood.training.checkpoint import prepare_checkpoint
from softwood.training.declaration import check, declarations, n_bytes, parameters_section
from softwood.training.hyperparameters import ClassifierHyperparameters, Hyperparameters, apply_recipe

if TYPE_CHECKING:
    from typing import Self


_ATTRIBUTES = """\
    model_ : Model
        The fitted model.
    chosen_parameters_ : dict
        Value chosen for each parameter that was "auto".
    oof_prediction_ : ndarray [n, k] or [n]
        Out-of-fold predictions of the training rows, by members that held them out: probabilities, or values of a
        regression. NaN where no member held a row out (with 4 members, a third of the rows). Only after `fit` of
        a table in memory without an `eval_set`.
    compression_ : Compression
        Sizes, time and score before and after `compress` or `compact=True`.
    feature_importances_ : ndarray [p]
        Importance of each column; they sum to 1.
    selected_columns_ : ndarray [at most max_columns]
        Columns that predictions need: their names, or numbers if the table had no names.
    n_parameters_ : ParameterCounts
        Number of weights that were `trainable`, that are `stored`, and that a row reads on average (`read`).
    n_iter_ : int
        Number of epochs that were trained.
    best_epoch_ : ndarray [members]
        Epoch of which each member keeps its trees, counted from 0.
    best_score_ : float
        Mean over members of the `eval_metric` (the loss without one) on the validation rows in the best epoch.
    history_ : dict of str to list
        Losses and metrics of each epoch of each member; ``pandas.DataFrame(estimator.history_)`` is a tidy table.
    n_features_in_ : int
        Number of columns p.
    feature_names_in_ : ndarray [p]
        Names of the columns, if the table had names."""


class _TreeEnsemble(Hyperparameters, FittedAttributes, BaseEstimator):
    """What both estimators share."""

    classes_: Any  # an array; a list of arrays if rows may have several labels
    label_names_: np.ndarray
    compression_: Compression  # of the copy that `compress` makes, or of a fit with `compact`

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        eval_set: Any = None,
        *,
        offset: ArrayLike | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 30.0,
        resume: bool = False,
        cache: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Train on a table, in memory or in Parquet files.

        Files of more than 16,777,216 cells (rows times columns) are not read into memory: two passes over them write
        encoded rows to a cache, from which each epoch reads blocks in random order. `memory_limit` bounds the memory
        that this takes. The result is the same, to the bit, for any limit and number of threads; it differs from that
        of a table in memory, whose rows are shuffled all at once. There is no `oof_prediction_`, and each member holds
        out at most 262,144 rows. Files of fewer cells are read, and the result is that of the table in memory.

        Ctrl-C stops training within one step and raises KeyboardInterrupt. The estimator then holds the best epoch so
        far and can be used.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame [n, p]; or Parquet files
            Columns may hold numbers, booleans, strings, categories or dates. Cells may be missing. Files are named by a
            path, a list of paths, a glob such as ``data/*.parquet``, a folder, or a pyarrow dataset (extra "parquet").
        y : array-like [n], or [n, t] for a regression with t targets, or [n, k] for k labels of a classifier
            Class labels, or numbers; for several labels per row, a column of 0 and 1 for each label. Where X names
            files, the name of the target's column, or a list of names.
        sample_weight : array-like [n], optional
            Weights of the rows. A weight of 2 is equivalent to repeating the row, 0 to leaving it out. Where X names
            files, the name of a column; so are offsets.
        eval_set : tuple (X, y), (X, y, sample_weight) or (X, y, sample_weight, offset), or a list of them, optional
            Rows that decide the best epoch. Of several sets the last one decides, and `history_` has the losses of all
            ("validation_0_loss", ...). Without any, each member holds out a part of X.
        offset : array-like [n], or [n, t] or [n, classes], optional
            Known part of each row's prediction, on the scale of the raw scores: log-odds for classes, the logarithm of
            the exposure for a Poisson, gamma or Tweedie loss, units of the target otherwise. Training learns the rest.
            `predict` needs the offsets of its rows again.
        checkpoint : path, optional
            File that the state of training is saved to. If a save fails, there is a warning and training continues.
        checkpoint_every : float, default=30
            Seconds between two saves.
        resume : bool, default=False
            Continue from `checkpoint` if that file exists, with its seed if `random_state` is None.
        cache : path, optional
            Folder for the encoded rows of files. A later fit of the same files with the same columns, target and bins
            reads them from there; a cache of other files or settings is refused. Without it they lie in temporary
            files, which vanish with the fit.

        Returns
        -------
        self
        """
        if are_files(X):
            return self._fit_files(
                open_files(X, y, sample_weight, offset),
                eval_set,
                checkpoint=checkpoint,
                checkpoint_every=checkpoint_every,
                resume=resume,
                cache=cache,
            )
        params = self._checked_params()
        previous: Model | None = self.model_ if self.warm_start and hasattr(self, "model_") else None
        if previous is not None and (hasattr(self, "compression_") or self.compact is True):
            params = {**params, "depth": previous.members[0].trees.leaf_weight.shape[1].bit_length() - 1}
        table = self._read(X, reset=previous is None)
        problem = self._problem(y, table.n_rows, sample_weight, first=previous is None).with_offset(offset)
        self._keep_classes(problem.task, problem.classes)
        validation = self._read_eval_sets(eval_set, table, has_offset=offset is not None)
        run = self._run_options(checkpoint, checkpoint_every, resume)
        fitted = train_on_selected(table, problem, params, run, validation=validation, previous=previous)
        return self._take_over(fitted, table, problem, may_become_small=previous is None)

    def _run_options(
        self, checkpoint: str | os.PathLike[str] | None, checkpoint_every: float, resume: bool
    ) -> RunOptions:
        seed = prepare_checkpoint(checkpoint, resume=resume)
        seed = self._seed() if seed is None or self.random_state is not None else seed
        return RunOptions(seed, threads_for(self.n_jobs), checkpoint, resume, checkpoint_every, self._fit_members())

    def _take_over(self, fitted: FitResult, table: Table, problem: Problem, *, may_become_small: bool) -> Self:
        """Fitted attributes of a fit; table and problem are what a small model may be taught from."""
        self._pieces: FitResult | None = None
        self._keep(fitted.model)
        self.__dict__.pop("compression_", None)
        self.chosen_parameters_ = fitted.chosen
        self.__dict__.pop("oof_prediction_", None)
        if fitted.oof_scores is not None:
            self.oof_prediction_ = fitted.model.head.predictions(fitted.oof_scores)
        if any(member.stopped_by == "interrupt" for member in fitted.trained):
            raise KeyboardInterrupt("Training was interrupted; the estimator holds the best epoch so far.")
        if fitted.chosen.get("compact", self.compact) is True and may_become_small:
            self._become_small(table, problem)
        return self

    def _fit_files(
        self,
        files: TableFiles,
        eval_set: Any = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 30.0,
        resume: bool = False,
        cache: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Train on a table in files, which is read whole if it is short."""
        if not is_long(files):
            X, y, weight, offset = read_whole(files)
            options: dict[str, Any] = {"checkpoint": checkpoint, "checkpoint_every": checkpoint_every, "resume": resume}
            return self.fit(X, y, weight, eval_set, offset=offset, **options)
        params = self._checked_params()
        usual = {"recipe": "softwood", "encoding": "auto", "batch_norm": False, "l2": 0, "warm_start": False}
        for name, value in usual.items():
            if params[name] != value:
                raise ValueError(
                    f"Files that are not read into memory require {name}={value!r}; got {params[name]!r}. Leave it at "
                    "its default, or read the table and fit to it in memory."
                )
        if self._target_kind().is_classification and not isinstance(files.target, str):
            raise ValueError(
                f"A classifier of files that are not read into memory has one target; got {files.target}. Fit one per "
                "label, or read the table and fit to it in memory."
            )
        table = self._read(first_rows(files), reset=True)
        run = self._run_options(checkpoint, checkpoint_every, resume)
        folder = None if cache is None else Path(cache)
        prepared = prepare(
            files,
            self._target_kind(),
            params,
            run,
            kinds=table.kinds,
            folder=folder,
            memory_limit=n_bytes(params["memory_limit"]),
        )
        with prepared.cache:
            self._keep_classes(prepared.outline.problem.task, prepared.outline.target.classes)
            kinds = [prepared.codes.get(name, kind) for name, kind in zip(files.features, table.kinds, strict=True)]
            known = replace(table, kinds=tuple(kinds))
            validation = self._read_eval_sets(eval_set, known, has_offset=files.offset is not None)
            fitted = train_on_rows(prepared, params, run, validation=validation)
        return self._take_over(fitted, *prepared.sampled(), may_become_small=True)

    def _become_small(self, table: Table, problem: Problem) -> None:
        """Put a taught ensemble in the place of the members; they stay where there is too little to teach from."""
        rows = np.flatnonzero(problem.weight)
        if can_teach(self.model_, len(rows)):
            known = self.model_.program.read(table.take(rows))
            self._learn_from(self.model_, known, problem.given_y[rows], Limits())

    def _partial_fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None) -> Self:
        params = self._checked_params()
        is_first = not hasattr(self, "model_")
        table = self._read(X, reset=is_first)
        problem = self._problem(y, table.n_rows, sample_weight, first=is_first and not hasattr(self, "classes_"))
        self._keep_classes(problem.task, problem.classes)
        run = RunOptions(self._seed(), threads_for(self.n_jobs))
        previous: FitResult | None = None if is_first else getattr(self, "_pieces", None) or restart(self.model_)
        fitted = train_on_selected_piece(table, problem, params, run, previous=previous)
        self._pieces = fitted
        self._keep(fitted.model)
        return self

    def _fit_members(self) -> Callable[..., list[TrainedMember]] | None:
        """What trains the members, where it is not this process."""
        return None

    def _keep_classes(self, task: str, classes: np.ndarray | None) -> None:
        """Fitted attributes that name the classes, or the labels of which a row may have several."""
        self.__dict__.pop("label_names_", None)
        if task == "multilabel":
            assert classes is not None
            self.label_names_ = classes
            self.classes_ = [np.arange(2) for _ in classes]
        elif classes is not None:
            self.classes_ = classes

    def _keep(self, model: Model) -> None:
        self.model_ = model
        self.model_.has_column_names = hasattr(self, "feature_names_in_")

    def _checked_params(self) -> dict[str, Any]:
        params = self.get_params(deep=False)
        check(params, declarations(type(self)))
        return apply_recipe(params)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _read(self, X: Any, *, reset: bool) -> Table:
        """Read a table for fitting (`reset`), or one that must be like that of the fit."""
        if reset:
            table = read_table(X)
            validate_data(self, X if table.names else np.empty((1, table.n_columns)), reset=True, skip_check_array=True)
            declared = dict.fromkeys(resolve_columns(self.categorical_features, table), "category")
            declared |= resolve_kinds(self.column_kinds, table)
            return read_table(table, declared=declared) if declared else table
        require_table(X)
        if getattr(X, "ndim", 2) == 2 and not self.model_.given_columns:  # other shapes are refused below
            validate_data(self, X, reset=False, skip_check_array=True)
        return self.model_.program.read(X)

    def _read_eval_sets(self, eval_set: Any, table: Table, *, has_offset: bool) -> list[tuple[Table, Problem]]:
        check_targets = partial(self._problem, first=False)
        return read_evaluation_sets(eval_set, self._reader_like(table), check_targets, has_offset=has_offset)

    def _reader_like(self, table: Table) -> Callable[[Any], Table]:
        """What reads further tables with the columns of one that is about to be fitted."""
        if table.is_known:
            return self.model_.program.read
        must_match = hasattr(self, "feature_names_in_")
        return partial(read_table, kinds=table.kinds, names=table.names, must_match=must_match)

    def _checked(self, X: Any) -> Any:
        """X with the columns of the fit, for a method of `model_`; an error if there is no model yet."""
        if not hasattr(self, "model_"):
            check_is_fitted(self, "model_")
        if type(X) is np.ndarray and X.shape[1:] == (self.n_features_in_,) and not hasattr(self, "feature_names_in_"):
            return X  # nothing to find, and scikit-learn's checks take longer than the prediction of a row
        return self._read(X, reset=False)

    def _problem(self, y: Any, n_rows: int, sample_weight: Any, *, first: bool) -> Problem:
        raise NotImplementedError

    def _target_kind(self) -> TargetKind:
        raise NotImplementedError

    def _raw_scores(self, X: Any, offset: ArrayLike | None = None) -> NDArray[np.float64]:
        table = self._checked(X)
        scores = self.model_.raw_scores(table, n_threads=threads_for(self.n_jobs, X))
        if offset is None:
            return scores
        return add_offset(self.model_.head, scores, offset)

    def _predictions(self, X: Any, offset: ArrayLike | None) -> np.ndarray:
        if offset is not None:
            scores = self._raw_scores(X, offset)
            head = self.model_.head
            return head.predictions(scores) if head.classes is None else head.lowered().labels(scores)
        table = self._checked(X)
        return self.model_.predict(table, n_threads=threads_for(self.n_jobs, X))

    def apply(self, X: Any) -> NDArray[np.int64]:
        """Return the number of the most probable leaf of each row in each tree [n, members, trees].

        Leaves of a tree are numbered from left to right, from 0. A row may reach several leaves of a soft tree;
        `softwood.explain.decision_path` shows all of them.
        """
        table = self._checked(X)
        from softwood.explain.leaves import most_probable_leaves

        return most_probable_leaves(self.model_, table)

    def compress(
        self,
        X: Any,
        y: ArrayLike | None = None,
        *,
        max_parameters: int | None = None,
        max_loss: float | None = None,
    ) -> Self:
        """Teach one small ensemble to predict what this model predicts.

        A few trees take the place of all members: the file becomes a fraction, predictions become faster, and a row
        reaches fewer leaves. With neither limit, the size is chosen so that predictions stay almost the same.

        Parameters
        ----------
        X : table [n, p]
            Rows like those that will be predicted, such as the training table. Further rows near them are made up.
        y : array-like, optional
            Their targets, to measure the cost in accuracy or R² on rows that the teaching did not see. If the model was
            trained on X, both scores are too good, and their difference is what counts.
        max_parameters : int, optional
            Largest number of stored values.
        max_loss : float, optional
            Expected relative rise of the loss at most, such as 0.01; the smallest ensemble that keeps to it is taken,
            or the best of those tried. See `Compression.expected_loss`.

        Returns
        -------
        estimator
            A fitted copy. Its attribute `compression_` is a `softwood.tabular.distillation.compression.Compression`:
            sizes, time and score before and after.

        Examples
        --------
        >>> from sklearn.datasets import load_breast_cancer
        >>> import softwood
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> large = softwood.TreeEnsembleClassifier(random_state=0).fit(X[:400], y[:400])
        >>> small = large.compress(X[:400], y[:400])
        >>> small.compression_.before.n_parameters > 5 * small.compression_.after.n_parameters
        True
        """
        check_is_fitted(self, "model_")
        table = self._read(X, reset=False)
        targets = None if y is None else np.asarray(y)
        small = copy.copy(self)
        small._pieces = None
        small._learn_from(self.model_, table, targets, Limits(max_parameters, max_loss))
        return small

    def _learn_from(self, model: Model, table: Table, targets: np.ndarray | None, limits: Limits) -> None:
        """Hold the small model that `model` teaches, with what that cost as `compression_`."""
        small, self.compression_ = compress_model(
            model,
            table,
            targets,
            limits,
            monotonic_cst=self.monotonic_cst,
            seed=self._seed(),
            n_threads=threads_for(self.n_jobs),
        )
        self._keep(small)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a safetensors file, which `softwood.load` reads."""
        check_is_fitted(self, "model_")
        params = plain_parameters(self.get_params(deep=False))
        self.model_.estimator = {"class": type(self).__name__, "params": params, "has_metric": self._has_metric}
        self.model_.save(path)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """The constructor call; after a fit also what "auto" became."""
        call = super().__repr__(N_CHAR_MAX)
        chosen = ", ".join(f"{name}={value!r}" for name, value in getattr(self, "chosen_parameters_", {}).items())
        return f"{call}, fitted with {chosen}" if chosen else call

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags


class TreeEnsembleClassifier(ClassifierMixin, ClassifierHyperparameters, _TreeEnsemble):
    __doc__ = f"""Classifier made of soft decision trees that are trained jointly by gradient descent.

    It averages the scores of several members. Each member is an ensemble of soft trees, trained on a different part of
    the rows. Tables need no preparation: numbers, booleans, strings, categories, dates and missing cells are encoded.

    Parameters
    ----------
{parameters_section(ClassifierHyperparameters)}

    Attributes
    ----------
    classes_ : ndarray [k]
        Class labels. A list of k arrays, each with 0 and 1, if y has a column for each of k labels.
    label_names_ : ndarray [k]
        Names of the labels, or their numbers; only if y has a column for each of k labels.
{_ATTRIBUTES}

    **Shape**: X [n, p], y [n]; `predict` gives [n], `predict_proba` [n, k] for k classes. Rows that may have several of
    k labels at once: y [n, k] of 0 and 1; `predict` gives [n, k], `predict_proba` [n, k] with the probability of each
    label.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> classifier = TreeEnsembleClassifier(n_members=1, random_state=0).fit(X[:400], y[:400])
    >>> bool(classifier.score(X[400:], y[400:]) > 0.95)
    True
    """

    def partial_fit(
        self, X: Any, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Train for one epoch on one piece of a larger table.

        The first piece decides how columns are encoded, so it should be a representative sample of a few thousand rows
        or more. There is no early stopping, and the learning rate is constant.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        classes : array-like, optional
            All classes that will occur. The first call needs it unless its y holds them all, or has a column for each
            label.

        Returns
        -------
        self
        """
        if classes is not None and not hasattr(self, "model_") and not has_several_columns(y):
            self.classes_ = np.unique(np.asarray(classes))
        return self._partial_fit(X, y, sample_weight)

    def _problem(self, y: Any, n_rows: int, sample_weight: Any, *, first: bool) -> Problem:
        labels = None if first else getattr(self, "label_names_", None)
        classes = None if first or labels is not None else self.classes_
        return replace(self._target_kind(), classes=classes, labels=labels).problem(y, n_rows, sample_weight)

    def _target_kind(self) -> TargetKind:
        return TargetKind(True, self.loss, self.class_weight)

    def decision_function(self, X: Any, offset: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return raw scores [n, k] of k classes or labels; for two classes [n], positive for the second class."""
        scores = self._raw_scores(X, offset)
        return scores[:, 0] if self.model_.head.task == "binary" else scores

    def predict_log_proba(self, X: Any, offset: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return the logarithm of the probability of each class or label [n, k].

        Computed from the raw scores, so that a probability too small for a float still has one.
        """
        scores = self._raw_scores(X, offset)
        if self.model_.head.task == "multilabel":
            return -np.logaddexp(0, -scores)
        if self.model_.head.task == "binary":
            scores = np.column_stack([np.zeros(len(scores)), scores[:, 0]])
        return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)

    def predict_proba(self, X: Any, offset: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return the probability of each class or label [n, k]."""
        if offset is not None:
            scores = self._raw_scores(X, offset)  # first, because it raises the error if there is no model yet
            return self.model_.head.predictions(scores)
        table = self._checked(X)
        return self.model_.predict_proba(table, n_threads=threads_for(self.n_jobs, X))

    def predict(self, X: Any, offset: ArrayLike | None = None) -> np.ndarray:
        """Return the most probable class of each row [n], or 1 for each label it has [n, k]; `offset` as in `fit`."""
        return self._predictions(X, offset)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class TreeEnsembleRegressor(RegressorMixin, _TreeEnsemble):
    __doc__ = f"""Regressor made of soft decision trees that are trained jointly by gradient descent.

    It averages the predictions of several members. Each member is an ensemble of soft trees, trained on a different
    part of the rows. Tables need no preparation: numbers, booleans, strings, categories, dates and missing cells are
    encoded, and targets are standardised where the loss allows it.

    Parameters
    ----------
{parameters_section(Hyperparameters)}

    Attributes
    ----------
{_ATTRIBUTES}

    **Shape**: X [n, p], y [n] or [n, t] for t targets; `predict` gives the shape of y.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> regressor = TreeEnsembleRegressor(n_members=2, random_state=0).fit(X[:300], y[:300])
    >>> bool(regressor.score(X[300:], y[300:]) > 0.4)
    True
    """

    def partial_fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train for one epoch on one piece of a larger table; see `TreeEnsembleClassifier.partial_fit`.

        The first piece also decides how the target is standardised.
        """
        return self._partial_fit(X, y, sample_weight)

    def _problem(self, y: Any, n_rows: int, sample_weight: Any, *, first: bool) -> Problem:
        return self._target_kind().problem(y, n_rows, sample_weight)

    def _target_kind(self) -> TargetKind:
        return TargetKind(False, self.loss)

    def predict(self, X: Any, offset: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return predicted values: [n], or [n, t] for t targets, with one more axis for several quantiles.

        Parameters
        ----------
        X : table [n, p]
        offset : array-like, optional
            As in `fit`, of these rows.

        Examples
        --------
        Counts with a known exposure:

        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X, exposure = rng.normal(size=(300, 2)), rng.uniform(1, 10, 300)
        >>> counts = rng.poisson(exposure * np.exp(X[:, 0] / 2))
        >>> model = TreeEnsembleRegressor(loss="poisson", n_members=1, random_state=0)
        >>> model = model.fit(X, counts, offset=np.log(exposure))
        >>> rates = model.predict(X)  # for an exposure of 1
        >>> bool(np.allclose(model.predict(X, offset=np.log(exposure)), rates * exposure))
        True
        """
        return self._predictions(X, offset)

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return R² of the predictions; of several quantiles, of those nearest to the median."""
        from sklearn.metrics import r2_score

        predicted = self.predict(X)
        return float(r2_score(y, self.model_.head.central(predicted), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
