"""Figure 4: test AUC against the number of trees, TEL beside XGBoost with about as many parameters per tree.

TEL has the parameters that `paper.table_auc` found on the same split, which must have been run before, with other
numbers of trees; by the paper's recipe and by this library's. XGBoost's depth is fixed so that a full tree has about as
many parameters as one of TEL (paper): 2 per split and 1 per leaf, against one per column and split and one per leaf and
output. Learning rate, L2 and trees are tuned, and one model of 500 trees with these is judged at smaller numbers, too.

    python -m paper.figure_trees     # all splits that table 2 has done
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paper import published
from paper.auc_report import Scores
from paper.claims import Claim, graded, table
from paper.comparison import mean_and_error
from paper.datasets import split_table
from paper.learners import LEARNERS, Params, used
from paper.runner import Record, Save, Store, Unit, option_parser, run_units
from paper.search import EXACT_SPLITS, Name, add_tuning_options, auc, settings_of, thinned, tune, tuning_budget
from softwood.model.lookup_trees import LookupTrees

NAME = "figure_trees"
SETS = ("heart-c", "pima", "spambase")
TELS = {"tel_paper": "TEL (paper)", "tel_softwood": "TEL (softwood)"}
TEL_TREES = (1, 2, 3, 5, 10, 20, 50, 100)
XGBOOST_TREES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
TOLERANCES = (0.001, 0.002, 0.005)  # AUCs that differ by less count as equal
MIN_SPLITS = 5


def run_tel(options: argparse.Namespace, name: Name, params: Params, saved: Record, save: Save) -> Record:
    """AUC and numbers of parameters for each number of trees."""
    data = split_table(options.data, name.table, name.split)
    scores, sizes = [], []
    for n_trees in TEL_TREES:
        seed = name.seed("trees", n_trees)
        model = LEARNERS[name.learner].make({**used(params), "n_trees": n_trees}, seed, options.threads)
        model.fit(data.X_train, data.y_train)
        scores.append(auc(data.y_test, model.predict_proba(data.X_test)))
        sizes.append(count_parameters(model))
    trainable, stored = zip(*sizes, strict=True)
    return {"trees": TEL_TREES, "auc": scores, "trainable": trainable, "stored": stored}


def count_parameters(model: Any) -> tuple[int, int]:
    """Weights that training may change, and numbers that prediction needs (batch norm folded, zeros left out)."""
    (member,) = model.model_.members
    trees = member.trees
    if isinstance(trees, LookupTrees):
        return int(model.n_parameters_.trainable), int(model.n_parameters_.stored)
    n_splits = trees.split_weight[..., 0].size
    n_bias = 0 if trees.split_bias is None else n_splits
    n_free = trees.split_weight.size if trees.feature_mask is None else int(trees.feature_mask.sum())
    norm = trees.batch_norm
    trainable = n_free + n_bias + trees.leaf_weight.size + (0 if norm is None else norm.scale.size + norm.shift.size)
    n_thresholds = n_splits if norm is not None or n_bias else 0  # what batch norm folds into
    stored = int(np.count_nonzero(trees.split_weight)) + n_thresholds + trees.leaf_weight.size
    return trainable, stored


def run_xgboost(options: argparse.Namespace, name: Name, depth: int, saved: Record, save: Save) -> Record:
    """The same for a boosted ensemble that is cut off after each number of trees."""
    data, learner = split_table(options.data, name.table, name.split), LEARNERS["xgboost"]
    free = {key: value for key, value in learner.space.items() if key != "max_depth"}
    fixed = replace(
        learner,
        make=lambda params, seed, threads: learner.make({**params, "max_depth": depth}, seed, threads),
        space=free,
        first={key: learner.first[key] for key in free},
    )
    rows = thinned(data, options.tuning_rows, name.fold_seed)
    found = tune(fixed, name, rows, rounds=options.rounds, threads=options.threads, saved=saved, save=save)
    params = {**used(found.params), "n_estimators": max(XGBOOST_TREES)}
    model = fixed.make(params, name.seed("final"), options.threads)
    model.fit(data.X_train, data.y_train)
    cut = [model.predict_proba(data.X_test, iteration_range=(0, n)) for n in XGBOOST_TREES]
    leaves = np.cumsum([tree.count("leaf") for tree in model.get_booster().get_dump()])
    sizes = [int(3 * leaves[n - 1] - 2 * n) for n in XGBOOST_TREES]  # a tree has one split less than leaves
    scores = [auc(data.y_test, probability) for probability in cut]
    result = {"trees": XGBOOST_TREES, "auc": scores, "trainable": sizes, "stored": sizes}
    return {**result, "depth": depth, "params": found.params}


def matching_depth(n_features: int, n_classes: int, tel_depth: int) -> int:
    """Depth at which a full tree of XGBoost has about as many parameters as a tree of TEL (paper).

    Examples
    --------
    >>> matching_depth(n_features=8, n_classes=2, tel_depth=4)  # 136 against 190 at depth 6, 94 at depth 5
    6
    """
    n_outputs = 1 if n_classes == 2 else n_classes
    wanted = (2**tel_depth - 1) * n_features + 2**tel_depth * n_outputs
    sizes = {depth: 3 * 2**depth - 2 for depth in range(1, 16)}
    return min(sizes, key=lambda depth: abs(np.log(sizes[depth] / wanted)))


def units(options: argparse.Namespace) -> list[Unit]:
    """For each set and split that table 2 has tuned TEL for."""
    tuned = Scores(Store("table_auc", options.results, options.units).units)
    made = []
    for name in SETS:
        for split in range(options.splits):
            for tel in TELS:
                record = tuned.records[tel].get(name, {}).get(split)
                if record is not None:
                    made += _units_of(options, Name(name, tel, split), record["result"]["params"])
    return made


def _units_of(options: argparse.Namespace, name: Name, params: Params) -> list[Unit]:
    version = settings_of(LEARNERS[name.learner])
    key = f"{name.table}/split {name.split}"
    made = [Unit(f"{key}/{name.learner}", partial(run_tel, options, name, params), {**version, "params": params})]
    if name.learner == "tel_paper":
        _, n_features, n_classes = published.TABLES[name.table]
        depth = matching_depth(n_features, n_classes, params["depth"])
        settings = {**settings_of(LEARNERS["xgboost"]), "depth": depth}
        run = partial(run_xgboost, options, replace(name, learner=f"{NAME}/xgboost"), depth)
        made.append(Unit(f"{key}/xgboost", run, settings, tuning_budget(options)))
    return made


# Report -------------------------------------------------------------------------------------------------------------


def _read(results: Path) -> dict[str, dict[str, Record]]:
    done = {key: unit["result"] for key, unit in Store(NAME, results).units.items() if "search" in unit["settings"]}
    curves: dict[str, dict[str, Record]] = {}
    for name in SETS:
        for learner in (*TELS, "xgboost"):
            runs = [
                result for key, result in done.items() if key.startswith(f"{name}/") and key.endswith(f"/{learner}")
            ]
            if runs:
                curves.setdefault(name, {})[learner] = _curve(runs)
    return curves


def _curve(runs: list[Record]) -> Record:
    scores = np.array([run["auc"] for run in runs])
    sizes = {kind: np.mean([run[kind] for run in runs], axis=0) for kind in ("trainable", "stored")}
    errors = [mean_and_error(column)[1] for column in scores.T]
    return {"trees": runs[0]["trees"], "auc": scores.mean(axis=0), "error": errors, "n_splits": len(runs), **sizes}


def compare(tel: Record, xgboost: Record, tolerance: float) -> Record:
    """The smallest model of each whose mean AUC is within a tolerance of the lesser of the two best."""
    level = min(tel["auc"].max(), xgboost["auc"].max()) - tolerance
    first = [int(np.flatnonzero(curve["auc"] >= level)[0]) for curve in (tel, xgboost)]
    points = [
        {key: float(curve[key][i]) for key in ("trees", "auc", "trainable", "stored")}
        for curve, i in zip((tel, xgboost), first, strict=True)
    ]
    ratios = {key: points[1][key] / points[0][key] for key in ("trees", "trainable", "stored")}
    return {"tel": points[0], "xgboost": points[1], **ratios}


def section(results: Path, pictures: Path) -> str:
    """The report's part on this figure."""
    curves = _read(results)
    rows = []
    for name, by_learner in curves.items():
        for tel in TELS:
            if tel not in by_learner or "xgboost" not in by_learner:
                continue
            for tolerance in TOLERANCES:
                rows.append(_row(name, tel, by_learner, tolerance))
    if not rows:
        return "not run"
    _draw(curves, pictures / f"{NAME}.png")
    head = [
        "set",
        "TEL",
        "splits",
        "tolerance",
        "TEL: AUC, trees, parameters (stored)",
        "XGBoost: AUC, trees, parameters",
    ]
    head += ["ratio of trees", "of parameters", "of stored parameters", "paper"]
    return (
        f"![AUC against trees]({pictures.name}/{NAME}.png)\n\nMean test AUC over splits. Each line has the smallest "
        "model of each whose mean AUC is within the tolerance of the lesser of the two best. Parameters: what "
        "training may change; stored: what prediction needs, batch norm folded into the splits, without zeros. "
        "Means over splits, counted in the fitted models.\n\n" + table(head, rows)
    )


