"""Search for hyperparameters with Optuna: the public name of `softwood.cli.tune`."""

from softwood.cli.tune import Best, Search, best_so_far, run_search

__all__ = ["Best", "Search", "best_so_far", "run_search"]
