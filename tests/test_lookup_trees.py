"""Trees of lookups: rounding of tables, what no row needs, counts, and prediction by the core."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from softwood import _core
from softwood.model.lookup_trees import LookupTrees, round_tables
from softwood.model.predictor import Predictor
from softwood.model.program import Link, PredictionHead, Program, TableColumn
from softwood.tabular.encoding.base_columns import Value
from softwood.tabular.encoding.lookups import ONE_FRACTION, Lookup

KNOTS = np.array([-1, 0, 0.25, 2], dtype=np.float32)
LOOKUPS = (Lookup(0, KNOTS), Lookup(1, KNOTS * 100), Lookup(2, np.array([0, 1], dtype=np.float32)))


def random_trees(depth=4, m=5, k=2, *, activation="smooth_step", spread=0.4, seed=0):
    rng = np.random.default_rng(seed)
    n_splits = m * (2**depth - 1)
    tables = [
        (split, c, rng.normal(size=lookup.n_entries) * spread)
        for split in range(n_splits)
        for c, lookup in enumerate(LOOKUPS)
        if rng.random() < 0.7
    ]
    arrays, step = round_tables(tables, n_splits, 1.0)
    return LookupTrees(
        **arrays,
        split_bias=rng.normal(size=(m, 2**depth - 1)).astype(np.float32) / 5,
        leaf_weight=rng.normal(size=(m, 2**depth, k)).astype(np.float32),
        offset=np.zeros(k, np.float32),
        step=step,
        gamma=1.0,
        activation=activation,
        n_trainable=0,
    )


def program_of(*members):
    k = len(members[0].offset)
    head = PredictionHead(Link.IDENTITY, None, np.zeros(k), np.ones(k))
    columns = tuple(TableColumn(f"x{j}", "numeric") for j in range(3))
    return Program(columns, tuple(Value(j) for j in range(3)), {}, members, head, lookups=LOOKUPS)


def cells(n, seed=1):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * [1, 100, 1]
    X[rng.random(X.shape) < 0.1] = np.nan
    X[0], X[1] = 3e38, -3e38
    X[2] = KNOTS[2]
    return X


def test_tables_are_rounded_to_a_step_and_those_of_zeros_are_left_out():
    tables = [(1, 0, np.array([0.5, 0.1, -0.3, 0, 0])), (0, 2, np.array([1e-4, 0, 0])), (1, 2, np.array([1.0, 0, 2]))]
    arrays, step = round_tables(tables, 3, 1.5)
    assert step == 1 / 256  # gamma / 256, rounded down to a power of two
    assert arrays["table_begin"].tolist() == [0, 0, 2, 2]
    assert arrays["table_column"].tolist() == [0, 2]
    assert arrays["values"].tolist() == [128, 26, -77, 0, 0, 256, 0, 512]


@pytest.mark.parametrize("largest", [300.0, 1e30])
def test_very_large_tables_have_a_larger_step(largest):
    arrays, step = round_tables([(0, c, np.array([largest, -largest, 0.0])) for c in range(3)], 1, 1.0)
    assert np.abs(arrays["values"].astype(int)).max() * step == pytest.approx(largest, rel=1e-4)
    assert 3 * np.abs(arrays["values"].astype(int)).max() < 2**16


def test_the_step_does_not_grow_with_the_number_of_splits():
    """The limit of a sum concerns the tables of one split, however many the ensemble has."""
    n_splits = 70_000
    arrays, step = round_tables([(i, 0, np.array([0.5, -0.5])) for i in range(n_splits)], n_splits, 1.0)
    assert step == 1 / 256
    assert len(arrays["table_column"]) == n_splits


def test_leaves_next_to_nothing_predict_nothing():
    trees = random_trees()
    tiny = replace(trees, leaf_weight=trees.leaf_weight * np.float32(1e-30), offset=np.array([1, 2], np.float32))
    np.testing.assert_allclose(Predictor(program_of(tiny)).predict(cells(5)), [[1, 2]] * 5, rtol=1e-12)


def test_no_tables_at_all():
    arrays, _ = round_tables([], 3, 1.0)
    assert arrays["table_begin"].tolist() == [0, 0, 0, 0]
    assert len(arrays["values"]) == 0


@pytest.mark.parametrize("activation", ["smooth_step", "smoother_step", "logistic"])
@pytest.mark.parametrize("depth", [1, 3, 4, 5, 8, 9])
def test_the_core_computes_what_the_interpreter_does(activation, depth):
    program = program_of(random_trees(depth, activation=activation), random_trees(2, m=2))
    X = cells(700)
    scores, _ = program.interpret(X)
    predictor = Predictor(program)
    bulk = predictor.raw_scores(X)
    np.testing.assert_allclose(bulk, scores, atol=2e-6)
    np.testing.assert_array_equal(predictor.raw_scores(X, n_threads=3), bulk)
    np.testing.assert_array_equal([predictor.raw_scores(row) for row in X[:60]], bulk[:60])
    np.testing.assert_array_equal(predictor.raw_scores(X[5:9]), bulk[5:9])


def test_values_by_hand():
    """One split on one number: t is -0.25 at the first knot, 0.25 at the last, and 0.5 where it is missing."""
    arrays, step = round_tables([(0, 2, np.array([-0.25, 0.25, 0.5]))], 1, 1.0)
    zero = np.zeros((1, 1), dtype=np.float32)
    leaves = np.array([[[1.0], [0.0]]], dtype=np.float32)
    trees = LookupTrees(**arrays, split_bias=zero, leaf_weight=leaves, offset=zero[0], step=step, gamma=1.0,
                        activation="smooth_step", n_trainable=3)  # fmt: skip
    X = np.array([[0, 0, -9], [0, 0, 0.5], [0, 0, 1], [0, 0, 99], [0, 0, np.nan]])
    expected = [-2 * t**3 + 1.5 * t + 0.5 for t in (-0.25, 0, 0.25, 0.25, 0.5)]
    program = program_of(trees)
    np.testing.assert_allclose(program.interpret(X)[0][:, 0], expected, atol=1e-7)
    np.testing.assert_allclose(Predictor(program).raw_scores(X)[:, 0], expected, atol=1e-7)


def test_tables_that_no_row_needs_are_dropped_and_scores_stay():
    trees = random_trees(5, spread=0.1)
    trees.split_bias[0, 0] = 3  # the root of the first tree always goes left
    trees.split_bias[1, 2] = -3
    lean = trees.without_idle_tables(LOOKUPS)
    begin = lean.table_begin.reshape(-1)
    right_half = [i for i in range(31) if is_below(i, 2)]
    assert begin[1] == 0  # no table at the root
    assert all(begin[i] == begin[i + 1] for i in right_half)
    assert len(lean.table_column) < len(trees.table_column) - 30
    X = cells(300)
    np.testing.assert_array_equal(Predictor(program_of(lean)).raw_scores(X), Predictor(program_of(trees)).raw_scores(X))
    assert random_trees(5, activation="logistic").without_idle_tables(LOOKUPS).table_begin[-1] > 0


def is_below(node, ancestor):
    while node > ancestor:
        node = (node - 1) // 2
    return node == ancestor


def test_a_lookup_reads_what_the_core_reads():
    """Entries and fractions, at knots, between, beyond, and where floats overflow."""
    big = Lookup(0, np.array([-3e38, 0, 3e38], dtype=np.float32))
    tiny = Lookup(0, np.array([0, 1e-45], dtype=np.float32))
    for lookup in (big, tiny, LOOKUPS[0]):
        x = np.concatenate([lookup.knots, np.linspace(-2, 3, 40), [3.3e38, -3.3e38, np.nan, 1e-45]]).astype(np.float32)
        entry, fraction = lookup.read(x[:, None])
        assert fraction.min() >= 0
        assert fraction.max() <= ONE_FRACTION
        np.testing.assert_array_equal(entry[: len(lookup.knots)], np.arange(len(lookup.knots)))
        assert entry[-2] == len(lookup.knots)


def bits():
    """Digest of the scores of some trees on this process's instruction set."""
    digest = hashlib.sha256()
    for depth in (3, 4, 7):
        for activation in ("smooth_step", "smoother_step"):
            predictor = Predictor(program_of(random_trees(depth, activation=activation)))
            digest.update(predictor.raw_scores(cells(150)).tobytes())
    return digest.hexdigest()


