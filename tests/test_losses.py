from __future__ import annotations

import numpy as np
import pytest

from softwood.training.losses import Loss


def test_outputs_of_each_loss():
    assert Loss("cross_entropy", n_classes=4).outputs_for(1) == 4
    assert Loss("quantile", quantiles=(0.1, 0.9)).outputs_for(3) == 6
    assert Loss("squared_error").outputs_for(3) == 3
    assert Loss(lambda p, t, w: p, n_outputs=5).outputs_for(2) == 5
    assert Loss(lambda p, t, w: p).outputs_for(2) == 2


def test_predictions_invert_the_link():
    scores = np.array([[0.0, np.log(3.0)]])
    np.testing.assert_allclose(Loss("cross_entropy", n_classes=2).predictions(scores), [[0.25, 0.75]])
    np.testing.assert_allclose(Loss("binary_cross_entropy").predictions(scores), [[0.5, 0.75]])
    for name in ("poisson", "gamma", "tweedie"):
        np.testing.assert_allclose(Loss(name).predictions(scores), [[1.0, 3.0]])
    for name in ("squared_error", "absolute_error", "huber", "quantile"):
        np.testing.assert_array_equal(Loss(name).predictions(scores), scores)


VALUES = np.array([1.0, 2.0, 4.0, 9.0])
WEIGHT = np.array([3.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("loss", "y", "weight", "prediction"),
    [
        (Loss("squared_error"), VALUES, None, [4.0]),
        (Loss("squared_error"), VALUES, WEIGHT, [3.0]),
        (Loss("squared_error"), np.c_[VALUES, VALUES + 1], None, [4.0, 5.0]),
        (Loss("absolute_error"), VALUES, WEIGHT, [1.0]),
        (Loss("huber"), VALUES[1:], None, [4.0]),
        (Loss("quantile", quantiles=(0.25, 0.5, 1 - 1e-9)), VALUES, None, [1.0, 2.0, 9.0]),
        (Loss("quantile", quantiles=(0.5, 0.9)), VALUES, WEIGHT, [1.0, 9.0]),
        (Loss("poisson"), VALUES, WEIGHT, [3.0]),
        (Loss("gamma"), VALUES, None, [4.0]),
        (Loss("tweedie"), VALUES, None, [4.0]),
        (Loss("binary_cross_entropy"), np.array([0, 0, 1, 1]), WEIGHT, [1 / 3]),
        (Loss("cross_entropy", n_classes=3), np.array([0, 1, 1, 2]), WEIGHT, [0.5, 1 / 3, 1 / 6]),
    ],
)
def test_best_constant_predicts_mean_share_or_quantile(loss, y, weight, prediction):
    constant = loss.best_constant(y, weight)
    np.testing.assert_allclose(loss.predictions(constant[None])[0], prediction, rtol=1e-12)


def test_best_constant_is_finite_where_a_class_is_missing():
    assert np.isfinite(Loss("cross_entropy", n_classes=3).best_constant(np.array([0, 0, 1]))).all()
    assert np.isfinite(Loss("binary_cross_entropy").best_constant(np.zeros(3))).all()
    assert np.isfinite(Loss("poisson").best_constant(np.zeros(3))).all()
    np.testing.assert_array_equal(Loss(lambda p, t, w: p, n_outputs=2).best_constant(np.ones(3)), [0.0, 0.0])


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (Loss("hinge"), r"loss must be a callable or one of cross_entropy, .*; got 'hinge'\."),
        (Loss("cross_entropy"), r"cross_entropy needs n_classes >= 2; got None\."),
        (Loss("cross_entropy", n_classes=2, label_smoothing=1.0), r"label_smoothing must be at least 0 and below 1"),
        (Loss("huber", delta=0.0), r"delta must be positive; got 0\.0\."),
        (Loss("quantile", quantiles=(0.5, 1.0)), r"quantiles must lie between 0 and 1; got \(0\.5, 1\.0\)\."),
        (Loss("quantile", quantiles=()), r"quantiles must lie between 0 and 1; got \(\)\."),
        (Loss("tweedie", power=2.0), r"power must lie between 1 and 2; got 2\.0: .* for 2 'gamma'\."),
    ],
)
def test_parameters_out_of_range_are_refused(loss, message):
    with pytest.raises(ValueError, match=message):
        loss.check()


@pytest.mark.parametrize(
    ("loss", "y", "message"),
    [
        (Loss("squared_error"), [np.nan, 1.0], "targets must be finite"),
        (
            Loss("cross_entropy", n_classes=2),
            [0, 2],
            r"class numbers 0 to 1, or the share of each class .*; got 1 column\(s\) with values from 0 to 2",
        ),
        (Loss("cross_entropy", n_classes=2), [0, 0.5], "class numbers 0 to 1"),
        (Loss("cross_entropy", n_classes=2), [[0.5, 0.6]], "the share of each class"),
        (Loss("binary_cross_entropy"), [0, 2], r"targets in \[0, 1\]; got values from 0 to 2"),
        (Loss("poisson"), [-1.0, 2.0], r"poisson needs targets >= 0; got -1\."),
        (Loss("gamma"), [0.0, 2.0], r"gamma needs targets > 0; got 0: for targets with zeros use 'tweedie'\."),
    ],
)
def test_targets_that_do_not_fit_are_refused(loss, y, message):
    with pytest.raises(ValueError, match=message):
        loss.check_targets(np.array(y).reshape(len(y), -1))
