"""How a table is dealt out to members: folds, encodings, and what each member trains on and holds out."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

from softwood import TreeEnsembleClassifier, TreeEnsembleRegressor
from softwood.tabular.encoding.features import FeatureKind
from softwood.tabular.encoding.lookups import Lookups
from softwood.tabular.fit import deal_folds
from softwood.training import fit_members

QUICK = {"n_members": 2, "n_trees": 8, "depth": 3, "max_epochs": 4, "learning_rate": 0.03, "random_state": 0}
X_CANCER, Y_CANCER = load_breast_cancer(return_X_y=True)


def test_members_hold_out_different_rows_of_all_classes():
    y = np.repeat([0, 1, 2], [50, 40, 10])
    folds = deal_folds(y, 6, np.random.default_rng(0))
    assert sorted(np.bincount(folds)) == [16, 16, 17, 17, 17, 17]
    for fold in range(6):
        assert (np.bincount(y[folds == fold], minlength=3) >= [8, 6, 1]).all()
    values = np.random.default_rng(0).normal(size=600)
    folds = deal_folds(values, 6, np.random.default_rng(0))
    assert np.ptp([np.median(values[folds == fold]) for fold in range(6)]) < 0.05


@pytest.fixture
def runs(monkeypatch):
    """Configuration, members and options of each run of the trainer."""
    seen = []

    def fit_and_note(config, members, **options):
        seen.append((config, members, options))
        return fit_members(config, members, **options)

    for module in ("committee", "fit"):  # of whole tables, and of pieces
        monkeypatch.setattr(f"softwood.tabular.{module}.fit_members", fit_and_note)
    return seen


def test_each_member_holds_out_another_part(runs):
    TreeEnsembleClassifier(**{**QUICK, "n_members": 6}).fit(X_CANCER, Y_CANCER)
    ((_, members, _),) = runs
    held_out = np.concatenate([member.validation.rows for member in members])
    assert sorted(held_out) == list(range(len(Y_CANCER)))
    for member in members:
        assert sorted([*member.train.rows, *member.validation.rows]) == list(range(len(Y_CANCER)))
    assert all(isinstance(member.train.encoding, Lookups) for member in members)
    seeds = [member.seed for member in members]
    assert len(set(seeds)) == 6
    TreeEnsembleClassifier(**{**QUICK, "n_members": 6, "random_state": 1}).fit(X_CANCER, Y_CANCER)
    assert not {member.seed for member in runs[1][1]} & set(seeds)


@pytest.mark.parametrize(
    ("n_rows", "fraction", "sizes"),
    [
        (600, 1 / 6, {100}),
        (600, 0.25, {150}),
        (600, 0.5, {300}),
        (600, None, {0}),
        (5, 1 / 6, {2, 3}),
        (4, 0.25, {2}),
        (3, 0.5, {0}),
    ],
)
def test_rows_that_a_member_holds_out(runs, n_rows, fraction, sizes):
    """Fewer than two rows cannot choose the best epoch."""
    X = np.arange(float(n_rows))[:, None]
    TreeEnsembleRegressor(**QUICK, validation_fraction=fraction).fit(X, X[:, 0])
    for member in runs[0][1]:
        n_held_out = 0 if member.validation is None else len(member.validation.rows)
        assert n_held_out in sizes
        assert len(member.train.rows) == n_rows - n_held_out


def test_rows_without_weight_are_as_if_they_were_not_there():
    table = pd.DataFrame({"colour": ["red", "blue"] * 20 + ["mauve"] * 5, "size": [*range(40), *[1e9] * 5]})
    y = np.arange(45) % 3 == 0
    weight = np.repeat([1.0, 0.0], [40, 5])
    weighted = TreeEnsembleClassifier(**QUICK).fit(table, y, sample_weight=weight)
    without = TreeEnsembleClassifier(**QUICK).fit(table[:40], y[:40])
    assert weighted.model_.preprocessor.columns == without.model_.preprocessor.columns
    assert weighted.model_.preprocessor.columns[0].levels == ("blue", "red")
    np.testing.assert_array_equal(weighted.predict_proba(table), without.predict_proba(table))


def test_encodings_are_fitted_to_weighted_rows():
    X = np.array([[0.0], [1.0], [5.5], [9.0]] * 10) + np.arange(40)[:, None] / 1000
    weight = np.tile([5.0, 1.0, 1.0, 1.0], 10)
    model = TreeEnsembleRegressor(**QUICK, encoding="standard").fit(X, X[:, 0], sample_weight=weight)
    assert model.model_.preprocessor.encodings["standard"].mean[0] == pytest.approx(np.average(X[:, 0], weights=weight))


def test_members_start_from_the_best_constant(runs):
    weight = np.where(Y_CANCER == 1, 1.0, 3.0)
    TreeEnsembleClassifier(**QUICK).fit(X_CANCER, Y_CANCER, sample_weight=weight)
    share = np.average(Y_CANCER, weights=weight)
    for member in runs[0][1]:
        np.testing.assert_allclose(member.offset, [np.log(share / (1 - share))], rtol=1e-6)


@pytest.mark.parametrize("estimator", [TreeEnsembleClassifier, TreeEnsembleRegressor])
def test_penalties_are_those_given(runs, estimator):
    estimator(**QUICK).fit(X_CANCER, Y_CANCER)
    estimator(**QUICK, l1=0.5, weight_decay=0.25).fit(X_CANCER, Y_CANCER)
    found = [(config.l1, config.weight_decay) for config, _, _ in runs]
    assert found == [(0.1, 0.03), (0.5, 0.25)]


def test_the_first_of_several_members_chooses_the_penalty_on_long_tables(runs):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2400, 6))
    model = TreeEnsembleRegressor(**{**QUICK, "n_members": 3}).fit(X, X[:, 0] * X[:, 1])
    (_, pair, _), (rest, members, _) = runs
    assert [dict(member.changes) for member in pair] == [{}, {"l1": 0.03}]
    assert pair[0].seed == pair[1].seed
    assert len(members) == 2
    history = pd.DataFrame(model.history_).query("is_best and member == 0")
    losses = [min(r.validation_loss for r in trained.history) for trained in fit_members(runs[0][0], pair)]
    assert history["validation_loss"].item() == min(losses)
    assert rest.l1 == (0.15, 0.03)[int(np.argmin(losses))]
    runs.clear()
    TreeEnsembleRegressor(**{**QUICK, "n_members": 1}).fit(X, X[:, 0])
    assert [config.l1 for config, _, _ in runs] == [0.05]  # nothing to choose between
    runs.clear()
    TreeEnsembleRegressor(**{**QUICK, "n_members": 3}, l1=0.1).fit(X, X[:, 0])
    assert [(config.l1, [member.changes for member in members]) for config, members, _ in runs] == [(0.1, [{}] * 3)]


def levels_with_slopes(n_rows, n_levels=40):
    """y is a slope of the row's level times a number: the mean of a level says nothing."""
    rng = np.random.default_rng(0)
    level, size = rng.integers(n_levels, size=n_rows), rng.normal(size=n_rows)
    table = pd.DataFrame({"shop": [f"shop {i}" for i in level], "size": size})
    return table, np.where(level % 2, 1.0, -1.0) * size


