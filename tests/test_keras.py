"""What softwood.keras promises, on each backend of Keras, which is fixed when Keras is imported: see own_process.py."""

from __future__ import annotations

import importlib
import itertools
import json
import os

import numpy as np
import pytest

from own_process import IS_OTHER_PROCESS
from softwood import ops, reference

if IS_OTHER_PROCESS:
    import keras

    from softwood.keras import GammaSchedule, TreeEnsemble, from_tf_trees

BACKENDS = ["tensorflow", "jax", "torch"]
BACKEND = os.environ.get("KERAS_BACKEND")
IMPLEMENTATIONS = ["native", "dense"]


def in_process_of(backend: str) -> pytest.MarkDecorator:
    return pytest.mark.process(KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3")


@pytest.fixture(
    autouse=True, scope="module", params=[pytest.param(name, marks=in_process_of(name)) for name in BACKENDS]
)
def backend(request):
    """Every test runs once for each backend, in a process of its own."""
    assert keras.backend.backend() == request.param


@pytest.fixture(autouse=True)
def fresh_keras():
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="module")
def table():
    """A small classification table that trees can learn."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 5)).astype("float32")
    return x, (x[:, 0] * x[:, 1] > 0).astype("int64") + (x[:, 2] > 1).astype("int64")


def layer_of(problem, **kwargs) -> TreeEnsemble:
    """A built layer with a problem's weights."""
    n_trees, n_leaves, n_outputs = problem.leaf_weight.shape
    use_bias = problem.split_bias is not None
    depth = n_leaves.bit_length() - 1
    layer = TreeEnsemble(n_outputs, n_trees, depth, use_bias=use_bias, **problem.settings, **kwargs)
    layer.build((None, problem.x.shape[1]))
    weights = [problem.split_weight, problem.leaf_weight] + ([problem.split_bias] if use_bias else [])
    layer.set_weights([*weights, np.array(layer.gamma)])
    return layer


def to_numpy(tensors):
    return [np.asarray(keras.ops.convert_to_numpy(tensor)) for tensor in tensors]


def output_and_gradients(layer, x, grad_output):
    """Output, and gradients of x and of the layer's weights, as arrays."""
    x = keras.ops.convert_to_tensor(x)
    grad_output = keras.ops.convert_to_tensor(grad_output)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        @tf.function
        def run(x):
            variables = [variable.value for variable in layer.trainable_variables]
            with tf.GradientTape() as tape:
                tape.watch(x)
                output = layer(x)
            return [output, *tape.gradient(output, [x, *variables], grad_output)]

        return to_numpy(run(x))
    if BACKEND == "jax":
        import jax

        fixed = [variable.value for variable in layer.non_trainable_variables]

        def call(x, variables):
            return layer.stateless_call(variables, fixed, x)[0]

        output, transpose = jax.vjp(call, x, [variable.value for variable in layer.trainable_variables])
        grad_x, gradients = transpose(grad_output)
        return to_numpy([output, grad_x, *gradients])
    x.requires_grad_(True)
    output = layer(x)
    output.backward(grad_output)
    return to_numpy([output, x.grad, *(variable.value.grad for variable in layer.trainable_variables)])


CASES = list(itertools.product(["smooth_step", "smoother_step", "logistic"], [False, True], [False, True]))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("activation", "bias", "sum_trees"), CASES)
def test_output_and_gradients_are_the_oracles(make_problem, activation, bias, sum_trees, implementation):
    problem = make_problem(
        activation=activation, bias=bias, sum_trees=sum_trees, dtype=np.float32, gamma=0.7, spread=0.8
    )
    output, *gradients = output_and_gradients(
        layer_of(problem, implementation=implementation), problem.x, problem.grad_output
    )
    np.testing.assert_allclose(output, reference.forward(*problem.arrays, **problem.options), rtol=1e-5, atol=1e-5)
    expected = reference.backward(problem.grad_output, *problem.arrays, **problem.options)
    for gradient, wanted in zip(gradients, [g for g in expected if g is not None], strict=True):
        np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-5)


def test_float64(make_problem):
    if BACKEND == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
    try:
        problem = make_problem(bias=True)
        layer = layer_of(problem, dtype="float64")
        output, *gradients = output_and_gradients(layer, problem.x, problem.grad_output)
        assert output.dtype == np.float64
        np.testing.assert_allclose(output, reference.forward(*problem.arrays, **problem.options), rtol=1e-12)
        expected = reference.backward(problem.grad_output, *problem.arrays, **problem.options)
        for gradient, wanted in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(gradient, wanted, rtol=1e-10, atol=1e-12)
    finally:
        if BACKEND == "jax":
            jax.config.update("jax_enable_x64", False)


