"""Speed inside Keras and JAX: `python benchmarks/frameworks.py [--seconds S] [--only NAME ...]`.

- keras: a training step (batch norm, trees, softmax, cross-entropy, Adam) with native kernels against the same step
  with the dense keras.ops form, on each backend, in a process of its own.
- jax: value and gradients of the layer alone, compiled, by the two ways into the kernels (XLA's foreign-function
  interface and a host callback) and by the dense form; `ops` is the same two kernel calls from Python without JAX.

Contestants are compared with each other before they are timed, and take turns. Thread pools are held to one thread, and
times are CPU time of the process, which leaves out the turns of others.
Writes benchmarks/results/frameworks.json.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kernels import Bench
from machine import facts
from rivals import Workload
from softwood import ops

RESULTS = Path(__file__).parent / "results" / "frameworks.json"
BACKENDS = ["tensorflow", "jax", "torch"]
STEP_SHAPES = [Workload("trained", d=6), Workload("trained", d=10), Workload("initial", d=6)]
CALL_SHAPES = [Workload("trained", n=32), Workload("trained"), Workload("trained", d=10), Workload("initial")]
REQUIRED = {("tensorflow", STEP_SHAPES[1]): 20.0}  # gain of a step over the dense one
ONE_THREAD = {  # read by the frameworks when they are imported
    "SOFTWOOD_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def keras_step(workload: Workload, implementation: str) -> tuple[Any, Callable[[], Any]]:
    """A model whose weights stay in the workload's state, and one training step of it."""
    import keras

    from softwood.keras import TreeEnsemble

    x, split_weight, leaf_weight, _ = workload.arrays()
    trees = TreeEnsemble(workload.k, workload.m, workload.d, gamma=workload.gamma, implementation=implementation)
    model = keras.Sequential(
        [keras.Input((workload.p,)), keras.layers.BatchNormalization(), trees, keras.layers.Softmax()]
    )
    trees.set_weights([split_weight, leaf_weight])
    # With a rate of 0 Adam does all of its arithmetic and the trees stay as trained as they are.
    model.compile(keras.optimizers.Adam(0.0), "sparse_categorical_crossentropy")
    rows = keras.ops.convert_to_tensor(x)
    classes = keras.ops.convert_to_tensor(np.random.default_rng(1).integers(0, workload.k, workload.n))
    return model, lambda: model.train_on_batch(rows, classes)


def keras_child(seconds: float) -> dict[str, Any]:
    """All steps on the backend of this process."""
    import keras

    backend = keras.backend.backend()
    bench = Bench(seconds)
    for workload in STEP_SHAPES:
        models, steps = {}, {}
        for implementation in ("native", "dense"):
            models[implementation], steps[implementation] = keras_step(workload, implementation)
        losses = [step() for step in steps.values()]
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
        moments = [keras.ops.convert_to_numpy(m.optimizer.variables[-1]) for m in models.values()]
        np.testing.assert_allclose(moments[0], moments[1], rtol=1e-3, atol=1e-9)
        median = bench.race(f"{backend}: {workload.name}", steps, clock=time.process_time)
        what = f"{backend}, {workload.name}: {median['native'] * 1e3:.2f} against {median['dense'] * 1e3:.1f} ms"
        bench.judge(what, median["dense"] / median["native"], REQUIRED.get((backend, workload)))
    return {"records": bench.records, "verdicts": bench.verdicts}


def value_and_gradients(implementation: str) -> Any:
    """The layer's output and the gradients of all that goes into it."""
    import jax

    from softwood.jax import tree_ensemble

    def function(grad_output: Any, *arrays: Any) -> Any:
        output, transpose = jax.vjp(lambda *a: tree_ensemble(*a, implementation=implementation), *arrays)
        return output, transpose(grad_output)

    return jax.jit(function)


def jax_child(seconds: float) -> dict[str, Any]:
    """Value and gradients by each way into the kernels."""
    import jax

    from softwood.jax import native

    bench = Bench(seconds)
    with_ffi = native.ffi_is_available
    if not with_ffi():
        raise SystemExit("this jaxlib takes no native calls: nothing to compare")
    for workload in CALL_SHAPES:
        x, w, o, g = workload.arrays()
        arguments = tuple(map(jax.numpy.asarray, (g, x, w, o)))
        compiled = {"dense": value_and_gradients("dense").lower(*arguments).compile()}
        for name, is_available in (("ffi", with_ffi), ("callback", lambda: False)):
            native.ffi_is_available = is_available  # type: ignore[assignment]
            lowered = value_and_gradients("native").lower(*arguments)
            assert ("softwood_forward" in lowered.as_text()) == (name == "ffi")
            compiled[name] = lowered.compile()
        native.ffi_is_available = with_ffi
        results = {name: jax.tree.leaves(function(*arguments)) for name, function in compiled.items()}
        for name in ("callback", "dense"):
            for got, want in zip(results[name], results["ffi"], strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
        compare_calls(bench, workload, compiled, arguments, (g, x, w, o))
    return {"records": bench.records, "verdicts": bench.verdicts}


def compare_calls(bench: Bench, workload: Workload, functions: dict, arguments: tuple, arrays: tuple) -> None:
    """Time the compiled functions and the bare kernels, and print what a call adds to the kernels."""
    import jax

    g, x, w, o = arrays

    def kernels() -> None:
        ops.forward(x, w, o, check_finite=False)
        ops.backward(g, x, w, o, check_finite=False)

    def call(function: Callable[..., Any]) -> None:
        jax.block_until_ready(function(*arguments))

    calls: dict[str, Callable[[], Any]] = {name: functools.partial(call, f) for name, f in functions.items()}
    median = bench.race(f"jax: {workload.name}", calls | {"ops": kernels}, clock=time.process_time)
    shown = ", ".join(f"{name} {seconds * 1e6:.0f}" for name, seconds in median.items())
    print(f"  {workload.name}, us: {shown}")
    bench.judge("callback against ffi", median["callback"] / median["ffi"], None)


def run_child(section: str, seconds: float, **environment: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", section, "--seconds", str(seconds)]
    run = subprocess.run(
        command, env=os.environ | ONE_THREAD | environment, stdout=subprocess.PIPE, text=True, check=True
    )
    *lines, result = run.stdout.splitlines()
    print("\n".join(lines), flush=True)
    return json.loads(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each group of contestants")
    parser.add_argument("--only", nargs="+", choices=[*BACKENDS, "calls"], default=[*BACKENDS, "calls"])
    parser.add_argument("--child", choices=("keras", "calls"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run = keras_child if arguments.child == "keras" else jax_child
        print(json.dumps(run(arguments.seconds)))
        return
    machine = facts()
    results: dict[str, Any] = {"machine": machine}
    for section in arguments.only:
        if section == "calls":
            print("\nJAX: value and gradients, compiled, one thread")
            results["jax calls"] = run_child("calls", arguments.seconds)
        else:
            print(f"\nKeras on {section}: a training step, native against dense")
            results[f"keras {section}"] = run_child("keras", arguments.seconds, KERAS_BACKEND=section)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1))
    print(f"\nAll times: {os.path.relpath(RESULTS)}")


if __name__ == "__main__":
    main()
