"""Threads: the same bits whatever their number, calls from many Python threads at once, and calls after fork."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import softwood
from softwood import ops

SHAPES = [  # n, p, m, d, spread
    (700, 13, 7, 5, 4.0),
    (300, 6, 1, 8, 4.0),
    (257, 40, 23, 4, 0.1),
    (5, 30, 100, 6, 4.0),
    (1000, 3, 2, 3, 1.0),
]


def run(problem, n_threads):
    y, tape = ops.forward(*problem.arrays, with_tape=True, n_threads=n_threads, **problem.options)
    gradients = ops.backward(problem.grad_output, *problem.arrays, tape=tape, n_threads=n_threads, **problem.options)
    counts = ops.reachability(problem.x, problem.split_weight, n_threads=n_threads, **problem.routing)
    arrays = [y, *(gradient for gradient in gradients if gradient is not None), *counts]
    return [array.tobytes() for array in arrays]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sum_trees", [True, False])
def test_every_number_of_threads_gives_the_same_bits(make_problem, shape, dtype, sum_trees):
    n, p, m, d, spread = shape
    problem = make_problem(n, p, 3, m, d, dtype=dtype, spread=spread, bias=True, sum_trees=sum_trees)
    want = run(problem, 1)
    for n_threads in (2, 3, 7):
        assert run(problem, n_threads) == want


def test_many_python_threads_at_once(make_problem):
    problems = [make_problem(n=150, p=8, m=6, d=5, spread=spread, seed=i) for i, spread in enumerate([0.2, 1, 4, 8])]
    want = [run(problem, 1) for problem in problems]
    with concurrent.futures.ThreadPoolExecutor(8) as executor:
        jobs = [(i % 4, executor.submit(run, problems[i % 4], 1 + i % 3)) for i in range(120)]
        for i, job in jobs:
            assert job.result(timeout=60) == want[i]


def test_other_python_threads_run_during_a_call(make_problem):
    problem = make_problem(n=6000, p=50, m=20, d=8, spread=0.1, dtype=np.float32)
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    start = time.perf_counter()
    ops.forward(*problem.arrays, n_threads=1, **problem.options)
    end = time.perf_counter()
    done.set()
    ticker.join()
    assert sum(start < tick < end for tick in ticks) >= 3  # none, if the interpreter lock were held


def exit_code_of_child(work, seconds=60):
    """Fork, run `work` in the child, and return the child's exit code; None if it had to be killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return None


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_after_fork_computes_the_same(make_problem):
    problem = make_problem(n=400, p=10, m=9, d=5, spread=4)
    want = run(problem, 3)  # the parent has workers now
    assert exit_code_of_child(lambda: run(problem, 3) == want) == 0
    assert exit_code_of_child(lambda: exit_code_of_child(lambda: run(problem, 2) == want) == 0) == 0
    assert run(problem, 3) == want


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_other_threads_compute(make_problem):
    problem = make_problem(n=200, p=10, m=9, d=6, spread=4)
    want = run(problem, 2)
    done = threading.Event()

    def work():
        while not done.is_set():
            run(problem, 2)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        codes = [exit_code_of_child(lambda: run(problem, 2) == want) for _ in range(15)]
    finally:
        done.set()
        for worker in workers:
            worker.join()
    assert codes == [0] * 15


def test_the_number_of_threads_can_be_set_and_reset():
    default = softwood.get_num_threads()
    try:
        softwood.set_num_threads(3)
        assert softwood.get_num_threads() == 3
        with pytest.raises(ValueError, match="n_threads must be an integer >= 1 or None; got -1"):
            softwood.set_num_threads(-1)
        assert softwood.get_num_threads() == 3
    finally:
        softwood.set_num_threads(None)
    assert softwood.get_num_threads() == default


def threads_in_a_process(**environment):
    code = "import softwood; print(softwood.get_num_threads())"
    if "affinity" in environment:
        code = f"import os; os.sched_setaffinity(0, {environment.pop('affinity')}); " + code
    clean = {key: value for key, value in os.environ.items() if key != "SOFTWOOD_NUM_THREADS"}
    return subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, check=True
    )


def test_the_environment_caps_threads():
    assert threads_in_a_process(SOFTWOOD_NUM_THREADS="5").stdout == "5\n"


def test_a_wrong_environment_is_reported_and_ignored():
    ignored = threads_in_a_process(SOFTWOOD_NUM_THREADS="many")
    assert ignored.stdout == threads_in_a_process().stdout
    assert "SOFTWOOD_NUM_THREADS must be an integer >= 1; got 'many'" in ignored.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_the_default_is_the_cores_of_this_process():
    assert threads_in_a_process().stdout == f"{len(os.sched_getaffinity(0))}\n"
    one = {min(os.sched_getaffinity(0))}
    assert threads_in_a_process(affinity=one).stdout == "1\n"
