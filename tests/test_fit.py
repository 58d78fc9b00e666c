"""How a table is dealt out to members: folds, encodings, and what each member trains on and holds out."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_breast_cancer

from softwood import TreeEnsembleClassifier
from softwood.tabular.fit import deal_folds, member_encodings
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
    assert member_encodings("auto", 3) == ["standard", "piecewise", "standard"]
    assert member_encodings("piecewise", 2) == ["piecewise", "piecewise"]


def test_each_member_holds_out_another_part(monkeypatch):
    seen = []

    def fit_and_note(config, members, **options):
        seen.extend(members)
        return fit_members(config, members, **options)

    monkeypatch.setattr("softwood.tabular.fit.fit_members", fit_and_note)
    TreeEnsembleClassifier(**{**QUICK, "n_members": 6}).fit(X_CANCER, Y_CANCER)
    held_out = np.concatenate([member.validation.rows for member in seen])
    assert sorted(held_out) == list(range(len(Y_CANCER)))
    for member in seen:
        assert sorted([*member.train.rows, *member.validation.rows]) == list(range(len(Y_CANCER)))
    assert [int((member.train.encoding.kind == 2).any()) for member in seen] == [0, 1] * 3  # ramps: piecewise
