"""Explanations add up to what the model predicts, and speak of the table's own columns and units."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pandas as pd
import pytest

import softwood
from softwood import explain, ops
from softwood.explain.split_rules import SplitRule, _table_terms, feature_name, split_rule
from softwood.model.importance import shared_stakes
from softwood.model.lookup_trees import LookupTrees, round_tables
from softwood.model.member_rows import _LinearRows, _LookupRows
from softwood.model.program import Link, PredictionHead, Program, TableColumn
from softwood.tabular.encoding.base_columns import Code, Value
from softwood.tabular.encoding.lookups import Lookup
from softwood.tabular.reading.table import read_table

SMALL = {"n_members": 2, "n_trees": 3, "depth": 3, "max_epochs": 15, "random_state": 0, "gamma": 0.5}
SMALL |= {"learning_rate": 0.03, "max_features": 1.0}
SINGLE = {"rtol": 1e-6, "atol": 1e-6}  # models predict in float32, explanations are worked out in float64


def mixed_table(n=150, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "size": np.where(rng.random(n) < 0.1, np.nan, rng.normal(50, 10, n)),
            "colour": rng.choice(["red", "blue", None], n),
            "city": rng.choice([f"city {i}" for i in range(15)], n),
            "since": pd.date_range("2020-01-01", periods=n, freq="2h"),
        }
    )


@pytest.fixture(scope="module")
def table():
    return mixed_table()


@pytest.fixture(scope="module", params=["binary", "multiclass", "regression"])
def fitted(request, table):
    size = table["size"].fillna(50).to_numpy()
    if request.param == "regression":
        return softwood.TreeEnsembleRegressor(**SMALL, batch_norm=True).fit(table, size)
    y = np.digitize(size, [50] if request.param == "binary" else [45, 55])
    return softwood.TreeEnsembleClassifier(**SMALL).fit(table, y)


def test_contributions_of_trees_add_up_to_raw_scores(fitted, table):
    scores = fitted.model_.raw_scores(table)
    for row in (0, 7):
        path = explain.decision_path(fitted, table, row)
        assert len(path.trees) == 6
        total = path.offset + sum(tree.contribution for tree in path.trees)
        np.testing.assert_allclose(total, scores[row], **SINGLE)
        np.testing.assert_allclose(path.raw_scores, scores[row], **SINGLE)


def test_a_path_holds_reached_nodes_only_as_the_core_counts_them(fitted, table):
    model = fitted.model_
    path = explain.decision_path(fitted, table, 3)
    for i, rows in enumerate(model.rows(table.iloc[[3]])):
        m, n_splits = rows.leaf_weight.shape[0], rows.leaf_weight.shape[1] - 1
        t = np.column_stack([rows.split_values(tree) for tree in range(m)])
        splits = np.eye(m * n_splits).reshape(m, n_splits, -1)  # each reads one split value
        counts = ops.reachability(t, splits, gamma=rows.gamma)
        ways = [way for way in path.trees if way.member == i]
        assert [len(way.leaf_contributions) for way in ways] == counts.leaves[0].tolist()
        assert [len(way.left) for way in ways] == counts.internal_nodes[0].tolist()
        for way in ways:
            leaves = [p for node, p in way.reach.items() if node not in way.left]
            assert sum(leaves) == pytest.approx(1)


def test_contributions_of_columns_add_up_for_any_background(fitted, table):
    scores = fitted.model_.raw_scores(table)
    found = explain.column_contributions(fitted, table.iloc[:20], background=table)
    np.testing.assert_allclose(found.base + found.values.sum(axis=1), scores[:20], **SINGLE)
    np.testing.assert_allclose(found.base, scores.mean(axis=0), **SINGLE)
    one = explain.column_contributions(fitted, table.iloc[:1])
    np.testing.assert_allclose(one.base + one.values.sum(axis=1), scores[:1], **SINGLE)


def test_the_time_of_contributions_is_linear_in_the_number_of_splits(monkeypatch):
    """Each split's tables are read once per set of rows, however deep its tree is."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    model = softwood.TreeEnsembleRegressor(**SMALL | {"n_members": 1, "n_trees": 1, "depth": 6}).fit(X, X[:, 0])
    read = []
    tables = _LookupRows._tables
    monkeypatch.setattr(_LookupRows, "_tables", lambda *args: read.append(args) or tables(*args))
    explain.column_contributions(model, X[:3], background=X)
    assert 0 < len(read) <= 2 * (2**6 - 1)
    read.clear()
    explain.column_contributions(model, X[:1])  # its own background: usual in every column
    assert 0 < len(read) <= 3 * (2**6 - 1)


