"""Pictures of a model with matplotlib: history, importances, a tree, the way of a row, activation functions.

Each function draws on an Axes (a new one if none is given) and returns it. Sizes suit one column of a paper. A tree is
drawn as an outline, a line for each node; what has no room is drawn as one leaf with its mean.
"""

from __future__ import annotations

import heapq
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

try:
    import matplotlib
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError("softwood.explain.plot needs matplotlib: pip install 'softwood[plot]'.") from error

from softwood import reference
from softwood.explain import decision_path, importances, tree_traffic
from softwood.explain.history import mean_history
from softwood.explain.tree_view import TreeView, ViewNode, check_tree, tree_view
from softwood.model.model import model_of

__all__ = [
    "plot_activations",
    "plot_compression",
    "plot_history",
    "plot_importances",
    "plot_row_path",
    "plot_tree",
    "save",
    "save_all",
]

_COLOURS = {
    "training": "#0b6e4f",
    "validation": "#c8553d",
    "leaves": "#6c757d",
    "positive": "#2a6f97",
    "other": "#bc6c25",
}
_PALE = "#d5d5d5"
# In inches: a column of a paper, and a line and a level of a tree.
_COLUMN_WIDTH = 3.3
_LINE_HEIGHT = 0.125
_INDENT = 0.15
_LEGEND = "upper branch: left; leaves: blue raises the raw score, brown lowers it"


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
    history = mean_history(model)
    ax = _axes(ax, 2.4)

    def draw(on: Any, name: str, colour: str, **style: Any) -> bool:
        is_known = bool(np.isfinite(history[name]).any())
        if is_known:
            on.plot(history["epoch"], history[name], color=_COLOURS[colour], **style)
        return is_known

    draw(ax, "train_loss", "training", label="training loss", linewidth=1.2)
    if draw(ax, "validation_loss", "validation", label="validation loss", linewidth=1.2):
        name = "validation R²" if model.head.task == "regression" else "validation accuracy"
        draw(ax, "validation_metric", "positive", label=name, linestyle="--", linewidth=1)
        for epoch in np.array(model.history["epoch"])[np.array(model.history["is_best"], dtype=bool)] + 1:
            ax.axvline(epoch, color=_COLOURS["validation"], linewidth=0.5, alpha=0.4)
    leaves = ax.twinx()
    draw(leaves, "mean_reachable_leaves", "leaves", linestyle=":", linewidth=1.2)
    leaves.set_ylabel("mean reachable leaves (dotted)", fontsize=7, color=_COLOURS["leaves"])
    leaves.set_ylim(bottom=0)
    leaves.tick_params(labelsize=7, colors=_COLOURS["leaves"])
    leaves.spines[["top", "left"]].set_visible(False)
    _tidy(ax)
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    ax.set_xlabel("epoch", fontsize=8)
    ax.set_ylabel("loss, R²" if model.head.task == "regression" else "loss, accuracy", fontsize=8)
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
    ax.set_xlabel(f"importance (share of 1{more})", fontsize=8, loc="right")  # long names leave little room
    return ax


def plot_compression(estimator: Any, ax: Any = None) -> Any:
    """Expected rise of the loss against stored parameters, for each stage of each ensemble that `compress` tried.

    Parameters
    ----------
    estimator
        What `compress` returned.
    ax : matplotlib Axes, optional

    Returns
    -------
    Axes
    """
    found = getattr(estimator, "compression_", None)
    if found is None:
        raise ValueError("plot_compression needs an estimator that compress returned; this one was not compressed.")
    ax = _axes(ax, 2.2)
    sizes = [trial["n_parameters"] for trial in found.tried]
    losses = [max(100 * trial["expected_loss"], 1e-3) for trial in found.tried]
    ax.plot(sizes, losses, "o-", color=_COLOURS["training"], markersize=4)
    following = [*(trial["n_trees"] for trial in found.tried[1:]), None]
    for trial, after, size, loss in zip(found.tried, following, sizes, losses, strict=True):
        if trial["n_trees"] != after:  # the last stage of an ensemble
            ax.annotate(
                f"{trial['n_trees']} trees", (size, loss), textcoords="offset points", xytext=(4, 4), fontsize=7
            )
    ax.axvline(found.before.n_parameters, color=_COLOURS["leaves"], linestyle=":")
    ax.annotate("before", (found.before.n_parameters, max(losses)), ha="right", fontsize=7, rotation=90, va="top")
    ax.set(xscale="log", yscale="log", xlabel="stored parameters", ylabel="expected rise of the loss (%)")
    _tidy(ax)
    return ax


