"""`DaskTreeEnsembleClassifier` and `DaskTreeEnsembleRegressor`: the estimators on tables in partitions.

They take Dask DataFrames, Dask Arrays and Parquet paths, and give back lazy predictions. `to_local` makes ordinary
estimators of them. How rows become a model is left to `members` and `shards`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from softwood.dask.collections import (
    LoadedParts,
    find_client,
    first_rows,
    is_collection,
    load_partitions,
    read_partitions,
    whole,
)
from softwood.dask.members import MemberTasks
from softwood.dask.shards import fit_shards
from softwood.estimators import TreeEnsembleClassifier, TreeEnsembleRegressor, _TreeEnsemble
from softwood.tabular.committee import RunOptions
from softwood.tabular.evaluation import read_evaluation_sets
from softwood.tabular.out_of_core.outline import Outline
from softwood.tabular.reading.table import Table
from softwood.tabular.target import Problem
from softwood.training import TrainedMember
from softwood.training.checkpoint import prepare_checkpoint
from softwood.training.declaration import Unchecked, declare, keyword_parameters, parameters_section

if TYPE_CHECKING:
    from typing import Self

_CLIENT = declare(None, "Client of the cluster.", details="None is the current one.", on_command_line=False)
_STRATEGY = declare(
    "auto",
    "How the work is distributed.",
    details='"members" brings the table to the client and trains each member as a task. "shards" leaves the rows on '
    'the workers and trains in rounds on shards of them. "auto" is "shards" from a million rows on.',
    on_command_line=False,
)
# From this many rows on "auto" means shards.
_MANY_ROWS = 1_000_000

_DESCRIPTION = """

    With strategy="members" each member is a task, and the result is bit-identical to a local fit of that table. With
    strategy="shards" rows stay on the workers, and the result is bit-identical for any number of workers. See
    docs/scaling.md.

    Parameters
    ----------
{parameters}

    Attributes
    ----------
    model_, classes_, history_ and others
        As those of `softwood.{local}`, which `to_local` returns.
    traffic_ : Traffic
        Bytes and seconds of the rounds, after strategy="shards".

    **Shape**: X [n, p] and y [n] in partitions; `predict` gives [n].
    """


class _OnDask(_TreeEnsemble):
    """What both estimators share."""

    client: Any
    strategy: str
    _LOCAL: Any  # class of the ordinary estimator

    def fit(  # type: ignore[override]  # rows of partitions need no cache
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        eval_set: Any = None,
        *,
        offset: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 30.0,
        resume: bool = False,
    ) -> Self:
        """Train on a table in partitions.

        Parameters
        ----------
        X : Dask DataFrame, Dask Array, or path, list of paths or glob of Parquet files
        y : Dask Series or Array, or the name of a column of X
            Targets, in the partitions of X.
        sample_weight : Dask Series or Array, or the name of a column of X, optional
        eval_set : optional
            As in the local `fit`: tables in memory.
        offset : None
            Not supported for tables in partitions.
        checkpoint, checkpoint_every, resume
            As in the local `fit`. With shards the client writes the file, after epochs. Members write a file each, from
            the worker that trains them: the path must then be on a disk that all workers share.

        Returns
        -------
        self
        """
        if offset is not None:
            raise ValueError("offset must be None for tables in partitions; use the local estimator to fit with one.")
        client = find_client(self.client)
        loaded = load_partitions(read_partitions(X, y, sample_weight), client)
        if self.strategy == "shards" or (self.strategy == "auto" and loaded.n_rows >= _MANY_ROWS):
            return self._fit_shards(client, loaded, eval_set, checkpoint, checkpoint_every, resume)
        table, targets, weight = whole(loaded, client)
        del loaded
        self._client = client
        try:
            return super().fit(
                table,
                targets,
                weight,
                eval_set,
                checkpoint=checkpoint,
                checkpoint_every=checkpoint_every,
                resume=resume,
            )
        finally:
            del self._client

    def _fit_shards(
        self, client: Any, loaded: LoadedParts, eval_set: Any, checkpoint: Any, checkpoint_every: float, resume: bool
    ) -> Self:
        params = self._checked_params()
        self._refuse_what_shards_cannot(params, loaded)
        table = self._read(first_rows(loaded, client), reset=True)
        names = table.names if hasattr(self, "feature_names_in_") else None
        seed = None if checkpoint is None else prepare_checkpoint(checkpoint, resume=resume)
        seed = self._seed() if seed is None or self.random_state is not None else seed

        def read_sets(outline: Outline) -> list[tuple[Table, Problem]]:
            self._keep_classes(outline.problem.task, outline.target.classes)
            make_problem = partial(self._problem, first=False)
            return read_evaluation_sets(eval_set, self._reader_like(table), make_problem, has_offset=False)

        fitted, self.traffic_ = fit_shards(
            client,
            loaded,
            self._target_kind(),
            params,
            RunOptions(seed, checkpoint=checkpoint, resume=resume, checkpoint_every=checkpoint_every),
            table=table,
            names=names,
            read_sets=read_sets,
        )
        self._keep(fitted.model)
        self.chosen_parameters_ = fitted.chosen
        self.__dict__.pop("oof_prediction_", None)
        if any(member.stopped_by == "interrupt" for member in fitted.trained):
            raise KeyboardInterrupt("Training was interrupted; the estimator holds the best epoch so far.")
        return self

    def _refuse_what_shards_cannot(self, params: dict[str, Any], loaded: LoadedParts) -> None:
        needed = {
            "recipe": "softwood",
            "encoding": "auto",
            "batch_norm": False,
            "l2": 0,
            "warm_start": False,
            "max_columns": None,
        }
        for name, value in needed.items():
            if params[name] != value:
                raise ValueError(
                    f"strategy='shards' needs {name}={value!r}; got {params[name]!r}. Use strategy='members' if the "
                    "table fits into memory."
                )
        if params["compact"] is True:
            raise ValueError("strategy='shards' needs compact=False; call to_local().compress(X) after the fit.")
        n_targets = next(facts.n_targets for facts in loaded.facts if facts.n_rows)
        if self._target_kind().is_classification and n_targets > 1:
            raise ValueError(
                f"strategy='shards' needs one column of class labels as y; got {n_targets} columns. Use "
                "strategy='members' for rows with several labels."
            )

    def _fit_members(self) -> Callable[..., list[TrainedMember]]:
        return MemberTasks(self._client, max(1, self.n_jobs or 1))

    def to_local(self) -> Any:
        """Return an ordinary estimator with the same model, whose predictions have the same bits."""
        kind = self._LOCAL
        params = {name: value for name, value in self.get_params(deep=False).items() if name in kind().get_params()}
        local = kind(**params)
        skipped = set(self.get_params(deep=False))
        fitted = {name: value for name, value in vars(self).items() if name not in skipped}
        local.__dict__.update(copy.copy(fitted))
        return local

    def predict(self, X: Any, offset: Any = None) -> Any:
        """Predict a table in memory, or lazily one in partitions: a Series of a frame, an Array of an Array."""
        if not is_collection(X):
            return super().predict(X, offset)
        head = self.model_.head
        dtype = np.dtype(np.float64) if head.classes is None else head.classes.dtype
        return _by_partitions(X, self.to_local(), "predict", dtype, None)


def _by_partitions(X: Any, local: Any, method: str, dtype: np.dtype[Any], columns: Any) -> Any:
    """Predictions of each partition. The model is a task of its own, whose result goes to each worker once."""
    import dask

    model = dask.delayed(local, pure=False)
    if hasattr(X, "map_partitions") and hasattr(X, "columns"):
        import pandas

        if columns is None:
            meta: Any = pandas.Series(np.zeros(0, dtype=dtype), index=X._meta.index[:0], name=method)
        else:
            meta = pandas.DataFrame(np.zeros((0, len(columns))), index=X._meta.index[:0], columns=columns)
        return X.map_partitions(_predict_frame, model, method, dtype, columns, meta=meta, align_dataframes=False)
    import dask.array

    blocks = np.ravel(X.rechunk({1: -1}).to_delayed())
    tail = () if columns is None else (len(columns),)
    predict = dask.delayed(_predict_rows, pure=False)
    return dask.array.concatenate(
        [
            dask.array.from_delayed(predict(block, model, method, dtype, columns), (n, *tail), dtype=dtype)
            for block, n in zip(blocks, X.chunks[0], strict=True)
        ]
    )


def _predict_rows(X: Any, local: Any, method: str, dtype: np.dtype[Any], columns: Any) -> np.ndarray:
    if not len(X):
        return np.zeros((0,) if columns is None else (0, len(columns)), dtype=dtype)
    return getattr(local, method)(X)


def _predict_frame(X: Any, local: Any, method: str, dtype: np.dtype[Any], columns: Any) -> Any:
    import pandas

    found = _predict_rows(X, local, method, dtype, columns)
    if columns is None:
        return pandas.Series(found, index=X.index, name=method)
    return pandas.DataFrame(found, index=X.index, columns=columns)


@keyword_parameters
class DaskTreeEnsembleClassifier(_OnDask, TreeEnsembleClassifier):
    client: Annotated[Any, Unchecked("distributed.Client or None")] = _CLIENT
    strategy: Literal["auto", "members", "shards"] = _STRATEGY

    _LOCAL = TreeEnsembleClassifier

    def predict_proba(self, X: Any, offset: Any = None) -> Any:
        """Probabilities [n, k] of a table in memory, or lazily of one in partitions: a frame of a frame."""
        if not is_collection(X):
            return super().predict_proba(X, offset)
        return _by_partitions(X, self.to_local(), "predict_proba", np.dtype(np.float64), list(self.classes_))


@keyword_parameters
class DaskTreeEnsembleRegressor(_OnDask, TreeEnsembleRegressor):
    client: Annotated[Any, Unchecked("distributed.Client or None")] = _CLIENT
    strategy: Literal["auto", "members", "shards"] = _STRATEGY

    _LOCAL = TreeEnsembleRegressor


for _class, _what in ((DaskTreeEnsembleClassifier, "Classifier"), (DaskTreeEnsembleRegressor, "Regressor")):
    _class.__doc__ = f"{_what} for tables in partitions, on a Dask cluster." + _DESCRIPTION.format(
        parameters=parameters_section(_class), local=_class._LOCAL.__name__
    )