def uses_native_kernels(layer, x, monkeypatch) -> bool:
    if BACKEND == "jax":
        import jax

        trained, fixed = (
            [v.value for v in part] for part in (layer.trainable_variables, layer.non_trainable_variables)
        )
        program = jax.make_jaxpr(lambda v, x: layer.stateless_call(v, fixed, x)[0])(trained, x)
        return "softwood_forward" in str(program)
    calls = []

    def forward(*args, **kwargs):
        calls.append(args)
        return real(*args, **kwargs)

    kernels = importlib.import_module("softwood.torch.native") if BACKEND == "torch" else ops
    real = kernels.forward
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "forward", forward)
        layer(x)
    return bool(calls)


def test_the_cpu_runs_native_kernels_unless_told_otherwise(make_problem, monkeypatch):
    problem = make_problem(dtype=np.float32)
    for implementation, expected in [("auto", True), ("native", True), ("dense", False)]:
        layer = layer_of(problem, implementation=implementation)
        assert uses_native_kernels(layer, problem.x, monkeypatch) == expected


def classifier(*layers, **kwargs):
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.BatchNormalization(), *layers, keras.layers.Softmax()], name="classifier"
    )
    model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"], **kwargs)
    return model


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_sequential_model_learns_saves_and_loads(table, tmp_path, implementation):
    x, y = table
    model = classifier(TreeEnsemble(3, n_trees=10, depth=4, use_bias=True, implementation=implementation))
    model.fit(x, y, epochs=20, batch_size=64, verbose=0)
    _, accuracy = model.evaluate(x, y, verbose=0)
    assert accuracy > 0.8  # the most frequent class alone gives 0.52
    prediction = model.predict(x, verbose=0)

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), prediction)
    loaded.fit(x, y, epochs=1, verbose=0)

    model.save_weights(tmp_path / "model.weights.h5")
    other = classifier(TreeEnsemble(3, n_trees=10, depth=4, use_bias=True))
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(other.predict(x, verbose=0), prediction, atol=1e-6)


def test_functional_and_subclassed_models(table, tmp_path):
    x, y = table

    class Residual(keras.Model):
        def __init__(self):
            super().__init__()
            self.trees = TreeEnsemble(5, n_trees=3, depth=2)
            self.head = keras.layers.Dense(3, activation="softmax")

        def call(self, inputs):
            return self.head(inputs + self.trees(inputs))

    inputs = keras.Input((5,))
    kept = TreeEnsemble(2, n_trees=3, depth=2, sum_trees=False, name="kept")(inputs)
    assert kept.shape == (None, 3, 2)
    outputs = keras.layers.Dense(3, activation="softmax")(keras.layers.Flatten()(kept))
    for model in (Residual(), keras.Model(inputs, outputs)):
        model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy")
        losses = model.fit(x, y, epochs=5, verbose=0).history["loss"]
        assert losses[-1] < losses[0] - 0.05
        prediction = model.predict(x, verbose=0)
        model.save_weights(tmp_path / "model.weights.h5")
        model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
        model.load_weights(tmp_path / "model.weights.h5")
        np.testing.assert_array_equal(model.predict(x, verbose=0), prediction)


def test_config_makes_an_equal_layer():
    layer = TreeEnsemble(
        2, 3, 4,
        gamma=0.5, activation="smoother_step", use_bias=True, sum_trees=False,
        split_initializer=keras.initializers.RandomNormal(stddev=0.3, seed=1), leaf_initializer="he_uniform",
        split_regularizer=keras.regularizers.L1(0.01), leaf_regularizer="l2",
        split_constraint=keras.constraints.MaxNorm(2.0, axis=-1), leaf_constraint="non_neg",
        implementation="dense", name="trees", trainable=False,
    )  # fmt: skip
    config = layer.get_config()
    json.dumps(config)
    again = TreeEnsemble.from_config(config)
    assert again.get_config() == config
    assert keras.saving.get_registered_name(TreeEnsemble) == "softwood>TreeEnsemble"
    for made in (layer, again):
        made.build((None, 5))
    np.testing.assert_array_equal(*to_numpy([layer.split_weight, again.split_weight]))


