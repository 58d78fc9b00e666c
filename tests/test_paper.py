"""The machinery of the paper's runs: units survive a kill, searches follow from their names, reports from results."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from paper import (
    auc_report,
    collect,
    costs,
    datasets,
    figure_trees,
    published,
    run,
    table_activations,
    table_auc,
    table_images,
    verify,
)
from paper.figure_trees import compare, count_parameters, matching_depth
from paper.learners import LEARNERS, declared_space
from paper.render import render
from paper.runner import Store, Unit, commit, run_units
from paper.search import EXACT, N_STARTUP, Name, _next_params, auc, draw_points, settings_of, tune

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


def arguments(data: Path, folder: Path, rounds: int, *learners: str, splits: int = 1) -> list[str]:
    common = ["--data", str(data), "--results", str(folder), "--units", str(folder / "units"), "--threads", "1"]
    return [
        *common,
        "--rounds",
        str(rounds),
        "--splits",
        str(splits),
        "--sets",
        "pima",
        "ecoli",
        "--learners",
        *learners,
    ]


def read(folder: Path, name: str = "table_auc") -> Store:
    return Store(name, folder, folder / "units")


def outcome(folder: Path) -> dict:
    """What was found, without times."""
    return {key: (unit["result"], unit["saved"]["trials"]) for key, unit in read(folder).units.items()}


# Units --------------------------------------------------------------------------------------------------------------


def test_run_killed_midway_ends_like_one_that_was_not(data: Path, tmp_path: Path) -> None:
    learners = ("cart", "tel_paper")
    table_auc.main(arguments(data, tmp_path / "whole", 3, *learners))
    command = [sys.executable, "-m", "paper.table_auc", *arguments(data, tmp_path / "killed", 3, *learners)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        limit = threading.Timer(120, process.kill)
        limit.start()
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(2)]  # the greeting and the first unit
        process.kill()
        limit.cancel()
    assert seen[1].startswith("pima/split 0/cart: auc")
    before = read(tmp_path / "killed").units
    assert 1 <= sum("result" in unit for unit in before.values()) < 4
    table_auc.main(arguments(data, tmp_path / "killed", 3, *learners))
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
    after = read(tmp_path / "killed").units
    assert after["pima/split 0/cart"] == before["pima/split 0/cart"]  # not run again


def test_more_rounds_go_on_from_those_that_are_done(data: Path, tmp_path: Path) -> None:
    for rounds in (2, 4):
        table_auc.main(arguments(data, tmp_path / "grown", rounds, "tel_paper"))
    table_auc.main(arguments(data, tmp_path / "at once", 4, "tel_paper"))
    assert outcome(tmp_path / "grown") == outcome(tmp_path / "at once")
    unit = read(tmp_path / "grown").units["pima/split 0/tel_paper"]
    assert len(unit["saved"]["trials"]) == unit["budget"]["rounds"] == 4
    table_auc.main(arguments(data, tmp_path / "grown", 2, "tel_paper"))  # asks for less than there is
    assert read(tmp_path / "grown").units["pima/split 0/tel_paper"] == unit


def test_every_record_names_its_commit_and_the_versions_of_search_and_learner(data: Path, tmp_path: Path) -> None:
    table_auc.main(arguments(data, tmp_path, 2, "cart"))
    record = read(tmp_path).units["ecoli/split 0/cart"]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert record["commit"] == commit()
    assert record["commit"].rstrip("+") in (head[:12], "unknown")
    assert record["settings"] == {"search": 2, "learner": 1}
    assert record["cpu_seconds"] > 0


def test_another_version_of_the_search_discards_old_trials(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_auc.main(arguments(data, tmp_path, 2, "cart"))
    path = tmp_path / "units" / "table_auc" / "pima - split 0 - cart.json"
    record = json.loads(path.read_text())
    for trial in record["saved"]["trials"]:
        trial["auc"] = 2.0  # no run finds this
    path.write_text(json.dumps(record))
    table_auc.main(arguments(data, tmp_path, 3, "cart"))
    assert read(tmp_path).units["pima/split 0/cart"]["result"]["validation_auc"] == 2.0  # the same version goes on
    monkeypatch.setattr("paper.search.SEARCH_VERSION", 99)
    table_auc.main(arguments(data, tmp_path, 3, "cart"))
    assert read(tmp_path).units["pima/split 0/cart"]["result"]["validation_auc"] <= 1
    assert read(tmp_path).units["pima/split 0/cart"]["settings"]["search"] == 99


def test_collected_results_answer_for_the_units(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table_auc.main(arguments(data, tmp_path, 2, "cart"))
    found = {key: unit["result"] for key, unit in read(tmp_path).units.items()}
    Store("table_auc", tmp_path, tmp_path / "units").put("pima/split 1/cart", {"settings": {}, "saved": {"trials": []}})
    assert collect.collect(tmp_path, tmp_path / "units") == {"table_auc": 2}  # the third is not finished
    committed = Store("table_auc", tmp_path)
    assert {key: unit["result"] for key, unit in committed.units.items()} == found
    assert all("saved" not in unit and unit["commit"] for unit in committed.units.values())
    assert "options" in committed.runs[committed.units["pima/split 0/cart"]["run"]]
    text = committed.path.read_text()
    collect.collect(tmp_path, tmp_path / "units")
    assert committed.path.read_text() == text
    assert str(tmp_path) not in text  # no folder of this machine
    capsys.readouterr()
    new = [*arguments(data, tmp_path, 2, "cart")]
    new[new.index("--units") + 1] = str(tmp_path / "empty")
    assert table_auc.main(new)  # from the results file alone: nothing is left to do
    assert capsys.readouterr().out == "table_auc: 2 of 2 units are done\n"


def test_saved_part_of_a_unit_is_handed_to_the_next_attempt(tmp_path: Path) -> None:
    def stopped(saved: dict, save: object) -> dict:
        save({"steps": [*saved.get("steps", []), 1]})
        raise KeyboardInterrupt

    def finished(saved: dict, save: object) -> dict:
        return {"steps": len(saved["steps"])}

    with pytest.raises(KeyboardInterrupt):
        run_units(read(tmp_path, "a"), [Unit("a/b", stopped, {"size": 1})], OPTIONS)
    assert "result" not in read(tmp_path, "a").units["a/b"]
    run_units(read(tmp_path, "a"), [Unit("a/b", finished, {"size": 1})], OPTIONS)
    assert read(tmp_path, "a").units["a/b"]["result"] == {"steps": 1}


def test_other_settings_make_a_unit_run_again_from_nothing(tmp_path: Path) -> None:
    store = read(tmp_path, "a")
    run_units(store, [Unit("a", lambda saved, save: save({"trials": [1]}) or {"n": 1}, {"size": 1})], OPTIONS)
    seen = []
    run_units(store, [Unit("a", lambda saved, save: seen.append(saved) or {"n": 2}, {"size": 2})], OPTIONS)
    assert seen == [{}]
    assert read(tmp_path, "a").units["a"]["result"] == {"n": 2}


def test_failed_write_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = read(tmp_path, "a")
    store.put("a", {"result": 1})
    monkeypatch.setattr("paper.runner.os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        store.put("a", {"result": 2})
    assert read(tmp_path, "a").units == {"a": {"result": 1}}


def test_stop_after_starts_no_further_unit(tmp_path: Path) -> None:
    store = read(tmp_path, "a")
    units = [Unit(key, lambda saved, save: {"n": 1}) for key in "ab"]
    assert not run_units(store, units, SimpleNamespace(stop_after=1e-9))
    assert store.units == {}


# The search ---------------------------------------------------------------------------------------------------------


def test_search_does_not_repeat_saved_rounds(data: Path) -> None:
    split, learner, name = datasets.split_table(data, "pima", 0), LEARNERS["cart"], Name("pima", "cart", 0)
    known = [{"params": {"max_depth": 7}, "auc": 2.0}, {"params": {"max_depth": 9}, "auc": 0.1}]  # no run finds these
    saves: list[dict] = []
    saved = {"rows": 63, "trials": known}
    found = tune(learner, name, split, rounds=3, threads=1, saved=saved, save=saves.append)
    assert (found.params, found.auc, found.first_auc, found.best_round) == ({"max_depth": 7}, 2.0, 2.0, 0)
    assert len(saves) == 1
    assert saves[0]["trials"][:2] == known
    assert 0.5 < saves[0]["trials"][2]["auc"] <= 1
    other_rows = {"rows": 50, "trials": known}
    assert tune(learner, name, split, rounds=1, threads=1, saved=other_rows, save=saves.append).auc <= 1


def test_auc_is_scikit_learns() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    y, probability = rng.integers(3, size=50), rng.integers(8, size=(50, 3)) / 8.0  # with ties
    expected = np.mean([roc_auc_score(y == c, probability[:, c]) for c in range(3)])
    assert auc(y, probability) == pytest.approx(expected, abs=1e-15)
    with pytest.raises(ValueError, match="AUC needs rows of both kinds; got 0 positive and 2 negative ones"):
        auc(np.zeros(2, dtype=int), np.full((2, 2), 0.5))


def test_parameters_that_were_drawn_before_are_not_fitted_again(data: Path) -> None:
    split, name = datasets.split_table(data, "pima", 0), Name("pima", "cart", 0)
    made: list[int] = []

    def make(params: dict, seed: int, threads: int) -> object:
        made.append(params["max_depth"])
        return LEARNERS["cart"].make(params, seed, threads)

    saves: list[dict] = []
    tune(replace(LEARNERS["cart"], make=make), name, split, rounds=20, threads=1, saved={}, save=saves.append)
    drawn_depths = [trial["params"]["max_depth"] for trial in saves[-1]["trials"]]
    assert len(drawn_depths) == 20 > len(set(drawn_depths))
    assert made == [depth for depth in dict.fromkeys(drawn_depths) for _ in range(5)]


def test_searches_are_seeded_by_set_learner_and_split() -> None:
    points = draw_points(LEARNERS["xgboost"], Name("pima", "xgboost", 0), 4)
    assert points == draw_points(LEARNERS["xgboost"], Name("pima", "xgboost", 0), 4)
    assert points[0] == LEARNERS["xgboost"].first
    for other in (Name("ecoli", "xgboost", 0), Name("pima", "xgboost", 1)):
        assert other.fold_seed != Name("pima", "xgboost", 0).fold_seed
        assert draw_points(LEARNERS["xgboost"], other, 4)[0] == points[0]
        assert all(a != b for a, b in zip(draw_points(LEARNERS["xgboost"], other, 4)[1:], points[1:], strict=True))
    assert len({json.dumps(point) for point in points}) == len(points)
    seeds = {
        name.seed("final") for name in (Name("a", "b", 0), Name("a", "b", 1), Name("a", "c", 0), Name("c", "b", 0))
    }
    assert len(seeds) == 4
    assert Name("a", "b", 0).fold_seed == Name("a", "c", 0).fold_seed  # all learners see the same folds


def test_search_learns_from_its_rounds() -> None:
    """Where one end of the range is better, TPE draws from that end once its startup is over."""
    learner, name = LEARNERS["logistic_regression"], Name("pima", "logistic_regression", 0)
    assert EXACT["rounds"] / 5 >= N_STARTUP
    trials: list[dict] = []
    for _ in range(40):
        params = _next_params(learner, name, trials)
        trials.append({"params": params, "auc": np.log10(params["C"]) / 10})
    exponents = [np.log10(trial["params"]["C"]) for trial in trials]
    assert (
        np.mean(exponents[1:N_STARTUP]) < 0
    )  # random draws from -8 to 4 have the mean -2, and 15 of them an error of 0.9
    assert np.mean(exponents[-15:]) > 1


def test_spaces_are_those_of_the_declarations_and_hold_their_first_points() -> None:
    assert LEARNERS["tel_paper"].space["n_trees"] == declared_space("n_trees")["n_trees"]
    for learner in [*LEARNERS.values(), *table_activations.LEARNERS.values()]:
        assert learner.space.keys() == learner.first.keys()
        for name, distribution in learner.space.items():
            assert distribution._contains(distribution.to_internal_repr(learner.first[name])), (learner.title, name)


def test_activations_are_searched_over_the_same_slopes() -> None:
    smooth, logistic = (
        table_activations.LEARNERS["paper", name].space["gamma"] for name in ("smooth_step", "logistic")
    )
    for end in ("low", "high"):
        assert 3 / (2 * getattr(smooth, end)) == pytest.approx(1 / (4 * getattr(logistic, end)))


def test_recorded_units_are_run_again_to_the_last_bit(data: Path, tmp_path: Path) -> None:
    table_auc.main(arguments(data, tmp_path, 2, "cart", "tel_paper"))
    common = ["--data", str(data), "--results", str(tmp_path), "--units", str(tmp_path / "units"), "--number", "3"]
    assert verify.main(common)
    store = read(tmp_path)
    keys = verify.chosen(store.units, 4)
    assert len(keys) == 4
    for key in keys:
        record = store.units[key]
        record["result"]["auc"] = np.nextafter(record["result"]["auc"], 0)
        store.put(key, record)
    assert not verify.main(common)


def test_the_plan_names_each_unit_of_the_exact_rows_once() -> None:
    exact = [stage for stage in run.STAGES if stage.experiment == "table_auc" and "exact" in stage.title]
    keys = [unit.key for stage in exact for unit in stage.units([])[0]]
    learners = {*LEARNERS}
    assert len(keys) == len(set(keys)) == len(run.EXACT_SETS) * len(learners) * 15
    budgets = [unit.budget for stage in exact for unit in stage.units([])[0] if unit.budget]
    assert all(budget == EXACT for budget in budgets)
    assert set(run.EXACT_SETS) | set(run.REDUCED_SETS) | {"sleep"} == set(datasets.TABLES)


def test_what_is_left_follows_from_finished_units_and_measured_fits(data: Path, tmp_path: Path) -> None:
    stage = run.Stage("", "table_auc", ("--sets", "pima", "--learners", "cart", "--splits", "3", "--rounds", "4"))
    common = ["--results", str(tmp_path), "--units", str(tmp_path / "units")]
    assert run.progress_of(stage, common) == {"done": 0, "units": 3, "hours": 0, "left": None}
    costs.main(["--data", str(data), *common, "--sets", "pima", "--learners", "cart"])
    collect.collect(tmp_path, tmp_path / "units")
    per_fit = costs.unit_seconds(tmp_path)["pima/cart"]
    assert run.progress_of(stage, common)["left"] == pytest.approx(3 * 21 * per_fit / 3600)
    budget = {"rounds": 4, "tuning_rows": None}
    done = {"settings": settings_of(LEARNERS["cart"]), "budget": budget, "result": {}, "cpu_seconds": 36.0}
    Store("table_auc", tmp_path, tmp_path / "units").put("pima/split 0/cart", done)
    assert run.progress_of(stage, common) == {"done": 1, "units": 3, "hours": 0.01, "left": pytest.approx(0.02)}


# The report ---------------------------------------------------------------------------------------------------------


def record(
    auc: float, *, learner: str = "tel_paper", rounds: int = 50, rows: int | None = None, **result: object
) -> dict:
    return {
        "settings": settings_of(LEARNERS[learner]),
        "budget": {"rounds": rounds, "tuning_rows": rows},
        "result": {"auc": auc, "validation_auc": 0.9, "first_auc": 0.8, "leaves": 2.0, **result},
        "cpu_seconds": 1.0,
        "commit": "0123456789ab",
        "run": 0,
    }


def write(folder: Path, name: str, units: dict[str, dict]) -> None:
    versions = {"cpu": "cpu", "cores": 1, "python": "3", "versions": {}, "options": {}}
    (folder / f"{name}.json").write_text(json.dumps({"runs": [versions], "units": units}))


def test_report_without_any_results_says_not_run(tmp_path: Path) -> None:
    report = render(tmp_path / "nothing", tmp_path).read_text()
    assert report.count("\nnot run\n") >= 8
    assert report.count("| not run | none | **not run** |") >= 10
    assert "Nothing was run" in report


def test_report_of_the_same_results_is_the_same_file(tmp_path: Path) -> None:
    params = {"depth": 4, "gamma": 0.5}
    units = {f"pima/split {i}/tel_paper": record(0.8 + i / 100, params=params) for i in range(3)}
    write(tmp_path, "table_auc", units)
    texts = [render(tmp_path, tmp_path).read_text() for _ in range(2)]
    assert texts[0] == texts[1]


def test_report_says_what_is_exact(tmp_path: Path) -> None:
    params = {"depth": 4, "gamma": 0.5}
    units = {}
    for split in range(15):
        units[f"pima/split {split}/tel_paper"] = record(0.90 + split / 1000, params=params)
        units[f"pima/split {split}/xgboost"] = record(0.80 - split / 1000, learner="xgboost", params={})
    for split in range(4):
        units[f"ecoli/split {split}/tel_paper"] = record(0.95, params=params)
        units[f"ecoli/split {split}/xgboost"] = record(0.94, learner="xgboost", params={})
        units[f"dna/split {split}/tel_paper"] = record(0.95, rounds=25, rows=5000, params=params)
    units["yeast/split 0/tel_paper"] = {**record(0.99), "settings": {}}  # of an older search
    write(tmp_path, "table_auc", units)
    lines = render(tmp_path, tmp_path).read_text().splitlines()
    rows = {line.split(" | ")[0].removeprefix("| "): line.split(" | ") for line in lines if " (0." in line}
    assert rows["pima"][1] == "0.907* ± 0.001 (0.831 ± 0.008)"
    assert rows["ecoli"][1] == "0.950 ± 0.000 (0.970 ± 0.003), 4 of 15 splits"  # no star below five pairs
    assert rows["dna"][1].endswith("(0.993 ± 0.000), reduced, 4 splits")
    assert rows["yeast"][1] == "not run (0.861 ± 0.004)"
    text = "\n".join(lines)
    assert "| TEL (paper) against XGBoost | 1 | 1 | 0 | 0 | 1 | 0 | exact |" in text
    assert "| TEL (paper) against XGBoost | 2 | 2 | 0 | 0 | 1 | 0 | all |" in text
    assert "1 exact sets: 1 wins, 0 ties, 0 losses; all 2 sets done: 2 wins, 0 ties, 0 losses" in text
    assert "| TEL (paper) | +0.0760 (1 sets) | +0.076 (pima) |" in text
    assert "23 of 23 |" in text  # searches that beat their first point
    assert auc_report.Scores(units).label("tel_paper", "yeast") == "not run"


def test_published_tables_name_every_data_set() -> None:
    assert len(datasets.TABLES) == 23
    assert set(published.AUC) == set(published.ACTIVATION_AUC) == set(published.TABLES) == set(datasets.TABLES)
    assert set(published.IMAGES) == set(datasets.IMAGES)
    signs = [np.sign(tel[0] - xgboost[0]) for tel, xgboost, _, _ in published.AUC.values()]
    assert (signs.count(1), signs.count(0), signs.count(-1)) == published.AUC_AGAINST_XGBOOST
    signs = [np.sign(smooth[0] - logistic[0]) for smooth, logistic in published.ACTIVATION_AUC.values()]
    assert (signs.count(1), signs.count(0), signs.count(-1)) == published.ACTIVATION_COUNTS


def test_missing_data_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"pima\.tsv\.gz is needed; name the folder of the data sets by --data"):
        datasets.read_table(tmp_path, "pima")


# Table 1, figure 4 and table 3 --------------------------------------------------------------------------------------


def test_activations_and_numbers_of_trees_from_search_to_report(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real runs of two rounds; figure 4 takes up what table 2 has tuned."""
    pytest.importorskip("xgboost", reason="figure 4 compares with XGBoost, which the extra paper installs")
    monkeypatch.setattr(figure_trees, "TEL_TREES", (1, 3))
    monkeypatch.setattr(figure_trees, "XGBOOST_TREES", (1, 5))
    common = arguments(data, tmp_path, 2)[: arguments(data, tmp_path, 2).index("--sets")]
    assert figure_trees.main(common)
    assert not read(tmp_path, "figure_trees").units  # nothing is tuned yet
    table_auc.main([*common, "--sets", "pima", "--learners", "tel_paper", "tel_softwood"])
    assert figure_trees.main(common)
    done = read(tmp_path, "figure_trees").units
    assert sorted(done) == [f"pima/split 0/{key}" for key in ("tel_paper", "tel_softwood", "xgboost")]
    assert done["pima/split 0/xgboost"]["result"]["trees"] == [1, 5]
    table_activations.main([*common, "--sets", "ecoli", "--recipes", "paper", "softwood"])
    collect.collect(tmp_path, tmp_path / "units")
    report = render(tmp_path, tmp_path).read_text()
    sizes = done["pima/split 0/tel_paper"]["result"]
    assert report.count("| pima | TEL (paper) | 1 | ") == report.count("| pima | TEL (softwood) | 1 | ") == 3
    assert any(f"{size:,}" in report for size in sizes["trainable"])
    assert "TEL (softwood): smooth-step against logistic on 1 sets:" in report
    units = read(tmp_path, "table_activations").units
    mean = units["ecoli/split 0/softwood/logistic"]["result"]["auc"]
    assert f"| {mean:.3f} ± nan (1) |" not in report
    assert f"| {mean:.3f} (1) |" in report