def _row(name: str, tel: str, by_learner: dict[str, Record], tolerance: float) -> list[str]:
    found = compare(by_learner[tel], by_learner["xgboost"], tolerance)
    ours, theirs = found["tel"], found["xgboost"]
    return [
        name,
        TELS[tel],
        str(by_learner[tel]["n_splits"]),
        f"{tolerance:g}",
        f"{ours['auc']:.3f}, {ours['trees']:.0f}, {ours['trainable']:,.0f} ({ours['stored']:,.0f})",
        f"{theirs['auc']:.3f}, {theirs['trees']:.0f}, {theirs['stored']:,.0f}",
        *(f"{found[key]:.1f}" for key in ("trees", "trainable", "stored")),
        published.COMPACTNESS.get(name, "fewer trees"),
    ]


def claims(results: Path) -> list[Claim]:
    """What the paper says of this figure."""
    text = "TEL needs far fewer trees and parameters than XGBoost (pima: more than 20 times fewer parameters)"
    curves, words, least, splits = _read(results), [], float("inf"), 99
    for name, by_learner in curves.items():
        if "tel_paper" in by_learner and "xgboost" in by_learner:
            ratios = [compare(by_learner["tel_paper"], by_learner["xgboost"], t)["trainable"] for t in TOLERANCES]
            words.append(f"{name} {min(ratios):.1f} to {max(ratios):.1f} times")
            least, splits = min(least, min(ratios)), min(splits, by_learner["tel_paper"]["n_splits"])
    if not words:
        return [Claim(text, "section 4.2, figure 4")]
    protocol = (
        "exact"
        if splits >= EXACT_SPLITS
        else f"at least {splits} of {EXACT_SPLITS} splits, {len(words)} of {len(SETS)} sets"
    )
    found = f"parameters of XGBoost over TEL (paper), by tolerance: {'; '.join(words)}"
    return [Claim(text, "section 4.2, figure 4", found, protocol, graded(least, holds=20, in_part=1))]


def _draw(curves: dict[str, dict[str, Record]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3), layout="constrained")
    for axes, (name, by_learner) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True):
        for key, curve in by_learner.items():
            axes.errorbar(curve["trees"], curve["auc"], curve["error"], label=LEARNERS[key].title, capsize=2)
        axes.set(title=name, xlabel="trees", xscale="log")
    figure.axes[0].set_ylabel("test AUC")
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = option_parser(__doc__)
    parser.add_argument("--splits", type=int, default=EXACT_SPLITS)
    add_tuning_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> bool:
    """Run what is missing."""
    options = parse_options(arguments)
    return run_units(Store(NAME, options.results, options.units), units(options), options)


if __name__ == "__main__":
    main()
