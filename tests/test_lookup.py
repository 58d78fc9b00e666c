"""Trees of lookups in the core against the dense oracle in float64 (lookup_reference.py)."""

from __future__ import annotations

import numpy as np
import pytest

from lookup_cases import CUSTOM, Problem, category, native_scores, run
from lookup_reference import LANES, Column, Forest, decode
from softwood import _core


@pytest.mark.parametrize("depth", range(1, 10))
def test_forward_of_any_depth(depth):
    problem = Problem(depth=depth)
    expected = problem.forest.scores(problem.cells, problem.arrays)
    np.testing.assert_allclose(native_scores(problem), expected, atol=5e-6)


@pytest.mark.parametrize("activation", range(3))
@pytest.mark.parametrize("depth", [3, 6])
def test_forward_of_any_activation(activation, depth):
    problem = Problem(depth=depth, settings={"activation": activation, "gamma": 0.7, "gamma_end": 0.7})
    expected = problem.forest.scores(problem.cells, problem.arrays)
    np.testing.assert_allclose(native_scores(problem), expected, atol=5e-6)


def test_the_oracle_by_hand():
    """One split on one column: knots 0, 1 and a missing entry. t = b + w_ramp scale (f - mean) + w_lin linear."""
    column = Column(
        3,
        2,
        1,
        ramp_scale=np.array([2.0, 0, 0]),
        ramp_mean=np.array([0.25, 0, 0]),
        linear=np.array([-1.0, 1, 0]),
        level_scale=np.array([0, 0, 3.0]),
        level_mean=np.array([0, 0, 0.5]),
    )
    forest = Forest([column], 1, 1, np.array([[0]]), "smooth_step", 10.0)
    table = np.zeros((3, LANES))
    table[:, 0] = [0.1, 0.2, 0.4]  # ramp, linear, level of the missing cell
    bias = np.zeros((1, LANES))
    bias[0, 0] = 0.05
    cells = np.array([[0], [1], [2], [0 | 65535 << 16]], np.uint32)
    centre = 0.4 * 3 * 0.5
    low, high = -0.1 * 2 * 0.25 - 0.2 - centre, 0.1 * 2 * 0.75 + 0.2 - centre
    expected = 0.05 + np.array([low, high, 0.4 * 3 - centre, high])
    np.testing.assert_allclose(forest.split_values(cells, table, bias)[:, 0, 0], expected, rtol=1e-12)
    leaf = np.arange(32.0).reshape(1, 2, LANES)
    np.testing.assert_array_equal(forest.of_leaves(leaf)[0], [[0, 16], [8, 24]])  # a lower split always goes left


@pytest.mark.parametrize("depth", [1, 4, 5, 6, 9])
def test_gradients_of_the_oracle_by_finite_differences(depth):
    problem = Problem(depth=depth, n_trees=2, n_rows=6)
    arrays = problem.values() | {"offset": problem.arrays["offset"]}
    random = np.random.default_rng(5)
    grad_scores = random.normal(size=(6, problem.n_outputs))
    grads, _ = problem.forest.gradients(problem.cells, arrays, grad_scores)
    for name in ("table", "split_bias", "leaf_weight"):
        direction = random.normal(size=arrays[name].shape)
        ends = []
        for step in (1e-6, -1e-6):
            moved = arrays | {name: arrays[name] + step * direction}
            ends.append((problem.forest.scores(problem.cells, moved) * grad_scores).sum())
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx((grads[name] * direction).sum(), rel=1e-4, abs=1e-7)


