"""What the units of the suite say: ranks, wins and costs by size and task, and paired differences of two recipes.

A score is the AUC of a classification and R² of a regression; a table's score is the mean over splits. Only splits that
all learners shown have done are counted. Ranks are among softwood and its four rivals, 1 for the best; scores that
differ by at most 1e-12 share the mean of their ranks. A win is a score that is better by more than 0.002; within that
it is a tie. `softwood_single` is ranked in softwood's place, among the same rivals.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from learners import LEARNERS, RIVALS, SOFTWOOD
from suite_tables import TASKS
from suite_units import Unit

SIZE_CLASSES = (("small", 0, 2_000), ("middle", 2_000, 10_001), ("large", 10_001, float("inf")))
TIE = 0.002
SAME = 1e-12
_TITLES = {"small": "below 2,000 rows", "middle": "2,000 to 10,000 rows", "large": "above 10,000 rows"}


def metric_of(unit: Unit) -> str:
    """Name of the metric that ranks are made by."""
    return "r2" if unit["task"] == "regression" else "auc"


# Arithmetic ---------------------------------------------------------------------------------------------------------


def ranks(scores: ArrayLike) -> NDArray[np.float64]:
    """Ranks of scores, 1 for the highest; those within 1e-12 of their neighbour share the mean of their ranks.

    >>> ranks([0.9, 0.8, 0.9, 0.95])
    array([2.5, 4. , 2.5, 1. ])
    """
    values = np.asarray(scores, dtype=np.float64)
    order = np.argsort(-values, kind="stable")
    group = np.cumsum(np.r_[0, -np.diff(values[order]) > SAME])
    places = np.arange(1, len(values) + 1)
    result = np.empty(len(values))
    result[order] = (np.bincount(group, places) / np.bincount(group))[group]
    return result


def wins_ties_losses(difference: ArrayLike) -> tuple[int, int, int]:
    """How many differences are above 0.002, within it, below it.

    >>> wins_ties_losses([0.01, 0.001, -0.001, -0.3])
    (1, 2, 1)
    """
    d = np.asarray(difference)
    return int((d > TIE).sum()), int((np.abs(d) <= TIE).sum()), int((d < -TIE).sum())


def mean_and_error(values: Any) -> tuple[float, float]:
    """Mean and its standard error; the error of a single value is NaN."""
    values = np.asarray(values, dtype=np.float64)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return float(values.mean()), float(error)


def frame_of(units: Sequence[Unit]) -> pd.DataFrame:
    """Finished units as rows, with `score`."""
    frame = pd.DataFrame([{**unit, "score": unit[metric_of(unit)]} for unit in units if unit["status"] == "done"])
    for name in ("auc", "r2", "log_loss", "leaves_share"):
        if name not in frame:
            frame[name] = np.nan
    return frame


def common(frame: pd.DataFrame) -> pd.DataFrame:
    """The units of those tables and splits that all learners of the frame have done."""
    counts = frame.groupby(["table", "split"])["learner"].transform("nunique")
    found = frame[counts == frame["learner"].nunique()]
    if found.empty:
        raise SystemExit("No split has been done by all learners yet; choose fewer with --learners.")
    return found


def scores_of(frame: pd.DataFrame, learners: Sequence[str]) -> pd.DataFrame:
    """Mean scores over splits [tables, learners]."""
    return frame.groupby(["table", "learner"])["score"].mean().unstack()[list(learners)]


def groups(frame: pd.DataFrame) -> Iterator[tuple[str, pd.Index]]:
    """Titles and tables: all, by size, by task, and by where they come from."""
    facts = frame.drop_duplicates("table").set_index("table")
    yield "all tables", facts.index
    for name, low, high in SIZE_CLASSES:
        yield _TITLES[name], facts.index[(facts["rows"] >= low) & (facts["rows"] < high)]
    for task in TASKS:
        yield task, facts.index[facts["task"] == task]
    yield "the paper's 23 sets", facts.index[facts["source"] == "pmlb"]
    yield "other tables", facts.index[facts["source"] != "pmlb"]


# Report -------------------------------------------------------------------------------------------------------------


def report(units: Sequence[Unit], options: argparse.Namespace) -> str:
    """Tables of all groups, and what failed or is missing."""
    everything = frame_of(units)
    frame = common(everything)
    present = [name for name in LEARNERS if name in set(frame["learner"])]
    rivals = [name for name in RIVALS if name in present]
    contests = {name: scores_of(frame, [name, *rivals]) for name in SOFTWOOD if name in present}
    text = [__doc__.split("\n\n")[1].replace("\n", " ")] if __doc__ else []
    for title, tables in groups(frame):
        if len(tables):
            part = frame[frame["table"].isin(tables)]
            text.append(_render(f"{title} ({len(tables)})", _group_table(part, contests, present), options.markdown))
    if options.by_table:
        shown = scores_of(frame, present).join(frame.drop_duplicates("table").set_index("table")[["task", "rows"]])
        text.append(_render("scores", shown.sort_values("rows").round(4).reset_index(), options.markdown))
    return "\n\n".join([*text, *_notes(units, everything, frame)])


NAMES = {
    "softwood": "**softwood**",
    "softwood_single": "softwood, one member",
    "catboost": "CatBoost",
    "lightgbm": "LightGBM",
    "random_forest": "random forest",
    "xgboost": "XGBoost",
}


def digest(units: Sequence[Unit]) -> str:
    """A short Markdown table: mean rank by size of the tables, and how often softwood's default won, tied and lost."""
    frame = common(frame_of(units))
    rivals = [name for name in RIVALS if name in set(frame["learner"])]
    contests = {name: scores_of(frame, [name, *rivals]) for name in SOFTWOOD if name in set(frame["learner"])}
    shown = ("all tables", *_TITLES.values())
    chosen = [(title, tables) for title, tables in groups(frame) if title in shown and len(tables)]
    header = ["", *(f"{title} ({len(tables)})" for title, tables in chosen), "softwood won/tied/lost"]
    rows: dict[str, list[str]] = {name: [] for name in ("softwood", "softwood_single", *rivals)}
    for _, tables in chosen:
        ranked: dict[str, float] = {}
        for ours in ("softwood_single", "softwood"):  # rivals' ranks are those beside the default
            scores = contests[ours][contests[ours].index.isin(tables)]
            means = np.mean([ranks(row) for row in scores.to_numpy()], axis=0)
            ranked |= dict(zip(scores.columns, means, strict=True))
        for name, cells in rows.items():
            cells.append(f"{ranked[name]:.2f}")
    scores = contests["softwood"]
    for name, cells in rows.items():
        cells.append("/".join(map(str, wins_ties_losses(scores["softwood"] - scores[name]))) if name in rivals else "")
    overall = sorted(rows, key=lambda name: float(rows[name][0]))
    lines = [header, ["---"] * len(header), *([NAMES[name], *rows[name]] for name in overall)]
    n_splits = frame.groupby("table")["split"].nunique()
    splits = f"{n_splits.min()} to {n_splits.max()}" if n_splits.nunique() > 1 else f"{n_splits.max()}"
    splits = "one split" if splits == "1" else f"{splits} splits"
    note = (
        f"Mean ranks of five learners (1 is best) on {len(n_splits)} tables, with {splits} into training and test rows."
    )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{note}\n"


