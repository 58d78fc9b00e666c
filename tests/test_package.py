"""What ships: a light import, the version, type stubs that match the compiled module, and a README that runs."""

from __future__ import annotations

import doctest
import importlib.metadata
import itertools
import os
import re
import shlex
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
    """Neither a framework nor scikit-learn, and less than half a second of computing."""
    code = "import time; begin = time.process_time(); import softwood, sys; taken = time.process_time() - begin; "
    code += f"print([name for name in {[*HEAVY, 'sklearn', 'scipy']} if name in sys.modules], taken < 0.5)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[] True"


def test_public_names():
    assert set(softwood.__all__) >= {
        "TreeEnsembleClassifier", "TreeEnsembleRegressor", "load", "Loss", "export", "explain", "ops", "reference",
        "get_num_threads", "set_num_threads",
    }  # fmt: skip
    assert set(softwood.__all__) <= set(dir(softwood))
    assert {"torch", "keras", "jax", "training", "plot", "tune"} <= set(dir(softwood))
    for name in softwood.__all__:
        assert getattr(softwood, name) is not None
    code = "from softwood import *; import sys; print([n for n in ('torch', 'jax', 'keras') if n in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_unknown_attributes_are_refused():
    with pytest.raises(AttributeError, match="module 'softwood' has no attribute 'forest'"):
        _ = softwood.forest


# Each line and what mypy says of it: a revealed type, or an error.
TYPED = {
    "reveal_type(softwood.TreeEnsembleClassifier())": '"softwood.estimators.TreeEnsembleClassifier"',
    "reveal_type(softwood.TreeEnsembleRegressor().fit([[1.0]], [1.0]))": '"softwood.estimators.TreeEnsembleRegressor"',
    "reveal_type(softwood.TreeEnsembleRegressor().predict([[1.0]]))": '"numpy.ndarray[',
    "reveal_type(softwood.TreeEnsembleClassifier().depth)": '"int"',
    "reveal_type(softwood.TreeEnsembleClassifier().patience)": '"int | Literal[',
    'reveal_type(softwood.load("m.safetensors"))': (
        '"softwood.estimators.TreeEnsembleClassifier | softwood.estimators.TreeEnsembleRegressor"'
    ),
    'reveal_type(softwood.Loss("huber"))': '"softwood.training.losses.Loss"',
    'reveal_type(softwood.export.export(None, "m.c"))': '"list[pathlib.Path]"',
    "reveal_type(softwood.training.TrainingConfig(softwood.Loss('huber')).depth)": '"int"',
    "reveal_type(softwood.torch.TreeEnsemble(3, 1, 2, 4))": '"softwood.torch.layer.TreeEnsemble"',
    "reveal_type(softwood.get_num_threads())": '"int"',
    "softwood.TreeEnsembleClassifier(n_trees=8, l1='auto', batch_norm='fixed', random_state=0)": "",
    "softwood.TreeEnsembleClassifier(n_tree=8)": 'Unexpected keyword argument "n_tree"',
    "softwood.TreeEnsembleClassifier(8)": "Too many positional arguments",
    "softwood.TreeEnsembleClassifier(n_trees='8')": 'Argument "n_trees" to "TreeEnsembleClassifier"',
    "softwood.TreeEnsembleClassifier(activation='relu')": 'Argument "activation" to "TreeEnsembleClassifier"',
    "softwood.TreeEnsembleRegressor(class_weight='balanced')": 'Unexpected keyword argument "class_weight"',
    "softwood.forest": 'Module has no attribute "forest"',
}


def test_type_checkers_see_the_public_names(tmp_path):
    snippet = tmp_path / "snippet.py"
    snippet.write_text("\n".join(["import softwood", *TYPED]) + "\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--hide-error-context"]
    path = {**os.environ, "MYPYPATH": "src"}
    run = subprocess.run([*command, str(snippet)], cwd=ROOT, env=path, capture_output=True, text=True)
    said: dict[int, str] = {}
    for line in run.stdout.splitlines():
        if match := re.match(r".*snippet\.py:(\d+): (?:note|error): (.*)", line):
            said.setdefault(int(match[1]) - 2, match[2])
    for i, (line, expected) in enumerate(TYPED.items()):
        assert said.get(i, "").removeprefix("Revealed type is ").startswith(expected), (line, said.get(i), run.stdout)
        assert expected or i not in said, line


def test_the_oldest_versions_are_those_that_the_package_allows():
    """torch is the exception, of which no other version can be installed without a GPU's libraries everywhere."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    lists = [project["project"]["dependencies"], project["build-system"]["requires"]]
    requirements = itertools.chain(*lists, *(extras[name] for name in extras if name != "paper"))
    pins = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints-oldest.txt").read_text(), re.MULTILINE))
    bounds = [match.groups() for text in requirements if (match := re.match(r"([\w-]+)>=([\d.]+)$", text))]
    assert len(bounds) > 15
    for name, bound in bounds:
        if name not in ("torch", "cmake"):
            assert pins[name] == bound + ".0" * (2 - bound.count(".")), name


def test_stubs_match_the_compiled_module(tmp_path):
    pinned = re.search(r"^nanobind==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE).group(1)
    if importlib.metadata.version("nanobind") != pinned:
        pytest.skip(f"nanobind {pinned} writes the stubs")
    stub = tmp_path / "_core.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "softwood._core", "-o", str(stub)]
    subprocess.run(command, check=True, capture_output=True)
    assert stub.read_text() == (ROOT / "src/softwood/_core.pyi").read_text(), "run `make stubs`"
    assert (ROOT / "src/softwood/py.typed").exists()


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


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


def test_the_demo_runs(tmp_path):
    """What `make demo` runs once softwood is installed, taken from the Makefile."""
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1)
    (command,) = re.findall(r"^\t\$\(BIN\)/softwood (.*)$", recipe, re.MULTILINE)
    folder = re.search(r"^\tmkdir -p (.*)$", recipe, re.MULTILINE).group(1)
    (tmp_path / folder).mkdir(parents=True)
    run = subprocess.run(
        [sys.executable, "-m", "softwood", *shlex.split(command)], capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    assert float(re.search(r"accuracy\W+(0\.\d+|1)", run.stdout).group(1)) > 0.9
    written = {path.name for path in (tmp_path / folder).iterdir()}
    assert {"model.safetensors", "model.run.json", "model-report.html"} <= written


def test_the_example_on_arrays_runs():
    run = subprocess.run([sys.executable, ROOT / "examples/demo.py"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    losses = [float(line.split()[1]) for line in run.stdout.splitlines() if re.match(r" +\d+ +0\.", line)]
    assert len(losses) == 7
    assert losses[-1] < 0.3 * losses[0]
