"""What an installed softwood must do with nothing but its own dependencies: python tests/smoke.py

Run by `make wheel`, `make sdist` and cibuildwheel in an empty environment, where there is no pytest. It checks that the
installed package is used, not the sources beside this file.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

import softwood
from softwood import ops, reference
from softwood.export import export


def check_package() -> None:
    """The package is installed whole: native module, type stubs, the report's page."""
    folder = Path(softwood.__file__).resolve().parent
    assert "site-packages" in folder.parts or "dist-packages" in folder.parts, f"imported from {folder}: not installed"
    for name in ("py.typed", "_core.pyi", "explain/report.html", "explain/report.js"):
        assert (folder / name).is_file(), f"{name} is missing in the package"


def check_layer() -> None:
    """The kernels agree with their definition."""
    rng = np.random.default_rng(0)
    x, w, o = rng.normal(size=(300, 7)), rng.normal(size=(5, 2**6 - 1, 7)), rng.normal(size=(5, 2**6, 3))
    expected = reference.forward(x, w, o)
    np.testing.assert_allclose(ops.forward(x, w, o), expected, rtol=0, atol=1e-10)
    gradients, true = ops.backward(expected, x, w, o), reference.backward(expected, x, w, o)
    for name in ("x", "split_weight", "leaf_weight"):
        np.testing.assert_allclose(getattr(gradients, name), getattr(true, name), rtol=1e-7, atol=1e-8, err_msg=name)


def check_learner(folder: Path) -> None:
    """Fit, predict, save, load, export."""
    X, y = load_breast_cancer(return_X_y=True)
    model = softwood.TreeEnsembleClassifier(n_members=1, random_state=0).fit(X[:400], y[:400])
    assert model.score(X[400:], y[400:]) > 0.95
    model.save(folder / "model.safetensors")
    again = softwood.load(folder / "model.safetensors")
    assert (again.predict_proba(X) == model.predict_proba(X)).all()
    assert {path.name for path in export(model, folder / "model.c")} == {"model.c", "model.h"}


def check_command() -> None:
    """Without its extra, the command names what to install."""
    run = subprocess.run([sys.executable, "-m", "softwood", "--version"], capture_output=True, text=True)
    assert run.returncode == 0 or "softwood[cli]" in run.stderr, run.stderr


def main() -> None:
    begin = time.perf_counter()
    check_package()
    check_layer()
    with tempfile.TemporaryDirectory() as folder:
        check_learner(Path(folder))
    check_command()
    seconds = time.perf_counter() - begin
    print(
        f"softwood {softwood.__version__} ({ops.instruction_set()}), Python {sys.version.split()[0]}: {seconds:.1f} s"
    )


if __name__ == "__main__":
    main()
