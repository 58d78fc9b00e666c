"""Peak memory and time of a million rows by 50 columns: `fit` on an array, `partial_fit` on a Parquet or CSV file.

Each case runs in a process of its own, which reports its peak memory (Linux) against the size of the table.

    python benchmarks/long_table.py
    python benchmarks/long_table.py --cases partial_fit_csv --rows 200000
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

CASES = ("fit_float32", "fit_float64", "partial_fit_parquet", "partial_fit_csv")
PIECE_ROWS = 50_000


def make_piece(seed: int, n_rows: int, n_columns: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Normal features, and a label that depends on three of them."""
    X = np.random.default_rng(seed).standard_normal((n_rows, n_columns), dtype=np.float32).astype(dtype, copy=False)
    return X, (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(np.int64)


def write_file(path: Path, n_rows: int, n_columns: int) -> None:
    """Write the table in pieces, so that this process stays small."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    writer: Any = None
    for seed in range(n_rows // PIECE_ROWS):
        X, y = make_piece(seed, PIECE_ROWS, n_columns, "float32")
        table = pa.table({**{f"x{j}": X[:, j] for j in range(n_columns)}, "y": y})
        if writer is None:
            make = pyarrow.parquet.ParquetWriter if path.suffix == ".parquet" else pyarrow.csv.CSVWriter
            writer = make(path, table.schema)
        writer.write_table(table)
    writer.close()


def read_pieces(path: Path) -> Iterator[Any]:
    """Record batches of a file, in small blocks: pyarrow reads up to 32 of them ahead."""
    import pyarrow.csv
    import pyarrow.parquet

    if path.suffix == ".parquet":
        file = pyarrow.parquet.ParquetFile(path, pre_buffer=False)
        yield from file.iter_batches(batch_size=PIECE_ROWS, use_threads=False)
    else:
        options = pyarrow.csv.ReadOptions(block_size=1 << 22, use_threads=False)
        yield from pyarrow.csv.open_csv(path, read_options=options)


def status(key: str) -> float:
    """A figure of this process in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))


def run_case(case: str, n_rows: int, n_columns: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Train once and report time and peak memory, the libraries' own memory left out."""
    import pyarrow as pa

    from softwood import TreeEnsembleClassifier

    model = TreeEnsembleClassifier(random_state=0, **settings)
    warm = make_piece(0, 500, n_columns, "float32")
    TreeEnsembleClassifier(n_members=1, max_epochs=1).fit(*warm)
    X_test, y_test = make_piece(1_000_000, 20_000, n_columns, "float32")
    before = status("VmRSS")
    if case.startswith("fit"):
        dtype = case.removeprefix("fit_")
        X, y = np.empty((n_rows, n_columns), dtype), np.empty(n_rows, np.int64)
        for seed in range(n_rows // PIECE_ROWS):
            rows = slice(seed * PIECE_ROWS, (seed + 1) * PIECE_ROWS)
            X[rows], y[rows] = make_piece(seed, PIECE_ROWS, n_columns, dtype)
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to the present
        started = time.perf_counter()
        model.fit(X, y)
        table_mib = X.nbytes / 2**20
    else:
        table_mib = n_rows * n_columns * 4 / 2**20
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"table.{case.removeprefix('partial_fit_')}"
            command = [
                sys.executable,
                __file__,
                "--write",
                str(path),
                "--rows",
                str(n_rows),
                "--columns",
                str(n_columns),
            ]
            subprocess.run(command, check=True)
            Path("/proc/self/clear_refs").write_text("5")
            started = time.perf_counter()
            for batch in read_pieces(path):
                piece = pa.table(batch)
                model.partial_fit(piece.drop(["y"]), piece["y"].to_numpy(), classes=[0, 1])
            X_test = pa.table({f"x{j}": X_test[:, j] for j in range(n_columns)})
    seconds = time.perf_counter() - started
    peak = status("VmHWM") - before
    return {
        "case": case,
        "table_mib": round(table_mib),
        "peak_mib": round(peak),
        "peak_over_table": round(peak / table_mib, 2),
        "seconds": round(seconds, 1),
        "accuracy": round(float(model.score(X_test, y_test)), 4),
    }


def main() -> None:
    """Run each case in a process of its own and print one line of JSON for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--settings", type=json.loads, default={"max_epochs": 1, "n_members": 2}, help="JSON")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write_file(arguments.write, arguments.rows, arguments.columns)
    elif arguments.child:
        print(json.dumps(run_case(arguments.child, arguments.rows, arguments.columns, arguments.settings)), flush=True)
    else:
        for case in arguments.cases:
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--child", case], check=True)


if __name__ == "__main__":
    main()