def test_categories_are_read_level_by_level_where_that_predicts_held_out_rows_better(runs):
    table, y = levels_with_slopes(2400)
    model = TreeEnsembleRegressor(n_trees=8, depth=3, n_members=2, max_epochs=25, learning_rate=0.02, random_state=0)
    model.fit(table[:2000], y[:2000])
    (_, trials, _), (_, members, _) = runs
    assert [dict(member.changes) for member in trials] == [{}, {"l1": 0.03}] * 2
    assert members[0].train.encoding is trials[2].train.encoding is not trials[0].train.encoding
    assert members[0].train.encoding.columns[0].n_entries == 41
    assert model.model_.preprocessor.reads_levels
    assert model.score(table[2000:], y[2000:]) > 0.7
    small = model.compress(table[:2000], y[:2000])
    assert small.model_.preprocessor.reads_levels
    assert small.score(table[2000:], y[2000:]) > 0.6


def test_target_means_stay_where_they_are_as_good(runs):
    rng = np.random.default_rng(0)
    level = rng.integers(300, size=2400)
    table = pd.DataFrame({"shop": [f"shop {i}" for i in level]})
    y = rng.normal(size=300)[level] + rng.normal(size=2400)
    model = TreeEnsembleRegressor(n_trees=8, depth=3, n_members=2, max_epochs=25, random_state=0).fit(table, y)
    assert len(runs[0][1]) == 4
    assert not model.model_.preprocessor.reads_levels


