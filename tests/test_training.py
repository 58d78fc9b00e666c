from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time

import numpy as np
import pytest

from softwood import ops
from softwood.model.parts import Trees
from softwood.tabular.encoding.features import fit_encodings
from softwood.training import Member, Samples, TrainingConfig, fit_members
from softwood.training.losses import Loss
from training_cases import CLASSES, labels, parameters, small, start_of, table


def assert_same(a: Trees, b: Trees) -> None:
    assert parameters(a).keys() == parameters(b).keys()
    for name, array in parameters(a).items():
        np.testing.assert_array_equal(array, parameters(b)[name], err_msg=name)


def test_lazy_adam_is_adam_while_every_row_gets_a_gradient():
    x = table()
    config = small(gamma=1000.0, activation="logistic")
    results = {
        kind: fit_members(dataclasses.replace(config, optimizer=kind), [Member(Samples(x, labels(x)))])[0]
        for kind in ("adam", "lazy_adam", "auto")
    }
    assert_same(results["adam"].trees, results["lazy_adam"].trees)
    assert_same(results["adam"].trees, results["auto"].trees)


def test_lazy_adam_leaves_unreached_rows_alone_and_adam_does_not():
    x = table(n=400)
    member = Member(Samples(x, labels(x)), seed=4)
    config = small(depth=6, gamma=0.2, init_scale=1.0, l2=0.1, weight_decay=0.1, max_epochs=1)
    start = start_of(config, member)
    lazy = fit_members(dataclasses.replace(config, optimizer="lazy_adam"), [member])[0].trees
    dense = fit_members(config, [member])[0].trees
    still = np.all(lazy.split_weight == start.split_weight, axis=2)
    assert 0.05 < still.mean() < 0.95
    still_leaves = np.all(lazy.leaf_weight == start.leaf_weight, axis=2)
    assert still_leaves.any()
    assert not np.any(np.all(dense.split_weight == start.split_weight, axis=2)), "dense Adam applies the penalty to all"


def test_auto_is_dense_where_most_splits_get_a_gradient_and_lazy_elsewhere():
    x = table(n=60)
    shallow = small(depth=2, gamma=0.3, init_scale=1.0, batch_size=60)
    deep = small(depth=8, gamma=0.05, init_scale=1.0, batch_size=10)
    for config, same, other in ((shallow, "adam", "lazy_adam"), (deep, "lazy_adam", "adam")):
        fits = {
            kind: fit_members(dataclasses.replace(config, optimizer=kind), [Member(Samples(x, labels(x)))])[0].trees
            for kind in ("auto", same, other)
        }
        assert_same(fits["auto"], fits[same])
        assert not np.array_equal(fits["auto"].split_weight, fits[other].split_weight)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_number_of_threads_gives_the_same_bits(dtype):
    x = table(n=500, p=40, dtype=dtype)
    rows = np.arange(500)
    members = [
        Member(Samples(x, labels(x), rows=rows[rows % 3 != i]), Samples(x, labels(x), rows=rows[rows % 3 == i]), seed=i)
        for i in range(3)
    ]
    config = small(n_trees=30, depth=6, batch_size=64, max_epochs=3, max_features=0.5, ema=0.9)
    together = fit_members(config, members, n_threads=1)
    for n_threads in (2, 3, 7):
        for a, b in zip(together, fit_members(config, members, n_threads=n_threads), strict=True):
            assert_same(a.trees, b.trees)
            assert [r.validation_loss for r in a.history] == [r.validation_loss for r in b.history]
    alone = fit_members(config, members[:1], n_threads=4)[0]
    assert_same(together[0].trees, alone.trees)


def test_seeds_and_trees_differ():
    x = table()
    a, b = fit_members(small(), [Member(Samples(x, labels(x)), seed=s) for s in (0, 1)])
    assert not np.any(a.trees.split_weight == b.trees.split_weight)
    assert not np.any(a.trees.split_weight[0] == a.trees.split_weight[1])


