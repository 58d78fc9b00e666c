"""How many threads the parameter `n_jobs` of an estimator means."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads, _openmp_parallelism_enabled

from softwood.ops import get_num_threads

_FEW_ROWS = 8


def threads_for(n_jobs: int | None, X: Any = None) -> int | None:
    """Threads for `n_jobs`: negative numbers count back from all cores, None is the library's setting.

    None also respects the limits of joblib and threadpoolctl, which scikit-learn's OpenMP knows. Few rows X are
    predicted by the calling thread: asking for the limits would take longer.
    """
    if n_jobs is None and type(X) is np.ndarray and len(X) <= _FEW_ROWS:
        return 1
    if n_jobs is None:
        limit = _openmp_effective_n_threads(only_physical_cores=False) if _openmp_parallelism_enabled() else None
        return limit if limit is None else min(limit, get_num_threads())
    if n_jobs > 0:
        return n_jobs
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores + 1 + n_jobs)
