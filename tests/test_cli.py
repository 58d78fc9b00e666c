"""The command line as a user meets it: files in, models and predictions out, and mistakes answered in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading

import numpy as np
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet
import pytest

import softwood
from cli_calls import QUICK, ask, complaint, interrupt_after, mixed_table, train_in
from softwood.__main__ import run
from softwood.cli.example_tables import load_example
from softwood.model.container import read_container


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with one table in several formats and a model trained on it."""
    return train_in(tmp_path_factory.mktemp("cli"))


# Training -----------------------------------------------------------------------------------------------------------


def test_train_writes_a_model_and_a_record_of_the_run(folder):
    story = json.loads((folder / "model.run.json").read_text())
    assert story["task"] == "classification"
    assert story["rows"] == {"training": 160, "test": 40}
    assert story["columns"]["since"] == "datetime"
    assert story["columns"]["城市"] == "category"
    assert story["columns"]["is new"] == "boolean"
    assert story["metrics"]["accuracy"] > 0.8
    model = softwood.load(folder / "model.safetensors")
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.model_.target_name == "will they leave?"
    assert model.n_trees == 4
    assert not [name for name in os.listdir(folder) if name.endswith(".tmp")]


@pytest.mark.parametrize("name", ["data.tsv.gz", "data.parquet"])
def test_all_formats_give_the_same_model(folder, name, capsys, tmp_path):
    out = tmp_path / "again.safetensors"
    assert ask(capsys, "train", folder / name, "-t", "will they leave?", "-o", out, *QUICK)[0] == 0
    theirs, ours = (read_container(path)[1] for path in (out, folder / "model.safetensors"))
    assert theirs.keys() == ours.keys()
    # The history holds seconds.
    assert all(np.array_equal(theirs[key], ours[key]) for key in ours if key != "history")


def test_the_text_output_is_a_table_of_metrics_and_the_files(capsys, tmp_path):
    out = tmp_path / "iris.safetensors"
    code, printed, progress = ask(capsys, "train", "iris", "-o", out, *QUICK)
    assert code == 0
    assert "classification of 'species': 120 rows to learn from, 30 held out" in printed
    assert "balanced accuracy" in printed
    assert str(tmp_path / "iris.run.json") in printed
    assert "\x1b" not in printed  # no colours in a pipe
    assert re.search(r"epoch 1/15: loss \S+, validation loss \S+, accuracy 0\.\d+, \S+ reachable leaves", progress)


def test_a_regression_is_seen_as_such_and_can_be_asked_for(capsys, tmp_path):
    out = tmp_path / "m.safetensors"
    _, printed, _ = ask(capsys, "train", "diabetes", "-o", out, "--json", *QUICK)
    assert list(json.loads(printed)["metrics"]) == ["r2", "rmse", "mae"]
    _, printed, _ = ask(capsys, "train", "digits", "-o", out, "--json", "--task", "regression", *QUICK)
    assert json.loads(printed)["task"] == "regression"


def test_parameters_come_from_a_file_and_options_win(capsys, tmp_path):
    (tmp_path / "p.json").write_text('{"depth": 2, "n_trees": 9, "n_members": 1, "max_epochs": 1}')
    command = ["train", "iris", "-o", tmp_path / "m.safetensors", "--params", tmp_path / "p.json", "--json"]
    _, printed, _ = ask(capsys, *command, "--trees", "3")
    found = json.loads(printed)["parameters"]
    assert (found["depth"], found["n_trees"]) == (2, 3)
    (tmp_path / "p.json").write_text('{"deepth": 2}')
    assert "'deepth' is not one of them" in complaint(capsys, *command)


def test_rows_without_a_target_are_left_out_with_a_note(capsys, tmp_path):
    path = tmp_path / "holes.csv"
    path.write_text("x,y\n" + "".join(f"{i},{'' if i < 3 else i % 2}\n" for i in range(40)))
    _, printed, notes = ask(capsys, "train", path, "-t", "y", "-o", tmp_path / "m.safetensors", "--json", *QUICK)
    assert notes == "note: 3 of 40 rows have no 'y' and were left out.\n"
    assert sum(json.loads(printed)["rows"].values()) == 37


# Using a model ------------------------------------------------------------------------------------------------------


def test_evaluate_finds_the_target_itself(folder, capsys):
    code, printed, notes = ask(capsys, "evaluate", folder / "model.safetensors", folder / "data.parquet", "--json")
    assert code == 0
    assert notes == ""
    found = json.loads(printed)
    assert found["target"] == "will they leave?"
    assert found["rows"] == 200
    _, _, notes = ask(capsys, "evaluate", folder / "model.safetensors", folder / "data.csv")
    assert "the table that the model was trained on" in notes


