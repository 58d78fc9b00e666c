"""Table 2: test AUC of tuned TEL, XGBoost, logistic regression and CART on the 23 tables of PMLB.

Besides, LightGBM and CatBoost tuned with the same budget, and TEL with this library's defaults, untuned.

    python -m paper.table_auc                              # a budget of about 40 minutes on two cores
    python -m paper.table_auc --sets pima --rounds 20      # more rounds go on from those that are done
    python -m paper.table_auc --full                       # the paper's protocol: 50 rounds, 15 splits, all rows
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np

from paper import published
from paper.comparison import is_significant, mean_and_error, wins_ties_losses
from paper.datasets import TABLES, split_table
from paper.learners import LEARNERS, add_tuning_options, fit_and_score, thinned, tune, tuning_budget, words_on_tuning
from paper.runner import Record, Save, Store, Unit, option_parser, run_units

NAME = "table_auc"


def units(options: argparse.Namespace) -> list[Unit]:
    """Split by split, so that an unfinished run covers all sets."""
    return [
        unit(options, name, split, learner)
        for split in range(options.splits)
        for name in options.sets
        for learner in options.learners
    ]


def unit(options: argparse.Namespace, name: str, split: int, learner: str) -> Unit:
    """One learner, tuned and judged on one split of one set."""
    tuned = bool(LEARNERS[learner].space)
    budget = tuning_budget(options) if tuned else {}
    run = partial(_run, options, name, split, learner)
    return Unit(f"{name}/split {split}/{learner}", run, budget=budget)


def _run(options: argparse.Namespace, name: str, split: int, key: str, saved: Record, save: Save) -> Record:
    learner, data = LEARNERS[key], split_table(options.data, name, split)
    seeds = {"seed": split, "threads": options.threads}
    if not learner.space:
        return {"auc": fit_and_score(learner, {}, data, **seeds)}
    rows = thinned(data, options.tuning_rows, split)
    params, inner = tune(learner, rows, rounds=options.rounds, saved=saved, save=save, **seeds)
    return {"auc": fit_and_score(learner, params, data, **seeds), "validation_auc": inner, "params": params}


# Report -------------------------------------------------------------------------------------------------------------

Scores = dict[str, dict[str, dict[int, float]]]  # learner, set, split -> AUC


def read_scores(units: dict[str, Record]) -> Scores:
    """Test AUCs of the finished units."""
    scores: Scores = {learner: {} for learner in LEARNERS}
    for key, record in units.items():
        name, split, learner = key.split("/")
        if "result" in record and learner in scores:
            scores[learner].setdefault(name, {})[int(split.removeprefix("split "))] = record["result"]["auc"]
    return scores


def section(results: Path, pictures: Path) -> str:
    """The report's part on this table."""
    units = Store(results / f"{NAME}.json").units
    scores = read_scores(units)
    if not any(scores.values()):
        return "not run"
    head = ["set", *(learner.title for learner in LEARNERS.values())]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in sorted(TABLES):
        lines.append(f"| {name} | {' | '.join(_cell(scores, name, learner) for learner in LEARNERS)} |")
    lines.append(f"| mean of the sets done by all | {' | '.join(_means(scores))} |")
    return "\n".join([_what_was_run(units, scores), "", *lines, "", *_findings(scores)])


def _cell(scores: Scores, name: str, learner: str) -> str:
    """Ours, then the paper's in brackets; a star where TEL or XGBoost is significantly better than the other."""
    values = scores[learner].get(name, {})
    ours = "not run"
    if values:
        mean, error = mean_and_error(list(values.values()))
        ours = f"{mean:.3f}{_star(scores, name, learner)}" + ("" if np.isnan(error) else f" ± {error:.3f}")
    if learner not in published.AUC_LEARNERS:
        return ours
    paper = published.AUC[name][published.AUC_LEARNERS.index(learner)]
    return f"{ours} ({paper[0]:.3f} ± {paper[1]:.3f})"


