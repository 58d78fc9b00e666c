"""A fitted model: preprocessing, ensembles and head. Rows in, predictions out.

The raw scores of a row are the mean over members of each member's offset plus the sum of its trees, so that a model is
one additive ensemble; the head turns them into probabilities, means or quantiles. Training is left to
`softwood.tabular.fit`, the interface of scikit-learn to `softwood.estimators`, files to `softwood.model.file`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.model.importance import column_importances
from softwood.model.lowering import lower
from softwood.model.member_rows import MemberRows, member_rows
from softwood.model.parameter_counts import ParameterCounts, count_parameters, mean_parameters_read
from softwood.model.parts import Head, ModelMember
from softwood.model.predictor import Predictor
from softwood.model.program import Program
from softwood.tabular.encoding.columns import Preprocessor


@dataclass(eq=False)
class Model:
    """Everything that prediction needs.

    Attributes
    ----------
    preprocessor : Preprocessor
    members : list of ModelMember
    head : Head
    history : dict of str to list
        One entry per member and epoch: "member", "epoch", "train_loss", ...; `pandas.DataFrame(history)` is a tidy
        table.
    has_column_names : bool
        Whether the training table named its columns.
    estimator : dict
        "class" and "params" of the estimator that made the model.
    importance_rows : ndarray [n, q], optional
        Some training rows of the base matrix, from which `importances` is computed on first use. They are neither
        saved nor pickled.
    target_name : str, optional
        Name of the target, if known; for display.
    given_columns : tuple of str
        Names of all columns of the training table, if the model reads a choice of them only; else empty.
    mean_parameters_read : float
        What `n_parameters` says that a row reads; known after the importances are.
    """

    preprocessor: Preprocessor
    members: list[ModelMember]
    head: Head
    history: dict[str, list[float]] = field(default_factory=dict)
    has_column_names: bool = False
    estimator: dict[str, Any] = field(default_factory=dict)
    importance_rows: NDArray[np.float32] | None = None
    target_name: str | None = None
    given_columns: tuple[str, ...] = ()
    mean_parameters_read: float = float("nan")

    @property
    def n_columns(self) -> int:
        """Number of columns of the tables that this model reads."""
        return len(self.preprocessor.columns)

    @property
    def column_names(self) -> list[str]:
        """Names of the table's columns; x0, x1, ... where training had no names."""
        return [column.name for column in self.preprocessor.columns]

    @property
    def n_outputs(self) -> int:
        """Number of raw scores k."""
        return self.members[0].trees.leaf_weight.shape[2]

    @property
    def best_epochs(self) -> NDArray[np.int64]:
        """Epoch that each member's trees are from [members], counted from 0."""
        entries = zip(*(self.history[name] for name in ("member", "epoch", "is_best")), strict=True)
        return np.array(
            [epoch for _, epoch in sorted((member, epoch) for member, epoch, is_best in entries if is_best)],
            dtype=np.int64,
        )

    def mean_of_best_epochs(self, name: str) -> float:
        """Mean over members of one column of the history in the epochs that their trees are from."""
        values = zip(self.history[name], self.history["is_best"], strict=True)
        return float(np.mean([value for value, is_best in values if is_best]))

    @cached_property
    def importances(self) -> NDArray[np.float64]:
        """Importance of each column of the table [n_columns], summing to 1; see `softwood.model.importance`."""
        assert self.importance_rows is not None
        found = column_importances(self, self.importance_rows)
        self.mean_parameters_read = mean_parameters_read(self, self.importance_rows)
        self.importance_rows = None
        return found

    @property
    def n_parameters(self) -> ParameterCounts:
        """Weights that were trainable, are stored, and are read by a row on average."""
        _ = self.importances  # which takes the rows
        return count_parameters(self, self.mean_parameters_read)

    def __getstate__(self) -> dict[str, Any]:
        _ = self.importances
        return {key: value for key, value in self.__dict__.items() if key not in ("program", "_predictor")}

    @cached_property
    def program(self) -> Program:
        """What prediction computes, as plain data; see `softwood.model.program`. Made once, on first use."""
        return lower(self)

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor(self.program)

    def predictor(self) -> Predictor:
        """The model compiled for prediction: immutable, thread-safe, picklable. Made once, at the first call."""
        return self._predictor

    def rows(self, X: Any) -> list[MemberRows]:
        """The rows of a table as each member sees them, for explanations."""
        base = self.preprocessor.read(self.program.read(X))
        return [member_rows(self, member, base) for member in range(len(self.members))]

    def raw_scores(self, X: Any, *, n_threads: int | None = None) -> NDArray[np.float64]:
        """Raw scores [n, k]: the mean over members of offset plus sum of trees."""
        return self._predictor.raw_scores(X, n_threads=n_threads)

    def predict(self, X: Any, *, n_threads: int | None = None) -> Any:
        """Class labels or values of a table or of one row; see `Predictor.predict`."""
        return self._predictor.predict(X, n_threads=n_threads)

    def predict_proba(self, X: Any, *, n_threads: int | None = None) -> NDArray[np.float64]:
        """Class probabilities of a table [n, classes] or of one row [classes]."""
        return self._predictor.predict_proba(X, n_threads=n_threads)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file; a kill at any moment leaves the old file or the new one, whole."""
        from softwood.model.file import write_model

        write_model(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Model:
        """Read a model file. A `ModelFileError` says what is wrong with one that cannot be read."""
        from softwood.model.file import read_model

        return read_model(path)


def model_of(source: Any) -> Model:
    """The model of a fitted estimator; a model is returned as it is."""
    model = getattr(source, "model_", source)
    if isinstance(model, Model):
        return model
    name = type(source).__name__
    if hasattr(source, "fit"):
        raise ValueError(f"A fitted model is needed; this {name} is not fitted yet. Call fit first.")
    raise TypeError(
        f"A fitted softwood estimator or Model is needed; got {name}. Fit one, or read a file with softwood.load."
    )
