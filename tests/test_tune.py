"""Search for parameters: a study that is kept, shared and gone on with, whatever stops it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import optuna
import pyarrow as pa
import pytest

from cli_calls import ask, complaint, interrupt_after
from softwood.cli.task import learning_task
from softwood.cli.tune import Search, run_search

IRIS = ["tune", "iris", "--folds", "2", "-o", "best.json"]


def test_a_study_is_kept_and_continued(capsys, tmp_path):
    command = ["tune", "iris", "--trials", "2", "--folds", "2", "-o", tmp_path / "best.json", "--json"]
    _, printed, _ = ask(capsys, *command)
    first = json.loads(printed)
    assert first["n_trials"] == 2
    assert json.loads((tmp_path / "best.json").read_text()) == first["params"]
    assert set(first["params"]) >= {"n_trees", "depth", "gamma", "learning_rate", "batch_size", "max_epochs", "l2"}
    _, printed, _ = ask(capsys, *command)
    second = json.loads(printed)
    assert second["n_trials"] == 4
    assert second["value"] >= first["value"]


def test_a_study_with_other_settings_is_not_continued(capsys, tmp_path):
    command = ["tune", "iris", "--trials", "1", "-o", tmp_path / "best.json"]
    ask(capsys, *command, "--folds", "2")
    said = complaint(capsys, *command, "--folds", "3")
    assert said.startswith("Study 'iris species' was started with folds = 2; this search has 3")
    assert ask(capsys, *command, "--folds", "3", "--study", "another")[0] == 0


def test_hopeless_trials_are_pruned(monkeypatch):
    """After five trials, one that does worse than the median in its first fold is given up there."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=120)
    task = learning_task(pa.table({"x": x, "y": 3 * x}), "y")
    search = Search(task, n_folds=3)
    good = {"n_trees": 4, "depth": 2, "gamma": 1.0, "learning_rate": 0.05, "batch_size": 32, "max_epochs": 9, "l2": 0.0}
    bad = good | {"learning_rate": 1e-9, "max_epochs": 1, "n_trees": 1}
    monkeypatch.setattr(Search, "suggest", lambda self, trial: good if trial.number < 5 else bad)
    best = run_search(search, study="pruned", n_trials=6, quiet=True)
    assert (best.n_trials, best.n_pruned) == (6, 1)
    assert best.params == good | {"n_members": 1}


def test_ctrl_c_writes_the_best_so_far_and_the_study_goes_on(capsys, tmp_path, monkeypatch):
    code, said = interrupt_after("trial 1", [*IRIS, "--trials", "1000"], tmp_path)
    assert code == 130
    assert said.endswith("note: Interrupted: the best trial so far is written. The same command continues the study.\n")
    assert "Traceback" not in said
    assert "learning_rate" in json.loads((tmp_path / "best.json").read_text())
    monkeypatch.chdir(tmp_path)
    _, printed, _ = ask(capsys, *IRIS, "--trials", "1", "--json")
    assert json.loads(printed)["n_trials"] >= 3


def test_a_killed_search_goes_on(capsys, tmp_path, monkeypatch):
    code, _ = interrupt_after("trial 1", [*IRIS, "--trials", "1000"], tmp_path, signal_=signal.SIGKILL)
    assert code == -signal.SIGKILL
    monkeypatch.chdir(tmp_path)
    _, printed, _ = ask(capsys, *IRIS, "--trials", "1", "--json")
    study = optuna.load_study(study_name="iris species", storage="sqlite:///best.db")
    ended = [trial for trial in study.trials if trial.state.is_finished()]
    assert json.loads(printed)["n_trials"] == len(ended) >= 3


def test_processes_share_one_study_from_the_first_moment(tmp_path):
    """Both find no file and make the tables; one of them comes second."""
    command = [sys.executable, "-m", "softwood", *IRIS, "--trials", "2", "--json"]
    pipes = {"cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    try:
        outputs = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [(process.returncode, said) for process, (_, said) in zip(processes, outputs, strict=True)] == [(0, "")] * 2
    assert max(json.loads(printed)["n_trials"] for printed, _ in outputs) == 4
    assert sorted(os.listdir(tmp_path)) == ["best.db", "best.json"]


def test_tables_that_another_process_has_just_made(tmp_path, monkeypatch):
    """The first attempt meets a clash, as when another process makes the tables between a look and a write."""
    made, attempts = optuna.create_study, []

    def clash_once(**options):
        attempts.append(1)
        if len(attempts) == 1:
            raise RuntimeError("table studies already exists")
        return made(**options)

    monkeypatch.setattr(optuna, "create_study", clash_once)
    table = pa.table({"x": np.arange(20.0), "y": ["a", "b"] * 10})
    search = Search(learning_task(table, "y"), n_folds=2)
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    assert run_search(search, study="s", storage=storage, n_trials=1, quiet=True).n_trials == 1
    assert len(attempts) == 2


def test_a_storage_that_cannot_be_opened_keeps_its_password(capsys, tmp_path):
    command = ["tune", "iris", "-o", tmp_path / "best.json", "--storage", "nonsense://me:secret@host/x"]
    said = complaint(capsys, *command)
    assert said.startswith("The storage 'nonsense://me:***@host/x' cannot be opened")
    assert "secret" not in said


@pytest.mark.parametrize(("folds", "says"), [("51", "the rarest has 50"), ("999", "999 folds need as many rows")])
def test_too_many_folds(capsys, tmp_path, folds, says):
    assert says in complaint(capsys, "tune", "iris", "--folds", folds, "-o", tmp_path / "best.json")
    assert os.listdir(tmp_path) == []
