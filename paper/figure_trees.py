"""Figure 4: test AUC against the number of trees, TEL beside XGBoost with about as many parameters a tree.

TEL has the parameters that `paper.table_auc` found on the same split, which must have been run before, with other
numbers of trees. XGBoost's depth is fixed so that a full tree has about as many parameters as one of TEL (2 a split, 1
a leaf; TEL: p + 1 a split and one a leaf and class); learning rate, L2 and trees are tuned, and one model of 500 trees
with these is judged at smaller numbers, too.

    python -m paper.figure_trees          # all splits of table 2 that are there, up to 5
    python -m paper.figure_trees --full   # 15 splits, 50 rounds
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from paper import table_auc
from paper.comparison import mean_and_error
from paper.datasets import split_table
from paper.learners import LEARNERS, Params, add_tuning_options, auc, thinned, tune, tuning_budget, used
from paper.runner import Record, Save, Store, Unit, option_parser, run_units

NAME = "figure_trees"
SETS = ("heart-c", "pima", "spambase")
TEL_TREES = (1, 2, 3, 5, 10, 20, 50, 100)
XGBOOST_TREES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
TOLERANCE = 0.002  # AUCs that differ by less count as equal


def run_tel(options: argparse.Namespace, name: str, split: int, params: Params, saved: Record, save: Save) -> Record:
    """AUC and number of parameters for each number of trees."""
    data = split_table(options.data, name, split)
    scores, sizes = [], []
    for n_trees in TEL_TREES:
        model = LEARNERS["tel"].make({**used(params), "n_trees": n_trees}, split, options.threads)
        model.fit(data.X_train, data.y_train)
        scores.append(auc(data.y_test, model.predict_proba(data.X_test)))
        trees = model.model_.members[0].trees
        sizes.append(trees.split_weight.size + trees.split_bias.size + trees.leaf_weight.size)
    return {"best": max(scores), "trees": TEL_TREES, "auc": scores, "parameters": sizes}


def run_xgboost(options: argparse.Namespace, name: str, split: int, depth: int, saved: Record, save: Save) -> Record:
    """The same for a boosted ensemble that is cut off after each number of trees."""
    data, learner = split_table(options.data, name, split), LEARNERS["xgboost"]
    free = {key: value for key, value in learner.space.items() if key != "max_depth"}
    fixed = replace(
        learner,
        make=lambda params, seed, threads: learner.make({**params, "max_depth": depth}, seed, threads),
        space=free,
        first={key: learner.first[key] for key in free},
    )
    rows = thinned(data, options.tuning_rows, split)
    params, _ = tune(fixed, rows, rounds=options.rounds, seed=split, threads=options.threads, saved=saved, save=save)
    model = fixed.make({**used(params), "n_estimators": max(XGBOOST_TREES)}, split, options.threads)
    model.fit(data.X_train, data.y_train)
    cut = [model.predict_proba(data.X_test, iteration_range=(0, n)) for n in XGBOOST_TREES]
    leaves = np.cumsum([tree.count("leaf") for tree in model.get_booster().get_dump()])
    sizes = [int(3 * leaves[n - 1] - 2 * n) for n in XGBOOST_TREES]  # a tree has one split less than leaves
    scores = [auc(data.y_test, probability) for probability in cut]
    return {
        "best": max(scores),
        "trees": XGBOOST_TREES,
        "auc": scores,
        "parameters": sizes,
        "depth": depth,
        "params": params,
    }


def matching_depth(n_features: int, n_classes: int, tel_depth: int) -> int:
    """Depth at which a full tree of XGBoost has about as many parameters as a tree of TEL.

    Examples
    --------
    >>> matching_depth(n_features=8, n_classes=2, tel_depth=4)  # 151 against 190 at depth 6, 94 at depth 5
    6
    """
    n_outputs = 1 if n_classes == 2 else n_classes
    wanted = (2**tel_depth - 1) * (n_features + 1) + 2**tel_depth * n_outputs
    sizes = {depth: 3 * 2**depth - 2 for depth in range(1, 16)}
    return min(sizes, key=lambda depth: abs(np.log(sizes[depth] / wanted)))


def units(options: argparse.Namespace) -> list[Unit]:
    """For each set and split that table 2 has tuned TEL for."""
    tuned = Store(options.results / f"{table_auc.NAME}.json").units
    made = []
    for split in range(options.splits):
        for name in SETS:
            record = tuned.get(f"{name}/split {split}/tel", {})
            if "result" not in record:
                print(f"{name}, split {split}: not tuned yet; run python -m paper.table_auc first.")
                continue
            params, data = record["result"]["params"], split_table(options.data, name, split)
            depth = matching_depth(data.X_train.shape[1], int(data.y_train.max()) + 1, params["depth"])
            tel = partial(run_tel, options, name, split, params)
            xgboost = partial(run_xgboost, options, name, split, depth)
            made.append(Unit(f"{name}/split {split}/tel", tel, {"params": params}))
            budget = tuning_budget(options)
            made.append(Unit(f"{name}/split {split}/xgboost", xgboost, {"depth": depth}, budget))
    return made


# Report -------------------------------------------------------------------------------------------------------------


def section(results: Path, pictures: Path) -> str:
    """The report's part on this figure."""
    done = {key: unit["result"] for key, unit in Store(results / f"{NAME}.json").units.items() if "result" in unit}
    if not done:
        return "not run"
    head = (
        "| set | splits | TEL: AUC, trees, parameters | XGBoost: AUC, trees, parameters | ratio of parameters | paper |"
    )
    lines = [head, "|---|---|---|---|---|---|"]
    curves = {name: {key: _curve(done, name, key) for key in ("tel", "xgboost")} for name in SETS}
    for name in SETS:
        tel, xgboost = curves[name]["tel"], curves[name]["xgboost"]
        paper = "more than 20" if name == "pima" else "fewer trees, no number given"
        if tel is None or xgboost is None:
            lines.append(f"| {name} | 0 | not run | not run | not run | {paper} |")
            continue
        level = min(tel["auc"].max(), xgboost["auc"].max()) - TOLERANCE
        points = [_smallest(curve, level) for curve in (tel, xgboost)]
        cells = [f"{a:.3f}, {n}, {size:,.0f}" for a, n, size in points]
        ratio = points[1][2] / points[0][2]
        lines.append(f"| {name} | {tel['n_splits']} | {' | '.join(cells)} | {ratio:.1f} | {paper} |")
    _draw(curves, pictures / f"{NAME}.png")
    return (
        f"![AUC against trees]({pictures.name}/{NAME}.png)\n\nMean test AUC over splits. The table has the smallest "
        f"model of each whose mean AUC is within {TOLERANCE} of the lesser of the two best; sizes are means over "
        "splits, counted in the fitted models.\n\n" + "\n".join(lines)
    )


