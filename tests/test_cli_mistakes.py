"""Mistakes in a call or in the data: one line with the remedy, exit code 2, no file left behind."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from safetensors.numpy import save as save_arrays

from cli_calls import QUICK, ask, complaint, mixed_table, train_in
from softwood.cli.tablefile import read_file

# Runs commands that arrive as JSON, one after the other; a line of the error stream separates them.
MANY_COMMANDS = """
import json, sys
from softwood.__main__ import run
for arguments in json.load(sys.stdin):
    code = run(arguments)
    print(f"exit code {code}", file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with one table in several formats and a model trained on it."""
    return train_in(tmp_path_factory.mktemp("cli"))


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ("", "is empty; it must hold a header and rows. Check how it was written."),
        ("x,y\n", "must hold at least one row; it has a header only. Check how it was written."),
        ("x,y\n1,2\n3\n", "Line 3 of {path} has 1 fields, and the header 2: correct the line"),
        ("x,x,y\n1,2,3\n", "Column names of {path} must differ; 'x' occurs twice. Rename one."),
        ("x,y\n1,a\n2,a\n", "The target of a classification must have two classes; 'y' is 'a' in every row."),
        ("x,y\n,a\n,b\n", "Column 'x' has no values at all. Leave it out with --drop x."),
        ("y\na\nb\n", "A model needs a column besides the target 'y'; the table has no other."),
        ("x,y\n1,\n2,\n", "The target 'y' must hold values; all its cells are missing."),
        ("my id,y\n" + "".join(f"id{i},{i % 2}\n" for i in range(30)), "Leave it out with --drop 'my id'."),
        ("x,y\n1,2024-01-01\n2,2024-01-02\n", "must hold numbers; 'y' holds dates."),
    ],
)
def test_a_table_that_cannot_be_learned_from(capsys, tmp_path, contents, says):
    path = tmp_path / "data.csv"
    path.write_text(contents)
    said = complaint(capsys, "train", path, "-t", "y", "-o", tmp_path / "m.safetensors")
    assert says.format(path=path) in said
    assert os.listdir(tmp_path) == ["data.csv"]


def everywhere(capsys, model, table, tmp_path):
    """The one line that every command which reads tables prints, without the name of the table."""
    out = tmp_path / "out"
    commands = [
        ["train", table, "-t", "will they leave?", "-o", f"{out}.safetensors"],
        ["tune", table, "-t", "will they leave?", "-o", f"{out}.json"],
        ["evaluate", model, table],
        ["predict", model, table, "-o", f"{out}.csv"],
        ["explain", model, table, "--row", "0"],
        ["plot", "tree", model, table, "-o", f"{out}.png"],
        ["report", model, table, "-o", f"{out}.html"],
    ]
    before = sorted(os.listdir(tmp_path))
    found = {complaint(capsys, *command).replace(f"{table}", "TABLE") for command in commands}
    assert sorted(os.listdir(tmp_path)) == before
    return found


ODD_TABLES = {
    "empty.csv": (lambda text: b"", "TABLE is empty; it must hold a header and rows."),
    "blank.csv": (lambda text: b"\n \n", "TABLE is empty; it must hold a header and rows."),
    "empty.csv.gz": (lambda text: gzip.compress(b""), "TABLE is empty; it must hold a header and rows."),
    "header.csv": (lambda text: text[: text.index(b"\n")], "TABLE must hold at least one row; it has a header only."),
    "ragged.csv": (lambda text: text + b"1,2\n", "Line 202 of TABLE has 2 fields, and the header 7: correct the line"),
    "twice.csv": (lambda text: text.replace(b"constant", b"is new", 1), "must differ; 'is new' occurs twice."),
    "junk.csv": (lambda text: bytes(range(256)) * 9, "TABLE is not a text file, despite its name."),
    "picture.csv": (lambda text: b"\x89PNG\r\n\x1a\n" + bytes(99), "TABLE is not a text file"),
    "utf16.csv": (lambda text: text.decode().encode("utf-16"), "it looks like UTF-16. Convert it: iconv -f UTF-16"),
    "latin1.csv": (lambda text: text.decode().replace("城市", "ä").encode("latin1"), "Convert it: iconv -f LATIN1"),
    "plain.csv.gz": (lambda text: text, "TABLE is not compressed with gzip, although its name ends in .gz. Rename it"),
    "cut.csv.gz": (lambda text: gzip.compress(text)[:-99], "TABLE is truncated or damaged"),
    "junk.parquet": (lambda text: text, "TABLE cannot be read (Parquet magic bytes not found"),
}


@pytest.mark.parametrize("name", ODD_TABLES)
def test_an_odd_table_is_refused_alike_everywhere(folder, capsys, tmp_path, name):
    make, says = ODD_TABLES[name]
    (tmp_path / name).write_bytes(make((folder / "data.csv").read_bytes()))
    [said] = everywhere(capsys, folder / "model.safetensors", tmp_path / name, tmp_path)
    assert says in said


def test_a_table_that_is_not_a_file_or_truncated(folder, capsys, tmp_path):
    model = folder / "model.safetensors"
    (tmp_path / "folder.csv").mkdir()
    assert everywhere(capsys, model, tmp_path / "folder.csv", tmp_path) == {
        "TABLE is a folder without Parquet files; name a file, or a folder of such files."
    }
    whole = (folder / "data.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[:500] + whole[-200:])
    [said] = everywhere(capsys, model, tmp_path / "cut.parquet", tmp_path)
    assert "smaller than the size reported by footer" in said
    [said] = everywhere(capsys, model, "nothing", tmp_path)
    assert said.startswith("There is no file or built-in table 'TABLE'. Built-in tables are breast-cancer")


@pytest.mark.parametrize("command", ["evaluate", "predict", "explain", "plot", "report", "info", "export"])
def test_a_model_of_another_kind_is_refused_everywhere(folder, capsys, tmp_path, command):
    written = (folder / "model.safetensors").read_bytes()
    files = {
        "newer": (written.replace(b'"format_version":"2"', b'"format_version":"9"'), "pip install --upgrade softwood"),
        "cut": (written[:-9], "is truncated"),
        "other": (save_arrays({"a": np.ones(3)}), "is a safetensors file, but not a softwood model. Name a file that"),
        "none": (b"x,y\n1,2\n3,4\n", "is not a softwood model"),
        "empty": (b"", "is not a softwood model"),
    }
    for name, (contents, says) in files.items():
        path = tmp_path / name
        path.write_bytes(contents)
        rest = {"export": ["m.c"], "info": [], "explain": []}.get(command, [folder / "data.csv"])
        arguments = ["plot", "tree", path, *rest] if command == "plot" else [command, path, *rest]
        assert says in complaint(capsys, *arguments)
    missing = tmp_path / "missing"
    arguments = ["plot", "history", missing] if command == "plot" else [command, missing, *rest]
    assert complaint(capsys, *arguments) == f"{missing}: No such file or directory. Check the path and its permissions."


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace(",", ";"),
        lambda text: text.replace(",", ";").replace(".", ","),
        lambda text: text.replace(",", "\t"),
    ],
    ids=["byte-order mark", "line ends of Windows", "semicolons", "decimal commas", "tabs"],
)
def test_other_ways_of_writing_a_csv_file_read_alike(folder, capsys, tmp_path, change):
    path = tmp_path / "other.csv"
    path.write_text(change((folder / "data.csv").read_text()), newline="")
    assert read_file(path).equals(read_file(folder / "data.csv"))
    outputs = []
    for source in (folder / "data.csv", path):
        assert ask(capsys, "predict", folder / "model.safetensors", source, "-o", tmp_path / "out.csv")[0] == 0
        outputs.append((tmp_path / "out.csv").read_bytes())
    assert outputs[0] == outputs[1]


def test_columns_may_be_absent_added_or_in_another_order(folder, capsys, tmp_path):
    """Only the columns of the model matter; a missing one is named, with the likeliest other name for it."""
    table, model = mixed_table(), folder / "model.safetensors"
    other = table.select(table.column_names[::-1]).append_column("list", pa.array([[1]] * len(table)))
    parquet.write_table(other, tmp_path / "other.parquet")
    parquet.write_table(table.drop_columns(["will they leave?"]), tmp_path / "new.parquet")
    outputs = []
    for source in (folder / "data.parquet", tmp_path / "other.parquet", tmp_path / "new.parquet"):
        assert ask(capsys, "predict", model, source, "-o", tmp_path / "out.csv")[0] == 0
        outputs.append((tmp_path / "out.csv").read_bytes())
    assert outputs[0] == outputs[1] == outputs[2]
    assert ask(capsys, "evaluate", model, tmp_path / "other.parquet")[0] == 0
    assert "must have a column 'will they leave?'" in complaint(capsys, "evaluate", model, tmp_path / "new.parquet")
    renamed = ["Color" if name == "colour" else name for name in table.column_names]
    parquet.write_table(table.rename_columns(renamed), tmp_path / "renamed.parquet")
    for command in (["predict"], ["evaluate"], ["explain"], ["plot", "tree"], ["report"]):
        said = complaint(capsys, *command, model, tmp_path / "renamed.parquet")
        assert said.endswith("'colour' is missing. If it is called 'Color' here, rename it.")


def test_a_column_that_cannot_be_read_can_be_dropped(capsys, tmp_path):
    table = mixed_table().append_column("list", pa.array([[1]] * 200))
    parquet.write_table(table, tmp_path / "data.parquet")
    command = ["train", tmp_path / "data.parquet", "-t", "will they leave?", "-o", tmp_path / "m.safetensors", *QUICK]
    assert "column 'list' has dtype List(Int64). Convert or drop it." in complaint(capsys, *command)
    assert ask(capsys, *command, "--drop", "list")[0] == 0


def test_a_word_among_numbers_is_pointed_out(folder, capsys, tmp_path):
    path = tmp_path / "word.csv"
    lines = (folder / "data.csv").read_text().splitlines()
    path.write_text("\n".join([lines[0], "heavy" + lines[1][lines[1].index(",") :], *lines[2:]]) + "\n")
    command = ["train", path, "-t", "will they leave?", "-o", tmp_path / "m.safetensors"]
    said = complaint(capsys, *command)
    assert said.startswith("Column 'größe' holds numbers, but also 'heavy'. Correct or empty such cells")
    for command in (["predict"], ["evaluate"], ["report"]):
        said = complaint(capsys, *command, folder / "model.safetensors", path)
        assert said.startswith(f"Column 'größe' of {path} must hold numbers, as in training; got 'heavy' in line 2.")
    path.write_text("x,y\n" + "".join(f"{i % 30},{i % 2}\n" for i in range(300)) + "heavy,1\n")
    code, _, notes = ask(capsys, "train", path, "-t", "y", "-o", tmp_path / "m.safetensors", "--json", *QUICK)
    assert code == 0
    assert notes.startswith("note: Column 'x' holds numbers, but also 'heavy', and is read as text.")


def test_an_infinity_is_noted(capsys, tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(40)) + "inf,1\n")
    command = ["train", path, "-t", "y", "-o", tmp_path / "m.safetensors", "--json", "--test-fraction", "0.05", *QUICK]
    code, _, notes = ask(capsys, *command)
    assert code == 0
    assert notes.startswith("note: Column 'x' holds infinities, which are read as the largest finite value.")


def test_outputs_that_cannot_be_written(folder, capsys, tmp_path):
    data, model = folder / "data.csv", folder / "model.safetensors"
    target = ["-t", "will they leave?"]
    commands = {
        ".safetensors": ["train", data, *target, "-o"],
        ".json": ["tune", data, *target, "-o"],
        ".csv": ["predict", model, data, "-o"],
        ".png": ["plot", "tree", model, data, "-o"],
        ".html": ["report", model, data, "-o"],
        ".c": ["export", model],
    }
    for suffix, command in commands.items():
        out = tmp_path / f"new folder/out{suffix}"
        said = complaint(capsys, *command, out)
        assert said == f"The folder of {out} must exist; it does not. Create it: mkdir -p '{out.parent}'"
        taken = tmp_path / f"taken{suffix}"
        taken.mkdir()
        assert complaint(capsys, *command, taken).startswith(f"{taken} is a folder; name a file to write, such as")
        assert "must end in" in complaint(capsys, *command, tmp_path / "out.wrong")
    assert not any(list(path.iterdir()) for path in tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to the superuser")
def test_places_that_are_not_permitted(folder, capsys, tmp_path):
    (tmp_path / "secret.csv").write_bytes((folder / "data.csv").read_bytes())
    (tmp_path / "secret.csv").chmod(0)
    assert "must be readable" in complaint(capsys, "predict", folder / "model.safetensors", tmp_path / "secret.csv")
    tmp_path.chmod(0o555)
    out = tmp_path / "out.csv"
    said = complaint(capsys, "predict", folder / "model.safetensors", folder / "data.csv", "-o", out)
    assert said == f"The folder of {out} must be writable; it is not. Choose another with --out."
    tmp_path.chmod(0o755)


def test_a_full_disk_leaves_no_file(folder, tmp_path):
    """A limit on the size of files stands in for the disk; its error is another, but arises in the same place."""
    limited = "import resource as r, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limited += "r.setrlimit(r.RLIMIT_FSIZE, (1000, 1000))\n"
    predict = ["predict", str(folder / "model.safetensors"), str(folder / "data.csv"), "-o"]
    # The limit would hit the files that measure coverage, too.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, "-B", "-c", limited + MANY_COMMANDS],
        input=json.dumps([[*predict, "out.csv"], [*predict, "out.parquet"]]),
        env={**environment, "GCOV_ERROR_FILE": os.devnull},
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert re.fullmatch(r"(error: .*File too large.*\nexit code 2\n){2}", done.stderr)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_reported_in_plain_words(folder, capsys, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("softwood.explain.report.write_whole", fail)
    said = complaint(capsys, "report", folder / "model.safetensors", folder / "data.csv")
    assert said == "No space is left on the disk that is written to. Free some, or choose another place with --out."


def test_names_that_are_wrong(folder, capsys, tmp_path):
    data, model = folder / "data.csv", folder / "model.safetensors"
    said = complaint(capsys, "train", data, "-t", "will they leaf")
    assert "did you mean 'will they leave?'" in said
    assert complaint(capsys, "train", data).startswith("Name the column to predict with --target; ")
    assert "There is no file 'nowhere.csv'" in complaint(capsys, "train", "nowhere.csv", "-t", "y")
    assert "Built-in tables are breast-cancer, iris" in complaint(capsys, "train", "irs")
    assert "must end in .csv, .tsv (both also .gz) and .parquet" in complaint(capsys, "train", "data.xls", "-t", "y")
    assert "did you mean 'colour'" in complaint(capsys, "train", data, "-t", "will they leave?", "--drop", "color")
    assert "mkdir -p" in complaint(capsys, "train", "iris", "-o", tmp_path / "no" / "m.safetensors")
    assert "'größe', 'colour', '城市', 'constant', 'is new' and 1 more are missing" in complaint(
        capsys, "predict", model, "iris"
    )
    assert "did you mean 'will they leave?'" in complaint(capsys, "train", data, "-t", "WILL THEY LEAVE")
    assert "The tree must be 0 to 3; got 4." in complaint(capsys, "plot", "tree", model, data, "--tree", "4")
    assert "depth must be" in complaint(capsys, "train", "iris", "-o", tmp_path / "m.safetensors", "--depth", "0")


def test_files_that_are_not_models(folder, capsys, tmp_path):
    data = folder / "data.csv"
    assert "nowhere.safetensors: No such file" in complaint(capsys, "info", "nowhere.safetensors")
    assert "is not a softwood model" in complaint(capsys, "predict", data, data)
    newer = (folder / "model.safetensors").read_bytes().replace(b'"format_version":"2"', b'"format_version":"9"')
    (tmp_path / "newer.safetensors").write_bytes(newer)
    said = complaint(capsys, "evaluate", tmp_path / "newer.safetensors", data)
    assert "written by a newer softwood" in said
    assert "pip install --upgrade softwood" in said


def test_a_bad_cell_leaves_no_output(folder, capsys, tmp_path):
    """The cell comes after more than 2^20 bytes, when predictions of earlier rows have been written."""
    lines = (folder / "data.csv").read_text().splitlines()
    path = tmp_path / "bad.csv"
    bad = "heavy" + lines[1][lines[1].index(",") :]
    path.write_text("\n".join([lines[0], *lines[1:] * 150, bad]))
    command = ["predict", folder / "model.safetensors", path, "-o", tmp_path / "out.csv", "--batch-rows", "5000"]
    said = complaint(capsys, *command)
    assert "must hold numbers, as in training; got 'heavy'" in said
    assert os.listdir(tmp_path) == ["bad.csv"]


def test_usage_errors_are_one_line_too(capsys):
    assert "No such option: --nonsense" in complaint(capsys, "train", "iris", "--nonsense")
    assert complaint(capsys, "train") == "Missing argument 'TABLE'. See: softwood train --help"
    assert "Invalid value for '--depth'" in complaint(capsys, "train", "iris", "--depth", "deep")
    assert "Invalid value for '--random-state' / '--seed'" in complaint(capsys, "train", "iris", "--seed", "-1")
    assert "No such command 'trane'." in complaint(capsys, "trane")
    assert "'history', 'importances', 'tree'" in complaint(capsys, "plot", "nothing")
    code, printed, _ = ask(capsys)
    assert code == 2
    assert "softwood [OPTIONS] COMMAND" in printed


def test_mistakes_in_a_process_of_their_own(folder, tmp_path):
    """What a shell sees: nothing on standard output, one line with the remedy, exit code 2, no traceback, no file."""
    tables = {
        "empty": "",
        "hollow": "x,y\n,a\n,b\n",
        "one-class": "x,y\n1,a\n2,a\n",
        "ragged": "x,y\n1,2\n3\n",
        "ids": "id,y\n" + "".join(f"id{i},{i % 2}\n" for i in range(40)),
        "good": "x,yield\n" + "".join(f"{i},{i % 2}\n" for i in range(40)),
    }
    for name, contents in tables.items():
        (tmp_path / f"{name}.csv").write_text(contents)
    model = (folder / "model.safetensors").read_bytes()
    (tmp_path / "newer.model").write_bytes(model.replace(b'"format_version":"2"', b'"format_version":"9"'))
    before = sorted(os.listdir(tmp_path))
    expected = {
        ("train", "missing.csv", "-t", "y"): "Check the path",
        ("train", "good.csv", "-t", "yeild"): "did you mean 'yield'?",
        ("train", "empty.csv", "-t", "y"): "Check how it was written",
        ("train", "hollow.csv", "-t", "y"): "--drop x",
        ("train", "one-class.csv", "-t", "y"): "Choose another target",
        ("train", "ragged.csv", "-t", "y"): "correct the line",
        ("train", "ids.csv", "-t", "y"): "--drop id",
        ("info", "newer.model"): "pip install --upgrade softwood",
        ("predict", "good.csv", "good.csv"): "is not a softwood model",
        ("evaluate", "missing.model", "good.csv"): "Check the path",
        ("export", "newer.model", "model.c"): "pip install --upgrade softwood",
        ("train", "good.csv", "--tresse", "3"): "--trees",
    }
    done = subprocess.run(
        [sys.executable, "-c", MANY_COMMANDS],
        input=json.dumps(list(expected)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == ""
    said = re.split(r"exit code (\d+)\n", done.stderr)[:-1]
    assert said[1::2] == ["2"] * len(expected)
    for message, remedy in zip(said[::2], expected.values(), strict=True):
        assert re.fullmatch(r"error: .*\n", message)  # one line: a dot matches no line's end
        assert remedy in message
    assert sorted(os.listdir(tmp_path)) == before


def test_a_missing_extra_is_named():
    code = "import sys; sys.modules['typer'] = None\nfrom softwood.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "error: The softwood command needs typer: pip install 'softwood[cli]'\n"


# Inputs are never overwritten ----------------------------------------------------------------------------------------


def test_no_command_writes_over_what_it_reads(folder, capsys, tmp_path):
    for name in ("data.csv", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    data, model = tmp_path / "data.csv", tmp_path / "model.safetensors"
    (tmp_path / "best.run.json").write_text('{"depth": 2}')
    (tmp_path / "m-test.csv").write_bytes(data.read_bytes())
    (tmp_path / "link.csv").symlink_to(data)
    os.link(model, tmp_path / "picture.png")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    target = ["-t", "will they leave?"]
    commands = {
        "data.csv is the table": ["predict", model, data, "-o", data],
        "link.csv is the table": ["predict", model, data, "-o", tmp_path / "link.csv"],
        "best.run.json is the file of parameters": [
            "train", data, *target, "--params", tmp_path / "best.run.json", "-o", tmp_path / "best.safetensors"
        ],
        "m-test.csv is the table": ["train", tmp_path / "m-test.csv", *target, "-o", tmp_path / "m.safetensors"],
        "picture.png is the model": ["plot", "history", model, "-o", tmp_path / "picture.png"],
    }  # fmt: skip
    for says, command in commands.items():
        said = complaint(capsys, *command)
        assert f"{says} that this command reads, and would be overwritten. Name another file with --out." in said
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_best_parameters_survive_a_model_of_the_same_name(capsys, tmp_path):
    (tmp_path / "best.json").write_text('{"depth": 2, "n_trees": 2, "n_members": 1, "max_epochs": 1}')
    command = ["train", "iris", "--params", tmp_path / "best.json", "-o", tmp_path / "best.safetensors", "--json"]
    assert ask(capsys, *command)[0] == 0
    assert json.loads((tmp_path / "best.json").read_text())["n_trees"] == 2
    assert sorted(os.listdir(tmp_path)) == ["best.json", "best.run.json", "best.safetensors"]
