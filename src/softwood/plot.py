"""Pictures of a model with matplotlib: history, importances, a tree, the way of a row, activation functions.

Each function draws on an Axes (a new one if none is given) and returns it. Sizes suit one column of a paper. A tree's
nodes are as large as the share of rows that arrives; below `max_depth` a subtree is drawn as one leaf with its mean.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

try:
    import matplotlib
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError("softwood.plot needs matplotlib: pip install 'softwood[plot]'.") from error

from softwood.explain import decision_path, importances, usage
from softwood.explain.subject import check_tree, model_of
from softwood.explain.tree_view import TreeView, tree_view
from softwood.importance import left_probability

__all__ = ["plot_activations", "plot_history", "plot_importances", "plot_row_path", "plot_tree", "save_all"]

_COLOURS = {
    "training": "#0b6e4f",
    "validation": "#c8553d",
    "leaves": "#6c757d",
    "positive": "#2a6f97",
    "other": "#bc6c25",
}
_COLUMN_WIDTH = 3.5
_LEGEND = "\nleaves: blue raises the raw score, brown lowers it"


def _axes(ax: Any, height: float, width: float = _COLUMN_WIDTH) -> Any:
    if ax is not None:
        return ax
    figure = Figure(figsize=(width, height), layout="constrained", dpi=150)
    return figure.add_subplot()


def _tidy(ax: Any, *, grid: str = "y") -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=7)
    ax.grid(axis=grid, color="#dddddd", linewidth=0.5)
    ax.set_axisbelow(True)


def plot_history(estimator: Any, ax: Any = None) -> Any:
    """Losses and validation metric of each epoch (means over members), and mean reachable leaves on the right.

    Examples
    --------
    >>> from softwood import TreeEnsembleRegressor
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> regressor = TreeEnsembleRegressor(n_members=2, max_epochs=5, random_state=0).fit(X, X[:, 0])
    >>> plot_history(regressor).get_xlabel()
    'epoch'
    """
    model = model_of(estimator)
    history = model.history
    ax = _axes(ax, 2.4)
    epochs = np.array(history["epoch"]) + 1
    shown = np.unique(epochs)

    def mean(name: str) -> np.ndarray:
        values = np.array(history[name], dtype=float)
        return np.array([values[epochs == epoch].mean() for epoch in shown])

    ax.plot(shown, mean("train_loss"), color=_COLOURS["training"], label="training loss", linewidth=1.2)
    if np.isfinite(np.array(history["validation_loss"], dtype=float)).any():
        ax.plot(shown, mean("validation_loss"), color=_COLOURS["validation"], label="validation loss", linewidth=1.2)
        if np.isfinite(np.array(history.get("validation_metric", []), dtype=float)).any():
            name = "validation R²" if model.head.task == "regression" else "validation accuracy"
            ax.plot(
                shown, mean("validation_metric"), color=_COLOURS["positive"], label=name, linestyle="--", linewidth=1
            )
        for epoch in epochs[np.array(history["is_best"], dtype=bool)]:
            ax.axvline(epoch, color=_COLOURS["validation"], linewidth=0.5, alpha=0.4)
    leaves = ax.twinx()
    leaves.plot(shown, mean("mean_reachable_leaves"), color=_COLOURS["leaves"], linestyle=":", linewidth=1.2)
    leaves.set_ylabel("mean reachable leaves (dotted)", fontsize=7, color=_COLOURS["leaves"])
    leaves.set_ylim(bottom=0)
    leaves.tick_params(labelsize=7, colors=_COLOURS["leaves"])
    leaves.spines[["top", "left"]].set_visible(False)
    _tidy(ax)
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    ax.set_xlabel("epoch", fontsize=8)
    ax.set_ylabel("mean over members", fontsize=8)
    # Above the axes: three curves leave no corner free.
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 3, "columnspacing": 1, "handlelength": 1.4}
    ax.legend(fontsize=7, frameon=False, **place)
    return ax


def plot_importances(estimator: Any, ax: Any = None, *, n_columns: int = 15) -> Any:
    """The most important columns as bars, the largest on top."""
    found = importances(estimator)
    names, shares = zip(*found[:n_columns], strict=True)
    ax = _axes(ax, 0.6 + 0.17 * len(names))
    ax.barh(range(len(names)), shares, color=_COLOURS["training"], height=0.65)
    ax.set_yticks(range(len(names)), [_short(name, 28) for name in names])
    ax.invert_yaxis()
    _tidy(ax, grid="x")
    rest = sum(share for _, share in found[n_columns:])
    more = f"; {len(found) - n_columns} others: {rest:.2f}" if len(found) > n_columns else ""
    ax.set_xlabel(f"importance (share of 1{more})", fontsize=8)
    return ax


def plot_activations(ax: Any = None, *, gammas: tuple[float, ...] = (1.0, 3.0, 5.0)) -> Any:
    """Smooth-step for some widths of the soft band beside the logistic function: the paper's figure 1."""
    ax = _axes(ax, 2.4)
    t = np.linspace(-5, 5, 801)
    for gamma, shade in zip(gammas, np.linspace(1.0, 0.35, len(gammas)), strict=True):
        left = left_probability(t / gamma, "smooth_step")
        ax.plot(t, left, color=_COLOURS["positive"], alpha=shade, linewidth=1.3, label=f"smooth-step, γ = {gamma:g}")
    ax.plot(
        t, left_probability(t, "logistic"), color=_COLOURS["other"], linestyle="--", linewidth=1.3, label="logistic"
    )
    _tidy(ax)
    ax.set_xlabel("t", fontsize=8)
    ax.set_ylabel("probability of going left", fontsize=8)
    ax.legend(fontsize=7, frameon=False, loc="lower right")
    return ax


