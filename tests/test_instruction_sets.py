"""The numerical tests once more, in a process of its own for each instruction set that this machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ISAS = ["baseline", "avx2", "avx512"]


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments], env=os.environ | environment, capture_output=True, text=True, cwd=HERE.parent
    )


def instruction_set(**environment):
    run = python("-W", "ignore", "-c", "from softwood import ops; print(ops.instruction_set())", **environment)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.parametrize("isa", ISAS)
def test_numerics_on(isa):
    best = instruction_set(SOFTWOOD_ISA="")
    if ISAS.index(isa) > ISAS.index(best):
        pytest.skip(f"this machine has {best} at most")
    if isa == best and "SOFTWOOD_ISA" not in os.environ:
        pytest.skip("covered by this run of the tests")
    tests = [str(HERE / name) for name in ("test_ops.py", "test_threads.py")]
    chosen = ["-p", "no:cacheprovider", "-p", "no:xdist", "-q", "-k", "not environment and not fork and not default"]
    run = python("-m", "pytest", *chosen, *tests, SOFTWOOD_ISA=isa, SOFTWOOD_TEST_PROFILE="quick")
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]


def test_a_higher_set_than_the_machine_has_is_not_used():
    best = instruction_set(SOFTWOOD_ISA="")
    assert instruction_set(SOFTWOOD_ISA="avx512") == best
    assert instruction_set(SOFTWOOD_ISA="baseline") == "baseline"