def numpy_step(problem: Problem, rows: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """The trained arrays and their moments after the first step of Adam, in float64."""
    s = problem.settings
    before = problem.values()
    cells = problem.cells if rows is None else problem.cells[rows]
    targets = problem.targets if rows is None else problem.targets[rows]
    scores = problem.forest.scores(cells, problem.arrays)
    grads, grad_t = problem.forest.gradients(cells, problem.arrays, 2 * (scores - targets) / scores.size)
    untouched = untouched_lazy_rows(problem, cells, grad_t)
    result = {}
    for name, value in before.items():
        is_table = name == "table"
        grad = grads[name] + (s["l2"] * value if is_table else 0)
        first, second = (1 - s["beta1"]) * grad, (1 - s["beta2"]) * grad**2
        frozen = np.isinf(problem.arrays[f"{name}.second_moment"])
        second = np.where(frozen, np.inf, second)
        decay = s["split_weight_decay"] if is_table else s["weight_decay"] if name == "leaf_weight" else 0
        unbiased = np.sqrt(second / (1 - s["beta2"]))
        moved = value * (1 - s["learning_rate"] * decay)
        moved = moved - s["learning_rate"] * (first / (1 - s["beta1"])) / (unbiased + s["epsilon"])
        if is_table and s["l1"]:
            moved = np.sign(moved) * np.maximum(np.abs(moved) - s["learning_rate"] * s["l1"], 0)
        if is_table:
            moved[untouched], first[untouched] = value[untouched], 0
            second[untouched] = np.where(frozen, np.inf, 0)[untouched]
        result |= {name: moved, f"{name}.first_moment": first, f"{name}.second_moment": second}
    return result


def untouched_lazy_rows(problem: Problem, cells: np.ndarray, grad_t: np.ndarray) -> np.ndarray:
    """Which rows of the table are levels of lazy columns that no sample with a gradient has; such rows stand still."""
    forest, (entry, _) = problem.forest, decode(cells)
    result = np.zeros(forest.row[-1], bool)
    for i, c in enumerate(problem.block_columns.ravel()):
        if problem.columns[c].lazy:
            has_gradient = np.any(grad_t[:, i // problem.block_columns.shape[1]], axis=1)
            levels = result[forest.row[i] : forest.row[i + 1]]
            levels[:] = True
            levels[entry[has_gradient, c]] = False
    return result


def check_step(problem: Problem, atol: float = 2e-6) -> None:
    expected = numpy_step(problem)
    run(problem.member())
    for name, value in expected.items():
        scale = 1e-6 + (np.abs(value[np.isfinite(value)]).max() if "moment" in name else 1)
        np.testing.assert_allclose(problem.arrays[name] / scale, value / scale, atol=atol * 10, err_msg=name)


@pytest.mark.parametrize("depth", range(1, 10))
def test_a_step_of_any_depth(depth):
    check_step(Problem(depth=depth))


@pytest.mark.parametrize("activation", range(3))
@pytest.mark.parametrize(("depth", "n_outputs"), [(4, 1), (7, 3)])
def test_a_step_of_any_activation(activation, depth, n_outputs):
    check_step(Problem(depth=depth, n_outputs=n_outputs, settings={"activation": activation, "gamma": 0.8}))


def test_penalties():
    check_step(
        Problem(depth=5, settings={"l1": 0.5, "l2": 0.1, "weight_decay": 3.0, "split_weight_decay": 5.0}), atol=5e-6
    )


def test_frozen_elements_stand_still():
    problem = Problem(depth=5, settings={"l1": 0.1})
    random = np.random.default_rng(3)
    frozen = random.random(problem.arrays["table"].shape) < 0.5
    problem.arrays["table"][frozen] = 0
    problem.arrays["table.second_moment"][frozen] = np.inf
    check_step(problem)
    assert not problem.arrays["table"][frozen].any()


def test_splits_below_the_root_block_are_not_trained():
    problem = Problem(depth=2)
    before = problem.values()
    run(problem.member())
    for name in ("table", "split_bias"):
        np.testing.assert_array_equal(problem.arrays[name][:, 3:], before[name][:, 3:].astype(np.float32))
        assert np.any(problem.arrays[name][:, :3] != before[name][:, :3])


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_several_steps_and_averages(decay):
    """Adam over many batches against NumPy: moments, levels that stand still, and averages that catch up."""
    problem = Problem(depth=5, n_trees=2, n_rows=36, settings={"batch_size": 6, "average_decay": decay, "updates": 1})
    s, forest = problem.settings, problem.forest
    values = problem.values()
    moments = {name: [np.zeros_like(v), np.zeros_like(v), np.zeros_like(v)] for name, v in values.items()}
    order = np.empty(36, np.int64)
    step = 0
    for epoch in range(2):
        _core.shuffled_order(s["seed"], epoch, order)
        for batch in order.reshape(6, 6):
            step += 1
            arrays = values | {"offset": problem.arrays["offset"]}
            cells = problem.cells[batch]
            scores = forest.scores(cells, arrays)
            grads, grad_t = forest.gradients(cells, arrays, 2 * (scores - problem.targets[batch]) / scores.size)
            stands_still = {
                "table": untouched_lazy_rows(problem, cells, grad_t) | unvisited_rows(problem, cells, arrays)
            }
            stands_still["split_bias"] = ~visited_blocks(problem, cells, arrays)
            stands_still["leaf_weight"] = ~visited_leaf_blocks(problem, cells, arrays)
            for name, (first, second, average) in moments.items():
                moves = ~stands_still[name]
                first[moves] += (1 - s["beta1"]) * (grads[name] - first)[moves]
                second[moves] += (1 - s["beta2"]) * (grads[name] ** 2 - second)[moves]
                size = np.sqrt(second / (1 - s["beta2"] ** step)) + s["epsilon"]
                values[name][moves] -= (s["learning_rate"] * first / (1 - s["beta1"] ** step) / size)[moves]
                average += (1 - decay) * (values[name] - average)
    scores = np.empty((36, 2), np.float32)
    member = problem.member(validation=problem.samples(scores=scores))
    run(member, 0)
    run(member, 1)
    assert member.adam_step == 12
    evaluated = values
    for name in values:
        np.testing.assert_allclose(problem.arrays[name], values[name], atol=2e-5, err_msg=name)
        if decay:
            evaluated = {n: moments[n][2] / (1 - decay**step) for n in values}
            np.testing.assert_allclose(problem.arrays[f"{name}.evaluated"], evaluated[name], atol=2e-5, err_msg=name)
    expected = forest.scores(problem.cells, evaluated | {"offset": problem.arrays["offset"]})
    np.testing.assert_allclose(scores, expected, atol=2e-4)


def visited_blocks(problem: Problem, cells: np.ndarray, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Which blocks some sample reaches; [trees * blocks]."""
    forest, p = problem.forest, problem.forest.places
    table = np.asarray(arrays["table"], np.float64)
    t = np.stack([forest.of_splits(row) for row in forest.split_values(cells, table, arrays["split_bias"])])
    half = forest.gamma / 2
    reached = np.zeros((*t.shape[:2], 2 * t.shape[2] + 1), bool)
    reached[:, :, 0] = True
    for i in range(t.shape[2]):
        reached[:, :, 2 * i + 1] = reached[:, :, i] & (t[:, :, i] > -half)
        reached[:, :, 2 * i + 2] = reached[:, :, i] & (t[:, :, i] < half)
    result = np.zeros((forest.n_trees, p.n_blocks), bool)
    for i in np.flatnonzero(p.split_lane == 0):
        result[:, p.split_block[i]] = reached[:, :, i].any(axis=0)
    return result.ravel()


def visited_leaf_blocks(problem: Problem, cells: np.ndarray, arrays: dict[str, np.ndarray]) -> np.ndarray:
    visited = visited_blocks(problem, cells, arrays).reshape(problem.n_trees, -1)
    return visited[:, -problem.forest.places.n_leaf_blocks :].ravel()


def unvisited_rows(problem: Problem, cells: np.ndarray, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Which rows of the table belong to blocks that no sample reaches."""
    by_column = np.repeat(~visited_blocks(problem, cells, arrays), problem.block_columns.shape[1])
    return np.repeat(by_column, np.diff(problem.forest.row))


@pytest.mark.parametrize("updates", [1, 2])
def test_blocks_that_no_sample_reaches_are_left_alone(updates):
    problem = Problem(depth=9, n_rows=3, spread=3.0, settings={"updates": updates, "weight_decay": 1.0})
    visited = visited_blocks(problem, problem.cells, problem.arrays)
    assert 2 * visited.sum() < len(visited)
    before = problem.values()
    leaf_visited = visited_leaf_blocks(problem, problem.cells, problem.arrays)
    run(problem.member())
    moved = np.any(problem.arrays["leaf_weight"] != before["leaf_weight"].astype(np.float32), axis=(1, 2))
    np.testing.assert_array_equal(moved, leaf_visited)
    assert not np.any(problem.arrays["split_bias"][~visited] != before["split_bias"][~visited].astype(np.float32))


def test_weights_count_like_repeated_rows():
    weight = np.random.default_rng(2).integers(1, 4, size=40)
    weighted, repeated = Problem(depth=5), Problem(depth=5)
    rows = np.repeat(np.arange(40), weight)
    mean = (weight / weight.mean()).astype(np.float32)
    run(weighted.member(train=weighted.samples(weight=mean)))
    run(repeated.member(train=repeated.samples(rows=rows)))
    for name in ("table", "split_bias", "leaf_weight"):
        np.testing.assert_allclose(weighted.arrays[name], repeated.arrays[name], atol=2e-6)


@pytest.mark.parametrize("depth", [4, 7])
@pytest.mark.parametrize("n_trees", [1, 13, 40])
def test_same_bits_for_any_number_of_threads(depth, n_trees):
    results = []
    for n_threads in (1, 2, 3):
        settings = {"batch_size": 64, "average_decay": 0.9}
        problem = Problem(depth=depth, n_trees=n_trees, n_rows=300, settings=settings)
        scores = np.empty((300, 2), np.float32)
        member = problem.member(validation=problem.samples(scores=scores))
        outcomes = [run(member, epoch, n_threads)[2:7] for epoch in range(2)]
        results.append([scores, np.array(outcomes), *(problem.arrays[name] for name in sorted(problem.arrays))])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_leaves_reached():
    problem = Problem(depth=6, n_rows=30, spread=1.0)
    expected = problem.forest.reached_leaves(problem.cells, problem.arrays)
    problem.settings["learning_rate"] = 0.0
    outcome = run(problem.member())
    assert outcome[4] == pytest.approx(expected.mean())
    assert expected.mean() < 20  # of 64


@pytest.mark.parametrize("loss", range(9))
def test_every_loss_trains(loss):
    quantiles = [0.1, 0.9] if loss == 5 else []
    settings = {"loss": loss, "n_targets": 1, "learning_rate": 0.05, "quantiles": quantiles, "batch_size": 10}
    problem = Problem(n_outputs={0: 3, 5: 2}.get(loss, 1), n_rows=60, settings=settings)
    problem.targets = (decode(problem.cells)[0][:, :1] % 3).astype(np.float32)
    if loss == 1:
        problem.targets = np.minimum(problem.targets, 1)
    if loss == 7:
        problem.targets += 1
    member = problem.member()
    losses = [run(member, epoch)[2] for epoch in range(30)]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0] - 0.01


def test_a_custom_loss():
    same, custom = Problem(), Problem(settings={"loss": CUSTOM})

    def squared_error(scores, targets, weight):
        return (2 * (scores - targets) / scores.size).astype(np.float32), float(((scores - targets) ** 2).mean())

    first, second = run(same.member()), run(custom.member(custom_loss=squared_error))
    assert first[2] == pytest.approx(second[2])
    np.testing.assert_allclose(same.arrays["table"], custom.arrays["table"], atol=1e-6)


def test_a_loss_that_is_not_finite_changes_nothing():
    problem = Problem()
    problem.targets[3] = np.nan
    before = problem.values()
    assert run(problem.member())[0] == 2
    np.testing.assert_array_equal(problem.arrays["table"], before["table"])


def test_arrays_outlive_the_dict_they_came_in():
    problem = Problem()
    arrays = dict(problem.arrays)
    problem.arrays = dict(arrays)
    member = problem.member()
    problem.arrays.clear()
    run(member)
    assert np.isfinite(arrays["table"]).all()


def test_a_column_of_thousands_of_levels_costs_what_it_has_in_a_batch():
    """Only the levels of the batch move, and get moments."""
    random = np.random.default_rng(0)
    column = category(random, 5000, lazy=True)
    problem = Problem(columns=[column], n_block_columns=1, n_rows=20, spread=0.05)  # every split is soft
    before = problem.arrays["table"].copy()
    run(problem.member())
    moved = np.any(problem.arrays["table"] != before, axis=1).reshape(problem.n_trees, 5000)
    present = np.isin(np.arange(5000), decode(problem.cells)[0][:, 0]) & (column.level_scale > 0)
    np.testing.assert_array_equal(moved, np.tile(present, (problem.n_trees, 1)))


def broken(change):
    problem = Problem()
    change(problem)
    return problem.member()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.cells.__setitem__((5, 3), 3), "row 5, column 3 must have an entry"),
        (lambda p: p.cells.__setitem__((0, 0), 4 | 1 << 16), "row 0, column 0 must have an entry"),
        (lambda p: p.cells.__setitem__((0, 3), 1 << 16), "a fraction only between two knots"),
        (lambda p: p.block_columns.__setitem__((0, 0), 6), "must be numbers of columns"),
        (lambda p: p.block_columns.__setitem__((0, 0), -1), "must be numbers of columns"),
        (lambda p: p.arrays.update(table=p.arrays["table"][1:]), "array table has the wrong shape"),
        (lambda p: p.arrays.update({"split_bias.first_moment": None}), "split_bias.first_moment is missing"),
        (lambda p: p.arrays.update(block_columns=p.block_columns[1:]), "block_columns must be"),
        (lambda p: p.settings.update(depth=21), "depth must be 1 to 20"),
        (lambda p: p.settings.update(n_trees=0), "n_trees must be positive"),
        (lambda p: p.settings.update(activation=3), "unknown activation 3"),
        (lambda p: p.settings.update(gamma=0.0), "gamma must be positive"),
        (lambda p: setattr(p.columns[0], "n_knots", 7), "column 0 must have at most as many knots"),
        (lambda p: setattr(p.columns[3], "n_levels", 4), "column 3 must have at most as many levels"),
        (lambda p: setattr(p.columns[3], "n_levels", 0), "column 3 must have knots or levels"),
        (lambda p: setattr(p.columns[0], "lazy", True), "column 0 is lazy"),
        (lambda p: setattr(p, "targets", p.targets[1:]), "targets must have the rows"),
    ],
)
def test_wrong_arrays_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        broken(change)
