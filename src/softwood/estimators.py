"""Scikit-learn estimators: `TreeEnsembleClassifier` and `TreeEnsembleRegressor`.

A table and labels or numbers go in, a fitted `softwood.model.Model` comes out as `model_`. Here is only what
scikit-learn's conventions ask for: parameters, checks of X and y, labels, tags. How a model is trained stands in
`softwood.tabular.fit`, what it predicts in `softwood.model.model`.
"""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from softwood.model.harden import HardeningCost, harden_model, hardening_cost
from softwood.model.model import Model
from softwood.model.predictor import Predictor
from softwood.tabular.fit import Fitted, RunOptions, restart, train, train_on_piece
from softwood.tabular.parameters import check_parameters, n_threads_for, plain_parameters
from softwood.tabular.table import Table, read_table, resolve_columns
from softwood.tabular.target import Problem, classification_problem, regression_problem

if TYPE_CHECKING:
    from typing import Self

_PARAMETERS = """
    Parameters
    ----------
    n_trees : int, default=64
        Trees in each member.
    depth : int, default=4
        Depth of each tree, 1 to 20.
    gamma : float, default=1.0
        Width of the soft band: a row within it goes both ways at a split, any other goes one way only.
    gamma_end : float, optional
        Narrow the band geometrically from `gamma` to this while training. None keeps it as it is.
    activation : {"smooth_step", "smoother_step", "logistic"}, default="smooth_step"
        How the probability of going left rises within the band.
    max_features : float, default=0.25
        Share of the inputs that a split may use, a fixed random choice for each split.
    n_members : int, default=6
        Ensembles trained side by side and averaged. 1 gives a single compact model.
    learning_rate : float, default=0.008
        Adam's highest learning rate; it warms up over the first tenth of training and then falls to 0 as a half cosine.
    batch_size : int, default=64
        Rows a step.
    max_epochs : int, default=25
        Passes over the training rows at most.
    patience : int or None, default=8
        Stop a member after this many epochs without a better validation loss. None trains on to `max_epochs`.
    validation_fraction : float or None, default=1/6
        Share of the rows that each member holds out (another part each) to choose its best epoch. None holds out
        nothing and keeps the last epoch. Not used with an `eval_set`.
    l1 : float or "auto", default="auto"
        L1 penalty on split weights.
    l2 : float, default=0.0
        L2 penalty on split weights.
    weight_decay : float or "auto", default="auto"
        Decay of leaf weights.
    batch_norm : bool or "fixed", default=False
        Normalise inputs once more by batch statistics (True) or by those of all training rows ("fixed"), with a learned
        scale and shift. The encodings already standardise.
    optimizer : {"auto", "adam", "lazy_adam"}, default="auto"
        Adam on all parameters, or only on those a batch reached; "auto" decides by their share.
    loss : str, Loss or callable, default="auto"
        %(losses)s
    encoding : {"auto", "standard", "piecewise"}, default="auto"
        How numbers become inputs: standardised; or clipped smoothly and cut into quantile bins. "auto" alternates.
    categorical_features : "from_dtype", or array of int, str or bool, default="from_dtype"
        Columns to be read as categories besides those whose type says so: by number, name or mask.
    %(class_weight)swarm_start : bool, default=False
        Let `fit` go on from the present model instead of starting afresh.
    time_limit : float, optional
        Stop training after this many seconds; the best epoch so far is kept.
    random_state : int, RandomState or None, default=None
        Same seed, same model, to the bit, for any number of threads.
    n_jobs : int, optional
        Threads; None means the library's setting (all cores), negative numbers count from all cores as in joblib.
    verbose : int, default=0
        1 shows a progress bar.
"""
_CLASSIFIER_WORDS = {
    "losses": """"auto" or "cross_entropy"; a `softwood.losses.Loss` adds label smoothing.""",
    "class_weight": """class_weight : dict, "balanced" or None, default=None
        Weights of classes, by label; "balanced" gives all classes the same total.
    """,
}
_REGRESSOR_WORDS = {
    "losses": """"squared_error" (also "auto"), "absolute_error", "huber", "quantile", "poisson", "gamma", "tweedie"; a
        `softwood.losses.Loss` for one with parameters, such as ``Loss("quantile", quantiles=(0.1, 0.5, 0.9))``; or a
        callable that returns the gradient. Huber's delta is in standard deviations of the target.""",
    "class_weight": "",
}