def test_masked_features_are_never_used():
    x = table(p=8)
    (trained,) = fit_members(small(max_features=0.25), [Member(Samples(x, labels(x)))])
    mask = trained.trees.feature_mask
    np.testing.assert_array_equal(mask.sum(2), 2)
    assert np.all(trained.trees.split_weight[~mask] == 0)
    assert np.all(trained.trees.split_weight[mask] != 0)
    assert len(np.unique(mask.reshape(-1, 8), axis=0)) > 5, "splits must choose different features"


def test_l1_gives_exact_zeros():
    x = table()
    (trained,) = fit_members(small(l1=0.3), [Member(Samples(x, labels(x)))])
    assert 0.2 < np.mean(trained.trees.split_weight == 0) < 1


def test_averaged_weights_are_the_unbiased_exponential_average():
    """With one step an epoch, the parameters of each epoch can be seen, and averaged by hand."""
    x = table()
    member = Member(Samples(x, labels(x)), seed=1)
    for kind, changes in (("adam", {}), ("lazy_adam", {"depth": 6, "gamma": 0.2, "init_scale": 1.0})):
        config = small(batch_size=100, optimizer=kind, schedule="constant", warmup=0.0, **changes)
        snapshots = [
            parameters(fit_members(dataclasses.replace(config, max_epochs=n), [member])[0].trees) for n in range(1, 7)
        ]
        (averaged,) = fit_members(dataclasses.replace(config, max_epochs=6, ema=0.7), [member])
        weights = 0.7 ** np.arange(5, -1, -1.0)
        for name, array in parameters(averaged.trees).items():
            expected = sum(w * s[name] for w, s in zip(weights, snapshots, strict=True)) / weights.sum()
            np.testing.assert_allclose(array, expected, rtol=0, atol=1e-12, err_msg=f"{kind} {name}")


def test_folded_trees_give_the_validation_loss_of_the_best_epoch():
    x = table(n=300)
    y = labels(x)
    held_out = Samples(x, y, rows=np.arange(200, 300))
    member = Member(Samples(x, y, rows=np.arange(200)), held_out, offset=np.array([0.3, -0.1, 0.2]))
    for batch_norm in (True, "fixed", False):
        (trained,) = fit_members(small(batch_norm=batch_norm, gamma=4.0, gamma_end=1.0, learning_rate=0.3), [member])
        best = min(trained.history, key=lambda record: record.validation_loss)
        assert (trained.best_epoch, trained.best_loss) == (best.epoch, best.validation_loss)
        assert trained.trees.gamma == best.gamma
        split_weight, split_bias, leaf_weight = trained.trees.folded()
        scores = trained.trees.offset + ops.forward(
            x[200:], split_weight, leaf_weight, split_bias=split_bias, gamma=trained.trees.gamma
        )
        shares = CLASSES.predictions(scores)
        loss = -np.log(shares[np.arange(100), y[200:]]).mean()
        np.testing.assert_allclose(loss, trained.best_loss, rtol=1e-10)


def test_statistics_are_those_of_the_training_rows():
    x = table(n=9000) * 100 + 1e5
    rows = np.arange(100, 8500)
    (trained,) = fit_members(small(max_epochs=1, batch_size=5000), [Member(Samples(x, labels(x), rows=rows))])
    norm = trained.trees.batch_norm
    np.testing.assert_allclose(norm.mean, x[rows].mean(0), rtol=1e-13)
    np.testing.assert_allclose(norm.variance, x[rows].var(0), rtol=1e-10)
    assert norm.n_rows == len(rows)