def test_only_columns_that_are_used_contribute():
    X = np.random.default_rng(0).normal(size=(200, 3))
    X[:, 2] = 1.0  # a constant is no input of any tree
    regressor = softwood.TreeEnsembleRegressor(**SMALL).fit(X, X[:, 0])
    found = explain.column_contributions(regressor, X)
    assert np.all(found.values[:, 2] == 0)
    assert np.abs(found.values[:, 0]).mean() > np.abs(found.values[:, 1]).mean()


def test_importances_are_sorted_shares_that_survive_a_file(fitted, tmp_path):
    found = explain.importances(fitted)
    shares = [share for _, share in found]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)
    fitted.save(tmp_path / "model.safetensors")
    assert explain.importances(softwood.load(tmp_path / "model.safetensors")) == found


def test_a_column_of_many_inputs_is_not_favoured():
    """Nine levels of chance beside a number that decides; shares by absolute weights gave them 0.18."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=600)
    table = pd.DataFrame({"x": x, "chance": rng.choice(list("abcdefghi"), 600)})
    early = softwood.TreeEnsembleClassifier(n_members=1, max_epochs=5, random_state=0).fit(table, x > 0)
    assert dict(explain.importances(early))["chance"] < 0.14


def test_stakes_are_shared_by_the_variance_of_each_columns_part_of_a_split():
    rng = np.random.default_rng(0)
    x, weight, stakes = rng.normal(size=(50, 5)), rng.normal(size=(3, 7, 5)), rng.random((3, 7))
    weight[0, 0] = 0  # a split without weights has nothing to share
    rows = object.__new__(_LinearRows)
    rows._x, rows._weight, rows._column, rows.n_columns = x, weight, np.array([0, 2, 2, 0, 1]), 4
    found = shared_stakes(stakes, rows)
    parts = [[0, 3], [4], [1, 2], []]
    variance = [np.einsum("np,mip->nmi", x[:, inputs], weight[:, :, inputs]).var(axis=0) for inputs in parts]
    stakes[0, 0] = 0
    share = np.array(variance) / np.maximum(np.sum(variance, axis=0), 1e-300)
    np.testing.assert_allclose(found, (stakes * share).sum(axis=(1, 2)), atol=1e-12)
    np.testing.assert_allclose(found.sum(), stakes.sum())


def test_rules_have_the_units_of_the_table(fitted, table):
    """The terms of a rule, computed by hand from cells of the table, give the split's t."""
    settings = {"n_members": 1, "n_trees": 2, "depth": 2, "max_epochs": 5, "random_state": 0}
    linear = softwood.TreeEnsembleRegressor(**settings, encoding="standard").fit(table, np.arange(len(table)))
    for model in (fitted.model_, linear.model_):
        for row in (0, 1, 2):
            one = table.iloc[[row]]
            t = model.rows(one)[0].split_values(0)[0]
            base = model.preprocessor.read(read_table(one, kinds=model.preprocessor.kinds))[0]
            rule = split_rule(model, 0, 0, 0, base, 0.5)
            assert rule.score - rule.threshold == pytest.approx(t[0], abs=2e-3)
            size = [term for term in rule.terms if term.name == "size"]
            if size and not size[0].shape and not np.isnan(one["size"].iloc[0]):
                assert size[0].value == pytest.approx(one["size"].iloc[0], rel=1e-5)