def test_levels_of_an_evaluation_set(runs):
    table, y = levels_with_slopes(2400)
    model = TreeEnsembleRegressor(n_trees=8, depth=3, n_members=2, max_epochs=25, learning_rate=0.02, random_state=0)
    model.fit(table[:2000], y[:2000], eval_set=(table[2000:], y[2000:]))
    assert len(runs[0][1]) == 4
    assert model.model_.preprocessor.reads_levels
    losses = pd.DataFrame(model.history_).query("is_best")["validation_loss"]
    assert losses.max() < 0.5


@pytest.mark.parametrize(
    ("n_rows", "n_members", "l1", "n_trials"),
    [(1900, 2, "auto", None), (2400, 1, "auto", None), (2400, 2, 0.1, 2)],
)
def test_when_levels_are_tried(runs, n_rows, n_members, l1, n_trials):
    table, y = levels_with_slopes(n_rows)
    TreeEnsembleRegressor(**{**QUICK, "n_members": n_members}, l1=l1).fit(table, y)
    assert len(runs[0][1]) == (n_trials or n_members)


def long_table(noise):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 4))
    return X, X[:, 0] + np.sin(2 * X[:, 1]) * X[:, 2] + noise * rng.normal(size=4000)


LONG = {"n_trees": 8, "depth": 3, "max_epochs": 6, "learning_rate": 0.02, "max_reach": 0.22, "random_state": 0}


def test_no_more_members_are_added_where_two_agree(runs, tmp_path):
    X, y = long_table(noise=20.0)
    model = TreeEnsembleRegressor(**LONG).fit(X, y, checkpoint=tmp_path / "fit")
    # Two penalties, the second member, and both with narrower bands.
    assert [len(members) for _, members, _ in runs] == [2, 1, 2]
    assert len(model.model_.members) == model.chosen_parameters_["n_members"] == 2
    assert np.isfinite(model.oof_prediction_).mean() == pytest.approx(2 / 6, abs=0.01)
    one_thread = TreeEnsembleRegressor(**LONG, n_jobs=1).fit(X, y)
    np.testing.assert_array_equal(one_thread.predict(X), model.predict(X))
    resumed = TreeEnsembleRegressor(**LONG).fit(X, y, checkpoint=tmp_path / "fit", resume=True)
    np.testing.assert_array_equal(resumed.predict(X), model.predict(X))
    runs.clear()
    asked = TreeEnsembleRegressor(**LONG, n_members=3).fit(X, y)
    assert [len(members) for _, members, _ in runs] == [2, 2, 3]
    assert len(asked.model_.members) == 3


def test_members_are_added_where_two_differ(runs):
    X, y = long_table(noise=0.1)
    weight = np.where(X[:, 3] > 0, 2.0, 1.0)
    model = TreeEnsembleRegressor(**LONG).fit(X[:3000], y[:3000], weight[:3000], eval_set=(X[3000:], y[3000:]))
    assert len(model.model_.members) == model.chosen_parameters_["n_members"] == 4
    assert [len(members) for _, members, _ in runs] == [2, 1, 2, 4]


