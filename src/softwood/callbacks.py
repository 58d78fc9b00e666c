"""Ready callbacks for the estimators: logging, pruning of Optuna trials, time lines in TensorBoard and MLflow.

A callback is any callable that takes an `EpochSummary`; the fit stops, and keeps its best epoch, when it returns True.
Optuna, TensorBoard and MLflow are imported when their callback is made.
"""

from __future__ import annotations

import logging
import math
import os
from typing import Any

from softwood.training.progress import EPOCH_VALUES, EpochSummary

__all__ = ["EpochSummary", "LogEpochs", "MLflowMetrics", "OptunaPruning", "TensorBoardScalars"]


def _values(summary: EpochSummary) -> dict[str, float]:
    """All finite numbers of an epoch by name."""
    values = {name: getattr(summary, name) for name in EPOCH_VALUES} | summary.metrics
    return {name: value for name, value in values.items() if math.isfinite(value)}


class LogEpochs:
    """Writes a line per epoch to a logger of the standard library.

    Parameters
    ----------
    logger : logging.Logger, optional
        The logger "softwood" if None.
    level : int
    every : int
        Number of epochs between two lines.

    Examples
    --------
    >>> import logging, sys
    >>> from sklearn.datasets import load_iris
    >>> import softwood
    >>> from softwood.callbacks import LogEpochs
    >>> logger = logging.getLogger("example")
    >>> logger.addHandler(logging.StreamHandler(sys.stdout))
    >>> logger.setLevel(logging.INFO)
    >>> callbacks = [LogEpochs(logger, every=2), lambda summary: summary.epoch == 2]  # the second stops the fit
    >>> model = softwood.TreeEnsembleClassifier(n_members=1, callbacks=callbacks, random_state=0)
    >>> model = model.fit(*load_iris(return_X_y=True))  # doctest: +ELLIPSIS
    epoch 0: train_loss 1.0..., validation_loss ...
    epoch 2: train_loss ...
    >>> model.n_iter_
    3
    """

    def __init__(self, logger: logging.Logger | None = None, *, level: int = logging.INFO, every: int = 1) -> None:
        self.logger = logging.getLogger("softwood") if logger is None else logger
        self.level = level
        self.every = every

    def __call__(self, summary: EpochSummary) -> None:
        """Log one epoch."""
        if summary.step % self.every == 0:
            line = ", ".join(f"{name} {value:.6g}" for name, value in _values(summary).items())
            self.logger.log(self.level, "epoch %d: %s", summary.epoch, line)


class OptunaPruning:
    """Reports each epoch to an Optuna trial, and raises `optuna.TrialPruned` if the trial is not worth continuing.

    Parameters
    ----------
    trial : optuna.Trial
    value : str
        Attribute of `EpochSummary`, or name of one of its `metrics`.

    Examples
    --------
    >>> import optuna
    >>> from sklearn.datasets import load_iris
    >>> import softwood
    >>> from softwood.callbacks import OptunaPruning
    >>> X, y = load_iris(return_X_y=True)
    >>> def objective(trial):
    ...     rate = trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)
    ...     callbacks = [OptunaPruning(trial)]
    ...     model = softwood.TreeEnsembleClassifier(n_members=1, max_epochs=5, learning_rate=rate, callbacks=callbacks)
    ...     return model.fit(X, y).best_score_
    >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
    >>> study = optuna.create_study()
    >>> study.optimize(objective, n_trials=2)
    >>> len(study.trials)
    2
    """

    def __init__(self, trial: Any, value: str = "validation_loss") -> None:
        self.trial = trial
        self.value = value

    def __call__(self, summary: EpochSummary) -> None:
        """Report one epoch."""
        import optuna

        values = _values(summary)
        if self.value not in values:
            raise ValueError(f"value must be one of {', '.join(values)}; got {self.value!r}.")
        self.trial.report(values[self.value], summary.step)
        if self.trial.should_prune():
            raise optuna.TrialPruned(f"Pruned after epoch {summary.epoch}, {self.value} {values[self.value]:.6g}.")


class TensorBoardScalars:
    """Writes all numbers of each epoch for TensorBoard, by the writer of PyTorch or of tensorboardX.

    Parameters
    ----------
    log_dir : path, optional
        Where the event files go. Copies of the callback, as `sklearn.base.clone` makes them, write files of their own.
    writer : optional
        Anything with `add_scalar(name, value, step)`, instead of `log_dir`.

    Attributes
    ----------
    writer
        The writer; None before the first epoch. `writer.close()` waits until everything is on disk.
    """

    def __init__(self, log_dir: str | os.PathLike[str] | None = None, *, writer: Any = None) -> None:
        self.log_dir = log_dir
        self.writer = writer
        self._writer_type = _summary_writer() if writer is None else None

    def __call__(self, summary: EpochSummary) -> None:
        """Write one epoch."""
        if self.writer is None:
            assert self._writer_type is not None
            where = None if self.log_dir is None else os.fspath(self.log_dir)
            self.writer = self._writer_type(where, flush_secs=1)  # the default is two minutes
        for name, value in _values(summary).items():
            self.writer.add_scalar(name, value, summary.step)
        if hasattr(self.writer, "flush"):
            self.writer.flush()

    def __getstate__(self) -> dict[str, Any]:
        """All but a writer of our own: it has a thread and an open file."""
        return self.__dict__ | ({} if self._writer_type is None else {"writer": None})


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ImportError(
                "TensorBoardScalars needs torch and tensorboard, or tensorboardX: pip install tensorboardX"
            ) from None
    return SummaryWriter


class MLflowMetrics:
    """Logs all numbers of each epoch to the active run of MLflow.

    Parameters
    ----------
    run_id : str, optional
        Log to this run instead of the active one.
    """

    def __init__(self, run_id: str | None = None) -> None:
        try:
            import mlflow
        except ImportError:
            raise ImportError("MLflowMetrics needs the mlflow package: pip install mlflow") from None
        self.log_metrics = mlflow.log_metrics
        self.options = {} if run_id is None else {"run_id": run_id}

    def __call__(self, summary: EpochSummary) -> None:
        """Log one epoch."""
        self.log_metrics(_values(summary), step=summary.step, **self.options)
