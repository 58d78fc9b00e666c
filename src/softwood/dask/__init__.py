"""Estimators for Dask: tables in partitions, members and shards as tasks, predictions partition by partition.

`estimators` has the classes, `collections` reads Dask's collections, `members` trains members as independent tasks,
`shards` and `rounds` one model over rows that no single worker could hold. docs/scaling.md says when to use which.
"""

try:
    import distributed  # noqa: F401
except ImportError as error:
    raise ImportError("softwood.dask needs Dask, which is not installed: pip install 'softwood[dask]'") from error

from softwood.dask.estimators import DaskTreeEnsembleClassifier, DaskTreeEnsembleRegressor
from softwood.dask.rounds import Traffic

__all__ = ["DaskTreeEnsembleClassifier", "DaskTreeEnsembleRegressor", "Traffic"]
