"""Run recorded units once more and compare: on the same commit and machine, results must agree to the last bit.

python -m paper.verify              # ten units of table 2, the cheapest that are spread over sets and learners
python -m paper.verify --number 3
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from paper import table_auc
from paper.datasets import TABLES
from paper.learners import LEARNERS
from paper.runner import Record, Store, commit, option_parser
from paper.search import settings_of


def chosen(units: dict[str, Record], number: int) -> list[str]:
    """The cheapest finished units, no two of the same set and learner while there are others."""
    current = {
        key: record
        for key, record in units.items()
        if "result" in record and record["settings"] == settings_of(LEARNERS[key.split("/")[2]])
    }
    cheapest = sorted(current, key=lambda key: (current[key]["cpu_seconds"], key))
    first: dict[tuple[str, str], str] = {}
    for key in cheapest:
        name, _, learner = key.split("/")
        first.setdefault((name, learner), key)
    spread = sorted(first.values(), key=cheapest.index)
    return [*spread, *(key for key in cheapest if key not in spread)][:number]


def verify(store: Store, key: str, data: Path) -> bool:
    """Run one unit of table 2 again, with the budget of its record, and say whether the result is the same."""
    name, split, learner = key.split("/")
    record = store.units[key]
    rounds, rows = (record["budget"].get(what) or 0 for what in ("rounds", "tuning_rows"))
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--data", str(data), "--units", folder, "--rounds", str(rounds), "--tuning-rows", str(rows)]
        unit = table_auc.unit(table_auc.parse_options(arguments), name, int(split.removeprefix("split ")), learner)
        again = unit.run({}, lambda saved: None)
    same = again == record["result"]
    found = "same" if same else f"differs: {record['result']} then, {again} now"
    print(f"{key}: {found} (recorded on commit {record['commit']})", flush=True)
    return same


def main(arguments: Sequence[str] | None = None) -> bool:
    """Verify; True if all agree."""
    parser = option_parser(__doc__)
    parser.add_argument("--number", type=int, default=10, help="units to run; default 10")
    parser.add_argument("--sets", nargs="+", choices=TABLES, default=TABLES, metavar="SET")
    options = parser.parse_args(arguments)
    store = Store(table_auc.NAME, options.results, options.units)
    keys = chosen({key: unit for key, unit in store.units.items() if key.split("/")[0] in options.sets}, options.number)
    print(f"{len(keys)} units on commit {commit()}")
    same = [verify(store, key, options.data) for key in keys]
    print(f"{sum(same)} of {len(same)} are the same to the last bit")
    return all(same)


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