def test_regularizers_and_constraints_act(table):
    x, y = table
    trees = TreeEnsemble(
        3, n_trees=2, depth=2,
        split_regularizer=keras.regularizers.L1(0.5), leaf_regularizer=keras.regularizers.L2(0.25),
        split_constraint=keras.constraints.MaxNorm(0.02, axis=-1), leaf_constraint="non_neg",
    )  # fmt: skip
    model = classifier(trees)
    split_weight, leaf_weight = to_numpy([trees.split_weight, trees.leaf_weight])
    penalty = 0.5 * np.abs(split_weight).sum() + 0.25 * np.square(leaf_weight).sum()
    np.testing.assert_allclose(to_numpy([sum(model.losses)])[0], penalty, rtol=1e-5)
    model.fit(x, y, epochs=2, verbose=0)
    split_weight, leaf_weight = to_numpy([trees.split_weight, trees.leaf_weight])
    assert np.linalg.norm(split_weight, axis=-1).max() < 0.0201
    assert leaf_weight.min() >= 0.0


@pytest.mark.parametrize("initializer", [None, "glorot_uniform", "he_normal", "random_normal", "with a seed"])
def test_no_two_trees_start_alike(initializer):
    if initializer == "with a seed":
        initializer = keras.initializers.RandomUniform(seed=3)
    layer = TreeEnsemble(2, n_trees=8, depth=3, split_initializer=initializer, leaf_initializer=initializer)
    layer.build((None, 5))
    for weight in to_numpy(layer.trainable_weights):
        assert len(np.unique(weight.reshape(8, -1), axis=0)) == 8
        assert len(np.unique(weight)) > 0.9 * weight.size


def test_initial_scales():
    layer = TreeEnsemble(2, n_trees=40, depth=5, leaf_initializer="lecun_uniform", split_initializer="he_normal")
    layer.build((None, 20))
    split_weight, leaf_weight = to_numpy(layer.trainable_weights)
    np.testing.assert_allclose(split_weight.std(), np.sqrt(2 / 20), rtol=0.02)  # fan in: the features of a split
    np.testing.assert_allclose(leaf_weight.std(), np.sqrt(1 / (40 * 32)), rtol=0.05)  # fan in: the leaves
    layer = TreeEnsemble(2, n_trees=4, depth=5)
    layer.build((None, 20))
    assert all(0.0095 < np.abs(weight).max() <= 0.01 for weight in to_numpy(layer.trainable_weights))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "bfloat16"])
def test_16_bit_policies_compute_in_float32(make_problem, table, policy):
    problem = make_problem(dtype=np.float32)
    expected = reference.forward(*problem.arrays, **problem.options)
    layer = layer_of(problem, dtype=policy)
    output = layer(problem.x)
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
    (values,) = to_numpy([keras.ops.cast(output, "float32")])
    np.testing.assert_allclose(values, expected, atol=0.1)
    if policy == "mixed_float16":
        # Rounding x is all that may be lost.
        rounded = problem.x.astype("float16").astype("float32")
        exact = reference.forward(rounded, *problem.arrays[1:], **problem.options)
        np.testing.assert_allclose(values, exact, rtol=1e-3, atol=1e-3)
        keras.config.set_dtype_policy(policy)
        model = classifier(TreeEnsemble(3, n_trees=5, depth=3))
        losses = model.fit(*table, epochs=5, verbose=0).history["loss"]
        assert losses[-1] < losses[0] - 0.05
        assert model.layers[1].split_weight.dtype == "float32"


def test_frozen_layers_stay_as_they_are(table):
    trees = TreeEnsemble(3, n_trees=2, depth=2, trainable=False)
    model = classifier(trees, keras.layers.Dense(3))
    before = to_numpy(trees.weights)
    model.fit(*table, epochs=1, verbose=0)
    for a, b in zip(before, to_numpy(trees.weights), strict=True):
        np.testing.assert_array_equal(a, b)


def test_any_leading_dimensions_known_or_not(make_problem):
    problem = make_problem(n=24, dtype=np.float32, sum_trees=False)
    layer = layer_of(problem)
    expected = reference.forward(*problem.arrays, **problem.options)
    inputs = keras.Input((None, 4, 5))
    model = keras.Model(inputs, layer(inputs))
    assert model.output_shape == (None, None, 4, 4, 3) == layer.compute_output_shape((None, None, 4, 5))
    for shape in [(2, 3, 4), (1, 6, 4)]:
        output = model.predict(problem.x.reshape(*shape, 5), verbose=0)
        np.testing.assert_allclose(output, expected.reshape(*shape, 4, 3), rtol=1e-5, atol=1e-5)


