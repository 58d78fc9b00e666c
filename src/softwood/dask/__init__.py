"""Estimators for Dask: tables in partitions, members and shards as tasks, predictions partition by partition.

`estimators` has the classes, `collections` reads Dask's collections, `members` trains members as independent tasks,
`shards` and `rounds` one model over rows that no worker could hold. Which way is for whom is told in docs/scaling.md.
"""

from softwood.dask.estimators import DaskTreeEnsembleClassifier, DaskTreeEnsembleRegressor
from softwood.dask.rounds import Traffic

__all__ = ["DaskTreeEnsembleClassifier", "DaskTreeEnsembleRegressor", "Traffic"]