def plot_tree(
    estimator: Any, X: Any, ax: Any = None, *, member: int = 0, tree: int = 0, output: int = 0, max_depth: int = 6
) -> Any:
    """One tree: nodes as large as the traffic of the rows X, the strongest columns at each split, outputs at leaves.

    Parameters
    ----------
    estimator : fitted estimator or Model
    X : table
        Rows that are sent through the tree.
    ax : Axes, optional
    member, tree, output : int
        Which tree, and which raw score its leaves show.
    max_depth : int
        Levels of splits drawn at most.
    """
    model = model_of(estimator)
    check_tree(model, member, tree)
    traffic = usage(model, X).traffic[member][tree]
    view = tree_view(model, traffic, member=member, tree=tree, output=output, max_depth=max_depth)
    ax = _draw_tree(view, traffic, ax)
    ax.set_title(f"member {member}, tree {tree}: share of rows at each node{_LEGEND}", fontsize=8)
    return ax


def plot_row_path(
    estimator: Any,
    X: Any,
    row: int = 0,
    ax: Any = None,
    *,
    member: int = 0,
    tree: int = 0,
    output: int = 0,
    max_depth: int = 6,
) -> Any:
    """The way of one row through one tree: probability of arriving at each node, and what its leaves add."""
    model = model_of(estimator)
    check_tree(model, member, tree)
    path = decision_path(model, X, row)
    way = next(p for p in path.trees if (p.member, p.tree) == (member, tree))
    reach = np.zeros(2 * model.members[member].trees.leaf_weight.shape[1] - 1)
    reach[list(way.reach)] = list(way.reach.values())
    view = tree_view(model, reach, member=member, tree=tree, output=output, max_depth=max_depth)
    ax = _draw_tree(view, reach, ax)
    added = float(way.contribution[output])
    ax.set_title(f"row {row} in member {member}, tree {tree}: adds {added:+.3g} to the raw score{_LEGEND}", fontsize=8)
    return ax


