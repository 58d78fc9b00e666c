"""How table 2 is reported: cells beside the paper's, what is exact, who wins, how far rivals are from the paper's own.

Comes in: results of `paper.table_auc`. Goes out: a section of the report and claims for its opening table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from paper import published, table_auc
from paper.claims import FAILS, HOLDS, IN_PART, Claim, so_far, table
from paper.comparison import counted, is_significant, mean_and_error, wins_ties_losses
from paper.datasets import TABLES
from paper.learners import LEARNERS
from paper.runner import Record, Store, is_enough
from paper.search import EXACT, EXACT_SPLITS, settings_of

NAME = table_auc.NAME
MAIN = ("tel_paper", "tel_softwood", "xgboost", "logistic_regression", "cart")
OTHERS = ("lightgbm", "catboost", "default")
TELS = ("tel_paper", "tel_softwood")
PAPERS = {"tel_paper": "tel", "tel_softwood": "tel"}  # the paper's column that a learner of ours stands beside


class Scores:
    """Finished units of table 2: those of the present search and learners."""

    def __init__(self, units: Mapping[str, Record]) -> None:
        self.records: dict[str, dict[str, dict[int, Record]]] = {learner: {} for learner in LEARNERS}
        for key, record in units.items():
            name, split, learner = key.split("/")
            if learner in LEARNERS and "result" in record and record["settings"] == settings_of(LEARNERS[learner]):
                self.records[learner].setdefault(name, {})[int(split.removeprefix("split "))] = record

    @classmethod
    def read(cls, results: Path) -> Scores:
        """Of a folder of results."""
        return cls(Store(NAME, results).units)

    def aucs(self, learner: str, name: str) -> dict[int, float]:
        """Test AUC by split."""
        return {split: record["result"]["auc"] for split, record in self.records[learner].get(name, {}).items()}

    def is_exact(self, learner: str, name: str) -> bool:
        """Whether a cell is the paper's protocol: all splits, all rounds, all rows."""
        records = self.records[learner].get(name, {}).values()
        wanted = EXACT if LEARNERS[learner].space else {}
        return sum(is_enough(record["budget"], wanted) for record in records) >= EXACT_SPLITS

    def label(self, learner: str, name: str) -> str:
        """What a cell is: "exact", the splits done so far, or the reduced budget."""
        records = list(self.records[learner].get(name, {}).values())
        if not records or self.is_exact(learner, name):
            return "exact" if records else "not run"
        full = all(is_enough(record["budget"], EXACT) for record in records) or not LEARNERS[learner].space
        return f"{len(records)} of {EXACT_SPLITS} splits" if full else f"reduced, {_splits(len(records))}"

    def mean(self, learner: str, name: str) -> float | None:
        """Mean test AUC over splits."""
        values = list(self.aucs(learner, name).values())
        return float(np.mean(values)) if values else None

    def paired(self, name: str, a: str, b: str) -> tuple[list[float], list[float]]:
        """AUCs of two learners on the splits of a set that both have done."""
        first, second = self.aucs(a, name), self.aucs(b, name)
        splits = sorted(first.keys() & second.keys())
        return [first[split] for split in splits], [second[split] for split in splits]


def _splits(n: int) -> str:
    return f"{n} split" + ("" if n == 1 else "s")


def paper_auc(learner: str, name: str) -> published.Figure | None:
    """The paper's AUC of a learner on a set; None for learners that it does not have."""
    key = PAPERS.get(learner, learner)
    return published.AUC[name][published.AUC_LEARNERS.index(key)] if key in published.AUC_LEARNERS else None


def exact_sets(scores: Scores, *learners: str) -> list[str]:
    """Sets on which all these learners have been run by the paper's protocol."""
    return [name for name in TABLES if all(scores.is_exact(learner, name) for learner in learners)]


# The section --------------------------------------------------------------------------------------------------------


def section(results: Path, pictures: Path) -> str:
    """The report's part on this table."""
    scores = Scores.read(results)
    if not any(scores.records.values()):
        return "not run"
    names = sorted(TABLES)
    parts = [
        "Mean test AUC ± standard error over 70/30 splits, in brackets the paper's. Exact: 15 splits, 50 rounds, 5 "
        "folds, all rows. A cell that is not exact says what it is. With more than two classes, AUC is the mean of "
        "each class against the rest. A star: significantly better than XGBoost (XGBoost: than TEL (paper)) by a "
        "paired t-test at 0.05 over at least 5 splits.",
        table(
            ["set", *(LEARNERS[learner].title for learner in MAIN)],
            [[name, *(_cell(scores, name, learner) for learner in MAIN)] for name in names],
        ),
        "Others, with the same search, and this library's defaults, untuned:",
        table(
            ["set", *(LEARNERS[learner].title for learner in OTHERS)],
            [[name, *(_cell(scores, name, learner) for learner in OTHERS)] for name in names],
        ),
        "### Who wins",
        table(
            ["", "sets", "wins", "ties", "losses", "significant wins", "significant losses", "rows"],
            [row for tel in TELS for rival in ("xgboost", *MAIN[3:]) for row in _duel_rows(scores, tel, rival)],
        ),
        f"The paper's TEL against XGBoost: {counted(published.AUC_AGAINST_XGBOOST)}.",
        "### How far from the paper's own numbers, and what the search found",
        "Mean AUC minus the paper's for the same learner and set. A search beats its first point where another round "
        "has a higher cross-validated AUC.",
        table(
            ["learner", "exact rows: mean", "largest", "all rows: mean", "largest", "search beats its first point"],
            [_distance_row(scores, learner) for learner in MAIN],
        ),
    ]
    return "\n\n".join(parts)


