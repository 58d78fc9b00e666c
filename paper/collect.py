"""Fold finished units into the results files that are committed.

    python -m paper.collect --units DIR     # the folder that the experiments were given

Then ``python -m paper.render`` writes the report.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from paper.runner import RESULTS, UNITS, Store


def collect(results: Path, units: Path) -> dict[str, int]:
    """Number of finished units of each experiment that the folder of units has, after they were collected."""
    names = sorted(folder.name for folder in units.iterdir() if folder.is_dir()) if units.exists() else []
    return {name: Store(name, results, units).collect() for name in names}


def main(arguments: list[str] | None = None) -> None:
    """Collect, and say how much there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=Path, default=UNITS, help="folder of unit files; default paper/units")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results files")
    options = parser.parse_args(arguments)
    for name, n_units in collect(options.results, options.units).items():
        print(f"{options.results / name}.json: {n_units} units")


if __name__ == "__main__":
    main()
