"""Random prediction programs: every back end against the NumPy interpreter.

A program is drawn as a model, so that lowering it is tested, too: columns of all kinds, base columns, features of all
kinds, trees of several depths and activations with and without batch normalisation, trees of lookups, and every head.
Its cells are
numbers, dates, codes, missing and far outside. The native predictor, compiled C, ONNX and PyTorch must then give what
`Program.interpret` gives.
"""

from __future__ import annotations

import ctypes
import pickle
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softwood.arguments import ACTIVATIONS
from softwood.export import export
from softwood.model.lookup_trees import LookupTrees, round_tables
from softwood.model.model import Model
from softwood.model.parts import BatchNorm, Head, ModelMember, Trees
from softwood.model.predictor import Predictor
from softwood.model.program import FoldedMember, Link, PredictionHead, Program, TableColumn, TreeGroup
from softwood.tabular.encoding.base_columns import CalendarPart, CalendarUnit, Code, TargetMean, Value
from softwood.tabular.encoding.columns import MAX_ONE_HOT_LEVELS, Column, Preprocessor
from softwood.tabular.encoding.features import ENCODING_NAMES, LOOKUP, Encoding, FeatureKind
from softwood.tabular.encoding.lookups import Lookup
from softwood.training.losses import Loss

COMPILER = shutil.which("cc")
N_ROWS = 24


@dataclass
class Case:
    """A model, rows of numbers for it [n, columns] (categories by code), and the same rows as a table."""

    model: Model
    cells: np.ndarray
    table: pd.DataFrame


# Drawing a model ------------------------------------------------------------------------------------------------------


@st.composite
def columns(draw, name):
    kind = draw(st.sampled_from(["plain", "far", "large", "small", "boolean", "datetime", "category", "many"]))
    if kind in ("category", "many"):
        n_levels = draw(st.integers(1, 4)) if kind == "category" else MAX_ONE_HOT_LEVELS + draw(st.integers(1, 3))
        levels = tuple(f"{name} level {i}" for i in range(n_levels))
        return Column(name, "category", levels=(*levels, None) if draw(st.booleans()) else levels)
    if kind == "datetime":
        calendar = tuple(unit.value for unit in CalendarUnit if draw(st.booleans()))
        return Column(name, kind, offset=draw(st.sampled_from([0.0, 1.5e9])), calendar=calendar)
    offset, unit = {"far": (1e7, 1.0), "large": (0.0, 1e31), "small": (0.0, 1e-31)}.get(kind, (0.0, 1.0))
    return Column(name, "boolean" if kind == "boolean" else "numeric", offset, unit)


def draw_cells(rng, column):
    """Cells [n] of one column: usual ones, missing ones, some that training cannot have seen."""
    if column.levels is not None:
        cells = rng.integers(-1, len(column.levels), N_ROWS).astype(float)
    elif column.kind == "datetime":
        cells = rng.uniform(-4e9, 4e9, N_ROWS)
        cells[:2] = 1e18, -1e18
    elif column.kind == "boolean":
        cells = rng.integers(0, 2, N_ROWS).astype(float)
    else:
        cells = rng.normal(size=N_ROWS) * column.unit + column.offset
        cells[:2] = 1e300, -1e39
    cells[2] = np.nan
    cells[rng.random(N_ROWS) < 0.1] = np.nan
    return cells


def as_labels(column, cells):
    """The same cells as a data frame holds them."""
    if column.levels is None:
        return cells
    labels = [None if np.isnan(c) else "not seen" if c < 0 else column.levels[int(c)] for c in cells]
    return np.array(labels, dtype=object)


@st.composite
def encodings(draw, rng, base):
    """Features of random kinds whose parameters lie among the values of their base columns [n, q]."""
    kinds = sorted(draw(st.lists(st.sampled_from(FeatureKind), min_size=1, max_size=9)))
    source = rng.integers(0, base.shape[1], len(kinds))
    rows = []
    for kind, b in zip(kinds, source, strict=True):
        usual = base[2:, b].astype(np.float64)
        usual = usual[~np.isnan(usual)] if not np.isnan(usual).all() else np.zeros(1)
        spread = float(usual.std()) or 1.0
        start = float(rng.choice(usual)) if kind is not FeatureKind.MISSING else 0.0
        rate = rng.uniform(0.3, 2) / spread
        mean, scale = (usual.mean(), rate) if kind is FeatureKind.LINEAR else (rng.normal() / 3, rng.uniform(0.3, 3))
        rows.append((start, rate, mean, scale))
    start, rate, mean, scale = np.array(rows, dtype=np.float32).T.copy()
    if draw(st.booleans()):  # a scale that weights cannot absorb
        scale[rng.integers(len(scale))] = 0
    return Encoding(source.astype(np.int32), np.array(kinds, dtype=np.uint8), start, rate, mean, scale)


