"""Figure 1: the smooth-step function for several gammas beside the logistic function, and their derivatives.

The curves are the output and the gradient of a tree of depth 1 whose leaves hold 1 and 0, computed by the kernels.

    python -m paper.figure_activations
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paper.claims import FAILS, HOLDS, Claim
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
    units = Store(NAME, results).units
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


def claims(results: Path) -> list[Claim]:
    """What the paper says of this figure."""
    text = "Smooth-step routes outside of ± gamma / 2 one way only; the logistic function never does"
    shares = {name: unit["result"]["hard_share"] for name, unit in Store(NAME, results).units.items()}
    if shares.keys() != CURVES.keys():
        return [Claim(text, "section 2, figure 1")]
    words = "; ".join(f"{name}: {share:.0%}" for name, share in shares.items())
    holds = all((share == 0) == (name == "logistic") for name, share in shares.items())
    return [Claim(text, "section 2, figure 1", f"routed one way: {words}", "exact", HOLDS if holds else FAILS)]


def units(options: argparse.Namespace) -> list[Unit]:
    """One curve each."""
    settings = {"reach": REACH, "points": N_POINTS}
    return [Unit(name, partial(curve, *parameters), settings) for name, parameters in CURVES.items()]


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    return option_parser(__doc__).parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> bool:
    """Run what is missing."""
    options = parse_options(arguments)
    return run_units(Store(NAME, options.results, options.units), units(options), options)


if __name__ == "__main__":
    main()