def test_pieces_of_a_table_accumulate():
    """What partial_fit does: the second call goes on with moments, steps and statistics of the first."""
    x = table(n=200)
    y = labels(x)
    config = small(max_epochs=1, schedule="constant", warmup=0.0)
    (first,) = fit_members(config, [Member(Samples(x[:80], y[:80]))], keep_state=True)
    (second,) = fit_members(config, [Member(Samples(x[80:], y[80:]), start=first)], keep_state=True, accumulate=True)
    norm = second.trees.batch_norm
    np.testing.assert_allclose(norm.mean, x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(norm.variance, x.var(0), rtol=1e-12)
    assert norm.n_rows == 200
    assert second.optimizer_state["adam_step"] == 10
    (without,) = fit_members(
        config, [Member(Samples(x[80:], y[80:]), start=dataclasses.replace(first, optimizer_state=None))]
    )
    assert np.abs(without.trees.split_weight - second.trees.split_weight).max() > 1e-3


def test_sample_weights_act_like_repeated_rows():
    """Only their ratios matter, and a row of weight 0 has no part."""
    x = table(n=40)
    y = labels(x)
    weight = np.where(np.arange(40) < 30, 1.0, 0.0)
    config = small(batch_size=40, batch_norm="fixed", init_scale=0.1)
    (weighted,) = fit_members(config, [Member(Samples(x, y, weight * 7))])
    changed = y.copy()
    changed[30:] = 2 - changed[30:]
    (other,) = fit_members(config, [Member(Samples(x, changed, weight))])
    for name, array in parameters(weighted.trees).items():
        np.testing.assert_allclose(array, parameters(other.trees)[name], atol=1e-12)


def test_patience_stops_each_member_for_itself():
    x = table(n=300)
    noise = np.random.default_rng(0).integers(0, 3, 300)
    make = lambda y: Member(Samples(x, y, rows=np.arange(150)), Samples(x, y, rows=np.arange(150, 300)))  # noqa: E731
    config = small(max_epochs=40, patience=4, schedule="constant", learning_rate=0.01)
    bad, good = fit_members(config, [make(noise), make(labels(x))])
    assert bad.stopped_by == "patience"
    assert len(bad.history) == bad.best_epoch + 5
    assert len(good.history) > len(bad.history)
    assert [record.epoch for record in good.history] == list(range(len(good.history)))


def test_best_after_keeps_early_epochs_from_being_the_best():
    x = table(n=300)
    noise = np.random.default_rng(0).integers(0, 3, 300)
    member = Member(Samples(x, noise, rows=np.arange(150)), Samples(x, noise, rows=np.arange(150, 300)))
    config = small(max_epochs=12, patience=2, learning_rate=0.03, init_scale=0.01)
    (free,) = fit_members(dataclasses.replace(config, patience=None), [member])
    assert free.best_epoch < 6
    (trained,) = fit_members(dataclasses.replace(config, best_after=6), [member])
    assert trained.best_epoch >= 6
    assert len(trained.history) == trained.best_epoch + 3, "patience counts from the first epoch that may be the best"


def test_callback_sees_each_epoch_and_can_stop():
    x = table()
    seen = []

    def stop_at_three(records):
        seen.append([record.epoch for record in records])
        return len(seen) == 3

    results = fit_members(small(), [Member(Samples(x, labels(x)), seed=s) for s in (0, 1)], callback=stop_at_three)
    assert seen == [[0, 0], [1, 1], [2, 2]]
    assert {member.stopped_by for member in results} == {"callback"}


def test_history_reports_reachable_leaves_and_schedule():
    x = table()
    config = small(depth=4, gamma=50.0, gamma_end=0.1, max_epochs=5)
    (trained,) = fit_members(config, [Member(Samples(x, labels(x)))])
    assert trained.history[0].mean_reachable_leaves == 16
    assert 1 <= trained.history[-1].mean_reachable_leaves < 4
    assert trained.history[-1].gamma == pytest.approx(0.1)
    assert np.isnan(trained.history[0].validation_loss)
    rates = [record.learning_rate for record in trained.history]
    assert max(rates) <= 0.05
    assert rates[-1] < 0.01 * 0.05 + 0.001


def test_time_limit_stops_within_a_step_and_leaves_a_model():
    x = table(n=20000, p=20, dtype=np.float32)
    config = small(n_trees=50, depth=6, max_epochs=1000)
    started = time.monotonic()
    (trained,) = fit_members(config, [Member(Samples(x, labels(x)))], time_limit=0.3)
    assert time.monotonic() - started < 5
    assert trained.stopped_by == "time_limit"
    assert np.isfinite(trained.trees.split_weight).all()


def test_an_epoch_that_the_time_limit_cuts_short_is_not_one():
    """It has no record, and callbacks do not hear of it."""
    x = table()
    (trained,) = fit_members(
        small(), [Member(Samples(x, labels(x)))], time_limit=0.0, callback=lambda records: pytest.fail("called")
    )
    assert trained.stopped_by == "time_limit"
    assert trained.history == []
    assert trained.best_epoch == -1


@pytest.mark.skipif(os.name != "posix", reason="sends a signal to itself")
@pytest.mark.parametrize(("n_members", "n_threads"), [(1, 1), (2, 2)])
def test_interrupt_stops_within_a_step_and_leaves_a_model(n_members, n_threads):
    x = table(n=200000, p=20, dtype=np.float32)
    config = small(n_trees=50, depth=6, max_epochs=1000)
    members = [Member(Samples(x, labels(x)), seed=s) for s in range(n_members)]
    sent = []

    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.5, send)
    timer.start()
    results = fit_members(config, members, n_threads=n_threads, keep_state=True)
    assert time.monotonic() - sent[0] < 5, "an epoch takes much longer than that"
    for trained in results:
        assert trained.stopped_by == "interrupt"
        assert np.isfinite(trained.trees.leaf_weight).all()
        assert 0 < trained.optimizer_state["adam_step"] < 10000
        assert not trained.history, "the epoch was not finished"


