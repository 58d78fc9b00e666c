"""The suite of tables: finished units survive, failures are kept, ranks and differences are what they should be."""

from __future__ import annotations

import argparse
import contextlib
import doctest
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import learners
import suite
import suite_report
import suite_tables
from suite_units import read_units, restore_rivals, write_summary

pytest.importorskip("matplotlib")
pytest.importorskip("pyarrow")
ROOT = Path(__file__).parents[1]
QUICK = ("--learners", "softwood_single", "random_forest", "--threads", "1", "--splits", "2")


def made_up(rng: np.random.Generator, n_rows: int) -> pd.DataFrame:
    """Numbers and words, some of them missing, under a name that XGBoost and LightGBM would refuse."""
    words = pd.Series(rng.choice(["red", "green", "blue"], n_rows))
    words[rng.random(n_rows) < 0.1] = None
    words[0] = "seen only once"
    return pd.DataFrame({"[a<b]": rng.normal(size=n_rows), "word": words, "code": rng.integers(0, 9, n_rows)})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three tables, one per task; a class of `words` has a single row."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    (folder / "tables").mkdir()
    (folder / "pmlb" / "flips").mkdir(parents=True)
    flips = pd.DataFrame(rng.normal(size=(100, 3)), columns=list("abc"))
    flips.assign(target=1 + (flips["a"] > 0)).to_csv(folder / "pmlb" / "flips" / "flips.tsv.gz", sep="\t", index=False)
    words = made_up(rng, 150)
    target = words["word"].fillna("none").where(words["[a<b]"] > -1, "low")
    target[:1] = "rare"
    words.assign(target=target).to_parquet(folder / "tables" / "words.parquet")
    numbers = made_up(rng, 130)
    numbers.assign(target=numbers["[a<b]"] + 0.1 * numbers["code"]).to_parquet(folder / "tables" / "numbers.parquet")
    return folder


