"""Write the tables and numbers of README.md and of pages of docs/ from declarations and from results kept as JSON.

Usage: python docs/write_tables.py. Each place is marked by a comment that names what stands there; tests compare.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softwood.cli.hyperparameters import option_names
from softwood.training.declaration import Declaration, declarations
from softwood.training.hyperparameters import Hyperparameters, all_declarations

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
PERFORMANCE = ("torch steps", "trainer steps", "depth", "predictions", "one row", "learners", "fits")
PAGES = {
    ROOT / "README.md": ("results", "suite"),
    ROOT / "docs" / "hyperparameters.md": ("hyperparameters", "suite"),
    ROOT / "docs" / "performance.md": PERFORMANCE,
    ROOT / "docs" / "scaling.md": ("files", "flights", "shards", "steps", "workers"),
    ROOT / "docs" / "guide-export.md": ("compact",),
}


def table() -> str:
    """The table of all hyperparameters."""
    shared = declarations(Hyperparameters)
    rows = ["| name | values | default | what | `softwood train` |", "|---|---|---|---|---|"]
    for name, declaration in all_declarations().items():
        only = "" if name in shared else " Classifier only."
        cells = [f"`{name}`", declaration.notation, declaration.default_notation, f"{declaration.help}{only}"]
        rows.append(f"| {' | '.join([*cells, _options(declaration)])} |")
    return "\n".join(rows) + "\n"


def ranks() -> str:
    """The table of ranks among learners."""
    report, units = _suite()
    return str(report.digest(units))


def results() -> str:
    """The main results in a sentence each."""
    sentences = (_quality(), _conditional(), _cost_of_depth(), _time_of_training())
    return "".join(f"- {sentence}\n" for sentence in sentences)


def _quality() -> str:
    report, units = _suite()
    frame = report.common(report.frame_of(units))
    rivals = [name for name in report.RIVALS if name in set(frame["learner"])]
    scores = report.scores_of(frame, ["softwood", *rivals])
    mean_ranks = sum(report.ranks(row) for row in scores.to_numpy()) / len(scores)
    ours, best = mean_ranks[0], min(zip(mean_ranks[1:], rivals, strict=True))
    won, tied, lost = report.wins_ties_losses(scores["softwood"] - scores["xgboost"])
    return (
        f"**Accurate without tuning.** Mean rank {ours:.2f} among five learners on {len(scores)} tables, each learner "
        f"at its defaults; the next best is {report.NAMES[best[1]]} at {best[0]:.2f}. Against XGBoost: {won} wins, "
        f"{tied} ties, {lost} losses. softwood's defaults were chosen on these tables "
        "([Results](#results), `python benchmarks/suite.py`)."
    )


def _conditional() -> str:
    report, units = _suite()
    frame = report.frame_of(units)
    long = frame[(frame["rows"] > 10_000) & (frame["learner"] == "softwood")]
    return (
        f"**Conditional by default.** On the {long['table'].nunique()} tables above 10,000 rows, a row reaches "
        f"{long['leaves_share'].mean():.0%} of the leaves of the default's trees on average: bands are narrowed after "
        "training ([how](docs/hyperparameters.md#the-recipe))."
    )


def _cost_of_depth() -> str:
    rows = json.loads((BENCHMARKS / "depth_scaling.json").read_text())["results"]
    one = {row["depth"]: row["forward_us"] for row in rows if row["leaves"] == 1}
    every = {row["depth"]: row["forward_us"] for row in rows if row["leaves"] is None}
    low, high, dense = min(one), max(one), max(every)
    return (
        "**Deep trees are cheap.** A row skips the branches that it cannot reach. "
        f"A tree of depth {high} has {2 ** (high - low):,} times the leaves of a tree of depth {low}, yet a row that "
        f"ends in one leaf takes only {one[high] / one[low]:.1f} times as long. In ordinary soft trees, where a row "
        f"visits every leaf, going from depth {low} to {dense} takes {every[dense] / every[low]:.0f} times as long "
        "([Performance](docs/performance.md#the-cost-of-depth), `python benchmarks/depth_scaling.py`)."
    )


def _time_of_training() -> str:
    units = json.loads((ROOT / "paper" / "results" / "figure_depth.json").read_text())["units"]
    seconds: dict[tuple[str, str], list[float]] = {}
    for name, unit in units.items():
        table, depth, kind, _ = name.split("/")
        if depth == "depth 10":
            seconds.setdefault((table, kind), []).append(unit["result"]["seconds"])
    tables = sorted({table for table, _ in seconds})
    means = {key: sum(values) / len(values) for key, values in seconds.items()}
    ratios = [means[table, "logistic"] / means[table, "smooth_step_adam"] for table in tables]
    return (
        f"**Skipped branches save time in training, too.** On {len(tables)} tables of the paper, trees of depth 10 "
        f"train {min(ratios):.0f} to {max(ratios):.0f} times faster than the same trees with logistic routing, where a "
        "row visits every leaf ([the paper, run again](paper/README.md), `python -m paper.figure_depth`)."
    )


def torch_steps() -> str:
    """Steps of a network in PyTorch, native and dense."""
    lines = []
    for one in _results("torch_step"):
        if "ratio" not in one:
            continue
        rival, ours = one["median_us"].items()
        words = one["state"] if rival[0] == "dense" else "trained, sparse gradients against dense ones"
        lines.append([words, one["n"], one["depth"], _short(one["reachable_leaves"]), ours[1], rival[1], one["ratio"]])
    heads = ["state", "rows", "depth", "leaves reached", "softwood, µs", "dense, µs", "times faster"]
    return _markdown(heads, lines)


def trainer_steps() -> str:
    """Steps of the native trainer and of PyTorch."""
    lines = [
        [
            one["state"],
            one["n"],
            one["depth"],
            _short(one["mean_reachable_leaves"]),
            one["native_us"],
            one["rival_us"],
            one["rival"],
            one["times_faster"],
        ]
        for one in _results("training_step")
    ]
    heads = ["state", "rows", "depth", "leaves reached", "softwood, µs", "rival, µs", "rival", "times faster"]
    return _markdown(heads, lines)


def depths() -> str:
    """Time of a row by depth and leaves reached."""
    found = {(row["depth"], row["leaves"]): row["forward_us"] for row in _results("depth_scaling")}
    kinds = sorted({leaves for _, leaves in found if leaves is not None})
    lines = []
    for depth in sorted({depth for depth, _ in found}):
        times = [found.get((depth, leaves)) for leaves in (*kinds, None)]
        lines.append([depth, 2**depth, *("" if time is None else 1000 * time for time in times)])
    return _markdown(["depth", "leaves", *(f"reaches {leaves}" for leaves in kinds), "reaches all"], lines)


def predictions() -> str:
    """Times of predictions."""
    lines = [
        [
            one["state"],
            one["trees"],
            _short(one["leaves_reached"]),
            _short(1e6 * one["row"][1]),
            _short(1e6 * one["c_row"][1]),
            1e9 * one["bulk"][1],
        ]
        for one in _results("predict_bars")
    ]
    heads = ["state", "trees", "leaves reached of 64", "one row, µs", "one row in C, µs", "many rows, ns per row"]
    return _markdown(heads, lines)


def one_row() -> str:
    """A sentence on single rows through the estimators."""
    found = {one["row"]: one for one in _results("one_row")}
    array, frame, tumours = (found[row] for row in ("NumPy, 30 columns", "pandas, 30 columns", "NumPy, breast cancer"))
    ours, theirs = ([_short(one["median_us"][name]) for one in (array, frame)] for name in ("softwood", "lightgbm"))
    cold = {name: _short(time) for name, time in tumours["cold_us"].items()}
    return (
        f"Through the estimator, a default model of six members, one row of 30 columns takes {ours[0]} µs as a NumPy "
        f"array (LightGBM: {theirs[0]} µs) and {ours[1]} µs as a pandas frame ({theirs[1]} µs). A row of "
        f"scikit-learn's breast cancer table takes {_short(tumours['median_us']['softwood'])} µs, with a model of "
        f"{tumours['stored_numbers']:,} numbers; {cold['softwood']} µs if other work has emptied the caches of the CPU "
        f"before the call (LightGBM: {cold['lightgbm']} µs). Command: `python benchmarks/one_row.py`.\n"
    )


def compact() -> str:
    """A sentence on what `compress` gains and costs."""
    found = json.loads((BENCHMARKS / "compact.json").read_text())["verdicts"]
    fewer = found["times fewer parameters than the default (median, least)"][0]
    smaller = found["compressed file below XGBoost's"]
    return (
        f"On {found['sets']} tables of the paper, a compressed default model stores {fewer:.0f} times fewer numbers "
        f"(median over tables) and loses {found['mean AUC lost by compressing']:.4f} AUC on average. Its file is "
        f"smaller than XGBoost's on {smaller} of them (`python benchmarks/compact.py`).\n"
    )


def learners() -> str:
    """Ranks and costs of the learners of the suite."""
    report, units = _suite()
    frame = report.common(report.frame_of(units))
    rivals = [name for name in report.RIVALS if name in set(frame["learner"])]
    lines = []
    for name in ("softwood", "softwood_single", *rivals):
        ours = name if name in report.SOFTWOOD else "softwood"
        contest = [ours, *rivals]
        scores = report.scores_of(frame, contest)
        ranks = sum(report.ranks(row) for row in scores.to_numpy()) / len(scores)
        own = frame[frame["learner"] == name]
        lines.append(
            [
                report.NAMES[name],
                f"{ranks[contest.index(name)]:.2f}",
                _short(own["fit_cpu_seconds"].median()),
                _short(1e6 * own["predict_seconds_per_row"].median()),
                own["file_bytes"].median() / 1000,
            ]
        )
    heads = ["learner", "mean rank of 5", "fit, s of CPU", "prediction, µs per row", "file, kB"]
    return _markdown(heads, lines) + f"\n{frame['table'].nunique()} tables; ties share a rank. {_long_fits(frame)}\n"


def _long_fits(frame: Any) -> str:
    """A sentence on fit times of long tables beside boosting."""
    shown = ["softwood", "softwood_single", "xgboost", "lightgbm"]
    long = frame[(frame["rows"] > 10_000) & frame["learner"].isin(shown)]
    seconds = long.pivot_table(index="table", columns="learner", values="fit_cpu_seconds").dropna()
    faster = {
        (ours, rival): f"{(seconds[ours] / seconds[rival]).median():.2g} times"
        for ours in ("softwood", "softwood_single")
        for rival in ("xgboost", "lightgbm")
    }
    return (
        f"On the {len(seconds)} tables above 10,000 rows, XGBoost fits {faster['softwood', 'xgboost']} and LightGBM "
        f"{faster['softwood', 'lightgbm']} faster than softwood, and {faster['softwood_single', 'xgboost']} and "
        f"{faster['softwood_single', 'lightgbm']} faster than one member (CPU time, medians over tables)."
    )


def fits() -> str:
    """Shares of the parts of one member's fit."""
    found = json.loads((BENCHMARKS / "fit_profile.json").read_text())["fits"]
    parts = list(found[0]["parts"])
    lines = [
        [
            one["rows"],
            one["epochs"],
            _short(one["cpu_seconds"]),
            *(f"{one['parts'][part] / one['cpu_seconds']:.0%}" for part in parts),
            _short(one["epoch_us_per_row"]),
        ]
        for one in found
    ]
    return _markdown(["rows", "epochs", "fit, s of CPU", *parts, "an epoch, µs per row"], lines)


