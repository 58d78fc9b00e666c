"""Every hyperparameter, declared once: name, type and range, default, help, option of the command line, search range.

From here come the constructors, docstrings and checks of the estimators, the ranges and defaults that
`softwood.training.TrainingConfig` shares with them, the options of ``softwood train``, the search space of ``softwood
tune`` and the table in docs/tabular.md (rewrite it with ``python docs/write_tables.py``). CONTRIBUTING.md shows how to
add one. What `declare` takes is explained in `softwood.declaration`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from softwood.arguments import MAX_DEPTH, Activation
from softwood.declaration import Declaration, Integer, Number, Unchecked, declarations, declare, keyword_parameters
from softwood.tabular.features import EncodingName
from softwood.training.losses import CustomLoss, Loss, LossName

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


@dataclass(frozen=True)
class TableFacts:
    """What the value "auto" of a hyperparameter may depend on.

    Attributes
    ----------
    task : {"binary", "multiclass", "regression"}
    n_rows, n_columns : int
        Size of the training table.
    n_classes : int
        Number of classes; 0 for a regression.
    """

    task: str
    n_rows: int
    n_columns: int
    n_classes: int


def _by_task(*, classification: float, regression: float) -> Callable[[TableFacts], float]:
    return lambda facts: regression if facts.task == "regression" else classification


@keyword_parameters
class Hyperparameters:
    """Hyperparameters of both estimators."""

    n_trees: Count = declare(64, "Number of trees in each member.", aliases=("--trees",), search=SearchRange(1, 100))
    depth: Depth = declare(4, "Depth of each tree.", search=SearchRange(2, 8))
    gamma: Positive = declare(
        1.0,
        "Width of the soft band.",
        details="A row within the band of a split goes both ways; any other row goes one way only.",
        search=SearchRange(1e-4, 1.0, log=True),
    )
    gamma_end: Positive | None = declare(
        None, "Narrow the soft band geometrically from `gamma` to this during training.", details="None keeps `gamma`."
    )
    activation: Activation = declare("smooth_step", "How the probability of going left rises across the soft band.")
    max_features: Share = declare(
        0.25,
        "Share of the inputs that each split may use.",
        details="Each split gets its own random choice, made once.",
    )
    n_members: Count = declare(
        6,
        "Number of ensembles that are trained side by side and averaged.",
        details="1 gives a single compact model.",
        aliases=("--members",),
    )
    learning_rate: Positive = declare(
        0.008,
        "Highest learning rate of Adam.",
        details="It warms up over the first tenth of training and then falls to 0 as a half cosine.",
        search=SearchRange(1e-5, 1e-1, log=True),
    )
    batch_size: Count = declare(64, "Rows per training step.", search=SearchValues((32, 64, 128, 256, 512)))
    max_epochs: Count = declare(
        25, "Largest number of passes over the training rows.", aliases=("--epochs",), search=SearchRange(5, 100)
    )
    patience: Count | None = declare(
        8,
        "Stop a member after this many epochs without a better validation loss.",
        details="None always trains for `max_epochs`.",
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
        details='"auto" is stronger for classifiers than for regressors.',
        auto=_by_task(classification=0.1, regression=0.03),
    )
    l2: Penalty = declare(0.0, "L2 penalty on split weights.", search=SearchRange(1e-8, 1e2, log=True, or_zero=True))
    weight_decay: Penalty | Auto = declare(
        "auto",
        "Decay of leaf weights.",
        details='"auto" is stronger for classifiers than for regressors.',
        auto=_by_task(classification=0.1, regression=0.03),
    )
    batch_norm: bool | Literal["fixed"] = declare(
        False,
        "Normalise the inputs of the trees once more, with a learned scale and shift.",
        details='True uses the statistics of each batch, "fixed" those of all training rows. The encodings already '
        "standardise.",
    )
    optimizer: Optimizer = declare(
        "auto",
        "Update all weights in each step, or only those that a batch reached.",
        details='"adam" updates all, "lazy_adam" only those reached; "auto" decides per tree and step.',
    )
    loss: Auto | Loss | CustomLoss | LossName = declare(
        "auto",
        "What training minimises.",
        details='Classifiers take "cross_entropy" (also "auto"), or a `softwood.Loss` with label smoothing. Regressors '
        'take "squared_error" (also "auto"), "absolute_error", "huber", "quantile", "poisson", "gamma" or "tweedie"; a '
        '`softwood.Loss` to set its parameters, such as ``Loss("quantile", quantiles=(0.1, 0.5, 0.9))``; or a callable '
        "that returns the gradient. The delta of the Huber loss is in standard deviations of the target.",
        notation="str, Loss or callable",
    )
    encoding: Auto | EncodingName = declare(
        "auto",
        "How numbers become inputs of the trees.",
        details='"standard" standardises; "piecewise" clips smoothly and cuts into quantile bins; "auto" alternates '
        "between members.",
    )
    categorical_features: Annotated[Any, Unchecked('"from_dtype" or array of int, str or bool')] = declare(
        "from_dtype",
        "Columns to read as categories besides those whose type says so.",
        details="Column numbers, names, or a mask.",
        on_command_line=False,
    )
    warm_start: bool = declare(
        False, "Let `fit` continue from the present model instead of starting anew.", on_command_line=False
    )
    time_limit: Positive | None = declare(None, "Stop training after this many seconds and keep the best epoch so far.")
    random_state: Annotated[int | np.random.RandomState | None, Unchecked("int, RandomState or None")] = declare(
        None,
        "Seed of all random choices.",
        details="The same seed gives the same model, bit for bit, for any number of threads.",
        aliases=("--seed",),
    )
    n_jobs: Annotated[int, Integer(excluded=0)] | None = declare(
        None,
        "Number of threads.",
        details="None means `softwood.get_num_threads()`; negative numbers count back from all cores, as in joblib.",
        aliases=("--jobs",),
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


def all_declarations() -> dict[str, Declaration]:
    """Every hyperparameter by name, those of the classifier alone last."""
    return declarations(ClassifierHyperparameters)


def resolve_auto(params: Mapping[str, Any], facts: TableFacts) -> dict[str, Any]:
    """Replace "auto" by the value that it stands for on a table, where the declaration has a rule for it.

    >>> resolve_auto({"l1": "auto", "depth": 4, "optimizer": "auto"}, TableFacts("regression", 500, 8, 0))
    {'l1': 0.03, 'depth': 4, 'optimizer': 'auto'}
    """
    declared = all_declarations()
    rules = {name: declared[name].auto for name in params if name in declared}
    return {
        name: rule(facts) if (rule := rules.get(name)) is not None and isinstance(value, str) else value
        for name, value in params.items()
    }
