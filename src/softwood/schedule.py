"""How gamma moves while a layer is trained: the formula that the schedules of all frameworks share.

Three numbers come in, a function from steps to gamma goes out. It is the native trainer's (`Schedule::gamma_at` in the
core) with the whole training as its window. Setting the layers' gamma is left to `softwood.torch` and
`softwood.keras`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import index


@dataclass(frozen=True)
class GeometricGamma:
    """Gamma that moves from `start` to `end` by the same factor in each of `n_steps` steps, and stays there.

    Examples
    --------
    >>> from softwood.schedule import GeometricGamma
    >>> gamma = GeometricGamma(start=1.0, end=0.01, n_steps=3)
    >>> [gamma.at(step) for step in range(5)]
    [1.0, 0.1, 0.01, 0.01, 0.01]
    """

    start: float
    end: float
    n_steps: int

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number, a width of the soft band; got {value!r}")
        if isinstance(self.n_steps, bool) or not hasattr(self.n_steps, "__index__") or index(self.n_steps) < 1:
            raise ValueError(
                f"n_steps must be an integer of 1 or more, the number of training steps; got {self.n_steps!r}"
            )

    def at(self, step: int) -> float:
        """Return gamma of a step, counted from 0; the last of `n_steps` is the first to have `end`."""
        share = min(step / max(1, self.n_steps - 1), 1.0)
        return self.end if share == 1 else self.start * (self.end / self.start) ** share