def _star(scores: Scores, name: str, learner: str) -> str:
    rival = {"tel": "xgboost", "xgboost": "tel"}.get(learner)
    if rival is None:
        return ""
    a, b = paired(scores, name, learner, rival)
    return "*" if np.mean(a or [0]) > np.mean(b or [0]) and is_significant(a, b) else ""


def paired(scores: Scores, name: str, a: str, b: str) -> tuple[list[float], list[float]]:
    """AUCs of two learners on the splits of a set that both have done."""
    first, second = scores[a].get(name, {}), scores[b].get(name, {})
    splits = sorted(first.keys() & second.keys())
    return [first[split] for split in splits], [second[split] for split in splits]


def _means(scores: Scores) -> list[str]:
    names = [name for name in TABLES if all(name in scores[learner] for learner in LEARNERS)]
    if not names:
        return ["not run"] * len(LEARNERS)
    by_learner = {key: np.mean([np.mean(list(scores[key][name].values())) for name in names]) for key in LEARNERS}
    return [f"{by_learner[key]:.4f} ({len(names)} sets)" for key in LEARNERS]


def _findings(scores: Scores) -> list[str]:
    """What the issue of the table is: near the paper's TEL, and against whom TEL wins."""
    lines = []
    differences = {
        name: float(np.mean(list(values.values()))) - published.AUC[name][0][0]
        for name, values in scores["tel"].items()
    }
    if differences:
        worst = sorted(differences, key=differences.__getitem__)[:3]
        words = ", ".join(f"{name} {differences[name]:+.3f}" for name in worst)
        mean = np.mean(list(differences.values()))
        lines.append(
            f"- Tuned TEL minus the paper's TEL, mean over {len(differences)} sets: {mean:+.4f}; least: {words}."
        )
    for rival in (key for key in LEARNERS if key != "tel"):
        pairs = {name: paired(scores, name, "tel", rival) for name in TABLES}
        pairs = {name: pair for name, pair in pairs.items() if pair[0]}
        ours, theirs = ({name: float(np.mean(pair[i])) for name, pair in pairs.items()} for i in (0, 1))
        counts = wins_ties_losses(ours, theirs)
        significant = [name for name, pair in pairs.items() if is_significant(*pair)]
        paper = f" The paper: {_counts(published.AUC_AGAINST_XGBOOST)}." if rival == "xgboost" else ""
        lines.append(
            f"- Tuned TEL against {LEARNERS[rival].title} on {len(pairs)} sets: {_counts(counts)} "
            f"({len(significant)} differences are significant).{paper}"
        )
    return lines


def _counts(counts: tuple[int, int, int]) -> str:
    return f"{counts[0]} wins, {counts[1]} ties, {counts[2]} losses"


def _what_was_run(units: dict[str, Record], scores: Scores) -> str:
    splits = [len(by_set) for by_learner in scores.values() for by_set in by_learner.values()]
    return (
        f"Mean test AUC ± standard error over splits, and the paper's in brackets; {min(splits)} to {max(splits)} "
        f"splits a cell (paper: 15). {words_on_tuning(units)} With more than two classes AUC is the mean of "
        "each class against the rest. A star: TEL or XGBoost is better than the other by the paired t-test at 0.05."
    )


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = option_parser(__doc__)
    parser.add_argument("--splits", type=int, default=1, help="70/30 splits of each set")
    parser.add_argument("--sets", nargs="+", choices=TABLES, default=TABLES, metavar="SET")
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS), metavar="LEARNER")
    add_tuning_options(parser, rounds=5)
    options = parser.parse_args(arguments)
    if options.full:
        options.rounds, options.splits, options.tuning_rows = 50, 15, 0
    return options


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing."""
    options = parse_options(arguments)
    run_units(Store(options.results / f"{NAME}.json"), units(options), options)


if __name__ == "__main__":
    main()
