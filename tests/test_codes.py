"""Whole numbers that are codes are read as categories; quantities stay numbers."""

import numpy as np
import pytest

import softwood
from softwood.tabular.encoding.codes import find_codes
from softwood.tabular.reading.table import read_table


def codes_and_quantity(n: int = 6000, n_codes: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A column of codes, each with an effect of its own, and a quantity of as many values."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, n_codes, (n, 2)) + 1000
    effect = rng.normal(size=n_codes)
    return X, effect[X[:, 0] - 1000] + 3 * (X[:, 1] - 1000) / n_codes + 0.3 * rng.normal(size=n)


def test_codes_are_told_from_quantities_and_noise() -> None:
    X, y = codes_and_quantity()
    noise = np.random.default_rng(1).integers(0, 400, len(X))
    fractions = X[:, 0] + 0.5
    table = read_table(np.column_stack([X, noise, fractions]))
    assert find_codes(table, y[:, None], np.arange(len(y))) == [0]
    assert find_codes(table, y[:, None], np.arange(len(y)), declared={0}) == []
    assert find_codes(table, noise[:, None] * 1.0, np.arange(len(y))) == []


def test_classes_tell_codes_too() -> None:
    X, y = codes_and_quantity()
    labels = np.digitize(y, np.quantile(y, [0.3, 0.7]))
    assert find_codes(read_table(X), (labels[:, None] == np.arange(3)) * 1.0, np.arange(len(y))) == [0]


def test_fit_reads_codes_as_categories_and_says_so() -> None:
    X, y = codes_and_quantity()
    model = softwood.TreeEnsembleRegressor(n_members=1, random_state=0).fit(X[:5000], y[:5000])
    assert model.chosen_parameters_["column_kinds"] == {"x0": "category"}
    assert model.score(X[5000:], y[5000:]) > 0.85
    as_numbers = softwood.TreeEnsembleRegressor(n_members=1, random_state=0, column_kinds={0: "numeric"})
    assert as_numbers.fit(X[:5000], y[:5000]).score(X[5000:], y[5000:]) < 0.6
    assert "column_kinds" not in as_numbers.chosen_parameters_


@pytest.mark.parametrize("kind", ["order", "weight"])
def test_order_of_rows_and_copies_change_nothing(kind: str) -> None:
    X, y = codes_and_quantity()
    weight = np.ones(len(y))
    if kind == "order":
        order = np.random.default_rng(0).permutation(len(y))
        other = (X[order], y[order], weight)
    else:
        weight[:50] = 2
        other = (np.vstack([X, X[:50]]), np.append(y, y[:50]), np.ones(len(y) + 50))
    models = [
        softwood.TreeEnsembleRegressor(n_members=1, max_epochs=3, random_state=0).fit(a, b, sample_weight=w)
        for a, b, w in ((X, y, weight), other)
    ]
    assert models[0].chosen_parameters_["column_kinds"] == {"x0": "category"}
    np.testing.assert_array_equal(models[0].predict(X), models[1].predict(X))
