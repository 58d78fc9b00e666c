"""softwood.jax against the oracle, under JAX's transformations, by both ways into the native kernels."""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from softwood import ops, reference
from softwood.jax import init, native, tree_ensemble

BINDINGS = Path(__file__).parent.parent / "bindings"
EXAMPLE = Path(__file__).parent.parent / "examples" / "jax_optax.py"
ENABLE_X64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # the second until JAX 0.7
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}


@pytest.fixture(autouse=True)
def x64():
    with ENABLE_X64(True):
        yield


@pytest.fixture
def by_callback(monkeypatch):
    """Turn the foreign-function interface off, for programs that are compiled from here on."""
    monkeypatch.setattr(native, "ffi_is_available", lambda: False)
    jax.clear_caches()
    yield
    jax.clear_caches()


def apply(problem, implementation="auto"):
    """The layer as a function of x, split_weight, leaf_weight and maybe split_bias."""
    settings = dict(problem.settings, implementation=implementation)

    def function(x, split_weight, leaf_weight, split_bias=None):
        return tree_ensemble(x, split_weight, leaf_weight, split_bias=split_bias, **settings)

    return function


def arguments(problem):
    arrays = problem.arrays if problem.split_bias is None else (*problem.arrays, problem.split_bias)
    return tuple(map(jnp.asarray, arrays))


def loss(problem, implementation="auto"):
    function = apply(problem, implementation)
    return lambda *arrays: jnp.sum(jnp.sin(function(*arrays)))


def assert_close(actual, expected, tolerance=1e-12):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance), actual, expected)


def check_against_oracle(problem, implementation, jit):
    dtype = problem.x.dtype.type
    function = apply(problem, implementation)
    arrays = arguments(problem)

    def value_and_gradients(grad_output, *arrays):
        output, transpose = jax.vjp(function, *arrays)
        return output, transpose(grad_output)

    run = jax.jit(value_and_gradients) if jit else value_and_gradients
    output, gradients = run(jnp.asarray(problem.grad_output), *arrays)
    assert output.dtype == dtype
    assert_close(output, reference.forward(*problem.arrays, **problem.options), TOLERANCE[dtype])
    expected = reference.backward(problem.grad_output, *problem.arrays, **problem.options)
    assert_close(list(gradients), [g for g in expected if g is not None], TOLERANCE[dtype])


CASES = list(itertools.product(["smooth_step", "smoother_step", "logistic"], [False, True], [False, True]))


@pytest.mark.parametrize("implementation", ["auto", "native", "dense"])
@pytest.mark.parametrize(("activation", "bias", "sum_trees"), CASES)
def test_values_and_gradients_are_the_oracles(make_problem, activation, bias, sum_trees, implementation):
    # Outside of jit the dense form is compiled operation by operation, which is slow and JAX's own affair.
    outside = [] if implementation == "dense" else [(np.float64, False)]
    for dtype, jit in [(np.float32, True), (np.float64, True), *outside]:
        problem = make_problem(
            activation=activation, bias=bias, sum_trees=sum_trees, dtype=dtype, gamma=0.7, spread=0.8
        )
        check_against_oracle(problem, implementation, jit)


@pytest.mark.parametrize(("activation", "bias", "sum_trees"), CASES[:4])
def test_the_callback_gives_the_same(make_problem, activation, bias, sum_trees, by_callback):
    problem = make_problem(activation=activation, bias=bias, sum_trees=sum_trees)
    lowered = jax.jit(apply(problem)).lower(*arguments(problem)).as_text()
    assert "softwood_forward" not in lowered
    assert "callback" in lowered
    for jit in (True, False):
        check_against_oracle(problem, "auto", jit)


def test_the_cpu_calls_the_kernels_and_other_devices_do_not(make_problem):
    problem = make_problem()
    gradient = jax.jit(jax.grad(loss(problem), argnums=1))

    def lowered(function, platform):
        return function.trace(*arguments(problem)).lower(lowering_platforms=(platform,)).as_text()

    assert native.ffi_is_available()
    assert "@softwood_forward" in lowered(gradient, "cpu")
    assert "@softwood_backward" in lowered(gradient, "cpu")
    assert "softwood_" not in lowered(gradient, "cuda")
    assert "softwood_" not in lowered(jax.jit(jax.grad(loss(problem, "dense"), argnums=1)), "cpu")
    with pytest.raises(NotImplementedError, match="implementation='native' runs on the CPU alone"):
        lowered(jax.jit(apply(problem, "native")), "cuda")


