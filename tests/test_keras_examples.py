"""The Keras example on each backend, and softwood.keras without Keras, each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BACKENDS = ["tensorflow", "jax", "torch"]


def run_python(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    # One thread each: the test processes run side by side, and torch's spin while they wait for a core.
    settings = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings}, cwd=ROOT)


def test_the_example_ends_at_the_same_auc_on_each_backend():
    auc = {}
    for backend in BACKENDS:
        run = run_python("examples/keras_tabular.py", "--backend", backend)
        assert run.returncode == 0, run.stderr
        assert re.search(rf"backend +{backend}\n", run.stdout)
        found = re.search(r"validation AUC +([\d.]+)", run.stdout)
        assert found is not None, run.stdout
        auc[backend] = float(found[1])
    assert min(auc.values()) > 0.97, auc
    assert max(auc.values()) - min(auc.values()) < 0.01, auc


def test_without_keras_the_error_names_the_extra():
    run = run_python("-c", "import sys; sys.modules['keras'] = None\nimport softwood.keras")
    message = "ImportError: softwood.keras needs Keras 3, which is not installed: pip install 'softwood[keras]'"
    assert message in run.stderr
