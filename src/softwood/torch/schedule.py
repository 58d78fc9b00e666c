"""Gamma that moves while a network is trained: sets the attribute of its `TreeEnsemble` layers, once per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from softwood.schedule import GeometricGamma
from softwood.torch.layer import TreeEnsemble


class GammaSchedule:
    """Move gamma of all `TreeEnsemble` layers of a network geometrically from `start` to `end`, step by step.

    A wide band lets all splits learn at first, a narrow one makes the trees hard, and cheap, in the end. Each step
    multiplies gamma by the same factor, as in the estimators. Compiled networks are not compiled again.

    Parameters
    ----------
    module : Module
        A layer, or a network with some inside; compiled and wrapped ones, too. With several processes, each has a
        schedule of its own.
    start, end : float
        Gamma in the first step, set here at once, and in the last.
    n_steps : int
        Number of training steps; after them gamma stays at `end`.

    Attributes
    ----------
    gamma : float
        What the layers have been set to.

    Examples
    --------
    >>> from softwood.torch import GammaSchedule, TreeEnsemble
    >>> layer = TreeEnsemble(in_features=8, out_features=3, n_trees=10, depth=4)
    >>> schedule = GammaSchedule(layer, start=1.0, end=0.01, n_steps=3)
    >>> for _ in range(3):
    ...     layer.gamma  # forward pass, backward pass, optimizer.step()
    ...     schedule.step()
    1.0
    0.1
    0.01
    """

    def __init__(self, module: nn.Module, start: float, end: float, n_steps: int) -> None:
        self._layers = [part for part in module.modules() if isinstance(part, TreeEnsemble)]
        if not self._layers:
            raise ValueError(
                f"module must be a TreeEnsemble or a network with one inside; got {type(module).__name__} without any: "
                "pass the network that is trained"
            )
        if any(layer.learn_gamma for layer in self._layers):
            raise ValueError(
                "GammaSchedule needs layers whose gamma is fixed; got one with learn_gamma=True: "
                "either learn gamma or give it a schedule"
            )
        self._path = GeometricGamma(start, end, n_steps)
        self._n_done = 0
        self._set_gamma()

    @property
    def gamma(self) -> float:
        """What the layers have been set to."""
        return self._path.at(self._n_done)

    def step(self) -> None:
        """Set the gamma of the next step; call it once per training step, after the optimiser's step."""
        self._n_done += 1
        self._set_gamma()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs, as plain numbers."""
        path = self._path
        return {"start": path.start, "end": path.end, "n_steps": path.n_steps, "n_done": self._n_done}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the saved state, and set the layers' gamma."""
        names = ("start", "end", "n_steps", "n_done")
        if set(state_dict) != set(names) or not isinstance(state_dict["n_done"], int) or state_dict["n_done"] < 0:
            raise ValueError(
                f"state_dict must hold {', '.join(names)}, as GammaSchedule.state_dict() returns them; "
                f"got {dict(state_dict)!r}"
            )
        self._path = GeometricGamma(state_dict["start"], state_dict["end"], state_dict["n_steps"])
        self._n_done = state_dict["n_done"]
        self._set_gamma()

    def _set_gamma(self) -> None:
        for layer in self._layers:
            layer.gamma = self.gamma