def test_only_the_gradients_asked_for_are_computed(make_problem):
    problem = make_problem(bias=True)
    arrays = arguments(problem)
    everything = jax.jit(jax.grad(loss(problem, "dense"), argnums=(0, 1, 2, 3)))(*arrays)
    for argnums in [(0,), (1,), (2,), (3,), (1, 2), (0, 3)]:
        gradient = jax.grad(loss(problem), argnums=argnums)
        wanted = tuple(i in argnums for i in range(4))
        assert f"wanted={wanted}" in str(jax.make_jaxpr(gradient)(*arrays))
        assert_close(gradient(*arrays), tuple(everything[i] for i in argnums))


def primitives_of(function, *arrays):
    return [str(equation.primitive) for equation in jax.make_jaxpr(function)(*arrays).eqns]


def test_a_model_mapped_over_samples_is_one_call(make_problem):
    problem = make_problem(bias=True)
    arrays = arguments(problem)
    row_by_row = jax.vmap(apply(problem), in_axes=(0, None, None, None))
    assert_close(row_by_row(*arrays), apply(problem)(*arrays))

    gradient = jax.grad(lambda *arrays: jnp.sum(jnp.sin(row_by_row(*arrays))), argnums=(0, 1, 2, 3))
    assert_close(gradient(*arrays), jax.jit(jax.grad(loss(problem, "dense"), argnums=(0, 1, 2, 3)))(*arrays))
    used = primitives_of(gradient, *arrays)
    assert used.count("softwood_forward") == used.count("softwood_backward") == 1
    assert "scan" not in used


def test_gradients_of_inputs_mapped_over_samples_are_one_call(make_problem):
    problem = make_problem()
    x, *weights = arguments(problem)
    saliency = jax.vmap(lambda row: jax.grad(loss(problem))(row, *weights))
    assert_close(saliency(x), jax.jit(jax.grad(loss(problem, "dense")))(x, *weights))
    assert "scan" not in primitives_of(saliency, x)


def test_gradients_for_each_sample(make_problem):
    problem = make_problem(bias=True)
    x, *weights = arguments(problem)

    def of_each(implementation):
        gradients = jax.grad(loss(problem, implementation), argnums=(1, 2, 3))
        return jax.jit(jax.vmap(lambda row: gradients(row, *weights)))(x)

    assert_close(of_each("auto"), of_each("dense"))


@pytest.mark.parametrize("in_axes", [(None, 0, 0, 0), (0, 0, None, None), (2, 1, 0, None), (None, None, None, 1)])
def test_mapped_weights(make_problem, in_axes):
    problem = make_problem(bias=True)
    arrays = [
        a if axis is None else jnp.stack([a, 0.5 * a, -a], axis)
        for a, axis in zip(arguments(problem), in_axes, strict=True)
    ]
    results = [
        jax.jit(jax.vmap(jax.value_and_grad(loss(problem, implementation), argnums=(0, 1, 2, 3)), in_axes))(*arrays)
        for implementation in ("auto", "dense")
    ]
    assert_close(*results)


def test_training_in_a_scan(make_problem):
    problem = make_problem(bias=True)
    x, *weights = arguments(problem)

    @functools.partial(jax.jit, static_argnums=1)
    def train(weights, implementation):
        def step(weights, _):
            value, gradients = jax.value_and_grad(lambda w: loss(problem, implementation)(x, *w))(weights)
            return jax.tree.map(lambda w, g: w - 0.05 * g, weights, gradients), value

        return jax.lax.scan(step, weights, None, length=20)

    (_, values), expected = train(weights, "auto"), train(weights, "dense")[1]
    assert values[-1] < values[0] - 1.0
    assert_close(values, expected, 1e-9)