def run(data: Path, units: Path, *arguments: str) -> str:
    """Output of a call, in this process: that saves the time of loading libraries."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        suite.main(["--data", str(data), "--units", str(units), *arguments])
    return output.getvalue()


@pytest.fixture(scope="module")
def units(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The units of a run with two recipes."""
    folder = tmp_path_factory.mktemp("units")
    command = [sys.executable, "benchmarks/suite.py", "--data", str(data), "--units", str(folder), *QUICK]
    command += ["--tag", "quick", "--parameters", "max_epochs=2, n_trees=4", "--jobs", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "0 of 12 units are on disk" in done.stdout
    assert "[12/12]" in done.stdout
    output = run(data, folder, *QUICK, "--tag", "longer", "--parameters", "max_epochs=9, n_trees=4")
    assert "6 of 12 units are on disk" in output  # recipes share their rivals
    return folder


def scores(folder: Path, tag: str, learner: str) -> dict[tuple[str, int], float]:
    found = [unit for unit in read_units(folder, tag) if unit["learner"] == learner]
    return {(u["table"], u["split"]): u["r2"] if u["task"] == "regression" else u["auc"] for u in found}


def test_units_hold_metrics_times_and_sizes(units: Path) -> None:
    found = {(u["table"], u["learner"]): u for u in read_units(units, "quick", "rivals") if u["split"] == 1}
    assert {u["status"] for u in found.values()} == {"done"}
    assert {u["task"] for u in found.values()} == {"binary", "multiclass", "regression"}
    for (table, learner), unit in found.items():
        metrics = {"r2", "rmse"} if table == "numbers" else {"auc", "log_loss", "accuracy"}
        assert metrics | {"fit_seconds", "predict_seconds_per_row", "file_bytes"} <= unit.keys()
        if learner == "softwood_single":
            assert 1 / 16 <= unit["leaves_share"] <= 1
            assert unit["epochs"] == [2]
            assert unit["best_epochs"][0] in (1, 2)
    assert scores(units, "rivals", "random_forest")["flips", 0] > 0.95


def test_run_goes_on_where_it_was_stopped(data: Path, units: Path, tmp_path: Path) -> None:
    path = units / "quick" / "words" / "softwood_single-1.json"
    kept = {p: p.stat().st_mtime_ns for p in units.glob("*/*/*.json") if p != path}
    before = json.loads(path.read_text())
    path.unlink()
    log = tmp_path / "log.jsonl"
    options = ("--tag", "quick", "--parameters", "n_trees=4, max_epochs=2", "--log", str(log))
    output = run(data, units, *QUICK, *options)
    assert "11 of 12 units are on disk" in output
    assert json.loads(path.read_text())["auc"] == before["auc"]
    assert {p: p.stat().st_mtime_ns for p in kept} == kept
    (line,) = [json.loads(text) for text in log.read_text().splitlines()]
    assert (line["table"], line["split"], line["metric"], line["value"]) == ("words", 1, "auc", before["auc"])


def test_one_tag_has_one_set_of_parameters(data: Path, units: Path) -> None:
    with pytest.raises(SystemExit, match=r"must have the same --parameters; .* and these are \{'max_epochs': 3\}"):
        run(data, units, *QUICK, "--tag", "quick", "--parameters", "max_epochs=3")


def test_failed_units_are_kept_and_reported(data: Path, units: Path) -> None:
    options = (*QUICK, "--tag", "bad", "--parameters", "n_trees=-1", "--tables", "flips")
    assert "FAILED, ValueError: n_trees must be" in run(data, units, *options)
    again = run(data, units, *options)
    assert "4 of 4 units are on disk" in again
    assert "Failed: flips, split 0, softwood_single: ValueError: n_trees must be" in again
    assert "2 of 4 units are on disk" in run(data, units, *options, "--retry")


def test_task_of_a_process_that_dies_has_failed_and_the_next_one_runs(data: Path) -> None:
    worker = suite.Worker(0, threads=1)
    try:
        path = data / "pmlb" / "flips" / "flips.tsv.gz"
        task = suite.Task(path, "flips", 0, "random_forest", {}, suite_tables.read_table(path).facts())
        worker.process.kill()
        worker.process.join()
        worker.task = task
        assert worker.receive()[1]["error"] == "The process ended with code -9."
        worker.send(task)
        assert worker.receive()[1]["status"] == "done"
    finally:
        worker.stop()


def test_comparison_of_tags_and_of_summary_files(data: Path, units: Path, tmp_path: Path) -> None:
    a, b = (scores(units, tag, "softwood_single") for tag in ("quick", "longer"))
    by_table = [np.mean([b[table, s] - a[table, s] for s in (0, 1)]) for table in ("flips", "numbers", "words")]
    mean, error = np.mean(by_table), np.std(by_table, ddof=1) / np.sqrt(3)
    output = run(data, units, "--compare", "quick", "longer", "--by-table")  # the tags hold no rivals
    (line,) = [line for line in output.splitlines() if line.startswith("all tables")]
    assert f"{mean:+.4f} ± {error:.4f}" in line
    summary = tmp_path / "summary.json"
    run(data, units, "--report", "--tag", "quick", "--summary", str(summary), "--splits", "2")
    again = run(data, units, "--compare", str(summary), "longer", "--by-table")
    assert again.splitlines()[1:] == output.splitlines()[1:]


def test_report_and_picture(data: Path, units: Path, tmp_path: Path) -> None:
    picture = tmp_path / "rank.svg"
    output = run(data, units, "--report", "--tag", "longer", "--markdown", "--picture", str(picture))
    assert "**below 2,000 rows (3)**" in output
    assert "above 10,000 rows" not in output
    assert "Counted: 6 splits of 3 tables. Finished units: random_forest 6, softwood_single 6." in output
    assert picture.read_text().count("<svg") == 1


# Arithmetic on numbers that are easy to check by hand ---------------------------------------------------------------


def unit(table: str, learner: str, score: float, **others: object) -> dict:
    """A unit of a binary table of 100 rows, or of another task if its metric is given."""
    return {
        "table": table, "split": 0, "learner": learner, "tag": "t", "source": "pmlb", "task": "binary", "rows": 100,
        "columns": 3, "classes": 2, "status": "done", "auc": score, "log_loss": 1 - score, "fit_seconds": 2.0,
        "predict_seconds_per_row": 1e-6, "file_bytes": 1000, "threads": 1, "noisy": False, **others,
    }  # fmt: skip


def test_ranks_share_places_only_within_1e_12() -> None:
    assert suite_report.ranks([0.9, 0.9 + 5e-13, 0.8]).tolist() == [1.5, 1.5, 3.0]
    assert suite_report.ranks([0.9, 0.9 + 5e-12, 0.8]).tolist() == [2.0, 1.0, 3.0]
    assert suite_report.ranks([0.5, 0.5, 0.5, 0.7, -3.0]).tolist() == [3.0, 3.0, 3.0, 1.0, 5.0]


def test_ranks_and_wins_of_a_group() -> None:
    units = [
        unit("x", "softwood", 0.90), unit("x", "softwood", 0.80, split=1),  # mean 0.85
        unit("x", "xgboost", 0.84), unit("x", "xgboost", 0.86, split=1),  # mean 0.85: equal
        unit("x", "catboost", 0.70), unit("x", "catboost", 0.71, split=1),
        unit("y", "softwood", 0.600, fit_seconds=5.0), unit("y", "xgboost", 0.590), unit("y", "catboost", 0.601),
        unit("z", "softwood", 0.600), unit("z", "xgboost", 0.590),  # CatBoost is not done: not counted
    ]  # fmt: skip
    frame = suite_report.common(suite_report.frame_of(units))
    names = ["softwood", "xgboost", "catboost"]
    contests = {"softwood": suite_report.scores_of(frame, names)}
    table = suite_report._group_table(frame, contests, names).set_index("learner")
    assert table["rank"].to_dict() == {"softwood": "1.75", "xgboost": "2.25", "catboost": "2.00"}
    assert table["softwood won/tied/lost"].to_dict() == {"softwood": "", "xgboost": "1/1/0", "catboost": "1/1/0"}
    assert table.loc["softwood", "AUC"] == "0.7250"  # (0.85 + 0.6) / 2: tables count alike, not splits
    assert table.loc["softwood", "log-loss"] == "0.2750"
    assert table.loc["softwood", ["fit s, total", "median"]].tolist() == ["7.0", "3.50"]


def test_groups_by_size_end_at_2000_and_10000_rows() -> None:
    rows = {"a": 1_999, "b": 2_000, "c": 10_000, "d": 10_001}
    frame = suite_report.frame_of([unit(name, "xgboost", 0.5, rows=n) for name, n in rows.items()])
    found = {title: sorted(tables) for title, tables in suite_report.groups(frame)}
    assert found["below 2,000 rows"] == ["a"]
    assert found["2,000 to 10,000 rows"] == ["b", "c"]
    assert found["above 10,000 rows"] == ["d"]
    assert found["regression"] == []


def test_standard_errors_are_over_tables() -> None:
    a = [unit("x", "softwood", 0.5), unit("x", "softwood", 0.5, split=1), unit("y", "softwood", 0.5)]
    b = [unit("x", "softwood", 0.6), unit("x", "softwood", 0.8, split=1), unit("y", "softwood", 0.4, fit_seconds=8.0)]
    b.append(unit("only in b", "softwood", 0.9))
    text = suite_report.compare(a, b, ["a", "b"], argparse.Namespace(markdown=True, by_table=False))
    # x gains 0.2, y loses 0.1: mean 0.05, standard deviation 0.15 sqrt(2), standard error 0.15.
    assert "| all tables | 2 | +0.0500 ± 0.1500 | +0.0500 | 1/0/1 | -0.0500 ± 0.1500 | 2.00 | 2.50 | 1.00 |" in text


def test_scores() -> None:
    y = np.array([0, 0, 1, 1])
    probability = np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5], [0.0, 1.0]])
    found = suite_tables.score("binary", y, probability)
    assert found == pytest.approx({"auc": 0.75, "log_loss": -np.log(0.9 * 0.4 * 0.5) / 4, "accuracy": 0.5})
    impossible = suite_tables.score("binary", y, np.array([[0.0, 1.0], [1, 0], [0, 1], [0, 1]]))
    assert impossible["log_loss"] == pytest.approx(15 * np.log(10) / 4)
    three = np.array([[0.5, 0.2, 0.3], [0.3, 0.4, 0.3], [0.3, 0.4, 0.3], [0.3, 0.3, 0.4]])
    # Class 2 does not occur. Class 0 has 3 of 4 pairs in order, class 1 has 2.5 of 4; a tie counts one half.
    assert suite_tables.auc(y, three) == (3 / 4 + 2.5 / 4) / 2
    regression = suite_tables.score("regression", np.array([1.0, 3.0]), np.array([1.0, 2.0]))
    assert regression == pytest.approx({"r2": 0.5, "rmse": 0.5**0.5})
    with pytest.raises(ValueError, match="Predictions must be finite"):
        suite_tables.score("regression", np.zeros(1), np.array([np.nan]))