def files() -> str:
    """Files larger than memory: one epoch, beside a table in memory and rounds of boosting."""
    found = json.loads((BENCHMARKS / "scale.json").read_text())["files"]
    names = {
        "softwood": "softwood, files",
        "softwood_in_memory": "softwood, in memory",
        "xgboost": "XGBoost, external memory",
        "lightgbm": "LightGBM, sequences",
    }
    lines = []
    for case, one in found["cases"].items():
        rate = one.get("epoch_rows_per_cpu_second", one.get("round_rows_per_cpu_second"))
        before = one.get("passes_cpu_seconds", one.get("load_cpu_seconds", ""))
        loss = f"{one['log_loss']:.4f}" if "log_loss" in one else ""
        memory = "" if case == "softwood_in_memory" else one["beyond_imports_mb"]  # which holds the table before
        lines.append([names[case], one["rows"], before, rate, memory, loss])
    heads = ["", "rows", "preparation, s", "rows per s", "memory, MB", "log loss"]
    best = found["cases"]["softwood"]["best_log_loss"]
    return _markdown(heads, lines) + (
        f"\n{found['columns']} columns of float32, one thread. softwood trains one member of 64 trees for one epoch; "
        "the others train 3 trees of depth 6 or 64 leaves, and their rate is the mean over these. Preparation is all "
        "that comes before the first epoch or tree. Times are CPU times; memory excludes the imports. The best "
        f"possible log loss is {best:.4f}. Command: `python benchmarks/scale.py --part files`.\n"
    )


