"""Pictures hold what they should; how they look was judged by eye."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import softwood
from softwood import plot
from softwood.explain import decision_path
from softwood.explain.history import mean_history


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(size=(120, 20))


@pytest.fixture(scope="module")
def fitted(rows):
    settings = {"n_members": 2, "n_trees": 3, "depth": 3, "max_epochs": 4, "random_state": 0}
    return softwood.TreeEnsembleRegressor(**settings).fit(rows, rows[:, 4])


def texts(ax):
    return [text.get_text() for text in ax.texts]


def lines(ax):
    """(words, share) of each node of a tree."""
    return list(zip(texts(ax)[::2], texts(ax)[1::2], strict=True))


def test_history_shows_the_mean_over_members(fitted):
    ax = plot.plot_history(fitted)
    training, validation = ax.get_lines()[:2]
    history = fitted.history_
    first = [loss for loss, epoch in zip(history["train_loss"], history["epoch"], strict=True) if epoch == 0]
    assert training.get_ydata()[0] == pytest.approx(np.mean(first))
    assert training.get_xdata().tolist() == [1, 2, 3, 4]
    assert len(validation.get_ydata()) == 4
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["training loss", "validation loss", "validation R²"]


def test_a_member_that_has_stopped_counts_with_its_last_values(fitted):
    model = copy.copy(fitted.model_)
    model.history = {"member": [0, 0, 0, 1], "epoch": [0, 1, 2, 0], "train_loss": [4.0, 2.0, 1.0, 8.0]}
    assert mean_history(model)["train_loss"].tolist() == [6.0, 5.0, 4.5]


def test_importances_have_the_largest_on_top(fitted):
    ax = plot.plot_importances(fitted, n_columns=6)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert len(labels) == 6
    assert labels[0] == "x4"
    assert ax.yaxis_inverted()
    assert "14 others" in ax.get_xlabel()


def test_a_given_axes_is_drawn_on(fitted, rows):
    ax = Figure().add_subplot()
    assert plot.plot_history(fitted, ax) is ax
    assert plot.plot_tree(fitted, rows, ax) is ax
    assert plot.plot_activations(ax) is ax


def test_a_tree_has_a_mark_for_each_node_and_sizes_by_traffic(fitted, rows):
    ax = plot.plot_tree(fitted, rows, member=1, tree=2)
    assert len(ax.collections) == 15
    sizes = [mark.get_sizes()[0] for mark in ax.collections]
    assert sizes[0] == max(sizes)
    assert sizes[1] + sizes[2] == pytest.approx(sizes[0] + 12)
    assert "100%" in texts(ax)


def test_a_deep_tree_is_collapsed(rows):
    deep = softwood.TreeEnsembleRegressor(n_members=1, n_trees=1, depth=6, max_epochs=1, random_state=0)
    ax = plot.plot_tree(deep.fit(rows, rows[:, 0]), rows, max_depth=2)
    assert len(ax.collections) == 7
    assert sum("(16 leaves)" in text for text in texts(ax)) == 4


def test_the_busiest_splits_are_unfolded_first(rows):
    deep = softwood.TreeEnsembleRegressor(n_members=1, n_trees=1, depth=6, max_epochs=9, random_state=0)
    deep.fit(rows, rows[:, 0])
    ax = plot.plot_tree(deep, rows, max_nodes=21)
    assert len(ax.collections) == 21
    assert ax.figure.get_figwidth() == pytest.approx(3.3)
    folded = [float(share.strip("<%")) for text, share in lines(ax) if "leaves)" in text]
    opened = [float(share.strip("<%")) for text, share in lines(ax) if text.startswith("x")]
    assert folded
    assert max(folded) <= min(opened)
    assert len(plot.plot_tree(deep, rows).collections) == 47


def test_texts_stay_within_a_column_of_a_paper(rows):
    names = [f"a column with a long name, number {j}" for j in range(20)]
    table = pd.DataFrame(rows, columns=names)
    deep = softwood.TreeEnsembleRegressor(n_members=1, n_trees=1, depth=7, max_epochs=9, random_state=0)
    ax = plot.plot_tree(deep.fit(table, rows[:, 0]), table)
    ax.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in (*ax.texts, ax.title)]
    assert min(box.x0 for box in boxes) >= 0
    assert max(box.x1 for box in boxes) <= ax.figure.bbox.width
    words, shares = boxes[0:-1:2], boxes[1:-1:2]
    assert all(word.x1 < share.x0 for word, share in zip(words, shares, strict=True))


def test_the_path_of_a_row_says_what_the_tree_adds(fitted, rows):
    way = next(w for w in decision_path(fitted, rows, 5).trees if (w.member, w.tree) == (0, 1))
    title = plot.plot_row_path(fitted, rows, 5, member=0, tree=1).get_title()
    assert title.startswith(f"row 5 in member 0, tree 1: adds {way.contribution[0]:+.3g} to the raw score")
    with pytest.raises(ValueError, match=r"The tree must be 0 to 2; got 9\."):
        plot.plot_row_path(fitted, rows, tree=9)


def test_activations_are_hard_outside_the_band():
    ax = plot.plot_activations(gammas=(2.0,))
    smooth, logistic = ax.get_lines()
    t, left = smooth.get_data()
    assert np.all(left[t <= -1] == 0)
    assert np.all(left[t >= 1] == 1)
    assert 0 < logistic.get_ydata()[0] < 0.01


def test_pictures_are_written_whole(fitted, rows, tmp_path):
    files = plot.save_all(fitted, rows, tmp_path / "m")
    assert sorted(files) == ["history", "importances", "tree"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files.values())
    with pytest.raises(ValueError, match=r"must end in .png, .pdf or .svg; got 'a.bmp'"):
        plot.save(plot.plot_activations(), "a.bmp")
    assert len(list(tmp_path.iterdir())) == 3


def test_letters_that_the_font_lacks_are_reported_once(fitted, rows, tmp_path):
    ax = plot.plot_importances(fitted)
    ax.set_xlabel("城市")
    with pytest.warns(UserWarning, match="The font has no letters for some names") as said:
        plot.save(ax, tmp_path / "a.png")
    assert len(said) == 1