def test_pieces_go_on_from_each_other_at_a_constant_rate(runs):
    model = TreeEnsembleClassifier(**QUICK, batch_norm=True, batch_size=50)
    for first in range(0, 300, 100):
        model.partial_fit(X_CANCER[first : first + 100], Y_CANCER[first : first + 100], classes=[0, 1])
    for i, (_, members, _) in enumerate(runs):
        for member in members:
            assert member.validation is None
            assert (member.start is None) == (i == 0)
            if i:
                assert member.start.optimizer_state["adam_step"] == 2 * i
                assert member.start.trees.batch_norm.n_rows == 100 * i
    history = pd.DataFrame(model.history_)
    assert set(history["learning_rate"]) == {0.03}
    assert sorted(history["epoch"]) == [0, 0, 1, 1, 2, 2]
    assert history.query("is_best")["epoch"].tolist() == [2, 2]
    assert model.model_.members[0].trees.batch_norm.n_rows == 300


def test_members_of_a_later_piece_keep_their_encodings(runs):
    model = TreeEnsembleClassifier(**QUICK, encoding="piecewise").partial_fit(X_CANCER, Y_CANCER)
    model.set_params(encoding="standard").partial_fit(X_CANCER, Y_CANCER)
    assert [member.encoding for member in model.model_.members] == ["piecewise"] * 2
    assert all((member.train.encoding.kind == FeatureKind.RAMP).any() for member in runs[1][1])


def test_out_of_fold_predictions_are_those_of_the_member_that_held_the_row_out(runs):
    model = TreeEnsembleClassifier(**{**QUICK, "n_members": 6}).fit(X_CANCER, Y_CANCER)
    ((_, members, _),) = runs
    for i, member in enumerate(members):
        alone = copy.copy(model.model_)
        vars(alone).pop("program", None), vars(alone).pop("_predictor", None)
        alone.members = [model.model_.members[i]]
        held_out = member.validation.rows
        np.testing.assert_allclose(
            model.oof_prediction_[held_out],
            alone.predict_proba(X_CANCER[held_out]),
            atol=1e-2,  # tables are rounded
        )


def test_out_of_fold_predictions_know_nothing_of_their_own_labels():
    random = np.random.default_rng(0)
    X, y = random.normal(size=(300, 5)), random.integers(2, size=300)
    model = TreeEnsembleClassifier(
        n_members=6, learning_rate=0.05, l1=0.0, patience=None, max_epochs=10, random_state=0
    )
    model.fit(X, y)
    assert roc_auc_score(y, model.predict_proba(X)[:, 1]) > 0.8
    assert roc_auc_score(y, model.oof_prediction_[:, 1]) < 0.6


def test_out_of_fold_predictions_of_equal_rows_rows_without_weight_and_rows_never_held_out():
    X, y = np.tile(X_CANCER[:60], (2, 1)), np.tile(X_CANCER[:60, 0], 2)
    weight = np.ones(120)
    weight[[3, 63]] = 0
    model = TreeEnsembleRegressor(**QUICK).fit(X, y, sample_weight=weight)
    assert model.oof_prediction_.shape == (120,)
    np.testing.assert_array_equal(model.oof_prediction_[:60], model.oof_prediction_[60:])
    assert np.isnan(model.oof_prediction_[3])
    assert 0.3 < np.isnan(model.oof_prediction_).mean() < 0.7  # two of six folds, and each row lies in up to two
    model.fit(X, y, eval_set=(X, y))
    assert not hasattr(model, "oof_prediction_")


def test_repr_tells_what_auto_became():
    model = TreeEnsembleRegressor(**QUICK)
    assert "fitted" not in repr(model)
    model.fit(X_CANCER, X_CANCER[:, 0])
    call, _, chosen = repr(model).partition(", fitted with ")
    assert call == repr(clone(model))
    assert "batch_size=32" in chosen
    assert "l1=0.1" in chosen
    assert "n_trees" not in chosen
