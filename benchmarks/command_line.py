"""Time and peak memory of the commands on a long table as users have them, each in a process of its own.

The table has numbers, words, dates and booleans, missing cells, names in several scripts, a constant column and a
target with spaces in its name. `predict` also meets a file ten times as long: its memory must not follow.

    python benchmarks/command_line.py
    python benchmarks/command_line.py --rows 20000 --epochs 3
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from machine import facts

TARGET = "will they leave?"
PIECE_ROWS = 100_000


def make_piece(seed: int, n: int) -> pa.Table:
    """Some rows of the table; the target depends on six of its columns."""
    rng = np.random.default_rng(seed)
    size, income, is_new = rng.normal(50, 10, n), rng.lognormal(10, 1, n), rng.random(n) < 0.5
    colour = rng.choice(["red", "green", "blue"], n)
    city = rng.choice([f"город {i}" for i in range(300)], n)
    since = np.datetime64("2018-01-01", "s") + rng.integers(0, 2 * 10**8, n)
    score = 0.08 * (size - 50) + (colour == "red") + 0.6 * is_new + 0.5 * np.log(income / 22_000)
    leaves = rng.random(n) < 1 / (1 + np.exp(-score))

    def with_holes(values: Any, share: float = 0.1) -> pa.Array:
        return pa.array(values, mask=rng.random(n) < share)

    return pa.table(
        {
            "größe": with_holes(size),
            "colour": with_holes(colour),
            "城市": with_holes(city),
            "constant": np.full(n, 7.0),
            "is new": with_holes(is_new),
            "since": with_holes(since),
            "born": with_holes(since.astype("datetime64[D]")),
            "income, €": with_holes(income),
            TARGET: with_holes(np.where(leaves, "yes", "no"), 0.01),
        }
    )


def write_tables(stem: Path, n_rows: int) -> None:
    """Write the table as CSV and Parquet, piece by piece."""
    writers: list[Any] = []
    for seed, first in enumerate(range(0, n_rows, PIECE_ROWS)):
        piece = make_piece(seed, min(PIECE_ROWS, n_rows - first))
        if not writers:
            writers = [
                arrow_csv.CSVWriter(f"{stem}.csv", piece.schema),
                parquet.ParquetWriter(f"{stem}.parquet", piece.schema),
            ]
        for writer in writers:
            writer.write_table(piece)
    for writer in writers:
        writer.close()


def run(*arguments: str, cwd: Path) -> dict[str, Any]:
    """Run a command; its wall time, CPU time and peak memory."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "softwood", *arguments]
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        raise RuntimeError(f"softwood {' '.join(arguments)} failed")
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_mib": round(used.ru_maxrss / 1024),
    }


def main() -> None:
    """Run all commands and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/command_line.json"))
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tables(folder / "short", options.rows)
        write_tables(folder / "long", 10 * options.rows)
        model = "model.safetensors"
        commands = {
            "train": ["train", "short.csv", "-t", TARGET, "--epochs", str(options.epochs)],
            "evaluate": ["evaluate", model, "short.csv"],
            "explain": ["explain", model, "short.csv", "--row", "0"],
            "plot tree": ["plot", "tree", model, "short.csv"],
            "report": ["report", model, "short.csv"],
        }
        for length in ("short", "long"):
            for form in ("csv", "parquet"):
                out = f"out.{form}"
                commands[f"predict, {length}, {form}"] = ["predict", model, f"{length}.{form}", "-o", out]
        for what, command in commands.items():
            found[what] = run(*command, cwd=folder)
            print(f"| {what} | {' | '.join(str(value) for value in found[what].values())} |", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": facts(), "rows": options.rows, "commands": found}, indent=2))


if __name__ == "__main__":
    main()
