"""Bad input: what was required, what came, what to do."""

from __future__ import annotations

import re

import numpy as np
import pytest

from softwood import _core, ops, reference
from softwood.arguments import ACTIVATIONS, MAX_DEPTH

X, W, O = np.zeros((2, 3)), np.zeros((4, 7, 3)), np.zeros((4, 8, 2))  # noqa: E741
BIAS, GRAD = np.zeros((4, 7)), np.zeros((2, 2))


def refuses(error, message):
    return pytest.raises(error, match="^" + re.escape(message) + "$")


MESSAGES = {
    "x of rank 1": (
        {"x": np.zeros(3)},
        ValueError,
        "x must have 2 dimensions [n, p] (rows, features); got shape (3,): "
        "use x[None] for a single row, or x.reshape(-1, p).",
    ),
    "x of rank 3": (
        {"x": np.zeros((2, 3, 1))},
        ValueError,
        "x must have 2 dimensions [n, p] (rows, features); got shape (2, 3, 1): "
        "use x[None] for a single row, or x.reshape(-1, p).",
    ),
    "x with a column too many": (
        {"x": np.zeros((2, 4))},
        ValueError,
        "x must have 3 columns to match split_weight of shape (4, 7, 3); got shape (2, 4): "
        "pass the features that the trees were made for.",
    ),
    "split_weight of rank 2": (
        {"split_weight": np.zeros((7, 3))},
        ValueError,
        "split_weight must have shape [m, 2^d - 1, p] (trees, splits, features); got shape (7, 3): "
        "for a single tree use split_weight[None].",
    ),
    "no trees": (
        {"split_weight": np.zeros((0, 7, 3))},
        ValueError,
        "split_weight must hold at least one tree and one feature; got shape (0, 7, 3).",
    ),
    "no features": (
        {"split_weight": np.zeros((4, 7, 0))},
        ValueError,
        "split_weight must hold at least one tree and one feature; got shape (4, 7, 0).",
    ),
    "nodes that make no perfect tree": (
        {"split_weight": np.zeros((4, 8, 3))},
        ValueError,
        "split_weight must have 2^d - 1 splits per tree; got 8 in shape (4, 8, 3): "
        "a tree of depth 3 has 7, one of depth 4 has 15.",
    ),
    "no nodes": (
        {"split_weight": np.zeros((4, 0, 3))},
        ValueError,
        "split_weight must have 2^d - 1 splits per tree; got 0 in shape (4, 0, 3): "
        "a tree of depth 1 has 1, one of depth 2 has 3.",
    ),
    "too deep": (
        {"split_weight": np.broadcast_to(np.zeros((1, 1, 1), np.float32), (1, 2**21 - 1, 1))},
        ValueError,
        "depth must be at most 20; got 21 from split_weight of shape (1, 2097151, 1): use more trees of less depth.",
    ),
    "leaves of another depth": (
        {"leaf_weight": np.zeros((4, 7, 2))},
        ValueError,
        "leaf_weight must have shape [4, 8, k] (trees, leaves, outputs) to match split_weight of shape (4, 7, 3); "
        "got shape (4, 7, 2): a tree has one leaf more than it has splits.",
    ),
    "leaves without outputs": (
        {"leaf_weight": np.zeros((4, 8, 0))},
        ValueError,
        "leaf_weight must have shape [4, 8, k] (trees, leaves, outputs) to match split_weight of shape (4, 7, 3); "
        "got shape (4, 8, 0): a tree has one leaf more than it has splits.",
    ),
    "bias of another shape": (
        {"split_bias": np.zeros((4, 8))},
        ValueError,
        "split_bias must have shape (4, 7) (trees, splits) to match split_weight of shape (4, 7, 3); got shape (4, 8): "
        "pass one number per split, or None for no bias.",
    ),
    "x of another dtype": (
        {"x": X.astype(np.float32)},
        TypeError,
        "x and split_weight must have the same dtype; got float32 and float64: convert one, e.g. x.astype(np.float64).",
    ),
    "leaves of another dtype": (
        {"leaf_weight": O.astype(np.float32)},
        TypeError,
        "leaf_weight and split_weight must have the same dtype; got float32 and float64: "
        "convert one, e.g. leaf_weight.astype(np.float64).",
    ),
    "half precision": (
        {"x": X.astype(np.float16)},
        TypeError,
        "x must be an array of float32 or float64; got float16 from ndarray: "
        "convert it, e.g. np.asarray(x, dtype=np.float32).",
    ),
    "strings": (
        {"x": [["a", "b", "c"]]},
        TypeError,
        "x must be an array of float32 or float64; got <U1 from list: "
        "convert it, e.g. np.asarray(x, dtype=np.float32).",
    ),
    "gamma of zero": (
        {"gamma": 0.0},
        ValueError,
        "gamma must be a finite number > 0; got 0.0: it is the width of the soft band, e.g. 1.0.",
    ),
    "negative gamma": (
        {"gamma": -1},
        ValueError,
        "gamma must be a finite number > 0; got -1: it is the width of the soft band, e.g. 1.0.",
    ),
    "gamma that is no number": (
        {"gamma": float("nan")},
        ValueError,
        "gamma must be a finite number > 0; got nan: it is the width of the soft band, e.g. 1.0.",
    ),
    "infinite gamma": (
        {"gamma": float("inf")},
        ValueError,
        "gamma must be a finite number > 0; got inf: it is the width of the soft band, e.g. 1.0.",
    ),
    "gamma as text": (
        {"gamma": "wide"},
        TypeError,
        "gamma must be a number > 0; got 'wide': pass a float such as 1.0.",
    ),
    "misspelt activation": (
        {"activation": "smoothstep"},
        ValueError,
        "activation must be one of 'smooth_step', 'smoother_step', 'logistic'; got 'smoothstep': "
        "did you mean 'smooth_step'?",
    ),
    "another misspelt activation": (
        {"activation": "Sigmoid"},
        ValueError,
        "activation must be one of 'smooth_step', 'smoother_step', 'logistic'; got 'Sigmoid': did you mean 'logistic'?",
    ),
    "activation that is no name": (
        {"activation": None},
        TypeError,
        "activation must be a string, one of 'smooth_step', 'smoother_step', 'logistic'; got None.",
    ),
    "no threads": (
        {"n_threads": 0},
        ValueError,
        "n_threads must be an integer >= 1 or None; got 0: None means softwood.get_num_threads().",
    ),
    "threads that cannot be counted": (
        {"n_threads": 1.5},
        TypeError,
        "n_threads must be an integer >= 1 or None; got 1.5.",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
@pytest.mark.parametrize("function", [ops.forward, ops.backward, ops.reachability, reference.forward])
def test_bad_input_is_refused_with_a_remedy(case, function):
    wrong, error, message = MESSAGES[case]
    arguments = {"x": X, "split_weight": W, "leaf_weight": O} | wrong
    if function is ops.reachability:
        del arguments["leaf_weight"]
        if "leaf_weight" in wrong:
            pytest.skip("takes no leaves")
    elif function is ops.backward:
        arguments["grad_output"] = GRAD
    elif function is reference.forward and (error is TypeError or "n_threads" in wrong):
        pytest.skip("converts to one dtype and has no threads")
    with refuses(error, message):
        function(**arguments)


def test_gamma_without_an_inverse_in_float32_is_refused():
    arrays = [a.astype(np.float32) for a in (X, W, O)]
    with pytest.raises(
        ValueError, match=r"gamma must lie between 1.2e-38 and 8.3e\+37 in float32; got 1e-40: rescale."
    ):
        ops.forward(*arrays, gamma=1e-40)
    assert ops.forward(X, W, O, gamma=1e-40).shape == (2, 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 4), (7, 3), (19, 4)])
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
def test_the_first_value_that_is_not_finite_is_named(bad, dtype, row, column, layout):
    x = np.zeros((20, 5) if layout == "contiguous" else (20, 10), dtype)[:, :5]
    x[row, column] = bad
    x[-1, -1] = np.nan if (row, column) != (19, 4) else bad
    w, o = np.zeros((1, 1, 5), dtype), np.zeros((1, 2, 1), dtype)
    message = (
        f"x must be finite; got {bad} at row {row}, column {column}: impute or drop such values, "
        "or pass check_finite=False to skip this check."
    )
    with refuses(ValueError, message):
        ops.forward(x, w, o)
    with refuses(ValueError, message):
        ops.reachability(x, w)
    with refuses(ValueError, message):
        ops.backward(np.zeros((20, 1), dtype), x, w, o)