def plot_activations(ax: Any = None, *, gammas: tuple[float, ...] = (1.0, 3.0, 5.0)) -> Any:
    """Smooth-step for some widths of the soft band beside the logistic function: the paper's figure 1."""
    ax = _axes(ax, 2.4)
    t = np.linspace(-5, 5, 801)
    for gamma, shade in zip(gammas, np.linspace(1.0, 0.35, len(gammas)), strict=True):
        left = reference.route(t, "smooth_step", gamma).left
        ax.plot(t, left, color=_COLOURS["positive"], alpha=shade, linewidth=1.3, label=f"smooth-step, γ = {gamma:g}")
    logistic = reference.route(t, "logistic", 1.0).left
    ax.plot(t, logistic, color=_COLOURS["other"], linestyle="--", linewidth=1.3, label="logistic")
    _tidy(ax)
    ax.set_xlabel("t", fontsize=8)
    ax.set_ylabel("probability of going left", fontsize=8)
    ax.legend(fontsize=7, frameon=False, loc="lower right")
    return ax


def plot_tree(
    estimator: Any,
    X: Any,
    ax: Any = None,
    *,
    member: int = 0,
    tree: int = 0,
    output: int = 0,
    max_depth: int = 6,
    max_nodes: int = 47,
) -> Any:
    """One tree as an outline: a line for each node, the strongest columns of splits, what leaves add.

    Discs are as large, and branches as thick, as the share of the rows X that arrives; the upper of two branches is
    the left one.

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
    max_nodes : int
        Nodes drawn at most. The busiest splits are unfolded first; a subtree that is not unfolded is drawn as one leaf
        with its mean.
    """
    model = model_of(estimator)
    check_tree(model, member, tree)
    (traffic,) = tree_traffic(model, X, [(member, tree)])
    view = tree_view(model, traffic, member=member, tree=tree, output=output, max_depth=max_depth)
    ax = _draw_tree(view, traffic, ax, max_nodes)
    ax.set_title(f"member {member}, tree {tree}: share of rows at each node\n{_LEGEND}", fontsize=6.5)
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
    max_nodes: int = 47,
) -> Any:
    """The way of one row through one tree, drawn as by `plot_tree`; the numbers are probabilities of arriving."""
    model = model_of(estimator)
    check_tree(model, member, tree)
    path = decision_path(model, X, row)
    way = next(p for p in path.trees if (p.member, p.tree) == (member, tree))
    reach = np.zeros(2 * model.members[member].trees.leaf_weight.shape[1] - 1)
    reach[list(way.reach)] = list(way.reach.values())
    view = tree_view(model, reach, member=member, tree=tree, output=output, max_depth=max_depth)
    ax = _draw_tree(view, reach, ax, max_nodes)
    added = float(way.contribution[output])
    what = f"row {row} in member {member}, tree {tree}: adds {added:+.3g} to the raw score"
    ax.set_title(f"{what}\n{_LEGEND}", fontsize=6.5)
    return ax


