"""What ships: a light import, the version, type stubs that match the compiled module, and a README that runs."""

from __future__ import annotations

import doctest
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import softwood

ROOT = Path(__file__).parent.parent
HEAVY = ["torch", "keras", "tensorflow", "jax", "pandas", "polars", "optuna", "matplotlib", "onnx", "typer", "rich"]


def test_the_version_is_that_of_the_distribution():
    assert softwood.__version__ == importlib.metadata.version("softwood")


def test_import_is_light():
    code = f"import softwood, sys; print([name for name in {HEAVY} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_unknown_attributes_are_refused():
    with pytest.raises(AttributeError, match="module 'softwood' has no attribute 'forest'"):
        _ = softwood.forest
    assert {"ops", "reference"} <= set(dir(softwood))


def test_stubs_match_the_compiled_module(tmp_path):
    stub = tmp_path / "_core.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "softwood._core", "-o", str(stub)]
    subprocess.run(command, check=True, capture_output=True)
    assert stub.read_text() == (ROOT / "src/softwood/_core.pyi").read_text(), "run `make stubs`"
    assert (ROOT / "src/softwood/py.typed").exists()


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    """All python blocks of a page, in order, as one program; blocks with prompts are checked against their output."""
    monkeypatch.chdir(tmp_path)  # some pages write files
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    if page.name == "README.md":
        assert blocks
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        if block.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block, names, page.name, str(page), 0)
            runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
            runner.run(test, clear_globs=False)
            assert runner.failures == 0, block
            names.update(test.globs)
        else:
            exec(compile(block, str(page), "exec"), names)


def test_the_two_commands_stand_at_the_top_of_the_readme():
    head = "\n".join((ROOT / "README.md").read_text().splitlines()[:15])
    assert "make demo" in head
    assert "make test" in head


def test_the_demo_runs():
    run = subprocess.run([sys.executable, ROOT / "examples/demo.py"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "What to look at" in run.stdout