def test_grad_output_must_have_the_shape_of_the_output():
    message = (
        "grad_output must have the output's shape (2, 4, 2) (sum_trees=False); got shape (2, 2): "
        "pass the gradient of what forward returned, with the same sum_trees."
    )
    with refuses(ValueError, message):
        ops.backward(GRAD, X, W, O, sum_trees=False)
    with refuses(TypeError, "leaf_weight must be an array of shape [m, 2^d, k]; got None."):
        ops.forward(X, W, None)


def test_needs_must_name_gradients():
    message = "needs must name gradients among x, split_weight, leaf_weight, split_bias; got weights."
    with refuses(ValueError, message):
        ops.backward(GRAD, X, W, O, needs=("x", "weights"))


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"x": np.zeros((3, 3)), "grad_output": np.zeros((3, 2))}, "x=(2, 3), this call has x=(3, 3)"),
        ({"gamma": 2.0}, "gamma=1.0, this call has gamma=2.0"),
        ({"activation": "logistic"}, "activation=smooth_step, this call has activation=logistic"),
        ({"split_bias": BIAS}, "bias=False, this call has bias=True"),
        (
            {"leaf_weight": np.zeros((4, 8, 1)), "grad_output": np.zeros((2, 1))},
            "leaf_weight=(4, 8, 2), this call has leaf_weight=(4, 8, 1)",
        ),
        ({"sum_trees": False, "grad_output": np.zeros((2, 4, 2))}, "sum_trees=True, this call has sum_trees=False"),
        (
            {
                "x": X.astype("f"),
                "split_weight": W.astype("f"),
                "leaf_weight": O.astype("f"),
                "grad_output": GRAD.astype("f"),
            },
            "dtype=float64, this call has dtype=float32",
        ),
    ],
)
def test_a_tape_of_another_call_is_refused(change, difference):
    _, tape = ops.forward(X, W, O, with_tape=True)
    arguments = {"grad_output": GRAD, "x": X, "split_weight": W, "leaf_weight": O, "tape": tape} | change
    message = (
        f"tape must come from a forward pass with the same arguments; it was made with {difference}: "
        "pass the arguments of that forward pass, or tape=None."
    )
    with refuses(ValueError, message):
        ops.backward(**arguments)


