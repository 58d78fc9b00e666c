"""Cells of lookup columns for training."""

from __future__ import annotations

import numpy as np
import pytest

from softwood import _core


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