def _draw_tree(view: TreeView, reach: np.ndarray, ax: Any, max_nodes: int) -> Any:
    """Draw the outline of a tree; nodes that nothing reaches are pale."""
    shown = _unfolded(view, reach, max_nodes)
    ax = _axes(ax, 0.45 + _LINE_HEIGHT * len(shown))
    line_of = {i: line for line, i in enumerate(shown)}
    ends = [view.nodes[i] for i in shown if 2 * i + 1 not in line_of]
    largest = max(abs(node.value) for node in ends) or 1.0
    width = ax.get_position().width * ax.figure.get_figwidth() / _INDENT  # in steps of one level
    for i in sorted(shown):
        node, share, line = view.nodes[i], float(reach[i]), line_of[i]
        ink = _COLOURS["leaves"] if share > 0 else _PALE
        if i > 0:
            parent = (i - 1) // 2
            x, y = [node.level - 1, node.level - 1, node.level], [line_of[parent], line, line]
            ax.plot(x, y, color=ink, linewidth=0.5 + 2.5 * share, zorder=share, solid_joinstyle="miter")
        is_end = 2 * i + 1 not in line_of
        colour: Any = _COLOURS["training"] if share > 0 else _PALE
        if is_end and share > 0:
            colour = _tint(_COLOURS["positive" if node.value >= 0 else "other"], 0.3 + 0.7 * abs(node.value) / largest)
        ax.scatter([node.level], [line], s=12 + 55 * share, color=[colour], edgecolor="white", linewidth=0.4, zorder=2)
        style = {"fontsize": 6, "va": "center", "color": "#222222" if share > 0 else "#999999", "zorder": 3}
        room = int((width - node.level - 3) * _INDENT / 0.044)  # characters of this size
        ax.text(node.level + 0.55, line, _words(node, room, is_end=is_end), **style)
        ax.text(width - 1.2, line, f"{share:.0%}" if share >= 0.005 or share == 0 else "<1%", ha="right", **style)
    ax.set_xlim(-0.7, width - 0.7)
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.axis("off")
    return ax


def _unfolded(view: TreeView, reach: np.ndarray, max_nodes: int) -> list[int]:
    """Nodes to draw, from top to bottom: the busiest splits are unfolded first."""
    shown, waiting = {0}, [(-reach[0], 0)]
    while waiting and len(shown) + 2 <= max_nodes:
        _, i = heapq.heappop(waiting)
        if view.nodes[i].is_end or reach[i] == 0:
            continue
        for child in (2 * i + 1, 2 * i + 2):
            shown.add(child)
            heapq.heappush(waiting, (-reach[child], child))
    ordered, stack = [], [0]
    while stack:
        i = stack.pop()
        ordered.append(i)
        stack += [child for child in (2 * i + 2, 2 * i + 1) if child in shown]
    return ordered


def _words(node: ViewNode, room: int, *, is_end: bool) -> str:
    """What a node does, in at most `room` characters."""
    if not is_end:
        return _short(", ".join(node.features[:2]), max(room, 4))
    value = f"{node.value:+.2g}".replace("-", "−")
    return f"{value} ({node.n_below} leaves)" if node.n_below > 1 else value


def _tint(colour: str, strength: float) -> tuple[float, ...]:
    """The colour on white paper: a translucent one would show the edge below."""
    return tuple(1 - strength * (1 - part) for part in matplotlib.colors.to_rgb(colour))


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

    from softwood.model.whole_file import write_whole

    suffix = Path(path).suffix.lower().lstrip(".") or "png"
    if suffix not in ("png", "pdf", "svg"):
        raise ValueError(f"A picture's file name must end in .png, .pdf or .svg; got {os.fspath(path)!r}.")
    contents = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ax.figure.savefig(contents, format=suffix, dpi=200)
    write_whole(path, contents.getvalue())
    missing = [warning for warning in caught if "missing from font" in str(warning.message)]  # one for each letter
    if missing:
        warnings.warn(
            "The font has no letters for some names, and draws boxes. Install one that has, and name it: "
            "matplotlib.rcParams['font.family'] = ['DejaVu Sans', 'Noto Sans CJK SC'], or in a matplotlibrc file.",
            stacklevel=2,
        )
    for warning in caught:
        if warning not in missing:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return Path(path)