@pytest.mark.parametrize("source", ["data.csv", "data.tsv.gz", "data.parquet"])
@pytest.mark.parametrize("target", ["out.csv", "out.tsv.gz", "out.parquet"])
def test_predictions_in_small_batches_are_those_of_the_estimator(folder, capsys, tmp_path, source, target):
    out = tmp_path / target
    command = ["predict", folder / "model.safetensors", folder / source, "-o", out, "--batch-rows", "7"]
    code, _, said = ask(capsys, *command, "--keep", "größe")
    assert (code, said) == (0, f"200 rows written to {out}\n")
    found = parquet.read_table(out) if target.endswith("parquet") else read_text(out, "\t" if "tsv" in target else ",")
    model = softwood.load(folder / "model.safetensors")
    features = mixed_table().drop_columns(["will they leave?"])
    probability = model.predict_proba(features)
    assert found.column_names == ["größe", "prediction", "probability no", "probability yes"]
    np.testing.assert_allclose(found["probability yes"].to_numpy(), probability[:, 1], rtol=1e-6)
    assert found["prediction"].to_pylist() == model.predict(features).tolist()
    assert len(list(tmp_path.iterdir())) == 1


def read_text(path, separator):
    return arrow_csv.read_csv(path, parse_options=arrow_csv.ParseOptions(delimiter=separator))


def test_a_column_reads_alike_in_every_batch(folder, capsys, tmp_path):
    """A category that looks like a number in the first rows, and a number that is missing in all of them."""
    lines = (folder / "data.csv").read_text().splitlines()
    odd = [",".join(["", "1", *line.split(",")[2:]]) for line in lines[1:]]
    path = tmp_path / "odd.csv"
    path.write_text("\n".join([lines[0], *odd * 150, *lines[1:] * 150]) + "\n")
    assert path.stat().st_size > 2**21  # types are inferred from the first 2^20 bytes
    code, _, said = ask(capsys, "predict", folder / "model.safetensors", path, "-o", tmp_path / "out.parquet")
    assert (code, said) == (0, f"60000 rows written to {tmp_path / 'out.parquet'}\n")
    found = parquet.read_table(tmp_path / "out.parquet")["probability yes"].to_numpy()
    expected = softwood.load(folder / "model.safetensors").predict_proba(
        mixed_table().drop_columns(["will they leave?"])
    )
    np.testing.assert_allclose(found[-200:], expected[:, 1], rtol=1e-6)
    assert np.abs(found[:200] - expected[:, 1]).max() > 0.1


def test_predictions_go_to_standard_output(folder, capsysbinary):
    assert run(["predict", str(folder / "model.safetensors"), str(folder / "data.csv")]) == 0
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert len(lines) == 201
    assert lines[0] == '"prediction","probability no","probability yes"'


def test_info_tells_what_a_file_holds(folder, capsys):
    _, printed, _ = ask(capsys, "info", folder / "model.safetensors", "--json")
    found = json.loads(printed)
    assert (found["task"], found["members"], found["trees_per_member"], found["depth"]) == ("binary", 1, 4, 4)
    assert found["classes"] == ["no", "yes"]
    _, printed, _ = ask(capsys, "info", folder / "model.safetensors")
    assert "größe" in printed


def test_export(folder, capsys, tmp_path):
    model = folder / "model.safetensors"
    ask(capsys, "export", model, tmp_path / "model.c")
    assert "model_predict" in (tmp_path / "model.h").read_text()
    assert run(["export", str(model), str(tmp_path / "model.txt")]) != 0
    assert "must end in .onnx or .c" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.c", "model.h"]


def test_explain_adds_up(folder, capsys):
    model, data = folder / "model.safetensors", folder / "data.csv"
    _, printed, _ = ask(capsys, "explain", model, data, "--row", "5", "--json")
    found = json.loads(printed)
    row = found["row"]
    raw = softwood.load(model).model_.raw_scores(mixed_table().drop_columns(["will they leave?"]))[5, 0]
    assert row["raw_score"] == pytest.approx(raw, rel=1e-6)
    assert row["offset"] + sum(tree["contribution"] for tree in row["trees"]) == pytest.approx(raw, rel=1e-6)
    assert row["usual_raw_score"] + sum(row["columns"].values()) == pytest.approx(raw, rel=1e-6)
    assert len(row["rules"]) == 4
    assert found["usage"]["leaves_a_tree"] == 16
    _, printed, _ = ask(capsys, "explain", model, data, "--row", "5")
    assert "moves the raw score by" in printed
    assert "--row needs a table" in complaint(capsys, "explain", model, "--row", "5")