def test_parameters_are_counted_as_they_are_trained_and_stored(data: Path) -> None:
    split = datasets.split_table(data, "ecoli", 0)
    model = (
        LEARNERS["tel_paper"].make({"n_trees": 5, "depth": 3, "max_epochs": 2}, 0, 1).fit(split.X_train, split.y_train)
    )
    assert count_parameters(model) == (5 * 7 * 4 + 5 * 8 * 3 + 2 * 4, 5 * 7 * (4 + 1) + 5 * 8 * 3)
    assert matching_depth(4, 3, 3) == 4  # 52 parameters per tree; XGBoost has 46 at depth 4, 94 at depth 5


def test_compactness_depends_on_the_tolerance() -> None:
    sizes = {"trainable": np.array([10.0, 20, 40]), "stored": np.array([10.0, 20, 40])}
    tel = {"trees": (1, 2, 4), "auc": np.array([0.90, 0.901, 0.902]), **sizes}
    xgboost = {"trees": (1, 10, 100), "auc": np.array([0.80, 0.8985, 0.91]), **sizes}
    assert compare(tel, xgboost, 0.001)["trees"] == 100 / 2
    assert compare(tel, xgboost, 0.005)["trees"] == 10 / 1


@pytest.mark.parametrize(
    ("name", "shape"), [("mnist", (1, 28, 28)), ("fashion-mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))]
)
def test_image_networks_have_the_papers_numbers_of_parameters(name: str, shape: tuple[int, int, int]) -> None:
    pytest.importorskip("torch")
    for kind in table_images.NETWORKS:
        size = table_images.count_parameters(table_images.build(kind, name, shape))
        assert size == published.IMAGES[name][kind][2]


def test_images_go_on_from_the_last_finished_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    images, labels = rng.integers(256, size=(60, 1, 28, 28)).astype(np.uint8), rng.integers(10, size=60)
    monkeypatch.setattr(table_images, "read_images", lambda folder, name, part: (images, labels))

    def results(folder: str, epochs: int, save: object) -> dict:
        arguments = ["--units", str(tmp_path / folder), "--filters", "1", "--epochs", str(epochs)]
        return table_images.train(table_images.parse_options(arguments), "mnist", "tel", 0, {}, save)

    def stop(saved: dict) -> None:
        if len(saved["history"]) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        results("a", 2, stop)
    assert results("a", 2, lambda saved: None) == results("b", 2, lambda saved: None)
    assert not list(tmp_path.glob("*/*/*.pt"))