def _draw_tree(view: TreeView, reach: np.ndarray, ax: Any) -> Any:
    """Draw nodes [x, level] with areas and edges by `reach`; nodes that nothing reaches are pale."""
    n_ends = sum(node.is_end for node in view.nodes)
    ax = _axes(ax, 1.0 + 0.85 * (view.depth + 1), max(_COLUMN_WIDTH * 2, 0.32 * n_ends))
    inches = ax.get_position().width * ax.figure.get_figwidth()
    place = {node.index: (node.x * n_ends, -node.level) for node in view.nodes}
    for node in view.nodes:
        for child in () if node.is_end else (2 * node.index + 1, 2 * node.index + 2):
            (x0, y0), (x1, y1), share = place[node.index], place[child], reach[child]
            ink = _COLOURS["leaves"] if share > 0 else "#dddddd"
            ax.plot([x0, x1], [y0, y1], color=ink, linewidth=0.4 + 3.5 * share, zorder=1, solid_capstyle="round")
    largest = max(abs(node.value) for node in view.nodes if node.is_end) or 1.0
    for node in view.nodes:
        x, y = place[node.index]
        share = float(reach[node.index])
        colour: Any = _COLOURS["training"] if share > 0 else "#eeeeee"
        if node.is_end and share > 0:
            side = "positive" if node.value >= 0 else "other"
            colour = _tint(_COLOURS[side], 0.25 + 0.75 * abs(node.value) / largest)
        ax.scatter([x], [y], s=12 + 260 * share, color=[colour], edgecolor="white", linewidth=0.5, zorder=2)
        _label_node(ax, node, (x, y), share, inches / 2**node.level)
    ax.set_xlim(-0.6, n_ends - 0.4)
    ax.set_ylim(-view.depth - 0.85, 0.65)
    ax.axis("off")
    return ax


def _tint(colour: str, strength: float) -> tuple[float, ...]:
    """The colour on white paper: a translucent one would show the edge below."""
    return tuple(1 - strength * (1 - part) for part in matplotlib.colors.to_rgb(colour))


def _label_node(ax: Any, node: Any, place: tuple[float, float], share: float, room: float) -> None:
    """Write value or columns beside a node that has `room` inches for itself."""
    ink = "#222222" if share > 0 else "#aaaaaa"
    paper = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.6}
    if node.is_end:
        text = f"{node.value:+.2g}" + (f" ({node.n_below} leaves)" if node.n_below > 1 else "")
        turned = 90 if room < 0.4 or node.n_below > 1 else 0
        ax.annotate(
            text, place, (0, -10), textcoords="offset points", ha="center", va="top", fontsize=5.5, rotation=turned,
            color=ink,
        )  # fmt: skip
        return
    length = int(room / 0.05)  # characters of this size that fit
    if length < 8:
        return
    lines = [_short(name, min(24, length)) for name in node.features[:2]]
    lines += [f"{share:.0%}"] if share > 0 else []
    ax.annotate(
        "\n".join(lines), place, (0, 9), textcoords="offset points", fontsize=5.5, ha="center", va="bottom", color=ink,
        bbox=paper, zorder=3,
    )  # fmt: skip


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"


def save_all(estimator: Any, X: Any, stem: str | os.PathLike[str]) -> dict[str, Path]:
    """Write history, importances and the tree that decides most as PNG files; return their paths by what they show."""
    from softwood.explain.tree_view import strongest_trees

    model = model_of(estimator)
    (member, tree), *_ = strongest_trees(model, X)
    pictures = {
        "history": plot_history(model),
        "importances": plot_importances(model),
        "tree": plot_tree(model, X, member=member, tree=tree),
    }
    return {name: save(ax, f"{os.fspath(stem)}-{name}.png") for name, ax in pictures.items()}


def save(ax: Any, path: str | os.PathLike[str]) -> Path:
    """Write the figure of an Axes to a file (.png, .pdf, .svg) that appears whole or not at all."""
    import io

    from softwood.modelfile import write_whole

    suffix = Path(path).suffix.lower().lstrip(".") or "png"
    if suffix not in ("png", "pdf", "svg"):
        raise ValueError(f"A picture's file name must end in .png, .pdf or .svg; got {os.fspath(path)!r}.")
    contents = io.BytesIO()
    ax.figure.savefig(contents, format=suffix, dpi=200)
    write_whole(path, contents.getvalue())
    return Path(path)