@st.composite
def members(draw, rng, encodings, n_scores):
    encoding = draw(st.sampled_from(sorted(encodings)))
    p, m, d = encodings[encoding].n_features, draw(st.integers(1, 4)), draw(st.integers(1, 4))
    gamma = draw(st.sampled_from([0.3, 1.0, 2.5]))

    def normal(*shape, scale=1.0):
        return (rng.normal(size=shape) * scale).astype(np.float32)

    split_weight = normal(m, 2**d - 1, p, scale=gamma / np.sqrt(p))
    split_bias = normal(m, 2**d - 1, scale=gamma) if draw(st.booleans()) else None
    leaf_weight = normal(m, 2**d, n_scores)
    if draw(st.booleans()):  # subtrees that lowering drops
        split_weight[rng.random(split_weight.shape[:2]) < 0.3] = 0
        leaf_weight[rng.random(leaf_weight.shape[:2]) < 0.5] = 1
    norm = None
    if draw(st.booleans()):
        variance, scale = (rng.uniform(0.5, 2, p).astype(np.float32) for _ in range(2))
        norm = BatchNorm(normal(p, scale=0.3), variance, scale, normal(p, scale=0.3), epsilon=1e-3, n_rows=10)
    activation = draw(st.sampled_from(sorted(ACTIVATIONS)))
    trees = Trees(split_weight, split_bias, leaf_weight, normal(n_scores), gamma, activation, norm)
    return ModelMember(encoding, trees)


@st.composite
def lookups(draw, rng, base_columns, base):
    """Lookups of some base columns [n, q], with knots among their values."""
    found = []
    for b, column in enumerate(base_columns):
        if draw(st.booleans()) and found:
            continue
        if isinstance(column, Code):
            found.append(Lookup(b, np.zeros(0, np.float32), draw(st.integers(0, len(column.levels)))))
            continue
        usual = np.unique(base[2:, b][~np.isnan(base[2:, b])])
        usual = usual if len(usual) > 1 else np.array([-1, 0.5], dtype=np.float32)
        n_knots = draw(st.integers(2, min(9, len(usual))))
        found.append(Lookup(b, np.sort(rng.choice(usual, n_knots, replace=False)).astype(np.float32)))
    return tuple(found)


@st.composite
def lookup_members(draw, rng, lookups, n_scores):
    m, d = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    gamma = draw(st.sampled_from([0.3, 1.0, 2.5]))
    scale = gamma * draw(st.sampled_from([0.3, 1.0, 1e-3]))
    n_splits = m * (2**d - 1)
    tables = [
        (split, c, rng.normal(size=lookup.n_entries) * scale)
        for split in range(n_splits)
        for c, lookup in enumerate(lookups)
        if rng.random() < 0.5
    ]
    arrays, step = round_tables(tables, n_splits, gamma)
    trees = LookupTrees(
        **arrays,
        split_bias=(rng.normal(size=(m, 2**d - 1)) * gamma / 3).astype(np.float32),
        leaf_weight=rng.normal(size=(m, 2**d, n_scores)).astype(np.float32),
        offset=rng.normal(size=n_scores).astype(np.float32),
        step=step,
        gamma=gamma,
        activation=draw(st.sampled_from(sorted(ACTIVATIONS))),
        n_trainable=0,
    )
    return ModelMember(LOOKUP, trees.without_idle_tables(lookups) if draw(st.booleans()) else trees)


@st.composite
def heads(draw, rng):
    """A head, and the number of scores that it needs."""
    kind = draw(st.sampled_from(["quantile", "binary", "multiclass", "multilabel", "squared_error", "poisson"]))
    if kind in ("binary", "multiclass", "multilabel"):
        k = {"binary": 2, "multiclass": draw(st.integers(3, 4))}.get(kind, draw(st.integers(2, 4)))
        classes = draw(st.sampled_from([np.arange(5, 5 + k), np.array([f"class {c}" for c in range(k)])]))
        loss = Loss("cross_entropy", n_classes=k) if kind == "multiclass" else Loss("binary_cross_entropy")
        return Head(kind, loss, classes), 1 if kind == "binary" else k
    t = draw(st.sampled_from([2, 1]))
    quantiles = tuple(draw(st.lists(st.sampled_from([0.9, 0.1, 0.5, 0.25]), unique=True, min_size=1)))
    loss = Loss(kind, quantiles=quantiles) if kind == "quantile" else Loss(kind)
    return Head("regression", loss, None, rng.normal(size=t), rng.uniform(0.5, 2, t)), loss.outputs_for(t)