def _group_table(part: pd.DataFrame, contests: dict[str, pd.DataFrame], present: Sequence[str]) -> pd.DataFrame:
    """One row per learner of one group of tables."""
    columns: dict[str, dict[str, Any]] = {}
    for ours, scores in contests.items():
        scores = scores[scores.index.isin(part["table"])]
        title = "rank" if ours == "softwood" else "rank, one member"
        if len(scores):
            ranked = np.mean([ranks(row) for row in scores.to_numpy()], axis=0)
            columns[title] = {name: f"{rank:.2f}" for name, rank in zip(scores.columns, ranked, strict=True)}
            columns[f"{ours} won/tied/lost"] = {
                name: "/".join(map(str, wins_ties_losses(scores[ours] - scores[name]))) for name in scores.columns[1:]
            }
    by_learner = {name: part[part["learner"] == name] for name in present}
    summaries: dict[str, Callable[[pd.DataFrame], Any]] = {
        "AUC": lambda u: _mean(u, "auc", "{:.4f}"),
        "log-loss": lambda u: _mean(u, "log_loss", "{:.4f}"),
        "R²": lambda u: _mean(u, "r2", "{:.3f}"),
        "fit s, total": lambda u: f"{u.groupby('table')['fit_seconds'].mean().sum():.1f}",
        "median": lambda u: f"{u.groupby('table')['fit_seconds'].mean().median():.2f}",
        "CPU s, total": lambda u: _total(u, "fit_cpu_seconds"),
        "leaves": lambda u: _mean(u, "leaves_share", "{:.0%}"),
        "KB, median": lambda u: f"{u['file_bytes'].median() / 1000:.0f}",
        "µs/row, median": lambda u: f"{u['predict_seconds_per_row'].median() * 1e6:.1f}",
    }
    for title, summary in summaries.items():
        columns[title] = {name: summary(u) for name, u in by_learner.items() if len(u)}
    return pd.DataFrame(columns).reindex(present).fillna("").rename_axis("learner").reset_index()


