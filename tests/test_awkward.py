"""softwood takes every table of benchmarks/awkward.py, and the page shows what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from awkward import RESULTS, TABLES, attempt, markdown

ROOT = Path(__file__).parent.parent


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", TABLES)
def test_softwood_takes_it(case):
    found = attempt("softwood", case)
    assert (found["predict"], found["explain"]) == ("yes", "yes"), found


def test_the_page_shows_what_was_measured():
    page = (ROOT / "docs" / "awkward-tables.md").read_text()
    results = json.loads(RESULTS.read_text())
    assert set(results["outcomes"]) == set(TABLES)
    assert len(TABLES) == 25
    assert markdown(results) in page
