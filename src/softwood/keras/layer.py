"""The Keras layer: arguments, weights, shapes and serialisation. What a call computes is left to `backends`."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np

from softwood.arguments import ACTIVATIONS, MAX_DEPTH
from softwood.keras import backends


@keras.saving.register_keras_serializable(package="softwood")
class TreeEnsemble(keras.layers.Layer):
    """An ensemble of soft decision trees that route hard, trained jointly with the rest of the model.

    A split sends a sample left with probability S(<w, x> + b), where S rises from exactly 0 to exactly 1 within a band
    of width `gamma`, so that most samples reach few leaves and only those are computed. Put a ``BatchNormalization``
    before the layer: it keeps <w, x> centred on the band.

    Parameters
    ----------
    units : int
        Number of outputs of each tree, k.
    n_trees, depth : int
        Number of trees, m, and of levels of splits in each, d, from 1 to 20.
    gamma : float
        Width of the soft band; for "logistic" its temperature. A wide band learns more smoothly, a narrow one reaches
        fewer leaves. It is kept as a weight that is not trained: the attribute may be set at any time, also between the
        steps of ``fit`` (`softwood.keras.GammaSchedule` does that), and is saved and loaded with the weights.
    activation : {"smooth_step", "smoother_step", "logistic"}
        What turns a split's <w, x> + b into the probability of going left. The logistic reaches every leaf.
    use_bias : bool
        Whether splits have a bias, which starts at zero.
    sum_trees : bool
        Whether the outputs of the trees are added up. A ``Flatten`` after ``sum_trees=False`` concatenates them.
    split_initializer, leaf_initializer : initializer, optional
        By default uniform within plus or minus 0.01, as in the paper.
    split_regularizer, leaf_regularizer : regularizer, optional
        Penalties on the weights of splits and leaves.
    split_constraint, leaf_constraint : constraint, optional
        Applied to these weights after an optimiser's update.
    implementation : {"auto", "native", "dense"}
        "native" visits what a sample reaches, on the CPU; "dense" visits every node, by ``keras.ops``. "auto" is native
        on the CPU, except in XLA-compiled TensorFlow and when the model is exported.
    **kwargs
        Of every Keras layer: ``name``, ``dtype``, ``trainable``. With a 16-bit compute dtype the trees are computed in
        float32 and the output is rounded: a soft band is narrow.

    **Shape**: input [..., p]; output [..., k], or [..., m, k] with ``sum_trees=False``. The weights are
    ``split_weight`` [m, 2^d - 1, p], ``leaf_weight`` [m, 2^d, k], ``split_bias`` [m, 2^d - 1] with `use_bias`, and last
    gamma [].

    Examples
    --------
    >>> import keras, numpy as np
    >>> from softwood.keras import TreeEnsemble
    >>> model = keras.Sequential([keras.layers.BatchNormalization(), TreeEnsemble(3, n_trees=5, depth=4)])
    >>> model(np.ones((2, 8), "float32")).shape == (2, 3)
    True
    """

    def __init__(
        self,
        units: int,
        n_trees: int,
        depth: int,
        *,
        gamma: float = 1.0,
        activation: str = "smooth_step",
        use_bias: bool = False,
        sum_trees: bool = True,
        split_initializer: Any = None,
        leaf_initializer: Any = None,
        split_regularizer: Any = None,
        leaf_regularizer: Any = None,
        split_constraint: Any = None,
        leaf_constraint: Any = None,
        implementation: str = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = self._positive_integer("units", units)
        self.n_trees = self._positive_integer("n_trees", n_trees)
        self.depth = self._positive_integer("depth", depth, at_most=MAX_DEPTH)
        self._gamma = self._positive_number("gamma", gamma)
        self._gamma_weight: Any = None
        self.activation = self._one_of("activation", activation, tuple(ACTIVATIONS))
        self.implementation = self._one_of("implementation", implementation, backends.IMPLEMENTATIONS)
        self.use_bias = bool(use_bias)
        self.sum_trees = bool(sum_trees)
        self.split_initializer = keras.initializers.get(_default_if_none(split_initializer))
        self.leaf_initializer = keras.initializers.get(_default_if_none(leaf_initializer))
        self.split_regularizer = keras.regularizers.get(split_regularizer)
        self.leaf_regularizer = keras.regularizers.get(leaf_regularizer)
        self.split_constraint = keras.constraints.get(split_constraint)
        self.leaf_constraint = keras.constraints.get(leaf_constraint)
        self.input_spec = keras.InputSpec(min_ndim=2)
        # Read by model.compile: XLA can compile the dense form, to which "auto" turns there, and no native call.
        self.supports_jit = self.implementation != "native" or keras.backend.backend() != "tensorflow"

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the weights for inputs of this shape."""
        n_features = input_shape[-1]
        if n_features is None or n_features < 1:
            raise ValueError(
                f"Layer '{self.name}' needs to know the last dimension of its inputs, the number of features, and it "
                f"must be at least 1. Full shape received: {tuple(input_shape)}"
            )
        n_leaves = 2**self.depth
        self.split_weight = self._add_weight(
            "split_weight",
            (self.n_trees, n_leaves - 1, n_features),
            _initializer_of_matrix(self.split_initializer, transposed=True),
            regularizer=self.split_regularizer,
            constraint=self.split_constraint,
        )
        self.leaf_weight = self._add_weight(
            "leaf_weight",
            (self.n_trees, n_leaves, self.units),
            _initializer_of_matrix(self.leaf_initializer, transposed=False),
            regularizer=self.leaf_regularizer,
            constraint=self.leaf_constraint,
        )
        self.split_bias = None
        if self.use_bias:
            self.split_bias = self._add_weight("split_bias", (self.n_trees, n_leaves - 1), "zeros")
        self._gamma_weight = self._add_weight(
            "gamma", (), keras.initializers.Constant(self._gamma), dtype=self._dtype_of_trees(), trainable=False
        )
        self.input_spec = keras.InputSpec(min_ndim=2, axes={-1: n_features})
        self.built = True

    @property
    def gamma(self) -> float:
        """The width of the soft band; a new value takes effect at the next call, in compiled functions, too."""
        if self._gamma_weight is not None:
            value = keras.ops.convert_to_numpy(self._gamma_weight)
            if value != value.dtype.type(self._gamma):  # loaded with other weights; otherwise the digits as given
                self._gamma = float(str(value))
        return self._gamma

    @gamma.setter
    def gamma(self, value: Any) -> None:
        self._gamma = self._positive_number("gamma", value)
        if self._gamma_weight is not None:
            self._gamma_weight.assign(self._gamma)

    def call(self, inputs: Any) -> Any:
        """Return the output of the trees."""
        dtype = self._dtype_of_trees()
        # TensorFlow and exporters leave the batch size open, which reshape can infer.
        leading = tuple(-1 if size is None else size for size in inputs.shape[:-1])
        x = keras.ops.reshape(keras.ops.cast(inputs, dtype), (-1, inputs.shape[-1]))
        split_weight, leaf_weight = (
            keras.ops.cast(keras.ops.convert_to_tensor(weight), dtype)
            for weight in (self.split_weight, self.leaf_weight)
        )
        # A band of width 1, in units of gamma: the kernels take gamma as a number, which compiled functions would keep.
        inverse = 1.0 / keras.ops.convert_to_tensor(self._gamma_weight)
        biases = (
            [keras.ops.cast(keras.ops.convert_to_tensor(self.split_bias), dtype) * inverse] if self.use_bias else []
        )
        output = backends.tree_ensemble(
            x * inverse,
            split_weight,
            leaf_weight,
            *biases,
            activation=self.activation,
            sum_trees=self.sum_trees,
            implementation=self.implementation,
            layer_name=self.name,
        )
        if len(leading) > 1:
            output = keras.ops.reshape(output, self._output_shape(keras.ops.shape(inputs)))
        return keras.ops.cast(output, self.compute_dtype)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the shape of the output for inputs of this shape."""
        return self._output_shape(input_shape)

    def reachable_leaves(self, inputs: Any) -> Any:
        """Count the leaves that each sample reaches in each tree, as a NumPy array [n, m]: what a call costs.

        Examples
        --------
        >>> import numpy as np
        >>> from softwood.keras import TreeEnsemble
        >>> layer = TreeEnsemble(1, n_trees=2, depth=3)
        >>> layer.build((None, 4))
        >>> layer.reachable_leaves(np.zeros((1, 4))).tolist()
        [[8, 8]]
        """
        from softwood import ops

        to_numpy = keras.ops.convert_to_numpy
        x, split_weight = to_numpy(inputs).astype("float64"), to_numpy(self.split_weight).astype("float64")
        bias = to_numpy(self.split_bias).astype("float64") if self.use_bias else None
        return ops.reachability(x, split_weight, split_bias=bias, activation=self.activation, gamma=self.gamma).leaves

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make an equal layer."""
        return {
            **super().get_config(),
            "units": self.units,
            "n_trees": self.n_trees,
            "depth": self.depth,
            "gamma": self.gamma,
            "activation": self.activation,
            "use_bias": self.use_bias,
            "sum_trees": self.sum_trees,
            "split_initializer": keras.initializers.serialize(self.split_initializer),
            "leaf_initializer": keras.initializers.serialize(self.leaf_initializer),
            "split_regularizer": keras.regularizers.serialize(self.split_regularizer),
            "leaf_regularizer": keras.regularizers.serialize(self.leaf_regularizer),
            "split_constraint": keras.constraints.serialize(self.split_constraint),
            "leaf_constraint": keras.constraints.serialize(self.leaf_constraint),
            "implementation": self.implementation,
        }

    def _output_shape(self, input_shape: tuple) -> tuple:
        trees = () if self.sum_trees else (self.n_trees,)
        return (*input_shape[:-1], *trees, self.units)

    def save_own_variables(self, store: Any) -> None:
        """Save weights, gamma among them, and the number of the activation, without which they mean something else."""
        super().save_own_variables(store)
        store["activation"] = np.array(ACTIVATIONS[self.activation])

    def load_own_variables(self, store: Any) -> None:
        """Load weights and gamma; files without gamma leave it as it is, others are refused."""
        if not self.built:
            super().load_own_variables(store)  # raises Keras's own error
        keys = set(store.keys())
        names = {code: name for name, code in ACTIVATIONS.items()}
        saved = names[int(np.asarray(store["activation"]))] if "activation" in keys else self.activation
        if saved != self.activation:
            raise ValueError(
                f"Layer '{self.name}' has activation='{self.activation}', and the saved weights were trained with "
                f"'{saved}'. Make the layer with activation='{saved}'."
            )
        own = [self.split_weight, self.leaf_weight] + ([self.split_bias] if self.use_bias else [])
        own += [self._gamma_weight] if "activation" in keys else []
        n_saved = len(keys - {"activation"})
        if n_saved != len(own):
            raise ValueError(
                f"Layer '{self.name}' has {len(own)} weights ({', '.join(weight.name for weight in own)}), and "
                f"{n_saved} were saved. Make the layer with use_bias={not self.use_bias}."
            )
        for i, weight in enumerate(own):
            weight.assign(store[str(i)])

    def _dtype_of_trees(self) -> str:
        return "float64" if self.compute_dtype == "float64" else "float32"

    def _add_weight(self, name: str, shape: tuple[int, ...], initializer: Any, **kwargs: Any) -> Any:
        # Weights are not cast to 16 bits on access; see `call`.
        return self.add_weight(name=name, shape=shape, initializer=initializer, autocast=False, **kwargs)

    def _positive_integer(self, argument: str, value: Any, at_most: float = math.inf) -> int:
        if isinstance(value, bool) or not hasattr(value, "__index__") or not 1 <= value.__index__() <= at_most:
            limits = "a positive integer" if at_most == math.inf else f"an integer from 1 to {at_most}"
            raise ValueError(
                f"Received an invalid value for `{argument}` of layer '{self.name}', expected {limits}. "
                f"Received: {argument}={value!r}"
            )
        return value.__index__()

    def _positive_number(self, argument: str, value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not 0.0 < number < math.inf:
            raise ValueError(
                f"Received an invalid value for `{argument}` of layer '{self.name}', expected a positive number. "
                f"Received: {argument}={value!r}"
            )
        return number

    def _one_of(self, argument: str, value: Any, allowed: tuple[str, ...]) -> str:
        if value not in allowed:
            raise ValueError(
                f"Received an invalid value for `{argument}` of layer '{self.name}', expected one of {allowed}. "
                f"Received: {argument}={value!r}"
            )
        return value


def _default_if_none(initializer: Any) -> Any:
    return keras.initializers.RandomUniform(-0.01, 0.01) if initializer is None else initializer


def _initializer_of_matrix(initializer: Any, transposed: bool) -> Any:
    """Return an initializer that draws all trees at once, and knows what a split sums over.

    Initializers that scale with the shape (Glorot, He, LeCun) would take a weight of rank 3 for a convolution's kernel;
    they are shown the matrix [p, splits] or [leaves, k] of all trees instead.
    """
    if not isinstance(initializer, keras.initializers.VarianceScaling):
        return initializer

    def initialize(shape: tuple[int, ...], dtype: Any = None) -> Any:
        rows, columns = shape[0] * shape[1], shape[2]
        matrix = initializer((columns, rows) if transposed else (rows, columns), dtype=dtype)
        return keras.ops.reshape(keras.ops.transpose(matrix) if transposed else matrix, shape)

    return initialize
