"""The paper's related systems (its table of related work), measured where this library can express them.

Systems that route by the logistic function are expressed by the same trees with that activation, trained by gradient
descent: soft trees (Frosst and Hinton 2017), and, up to how leaves are trained, hierarchical mixtures of experts
(Jordan and Jacobs 1994) with constant experts, and the forests of deep neural decision forests (Kontschieder et al.
2015). Measured are the leaves that a row reaches in training and in prediction, what it costs to follow the most
probable path only, and the time of training.

    python -m paper.related_systems      # a minute

`page` writes paper/RELATED.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paper.claims import NOT_RUN, Claim, graded, table
from paper.comparison import mean_and_error
from paper.datasets import split_table
from paper.learners import make_tel_paper
from paper.runner import Record, Save, Store, Unit, option_parser, run_units
from paper.search import auc, seed_of
from softwood import ops

NAME = "related_systems"
SETS = ("vehicle", "breast-cancer-wisconsin", "spambase")
DEPTH, N_SEEDS = 8, 5
TRAINING: Record = {"depth": DEPTH, "learning_rate": 0.01, "batch_size": 64, "max_epochs": 50}
# Slopes of equal size at 0: see `paper.table_activations`.
MODELS: dict[str, tuple[str, Record]] = {
    "smooth_step": ("Tree Ensemble Layer", {"activation": "smooth_step", "gamma": 1.0, "n_trees": 10}),
    "logistic": ("forest with logistic routing", {"activation": "logistic", "gamma": 1 / 6, "n_trees": 10}),
    "logistic_tree": ("one soft tree with logistic routing", {"activation": "logistic", "gamma": 1 / 6, "n_trees": 1}),
}
SETTINGS: Record = {"version": 1, **TRAINING}

# The paper's table of related work, and how this library expresses a system: one of `MODELS`, or why not.
SYSTEMS: tuple[tuple[str, str, str, str, str, str], ...] = (
    ("Hierarchical mixture of experts (Jordan and Jacobs 1994)", "N", "N", "Y", "logistic_tree",
     "constant experts; trained by gradient descent rather than expectation maximisation"),
    ("Deep neural decision forests (Kontschieder et al. 2015)", "N", "N", "Y", "logistic",
     "leaves trained with the splits rather than in turns; a network may stand before the layer"),
    ("Soft decision tree (Frosst and Hinton 2017)", "N", "H", "Y", "logistic_tree",
     "`harden()` follows the most probable path; without their penalty for balanced splits"),
    ("Trees grown level by level (Hehn et al. 2019)", "N", "H", "Y", "logistic", "`harden()`; not grown"),
    ("Decision forests and networks (Ioannou et al. 2016)", "N", "H", "Y", "", "routes inside of a network"),
    ("Differentiable trees for nearest neighbours (Zoran et al. 2017)", "N", "H", "N", "", "other leaves"),
    ("Sparsely gated mixture of experts (Shazeer et al. 2017)", "H", "Y", "N", "", "gates by the k largest scores"),
    ("Adaptive neural trees (Tanno et al. 2018)", "N", "H", "Y", "", "grows its structure"),
    ("Neural random forests (Biau et al. 2019)", "H", "N", "Y", "", "a network initialised from a forest"),
    ("Tree Ensemble Layer (Hazimeh et al. 2020)", "Y", "Y", "Y", "smooth_step", "this library"),
)  # fmt: skip


MEASURED = (
    "model", "leaves in training", "in prediction", "AUC: soft", "most probable path", "classes unchanged",
    "processor seconds of training", "largest error of gradients",
)  # fmt: skip


def measure(options: argparse.Namespace, name: str, model_name: str, seed: int, saved: Record, save: Save) -> Record:
    """Train, then predict softly and by the most probable path."""
    data = split_table(options.data, name, seed)
    params = {**TRAINING, **MODELS[model_name][1]}
    model = make_tel_paper(params, seed_of(NAME, name, model_name, seed), options.threads)
    started = time.process_time()
    model.fit(data.X_train, data.y_train)
    taken = time.process_time() - started
    hard = model.harden()
    leaves = model.history_["mean_reachable_leaves"]
    return {
        "auc": auc(data.y_test, model.predict_proba(data.X_test)),
        "hard_auc": auc(data.y_test, hard.predict_proba(data.X_test)),
        "unchanged_share": float(np.mean(model.predict(data.X_test) == hard.predict(data.X_test))),
        "training_leaves": float(np.mean(leaves)),
        "prediction_leaves": _leaves_reached(model, data.X_test),
        "seconds": taken,
        "gradient_error": gradient_error(model),
    }


def _leaves_reached(model: Any, X: Any) -> float:
    """Mean leaves per row and tree when a table is predicted."""
    from softwood.tabular.reading.table import read_table

    fitted = model.model_
    (member,) = fitted.members
    trees, table_rows = member.trees, fitted.preprocessor.read(read_table(X, kinds=fitted.preprocessor.kinds))
    x = fitted.preprocessor.encodings[member.encoding].transform(table_rows)
    norm = trees.batch_norm
    x = (x - norm.mean) / np.sqrt(norm.variance + norm.epsilon) * norm.scale + norm.shift
    kind = {"activation": trees.activation, "gamma": trees.gamma}
    reached = ops.reachability(np.ascontiguousarray(x, dtype=np.float32), trees.split_weight, **kind)
    return float(reached.leaves.mean())


def gradient_error(model: Any, step: float = 1e-6) -> float:
    """Largest relative error of gradients of split weights against central differences, in float64."""
    trees = model.model_.members[0].trees
    split, leaf = trees.split_weight.astype(np.float64), trees.leaf_weight.astype(np.float64)
    x = np.random.default_rng(0).normal(scale=0.1, size=(1, split.shape[2]))
    kind: dict[str, Any] = {"activation": trees.activation, "gamma": trees.gamma}
    grad = np.asarray(ops.backward(np.ones((1, leaf.shape[2])), x, split, leaf, **kind).split_weight)
    largest = np.argsort(np.abs(grad).ravel())[-5:]
    errors = []
    for i in largest:
        ends = []
        for sign in (1, -1):
            moved = split.copy()
            moved.ravel()[i] += sign * step
            ends.append(ops.forward(x, moved, leaf, **kind).sum())
        errors.append(abs((ends[0] - ends[1]) / (2 * step) - grad.ravel()[i]) / max(1e-12, abs(grad.ravel()[i])))
    return float(np.max(errors))


def units(options: argparse.Namespace) -> list[Unit]:
    """Models take turns."""
    return [
        Unit(
            f"{name}/seed {seed}/{model}",
            partial(measure, options, name, model, seed),
            {**SETTINGS, **MODELS[model][1]},
        )
        for name in SETS
        for seed in range(N_SEEDS)
        for model in MODELS
    ]


# Report -------------------------------------------------------------------------------------------------------------


def _read(results: Path) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for key, record in Store(NAME, results).units.items():
        model = key.split("/")[-1]
        if model in MODELS and record["settings"] == {**SETTINGS, **MODELS[model][1]}:
            found.setdefault(model, []).append(record["result"])
    return found


def page(results: Path) -> str:
    """The page on related systems."""
    done = _read(results)
    rows = []
    for title, training, inference, differentiable, model, note in SYSTEMS:
        measured = _measured(done.get(model))
        rows.append([title, training, inference, differentiable, *(measured if model else ["not expressed"] * 4), note])
    head = ["system", "conditional training", "conditional inference", "differentiable objective"]
    head += ["leaves in training", "in prediction", "AUC: soft", "most probable path", "how this library expresses it"]
    outcomes = [[MODELS[model][0], *_measured(done.get(model)), *_more(done.get(model))] for model in MODELS]
    return "\n\n".join(
        [
            "# Related systems",
            "Written by `python -m paper.render` from results/related_systems.json; do not edit. The first columns are "
            "the paper's table of related work (its text, for mixtures of experts): Y yes, N no, H by a heuristic, "
            "such as a model for prediction that is not the trained one. The others are measured with "
            f"`python -m paper.related_systems`: trees of depth {DEPTH} with {2**DEPTH} leaves by the paper's recipe, "
            f"logistic routing of the same slope at 0 as smooth-step, {TRAINING['max_epochs']} epochs, mean over "
            f"{', '.join(SETS)} and {N_SEEDS} splits.",
            table(head, rows),
            "## What was measured",
            table(MEASURED, outcomes),
            "Conditional training: only reached leaves are computed while the model is trained, with exact gradients "
            "(last column: against central differences in float64). Conditional inference without a heuristic: the "
            "model that predicts is the one that was trained. The columns on the most probable path show what the "
            "heuristic changes.",
            "",
        ]
    )


def _measured(runs: list[Record] | None) -> list[str]:
    if not runs:
        return [NOT_RUN] * 4
    cells = []
    for key, digits in (("training_leaves", 1), ("prediction_leaves", 2), ("auc", 4), ("hard_auc", 4)):
        cells.append(f"{np.mean([run[key] for run in runs]):.{digits}f}")
    return cells


def _more(runs: list[Record] | None) -> list[str]:
    if not runs:
        return [NOT_RUN] * 3
    seconds, error = mean_and_error([run["seconds"] for run in runs])
    unchanged = np.mean([run["unchanged_share"] for run in runs])
    return [f"{unchanged:.1%}", f"{seconds:.2f} ± {error:.2f}", f"{max(run['gradient_error'] for run in runs):.1e}"]


def section(results: Path, pictures: Path) -> str:
    """The report's part on related systems."""
    return "See [RELATED.md](RELATED.md)." if _read(results) else "not run"


def claims(results: Path) -> list[Claim]:
    """What the paper says of related systems."""
    text = "TEL alone has conditional training, conditional inference and a differentiable objective"
    done = _read(results)
    if not {"smooth_step", "logistic"} <= done.keys():
        return [Claim(text, "section 1, related work")]
    ours, theirs = (np.mean([run["training_leaves"] for run in done[key]]) for key in ("smooth_step", "logistic"))
    words = f"leaves per row and tree in training: smooth-step {ours:.1f}, logistic {theirs:.1f} of {2**DEPTH}"
    verdict = graded(theirs / ours, holds=10, in_part=2)
    return [Claim(text, "section 1, related work", words, "measured where this library can express it", verdict)]


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    return option_parser(__doc__).parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> bool:
    """Run what is missing."""
    options = parse_options(arguments)
    return run_units(Store(NAME, options.results, options.units), units(options), options)


if __name__ == "__main__":
    main()
