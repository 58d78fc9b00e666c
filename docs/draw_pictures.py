"""Draw the pictures of README.md, docs/how-it-works.md and the tutorials: python docs/draw_pictures.py

The picture of ranks is drawn from benchmarks/suite.json, those of the tutorials by running their pages.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from softwood import reference

DOCS = Path(__file__).resolve().parent
BENCHMARKS = DOCS.parent / "benchmarks"
FOLDER = DOCS / "images"
REACHED, SOFT, QUIET = "#1b6ca8", "#d97706", "#c9ced6"
DEPTH = 4
# The paper's example: node -> probability of going left; all other nodes on the way decide.
LEFT = {0: 0.8, 1: 1.0, 2: 0.0, 3: 0.3, 6: 1.0, 7: 1.0, 8: 0.0, 13: 1.0}
LEAVES = {15: 1.5, 18: -2.0, 27: 2.1}


def draw_smooth_step(path: Path) -> None:
    """S(t) with its band, and the logistic function."""
    t = np.linspace(-2, 2, 400)
    figure, axes = plt.subplots(figsize=(6, 2.4), layout="constrained")
    axes.axvspan(-0.5, 0.5, color=SOFT, alpha=0.12, linewidth=0)
    axes.plot(t, reference.route(t, "smooth_step", 1.0).left, color=REACHED, linewidth=2, label="smooth-step, gamma 1")
    axes.plot(t, reference.route(t, "logistic", 0.25).left, color="grey", linestyle="--", label="logistic")
    axes.text(0.16, 0.1, "goes both ways", ha="center", color=SOFT, fontsize=9)
    axes.text(-1.25, 0.12, "always right", ha="center", color=REACHED, fontsize=9)
    axes.text(1.25, 0.84, "always left", ha="center", color=REACHED, fontsize=9)
    axes.set(xlabel="t, the value of the split", ylabel="probability of left", xlim=(-2, 2))
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    plt.close(figure)


def reach() -> dict[int, float]:
    """Probability of each node that the row reaches."""
    found = {0: 1.0}
    for node in range(2**DEPTH - 1):
        if node in found:
            for child, share in ((2 * node + 1, LEFT[node]), (2 * node + 2, 1 - LEFT[node])):
                if share > 0:
                    found[child] = found[node] * share
    return found


def place(node: int) -> tuple[float, float]:
    """Where a node stands: x from 0 to 1, y down from 0."""
    level = (node + 1).bit_length() - 1
    return (node + 1 - 2**level + 0.5) / 2**level, -float(level)


def draw_reach(path: Path) -> None:
    """The tree, with the reached part in colour."""
    found = reach()
    figure, axes = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    for node in range(1, 2 ** (DEPTH + 1) - 1):
        (x, y), (parent_x, parent_y) = place(node), place((node - 1) // 2)
        is_on = node in found
        axes.plot(
            [parent_x, x], [parent_y, y], color=REACHED if is_on else QUIET, linewidth=2 if is_on else 1, zorder=1
        )
    for node in range(2 ** (DEPTH + 1) - 1):
        x, y = place(node)
        is_soft = 0 < LEFT.get(node, 0) < 1 and node in found
        colour = SOFT if is_soft else REACHED if node in found else QUIET
        is_leaf = node >= 2**DEPTH - 1
        axes.scatter(x, y, s=70 if node in found else 28, color=colour, marker="s" if is_leaf else "o", zorder=2)
        if is_soft:
            words = f"{LEFT[node]:g} left, {1 - LEFT[node]:g} right"
            axes.text(x - 0.02, y + 0.2, words, ha="right", color=SOFT, fontsize=9)
        if is_leaf and node in found:
            value = LEAVES[node]
            words = f"{found[node]:.2g} × {value:g}" if value >= 0 else f"{found[node]:.2g} × ({value:g})"
            axes.text(x, y - 0.3, words, ha="center", va="top", color=REACHED, fontsize=9)
    axes.set(ylim=(-DEPTH - 0.8, 0.5))
    axes.axis("off")
    figure.savefig(path)
    plt.close(figure)


def draw_ranks(path: Path) -> None:
    """Mean rank against the number of rows, of all learners of the suite."""
    sys.path.insert(0, str(BENCHMARKS))
    import suite_report
    import suite_units

    suite_report.draw(suite_units.read_summary(BENCHMARKS / "suite.json"), path)


def draw_tutorials(folder: Path) -> None:
    """Run the tutorials and keep the pictures that they show, as tutorial_*.svg."""
    for page in sorted((DOCS / "tutorials").glob("*.md")):
        text = page.read_text()
        if shown := re.findall(r"images/tutorial_(\w+\.svg)", text):
            blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
            with tempfile.TemporaryDirectory() as place, chdir(place):
                exec(compile("\n".join(blocks), str(page), "exec"), {"__name__": "__main__"})
                for name in shown:
                    (folder / f"tutorial_{name}").write_bytes(Path(name).read_bytes())


if __name__ == "__main__":
    plt.rcParams["svg.hashsalt"] = "softwood"  # the same file for the same picture
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    draw_smooth_step(FOLDER / "how_smooth_step.svg")
    draw_reach(FOLDER / "how_reach.svg")
    draw_ranks(FOLDER / "suite_rank.svg")
    draw_tutorials(FOLDER)
    value = sum(probability * LEAVES[node] for node, probability in reach().items() if node in LEAVES)
    print(f"the example's output: {value:.2f}")