def shards() -> str:
    """One member, local and over shards."""
    found = json.loads((BENCHMARKS / "scale.json").read_text())["dask"]["cases"]["quality"]
    lines = [
        [
            name.replace("made", "synthetic"),
            f"{one['local']:.4f}",
            f"{one['shards']:.4f}",
            f"{one['summed_gradients_over_bytes']:.0f} times",
        ]
        for name, one in found.items()
    ]
    heads = ["", "AUC of a local fit", "AUC over shards", "bytes of summed gradients"]
    best = next(one["best_possible"] for one in found.values() if "best_possible" in one)
    return _markdown(heads, lines) + (
        "\nOne member with default settings; a quarter of the rows is for the test. The last column is what summing "
        "gradients in every step would send, divided by what the rounds sent. The best possible AUC on the synthetic "
        f"table is {best:.4f}. The batch size and learning rate of shards were chosen on connect-4 and fars. "
        "Command: `python benchmarks/scale.py --part dask --cases quality`.\n"
    )


def steps() -> str:
    """Loss against the steps between two averages."""
    found = json.loads((BENCHMARKS / "scale.json").read_text())["dask"]["cases"]["steps"]
    lines = [
        [str(one["steps per round"]), f"{one['loss']:.4f}", f"{one['summed gradients over bytes']:.1f} times"]
        for one in found["runs"]
    ]
    return _markdown(["steps per round", "held-out loss", "bytes of summed gradients"], lines) + (
        f"\nOne member, 10 epochs over 4 shards of {found['rows'] // 4:,} rows each; the best possible loss on all "
        f"rows is {found['best possible loss']:.4f}. "
        "Command: `python benchmarks/scale.py --part dask --cases steps`.\n"
    )


