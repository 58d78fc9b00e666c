"""Hypothesis settings and the random ensembles that several test modules use."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from own_process import (  # noqa: F401 - hooks
    pytest_configure,
    pytest_runtest_protocol,
    pytest_runtestloop,
    pytest_sessionfinish,
)
from parquet_tables import frame, labelled, long  # noqa: F401 - fixtures

# Deterministic, so that a red run is red again; "quick" serves the runs that repeat a module per instruction set.
settings.register_profile("full", max_examples=150, deadline=None, derandomize=True)
settings.register_profile("quick", max_examples=40, deadline=None, derandomize=True)
settings.load_profile(os.environ.get("SOFTWOOD_TEST_PROFILE", "full"))


# A shell starts jobs in the background with Ctrl-C ignored, and they inherit it: tests that send one would never end.
signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass
class Problem:
    """A batch, an ensemble and a gradient of the output."""

    x: Any
    split_weight: Any
    leaf_weight: Any
    grad_output: Any
    split_bias: Any = None
    settings: dict[str, Any] = field(default_factory=dict)  # activation, gamma, sum_trees

    @property
    def arrays(self) -> tuple[Any, Any, Any]:
        return self.x, self.split_weight, self.leaf_weight

    @property
    def options(self) -> dict[str, Any]:
        return {"split_bias": self.split_bias, **self.settings}

    @property
    def routing(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name != "sum_trees"}


@pytest.fixture
def make_problem():
    """Random problems; `spread` is the standard deviation of t in units of gamma: the larger, the fewer leaves."""

    def make(
        n=20, p=5, k=3, m=4, d=3, *, dtype=np.float64, spread=1.0, gamma=1.0, activation="smooth_step",
        bias=False, sum_trees=True, seed=0,
    ) -> Problem:  # fmt: skip
        rng = np.random.default_rng(seed)

        def normal(*shape, scale=1.0):
            return (rng.normal(size=shape) * scale).astype(dtype)

        return Problem(
            x=normal(n, p),
            split_weight=normal(m, 2**d - 1, p, scale=spread * gamma / np.sqrt(p)),
            leaf_weight=normal(m, 2**d, k),
            grad_output=normal(*((n, k) if sum_trees else (n, m, k))),
            split_bias=normal(m, 2**d - 1, scale=spread * gamma / 2) if bias else None,
            settings={"activation": activation, "gamma": gamma, "sum_trees": sum_trees},
        )

    return make