def _cell(scores: Scores, name: str, learner: str) -> str:
    values = list(scores.aucs(learner, name).values())
    text = "not run"
    if values:
        mean, error = mean_and_error(values)
        text = f"{mean:.3f}{_star(scores, name, learner)}" + ("" if np.isnan(error) else f" ± {error:.3f}")
    paper = paper_auc(learner, name)
    if paper is not None:
        text += f" ({paper[0]:.3f} ± {paper[1]:.3f})"
    return text if not values or scores.is_exact(learner, name) else f"{text}, {scores.label(learner, name)}"


def _star(scores: Scores, name: str, learner: str) -> str:
    rival = {"tel_paper": "xgboost", "tel_softwood": "xgboost", "xgboost": "tel_paper"}.get(learner)
    if rival is None:
        return ""
    a, b = scores.paired(name, learner, rival)
    return "*" if a and np.mean(a) > np.mean(b) and is_significant(a, b) else ""


def duel(scores: Scores, a: str, b: str, names: Iterable[str]) -> Record:
    """Wins, ties, losses of a against b over sets that both have, and how many of the differences are significant."""
    pairs = {name: scores.paired(name, a, b) for name in names}
    pairs = {name: pair for name, pair in pairs.items() if pair[0]}
    ours, theirs = ({name: float(np.mean(pair[i])) for name, pair in pairs.items()} for i in (0, 1))
    significant = [name for name, pair in pairs.items() if is_significant(*pair)]
    return {
        "sets": len(pairs),
        "counts": wins_ties_losses(ours, theirs),
        "significant_wins": sum(ours[name] > theirs[name] for name in significant),
        "significant_losses": sum(ours[name] < theirs[name] for name in significant),
    }


def _duel_rows(scores: Scores, tel: str, rival: str) -> list[list[str]]:
    rows = []
    for label, names in (("exact", exact_sets(scores, tel, rival)), ("all", TABLES)):
        result = duel(scores, tel, rival, names)
        cells = [*result["counts"], result["significant_wins"], result["significant_losses"]]
        title = f"{LEARNERS[tel].title} against {LEARNERS[rival].title}"
        rows.append([title, str(result["sets"]), *map(str, cells), label])
    return rows


def distances(scores: Scores, learner: str, names: Iterable[str]) -> dict[str, float]:
    """Our mean AUC minus the paper's, by set."""
    found = {}
    for name in names:
        ours, paper = scores.mean(learner, name), paper_auc(learner, name)
        if ours is not None and paper is not None:
            found[name] = ours - paper[0]
    return found


def _distance_row(scores: Scores, learner: str) -> list[str]:
    cells = []
    for names in (exact_sets(scores, learner), TABLES):
        found = distances(scores, learner, names)
        if not found:
            cells += ["not run", "not run"]
            continue
        worst = max(found, key=lambda name: abs(found[name]))
        cells += [f"{np.mean(list(found.values())):+.4f} ({len(found)} sets)", f"{found[worst]:+.3f} ({worst})"]
    records = [record["result"] for by_split in scores.records[learner].values() for record in by_split.values()]
    better = sum(result["validation_auc"] > result["first_auc"] for result in records)
    return [LEARNERS[learner].title, *cells, f"{better} of {len(records)}"]


# Claims -------------------------------------------------------------------------------------------------------------


def claims(results: Path) -> list[Claim]:
    """What the paper says of this table."""
    scores = Scores.read(results)
    text = "TEL is competitive with gradient boosting: 9 wins, 6 ties, 8 losses against XGBoost on 23 sets"
    found = []
    for tel in TELS:
        exact = exact_sets(scores, tel, "xgboost")
        everything = duel(scores, tel, "xgboost", TABLES)
        claim = Claim(f"{text}; here {LEARNERS[tel].title}", "section 4.2, table 2")
        if everything["sets"]:
            on_exact = duel(scores, tel, "xgboost", exact)
            words = f"all {everything['sets']} sets done: {counted(everything['counts'])}"
            if exact:
                words = f"{len(exact)} exact sets: {counted(on_exact['counts'])}; {words}"
            wins, ties, losses = everything["counts"]
            verdict = HOLDS if wins >= losses else IN_PART if wins + ties >= losses else FAILS
            protocol = _protocol(scores, tel, everything["sets"], exact)
            verdict = so_far(verdict, everything["sets"], len(TABLES))
            claim = Claim(claim.text, claim.where, words, protocol, verdict)
        found.append(claim)
    return [*found, _same_rivals(scores)]


def _protocol(scores: Scores, tel: str, n_sets: int, exact: list[str]) -> str:
    partly = n_sets - len(exact)
    return "; ".join(
        part
        for part in (
            f"{len(exact)} sets exact" if exact else "",
            f"{partly} with fewer splits or reduced" if partly else "",
            f"{len(TABLES) - n_sets} not run" if n_sets < len(TABLES) else "",
        )
        if part
    )


def _same_rivals(scores: Scores) -> Claim:
    text = "The rivals' own numbers (XGBoost, logistic regression) can be reproduced"
    names = exact_sets(scores, "xgboost", "logistic_regression")
    if not names:
        return Claim(text, "table 2")
    boosted = distances(scores, "xgboost", names)
    linear = float(np.mean(list(distances(scores, "logistic_regression", names).values())))
    far = [f"{name} {gap:+.3f}" for name, gap in boosted.items() if abs(gap) > 0.01]
    words = (
        f"logistic regression {linear:+.4f} on average; XGBoost within 0.01 on {len(boosted) - len(far)} of "
        f"{len(boosted)} sets" + (f" (not: {', '.join(far)})" if far else "")
    )
    verdict = HOLDS if abs(linear) <= 0.003 and not far else IN_PART if abs(linear) <= 0.01 else FAILS
    return Claim(text, "table 2", words, f"{len(names)} sets exact", verdict)