def test_the_effect_of_a_column_is_one_term_with_its_range():
    """A number, a category and a date in a split, by hand."""
    columns = (TableColumn("age", "numeric"), TableColumn("colour", "category"), TableColumn("since", "datetime"))
    base = (Value(0, 10.0, 2.0), Code(1, ("blue", "red")), Value(2))
    knots = np.array([0, 5, 25], dtype=np.float32)
    lookups = (Lookup(0, knots), Lookup(1, knots[:0], 2), Lookup(2, knots * np.float32(86_400)))
    tables = [np.array([-0.25, 0.5, 0.125, 2]), np.array([0.5, -0.5, 0]), np.array([0, 1, 0.5, 0.25])]
    arrays, step = round_tables([(0, c, values) for c, values in enumerate(tables)], 1, 1.0)
    zero, leaves = np.zeros((1, 1), np.float32), np.array([[[1.0], [0.0]]], np.float32)
    trees = LookupTrees(**arrays, split_bias=zero, leaf_weight=leaves, offset=zero[0], step=step, gamma=1.0,
                        activation="smooth_step", n_trainable=0)  # fmt: skip
    program = Program(
        columns, base, {}, (trees,), PredictionHead(Link.IDENTITY, None, zero[0], zero[0]), lookups=lookups
    )
    terms = _table_terms(program, trees, 0, np.array([2.5, 1, np.nan], dtype=np.float32))
    assert [str(term) for term in terms] == [
        "age (from -0.25 at 10 to 0.5 at 20, 2 where missing)",
        "colour (from 0.5 at 'blue' to -0.5 at 'red')",
        "since (from 0 at 1970-01-01 to 1 at 1970-01-06)",
    ]
    assert [term.value for term in terms] == [0.125, -0.5, 0.25]


def test_a_rule_says_which_way_and_why():
    X = np.linspace(0, 100, 201)[:, None]
    settings = {"n_members": 1, "n_trees": 1, "depth": 1, "gamma": 0.05, "encoding": "standard", "max_epochs": 40}
    regressor = softwood.TreeEnsembleRegressor(**settings, learning_rate=0.05, random_state=0)
    regressor.fit(pd.DataFrame({"age": X[:, 0]}), X[:, 0] > 40)
    low, high = (explain.rules(regressor, pd.DataFrame({"age": [value]}))[0] for value in (1.0, 99.0))
    assert low.goes_left != high.goes_left
    assert {low.left_probability, high.left_probability} == {0.0, 1.0}
    boundary = low.threshold / low.terms[0].coefficient
    assert boundary == pytest.approx(40, abs=8)
    assert "* age = " in str(low)
    assert str(low).endswith("always goes left" if low.goes_left else "always goes right")


def test_rules_show_dates_as_dates_in_either_order():
    rng = np.random.default_rng(0)
    days = rng.integers(0, 900, 200)
    for pattern in ("%d.%m.%Y", "%m/%d/%Y"):
        texts = (pd.Timestamp("2022-01-01") + pd.to_timedelta(days, unit="D")).strftime(pattern)
        table = pd.DataFrame({"begin": texts})
        model = softwood.TreeEnsembleRegressor(n_members=1, n_trees=4, max_epochs=5, random_state=0).fit(table, days)
        rule = " ".join(map(str, explain.rules(model, table, row=0)))
        assert re.search(r" at 202\d-\d\d-\d\d", rule), rule
        assert "e+09" not in rule


