"""Cells and scores of fitted trees of lookups."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lookup_cases import Problem, category, native_scores, number
from lookup_reference import native_columns
from softwood import _core


def fitted(problem: Problem, sources=None):
    arrays = {name: problem.arrays[name] for name in ("block_columns", "split_bias", "leaf_weight", "offset")}
    n_rows = sum(problem.columns[c].n_entries for c in problem.block_columns.ravel())
    arrays["values"] = np.empty((n_rows, 16), np.float32)
    columns = native_columns(problem.columns)
    _core.lookup_values(columns, problem.block_columns, problem.arrays["table"], arrays["values"], 2)
    return _core.LookupTrees(problem.settings, columns, arrays, sources)


def predicted(trees, cells, k, n_threads=1):
    scores, leaves = np.empty((len(cells), k), np.float32), np.empty(len(cells), np.int32)
    trees.scores(cells, scores, leaves, n_threads)
    return scores, leaves


@pytest.mark.parametrize("depth", range(1, 10))
@pytest.mark.parametrize("activation", range(3))
def test_scores_and_leaves(depth, activation):
    problem = Problem(depth=depth, spread=0.5, settings={"activation": activation})
    scores, leaves = predicted(fitted(problem), problem.cells, 2)
    np.testing.assert_allclose(scores, problem.forest.scores(problem.cells, problem.arrays), atol=5e-6)
    np.testing.assert_array_equal(leaves, problem.forest.reached_leaves(problem.cells, problem.arrays).sum(axis=1))
    np.testing.assert_allclose(scores, native_scores(problem), atol=5e-6)


@pytest.mark.parametrize("depth", [4, 6])
def test_a_row_alone_has_the_same_bits_as_in_any_batch(depth):
    problem = Problem(depth=depth, n_trees=20, n_rows=700)
    trees = fitted(problem)
    scores, leaves = predicted(trees, problem.cells, 2)
    for n_threads in (2, 3):
        again = predicted(trees, problem.cells, 2, n_threads)
        np.testing.assert_array_equal(scores, again[0])
        np.testing.assert_array_equal(leaves, again[1])
    for i in (0, 127, 128, 131, 699):
        np.testing.assert_array_equal(predicted(trees, problem.cells[i : i + 1], 2)[0], scores[i : i + 1])


def bits() -> str:
    """A digest of scores, for a process of its own on each instruction set."""
    digest = hashlib.sha256()
    for depth in (3, 4, 7):
        for activation in range(3):
            problem = Problem(depth=depth, n_trees=9, n_rows=150, settings={"activation": activation})
            # Values are rounded, so that those of every instruction set are the same.
            problem.arrays["table"] = np.round(problem.arrays["table"] * 16) / 16
            for column in problem.columns:
                for name in ("ramp_scale", "ramp_mean", "linear", "level_scale", "level_mean"):
                    if (array := getattr(column, name)) is not None:
                        setattr(column, name, np.round(array * 16) / 16)
            digest.update(predicted(fitted(problem), problem.cells, 2)[0].tobytes())
    return digest.hexdigest()


def test_same_bits_on_every_instruction_set():
    here = Path(__file__).parent
    program = f"import sys; sys.path.insert(0, {str(here)!r}); import test_lookup_predictor as t; print(t.bits())"
    found = set()
    for isa in ("baseline", "avx2", "avx512"):
        run = subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"SOFTWOOD_ISA": isa}, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        found.add(run.stdout.strip())
    assert len(found) == 1


def sources(**changes):
    """Two numbers and a category; their entries: 3 knots and missing; 2 knots and missing; 3 codes, unseen, missing."""
    arrays = {
        "base_column": np.array([2, 0, 1], np.int32),
        "n_knots": np.array([3, 2, 0], np.int32),
        "n_codes": np.array([0, 0, 3], np.int32),
        "missing_entry": np.array([3, 2, 4], np.int32),
        "unseen_entry": np.array([3, 2, 3], np.int32),
        "knots": np.array([-1, 0.5, 2, 10, 20], np.float32),
    }
    return arrays | changes


def test_cells_by_hand():
    nan, inf = np.nan, np.inf
    base = np.array(
        [[15, 0, -1], [10, 2, 0.5], [20, 3, 2], [nan, nan, nan], [inf, -1, -inf], [9, 0.5, 1.25]], np.float32
    )
    expected = np.array([[0, 0, 0], [1, 0, 2], [2, 1, 3], [3, 2, 4], [0, 1, 3], [1, 0, 3]])
    fraction = np.zeros((6, 3))
    fraction[0, 1], fraction[5, 0] = 0.5, 0.5
    for n_threads in (1, 2):
        cells = np.empty((6, 3), np.uint32)
        _core.lookup_cells(sources(), base, cells, n_threads)
        np.testing.assert_array_equal(cells & 0xFFFF, expected)
        np.testing.assert_array_equal(cells >> 16, np.rint(fraction * 65535))


def test_cells_against_numpy():
    random = np.random.default_rng(0)
    knots = np.unique(random.normal(size=50)).astype(np.float32)
    x = np.concatenate([random.normal(size=2000) * 2, knots]).astype(np.float32)[:, None]
    one = {name: np.array([value], np.int32) for name, value in dict(base_column=0, n_knots=50, n_codes=0).items()}
    one |= {"missing_entry": np.array([50], np.int32), "unseen_entry": np.array([50], np.int32), "knots": knots}
    cells = np.empty((len(x), 1), np.uint32)
    _core.lookup_cells(one, x, cells, 2)
    entry, fraction = (cells & 0xFFFF)[:, 0].astype(int), (cells >> 16)[:, 0] / 65535
    upper = np.minimum(entry + 1, 49)
    back = knots[entry] + fraction * (knots[upper] - knots[entry])
    np.testing.assert_allclose(back, np.clip(x[:, 0], knots[0], knots[-1]), atol=1e-4)
    assert np.all(fraction[-50:] == 0)
    assert np.array_equal(entry[-50:], np.arange(50))


def test_scores_of_base_rows():
    random = np.random.default_rng(1)
    base = random.normal(size=(200, 3)).astype(np.float32) * 10
    base[:, 1] = random.integers(-1, 5, size=200)
    base[random.random(base.shape) < 0.1] = np.nan
    columns = [number(random, 3, n_levels=1), number(random, 2, n_levels=1), category(random, 5)]
    problem = Problem(depth=5, columns=columns, n_block_columns=2)
    trees = fitted(problem, sources())
    cells = np.empty((200, 3), np.uint32)
    _core.lookup_cells(sources(), base, cells, 1)
    by_cells, leaves = predicted(trees, cells, 2)
    for n_threads in (1, 3):
        scores, reached = np.empty_like(by_cells), np.empty_like(leaves)
        trees.scores_of_base(base, scores, reached, n_threads)
        np.testing.assert_array_equal(scores, by_cells)
        np.testing.assert_array_equal(reached, leaves)
    with pytest.raises(ValueError, match="base column that does not exist"):
        trees.scores_of_base(base[:, :2], scores, None, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"knots": np.array([1, 0.5, 2, 10, 20], np.float32)}, "must increase"),
        ({"knots": np.array([-1, 0.5, 2, 10], np.float32)}, "n_knots knots per column"),
        ({"n_codes": np.array([0, 0, -3], np.int32)}, "n_codes must be 0 to 65536"),
        ({"base_column": np.array([0, 1, 3], np.int32)}, "base column that does not exist"),
        ({"missing_entry": np.array([0, 1, 2**16], np.int32)}, "entries must be below 65536"),
    ],
)
def test_wrong_sources_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        _core.lookup_cells(sources(**change), np.zeros((4, 3), np.float32), np.empty((4, 3), np.uint32), 1)


def test_cells_that_do_not_fit_are_refused():
    problem = Problem()
    trees = fitted(problem)
    cells = problem.cells.copy()
    cells[7, 3] = 3
    with pytest.raises(ValueError, match="row 7, column 3"):
        predicted(trees, cells, 2)
    with pytest.raises(ValueError, match="does not fit its lookup column"):
        fitted(Problem(columns=problem.columns[:3], n_block_columns=2), sources())