def squared_error(predictions, targets, weight):
    error = predictions - targets
    n = error.size
    return 2 * error * weight[:, None] / n, float((error**2 * weight[:, None]).sum() / n)


def test_callable_loss_equals_the_built_in_one():
    x = table(n=150)
    y = x[:, :2] * 0.3
    weight = np.random.default_rng(0).uniform(0.5, 1.5, 150)
    member = Member(Samples(x, y, weight, rows=np.arange(100)), Samples(x, y, weight, rows=np.arange(100, 150)))
    (own,) = fit_members(small(Loss(squared_error)), [member])
    (built_in,) = fit_members(small(Loss("squared_error")), [member])
    for name, array in parameters(own.trees).items():
        np.testing.assert_allclose(array, parameters(built_in.trees)[name], atol=1e-9)
    np.testing.assert_allclose(own.history[-1].train_loss, built_in.history[-1].train_loss)
    np.testing.assert_allclose(own.best_loss, built_in.best_loss)


def test_callable_loss_may_return_the_gradient_only():
    x = table()
    (trained,) = fit_members(small(Loss(lambda *args: squared_error(*args)[0])), [Member(Samples(x, x[:, 0]))])
    (both,) = fit_members(small(Loss(squared_error)), [Member(Samples(x, x[:, 0]))])
    assert_same(trained.trees, both.trees)
    assert np.isnan(trained.history[0].train_loss)


def test_callable_loss_without_a_value_cannot_choose_an_epoch():
    x = table()
    samples = Samples(x, x[:, 0])
    with pytest.raises(ValueError, match=r"validation rows need a loss function that returns \(gradient, loss\)"):
        fit_members(small(Loss(lambda *args: squared_error(*args)[0])), [Member(samples, samples)])


@pytest.mark.parametrize("n_threads", [1, 2])
def test_errors_of_a_callable_loss_reach_the_caller(n_threads):
    def broken(predictions, targets, weight):
        raise ZeroDivisionError("from the loss")

    x = table()
    members = [Member(Samples(x, x[:, 0])) for _ in range(3)]
    with pytest.raises(ZeroDivisionError, match="from the loss"):
        fit_members(small(Loss(broken)), members, n_threads=n_threads)
    with pytest.raises(ValueError, match=r"in the shape of the predictions, \(20, 1\); got \(20,\)"):
        fit_members(small(Loss(lambda p, t, w: p[:, 0])), members, n_threads=n_threads)