def test_gradients_through_a_scan_and_a_checkpoint(make_problem):
    problem = make_problem(p=3, k=3)
    x, *weights = arguments(problem)

    def run(weights, implementation):
        body = jax.checkpoint(lambda carry, _: (apply(problem, implementation)(carry, *weights), None))
        return jnp.sum(jax.lax.scan(body, x, None, length=4)[0])

    gradient = jax.jit(jax.grad(run), static_argnums=1)
    assert_close(gradient(weights, "auto"), gradient(weights, "dense"), 1e-9)


@pytest.mark.parametrize("activation", ["smooth_step", "smoother_step", "logistic"])
def test_derivatives_of_both_modes_are_finite_differences(make_problem, activation):
    problem = make_problem(n=3, p=2, k=2, m=2, d=2, activation=activation, bias=True, gamma=4.0, spread=0.1)
    check_grads(jax.jit(apply(problem)), arguments(problem), order=1, modes=("fwd", "rev"), atol=1e-5, rtol=1e-5)


def test_the_hessian_is_that_of_the_dense_form(make_problem):
    problem = make_problem(n=4, p=3, m=2, d=2)
    hessian = {i: jax.jit(jax.hessian(loss(problem, i), argnums=(0, 1))) for i in ("auto", "dense")}
    assert_close(hessian["auto"](*arguments(problem)), hessian["dense"](*arguments(problem)))


def test_any_leading_dimensions(make_problem):
    problem = make_problem(n=24, sum_trees=False)
    x, *weights = arguments(problem)
    expected = apply(problem)(x, *weights)
    assert_close(apply(problem)(x.reshape(2, 3, 4, -1), *weights), expected.reshape(2, 3, 4, *expected.shape[1:]))
    assert_close(apply(problem)(x[0], *weights), expected[0])


def test_an_empty_batch(make_problem):
    problem = make_problem(n=0)
    value, gradients = jax.value_and_grad(loss(problem), argnums=(0, 1, 2))(*arguments(problem))
    assert value == 0.0
    assert [g.shape for g in gradients] == [a.shape for a in problem.arrays]
    assert not any(g.any() for g in gradients)


def test_16_bits_are_computed_in_32(make_problem):
    problem = make_problem(dtype=np.float32)
    x, *weights = arguments(problem)
    half = x.astype(jnp.bfloat16), *(w.astype(jnp.bfloat16) for w in weights)
    output = apply(problem)(*half)
    assert output.dtype == jnp.bfloat16
    wide = apply(problem)(*(a.astype(jnp.float32) for a in half))
    assert (output == wide.astype(jnp.bfloat16)).all()
    assert apply(problem)(half[0], *weights).dtype == jnp.float32
    assert jax.grad(lambda x: loss(problem)(x, *half[1:]).astype(jnp.float32))(half[0]).dtype == jnp.bfloat16


def test_integers_become_floats(make_problem):
    problem = make_problem()
    _, *weights = arguments(problem)
    ones = jnp.ones((2, 5), jnp.int32)
    assert_close(apply(problem)(ones, *weights), apply(problem)(ones.astype(jnp.float64), *weights))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("call", ["ffi", "callback"])
def test_bad_rows_give_nan_and_no_others(make_problem, bad, call, request):
    if call == "callback":
        request.getfixturevalue("by_callback")
    problem = make_problem(n=40, d=6, spread=4.0, sum_trees=False)
    expected = np.array(apply(problem)(*arguments(problem)))
    problem.x[[3, 17], [0, 4]] = bad
    expected[[3, 17]] = np.nan
    np.testing.assert_array_equal(apply(problem)(*arguments(problem)), expected)


def test_any_number_of_threads_gives_the_same_bits(make_problem):
    problem = make_problem(n=300, m=20, d=5, dtype=np.float32)
    arrays = arguments(problem)
    results = []
    for n_threads in (1, 2, 5):
        function = functools.partial(tree_ensemble, n_threads=n_threads)
        results.append(jax.jit(jax.value_and_grad(lambda *a, f=function: f(*a).sum(), argnums=(0, 1, 2)))(*arrays))
    for other in results[1:]:
        jax.tree.map(np.testing.assert_array_equal, results[0], other)


