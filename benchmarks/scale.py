"""What it costs to train on tables that are larger than memory. Each part writes its results to benchmarks/scale.json.

    python benchmarks/scale.py --part files                       # 20,000,000 rows by 20 columns; needs 4 GB of disk
    python benchmarks/scale.py --part files --rows 1000000        # the same, shorter
    python benchmarks/scale.py --part dask                        # workers on this machine; an hour
    python benchmarks/scale.py --part flights --folder FOLDER     # 3,000,000 real rows, in a file that FOLDER holds

Parts are modules beside this one; each has a function `run(arguments)` that returns plain data.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

import machine

PARTS = {"files": "scale_files", "dask": "scale_dask", "flights": "scale_flights"}
RESULTS = Path(__file__).with_name("scale.json")


def main() -> None:
    """Run one part and keep what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--rows", type=int, help="Rows of the table; each part has its own default.")
    parser.add_argument("--folder", type=Path, help="Where the table is written; a temporary folder if not given.")
    parser.add_argument("--cases", nargs="*", help="Only these cases of the part.")
    parser.add_argument("--more", action="store_true", help="Add runs of speed to those of an earlier call.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found = importlib.import_module(PARTS[arguments.part]).run(arguments)
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    before = results.get(arguments.part, {})
    found["cases"] = before.get("cases", {}) | found["cases"]
    results[arguments.part] = before | found | {"machine": machine.facts()}
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