def test_a_tape_and_gradients_of_other_types_are_refused():
    with refuses(TypeError, "tape must come from forward(..., with_tape=True); got int."):
        ops.backward(GRAD, X, W, O, tape=3)
    with refuses(TypeError, "out must be the Gradients of an earlier backward; got tuple: pass None at first."):
        ops.backward(GRAD, X, W, O, out=())


def test_gradients_of_another_ensemble_are_refused():
    gradients = ops.backward(GRAD, X, W, O)
    message = (
        "out must come from a backward pass for the same ensemble; it is for split_weight (4, 7, 3) and leaf_weight "
        "(4, 8, 2) in float64, this call has (3, 7, 3) and (3, 8, 2) in float64: pass out=None."
    )
    with refuses(ValueError, message):
        ops.backward(GRAD, X, W[:3], O[:3], out=gradients)


def test_the_compiled_module_checks_sizes_for_itself():
    from softwood import _core

    output = np.zeros((2, 2))
    good = [X, W, O, None, 0, 1.0, True, output, None, 1, True]
    assert _core.forward(*good) == -1
    for position, wrong in [(0, np.zeros((2, 2))), (2, O[:, :7].copy()), (4, 3), (5, 0.0), (7, np.zeros((1, 2)))]:
        with pytest.raises(ValueError, match=r"call softwood\.ops instead"):
            _core.forward(*[wrong if i == position else value for i, value in enumerate(good)])
    for position, wrong in [(0, X.astype(np.float32)), (1, None), (7, read_only(output)), (8, _core.TapeFloat32())]:
        with pytest.raises(TypeError):
            _core.forward(*[wrong if i == position else value for i, value in enumerate(good)])


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


# What Python and the core both know ---------------------------------------------------------------------------------


def test_the_core_has_the_same_activations():
    """Each code means the function of that name, and there is no further code."""
    t = np.linspace(-0.6, 0.6, 25)[:, None]
    w, o = np.ones((1, 1, 1)), np.array([[[1.0], [0.0]]])

    def left_probability(code):
        output = np.empty((len(t), 1))
        _core.forward(t, w, o, None, code, 1.0, True, output, None, 1, False)
        return output

    for name, code in ACTIVATIONS.items():
        np.testing.assert_allclose(left_probability(code), reference.forward(t, w, o, activation=name), atol=1e-12)
    with pytest.raises(ValueError, match="unknown activation 3"):
        left_probability(len(ACTIVATIONS))


def test_the_core_has_the_same_largest_depth():
    x = np.zeros((1, 1), np.float32)
    counts = [np.zeros((1, 1), np.int32) for _ in range(3)]
    for depth in (MAX_DEPTH, MAX_DEPTH + 1):
        w = np.ones((1, 2**depth - 1, 1), np.float32)
        call = (x, w, np.ones((1, 2**depth - 1), np.float32), ACTIVATIONS["smooth_step"], 1.0, *counts, 1)
        if depth == MAX_DEPTH:
            _core.reachability(*call)
            assert counts[1].item() == MAX_DEPTH  # one way down
        else:
            with pytest.raises(ValueError, match="d from 1 to 20"):
                _core.reachability(*call)