class TestAnotherVersionOfTheInterface:
    """A handler that calls itself of another version is refused by the real jaxlib, and the callback steps in."""

    HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))

    @pytest.fixture
    def foreign_handlers(self, monkeypatch):
        jax.devices()  # before there are any, handlers are only noted

        def answer(frame):
            # Frame: size, extensions, ...; extension: size, type, next, metadata; metadata: size, version.
            metadata = ctypes.cast(frame[1], ctypes.POINTER(ctypes.c_void_p))[3]
            version = ctypes.cast(metadata + 8, ctypes.POINTER(ctypes.c_int))
            version[4], version[5] = 7, 0

        handler = self.HANDLER(answer)
        capsule = jax.ffi.pycapsule(ctypes.cast(handler, ctypes.c_void_p))
        monkeypatch.setattr(ops, "xla_handlers", lambda: {"foreign": capsule})
        native.ffi_is_available.cache_clear()
        jax.clear_caches()
        yield
        native.ffi_is_available.cache_clear()
        jax.clear_caches()

    def test_falls_back(self, make_problem, foreign_handlers):
        with pytest.warns(RuntimeWarning, match=r"does not take softwood's native calls .*7\.0"):
            assert not native.ffi_is_available()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it warns once
            check_against_oracle(make_problem(), "auto", jit=True)


class Version(ctypes.Structure):
    """XLA_FFI_Api_Version. The next are XLA_FFI_Api, _Metadata, _Metadata_Extension and the start of _CallFrame."""

    _fields_ = [("size", ctypes.c_size_t), ("next", ctypes.c_void_p), ("major", ctypes.c_int), ("minor", ctypes.c_int)]


class Api(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("next", ctypes.c_void_p), ("version", Version)]


class Metadata(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("version", Version), ("traits", ctypes.c_uint32)]


class MetadataExtension(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("type", ctypes.c_int32), ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(Metadata)),
    ]  # fmt: skip


class Frame(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("extensions", ctypes.POINTER(MetadataExtension)), ("api", ctypes.POINTER(Api)),
        ("rest", ctypes.c_byte * 200),
    ]  # fmt: skip


@pytest.mark.parametrize(("shown", "answered"), [(None, 1), (0, 1), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_each_jaxlib_is_answered_with_a_version_that_it_takes(shown, answered):
    """Until 0.8 a jaxlib, whose minor version is then 1, does not show it to a handler that it asks for its own."""
    capsule = ops.xla_handlers()["forward"]
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.argtypes, name_of.restype = [ctypes.py_object], ctypes.c_char_p
    pointer_of.argtypes, pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Frame))(pointer_of(capsule, name_of(capsule)))
    found = Metadata()
    extension = MetadataExtension(ctypes.sizeof(MetadataExtension), 1, None, ctypes.pointer(found))
    frame = Frame(ctypes.sizeof(Frame), ctypes.pointer(extension))
    if shown is not None:
        frame.api = ctypes.pointer(Api(ctypes.sizeof(Api), None, Version(ctypes.sizeof(Version), None, 0, shown)))
    assert handler(frame) is None
    assert (found.version.major, found.version.minor) == (0, answered)


