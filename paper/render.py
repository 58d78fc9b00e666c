"""Write ``paper/README.md``, ``paper/RELATED.md`` and their pictures from what stands in ``paper/results``.

Every number of ours comes from a results file, every number of the paper's from `paper.published`. What is missing is
called "not run".

    python -m paper.render
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from paper import (
    auc_report,
    depth_report,
    figure_activations,
    figure_depth,
    figure_reachable,
    figure_trees,
    published,
    related_systems,
    table_activations,
    table_images,
)
from paper.claims import table
from paper.run import STAGES, progress_of
from paper.runner import RESULTS, Record, Store
from paper.search import N_STARTUP, REDUCED

SECTIONS: tuple[tuple[str, str, Any], ...] = (
    ("Figure 1: activations", "paper.figure_activations", figure_activations),
    ("Figure 2: reachable leaves", "paper.figure_reachable", figure_reachable),
    ("Theorem 1: cost against depth", "", depth_report),
    ("Table 1: smooth-step against logistic", "paper.table_activations", table_activations),
    ("Figure 3: training time against depth", "paper.figure_depth", figure_depth),
    ("Table 2: test AUC", "paper.table_auc", auc_report),
    ("Figure 4: number of trees", "paper.figure_trees", figure_trees),
    ("Table 3: dense layers against trees in CNNs", "paper.table_images", table_images),
    ("Related systems", "paper.related_systems", related_systems),
)

INTRODUCTION = f"""# The paper, run again

Written by `python -m paper.render` from the files in `results/`; do not edit. The paper: {published.SOURCE}.
"""

HOW = """## How to run it

    pip install 'softwood[paper]'
    python -m paper.run --units DIR        # everything, in the order of what is worth having first
    python -m paper.run --list             # what is done and what is left
    python -m paper.collect --units DIR    # finished units -> results/*.json
    python -m paper.render                 # results/*.json -> this page
    python -m paper.verify --data DATA     # ten recorded units once more: the same bits?

Each unit (one learner on one split of one set, say) is a file in the folder of units and is saved after each tuning
round. A process can be stopped or killed at any moment; the same command goes on. Each part below also has its
command. The data sets are looked for in `../shared/data`, or where `--data` or `SOFTWOOD_DATA` says. Each record names
the commit that made it ("+": with changes), the version of the search, and its processor time.
"""

PROTOCOL = f"""## Protocol, and where it differs from the paper's

- **TEL (paper)** is `TreeEnsembleClassifier(recipe="paper")`: batch normalisation, then splits that are linear in all
  columns as they are; no biases, feature masks, L1 penalty or decay; dense Adam at a constant rate; the last epoch. It
  is tuned over the paper's space (appendix D). Differences that remain: two classes have one output and a sigmoid
  instead of two and a softmax; batch normalisation uses the exact statistics of the training rows for prediction,
  where Keras uses moving averages; epsilons are PyTorch's (Keras: 1e-3 in batch normalisation, 1e-7 in Adam).
- **TEL (softwood)** is one ensemble of this library (`n_members=1`), which stops by held-out rows; learning rate,
  gamma, depth and trees are tuned over their declared ranges.
- **Search**: TPE by Optuna instead of Hyperopt, by its model from round {N_STARTUP + 1} on. The first round is a fixed
  point near the learner's usual defaults. All seeds come from (set, learner, split); folds from (set, split), so that
  all learners see the same.
- **Splits** are stratified by class; the paper says random.
- **XGBoost** builds exact trees, as version 0.90 did on tables of this size. LightGBM and CatBoost are tuned with the
  same learning rates, trees and L2, and 4 to 256 leaves or a depth of 2 to 8.
- **Reduced** rows: 3 splits (sleep: 1), {REDUCED["rounds"]} rounds, tuning sees at most {REDUCED["tuning_rows"]}
  training rows; the final fit sees all.
- **Table 1** has several splits instead of several initialisations on one, and equal ranges of slopes.
- **Table 3** has no search.
"""


def render(results: Path, out: Path) -> Path:
    """Write the report and its pictures into the folder `out`; return the report's path."""
    pictures = out / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    opening = [claim.row() for _, _, module in SECTIONS for claim in module.claims(results)]
    parts = [INTRODUCTION, table(["claim of the paper", "what we find", "exact or reduced", "verdict"], opening) + "\n"]
    parts += [HOW, _progress(results)]
    for heading, command, module in SECTIONS:
        body = module.section(results, pictures)
        effort = f"`python -m {command}`. {_effort(Store(module.NAME, results).units)}\n\n" if command else ""
        parts.append(f"## {heading}\n\n{effort}{body}\n")
    parts += [PROTOCOL, _machines(results)]
    report = out / "README.md"
    report.write_text("\n".join(parts))
    (out / "RELATED.md").write_text(related_systems.page(results))
    return report


def _progress(results: Path) -> str:
    """What is done, and how long the rest takes, by the mean cost of what is done."""
    rows = []
    for stage in STAGES:
        state = progress_of(stage, ["--results", str(results), "--units", str(results / "none")])
        left = "unknown" if state["left"] is None else f"{state['left']:.1f}"
        rows.append([stage.title, f"{state['done']} of {state['units']}", f"{state['hours']:.2f}", left])
    head = ["stage, in this order", "units done", "processor hours spent", "hours left, by the mean of what is done"]
    return f"## What is done\n\n{table(head, rows)}\n"


def _effort(units: dict[str, Record]) -> str:
    done = [unit for unit in units.values() if "result" in unit]
    hours = sum(unit["cpu_seconds"] for unit in done) / 3600
    return f"Finished units: {len(done)}, {hours:.2f} hours of processor time." if done else "Nothing was run."


def _machines(results: Path) -> str:
    """On what the results were computed; the options of each run stand in the results files."""
    seen: dict[str, list[str]] = {}
    for _, _, module in SECTIONS:
        store = Store(module.NAME, results)
        commits = sorted({unit.get("commit", "unknown") for unit in store.units.values()})
        for run in store.runs:
            versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
            text = f"{run['cpu']}, {run['cores']} cores, Python {run['python']}, {versions}"
            seen.setdefault(text, []).append(f"{module.NAME} ({', '.join(commits)})")
    lines = [f"- {', '.join(dict.fromkeys(names))}: {text}" for text, names in seen.items()]
    return "## Machines, commits and versions\n\n" + "\n".join(lines or ["not run"]) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results files")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder of the report")
    options = parser.parse_args(arguments)
    print(render(options.results, options.out))


if __name__ == "__main__":
    main()
