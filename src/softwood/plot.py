"""Pictures of fitted models with matplotlib: the public name of `softwood.explain.plot`."""

from softwood.explain.plot import (
    plot_activations,
    plot_history,
    plot_importances,
    plot_row_path,
    plot_tree,
    save,
    save_all,
)

__all__ = ["plot_activations", "plot_history", "plot_importances", "plot_row_path", "plot_tree", "save", "save_all"]
