"""What tests of the command line share: a table as users have them, a model of it, and ways to call a command."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
import threading

import matplotlib.font_manager  # noqa: F401 - makes its cache and says so now, and not in a test
import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from softwood.__main__ import run

QUICK = ["--members", "1", "--trees", "4", "--epochs", "15", "--learning-rate", "0.05", "--max-features", "1"]


def mixed_table(n=200, seed=0):
    """Mixed types, missing cells, unicode names, a constant column, and a target with spaces in its name."""
    rng = np.random.default_rng(seed)
    size = rng.normal(50, 10, n)
    return pa.table(
        {
            "größe": pa.array(size, mask=rng.random(n) < 0.1),
            "colour": pa.array(rng.choice(["red", "green", "blue"], n), mask=rng.random(n) < 0.1),
            "城市": rng.choice([f"city {i}" for i in range(30)], n),
            "constant": np.full(n, 7.0),
            "is new": rng.random(n) < 0.5,
            "since": pa.array(np.datetime64("2024-01-01T00", "s") + rng.integers(0, 10**7, n)),
            "will they leave?": np.where(size > 50, "yes", "no"),
        }
    )


def train_in(folder):
    """Write one table in several formats and a model trained on it; return the folder."""
    table = mixed_table()
    arrow_csv.write_csv(table, folder / "data.csv")
    text = (folder / "data.csv").read_text()
    with gzip.open(folder / "data.tsv.gz", "wt") as file:
        file.write(text.replace(",", "\t"))
    parquet.write_table(table, folder / "data.parquet")
    command = ["train", str(folder / "data.csv"), "-t", "will they leave?", "-o", str(folder / "model.safetensors")]
    assert run([*command, *QUICK, "--json"]) == 0
    return folder


def ask(capsys, *arguments):
    """Exit code, standard output and standard error of a command."""
    capsys.readouterr()
    code = run([str(argument) for argument in arguments])
    found = capsys.readouterr()
    return code, found.out, found.err


def complaint(capsys, *arguments):
    """The one line that a mistaken command prints."""
    code, out, err = ask(capsys, *arguments)
    assert code == 2
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


# A shell that starts this in the background lets its children ignore Ctrl-C; they must not.
INTERRUPTIBLE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import softwood.__main__ as m; "
)


def interrupt_after(first_words, arguments, cwd, *, then="", signal_=signal.SIGINT):
    """Exit code and error stream of a command that gets a signal once a line of it begins with the given words."""
    code = INTERRUPTIBLE + then + "m.main()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    too_late = threading.Timer(60, process.kill)
    too_late.start()
    try:
        assert process.stderr is not None
        for line in process.stderr:  # ends at the latest when the timer kills the process
            if line.startswith(first_words):
                process.send_signal(signal_)
                break
        said = process.stderr.read()
        return process.wait(timeout=60), said
    finally:
        too_late.cancel()
        process.kill()
        process.wait(timeout=60)