def flights() -> str:
    """A real table in files, beside LightGBM."""
    found = json.loads((BENCHMARKS / "scale.json").read_text())["flights"]
    names = {"softwood": "softwood, files", "lightgbm": "LightGBM, in memory"}
    lines = []
    for case, one in found["cases"].items():
        for after, test in one["test"].items():
            is_whole = after == list(one["test"])[-1]
            costs = [one["fit_cpu_seconds"], one["beyond_imports_mb"]] if is_whole else ["", ""]
            lines.append([f"{names[case]}, {after}", *costs, f"{test['log_loss']:.4f}", f"{test['auc']:.4f}"])
    return _markdown(["", "fit, s of CPU", "memory, MB", "log loss", "AUC"], lines) + (
        f"\n{found['rows']:,} flights in {found['columns']} columns for training ({found['late']:.1%} late), and the "
        f"{found['test_rows']:,} that departed after them for the test ({found['late_in_test']:.1%} late). One thread, "
        "one member. Command: `python benchmarks/scale.py --part flights`.\n"
    )


def workers() -> str:
    """Speed on one and two workers, the kill of a worker, and the model of larger clusters."""
    cases = json.loads((BENCHMARKS / "scale.json").read_text())["dask"]["cases"]
    speed, bits, model = cases["speed"], cases["bits"], cases["model"]
    load = statistics.median(run["load_average"] for run in speed["runs"])
    shares = model["share_of_time_in_steps"]
    heads = ["share of the time in steps, workers", *next(iter(shares.values()))]
    lines = [[network, *(f"{share:.0%}" for share in by_workers.values())] for network, by_workers in shares.items()]
    return (
        f"**Speed.** Two workers train {speed['two_workers_over_one']:.2f} times as many rows per second as one. The "
        f"limit of the machine in these runs, two independent processes, is {speed['two_processes_over_one']:.2f} "
        f"times (medians of {len(speed['runs'])} interleaved runs on two cores shared with other programs, load "
        f"average {load:.0f}).\n\n"
        f"**Recovery.** Killing a worker costs {statistics.median(bits['seconds of recovery']):.1f} s, including the "
        f"work it had done; an epoch takes {bits['seconds of an epoch']:.1f} s (median of "
        f"{len(bits['seconds of recovery'])} kills, load average {bits['load average']:.0f}).\n\n"
        "**Larger clusters** were not measured, only modelled. With one shard per worker, a round of W workers "
        "takes\n\n"
        "    work + levels * (2 * latency + 8 * (state / bandwidth + pooling))\n"
        "         + ceil(log2(W)) * (latency + state / bandwidth)\n\n"
        "with levels = ceil(log8(W)): results are averaged up a tree in groups of 8, and the common state is passed "
        f"on from worker to worker. Measured: work {model['work']:.2f} s, state {model['state'] / 1e6:.1f} MB, pooling "
        f"{1000 * model['pooling']:.1f} ms per result; assumed: latency {1000 * model['latency']:.0f} ms.\n\n"
    ) + _markdown(heads, lines)


