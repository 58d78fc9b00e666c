"""What a release needs: one version everywhere, pinned linters, workflows that call targets which exist."""

from __future__ import annotations

import importlib.util
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PINS = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE).group(1)


@pytest.fixture
def check_release(tmp_path, monkeypatch):
    """The script, on a copy of the files that it reads."""
    specification = importlib.util.spec_from_file_location("check_release", ROOT / ".ci/check_release.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    for name in ("pyproject.toml", "CHANGELOG.md", "CITATION.cff"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def test_the_citation_has_the_version_of_the_package():
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()


def test_hooks_pin_the_linters_that_development_uses():
    pins = re.findall(r"\[([\w-]+)==([\w.]+)\]", (ROOT / ".pre-commit-config.yaml").read_text())
    assert {name for name, _ in pins} == {"ruff", "clang-format", "check-jsonschema"}
    assert all(PINS[name] == version for name, version in pins)


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_workflows_call_targets_of_the_makefile(path):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    runs = re.findall(r"run: (.*)", path.read_text())
    assert runs
    for run in runs:
        called = re.match(r"make ([\w-]+)", run)
        assert called is None or called[1] in targets, run
        assert called or run.startswith("sudo apt-get"), f"{run!r} lives in YAML alone"


def test_a_release_is_refused_until_everything_agrees(check_release, tmp_path):
    assert "the tag must be" in check_release.complaints("v9.9.9")[0]
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("[Unreleased]", f"[{VERSION}] - 2030-01-31"))
    project = tmp_path / "pyproject.toml"
    urls = '[project.urls]\nSource = "https://example.org"\nIssues = "https://example.org"\n'
    project.write_text(re.sub(r"\[project\.urls\].*\n", urls, project.read_text(), count=1))
    assert check_release.complaints(f"v{VERSION}") == []
    (tmp_path / "CITATION.cff").write_text("version: 0.0.0\n")
    assert check_release.complaints(f"v{VERSION}") == [f"CITATION.cff must say 'version: {VERSION}'"]


def test_numbers_of_the_pages_are_those_of_the_results():
    """README.md and pages of docs/ say what the JSON of benchmarks/ and paper/results/ says."""
    script = runpy.run_path(str(ROOT / "docs/write_tables.py"))
    assert ROOT / "README.md" in script["PAGES"]
    for path, names in script["PAGES"].items():
        page = path.read_text()
        assert script["with_tables"](page, names) == page, f"{path.name}: run `python docs/write_tables.py`"


MODULES = [
    "callbacks",
    "explain",
    "export",
    "jax",
    "keras",
    "model",
    "ops",
    "plot",
    "reference",
    "report",
    "torch",
    "tune",
]


def documented() -> str:
    return "\n".join(path.read_text() for path in (ROOT / "docs/api").glob("*.md"))


@pytest.mark.parametrize("name", ["", *MODULES, "training", "losses"])
def test_the_reference_has_every_public_name(name):
    """Read from the sources, since frameworks are slow to import."""
    path = ROOT / "src/softwood" / name
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    names = re.findall(r'"(\w+)"', re.search(r"^__all__ = \[(.*?)\]", source, re.MULTILINE | re.DOTALL)[1])
    assert names
    module = ".".join(filter(None, ["softwood", name]))
    text = documented()
    if f"automodule:: {module}\n   :members:" in text:
        return
    for public in names:
        is_module = public in [*MODULES, "training", "losses"]
        is_known = (
            is_module or public.startswith("__") or f":: {module}.{public}\n" in text or f"{module}.{public}`" in text
        )
        assert is_known or f"[{module}.{public}]" in text, f"{module}.{public} is missing in docs/api"


def test_the_architecture_names_every_file():
    """Each Python file below the heading of its folder, and each C++ file below that of `core/` or `bindings/`."""
    page = (ROOT / "docs/architecture.md").read_text()
    sections = dict(re.findall(r"^### (`[^\n]*`)\n(.*?)(?=^##)", page, re.MULTILINE | re.DOTALL))
    frameworks = "`torch/`, `keras/`, `jax/`"
    package = ROOT / "src/softwood"
    for path in sorted(package.glob("**/*.py")):
        folder = path.parent.relative_to(package).as_posix()
        heading = "`src/softwood/`" if folder == "." else frameworks if folder in frameworks else f"`{folder}/`"
        names = {f"`{path.name}`", f"`{folder}/{path.name}`"}
        is_named = path.stem.startswith("__") or any(name in sections[heading] for name in names)
        assert is_named, f"docs/architecture.md must say below {heading} what {path.name} does"
    for folder in ("core", "bindings"):
        for path in sorted([*(ROOT / folder).glob("**/*.h"), *(ROOT / folder).glob("**/*.cc")]):
            is_named = f"`{path.name}`" in sections[f"`{folder}/`"] or f"`{path.stem}.*`" in sections[f"`{folder}/`"]
            assert is_named, f"docs/architecture.md must say below `{folder}/` what {path.name} does"


def test_contributing_lists_every_benchmark():
    page = (ROOT / "CONTRIBUTING.md").read_text().split("## Benchmarks")[1]
    assert [path.name for path in (ROOT / "benchmarks").glob("*.py") if f"`{path.name}`" not in page] == []
