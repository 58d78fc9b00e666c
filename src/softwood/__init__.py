"""softwood: soft decision trees that route hard.

`softwood.ops` has the tree ensemble layer on NumPy arrays; `softwood.reference` is its readable definition.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

from softwood import ops
from softwood.ops import get_num_threads, set_num_threads

__all__ = ["get_num_threads", "ops", "reference", "set_num_threads"]
__version__ = version("softwood")

# Imported when first asked for, so that `import softwood` stays light.
_LAZY_MODULES = frozenset(
    {"explain", "export", "jax", "keras", "losses", "plot", "reference", "report", "torch", "training", "tune"}
)
_LAZY_NAMES: dict[str, str] = {  # name -> the module that defines it
    "TreeEnsembleClassifier": "softwood.estimators",
    "TreeEnsembleRegressor": "softwood.estimators",
    "load": "softwood.estimators",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return importlib.import_module(f"softwood.{name}")
    if name in _LAZY_NAMES:
        return getattr(importlib.import_module(_LAZY_NAMES[name]), name)
    raise AttributeError(f"module 'softwood' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_MODULES, *_LAZY_NAMES})
