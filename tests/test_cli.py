"""The command line as a user meets it: files in, models and predictions out, and mistakes answered in one line."""

from __future__ import annotations

import io
import json
import os
import re
import signal
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
    assert "classification of 'species': 120 rows for training, 30 for the test" in printed
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
    assert found["usage"]["leaves_per_tree"] == 16
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


def test_a_request_to_end_is_taken_as_ctrl_c(tmp_path):
    command = ["train", "digits", "--epochs", "100000", "--members", "1", "--trees", "8", "-o", "m.safetensors"]
    code, said = interrupt_after("epoch 1/", command, tmp_path, signal_=signal.SIGTERM)
    assert code == 130
    assert re.search(r"^note: Interrupted after \d+ epochs: the best of them is kept\.", said, re.MULTILINE)
    assert softwood.load(tmp_path / "m.safetensors").model_.head.task == "multiclass"


# Tables in other forms ------------------------------------------------------------------------------------------------


class Input:
    """Standard input with the given bytes."""

    def __init__(self, contents):
        self.buffer = io.BytesIO(contents)


def test_tables_come_from_standard_input(folder, capsys, tmp_path, monkeypatch):
    model = folder / "model.safetensors"
    answers = {}
    for name in ("data.csv", "data.parquet"):
        monkeypatch.setattr(sys, "stdin", Input((folder / name).read_bytes()))
        assert ask(capsys, "predict", model, "-", "-o", tmp_path / "out.csv")[0] == 0
        answers[name] = (tmp_path / "out.csv").read_bytes()
    assert answers["data.csv"] == answers["data.parquet"]
    monkeypatch.setattr(sys, "stdin", Input((folder / "data.csv").read_bytes()))
    assert json.loads(ask(capsys, "evaluate", model, "-", "--json")[1])["rows"] == 200
    monkeypatch.setattr(sys, "stdin", Input(b""))
    assert complaint(capsys, "evaluate", model, "-").startswith("standard input is empty; it must hold a header")


def test_another_delimiter(folder, capsys, tmp_path):
    text = (folder / "data.csv").read_text()
    (tmp_path / "data.txt").write_text(text.replace(",", "|"))
    (tmp_path / "tabs.dat").write_text(text.replace(",", "\t"))
    model = folder / "model.safetensors"
    for source, delimiter in {"data.txt": "|", "tabs.dat": "tab"}.items():
        command = ["evaluate", model, tmp_path / source, "--json"]
        assert "must end in .csv" in complaint(capsys, *command)
        assert json.loads(ask(capsys, *command, "--delimiter", delimiter)[1])["rows"] == 200
    assert "--delimiter must be one character, or tab" in complaint(capsys, *command, "--delimiter", "::")


def test_every_command_speaks_json(folder, capsys, tmp_path):
    model, data = folder / "model.safetensors", folder / "data.csv"
    commands = {
        "file": ["predict", model, data, "-o", tmp_path / "out.csv"],
        "files": ["export", model, tmp_path / "m.c"],
    }
    for key, command in commands.items():
        assert key in json.loads(ask(capsys, *command, "--json")[1])
    for command in (["plot", "history", model, "-o", "h.png"], ["report", model, data, "-o", "r.html"]):
        out = str(tmp_path / command[-1])
        assert json.loads(ask(capsys, *command[:-1], out, "--json")[1]) == {"file": out}
    lines = ask(capsys, "predict", model, data, "--json", "--keep", "größe")[1].splitlines()
    assert len(lines) == 200
    assert list(json.loads(lines[0])) == ["größe", "prediction", "probability no", "probability yes"]