@st.composite
def cases(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    table_columns = [draw(columns(f"column {j}")) for j in range(draw(st.integers(1, 5)))]
    preprocessor = Preprocessor(table_columns, n_target_columns=draw(st.integers(1, 2)))
    for j, column in enumerate(table_columns):
        if column.has_many_levels:
            shape = (len(column.levels) + 1, preprocessor.n_target_columns)
            preprocessor.target_means[j] = rng.normal(size=shape).astype(np.float32)
    cells = np.column_stack([draw_cells(rng, column) for column in table_columns])
    base = np.column_stack([b.read(cells[:, b.column]) for b in preprocessor.base_columns()])
    preprocessor.encodings = {name: draw(encodings(rng, base)) for name in ENCODING_NAMES}
    head, n_scores = draw(heads(rng))
    preprocessor.lookups = draw(lookups(rng, preprocessor.base_columns(), base))
    kinds = draw(st.sampled_from([[members], [lookup_members], [members, lookup_members]]))
    parts = {members: preprocessor.encodings, lookup_members: preprocessor.lookups}
    chosen = [draw(kind(rng, parts[kind], n_scores)) for kind in kinds * draw(st.integers(1, 2))]
    table = pd.DataFrame({column.name: as_labels(column, cells[:, j]) for j, column in enumerate(table_columns)})
    return Case(Model(preprocessor, chosen, head), cells, table)


# Back ends ------------------------------------------------------------------------------------------------------------


def assert_close(found, expected, tolerance):
    np.testing.assert_allclose(found, np.reshape(expected, np.shape(found)), rtol=tolerance, atol=tolerance)


def labels_of(head, probability):
    """Labels that a classifier gives for probabilities."""
    return probability > 0.5 if head.task == "multilabel" else head.classes[probability.argmax(axis=1)]


def check_native(case, scores, predictions):
    predictor = pickle.loads(pickle.dumps(case.model.predictor()))
    assert_close(predictor.raw_scores(case.table), scores, 1e-4)
    by_row = np.stack([predictor.predict_row(row) for row in case.cells])
    assert_close(by_row, predictions, 1e-4)
    head = case.model.head
    whole = predictor.predict(case.table) if head.classes is None else predictor.predict_proba(case.table)
    assert whole.shape == predictions.shape
    np.testing.assert_array_equal(by_row.reshape(whole.shape), whole)
    if head.classes is not None:
        np.testing.assert_array_equal(predictor.predict(case.table), labels_of(head, whole))
    return by_row


def check_c(case, native):
    """Exported C against the native predictor: the same sums in the same order."""
    with tempfile.TemporaryDirectory() as folder:
        _, source = export(case.model, Path(folder) / "model.c")
        flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O0", "-shared", "-fPIC"]
        subprocess.run([COMPILER, *flags, source, "-o", source.with_suffix(".so"), "-lm"], check=True, timeout=120)
        predict = ctypes.CDLL(str(source.with_suffix(".so"))).model_predict
    predict.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    found = np.empty_like(native)
    for row, output in zip(case.cells, found, strict=True):
        row = row.copy()
        assert predict(row.ctypes.data, output.ctypes.data) == 0
    is_logistic = any(member.trees.activation == "logistic" for member in case.model.members)
    assert_close(found, native, 1e-5 if is_logistic else 1e-12)


def check_onnx(case, predictions):
    onnxruntime = pytest.importorskip("onnxruntime")
    with tempfile.TemporaryDirectory() as folder:
        (path,) = export(case.model, Path(folder) / "model.onnx")
        graph = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {"X": case.cells}
    if "category" in case.model.preprocessor.kinds:
        feeds = {
            column.name: np.array(["" if label is None else label for label in as_labels(column, cells)], dtype=object)
            if column.kind == "category"
            else cells
            for column, cells in zip(case.model.preprocessor.columns, case.cells.T, strict=True)
        }
        feeds = {name: column[:, None] for name, column in feeds.items()}
    found = graph.run(None, feeds)
    assert_close(found[-1], predictions, 1e-4)
    if case.model.head.classes is not None:
        np.testing.assert_array_equal(found[0], labels_of(case.model.head, found[1]))


def check_torch(case, scores):
    torch = pytest.importorskip("torch")
    from softwood.torch import from_model

    module = from_model(case.model)
    with torch.no_grad():
        # Fractions between the knots of lookups are not rounded.
        tolerance = 1e-3 if case.model.preprocessor.lookups else 1e-4
        assert_close(module(module.read(case.table)).numpy(), scores, tolerance)


@settings(max_examples=80)
@given(cases())
def test_every_back_end_computes_the_program(case):
    scores, predictions = case.model.program.interpret(case.cells)
    assert np.isfinite(predictions).all()
    native = check_native(case, scores, predictions)
    check_torch(case, scores)
    check_onnx(case, predictions)
    if COMPILER is not None:
        check_c(case, native)


def test_calendars_where_months_and_hours_meet():
    """Every back end finds month, weekday and hour of a date, in years with and without a leap day."""
    units = tuple(unit.value for unit in CalendarUnit)
    source, kind = np.array([1, 2, 3], dtype=np.int32), np.full(3, FeatureKind.LINEAR, np.uint8)
    zero, scale = np.zeros(3, np.float32), np.array([1 / 12, 1 / 7, 1 / 24], dtype=np.float32)
    encoding = Encoding(source, kind, zero, zero + 1, zero, scale)
    # Score i is a rising function of part i.
    trees = Trees(np.eye(3, dtype=np.float32)[:, None], None, np.zeros((3, 2, 3), np.float32), zero, 4.0, "smooth_step")
    trees.leaf_weight[:, 0] = np.eye(3)
    model = Model(
        Preprocessor([Column("since", "datetime", calendar=units)], encodings={"standard": encoding}),
        [ModelMember("standard", trees)],
        Head("regression", Loss("squared_error"), None, np.zeros(3), np.ones(3)),
    )
    months = np.arange("1895-01", "2105-01", dtype="datetime64[M]").astype("datetime64[s]").astype(np.int64)
    cells = np.concatenate([months - 1, months, months + 0.5, months + 3599, months + 3600])[:, None]
    case = Case(model, cells, pd.DataFrame(cells, columns=["since"]))
    scores, predictions = model.program.interpret(cells)
    assert [len(np.unique(column)) for column in scores.T] == [12, 7, 3]
    native = check_native(case, scores, predictions)
    check_torch(case, scores)
    check_onnx(case, predictions)
    if COMPILER is not None:
        check_c(case, native)


# By hand --------------------------------------------------------------------------------------------------------------


def test_a_program_by_hand():
    """Two columns, one tree of one split on their sum, two members whose scores are averaged, then 10 x + 1."""
    one, zero = np.ones(2, np.float32), np.zeros(2, np.float32)
    kinds = np.array([FeatureKind.LINEAR, FeatureKind.LEVEL], dtype=np.uint8)
    start = np.array([0, 1], dtype=np.float32)
    encoding = Encoding(np.array([0, 1], dtype=np.int32), kinds, start, one, zero, one)
    trees = TreeGroup(
        np.ones((1, 1, 2), np.float32), np.zeros((1, 1), np.float32), np.array([[[4.0], [0.0]]], np.float32)
    )
    members = [
        FoldedMember("standard", (trees,), np.array([offset], np.float32), "smooth_step", 4.0, 3.0 * 2.0**10)
        for offset in (1.0, 0.0)
    ]
    program = Program(
        (TableColumn("size", "numeric"), TableColumn("colour", "category")),
        (Value(0, offset=100.0, unit=2.0), Code(1, ("blue", "red"))),
        {"standard": encoding},
        tuple(members),
        PredictionHead(Link.IDENTITY, None, np.array([1.0]), np.array([10.0])),
    )
    # t is (size - 100) / 2 + [colour is red]: -2, -1 + 1, 1 + 1 and, with both missing, 0.
    cells = np.array([[96.0, 0.0], [98.0, 1.0], [102.0, 1.0], [np.nan, np.nan]])
    scores, values = program.interpret(cells)
    np.testing.assert_allclose(scores[:, 0], [0.5, 2.5, 4.5, 2.5])
    np.testing.assert_allclose(values, [6, 26, 46, 26])
    np.testing.assert_allclose([Predictor(program).predict_row(row)[0] for row in cells], values, rtol=1e-6)


def test_base_columns_by_hand():
    code = Code(0, ("blue", "red", None))
    np.testing.assert_array_equal(code.read(np.array([0, 1, 2, 3, -1, 0.5, np.nan])), [0, 1, 2, -1, -1, -1, 2])
    np.testing.assert_array_equal(Code(0, ("blue",)).read(np.array([np.nan])), [-1])
    np.testing.assert_array_equal(code.encode(["red", None, "green"]), [1, 2, -1])
    means = TargetMean(code, 0, np.array([10, 20, 30, 40], dtype=np.float32))
    np.testing.assert_array_equal(means.read(np.array([1, np.nan, 7])), [20, 30, 40])
    np.testing.assert_array_equal(
        Value(0, 5.0, 2.0).read(np.array([9.0, 1e300, np.nan])), [2, np.float32(3.4028235e38), np.nan]
    )
    dates = np.array(
        ["1970-01-01T00:59:59", "1969-12-31T23:00:00", "2024-02-29T13:30:00", "NaT"], dtype="datetime64[s]"
    )
    seconds = np.where(np.isnat(dates), np.nan, dates.astype(np.int64))
    expected = {CalendarUnit.MONTH: [1, 12, 2], CalendarUnit.WEEKDAY: [3, 2, 3], CalendarUnit.HOUR: [0, 23, 13]}
    for unit, values in expected.items():
        np.testing.assert_array_equal(CalendarPart(0, unit).read(seconds), [*values, np.nan])
