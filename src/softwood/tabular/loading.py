"""Model files and fitted estimators: what a file keeps of an estimator's parameters, and how it becomes one again.

The file itself is read, checked and written by `softwood.model`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from softwood.model.container import ModelFileError
from softwood.model.model import Model
from softwood.training.declaration import check, declarations

if TYPE_CHECKING:
    from softwood.estimators import TreeEnsembleClassifier, TreeEnsembleRegressor


def load(path: str | os.PathLike[str]) -> TreeEnsembleClassifier | TreeEnsembleRegressor:
    """Read a file that `save` wrote and return a fitted estimator.

    No code in the file is run.

    Raises
    ------
    softwood.model.ModelFileError
        If the file is damaged, truncated, hostile, or was written by a newer version.
    """
    from softwood.estimators import TreeEnsembleClassifier, TreeEnsembleRegressor

    model = Model.load(path)
    kind = TreeEnsembleRegressor if model.head.task == "regression" else TreeEnsembleClassifier
    estimator = kind()
    saved = model.estimator.get("params", {})
    known = set(estimator.get_params(deep=False)) - {"n_jobs"}  # a file does not decide the number of threads
    declared = declarations(kind)
    params = {name: saved[name] for name in known if name in saved}
    # Earlier versions allowed "auto" for other parameters; those become the defaults.
    params = {name: value for name, value in params.items() if value != "auto" or declared[name].domain.accepts(value)}
    try:
        check(params, declared)
    except ValueError as error:
        raise ModelFileError(f"{os.fspath(path)!r} is damaged: its parameter {error}") from None
    estimator.set_params(**params)
    estimator.model_ = model
    names = model.given_columns or model.column_names
    estimator.n_features_in_ = len(names)
    if model.has_column_names:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    estimator._keep_classes(model.head.task, model.head.classes)
    return estimator


def plain_parameters(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that JSON can hold; functions, generators and Loss objects are left out."""
    plain = {}
    for name, value in params.items():
        if isinstance(value, (np.ndarray, np.generic)):
            value = value.tolist()
        if name == "class_weight" and isinstance(value, dict):
            continue  # keys of JSON objects are strings, labels may be numbers
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            continue
        plain[name] = value
    return plain
