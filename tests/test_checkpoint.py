from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest

from softwood.training import Member, Samples, TrainingConfig, fit_members
from softwood.training.losses import Loss

CONFIG = TrainingConfig(
    Loss("cross_entropy", n_classes=2),
    n_trees=4,
    depth=4,
    batch_size=32,
    max_epochs=12,
    patience=3,
    learning_rate=0.05,
    max_features=0.5,
    gamma_end=0.2,
    ema=0.95,
)


def members(n: int = 3) -> list[Member]:
    x = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    rows = np.arange(300)
    return [
        Member(Samples(x, y, rows=rows[rows % 3 != i]), Samples(x, y, rows=rows[rows % 3 == i]), seed=i)
        for i in range(n)
    ]


def stop_after(n_epochs: int):
    """Ends training as a kill would, as far as the checkpoint is concerned: nothing is written on the way out."""

    class Killed(Exception):
        pass

    calls = []

    def callback(records):
        calls.append(records)
        if len(calls) > n_epochs:
            raise Killed

    return callback, Killed


def assert_same(a, b) -> None:
    for name in ("split_weight", "split_bias", "leaf_weight"):
        np.testing.assert_array_equal(getattr(a.trees, name), getattr(b.trees, name))
    for name in ("mean", "variance", "scale", "shift"):
        np.testing.assert_array_equal(getattr(a.trees.batch_norm, name), getattr(b.trees.batch_norm, name))
    assert (a.best_epoch, a.best_loss, a.stopped_by) == (b.best_epoch, b.best_loss, b.stopped_by)
    assert a.trees.gamma == b.trees.gamma
    timeless = [[dataclasses.replace(record, seconds=0) for record in m.history] for m in (a, b)]
    assert timeless[0] == timeless[1]


@pytest.mark.parametrize("optimizer", ["adam", "lazy_adam"])
@pytest.mark.parametrize("n_epochs", [1, 5, 9])
def test_resumed_run_equals_the_uninterrupted_one_to_the_bit(tmp_path, optimizer, n_epochs):
    config = dataclasses.replace(CONFIG, optimizer=optimizer)
    whole = fit_members(config, members())
    assert any(member.stopped_by == "patience" for member in whole)
    callback, killed = stop_after(n_epochs)
    path = tmp_path / "run.checkpoint"
    with pytest.raises(killed):
        fit_members(config, members(), checkpoint=path, checkpoint_every=0, callback=callback)
    seen = []
    resumed = fit_members(config, members(), checkpoint=path, resume=True, callback=lambda r: seen.append(r[0].epoch))
    assert seen[0] == n_epochs
    for a, b in zip(whole, resumed, strict=True):
        assert_same(a, b)


def test_a_finished_run_resumes_to_its_result(tmp_path):
    path = tmp_path / "run.checkpoint"
    whole = fit_members(CONFIG, members(), checkpoint=path)
    again = fit_members(
        CONFIG, members(), checkpoint=path, resume=True, callback=lambda records: pytest.fail("trained")
    )
    for a, b in zip(whole, again, strict=True):
        assert_same(a, b)


def test_resume_without_a_file_starts_anew_and_without_resume_the_file_is_replaced(tmp_path):
    path = tmp_path / "run.checkpoint"
    first = fit_members(CONFIG, members(1), checkpoint=path, resume=True)
    other = dataclasses.replace(CONFIG, depth=2)
    fit_members(other, members(1), checkpoint=path)
    with pytest.raises(ValueError, match=r"it was made with depth=2, this fit has depth=4"):
        fit_members(CONFIG, members(1), checkpoint=path, resume=True)
    assert first[0].trees.leaf_weight.shape[1] == 16


@pytest.mark.parametrize(("seconds", "epochs"), [(0, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (1e9, [5])])
def test_files_are_written_when_they_are_due_and_at_the_end(tmp_path, monkeypatch, seconds, epochs):
    """An epoch takes a second by this clock."""
    clock, written = [0], []

    def note(path, config, members, states, next_epoch, run_seed):
        written.append(next_epoch)

    monkeypatch.setattr("softwood.training.loop.write_checkpoint", note)
    monkeypatch.setattr("softwood.training.loop.time", SimpleNamespace(monotonic=lambda: clock[0]))
    config = dataclasses.replace(CONFIG, max_epochs=5, patience=None)
    path = tmp_path / "run.checkpoint"
    tick = lambda records: clock.append(clock.pop() + 1)  # noqa: E731
    fit_members(config, members(1), checkpoint=path, checkpoint_every=seconds, callback=tick)
    assert written == epochs


def test_a_run_that_the_time_limit_stopped_goes_on(tmp_path):
    path = tmp_path / "run.checkpoint"
    fit_members(CONFIG, members(1), checkpoint=path, time_limit=0.0)
    (resumed,) = fit_members(CONFIG, members(1), checkpoint=path, resume=True)
    assert_same(fit_members(CONFIG, members(1))[0], resumed)


def test_another_table_is_refused(tmp_path):
    path = tmp_path / "run.checkpoint"
    fit_members(CONFIG, members(1), checkpoint=path)
    (changed,) = members(1)
    changed.train.x[7, 3] += 1
    with pytest.raises(ValueError, match=r"must be of the same fit; it was made with other train x"):
        fit_members(CONFIG, [changed], checkpoint=path, resume=True)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "foreign", "other safetensors"])
def test_damaged_files_are_refused(tmp_path, damage):
    path = tmp_path / "run.checkpoint"
    fit_members(CONFIG, members(1), checkpoint=path)
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[-100] ^= 4
    elif damage == "foreign":
        content = bytearray(b"not a checkpoint")
    else:
        from safetensors.numpy import save

        content = bytearray(save({"a": np.zeros(3)}))
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged|must be a checkpoint"):
        fit_members(CONFIG, members(1), checkpoint=path, resume=True)


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_resume_after_a_kill(tmp_path):
    """A real SIGKILL, after an epoch that no checkpoint holds yet."""
    path = tmp_path / "run.checkpoint"
    script = textwrap.dedent(
        f"""
        import os, signal, sys, threading
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from test_checkpoint import CONFIG, members
        from softwood.training import fit_members
        def callback(records):
            if records[0].epoch == 3:
                os.kill(os.getpid(), signal.SIGKILL)
        fit_members(CONFIG, members(), checkpoint={str(path)!r}, checkpoint_every=0, callback=callback)
        """
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    resumed = fit_members(CONFIG, members(), checkpoint=path, resume=True)
    for a, b in zip(fit_members(CONFIG, members()), resumed, strict=True):
        assert_same(a, b)
