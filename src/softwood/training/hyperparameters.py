"""Every hyperparameter, declared once: name, type and range, default, help, option of the command line, search range.

From here come the constructors, docstrings and checks of the estimators, the ranges and defaults that
`softwood.training.TrainingConfig` shares with them, the options of ``softwood train``, the search space of ``softwood
tune`` and the table in docs/hyperparameters.md (rewrite it with ``python docs/write_tables.py``). CONTRIBUTING.md shows
how to add one. What `declare` takes is explained in `softwood.training.declaration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from softwood.arguments import MAX_DEPTH, Activation
from softwood.tabular.encoding.features import MAX_BINS, EncodingName
from softwood.training import rules
from softwood.training.declaration import (
    ByteSize,
    Declaration,
    Integer,
    Number,
    Unchecked,
    declarations,
    declare,
    keyword_parameters,
)
from softwood.training.losses import CustomLoss, Loss, LossName
from softwood.training.rules import TableFacts

Auto = Literal["auto"]
Count = Annotated[int, Integer(1)]
Depth = Annotated[int, Integer(1, MAX_DEPTH)]
Positive = Annotated[float, Number(0, open_low=True)]
Penalty = Annotated[float, Number(0)]
Share = Annotated[float, Number(0, 1, open_low=True)]
Optimizer = Literal["auto", "adam", "lazy_adam"]


@dataclass(frozen=True)
class SearchRange:
    """Numbers from `low` to `high` that `softwood tune` draws from: whole ones if both ends are integers.

    `log` draws evenly on a logarithmic scale; `or_zero` draws 0 instead in half of all trials.
    """

    low: float
    high: float
    log: bool = False
    or_zero: bool = False


@dataclass(frozen=True)
class SearchValues:
    """Values that `softwood tune` chooses among."""

    values: tuple[Any, ...]


@keyword_parameters
class Hyperparameters:
    """Hyperparameters of both estimators."""

    recipe: Literal["softwood", "paper"] = declare(
        "softwood",
        "Which training recipe to use.",
        details='"paper" follows the paper on the Tree Ensemble Layer (section 4): one ensemble behind batch '
        "normalisation, whose splits are linear in all columns, without biases, L1 penalty or weight decay, trained at "
        "a constant learning rate until the last epoch. Parameters that it fixes must stay at their defaults.",
    )
    n_trees: Count = declare(
        64,
        "Number of trees in each member.",
        aliases=("--trees",),
        search=SearchRange(1, 100),
        elsewhere=("n_estimators", "iterations", "num_trees"),
    )
    depth: Depth = declare(4, "Depth of each tree.", search=SearchRange(2, 8), elsewhere=("max_depth",))
    gamma: Positive = declare(
        1.0,
        "Width of the soft band.",
        details="A row within the band of a split goes both ways; any other row goes one way only.",
        search=SearchRange(1e-4, 1.0, log=True),
    )
    gamma_end: Positive | None = declare(
        None, "Narrow the soft band geometrically from `gamma` to this during training.", details="None keeps `gamma`."
    )
    max_reach: Share | Auto = declare(
        "auto",
        "Share of the leaves of a tree that a row may reach on average.",
        details="After training, each member is trained on its own scores for a while, and its soft bands are narrowed "
        "until rows reach no more; `train_loss` in `history_` is then relative to these scores. If that costs too much "
        'accuracy on held-out rows, the member stays as it was. 1 narrows nothing. "auto" is 0.22, but 1 below 2,000 '
        "rows (8,000 in a regression), for tables in files or shards, and with `gamma_end` or logistic routing.",
        auto=rules.max_reach,
    )
    activation: Activation = declare("smooth_step", "How the probability of going left rises across the soft band.")
    max_features: Share | Auto = declare(
        "auto",
        "Share of the columns that each split may use.",
        details='Each split gets its own random choice, made once. "auto" is a quarter, but 3 columns at least and 48 '
        "at most.",
        auto=rules.max_features,
        elsewhere=("colsample_bynode", "feature_fraction"),
    )
    max_columns: Count | None = declare(
        None,
        "Maximum number of columns that the model uses.",
        details="Columns whose splits decide least are dropped in rounds before the model is trained. Predictions then "
        "need the columns of `selected_columns_` only; other columns of a table are ignored. None keeps all.",
    )
    n_members: Count | Auto = declare(
        "auto",
        "Number of ensembles that are trained side by side and averaged.",
        details='1 gives a single small model. "auto" is 6, or from 2,000 rows on 2, or 4 where those two differ.',
        aliases=("--members",),
        auto=rules.n_members,
    )
    compact: bool | Auto = declare(
        "auto",
        "Distil all members into one small ensemble, and keep only that.",
        details="See `compress`; `compression_` has sizes and scores before and after. The history and out-of-fold "
        'predictions are those of the members. "auto" keeps the members.',
        auto=rules.compact,
    )
    learning_rate: Positive = declare(
        0.004,
        "Learning rate of Adam.",
        details="Constant after a short warm-up. The model uses a moving average of the parameters over an epoch.",
        search=SearchRange(1e-5, 1e-1, log=True),
    )
    batch_size: Count | Auto = declare(
        "auto",
        "Rows per training step.",
        details='"auto" is a power of two near a 64th of the rows, from 32 to 1024.',
        search=SearchValues((32, 64, 128, 256, 512)),
        auto=rules.batch_size,
    )
    max_epochs: Count | Auto = declare(
        "auto",
        "Maximum number of passes over the training rows.",
        details='"auto" is 50, and more where an epoch has few steps.',
        aliases=("--epochs",),
        search=SearchRange(5, 100),
        auto=rules.max_epochs,
        elsewhere=("epochs", "max_iter"),
    )
    patience: Count | Auto | None = declare(
        "auto",
        "Stop a member after this many epochs without a better validation loss.",
        details='None always trains for `max_epochs`. "auto" is 4, and more where an epoch has few steps.',
        auto=rules.patience,
        elsewhere=("early_stopping_rounds", "n_iter_no_change"),
    )
    validation_fraction: Annotated[float, Number(0, 0.5, open_low=True)] | None = declare(
        1 / 6,
        "Share of the rows that each member holds out to choose its best epoch.",
        details="Each member holds out a different part. None holds out nothing and keeps the last epoch. Not used "
        "with an `eval_set`.",
    )
    l1: Penalty | Auto = declare(
        "auto",
        "L1 penalty on split weights.",
        details='"auto" is 0.1 below 2,000 rows. On longer tables a first member is trained with 0.15 and with 0.03, '
        "and the others take the one with the better validation loss. Both are less from 92,682 rows on.",
        auto=rules.l1,
        elsewhere=("reg_alpha",),
    )
    l2: Penalty = declare(
        0.0,
        "L2 penalty on split weights.",
        search=SearchRange(1e-8, 1e2, log=True, or_zero=True),
        elsewhere=("reg_lambda",),
    )
    weight_decay: Penalty = declare(0.03, "Decay of leaf weights.")
    batch_norm: bool | Literal["fixed"] = declare(
        False,
        "Apply batch normalisation, with a learned scale and shift, to the inputs of the trees.",
        details='True uses the statistics of each batch, "fixed" those of all training rows. The encodings already '
        "standardise their output.",
    )
    optimizer: Optimizer = declare(
        "auto",
        "Update all weights in each step, or only those that a batch reached.",
        details='"adam" updates all, "lazy_adam" only those reached; "auto" decides per tree and step.',
    )
    loss: Auto | Loss | CustomLoss | LossName = declare(
        "auto",
        "Loss to minimise.",
        details='Classifiers take "cross_entropy" (also "auto"), or a `softwood.Loss` with label smoothing. Regressors '
        'take "squared_error" (also "auto"), "absolute_error", "huber", "quantile", "poisson", "gamma" or "tweedie"; a '
        '`softwood.Loss` to set its parameters, such as ``Loss("quantile", quantiles=(0.1, 0.5, 0.9))``; or a callable '
        "that returns the gradient. The delta of the Huber loss is in standard deviations of the target.",
        notation="str, Loss or callable",
        elsewhere=("objective",),
    )
    encoding: Auto | EncodingName = declare(
        "auto",
        "How numeric columns are encoded.",
        details='"auto" lets a split look up a value per column, piecewise linear between knots. "standard" '
        'standardises, and adds flags for whole numbers of few values; "piecewise" clips smoothly and adds ramps '
        'between quantiles; "linear" standardises and adds nothing. These make linear splits, which take longer to '
        "train.",
    )
    n_bins: Annotated[int, Integer(2, MAX_BINS)] | Auto = declare(
        "auto",
        "Number of bins of a numeric column.",
        details='A column of few distinct values has a knot at each of them. "auto" is about 2 n^(1/4) for n rows.',
        auto=rules.n_bins,
        elsewhere=("max_bin", "max_bins"),
    )
    categorical_features: Annotated[Any, Unchecked('"from_dtype" or array of int, str or bool')] = declare(
        "from_dtype",
        "Columns to treat as categories, in addition to those recognised by their type.",
        details="Column numbers, names, or a mask.",
        on_command_line=False,
    )
    column_kinds: Annotated[Mapping[Any, str] | None, Unchecked("dict or None")] = declare(
        None,
        "Kinds of columns, where the inferred kind is wrong.",
        details='By name or number: "numeric", "boolean", "category" or "date", as in ``{"zip": "category"}``. Texts '
        "that all are numbers, dates or truth values are otherwise read as such.",
        on_command_line=False,
    )
    warm_start: bool = declare(
        False, "Let `fit` continue from the fitted model instead of starting over.", on_command_line=False
    )
    monotonic_cst: Annotated[Any, Unchecked("dict, array of int or None")] = declare(
        None,
        "Columns with which predictions must increase (1) or decrease (-1).",
        details="By name, or one number per column; 0 is no constraint. It holds for the whole model and all values "
        "that are not missing. Not for more than two classes.",
        on_command_line=False,
    )
    eval_metric: Annotated[Any, Unchecked("str, callable or None")] = declare(
        None,
        "Metric that selects the best epoch, instead of the loss.",
        details='The name of a scorer of scikit-learn ("roc_auc", "accuracy", "r2", ...), with or without its `neg_` '
        '("log_loss"); a scorer; or a function of the true and the predicted values (probabilities [n, k], for two '
        "classes those of the second). A function whose name ends in _loss, _error or _deviance is minimised, any "
        "other maximised.",
        on_command_line=False,
    )
    callbacks: Annotated[Any, Unchecked("list of callables or None")] = declare(
        None,
        "Functions that are called after each epoch.",
        details="Each gets a `softwood.callbacks.EpochSummary`, and stops the fit by returning True.",
        on_command_line=False,
    )
    time_limit: Positive | None = declare(None, "Stop training after this many seconds and keep the best epoch so far.")
    random_state: Annotated[int | np.random.RandomState | None, Unchecked("int, RandomState or None")] = declare(
        None,
        "Seed of all random choices.",
        details="The same seed gives the same model, bit for bit, for any number of threads.",
        aliases=("--seed",),
        elsewhere=("seed", "random_seed"),
    )
    n_jobs: Annotated[int, Integer(excluded=0)] | None = declare(
        None,
        "Number of threads.",
        details="None means `softwood.get_num_threads()`; negative numbers count back from all cores, as in joblib.",
        aliases=("--jobs",),
        elsewhere=("nthread", "num_threads", "thread_count"),
    )
    memory_limit: Annotated[int | str, ByteSize()] = declare(
        "1GB",
        "Maximum memory of a fit from files, not counting libraries and the model.",
        details='Bytes, or a text such as "512MB". A fit that needs more raises an error. The result does not depend '
        "on it. Not used if X is a table in memory.",
    )
    verbose: Annotated[int, Integer(0)] | bool = declare(0, "1 shows a progress bar.", on_command_line=False)


@keyword_parameters
class ClassifierHyperparameters(Hyperparameters):
    """Hyperparameters of the classifier."""

    class_weight: Annotated[Mapping[Any, float] | Literal["balanced"] | None, Unchecked('dict, "balanced" or None')] = (
        declare(
            None,
            "Weights of classes, by label.",
            details='"balanced" gives all classes the same total weight.',
            on_command_line=False,
        )
    )


# What recipe="paper" fixes. Section 2 of the paper: splits are linear in all columns, without a bias, after batch
# normalisation. Section 4: Keras' Adam, which updates every weight in each step. Appendix D: no preprocessing, and the
# number of epochs is a hyperparameter, so nothing is held out; penalties are L2 only.
PAPER_FIXES: dict[str, Any] = {
    "n_members": 1,
    "gamma_end": None,
    "max_reach": 1.0,
    "max_features": 1.0,
    "patience": None,
    "validation_fraction": None,
    "l1": 0.0,
    "weight_decay": 0.0,
    "batch_norm": True,
    "optimizer": "adam",
    "encoding": "linear",
}
# What "auto" means there: the paper tunes all, over 1 to 100 trees, 32 to 512 rows and 5 to 100 epochs.
_PAPER_AUTO: dict[str, Any] = {"n_trees": 64, "batch_size": 64, "max_epochs": 50}


def apply_recipe(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of an estimator with what its recipe fixes; a ValueError names one that was set to something else.

    >>> apply_recipe({"recipe": "paper", "l1": "auto", "n_trees": 10, "batch_size": "auto"})
    {'recipe': 'paper', 'l1': 0.0, 'n_trees': 10, 'batch_size': 64}
    """
    if params["recipe"] != "paper":
        return dict(params)
    applied = dict(params)
    for name in params.keys() & PAPER_FIXES.keys():
        default, fixed = all_declarations()[name].default, PAPER_FIXES[name]
        if params[name] not in (default, fixed):
            raise ValueError(
                f"recipe='paper' requires {name}={fixed!r}; got {params[name]!r}: leave {name} at its default, or use "
                "recipe='softwood'."
            )
        applied[name] = fixed
    for name in params.keys() & _PAPER_AUTO.keys():
        applied[name] = _PAPER_AUTO[name] if params[name] == "auto" else params[name]
    return applied


def all_declarations() -> dict[str, Declaration]:
    """Every hyperparameter by name, those of the classifier alone last."""
    return declarations(ClassifierHyperparameters)


def resolve_auto(params: Mapping[str, Any], facts: TableFacts) -> dict[str, Any]:
    """Replace "auto" by the value that it stands for on a table, where the declaration has a rule for it.

    Rules are asked in the order of the declarations: a later one may look at what an earlier one chose.

    >>> resolve_auto({"batch_size": "auto", "n_bins": 64, "optimizer": "auto"}, TableFacts("regression", 20_000, 10))
    {'batch_size': 256, 'n_bins': 64, 'optimizer': 'auto'}
    """
    resolved = dict(params)
    for name, declaration in all_declarations().items():
        if declaration.auto is not None and isinstance(params.get(name), str):
            resolved[name] = declaration.auto(facts, resolved)
    return resolved
