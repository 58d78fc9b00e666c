"""Sketches of pieces of a table: what is learned from them is what is learned from the table, however it is cut."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pandas as pd
import pytest

from softwood import TreeEnsembleClassifier
from softwood.tabular.encoding.columns import learn_columns
from softwood.tabular.encoding.features import LOOKUP
from softwood.tabular.out_of_core import sketch as sketch_module
from softwood.tabular.out_of_core.outline import LevelSums, Outline
from softwood.tabular.out_of_core.sketch import make_piece, merge, sketch
from softwood.tabular.reading.table import read_table
from softwood.tabular.target import TargetKind

CLASSES, NUMBERS = TargetKind(is_classification=True), TargetKind(is_classification=False)
PARAMS = TreeEnsembleClassifier().get_params()


def awkward_table(n=900, seed=0):
    """Spikes, missing cells, dates, huge numbers close to each other, few and many categories, a constant."""
    rng = np.random.default_rng(seed)
    spiky = np.where(rng.random(n) < 0.6, 0.0, rng.normal(size=n))
    spiky[rng.random(n) < 0.1] = np.nan
    return pd.DataFrame(
        {
            "spiky": spiky,
            "count": rng.integers(0, 5, n),
            "near": 1e9 + rng.random(n),
            "when": pd.Timestamp("2020-01-31") + pd.to_timedelta(rng.integers(0, 40, n), unit="h"),
            "colour": rng.choice(["red", "green", None], n),
            "city": [f"city {i}" for i in rng.integers(0, 40, n)],
            "same": np.ones(n),
        }
    )


def pieces_of(X, y, target, ends, **more):
    kinds = read_table(X).kinds
    found = []
    for first, end in zip([0, *ends], [*ends, len(X)], strict=True):
        table = read_table(X.iloc[first:end], kinds=kinds)
        some = {name: values[first:end] for name, values in more.items()}
        found.append(make_piece(table, y[first:end], target, first_row=first, **some))
    return [piece for piece in found if piece is not None]


def learned(pieces, target, fold=reduce, **params):
    outline = Outline.of(fold(merge, [sketch(piece, target) for piece in pieces]), target, PARAMS | params)
    sums = sum((outline.level_sums(piece) for piece in pieces), LevelSums())
    return outline, outline.learn(sums)


def test_what_is_learned_equals_that_of_the_table_in_memory():
    X = awkward_table()
    y = np.random.default_rng(1).normal(size=len(X)) * 7 + 3
    outline, encoder = learned(pieces_of(X, y, NUMBERS, [100, 101, 500]), NUMBERS)

    table = read_table(X)
    problem = NUMBERS.problem(y, len(y))
    expected = learn_columns(table)
    assert outline.preprocessor.columns == expected.columns
    assert expected.columns[3].calendar == ("month", "weekday", "hour")
    base = expected.read(table)
    head = problem.fit_head(np.arange(len(y)), problem.weight)
    np.testing.assert_allclose(encoder.head.target_mean, head.target_mean, rtol=1e-12)
    np.testing.assert_allclose(encoder.head.target_scale, head.target_scale, rtol=1e-12)
    lookups = expected.learn_encodings(
        base, names=(LOOKUP,), n_bins=outline.params["n_bins"], rows=np.arange(len(y)), weight=problem.weight
    )
    is_mean = [column.base_column == base.shape[1] - 1 for column in encoder.lookups.columns]  # of "city"
    for column, other in zip(encoder.lookups.columns, lookups.columns, strict=False):
        assert column.base_column == other.base_column
        np.testing.assert_array_equal(column.knots, other.knots)
        np.testing.assert_allclose(column.ramp_scale, other.ramp_scale, rtol=1e-6)
        np.testing.assert_allclose(column.level_mean, other.level_mean, rtol=1e-6)
    assert is_mean[-1]
    assert len(encoder.lookups.columns) == len(lookups.columns) + 1  # target means are not learned there


def test_target_means_leave_out_the_fold_of_a_row():
    X = awkward_table(3000)[["city"]]
    y = np.array([int(city[5:]) for city in X["city"]], dtype=float)
    pieces = pieces_of(X, y, NUMBERS, [1000, 1700])
    outline, encoder = learned(pieces, NUMBERS)
    means = outline.preprocessor.target_means[0][:-1, 0]
    levels = outline.preprocessor.columns[0].levels
    np.testing.assert_allclose(means, [float(level[5:]) for level in levels], atol=0.01)  # no noise: no smoothing
    lonely = pieces_of(X, np.where(np.arange(3000) == 7, 1e6, 0.0), NUMBERS, [])
    _, encoder = learned(lonely, NUMBERS)
    fold, code = lonely[0].fold[7], levels.index(X["city"][7])
    assert encoder.crossed[0][fold, code, 0] == pytest.approx(0, abs=1e-3)  # its own target is not in its mean
    assert encoder.crossed[0][(fold + 1) % 5, code, 0] > 1


@pytest.mark.parametrize("target", [CLASSES, NUMBERS])
def test_the_same_bits_however_pieces_are_grouped(target):
    X = awkward_table(600)
    rng = np.random.default_rng(2)
    y = rng.choice(["a", "b", "c"], 600) if target is CLASSES else rng.normal(size=600)
    pieces = pieces_of(X, y, target, [50, 200, 333, 400], sample_weight=rng.random(600))

    def from_the_right(function, sketches):
        return sketches[0] if len(sketches) == 1 else function(sketches[0], from_the_right(function, sketches[1:]))

    def in_pairs(function, sketches):
        while len(sketches) > 1:
            pairs = [sketches[i : i + 2] for i in range(0, len(sketches), 2)]
            sketches = [function(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        return sketches[0]

    checksums = {learned(pieces, target, fold)[1].checksum() for fold in (reduce, from_the_right, in_pairs)}
    assert len(checksums) == 1
    others = pieces_of(X.assign(count=X["count"] * 2), y, target, [50, 200, 333, 400])
    assert learned(others, target)[1].checksum() not in checksums


def test_a_sample_is_the_same_however_the_table_is_cut(monkeypatch):
    monkeypatch.setattr(sketch_module, "SAMPLE_ROWS", 100)
    X, y = awkward_table(), np.arange(900.0)
    samples = [
        reduce(merge, [sketch(piece, NUMBERS) for piece in pieces_of(X, y, NUMBERS, ends)]).sample
        for ends in ([], [10, 450], list(range(100, 900, 100)))
    ]
    for sample in samples:
        assert len(sample.y) == 100
        np.testing.assert_array_equal(sample.numbers, samples[0].numbers)
        np.testing.assert_array_equal(sample.y, sample.numbers)
    assert 350 < samples[0].y.mean() < 550  # drawn from the whole table


def test_cells_of_pieces_are_those_of_the_table():
    X = awkward_table()
    y = np.random.default_rng(3).choice(["no", "yes"], len(X))
    _, encoder = learned(pieces_of(X, y, CLASSES, []), CLASSES)
    whole = encoder.encode(pieces_of(X, y, CLASSES, [])[0])
    parts = [encoder.encode(piece) for piece in pieces_of(X, y, CLASSES, [17, 600])]
    np.testing.assert_array_equal(np.concatenate([part.cells for part in parts]), whole.cells)
    np.testing.assert_array_equal(whole.targets[:, 0], y == "yes")
    assert whole.weight is None


def test_weights_classes_and_offsets():
    X = awkward_table(400)[["spiky", "count"]]
    y = np.array(["rare"] * 40 + ["often"] * 360)
    weight = np.tile([0.0, 2.0], 200)
    target = TargetKind(is_classification=True, class_weight="balanced")
    outline, encoder = learned(pieces_of(X, y, target, [150], sample_weight=weight), target)
    assert outline.facts.n_rows == 200  # rows of weight 0 count for nothing
    rows = encoder.encode(pieces_of(X, y, target, [], sample_weight=weight)[0])
    assert rows.weight.mean() == pytest.approx(1, rel=1e-6)
    by_class = [rows.weight[rows.targets[:, 0] == c].sum() for c in range(2)]
    assert by_class[0] == pytest.approx(by_class[1])

    counts, exposure = np.arange(400) % 3 + 1.0, np.linspace(1, 2, 400)
    kind = TargetKind(is_classification=False, loss="poisson")
    pieces = pieces_of(X, counts, kind, [150], offset=np.log(exposure))
    _, encoder = learned(pieces, kind)
    np.testing.assert_allclose(encoder.encode(pieces[1]).offset[:, 0], np.log(exposure[150:]), rtol=1e-6)
    kind = TargetKind(is_classification=False)
    _, encoder = learned(pieces_of(X, counts, kind, [150], offset=counts - 5), kind)
    np.testing.assert_allclose(encoder.head.target_mean, 5)  # of what the offset leaves to be learned


def test_a_target_that_is_constant_in_all_pieces():
    X = awkward_table(100)
    _, encoder = learned(pieces_of(X, np.full(100, 4.0), NUMBERS, [30]), NUMBERS)
    assert encoder.head.target_mean[0] == 4
    assert encoder.head.target_scale[0] < 1e-5


def test_bad_pieces(monkeypatch):
    X = awkward_table(20)
    with pytest.raises(ValueError, match="row 107 has nan"):
        make_piece(read_table(X), np.where(np.arange(20) == 7, np.nan, 1.0), NUMBERS, first_row=100)
    with pytest.raises(ValueError, match="sample_weight must hold finite numbers of at least 0"):
        make_piece(read_table(X), np.ones(20), NUMBERS, first_row=0, sample_weight=-np.ones(20))
    assert make_piece(read_table(X), np.ones(20), NUMBERS, first_row=0, sample_weight=np.zeros(20)) is None
    one_class = pieces_of(X, np.array(["a"] * 20), CLASSES, [10])
    with pytest.raises(ValueError, match="rows of at least two classes"):
        learned(one_class, CLASSES)
    a, b = (sketch(pieces_of(some, np.arange(20.0), NUMBERS, [])[0], NUMBERS) for some in (X, X.drop(columns="when")))
    with pytest.raises(ValueError, match="Pieces of a table must have the same columns"):
        merge(a, b)
    with pytest.raises(ValueError, match="all columns are constant"):
        learned(pieces_of(X[["same"]], np.arange(20.0), NUMBERS, []), NUMBERS)
    monkeypatch.setattr(sketch_module, "MAX_LEVELS", 5)
    with pytest.raises(ValueError, match="at most 5 levels; column 'city' has more"):
        sketch(pieces_of(X, np.arange(20.0), NUMBERS, [])[0], NUMBERS)
