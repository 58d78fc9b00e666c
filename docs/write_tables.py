"""Write the tables of docs/tabular.md: hyperparameters from their declarations, ranks from benchmarks/suite.json.

Usage: python docs/write_tables.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from softwood.cli.hyperparameters import option_names
from softwood.training.declaration import Declaration, declarations
from softwood.training.hyperparameters import Hyperparameters, all_declarations

PAGE = Path(__file__).parent / "tabular.md"
BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def table() -> str:
    """The table of all hyperparameters."""
    shared = declarations(Hyperparameters)
    rows = ["| name | values | default | what | `softwood train` |", "|---|---|---|---|---|"]
    for name, declaration in all_declarations().items():
        only = "" if name in shared else " Classifier only."
        cells = [f"`{name}`", declaration.notation, declaration.default_notation, f"{declaration.help}{only}"]
        rows.append(f"| {' | '.join([*cells, _options(declaration)])} |")
    return "\n".join(rows) + "\n"


def ranks() -> str:
    """The table of ranks among learners."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import suite_report
        import suite_units
    finally:
        sys.path.remove(str(BENCHMARKS))
    return suite_report.digest(suite_units.read_summary(BENCHMARKS / "suite.json"))


def with_tables(page: str) -> str:
    """The page with its tables as they should be."""
    for name, make in {"hyperparameters": table, "suite": ranks}.items():
        block = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- end -->)", re.DOTALL)
        text = make()
        page, n_tables = block.subn(lambda found, text=text: found[1] + text + found[2], page)
        assert n_tables == 1, f"the page must have one place for the table of {name}, between two comments"
    return page


def _options(declaration: Declaration) -> str:
    if not declaration.on_command_line:
        return ""
    return ", ".join(f"`{name}`" for name in option_names(declaration.name))


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