def test_empty_batches_and_batches_of_integers(make_problem):
    layer = layer_of(make_problem(dtype=np.float32))
    assert tuple(layer(np.zeros((0, 5), "float32")).shape) == (0, 3)
    ones = np.ones((2, 5), "int32")
    np.testing.assert_array_equal(*to_numpy([layer(ones), layer(ones.astype("float32"))]))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_missing_value_gives_nan_in_its_row_only(make_problem, implementation):
    problem = make_problem(n=40, d=5, spread=4.0, dtype=np.float32)
    layer = layer_of(problem, implementation=implementation)
    (expected,) = to_numpy([layer(problem.x)])
    problem.x[7, 2] = np.nan
    expected = expected.copy()
    expected[7] = np.nan
    np.testing.assert_allclose(to_numpy([layer(problem.x)])[0], expected, rtol=1e-6)


def test_reachable_leaves(make_problem):
    problem = make_problem(n=30, d=5, spread=4.0, bias=True, dtype=np.float32)
    expected = reference.reachability(problem.x, problem.split_weight, **problem.routing).leaves
    np.testing.assert_array_equal(layer_of(problem).reachable_leaves(problem.x), expected)


class TestTensorFlowTrees:
    """Weights of the authors' layer: a list of [p, 2^d - 1] and a list of [k, 2^d], smoothing 1 / gamma."""

    @staticmethod
    def output(x, node_weights, leaf_weights, smooth_step_param):
        """Their layer by definition: walk every path, breadth first, left child by probability S(w x)."""
        outputs = []
        for nodes, leaves in zip(node_weights, leaf_weights, strict=True):
            n_splits = nodes.shape[1]
            reach = np.zeros((len(x), 2 * n_splits + 1))
            reach[:, 0] = 1.0
            for i in range(n_splits):
                t = np.clip(smooth_step_param * (x @ nodes[:, i]), -0.5, 0.5)
                left = -2.0 * t**3 + 1.5 * t + 0.5
                reach[:, 2 * i + 1] = reach[:, i] * left
                reach[:, 2 * i + 2] = reach[:, i] * (1.0 - left)
            outputs.append(reach[:, n_splits:] @ leaves.T)
        return outputs

    @pytest.mark.parametrize("smooth_step_param", [0.5, 1.0, 4.0])
    def test_gives_what_their_layer_gives(self, smooth_step_param):
        rng = np.random.default_rng(1)
        node_weights = [rng.normal(size=(5, 15)) for _ in range(3)]
        leaf_weights = [rng.normal(size=(2, 16)) for _ in range(3)]
        x = rng.normal(size=(20, 5))
        expected = self.output(x, node_weights, leaf_weights, smooth_step_param)
        layer = from_tf_trees(node_weights, leaf_weights, smooth_step_param, name="taken_over")
        assert (layer.name, layer.units, layer.n_trees, layer.depth) == ("taken_over", 2, 3, 4)
        (output,) = to_numpy([layer(x.astype("float32"))])
        np.testing.assert_allclose(output, sum(expected), rtol=1e-4, atol=1e-5)

        apart = from_tf_trees(node_weights, leaf_weights, smooth_step_param, sum_trees=False)
        (output,) = to_numpy([keras.layers.Flatten()(apart(x.astype("float32")))])
        np.testing.assert_allclose(output, np.concatenate(expected, axis=1), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(
        ("nodes", "leaves", "smoothing", "message"),
        [
            ([], [], 1.0, "one array for each tree, and at least one; received 0 and 0"),
            ([(5, 3)], [], 1.0, "one array for each tree, and at least one; received 1 and 0"),
            ([(5, 4)], [(2, 5)], 1.0, r"node_weights\[0\] must be \[p, 2\^depth - 1\]; received shape \(5, 4\)"),
            ([(5, 3), (4, 3)], [(2, 4)] * 2, 1.0, r"node_weights\[1\] must have shape \(5, 3\), as the first tree"),
            ([(5, 3)], [(2, 3)], 1.0, r"leaf_weights\[0\] must have shape \(2, 4\); received \(2, 3\)"),
            ([(5, 3)], [(2, 4)], 0.0, "smooth_step_param must be a positive number; received 0.0"),
        ],
    )
    def test_refuses_what_is_not_an_ensemble(self, nodes, leaves, smoothing, message):
        with pytest.raises(ValueError, match=message):
            from_tf_trees([np.zeros(s) for s in nodes], [np.zeros(s) for s in leaves], smoothing)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"units": 0}, "`units` of layer 'trees', expected a positive integer. Received: units=0"),
        ({"n_trees": 2.5}, "`n_trees` of layer 'trees', expected a positive integer. Received: n_trees=2.5"),
        ({"n_trees": True}, "`n_trees` of layer 'trees', expected a positive integer. Received: n_trees=True"),
        ({"depth": -1}, "`depth` of layer 'trees', expected an integer from 1 to 20. Received: depth=-1"),
        ({"depth": 21}, "`depth` of layer 'trees', expected an integer from 1 to 20. Received: depth=21"),
        ({"gamma": 0}, "`gamma` of layer 'trees', expected a positive number. Received: gamma=0"),
        ({"gamma": float("nan")}, "`gamma` of layer 'trees', expected a positive number. Received: gamma=nan"),
        ({"gamma": "wide"}, "`gamma` of layer 'trees', expected a positive number. Received: gamma='wide'"),
        ({"activation": "relu"}, "`activation` of layer 'trees', expected one of .*Received: activation='relu'"),
        ({"implementation": "gpu"}, "`implementation` of layer 'trees', expected one of .*implementation='gpu'"),
    ],
)
def test_bad_arguments_are_named_with_the_layer(change, message):
    with pytest.raises(ValueError, match=f"Received an invalid value for {message}"):
        TreeEnsemble(**{"units": 1, "n_trees": 2, "depth": 3, **change}, name="trees")