class _TreeEnsemble(BaseEstimator):
    """What both estimators share."""

    hardening_: HardeningCost | None  # of the copy that `harden` makes

    def __init__(
        self,
        *,
        n_trees: int = 64,
        depth: int = 4,
        gamma: float = 1.0,
        gamma_end: float | None = None,
        activation: str = "smooth_step",
        max_features: float = 0.25,
        n_members: int = 6,
        learning_rate: float = 0.008,
        batch_size: int = 64,
        max_epochs: int = 25,
        patience: int | None = 8,
        validation_fraction: float | None = 1 / 6,
        l1: float | str = "auto",
        l2: float = 0.0,
        weight_decay: float | str = "auto",
        batch_norm: bool | str = False,
        optimizer: str = "auto",
        loss: Any = "auto",
        encoding: str = "auto",
        categorical_features: Any = "from_dtype",
        warm_start: bool = False,
        time_limit: float | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_trees = n_trees
        self.depth = depth
        self.gamma = gamma
        self.gamma_end = gamma_end
        self.activation = activation
        self.max_features = max_features
        self.n_members = n_members
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.l1 = l1
        self.l2 = l2
        self.weight_decay = weight_decay
        self.batch_norm = batch_norm
        self.optimizer = optimizer
        self.loss = loss
        self.encoding = encoding
        self.categorical_features = categorical_features
        self.warm_start = warm_start
        self.time_limit = time_limit
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        eval_set: Any = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> _TreeEnsemble:
        """Fit to a table.

        Ctrl-C stops within a step, keeps the best epoch so far, and then raises KeyboardInterrupt: the estimator is
        fitted and can be used.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame [n, p]
            Numbers, booleans, strings, categories and dates; cells may be missing.
        y : array-like [n], or [n, t] for several targets of a regression
        sample_weight : array-like [n], optional
            A weight of 2 means the same as the row twice, and 0 the same as its absence.
        eval_set : tuple (X, y) or (X, y, sample_weight), or a list that holds one, optional
            Rows that decide the best epoch, instead of held-out parts of X.
        checkpoint : path, optional
            File to which the state of training is saved every half minute.
        resume : bool
            Go on from `checkpoint` if that file exists.
        """
        params = self._checked_params()
        previous: Model | None = self.model_ if self.warm_start and hasattr(self, "model_") else None
        table = self._read(X, reset=previous is None)
        problem = self._problem(y, table.n_rows, sample_weight, first=previous is None)
        if problem.classes is not None:
            self.classes_ = problem.classes
        validation = None if eval_set is None else self._read_eval_set(eval_set, table)
        run = RunOptions(self._seed(), n_threads_for(self.n_jobs), checkpoint, resume)
        fitted = train(table, problem, params, run, validation=validation, previous=previous)
        self._pieces: Fitted | None = None
        self._keep(fitted.model)
        if any(member.stopped_by == "interrupt" for member in fitted.trained):
            raise KeyboardInterrupt("Training was interrupted; the estimator holds the best epoch so far.")
        return self

    def _partial_fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None) -> _TreeEnsemble:
        params = self._checked_params()
        is_first = not hasattr(self, "model_")
        table = self._read(X, reset=is_first)
        problem = self._problem(y, table.n_rows, sample_weight, first=is_first and not hasattr(self, "classes_"))
        if problem.classes is not None:
            self.classes_ = problem.classes
        run = RunOptions(self._seed(), n_threads_for(self.n_jobs))
        previous: Fitted | None = None if is_first else getattr(self, "_pieces", None) or restart(self.model_)
        fitted = train_on_piece(table, problem, params, run, previous=previous)
        self._pieces = fitted
        self._keep(fitted.model)
        return self

    def _keep(self, model: Model) -> None:
        self.model_ = model
        self.model_.has_column_names = hasattr(self, "feature_names_in_")

    def _checked_params(self) -> dict[str, Any]:
        params = self.get_params(deep=False)
        check_parameters(params)
        return params

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _read(self, X: Any, *, reset: bool) -> Table:
        """Read a table for fitting (`reset`), or one that must be like that of the fit."""
        if reset:
            table = read_table(X)
            validate_data(self, X if table.names else np.empty((1, table.n_columns)), reset=True, skip_check_array=True)
            chosen = resolve_columns(self.categorical_features, table)
            return read_table(X, categorical=chosen) if chosen else table
        if getattr(X, "ndim", 2) == 2:  # other shapes are refused below
            validate_data(self, X, reset=False, skip_check_array=True)
        return read_table(X, kinds=self.model_.preprocessor.kinds)

    def _read_eval_set(self, eval_set: Any, table: Table) -> tuple[Table, Problem]:
        if isinstance(eval_set, list) and len(eval_set) == 1:
            eval_set = eval_set[0]
        if not isinstance(eval_set, tuple) or len(eval_set) not in (2, 3):
            length = f" of length {len(eval_set)}" if hasattr(eval_set, "__len__") else ""
            raise ValueError(
                "eval_set must be a tuple (X, y) or (X, y, sample_weight), or a list that holds one; "
                f"got {type(eval_set).__name__}{length}."
            )
        X, y, weight = (*eval_set, None)[:3]
        other = read_table(X, kinds=table.kinds)
        return other, self._problem(y, other.n_rows, weight, first=False)

    def _problem(self, y: Any, n_rows: int, sample_weight: Any, *, first: bool) -> Problem:
        raise NotImplementedError

    def _raw_scores(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self, "model_")
        return self.model_.raw_scores(self._read(X, reset=False), n_threads=n_threads_for(self.n_jobs))

    def _predictions(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "model_")
        return self.model_.predict(self._read(X, reset=False), n_threads=n_threads_for(self.n_jobs))

    def predictor(self) -> Predictor:
        """The fitted model compiled for prediction, for servers; see `softwood.model.predictor.Predictor`."""
        check_is_fitted(self, "model_")
        return self.model_.predictor()

    def harden(self, X: Any = None, y: ArrayLike | None = None, *, gamma: float | None = None) -> Self:
        """Make ordinary oblique trees of the soft ones: each row takes one path through each tree.

        Parameters
        ----------
        X, y : optional
            Rows on which to measure what that costs; rows that training did not see tell most.
        gamma : float, optional
            Width of the soft band to narrow to, instead of none at all.

        Returns
        -------
        estimator
            A fitted copy of the same class. Its attribute `hardening_` is the `softwood.model.harden.HardeningCost` on
            X and y, or None without them.

        Examples
        --------
        >>> from sklearn.datasets import load_breast_cancer
        >>> import softwood
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> soft = softwood.TreeEnsembleClassifier(n_members=1, random_state=0).fit(X[:400], y[:400])
        >>> cost = soft.harden(X[400:], y[400:]).hardening_
        >>> cost.metric, bool(cost.unchanged_share > 0.9)
        ('accuracy', True)
        """
        check_is_fitted(self, "model_")
        if (X is None) != (y is None):
            raise ValueError("harden needs both X and y to measure its cost, or neither of them.")
        hard = copy.copy(self)
        hard._pieces = None
        hard.model_ = harden_model(self.model_, gamma)
        hard.hardening_ = None if X is None else hardening_cost(self, hard, X, y)
        return hard

    @property
    def history_(self) -> dict[str, list[Any]]:
        """What each epoch did: "member", "epoch", "train_loss", "validation_loss", ... as columns of equal length."""
        check_is_fitted(self, "model_")
        return self.model_.history

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """Importance of each column [p], summing to 1; `softwood.model.importance` has the definition."""
        check_is_fitted(self, "model_")
        return self.model_.importances

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one safetensors file; `softwood.load` reads it."""
        check_is_fitted(self, "model_")
        self.model_.estimator = {"class": type(self).__name__, "params": plain_parameters(self.get_params(deep=False))}
        self.model_.save(path)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags


class TreeEnsembleClassifier(ClassifierMixin, _TreeEnsemble):
    __doc__ = f"""Classifier: ensembles of soft decision trees, trained jointly by gradient descent.
{_PARAMETERS % _CLASSIFIER_WORDS}
    Attributes
    ----------
    model_ : Model
        The fitted model.
    classes_ : ndarray
        Class labels.
    feature_importances_ : ndarray [p]
    history_ : dict of str to list
    n_features_in_ : int
    feature_names_in_ : ndarray [p]
        Only where the table named its columns.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> classifier = TreeEnsembleClassifier(n_members=1, random_state=0).fit(X[:400], y[:400])
    >>> bool(classifier.score(X[400:], y[400:]) > 0.95)
    True
    """

    def __init__(
        self,
        *,
        n_trees: int = 64,
        depth: int = 4,
        gamma: float = 1.0,
        gamma_end: float | None = None,
        activation: str = "smooth_step",
        max_features: float = 0.25,
        n_members: int = 6,
        learning_rate: float = 0.008,
        batch_size: int = 64,
        max_epochs: int = 25,
        patience: int | None = 8,
        validation_fraction: float | None = 1 / 6,
        l1: float | str = "auto",
        l2: float = 0.0,
        weight_decay: float | str = "auto",
        batch_norm: bool | str = False,
        optimizer: str = "auto",
        loss: Any = "auto",
        encoding: str = "auto",
        categorical_features: Any = "from_dtype",
        class_weight: Any = None,
        warm_start: bool = False,
        time_limit: float | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            n_trees=n_trees,
            depth=depth,
            gamma=gamma,
            gamma_end=gamma_end,
            activation=activation,
            max_features=max_features,
            n_members=n_members,
            learning_rate=learning_rate,
            batch_size=batch_size,
            max_epochs=max_epochs,
            patience=patience,
            validation_fraction=validation_fraction,
            l1=l1,
            l2=l2,
            weight_decay=weight_decay,
            batch_norm=batch_norm,
            optimizer=optimizer,
            loss=loss,
            encoding=encoding,
            categorical_features=categorical_features,
            warm_start=warm_start,
            time_limit=time_limit,
            random_state=random_state,
            n_jobs=n_jobs,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def partial_fit(
        self, X: Any, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> TreeEnsembleClassifier:
        """Take one pass over one piece of a longer table.

        Preprocessing is learned from the first piece: let it be a fair sample of at least some thousand rows. There is
        no early stopping, and the learning rate is constant.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        classes : array-like, optional
            All classes that will occur; needed at the first call unless its y holds them all.
        """
        if classes is not None and not hasattr(self, "model_"):
            self.classes_ = np.unique(np.asarray(classes))
        self._partial_fit(X, y, sample_weight)
        return self

    def _problem(self, y: Any, n_rows: int, sample_weight: Any, *, first: bool) -> Problem:
        classes = None if first else self.classes_
        options = {"class_weight": self.class_weight, "loss": self.loss, "classes": classes}
        return classification_problem(y, n_rows, sample_weight, **options)

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Raw scores [n, classes], or [n] for two classes (positive: the second class)."""
        scores = self._raw_scores(X)
        return scores[:, 0] if self.model_.head.task == "binary" else scores

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probability of each class [n, classes]."""
        check_is_fitted(self, "model_")
        return self.model_.predict_proba(self._read(X, reset=False), n_threads=n_threads_for(self.n_jobs))

    def predict(self, X: Any) -> np.ndarray:
        """Most probable class [n]."""
        return self._predictions(X)


class TreeEnsembleRegressor(RegressorMixin, _TreeEnsemble):
    __doc__ = f"""Regressor: ensembles of soft decision trees, trained jointly by gradient descent.
{_PARAMETERS % _REGRESSOR_WORDS}
    Attributes
    ----------
    model_ : Model
        The fitted model.
    feature_importances_ : ndarray [p]
    history_ : dict of str to list
    n_features_in_ : int
    feature_names_in_ : ndarray [p]
        Only where the table named its columns.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> regressor = TreeEnsembleRegressor(n_members=2, random_state=0).fit(X[:300], y[:300])
    >>> bool(regressor.score(X[300:], y[300:]) > 0.4)
    True
    """

    def partial_fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> TreeEnsembleRegressor:
        """Take one pass over one piece of a longer table; see `TreeEnsembleClassifier.partial_fit`.

        The scale of the target is learned from the first piece, too.
        """
        self._partial_fit(X, y, sample_weight)
        return self

    def _problem(self, y: Any, n_rows: int, sample_weight: Any, *, first: bool) -> Problem:
        return regression_problem(y, n_rows, sample_weight, loss=self.loss)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predicted values: [n], or [n, t] for several targets, with a further axis for several quantiles."""
        return self._predictions(X)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def load(path: str | os.PathLike[str]) -> TreeEnsembleClassifier | TreeEnsembleRegressor:
    """Read a file that `save` wrote, as a fitted estimator.

    No code in the file is run. A file that is damaged, truncated, hostile or of a newer version raises a
    `softwood.model.file.ModelFileError`, which says what is wrong.
    """
    model = Model.load(path)
    kind = TreeEnsembleRegressor if model.head.task == "regression" else TreeEnsembleClassifier
    estimator = kind()
    saved = model.estimator.get("params", {})
    estimator.set_params(**{name: saved[name] for name in estimator.get_params(deep=False) if name in saved})
    estimator.model_ = model
    estimator.n_features_in_ = model.n_columns
    if model.has_column_names:
        estimator.feature_names_in_ = np.array(model.column_names, dtype=object)
    if model.head.classes is not None:
        estimator.classes_ = model.head.classes
    return estimator