def test_loss_that_is_not_finite_names_likely_causes():
    x = table()
    with pytest.raises(FloatingPointError, match=r"epoch 0, step 0 of member 0.*loss function returned NaN"):
        fit_members(small(Loss(lambda p, t, w: p * np.nan)), [Member(Samples(x, x[:, 0]))])
    with pytest.raises(
        FloatingPointError, match=r"exponential of a score overflowed.*learning_rate 1e\+06 is too large"
    ):
        fit_members(small(Loss("poisson"), learning_rate=1e6), [Member(Samples(x, np.abs(x[:, 0])))])
    with pytest.raises(
        FloatingPointError,
        match=r"is too large: try a tenth of it; targets are very large: .*; inputs are not normalised",
    ):
        fit_members(small(Loss("squared_error"), batch_norm=False), [Member(Samples(x, x[:, 0] * 1e200))])


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (Samples(table().astype(np.float16), labels(table())), "must be a C-contiguous float32 or float64 array"),
        (Samples(np.asfortranarray(table()), labels(table())), "numpy.ascontiguousarray"),
        (Samples(table(), labels(table())[:50]), "one row for each of the 100 rows of x"),
        (Samples(table(), labels(table()) + 1), "class numbers 0 to 2"),
        (Samples(table(), labels(table()), rows=np.array([100])), "row numbers from 0 to 99"),
        (Samples(table(), labels(table()), np.zeros(100)), "not all of them 0"),
        (
            Samples(np.where(table() > 9, np.nan, table()), labels(table())),
            r"\.x must be finite; got nan at row 43, column 4",
        ),
    ],
)
def test_samples_that_do_not_fit_are_refused(samples, message):
    with pytest.raises(ValueError, match=message):
        fit_members(small(), [Member(samples)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 0}, r"depth must be an integer from 1 to 20; got 0\."),
        ({"gamma_end": 0.0}, r"gamma_end must be a number above 0, or None; got 0\.0\."),
        ({"max_features": 1.5}, r"max_features must be a number above 0 and at most 1; got 1\.5\."),
        ({"optimizer": "sgd"}, r"optimizer must be 'auto', 'adam' or 'lazy_adam'; got 'sgd'\."),
    ],
)
def test_settings_out_of_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        fit_members(small(**changes), [Member(Samples(table(), labels(table())))])


def scores_of(trees: Trees, x: np.ndarray) -> np.ndarray:
    split_weight, split_bias, leaf_weight = trees.folded()
    return trees.offset + ops.forward(x, split_weight, leaf_weight, split_bias=split_bias, gamma=trees.gamma)


@pytest.mark.parametrize("loss", [CLASSES, Loss("binary_cross_entropy"), Loss("squared_error"), Loss("huber")])
def test_the_validation_metric_is_that_of_the_kept_trees(loss):
    """Accuracy, or R squared as a mean over targets, both with sample weights."""
    from sklearn.metrics import r2_score

    x, other, weight = table(), table(80, seed=1), np.random.default_rng(2).random(80)
    is_class = loss.name in ("cross_entropy", "binary_cross_entropy")

    def target(x: np.ndarray) -> np.ndarray:
        if loss.name == "cross_entropy":
            return labels(x)
        return x[:, 0] > 2 if is_class else x[:, :2] * [1, -3] + [0, 1000]

    held_out = Samples(other, target(other), sample_weight=weight)
    (member,) = fit_members(small(loss), [Member(Samples(x, target(x)), held_out)])
    scores = scores_of(member.trees, other)
    if is_class:
        right = (scores.argmax(axis=1) if loss is CLASSES else scores[:, 0] > 0) == target(other)
        expected = np.average(right, weights=weight)
    else:
        expected = r2_score(target(other), scores, sample_weight=weight)
    assert member.history[member.best_epoch].validation_metric == pytest.approx(expected, rel=1e-6)


def test_no_metric_without_classes_or_means():
    x = table()
    member = Member(Samples(x, np.abs(x[:, 0])), Samples(x, np.abs(x[:, 0])))
    (trained,) = fit_members(small(Loss("poisson"), max_epochs=2, learning_rate=0.001), [member])
    assert np.isnan([record.validation_metric for record in trained.history]).all()


def test_splits_use_all_or_none_of_the_features_of_a_column():
    base = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    encoding = fit_encodings(base, ["number"] * 8, names=("piecewise",))["piecewise"]
    samples = Samples(base, base[:, 0], encoding=encoding)
    config = TrainingConfig(Loss("squared_error"), n_trees=5, depth=3, max_epochs=1, max_features=0.25)
    (trained,) = fit_members(config, [Member(samples)])
    mask = trained.trees.feature_mask
    for column in range(8):
        of_column = mask[:, :, encoding.source == column]
        np.testing.assert_array_equal(of_column.all(axis=2), of_column.any(axis=2))
    assert (mask.sum(axis=2) == mask.sum(axis=2)[0, 0]).all()
    assert mask.mean() == 0.25
