"""Figure 1: the smooth-step function for several gammas beside the logistic function, and their derivatives.

The curves are the output and the gradient of a tree of depth 1 whose leaves hold 1 and 0, computed by the kernels.

    python -m paper.figure_activations
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paper.runner import Record, Save, Store, Unit, option_parser, run_units
from softwood import ops

NAME = "figure_activations"
CURVES = {
    "smooth-step, gamma 1": ("smooth_step", 1.0),
    "smooth-step, gamma 2": ("smooth_step", 2.0),
    "smooth-step, gamma 5": ("smooth_step", 5.0),
    "logistic": ("logistic", 1.0),
}
REACH, N_POINTS = 4.0, 161


def curve(activation: str, gamma: float, saved: Record, save: Save) -> Record:
    """Values and derivatives of one activation at even steps from -REACH to REACH."""
    t = np.linspace(-REACH, REACH, N_POINTS)[:, None]
    split, leaves = np.ones((1, 1, 1)), np.array([[[1.0], [0.0]]])
    kind: dict[str, Any] = {"activation": activation, "gamma": gamma}
    value = ops.forward(t, split, leaves, **kind)
    slope = np.asarray(ops.backward(np.ones_like(value), t, split, leaves, **kind).x)
    hard = np.isin(value, (0.0, 1.0))
    return {
        "value": value.ravel().round(6).tolist(),
        "derivative": slope.ravel().round(6).tolist(),
        "hard_share": float(hard.mean()),
    }


def section(results: Path, pictures: Path) -> str:
    """The report's part on this figure."""
    units = Store(results / f"{NAME}.json").units
    if not units:
        return "not run"
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.8), layout="constrained")
    t = np.linspace(-REACH, REACH, N_POINTS)
    for axes, what in zip(figure.subplots(1, 2), ("value", "derivative"), strict=True):
        for name, unit in units.items():
            axes.plot(t, unit["result"][what], label=name, linestyle="--" if name == "logistic" else "-")
        axes.set(title=what, xlabel="t")
    figure.axes[0].legend(fontsize="small")
    figure.savefig(pictures / f"{NAME}.png")
    shares = {name: unit["result"]["hard_share"] for name, unit in units.items()}
    words = "; ".join(f"{name}: {share:.0%}" for name, share in shares.items())
    return (
        f"![Activations]({pictures.name}/{NAME}.png)\n\n"
        f"Share of the interval from {-REACH:g} to {REACH:g} that is routed one way only, by the kernels: {words}. "
        "The paper shows the same: exactly 0 or 1 outside of ± gamma / 2 for smooth-step, nowhere for the logistic."
    )


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing."""
    parser = option_parser(__doc__)
    parser.add_argument("--full", action="store_true", help="the same: nothing is left out by default")
    options = parser.parse_args(arguments)
    units = [
        Unit(name, partial(curve, *parameters), {"reach": REACH, "points": N_POINTS})
        for name, parameters in CURVES.items()
    ]
    run_units(Store(options.results / f"{NAME}.json"), units, options)


if __name__ == "__main__":
    main()