def _results(name: str) -> Any:
    """Results of a benchmark, from the file beside its script."""
    return json.loads((BENCHMARKS / f"{name}.json").read_text())["results"]


def _short(value: float) -> str:
    """Two digits that count."""
    return f"{value:.2g}" if value < 100 else f"{value:,.0f}"


def _markdown(heads: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    rows = [heads, ["---"] * len(heads)]
    rows += [[f"{cell:,}" if isinstance(cell, int) else _cell(cell) for cell in line] for line in lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(cell: float | str) -> str:
    return cell if isinstance(cell, str) else f"{cell:,.0f}" if abs(cell) >= 10 else f"{cell:.2g}"


def _suite() -> tuple[Any, Any]:
    """The module that reports on the suite, and the suite's units."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import suite_report
        import suite_units
    finally:
        sys.path.remove(str(BENCHMARKS))
    return suite_report, suite_units.read_summary(BENCHMARKS / "suite.json")


MAKERS = {
    "hyperparameters": table,
    "suite": ranks,
    "results": results,
    "torch steps": torch_steps,
    "trainer steps": trainer_steps,
    "depth": depths,
    "predictions": predictions,
    "one row": one_row,
    "compact": compact,
    "learners": learners,
    "fits": fits,
    "files": files,
    "flights": flights,
    "shards": shards,
    "steps": steps,
    "workers": workers,
}


def with_tables(page: str, names: Sequence[str]) -> str:
    """The page with its tables as they should be."""
    for name in names:
        block = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- end -->)", re.DOTALL)
        text = MAKERS[name]()
        page, n_tables = block.subn(lambda found, text=text: found[1] + text + found[2], page)  # type: ignore[misc]
        assert n_tables == 1, f"the page must have one place for the table of {name}, between two comments"
    return page


def _options(declaration: Declaration) -> str:
    if not declaration.on_command_line:
        return ""
    return ", ".join(f"`{name}`" for name in option_names(declaration.name))


if __name__ == "__main__":
    for path, names in PAGES.items():
        path.write_text(with_tables(path.read_text(), names))