def _total(units: pd.DataFrame, field: str) -> str:
    """Sum over tables of means over splits; nothing unless every table has the field."""
    values = units.groupby("table")[field].mean() if field in units else pd.Series([np.nan])
    return "" if values.isna().any() else f"{values.sum():.1f}"


def _mean(units: pd.DataFrame, field: str, style: str) -> str:
    """Mean over tables of means over splits; nothing where no table has the field."""
    value = units.groupby("table")[field].mean().mean()
    return "" if np.isnan(value) else style.format(value)


def _notes(units: Sequence[Unit], everything: pd.DataFrame, frame: pd.DataFrame) -> list[str]:
    """What a reader must know before quoting: what failed, what is incomplete, whose times are noisy."""
    notes = [
        f"Failed: {u['table']}, split {u['split']}, {u['learner']}: {u['error'].splitlines()[0][:200]}"
        for u in units
        if u["status"] == "failed"
    ]
    counts = ", ".join(f"{name} {n}" for name, n in everything.groupby("learner").size().items())
    splits = frame[["table", "split"]].drop_duplicates()
    notes.append(f"Counted: {len(splits)} splits of {splits['table'].nunique()} tables. Finished units: {counts}.")
    conditions = frame.groupby(["threads", "noisy"]).size()
    if len(conditions) > 1 or any(noisy for _, noisy in conditions.index):
        listed = ", ".join(f"{n} with {t} threads{', noisy' if noisy else ''}" for (t, noisy), n in conditions.items())
        notes.append(f"Seconds are not comparable, CPU seconds are: units were measured {listed}.")
    return notes


def _render(title: str, table: pd.DataFrame, markdown: bool) -> str:
    """A table with its title, in Markdown or in aligned columns."""
    cells = [[str(name) for name in table.columns], *([str(cell) for cell in row] for row in table.to_numpy())]
    if markdown:
        lines = ["| " + " | ".join(row) + " |" for row in cells]
        return "\n".join([f"**{title}**", "", lines[0], "|---" * len(table.columns) + "|", *lines[1:]])
    widths = [max(len(row[j]) for row in cells) for j in range(len(table.columns))]
    lines = ["  ".join(c.ljust(w) if j == 0 else c.rjust(w) for j, (c, w) in enumerate(zip(row, widths, strict=True)))
             for row in cells]  # fmt: skip
    return "\n".join([title.upper(), *lines])


# Comparison ---------------------------------------------------------------------------------------------------------


def compare(a: Sequence[Unit], b: Sequence[Unit], names: Sequence[str], options: argparse.Namespace) -> str:
    """Differences of B from A on the splits that both have done, with standard errors over tables."""
    text = [f"{names[1]} minus {names[0]}: means over tables ± standard error; score is AUC or R²."]
    for learner in LEARNERS:
        pair = paired(a, b, learner)
        if pair.empty:
            continue
        rows = [
            {"group": title, **_difference_row(pair[pair.index.isin(tables)])}
            for title, tables in groups(pair.reset_index())
            if pair.index.isin(tables).any()
        ]
        text.append(_render(learner, pd.DataFrame(rows).fillna(""), options.markdown))
        if options.by_table:
            shown = pair[["task", "rows", "score_a", "score_b"]].assign(difference=pair["score_b"] - pair["score_a"])
            shown = shown.sort_values("difference").round(4).reset_index()
            text.append(_render(f"{learner}, by table", shown, options.markdown))
    if len(text) == 1:
        raise SystemExit(f"{names[0]} and {names[1]} must share finished units of a learner; they share none.")
    return "\n\n".join(text)