def test_classes_without_training_rows_count_as_impossible(data: Path) -> None:
    table = suite_tables.read_table(data / "tables" / "words.parquet")
    assert np.bincount(table.y).min() == 1
    rows = suite_tables.split_rows(table, 0)
    assert len(rows.y_train) + len(rows.y_test) == len(table.y)
    y_train = np.where(rows.y_train == 0, 1, rows.y_train)
    without = suite_tables.RowSplit(rows.X_train, y_train, rows.X_test, rows.y_test)
    found = learners.run_learner("random_forest", table, without, threads=1, seed=0)
    share = (rows.y_test == 0).mean()
    assert share > 0
    assert found["log_loss"] > 15 * np.log(10) * share
    assert found["accuracy"] > 0.8 * (1 - share)  # the other classes keep their places


@pytest.mark.parametrize("name", learners.RIVALS)
def test_rivals_get_categories_in_their_own_form(name: str) -> None:
    train = pd.DataFrame({"n": [1, 2, 3], "w": ["b", None, "a"], "f": [True, False, True]})
    test = pd.DataFrame({"n": [4, 5, 6], "w": ["a", "new", None], "f": [True, True, True]})
    X_train, X_test, categories = learners.prepare(name, train, test)
    assert categories == ["x1"]
    assert X_test["x0"].tolist() == [4, 5, 6]
    assert X_train["x2"].tolist() == [1.0, 0.0, 1.0]
    if name == "catboost":
        assert X_test["x1"].tolist() == ["a", "new", "<missing>"]
        return
    if name == "random_forest":
        assert X_train["x1"].dtype == np.float64
    else:
        assert X_train["x1"].dtype == X_test["x1"].dtype == pd.CategoricalDtype([0, 1])
    np.testing.assert_array_equal(X_train["x1"].to_numpy(dtype=np.float64), [1, np.nan, 0])
    np.testing.assert_array_equal(X_test["x1"].to_numpy(dtype=np.float64), [0, np.nan, np.nan])


