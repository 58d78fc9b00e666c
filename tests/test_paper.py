"""The machinery of the paper's runs: finished units survive a kill, searches go on, reports say what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from paper import datasets, published, table_auc
from paper.learners import LEARNERS, tune
from paper.render import render
from paper.runner import Store, Unit, run_units

pytest.importorskip("optuna")
ROOT = Path(__file__).parents[1]
OPTIONS = SimpleNamespace(stop_after=None)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data with two small tables under names of the paper's."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for name, n_classes in (("pima", 2), ("ecoli", 3)):
        x = rng.normal(size=(90, 4))
        frame = pd.DataFrame(x, columns=list("abcd"))
        frame["target"] = np.digitize(x[:, 0] + 0.3 * rng.normal(size=90), np.linspace(-0.5, 0.5, n_classes - 1)) + 1
        path = folder / "pmlb" / name / f"{name}.tsv.gz"
        path.parent.mkdir(parents=True)
        frame.to_csv(path, sep="\t", index=False)
    return folder


def arguments(data: Path, results: Path, rounds: int, *learners: str) -> list[str]:
    common = ["--data", str(data), "--results", str(results), "--threads", "1", "--rounds", str(rounds)]
    return [*common, "--sets", "pima", "ecoli", "--learners", *learners]


def outcome(results: Path) -> dict:
    """What was found, without times."""
    units = Store(results / "table_auc.json").units
    return {key: (unit["result"], unit["saved"]) for key, unit in units.items()}


def test_run_killed_midway_ends_like_one_that_was_not(data: Path, tmp_path: Path) -> None:
    learners = ("cart", "tel")
    table_auc.main(arguments(data, tmp_path / "whole", 4, *learners))
    command = [sys.executable, "-m", "paper.table_auc", *arguments(data, tmp_path / "killed", 4, *learners)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        limit = threading.Timer(120, process.kill)
        limit.start()
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(2)]  # the greeting and the first unit
        process.kill()
        limit.cancel()
    assert seen[1].startswith("pima/split 0/cart: auc")
    before = Store(tmp_path / "killed" / "table_auc.json").units
    assert 1 <= sum("result" in unit for unit in before.values()) < 4
    table_auc.main(arguments(data, tmp_path / "killed", 4, *learners))
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
    after = Store(tmp_path / "killed" / "table_auc.json").units
    assert after["pima/split 0/cart"] == before["pima/split 0/cart"]  # not run again


def test_more_rounds_go_on_from_those_that_are_done(data: Path, tmp_path: Path) -> None:
    for rounds in (2, 5):
        table_auc.main(arguments(data, tmp_path / "grown", rounds, "tel"))
    table_auc.main(arguments(data, tmp_path / "at once", 5, "tel"))
    assert outcome(tmp_path / "grown") == outcome(tmp_path / "at once")
    unit = Store(tmp_path / "grown" / "table_auc.json").units["pima/split 0/tel"]
    assert len(unit["saved"]["trials"]) == unit["budget"]["rounds"] == 5
    table_auc.main(arguments(data, tmp_path / "grown", 2, "tel"))  # asks for less than there is
    assert Store(tmp_path / "grown" / "table_auc.json").units["pima/split 0/tel"] == unit


def test_search_does_not_repeat_saved_rounds(data: Path) -> None:
    split, learner = datasets.split_table(data, "pima", 0), LEARNERS["cart"]
    known = [{"params": {"max_depth": 7}, "auc": 2.0}, {"params": {"max_depth": 9}, "auc": 0.1}]  # no run finds these
    saves: list[dict] = []
    found = tune(learner, split, rounds=3, seed=0, threads=1, saved={"rows": 63, "trials": known}, save=saves.append)
    assert found == ({"max_depth": 7}, 2.0)
    assert len(saves) == 1
    assert saves[0]["trials"][:2] == known
    assert 0.5 < saves[0]["trials"][2]["auc"] <= 1
    found = tune(learner, split, rounds=1, seed=0, threads=1, saved={"rows": 50, "trials": known}, save=saves.append)
    assert found[1] <= 1  # rounds on other rows do not count


def test_saved_part_of_a_unit_is_handed_to_the_next_attempt(tmp_path: Path) -> None:
    def stopped(saved: dict, save: object) -> dict:
        save({"steps": [*saved.get("steps", []), 1]})
        raise KeyboardInterrupt

    def finished(saved: dict, save: object) -> dict:
        return {"steps": len(saved["steps"])}

    path = tmp_path / "units.json"
    with pytest.raises(KeyboardInterrupt):
        run_units(Store(path), [Unit("a", stopped, {"size": 1})], OPTIONS)
    assert "result" not in Store(path).units["a"]
    run_units(Store(path), [Unit("a", finished, {"size": 1})], OPTIONS)
    assert Store(path).units["a"]["result"] == {"steps": 1}


def test_other_settings_make_a_unit_run_again_from_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "units.json")
    run_units(store, [Unit("a", lambda saved, save: save({"trials": [1]}) or {"n": 1}, {"size": 1})], OPTIONS)
    seen = []
    run_units(store, [Unit("a", lambda saved, save: seen.append(saved) or {"n": 2}, {"size": 2})], OPTIONS)
    assert seen == [{}]
    assert Store(store.path).units["a"]["result"] == {"n": 2}


def test_failed_write_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "units.json"
    Store(path).put("a", {"result": 1})
    monkeypatch.setattr("paper.runner.os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        Store(path).put("b", {"result": 2})
    assert json.loads(path.read_text())["units"] == {"a": {"result": 1}}


def test_stop_after_starts_no_further_unit(tmp_path: Path) -> None:
    store = Store(tmp_path / "units.json")
    units = [Unit(key, lambda saved, save: {"n": 1}) for key in "ab"]
    run_units(store, units, SimpleNamespace(stop_after=1e-9))
    assert store.units == {}


def test_report_without_any_results_says_not_run(tmp_path: Path) -> None:
    report = render(tmp_path / "nothing", tmp_path).read_text()
    assert report.count("\nnot run\n") >= 7
    assert "Nothing was run" in report


def test_report_shows_what_there_is_beside_the_papers_numbers(tmp_path: Path) -> None:
    store = Store(tmp_path / "table_auc.json")
    store.note_run({})
    record = {"settings": {}, "budget": {"rounds": 3, "tuning_rows": None}, "cpu_seconds": 1.0}
    for split, (tel, xgboost) in enumerate([(0.9, 0.8), (0.91, 0.82), (0.93, 0.83)]):
        store.units[f"pima/split {split}/tel"] = {**record, "result": {"auc": tel}}
        store.units[f"pima/split {split}/xgboost"] = {**record, "result": {"auc": xgboost}}
    store.units["ecoli/split 0/tel"] = {**record, "result": {"auc": 0.95}}
    store.units["ecoli/split 0/xgboost"] = {**record, "saved": {"trials": []}}  # begun, not finished
    store.write()
    lines = render(tmp_path, tmp_path).read_text().splitlines()
    pima = next(line for line in lines if line.startswith("| pima | 0.9"))
    assert pima.startswith("| pima | 0.913* ± 0.009 (0.831 ± 0.008) | 0.817 ± 0.009 (0.825 ± 0.006) | not run (0.832 ±")
    assert next(line for line in lines if line.startswith("| ecoli | 0.95")).count("not run") == 6
    assert any("against XGBoost on 1 sets: 1 wins, 0 ties, 0 losses (1 differences" in line for line in lines)
    assert any("mean over 2 sets: +0.0312; least: ecoli -0.020" in line for line in lines)


def test_published_tables_name_every_data_set() -> None:
    assert len(datasets.TABLES) == 23
    assert set(published.AUC) == set(published.ACTIVATION_AUC) == set(datasets.TABLES)
    assert set(published.IMAGES) == set(datasets.IMAGES)
    signs = [np.sign(tel[0] - xgboost[0]) for tel, xgboost, _, _ in published.AUC.values()]
    assert (signs.count(1), signs.count(0), signs.count(-1)) == published.AUC_AGAINST_XGBOOST


def test_missing_data_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"pima\.tsv\.gz is needed; name the folder of the data sets by --data"):
        datasets.read_table(tmp_path, "pima")
