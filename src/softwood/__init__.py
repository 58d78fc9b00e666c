"""softwood: soft decision trees that route hard.

`TreeEnsembleClassifier` and `TreeEnsembleRegressor` learn from tables, `load` reads what they saved, `Loss` says what
they minimise, `export` writes them as C or ONNX. `ops` has the tree ensemble layer on NumPy arrays, `reference` is its
readable definition; `softwood.torch`, `softwood.keras` and `softwood.jax` have it for neural networks.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from softwood import ops
from softwood.ops import get_num_threads, set_num_threads

if TYPE_CHECKING:
    from softwood import callbacks as callbacks
    from softwood import dask as dask
    from softwood import explain as explain
    from softwood import export as export
    from softwood import jax as jax
    from softwood import keras as keras
    from softwood import losses as losses
    from softwood import model as model
    from softwood import plot as plot
    from softwood import reference as reference
    from softwood import report as report
    from softwood import torch as torch
    from softwood import training as training
    from softwood import tune as tune
    from softwood.estimators import TreeEnsembleClassifier, TreeEnsembleRegressor
    from softwood.model.predictor import load_predictor
    from softwood.tabular.loading import load
    from softwood.training.losses import Loss

__all__ = [
    "TreeEnsembleClassifier",
    "TreeEnsembleRegressor",
    "load",
    "load_predictor",
    "Loss",
    "explain",
    "export",
    "ops",
    "reference",
    "get_num_threads",
    "set_num_threads",
    "__version__",
]
__version__ = version("softwood")

# Imported on first use, so that `import softwood` stays light. Type checkers read the imports above instead.
_LAZY_MODULES = frozenset(
    {
        "callbacks",
        "dask",
        "explain",
        "export",
        "jax",
        "keras",
        "losses",
        "model",
        "plot",
        "reference",
        "report",
        "torch",
        "training",
        "tune",
    }
)
_LAZY_NAMES: dict[str, str] = {  # name -> the module that defines it
    "Loss": "softwood.training.losses",
    "TreeEnsembleClassifier": "softwood.estimators",
    "TreeEnsembleRegressor": "softwood.estimators",
    "load": "softwood.tabular.loading",
    "load_predictor": "softwood.model.predictor",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        import importlib

        if name in _LAZY_MODULES:
            return importlib.import_module(f"softwood.{name}")
        if name in _LAZY_NAMES:
            return getattr(importlib.import_module(_LAZY_NAMES[name]), name)
        raise AttributeError(f"module 'softwood' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_MODULES, *_LAZY_NAMES})