def test_same_bits_on_every_instruction_set():
    here = Path(__file__).parent
    program = f"import sys; sys.path.insert(0, {str(here)!r}); import test_lookup_trees as t; print(t.bits())"
    found = set()
    for isa in ("baseline", "avx2", "avx512"):
        run = subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"SOFTWOOD_ISA": isa}, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        found.add(run.stdout.strip())
    assert len(found) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table_column": np.array([9], np.int32)}, "a table has no lookup column"),
        ({"table_column": np.array([0, 0], np.int32), "table_begin": np.array([0, 2])}, "reads a column twice"),
        ({"table_begin": np.array([0, 5])}, "must follow each other"),
        ({"values": np.zeros(4, np.int16)}, "too few values"),
        ({"values": np.zeros(6, np.int16)}, "a value per entry"),
        ({"step": 0.3}, "powers of two"),
        ({"leaf_scale": 2.0**40}, "leaf_scale is too large"),
        ({"split_bias": np.zeros((1, 2), np.float32)}, "split_bias must be"),
    ],
)
def test_the_core_refuses_arrays_that_do_not_fit(change, message):
    lookups = {
        "table_begin": np.array([0, 1]),
        "table_column": np.array([0], np.int32),
        "values": np.zeros(5, np.int16),
        "split_bias": np.zeros((1, 1), np.float32),
        "leaf_weight": np.ones((1, 2, 1), np.float32),
        "step": 0.5,
        "leaf_scale": 1.0,
    }
    lookup = {"base_column": 0, "knots": KNOTS, "n_codes": 0}
    base = {"kind": 0, "source": 0, "offset": 0.0, "unit": 1.0, "n_levels": 0, "missing_code": -1, "means": []}
    head = {"link": 0, "target_mean": [0.0], "target_scale": [1.0], "quantile_rank": []}
    member = {"activation": 0, "gamma": 1.0, "offset": np.zeros(1, np.float32)}
    _core.Predictor(1, 1, [base], [], [lookup], [member | {"lookups": lookups}], head)
    with pytest.raises(ValueError, match=message):
        _core.Predictor(1, 1, [base], [], [lookup], [member | {"lookups": lookups | change}], head)