def test_bad_inputs_are_named_with_the_layer():
    layer = TreeEnsemble(1, n_trees=2, depth=3, name="trees")
    with pytest.raises(ValueError, match=r"Layer 'trees' needs to know the last dimension .* received: \(None, None\)"):
        layer.build((None, None))
    layer.build((None, 5))
    with pytest.raises(ValueError, match=r"layer .trees. .*expected axis -1 of input shape to have value 5"):
        layer(np.zeros((3, 4), "float32"))
    with pytest.raises(ValueError, match=r"layer .trees. .*expected min_ndim=2, found ndim=1"):
        layer(np.zeros(5, "float32"))


def test_second_derivatives_are_those_of_the_dense_form(make_problem):
    problem = make_problem(n=6, p=3, m=2, d=2, dtype=np.float32, bias=True)
    results = [_gradient_penalty(layer_of(problem, implementation=i), problem.x) for i in IMPLEMENTATIONS]
    for native, dense in zip(*results, strict=True):
        assert np.abs(dense).max() > 0.01
        np.testing.assert_allclose(native, dense, rtol=1e-4, atol=1e-5)


def _gradient_penalty(layer, x):
    """The gradients of |d sum(sin(y)) / dx|^2 with respect to x and the weights."""
    x = keras.ops.convert_to_tensor(x)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        @tf.function
        def run(x):
            variables = [variable.value for variable in layer.trainable_variables]
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    loss = tf.reduce_sum(tf.sin(layer(x)))
                penalty = tf.reduce_sum(tf.square(inner.gradient(loss, x)))
            return outer.gradient(penalty, [x, *variables])

        return to_numpy(run(x))
    if BACKEND == "jax":
        import jax
        import jax.numpy as jnp

        fixed = [variable.value for variable in layer.non_trainable_variables]

        def penalty(x, variables):
            gradient = jax.grad(lambda x: jnp.sum(jnp.sin(layer.stateless_call(variables, fixed, x)[0])))(x)
            return jnp.sum(gradient**2)

        grad_x, gradients = jax.grad(penalty, argnums=(0, 1))(x, [v.value for v in layer.trainable_variables])
        return to_numpy([grad_x, *gradients])
    import torch

    x.requires_grad_(True)
    variables = [variable.value for variable in layer.trainable_variables]
    (gradient,) = torch.autograd.grad(torch.sin(layer(x)).sum(), x, create_graph=True)
    return to_numpy(torch.autograd.grad((gradient**2).sum(), [x, *variables]))


