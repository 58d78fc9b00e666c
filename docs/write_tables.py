"""Write the table of hyperparameters in docs/tabular.md from their declarations: python docs/write_tables.py"""

from __future__ import annotations

import re
from pathlib import Path

from softwood.cli.hyperparameters import option_names
from softwood.training.declaration import Declaration, declarations
from softwood.training.hyperparameters import Hyperparameters, all_declarations

PAGE = Path(__file__).parent / "tabular.md"
_BLOCK = re.compile(r"(<!-- hyperparameters: .*? -->\n).*?(<!-- end -->)", re.DOTALL)


def table() -> str:
    """The table of all hyperparameters."""
    shared = declarations(Hyperparameters)
    rows = ["| name | values | default | what | `softwood train` |", "|---|---|---|---|---|"]
    for name, declaration in all_declarations().items():
        only = "" if name in shared else " Classifier only."
        cells = [f"`{name}`", declaration.notation, declaration.default_notation, f"{declaration.help}{only}"]
        rows.append(f"| {' | '.join([*cells, _options(declaration)])} |")
    return "\n".join(rows) + "\n"


def with_table(page: str) -> str:
    """The page with its table as it should be."""
    found, n_tables = _BLOCK.subn(lambda block: block[1] + table() + block[2], page)
    assert n_tables == 1, "the page must have one place for the table, between two comments"
    return found


def _options(declaration: Declaration) -> str:
    if not declaration.on_command_line:
        return ""
    return ", ".join(f"`{name}`" for name in option_names(declaration.name))


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