def test_parts_of_dates_are_named():
    """A date has units of its own: days where the date itself is meant, hours and weekdays where a part of it is."""
    when = pd.date_range("2024-01-01", periods=400, freq="7h")
    table = pd.DataFrame({"when": when, "x": np.arange(400.0)})
    settings = {"n_trees": 2, "max_epochs": 1, "random_state": 0, "encoding": "piecewise"}
    fitted = softwood.TreeEnsembleClassifier(**settings).fit(table, when.hour > 11)
    program = fitted.model_.program
    names = {
        feature_name(program, encoding, f)
        for encoding, features in program.encodings.items()
        for f in range(len(features.kind))
    }
    weekdays = {name for name in names if name.startswith("[weekday of when from ")}
    assert "[weekday of when from Monday to Tuesday]" in weekdays
    assert len(weekdays) == 7  # and one from Monday to Sunday
    dates = [name for name in names if name.startswith("[when from ")]
    assert dates
    assert all(re.fullmatch(r"\[when from 2024-\d\d-\d\d to 2024-\d\d-\d\d\]", name) for name in dates)
    hours = [name for name in names if name.startswith("[hour of when ")]
    assert hours
    assert all(re.fullmatch(r"\[hour of when (is|from) [\d.]+( to [\d.]+)?\]", name) for name in hours)


def test_a_split_without_weights_says_so():
    rule = SplitRule((), threshold=0.1, half_width=0.5, left_probability=0.25)
    assert str(rule) == "uses no column: goes right with probability 0.75"


def test_usage_counts_traffic_and_finds_unused_nodes():
    X = np.random.default_rng(0).normal(size=(300, 2))
    settings = {"n_members": 1, "n_trees": 2, "depth": 4, "gamma": 1e-3, "random_state": 0, "max_epochs": 3}
    regressor = softwood.TreeEnsembleRegressor(**settings).fit(X, X[:, 0])
    used = explain.usage(regressor, X[:4])
    (traffic,) = used.traffic
    np.testing.assert_allclose(traffic[:, 0], 1)
    np.testing.assert_allclose(traffic[:, 1::2] + traffic[:, 2::2], traffic[:, :15])
    leaves_reached = (traffic[:, 15:] > 0).sum(axis=1)
    assert (~used.unused_leaves[0]).sum(axis=1).tolist() == leaves_reached.tolist()
    assert used.unused_leaves[0].any()
    assert used.mean_reachable_leaves[0].max() < 2


def test_mistakes_are_named(fitted, table):
    with pytest.raises(ValueError, match=r"The row must be 0 to 149, as the table has 150; got 150\."):
        explain.decision_path(fitted, table, 150)
    with pytest.raises(ValueError, match=r"The tree must be 0 to 2; got 3\."):
        explain.rules(fitted, table, tree=3)
    with pytest.raises(ValueError, match=r"A fitted model is needed; this TreeEnsembleRegressor is not fitted yet\."):
        explain.importances(softwood.TreeEnsembleRegressor())


def test_shap_can_draw_the_contributions(fitted, table):
    pytest.importorskip("shap")
    found = explain.shap_explanation(fitted, table.iloc[:5])
    totals = found.base_values + found.values.sum(axis=1)
    scores = fitted.model_.raw_scores(table.iloc[:5])
    np.testing.assert_allclose(totals.reshape(scores.shape), scores, **SINGLE)
    assert list(found.feature_names) == ["size", "colour", "city", "since"]


def test_the_explainer_has_the_interface_of_shap(fitted, table):
    explainer = explain.ContributionExplainer(fitted, table)
    values = explainer.shap_values(table.iloc[:6])
    expected = explain.column_contributions(fitted, table.iloc[:6], background=table)
    np.testing.assert_array_equal(values.reshape(expected.values.shape), expected.values)
    scores = fitted.model_.raw_scores(table.iloc[:6])
    np.testing.assert_allclose((explainer.expected_value + values.sum(axis=1)).reshape(scores.shape), scores, **SINGLE)
    assert list(explainer.feature_names) == list(table.columns)
    if importlib.util.find_spec("shap") is not None:
        np.testing.assert_array_equal(explainer(table.iloc[:6]).values, values)