def test_explain_a_regression(capsys, tmp_path):
    ask(capsys, "train", "diabetes", "-o", tmp_path / "m.safetensors", "--json", *QUICK)
    code, printed, _ = ask(capsys, "explain", tmp_path / "m.safetensors", "diabetes", "--row", "0")
    assert code == 0
    predicted = float(re.search(r"^Row 0: (\S+)$", printed, re.MULTILINE).group(1))
    features = load_example("diabetes")[0].drop_columns(["progression"])
    assert predicted == pytest.approx(softwood.load(tmp_path / "m.safetensors").predict(features)[0], rel=1e-3)


@pytest.mark.parametrize("picture", ["history", "importances", "tree", "path", "activations"])
def test_plot_draws(folder, capsys, tmp_path, picture):
    out = tmp_path / "picture.svg"
    assert ask(capsys, "plot", picture, folder / "model.safetensors", folder / "data.csv", "-o", out)[0] == 0
    assert b"<svg" in out.read_bytes()[:600]


def test_help(capsys):
    for command in ("train", "evaluate", "predict", "tune", "explain", "plot", "info", "report", "export"):
        code, printed, _ = ask(capsys, command, "--help")
        assert code == 0
        before, _, after = printed.partition("Examples:")
        assert f"Usage: softwood {command}" in " ".join(before.split())
        assert re.search(rf"^ softwood {command} \S+", after, re.MULTILINE)  # each on a line of its own
        assert "\x1b" not in printed
    assert ask(capsys, "--version")[1].strip() == softwood.__version__


# Interrupts -----------------------------------------------------------------------------------------------------------


def test_ctrl_c_keeps_the_best_epoch(tmp_path):
    command = ["train", "digits", "--epochs", "100000", "--members", "1", "--trees", "8", "-o", "m.safetensors"]
    code, said = interrupt_after("epoch 1/", command, tmp_path)
    assert code == 130
    assert re.search(r"^note: Interrupted after \d+ epochs: the best of them is kept\.", said, re.MULTILINE)
    assert "Traceback" not in said
    assert sorted(os.listdir(tmp_path)) == ["m.run.json", "m.safetensors"]
    assert json.loads((tmp_path / "m.run.json").read_text())["interrupted"] is True
    assert softwood.load(tmp_path / "m.safetensors").model_.head.task == "multiclass"


def test_ctrl_c_in_the_first_epoch_leaves_no_file(tmp_path):
    """The signal comes while the first batches are trained on: there is nothing worth keeping."""
    begin = (
        "import softwood.cli.training as training, sys; fit = training._fit; "
        "training._fit = lambda *a: (print('begin', file=sys.stderr, flush=True), fit(*a))[1]; "
    )
    arguments = ["--members", "1", "--trees", "400", "--depth", "9", "--batch-size", "1", "-o", "m.safetensors"]
    code, said = interrupt_after("begin", ["train", "digits", *arguments], tmp_path, then=begin)
    assert code == 130
    assert said == "error: Interrupted; no file was left half-written.\n"
    assert os.listdir(tmp_path) == []


def test_ctrl_c_while_the_command_is_being_loaded(tmp_path):
    begin = (
        "import sys, time; find = m.__builtins__['__import__']; "
        "m.__builtins__['__import__'] = lambda name, *a: "
        "(print('begin', file=sys.stderr, flush=True), time.sleep(60)) "
        "if name == 'softwood.cli.commands' else find(name, *a); "
    )
    code, said = interrupt_after("begin", ["info", "m.safetensors"], tmp_path, then=begin)
    assert (code, said) == (130, "error: Interrupted; no file was left half-written.\n")


def test_a_closed_output_pipe_is_not_an_error(folder, tmp_path):
    """As in `softwood predict ... | head -1`."""
    path = tmp_path / "long.csv"
    header, *lines = (folder / "data.csv").read_text().splitlines()
    path.write_text("\n".join([header, *lines * 60]) + "\n")
    command = [sys.executable, "-m", "softwood", "predict", folder / "model.safetensors", path, "--batch-rows", "500"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        too_late = threading.Timer(60, process.kill)
        too_late.start()
        try:
            assert process.stdout.readline() == '"prediction","probability no","probability yes"\n'
            process.stdout.close()
            assert process.stderr.read() == ""
            assert process.wait(timeout=60) == 0
        finally:
            too_late.cancel()
