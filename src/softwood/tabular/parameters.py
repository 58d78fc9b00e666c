"""Checks of the estimators' constructor parameters, made once, in `fit`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from softwood.arguments import ACTIVATIONS, MAX_DEPTH
from softwood.tabular.features import ENCODING_NAMES
from softwood.training.losses import LOSS_NAMES, Loss

_Check = tuple[Callable[[Any], bool], str]


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _integer(least: int, most: float = math.inf) -> _Check:
    words = f"an integer of at least {least}" if most == math.inf else f"an integer from {least} to {most}"
    return lambda v: _is_integer(v) and least <= v <= most, words


def _number(above: float, most: float = math.inf, *, inclusive: bool = False) -> _Check:
    words = f"a number {'of at least' if inclusive else 'above'} {above:g}"
    words += "" if most == math.inf else f" and at most {most:g}"

    def check(v: Any) -> bool:
        if not isinstance(v, Real) or isinstance(v, bool) or not math.isfinite(v):
            return False
        value = float(v)
        return (value >= above if inclusive else value > above) and value <= most

    return check, words


def _one_of(*values: Any) -> _Check:
    names = [repr(value) for value in values]
    words = " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return lambda v: any(v is value or (isinstance(v, str) and v == value) for value in values), words


def _either(*checks: _Check) -> _Check:
    return lambda v: any(check(v) for check, _ in checks), ", or ".join(words for _, words in checks)


_CHECKS: dict[str, _Check] = {
    "n_trees": _integer(1),
    "depth": _integer(1, MAX_DEPTH),
    "gamma": _number(0),
    "gamma_end": _either(_number(0), _one_of(None)),
    "activation": _one_of(*ACTIVATIONS),
    "max_features": _number(0, 1),
    "n_members": _integer(1),
    "learning_rate": _number(0),
    "batch_size": _integer(1),
    "max_epochs": _integer(1),
    "patience": _either(_integer(1), _one_of(None)),
    "validation_fraction": _either(_number(0, 0.5), _one_of(None)),
    "l1": _either(_number(0, inclusive=True), _one_of("auto")),
    "l2": _number(0, inclusive=True),
    "weight_decay": _either(_number(0, inclusive=True), _one_of("auto")),
    "batch_norm": _one_of(True, False, "fixed"),
    "optimizer": _one_of("auto", "adam", "lazy_adam"),
    "loss": (
        lambda v: callable(v) or isinstance(v, Loss) or (isinstance(v, str) and v in ("auto", *LOSS_NAMES)),
        f"'auto', a Loss, a callable or one of {', '.join(map(repr, LOSS_NAMES))}",
    ),
    "encoding": _one_of("auto", *ENCODING_NAMES),
    "warm_start": _one_of(True, False),
    "time_limit": _either(_number(0), _one_of(None)),
    "n_jobs": (lambda v: v is None or (_is_integer(v) and v != 0), "an integer other than 0, or None"),
    "verbose": _either(_integer(0), _one_of(True, False)),
}


def check_parameters(params: Mapping[str, Any]) -> None:
    """Raise a ValueError for the first parameter that is not as it should be.

    Examples
    --------
    >>> check_parameters({"depth": 21})
    Traceback (most recent call last):
    ...
    ValueError: depth must be an integer from 1 to 20; got 21.
    """
    for name, (check, words) in _CHECKS.items():
        if name in params and not check(params[name]):
            raise ValueError(f"{name} must be {words}; got {params[name]!r}.")


def n_threads_for(n_jobs: int | None) -> int | None:
    """Threads for `n_jobs`: None is the library's setting, and negative numbers count back from all cores."""
    if n_jobs is None or n_jobs > 0:
        return n_jobs
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores + 1 + n_jobs)


def plain_parameters(params: Mapping[str, Any]) -> dict[str, Any]:
    """Those parameters that JSON can hold; functions, generators and Loss objects are left out."""
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
