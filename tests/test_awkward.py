"""softwood takes every table of benchmarks/awkward.py, and the page shows what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from awkward import RESULTS, TABLES, attempt, markdown

ROOT = Path(__file__).parent.parent
# One row per level: what a level says cannot be told from chance, and training rows are not learned by heart.
USELESS = {"more_levels_than_rows_can_tell"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", TABLES)
def test_softwood_takes_it(case):
    found = attempt("softwood", case)
    assert (found["predict"], found["explain"]) == ("useless" if case in USELESS else "yes", "yes"), found


def test_the_page_shows_what_was_measured():
    page = (ROOT / "docs" / "awkward-tables.md").read_text()
    results = json.loads(RESULTS.read_text())
    assert set(results["outcomes"]) == set(TABLES)
    assert len(TABLES) == 27
    assert markdown(results) in page