def test_a_compiled_model_learns(table):
    """jit_compile=True: XLA gets the dense form in TensorFlow, and native calls in JAX."""
    if BACKEND == "torch":
        pytest.skip("torch.compile is tested with the torch operator")
    x, y = table
    model = classifier(TreeEnsemble(3, n_trees=5, depth=3), jit_compile=True)
    losses = model.fit(x, y, epochs=10, verbose=0).history["loss"]
    assert model.jit_compile
    assert losses[-1] < losses[0] - 0.1
    prediction = model.predict(x, verbose=0)
    model.compile(jit_compile=False)
    np.testing.assert_allclose(model.predict(x, verbose=0), prediction, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(BACKEND == "torch", reason="SavedModel export of the torch backend needs torch_xla")
def test_an_exported_model_needs_no_softwood(table, tmp_path):
    import tensorflow as tf

    x, _ = table
    model = classifier(TreeEnsemble(3, n_trees=5, depth=3))
    prediction = model.predict(x, verbose=0)
    model.export(tmp_path / "exported")
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    for rows in (x, x[:3]):
        np.testing.assert_allclose(exported.serve(tf.constant(rows)), prediction[: len(rows)], rtol=1e-5, atol=1e-6)
    stored = (tmp_path / "exported" / "saved_model.pb").read_bytes()
    assert b"PyFunc" not in stored
    assert b"softwood_forward" not in stored


@pytest.mark.skipif(BACKEND != "torch", reason="the other backends export to a SavedModel")
def test_an_exported_onnx_model_needs_no_softwood(table, tmp_path):
    import onnxruntime

    if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 8):
        pytest.skip("Keras exports to ONNX from version 3.8 on")
    x, _ = table
    model = classifier(TreeEnsemble(3, n_trees=5, depth=3))
    prediction = model.predict(x, verbose=0)
    path = tmp_path / "model.onnx"
    model.export(path, format="onnx")
    session = onnxruntime.InferenceSession(path)
    (output,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(output, prediction, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a property of TensorFlow graphs")
class TestTensorFlowGraphs:
    @staticmethod
    def operations(function, x):
        import tensorflow as tf

        concrete = function.get_concrete_function(tf.TensorSpec([None, x.shape[1]], x.dtype))
        return {op.type for op in concrete.graph.get_operations()}

    def test_graphs_call_the_kernels_unless_xla_compiles_them(self, make_problem):
        import tensorflow as tf

        problem = make_problem(dtype=np.float32)
        layer = layer_of(problem)
        assert "PyFuncStateless" in self.operations(tf.function(layer), problem.x)
        assert "PyFuncStateless" not in self.operations(tf.function(layer, jit_compile=True), problem.x)
        nested = tf.function(lambda x: tf.function(layer)(x), jit_compile=True)
        np.testing.assert_allclose(nested(problem.x), layer(problem.x), rtol=1e-4, atol=1e-5)

    def test_a_forced_native_call_in_xla_is_refused_with_the_layers_name(self, make_problem):
        import tensorflow as tf

        problem = make_problem(dtype=np.float32)
        layer = layer_of(problem, implementation="native", name="trees")
        with pytest.raises(ValueError, match="Layer 'trees' has implementation='native', which cannot be compiled"):
            tf.function(layer, jit_compile=True)(problem.x)

    def test_shapes_are_known_in_graphs(self, make_problem):
        import tensorflow as tf

        problem = make_problem(dtype=np.float32, sum_trees=False)
        function = tf.function(layer_of(problem))
        concrete = function.get_concrete_function(tf.TensorSpec([None, 5], tf.float32))
        assert concrete.output_shapes.as_list() == [None, 4, 3]

    def test_a_dataset_of_unequal_batches(self, table):
        import tensorflow as tf

        model = classifier(TreeEnsemble(3, n_trees=5, depth=3))
        dataset = tf.data.Dataset.from_tensor_slices(table).batch(64)
        losses = model.fit(dataset, epochs=5, verbose=0).history["loss"]
        assert losses[-1] < losses[0] - 0.05


class TestGamma:
    """A weight that is not trained: saved with the others, and followed by compiled functions."""

    @staticmethod
    def make(**kwargs):
        trees = TreeEnsemble(3, n_trees=4, depth=3, split_initializer="random_normal", **kwargs)
        model = keras.Sequential([keras.Input((5,)), trees])
        rng = np.random.default_rng(0)
        for weight in trees.trainable_weights:
            weight.assign(rng.normal(size=weight.shape) * 0.3)
        return model, trees

    def test_a_new_gamma_takes_effect_in_compiled_functions(self, table):
        x, _ = table
        model, trees = self.make(gamma=3.0, use_bias=True)
        wide = model.predict(x, verbose=0)
        trees.gamma = 0.3
        expected = self.make(gamma=0.3, use_bias=True)[0].predict(x, verbose=0)
        assert np.abs(wide - expected).max() > 0.01
        np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(*to_numpy([model(x), expected]), rtol=1e-5, atol=1e-6)
        assert trees.get_config()["gamma"] == trees.gamma == 0.3
        with pytest.raises(ValueError, match=r"`gamma` of layer '.*', expected a positive number. Received: gamma=-1"):
            trees.gamma = -1
        assert trees.gamma == 0.3

    @pytest.mark.parametrize("gamma", [0.3, 0.1])
    def test_loading_weights_sets_the_gamma_they_were_trained_with(self, table, tmp_path, gamma):
        x, _ = table
        model, _ = self.make(gamma=gamma)
        model.save_weights(tmp_path / "model.weights.h5")
        other, trees = self.make(gamma=3.0)
        other.load_weights(tmp_path / "model.weights.h5")
        np.testing.assert_array_equal(other.predict(x, verbose=0), model.predict(x, verbose=0))
        assert trees.gamma == gamma

    def test_a_saved_model_has_the_gamma_that_was_set_last(self, tmp_path):
        model, trees = self.make(gamma=3.0)
        trees.gamma = 0.3
        model.save(tmp_path / "model.keras")
        assert keras.models.load_model(tmp_path / "model.keras").layers[-1].gamma == 0.3
        assert keras.models.clone_model(model).layers[-1].gamma == 0.3

    def test_weights_of_another_kind_of_layer_are_refused(self, tmp_path):
        path = tmp_path / "model.weights.h5"
        self.make(activation="logistic")[0].save_weights(path)
        message = (
            "Layer 'trees' has activation='smooth_step', and the saved weights were trained with 'logistic'. "
            "Make the layer with activation='logistic'."
        )
        with pytest.raises(ValueError, match=message):
            self.make(name="trees")[0].load_weights(path)
        self.make(use_bias=True)[0].save_weights(path)
        message = (
            r"Layer 'trees' has 3 weights \(split_weight, leaf_weight, gamma\), and 4 were saved. "
            "Make the layer with use_bias=True."
        )
        with pytest.raises(ValueError, match=message):
            self.make(name="trees")[0].load_weights(path)

    def test_files_without_gamma_leave_it(self):
        _, trees = self.make(gamma=3.0)
        arrays = [np.full(weight.shape, 0.5) for weight in trees.trainable_weights]
        trees.load_own_variables({str(i): array for i, array in enumerate(arrays)})
        assert trees.gamma == 3.0
        np.testing.assert_array_equal(to_numpy(trees.trainable_weights)[0], arrays[0])

    def test_the_schedule_moves_gamma_step_by_step(self, table):
        x, y = table
        seen = []

        class Watch(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                seen.append(next(part.gamma for part in self.model.layers if isinstance(part, TreeEnsemble)))

        model = classifier(TreeEnsemble(3, n_trees=4, depth=3))
        callbacks = [GammaSchedule(2.0, 0.02, n_steps=11), Watch()]
        before = model.count_params()
        for _ in range(2):  # a second fit goes on where the first has stopped
            model.fit(x, y, batch_size=50, epochs=1, verbose=0, callbacks=callbacks)
        np.testing.assert_allclose(seen, [2.0 * 0.01 ** (step / 10) for step in range(8)], rtol=1e-6)
        model.fit(x, y, batch_size=50, epochs=1, verbose=0, callbacks=callbacks[:1])  # nobody watches
        assert model.layers[-2].gamma == 0.02
        assert model.count_params() == before

    def test_the_schedule_refuses_what_has_no_meaning(self, table):
        x, y = table
        with pytest.raises(ValueError, match="start must be a positive number, a width of the soft band; got 0"):
            GammaSchedule(0, 0.1, 10)
        model = keras.Sequential([keras.layers.Dense(3)], name="plain")
        model.compile("sgd", "sparse_categorical_crossentropy")
        message = "GammaSchedule needs a model with a TreeEnsemble layer inside. Received: 'plain' without any."
        with pytest.raises(ValueError, match=message):
            model.fit(x, y, verbose=0, callbacks=[GammaSchedule(1.0, 0.1, 10)])