def test_formulas_are_escaped_if_asked(capsys, tmp_path):
    lines = ["x,name,label"] + [f"{i},=1+{i % 3},{'=cmd' if i % 2 else '-no'}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    model = tmp_path / "m.safetensors"
    assert ask(capsys, "train", tmp_path / "t.csv", "-t", "label", "-o", model, "--json", *QUICK)[0] == 0
    predict = ["predict", model, tmp_path / "t.csv", "--keep", "name", "-o", tmp_path / "out.csv"]
    ask(capsys, *predict)
    plain = read_text(tmp_path / "out.csv", ",").to_pydict()
    ask(capsys, *predict, "--escape")
    escaped = read_text(tmp_path / "out.csv", ",").to_pydict()
    assert plain["name"][0] == "=1+0"
    assert set(plain["prediction"]) <= {"=cmd", "-no"}
    assert escaped["name"] == [f"'{text}" for text in plain["name"]]
    assert escaped["prediction"] == [f"'{text}" for text in plain["prediction"]]
    assert escaped["probability =cmd"] == plain["probability =cmd"]


def test_kinds_are_declared_on_the_command_line(capsys, tmp_path):
    lines = ["zip,when,code,id,empty,y"] + [f"{i % 7},1{i % 9}02012,0{i % 5},id{i},,{i % 2}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    train = ["train", tmp_path / "t.csv", "-t", "y", "-o", tmp_path / "m.safetensors", "--json", *QUICK]
    code, out, notes = ask(capsys, *train)
    assert code == 0
    assert json.loads(out)["columns"] == {"zip": "numeric", "when": "numeric", "code": "category"}
    assert notes == (
        "note: Left out, since nothing can be learned from them: 'id' has a different text in every row, like an "
        "identifier; 'empty' has no values at all.\n"
    )
    options = ["--categorical", "zip", "--date", "when", "--numeric", "code", "--drop", "id", "--drop", "empty"]
    code, out, notes = ask(capsys, *train, *options)
    assert (code, notes) == (0, "")
    assert json.loads(out)["columns"] == {"zip": "category", "when": "datetime", "code": "numeric"}
    said = complaint(capsys, *train, "--strict")
    assert said == "Column 'id' has a different text in every row, like an identifier. Leave it out with --drop id."
    assert "must have one type; it is declared as" in complaint(capsys, *train, "--date", "zip", "--numeric", "zip")
    assert "did you mean 'zip'" in complaint(capsys, *train, "--numeric", "zap")


def test_prices_and_shares_get_a_hint(folder, capsys, tmp_path):
    lines = ["price,share,y"] + [f'"{1 + i % 9},{i:03d}",{i % 30}%,{i % 2}' for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    _, _, notes = ask(
        capsys, "train", tmp_path / "t.csv", "-t", "y", "-o", tmp_path / "m.safetensors", "--json", *QUICK
    )
    assert "Column 'share' looks like numbers, but is read as text because of '0%' (write numbers without" in notes
    assert "Column 'price' looks like numbers" in notes
    lines = (folder / "data.csv").read_text().splitlines()
    (tmp_path / "bad.csv").write_text("\n".join([lines[0], '"1,234"' + lines[1][lines[1].index(",") :]]) + "\n")
    said = complaint(capsys, "predict", folder / "model.safetensors", tmp_path / "bad.csv")
    assert "got '1,234' in line 2 (write numbers without separators of thousands, currency and percent signs" in said


def test_checkpoints_on_the_command_line(capsys, tmp_path):
    train = ["train", "iris", "-o", tmp_path / "m.safetensors", "--json", *QUICK]
    checkpoint = ["--checkpoint", tmp_path / "run.checkpoint"]
    assert ask(capsys, *train, *checkpoint)[0] == 0
    first = read_container(tmp_path / "m.safetensors")[1]
    assert ask(capsys, *train, *checkpoint, "--resume")[0] == 0
    again = read_container(tmp_path / "m.safetensors")[1]
    assert all(np.array_equal(again[name], first[name]) for name in first)
    assert "--resume needs --checkpoint FILE, the file to continue from" in complaint(capsys, *train, "--resume")
    (tmp_path / "run.checkpoint").write_bytes(b"none")
    assert "is damaged or not a checkpoint" in complaint(capsys, *train, *checkpoint, "--resume")
