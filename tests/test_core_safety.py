"""The compiled trainer, predictor and encoder refuse what would make the core read past an array."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from softwood import _core

N, M, D, P, K = 50, 2, 3, 4, 3

SETTINGS: dict[str, Any] = {
    "n_trees": M, "n_features": P, "depth": D, "activation": 0, "normalisation": 0, "batch_norm_epsilon": 1e-5,
    "batch_size": 16, "seed": 0, "learning_rate": 0.01, "gamma": 1.0, "gamma_end": 1.0, "anneal_begin": 0.0,
    "anneal_end": 1.0, "warmup": 0.0, "cosine": False, "n_steps": 10, "updates": 2, "beta1": 0.9, "beta2": 0.999,
    "epsilon": 1e-8, "l1": 0.0, "l2": 0.0, "weight_decay": 0.0, "average_decay": 0.0, "loss": 0, "n_outputs": K,
    "n_targets": 1, "label_smoothing": 0.0, "delta": 1.0, "power": 1.5, "quantiles": [],
}  # fmt: skip


def parameters() -> dict[str, Any]:
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {"offset": np.zeros(K, np.float32)}
    for name, shape in {"split_weight": (M, 2**D - 1, P), "leaf_weight": (M, 2**D, K)}.items():
        arrays[name] = random.normal(size=shape).astype(np.float32)
        arrays[f"{name}.first_moment"] = np.zeros(shape, np.float32)
        arrays[f"{name}.second_moment"] = np.zeros(shape, np.float32)
    return arrays


def samples() -> dict[str, Any]:
    random = np.random.default_rng(1)
    x = random.normal(size=(N, P)).astype(np.float32)
    targets = random.integers(K, size=(N, 1)).astype(np.float32)
    return {"x": x, "targets": targets, "weight": None, "rows": np.arange(N), "encoding": None}


def member(settings: dict[str, Any] | None = None, arrays: Any = None, train: Any = None, custom: Any = None) -> Any:
    return _core.MemberFloat32(SETTINGS | (settings or {}), arrays or parameters(), train or samples(), None, custom)


def run_epoch(*members: Any) -> Any:
    return _core.MemberFloat32.run_epoch(list(members), 0, 1e6, 1)


@pytest.mark.parametrize("name", ["activation", "normalisation", "updates", "loss"])
@pytest.mark.parametrize("number", [-1, 10])
def test_choices_that_do_not_exist_are_refused(name: str, number: int) -> None:
    with pytest.raises(ValueError, match=f"unknown {name} {number}"):
        member({name: number})


def test_a_member_runs_one_epoch_at_a_time() -> None:
    only = member()
    with pytest.raises(ValueError, match="one epoch at a time"):
        run_epoch(only, only)
    assert len(run_epoch(only)) == 1

    refused = []

    def loss(scores: Any, targets: Any, weight: Any) -> tuple[Any, float]:
        """Runs while the member trains."""

        def again() -> None:
            try:
                run_epoch(busy)
            except ValueError as error:
                refused.append(str(error))

        if not refused:
            thread = threading.Thread(target=again)
            thread.start()
            thread.join()
        return np.zeros_like(scores), 0.0

    busy = member({"loss": 9}, custom=loss)
    run_epoch(busy)
    assert len(refused) == 1
    assert "one epoch at a time" in refused[0]
    run_epoch(busy)  # free again


def test_rows_and_targets_that_were_changed_are_noticed() -> None:
    train = samples()
    changed = member(train=train)
    train["rows"][7] = N
    with pytest.raises(IndexError, match="past the end"):
        run_epoch(changed)
    train["rows"][7] = 7
    run_epoch(changed)
    train["targets"][11] = K
    with pytest.raises(IndexError, match="class number"):
        run_epoch(changed)


def test_a_member_keeps_its_arrays_alive() -> None:
    arrays, train = parameters(), samples()
    kept = member(arrays=arrays, train=train)
    for held in (arrays, train):
        for name in list(held):
            held[name] = None
    junk = [np.full(1000, 1e30, np.float32) for _ in range(1000)]  # takes the place of what would have been freed
    (outcome,) = run_epoch(kept)
    assert len(junk) == 1000
    assert np.isfinite(outcome[2])


def test_an_encoding_is_copied() -> None:
    encoding = {name: np.zeros(P, np.float32) for name in ("start", "rate", "mean", "scale")}
    encoding["source"], encoding["kind"] = np.arange(P, dtype=np.int32), np.zeros(P, np.uint8)
    kept = member(train=samples() | {"encoding": encoding})
    encoding["source"][:] = 1_000_000
    assert np.isfinite(run_epoch(kept)[0][2])
    base, features = np.zeros((2, P), np.float32), np.zeros((2, P), np.float32)
    with pytest.raises(ValueError, match="reads a column that does not exist"):
        _core.encode(encoding, base, features, 1)