def test_the_declared_call_frame_is_that_of_jaxlib(tmp_path):
    """The compiler compares our declarations with the header of the installed jaxlib, member by member."""
    same_size = {"Extension": "Extension_Base", "Version": "Api_Version", "ErrorArguments": "Error_Create_Args"}
    same_size |= {name: name for name in ("Buffer", "Scalar")} | {"Text": "ByteSpan", "Values": "Args"}
    same_size |= {"Attributes": "Attrs", "MetadataExtension": "Metadata_Extension"}
    members = {
        ("Extension", "Extension_Base"): "type:type next:next",
        ("Version", "Api_Version"): "major:major_version minor:minor_version",
        ("Metadata", "Metadata"): "version:api_version traits:traits",
        ("MetadataExtension", "Metadata_Extension"): "base:extension_base metadata:metadata",
        ("ErrorArguments", "Error_Create_Args"): "message:message code:errc",
        ("Api", "Api"): "version:api_version internal:internal_api create_error:XLA_FFI_Error_Create",
        ("Buffer", "Buffer"): "dtype:dtype data:data rank:rank dims:dims",
        ("Scalar", "Scalar"): "dtype:dtype value:value",
        ("Text", "ByteSpan"): "data:ptr size:len",
        ("Values", "Args"): "size:size kinds:types values:args",
        ("Values", "Rets"): "size:size kinds:types values:rets",
        ("Attributes", "Attrs"): "size:size kinds:types names:names values:attrs",
        ("Frame", "CallFrame"): "extensions:extension_start api:api context:ctx stage:stage arguments:args results:rets"
        " attributes:attrs",
    }
    constants = {
        "kMajorVersion": "API_MAJOR",
        "kInt32": "DataType_S32",
        "kFloat32": "DataType_F32",
        "kFloat64": "DataType_F64",
        "kInvalidArgument": "Error_Code_INVALID_ARGUMENT",
        "kInternal": "Error_Code_INTERNAL",
        "kExecute": "ExecutionStage_EXECUTE",
        "kMetadataExtension": "Extension_Metadata",
        "kBufferKind": "ArgType_BUFFER",
        "kScalarKind": "AttrType_SCALAR",
    }
    ours, theirs = "softwood::xla::", "XLA_FFI_"
    checks = [f"sizeof({ours}{a}) == sizeof({theirs}{b})" for a, b in same_size.items()]
    checks += [f"int({ours}{a}) == int({theirs}{b})" for a, b in constants.items()]
    for (a, b), pairs in members.items():
        for pair in pairs.split():
            mine, other = pair.split(":")
            checks.append(f"offsetof({ours}{a}, {mine}) == offsetof({theirs}{b}, {other})")
    source = tmp_path / "layout.cc"
    source.write_text(
        '#include "xla_ffi.h"\n#include "xla/ffi/api/c_api.h"\n'
        + "".join(f'static_assert({check}, "");\n' for check in checks)
    )
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler, "a C++ compiler built the package, and none is found now"
    command = [compiler, "-std=c++20", "-fsyntax-only", "-I", BINDINGS, "-I", jax.ffi.include_dir(), source]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


class TestInit:
    def test_shapes_range_and_types(self):
        params = init(jax.random.key(0), 5, 2, n_trees=7, depth=3, bias=True, dtype=jnp.float64)
        shapes = {"split_weight": (7, 7, 5), "leaf_weight": (7, 8, 2), "split_bias": (7, 7)}
        assert {name: a.shape for name, a in params.items()} == shapes
        assert all(a.dtype == jnp.float64 for a in params.values())
        assert not params["split_bias"].any()
        for name in ("split_weight", "leaf_weight"):
            assert 0.009 < jnp.abs(params[name]).max() <= 0.01
        assert tree_ensemble(jnp.ones((3, 5)), **params).shape == (3, 2)

    def test_trees_and_keys_differ(self):
        first, second = (init(jax.random.key(seed), 5, 2, n_trees=7, depth=3) for seed in (0, 1))
        for name in first:
            assert len(np.unique(np.asarray(first[name]).reshape(7, -1), axis=0)) == 7
            assert not np.isin(first[name], second[name]).any()

    @pytest.mark.parametrize(
        ("sizes", "message"),
        [
            ((0, 1, 1, 1), "n_features must be an integer of 1 or more; got 0"),
            ((1, 1, True, 1), "n_trees must be an integer of 1 or more; got True"),
            ((1, 1, 1, 21), "depth must be at most 20, a tree of which has a million leaves; got 21"),
        ],
    )
    def test_bad_sizes(self, sizes, message):
        with pytest.raises(ValueError, match=message):
            init(jax.random.key(0), *sizes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": (2, 4)}, r"x must have 5 features in its last dimension, as split_weight has; got shape \(2, 4\)"),
        ({"x": ()}, r"x must have 5 features in its last dimension, as split_weight has; got shape \(\)"),
        ({"split_weight": (3, 6, 5)}, r"split_weight must be \[n_trees, 2\^depth - 1, n_features\].*\(3, 6, 5\)"),
        ({"split_weight": (7, 5)}, r"split_weight must be \[n_trees, 2\^depth - 1, n_features\].*\(7, 5\)"),
        ({"leaf_weight": (3, 7, 2)}, r"leaf_weight must be \[3, 8, n_outputs\].*got shape \(3, 7, 2\)"),
        ({"split_bias": (7,)}, r"split_bias must be \[3, 7\], one for each split; got shape \(7,\)"),
        ({"activation": "step"}, "activation must be one of 'smooth_step', 'smoother_step', 'logistic'; got 'step'"),
        ({"implementation": "fast"}, "implementation must be one of 'auto', 'native', 'dense'; got 'fast'"),
        ({"gamma": 0.0}, "gamma must be a positive number, the width of the soft band; got 0.0"),
        ({"gamma": float("nan")}, "gamma must be a positive number, the width of the soft band; got nan"),
        ({"n_threads": 0}, "n_threads must be 1 or more, or None; got 0"),
    ],
)
def test_errors_name_what_is_wrong(change, message):
    shapes = {"x": (2, 5), "split_weight": (3, 7, 5), "leaf_weight": (3, 8, 2)}
    given = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    given |= {name: jnp.zeros(value) if isinstance(value, tuple) else value for name, value in change.items()}
    with pytest.raises(ValueError, match=message):
        tree_ensemble(**given)


