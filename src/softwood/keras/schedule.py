"""Gamma that moves while a Keras model is fitted: a callback that sets it in the `TreeEnsemble` layers of the model."""

from __future__ import annotations

from typing import Any

import keras

from softwood.keras.layer import TreeEnsemble
from softwood.schedule import GeometricGamma


class GammaSchedule(keras.callbacks.Callback):
    """Move gamma of all `TreeEnsemble` layers of a model geometrically from `start` to `end`, step by step.

    A wide band lets all splits learn at first, a narrow one makes the trees hard, and cheap, in the end. Each step
    multiplies gamma by the same factor, as in the estimators. Steps are counted as a ``LearningRateSchedule`` counts
    them, by the optimiser's ``iterations``: a model that is loaded and fitted again continues where it was.

    Parameters
    ----------
    start, end : float
        Gamma in the first step and in the last.
    n_steps : int
        Number of training steps, epochs times batches; after them gamma stays at `end`.

    Examples
    --------
    >>> import keras, numpy as np
    >>> from softwood.keras import GammaSchedule, TreeEnsemble
    >>> model = keras.Sequential([TreeEnsemble(1, n_trees=5, depth=4)])
    >>> model.compile("adam", "mse")
    >>> x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
    >>> schedule = GammaSchedule(start=1.0, end=0.1, n_steps=6)
    >>> _ = model.fit(x, y, batch_size=4, epochs=3, callbacks=[schedule], verbose=0)
    >>> model.layers[0].gamma
    0.1
    """

    def __init__(self, start: float, end: float, n_steps: int) -> None:
        super().__init__()
        self._path = GeometricGamma(start, end, n_steps)
        self._layers: list[TreeEnsemble] = []
        self._n_before_epoch = self._n_done = 0  # steps

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Find the layers, and the step to begin with."""
        model = self.model
        self._layers = [layer for layer in model._flatten_layers() if isinstance(layer, TreeEnsemble)]
        if not self._layers:
            raise ValueError(
                f"GammaSchedule needs a model with a TreeEnsemble layer inside. Received: '{model.name}' without any."
            )
        optimizer = getattr(model, "optimizer", None)
        self._n_done = 0 if optimizer is None else int(keras.ops.convert_to_numpy(optimizer.iterations))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the batches of this epoch from here."""
        self._n_before_epoch = self._n_done

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Set the gamma of this step."""
        _ = self.model  # on JAX, accessing the model updates its weights, and what is set afterwards is kept
        for layer in self._layers:
            layer.gamma = self._path.at(self._n_before_epoch + batch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the steps, of which several may come between begin and end (``steps_per_execution``)."""
        self._n_done = self._n_before_epoch + batch + 1