def paired(a: Sequence[Unit], b: Sequence[Unit], learner: str) -> pd.DataFrame:
    """Means over common splits of one learner, one row per table: fields with the suffixes _a and _b."""
    facts, fields = ["source", "task", "rows"], ["score", "log_loss", "fit_seconds", "leaves_share", "file_bytes"]
    frames = [frame_of([unit for unit in units if unit["learner"] == learner]) for units in (a, b)]
    if any(frame.empty or "table" not in frame for frame in frames):
        return pd.DataFrame()
    left, right = (frame.set_index(["table", "split"])[[*facts, *fields]] for frame in frames)
    joined = left.merge(right[fields], left_index=True, right_index=True, suffixes=("_a", "_b"))
    by_table = joined.groupby("table")
    return by_table[facts].first().join(by_table[[f"{f}{side}" for f in fields for side in ("_a", "_b")]].mean())


def _difference_row(pair: pd.DataFrame) -> dict[str, Any]:
    difference = pair["score_b"] - pair["score_a"]
    row = {
        "tables": len(pair),
        "score": "{:+.4f} ± {:.4f}".format(*mean_and_error(difference)),
        "median": f"{difference.median():+.4f}",
        "better/same/worse": "/".join(map(str, wins_ties_losses(difference))),
    }
    if (loss := (pair["log_loss_b"] - pair["log_loss_a"]).dropna()).size:
        row["log-loss"] = "{:+.4f} ± {:.4f}".format(*mean_and_error(loss))
    row["fit time, ratio"] = f"{np.exp(np.log(pair['fit_seconds_b'] / pair['fit_seconds_a']).mean()):.2f}"
    row["total"] = f"{pair['fit_seconds_b'].sum() / pair['fit_seconds_a'].sum():.2f}"
    if pair["leaves_share_a"].notna().any():
        row["leaves"] = f"{pair['leaves_share_a'].mean():.0%} to {pair['leaves_share_b'].mean():.0%}"
    row["file, ratio"] = f"{np.exp(np.log(pair['file_bytes_b'] / pair['file_bytes_a']).mean()):.2f}"
    return row


# Picture ------------------------------------------------------------------------------------------------------------


def draw(units: Sequence[Unit], path: Path, window: int = 15) -> None:
    """Rank against rows: means over `window` tables that are neighbours in size, and softwood's own ranks as dots."""
    import matplotlib.pyplot as plt

    frame = frame_of(units)
    frame = common(frame[frame["learner"] != "softwood_single"])
    names = [name for name in ("softwood", *RIVALS) if name in set(frame["learner"])]
    scores = scores_of(frame, names)
    rows = frame.drop_duplicates("table").set_index("table")["rows"].loc[scores.index].sort_values(kind="stable")
    ranked = np.array([ranks(scores.loc[table]) for table in rows.index])
    window = min(window, len(rows))
    kernel = np.ones(window) / window
    center = np.exp(np.convolve(np.log(rows.to_numpy()), kernel, mode="valid"))
    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for j, name in enumerate(names):
        mean_rank = np.convolve(ranked[:, j], kernel, mode="valid")
        axes.plot(center, mean_rank, label=NAMES[name].strip("*"), linewidth=2.2 if name == "softwood" else 1.2)
    if "softwood" in names:
        axes.plot(rows, ranked[:, names.index("softwood")], "o", color="C0", alpha=0.35, markersize=4)
    axes.set(xscale="log", xlabel="rows of the table", ylabel=f"mean rank of {len(names)} (1 is best)")
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=8, ncols=len(names), loc="upper center", bbox_to_anchor=(0.5, 1.14))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