class TestGamma:
    @pytest.mark.parametrize("implementation", ["auto", "dense"])
    def test_a_traced_gamma_is_compiled_once(self, make_problem, implementation):
        problem = make_problem(bias=True)
        n_traces = 0

        @jax.jit
        def run(gamma):
            nonlocal n_traces
            n_traces += 1
            return tree_ensemble(
                *problem.arrays, split_bias=problem.split_bias, gamma=gamma, implementation=implementation
            )

        for gamma in (0.25, 0.7, 3.0):
            expected = reference.forward(*problem.arrays, split_bias=problem.split_bias, gamma=gamma)
            assert_close(run(gamma), expected)
            assert_close(
                tree_ensemble(*problem.arrays, split_bias=problem.split_bias, gamma=jnp.array([gamma])), expected
            )
        for gamma in (0.0, -1.0, np.nan):  # compiled programs cannot raise
            assert jnp.isnan(run(gamma)).all()
        assert n_traces == 1

    @pytest.mark.parametrize("activation", ["smooth_step", "smoother_step", "logistic"])
    def test_gamma_has_a_gradient(self, make_problem, activation):
        problem = make_problem(n=3, p=2, k=2, m=2, d=2, activation=activation, bias=True, spread=0.1)

        def output(gamma, x, split_weight, leaf_weight, split_bias):
            return tree_ensemble(
                x, split_weight, leaf_weight, split_bias=split_bias, gamma=gamma, activation=activation
            )

        check_grads(output, (jnp.array(4.0), *arguments(problem)), order=2, modes=["fwd", "rev"])

    def test_gamma_can_be_mapped(self, make_problem):
        problem = make_problem()
        gammas = jnp.array([0.5, 1.0, 2.0])
        outputs = jax.vmap(lambda gamma: tree_ensemble(*problem.arrays, gamma=gamma))(gammas)
        for gamma, output in zip(gammas, outputs, strict=True):
            assert_close(output, reference.forward(*problem.arrays, gamma=float(gamma)))

    def test_the_dtype_stays(self, make_problem):
        arrays = make_problem(dtype=np.float32).arrays
        assert tree_ensemble(*arrays, gamma=jnp.array(0.5, dtype=np.float64)).dtype == np.float32

    def test_bad_arrays_are_refused(self, make_problem):
        problem = make_problem()
        message = (
            r"gamma must be a number or an array of one element, for all trees; got shape \(2,\): to give trees bands "
            "of their own, scale their split_weight and split_bias"
        )
        with pytest.raises(ValueError, match=message):
            tree_ensemble(*problem.arrays, gamma=jnp.ones(2))
        with pytest.raises(ValueError, match=r"gamma must be a positive number, the width of the soft band; got -1\.0"):
            tree_ensemble(*problem.arrays, gamma=jnp.array(-1.0))


def test_the_example_learns():
    run = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = re.search(r"validation AUC +([\d.]+)", run.stdout)
    assert found is not None, run.stdout
    assert float(found[1]) > 0.97


def test_without_jax_the_error_names_the_extra():
    code = "import sys; sys.modules['jax'] = None\nimport softwood.jax"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: softwood.jax needs JAX, which is not installed: pip install 'softwood[jax]'" in run.stderr
