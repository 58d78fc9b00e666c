"""Training on two real processes that talk over gloo. Run by torchrun, this file is also the program of a worker."""

import os
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from softwood.torch import TreeEnsemble  # noqa: E402

EXAMPLE = Path(__file__).parents[1] / "examples" / "torch_ddp.py"
TIME_LIMIT = 300  # seconds; ten times what it takes on two free cores
N_EPOCHS = 40
N_STEPS = 5
N_ROWS = 24

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this PyTorch has no distributed package")


def make_network():
    torch.manual_seed(0)
    layers = nn.Linear(4, 6), TreeEnsemble(6, 3, n_trees=3, depth=4, bias=True, learn_gamma=True, init="scaled")
    return nn.Sequential(*layers).double()


def train(model, rank, world_size):
    """Take this rank's part of each batch, of which all ranks' parts together are the one batch of a single process."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(N_STEPS):
        x = torch.randn(N_ROWS, 4, dtype=torch.float64, generator=generator)
        target = torch.randn(N_ROWS, 3, dtype=torch.float64, generator=generator)
        part = slice(rank, None, world_size)
        optimizer.zero_grad()
        (model(x[part]) - target[part]).square().mean().backward()
        optimizer.step()


def torchrun(log, *arguments, watch=lambda text: None):
    """Run two workers and return what they print, which also goes through `watch`; never longer than TIME_LIMIT.

    They write to a file: a pipe would keep its reader waiting for as long as any worker that was left over holds it.
    """
    options = ("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2", *map(str, arguments))
    with log.open("a") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *options],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    deadline = time.monotonic() + TIME_LIMIT
    try:
        while process.poll() is None:
            assert time.monotonic() < deadline, f"not done after {TIME_LIMIT} s:\n{log.read_text()}"
            watch(log.read_text())
            time.sleep(0.02)
    finally:
        if process.poll() is None:
            stop(process)
    text = log.read_text()
    assert process.returncode == 0, text
    return text


def stop(process):
    """End torchrun, which ends its workers if it is asked and not killed."""
    process.terminate()
    try:
        process.wait(timeout=45)  # it gives its workers 30 s
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=10)


def test_two_processes_get_the_weights_of_one(tmp_path):
    path = tmp_path / "weights.pt"
    torchrun(tmp_path / "log", __file__, path)
    network = make_network()
    start = [parameter.detach().clone() for parameter in network.parameters()]
    train(network, rank=0, world_size=1)
    for name, value in torch.load(path, weights_only=True).items():
        torch.testing.assert_close(value, network.state_dict()[name], rtol=1e-9, atol=1e-12)
    assert not any(torch.equal(a, b) for a, b in zip(start, network.parameters(), strict=True))


def run_example(shards, checkpoint, *, kill):
    """Run the example; with `kill`, end rank 1 after some epochs, as a machine that runs out of memory does."""
    killed = []

    def kill_rank_1(text):
        # Lines of two processes may run into each other, and a busy reader may miss an epoch.
        started = re.search(r"rank 1 pid (\d+) starts at epoch 0", text)
        if kill and not killed and started and any(int(n) >= 3 for n in re.findall(r"epoch (\d+) loss", text)):
            os.kill(int(started[1]), signal.SIGKILL)
            killed.append(started[1])

    options = ("--max-restarts", 1, EXAMPLE, "--shards", shards, "--checkpoint", checkpoint, "--epochs", N_EPOCHS)
    text = torchrun(checkpoint.with_suffix(".log"), *options, watch=kill_rank_1)
    assert bool(killed) == kill
    return text


def test_example_resumes_after_a_killed_worker(tmp_path):
    pytest.importorskip("pyarrow")
    shards = tmp_path / "shards"
    subprocess.run(
        [sys.executable, EXAMPLE, "--write-demo-shards", "2", "--shards", shards], check=True, timeout=TIME_LIMIT
    )
    assert len(list(shards.glob("*.parquet"))) == 2
    undisturbed = run_example(shards, tmp_path / "undisturbed.pt", kill=False)
    killed = run_example(shards, tmp_path / "killed.pt", kill=True)
    assert "starts at epoch 0" in killed
    assert int(re.findall(r"rank 0 pid \d+ starts at epoch (\d+)", killed)[-1]) >= 3
    accuracy = float(re.search(rf"epoch {N_EPOCHS - 1} .* accuracy (\S+)", undisturbed)[1])
    assert accuracy > 0.95
    expected, resumed = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("undisturbed", "killed"))
    assert expected["epoch"] == resumed["epoch"] == N_EPOCHS - 1
    for name, value in expected["model"].items():
        torch.testing.assert_close(resumed["model"][name], value)


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    model = make_network()
    train(DistributedDataParallel(model), dist.get_rank(), dist.get_world_size())
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), sys.argv[1])
    dist.barrier()  # gloo may abort a process whose peer still talks while it leaves
    dist.destroy_process_group()