@pytest.mark.parametrize("name", learners.RIVALS)
def test_rivals_run_on_words_and_missing_cells(name: str, data: Path) -> None:
    pytest.importorskip({"random_forest": "sklearn"}.get(name, name))
    for table_name in ("words", "numbers"):
        table = suite_tables.read_table(data / "tables" / f"{table_name}.parquet")
        parameters = {"n_estimators": 10}
        found = learners.run_learner(name, table, suite_tables.split_rows(table, 0), threads=1, seed=0, **parameters)
        assert found.get("auc", found.get("r2")) > 0.6


def test_summary_keeps_what_reports_need(units: Path, tmp_path: Path) -> None:
    original = read_units(units, "rivals", "longer")
    write_summary(tmp_path / "s.json", original, {"cpu": "made up"})
    options = argparse.Namespace(markdown=False, by_table=True)
    again = read_units(tmp_path, str(tmp_path / "s.json"))
    assert suite_report.report(again, options) == suite_report.report(original, options)
    assert json.loads((tmp_path / "s.json").read_text())["machine"] == {"cpu": "made up"}


def test_rivals_are_restored_from_a_summary(units: Path, tmp_path: Path) -> None:
    write_summary(tmp_path / "s.json", read_units(units, "rivals", "longer"), {})
    n_rivals = len(read_units(units, "rivals"))
    assert restore_rivals(tmp_path / "units", tmp_path / "s.json") == n_rivals
    options = argparse.Namespace(markdown=False, by_table=True)
    again = read_units(tmp_path / "units", "rivals")
    assert suite_report.report(again, options) == suite_report.report(read_units(units, "rivals"), options)
    assert all("versions" in unit and unit["parameters"] == {} for unit in again)
    assert restore_rivals(tmp_path / "units", tmp_path / "s.json") == 0


@pytest.mark.parametrize("module", [suite, suite_report])
def test_examples(module: object) -> None:
    failed, tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("text", ["learning_rate", "1", "a=b=c", "a=b.c"])
def test_bad_parameters_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be like 'learning_rate=0\.001, encoding=piecewise'"):
        suite.parse_parameters(text)


@pytest.mark.parametrize("text", ["0", "3:1", "-1", "x"])
def test_bad_splits_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a number above 0, or FIRST:END like 1:3; got"):
        suite.parse_splits(text)