def _curve(done: dict[str, Record], name: str, key: str) -> Record | None:
    runs = [result for unit, result in done.items() if unit.startswith(f"{name}/") and unit.endswith(f"/{key}")]
    if not runs:
        return None
    scores = np.array([run["auc"] for run in runs])
    errors = [mean_and_error(column)[1] for column in scores.T]
    sizes = np.mean([run["parameters"] for run in runs], axis=0)
    trees = runs[0]["trees"]
    return {"trees": trees, "auc": scores.mean(axis=0), "error": errors, "sizes": sizes, "n_splits": len(runs)}


def _smallest(curve: Record, level: float) -> tuple[float, int, float]:
    first = int(np.flatnonzero(curve["auc"] >= level)[0])
    return float(curve["auc"][first]), curve["trees"][first], float(curve["sizes"][first])


def _draw(curves: dict[str, dict[str, Record | None]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(SETS)), SETS, strict=True):
        for key, curve in curves[name].items():
            if curve is not None:
                axes.errorbar(curve["trees"], curve["auc"], curve["error"], label=LEARNERS[key].title, capsize=2)
        axes.set(title=name, xlabel="trees", xscale="log")
    figure.axes[0].set_ylabel("test AUC")
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path)


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing."""
    parser = option_parser(__doc__)
    parser.add_argument("--splits", type=int, default=5)
    add_tuning_options(parser, rounds=10)
    options = parser.parse_args(arguments)
    if options.full:
        options.rounds, options.splits, options.tuning_rows = 50, 15, 0
    run_units(Store(options.results / f"{NAME}.json"), units(options), options)


if __name__ == "__main__":
    main()
