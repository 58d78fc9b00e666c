"""Train trees on several processes from Parquet shards, one shard a rank, and survive a killed worker.

    pip install 'softwood[torch]' pyarrow
    python examples/torch_ddp.py --write-demo-shards 2 --shards shards
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/torch_ddp.py --shards shards

Rank r streams the r-th file of the folder (and the (r + world size)-th, and so on) in chunks, so that memory does not
grow with the data. Gradients are averaged by DistributedDataParallel; ranks with less data join in until the last one
is done. After each epoch rank 0 replaces the checkpoint in one step. Kill a worker: torchrun starts all of them again,
and they go on from the last whole epoch, with the weights, the optimiser's state and the shuffling that an undisturbed
run has.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from softwood.torch import TreeEnsemble

LABEL = "label"
CHUNK_ROWS = 8192


def write_demo_shards(folder: Path, n_shards: int) -> None:
    """Cut scikit-learn's breast-cancer table into shards, rows shuffled, as a job upstream would leave them."""
    features, labels = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    standardised = (features - features.mean(axis=0)) / features.std(axis=0)
    columns = {f"feature_{j:02d}": standardised[order, j].astype(np.float32) for j in range(features.shape[1])}
    table = pa.table({**columns, LABEL: labels[order].astype(np.int64)})
    folder.mkdir(parents=True, exist_ok=True)
    starts = np.linspace(0, len(labels), n_shards + 1).astype(int)
    for i, (start, stop) in enumerate(pairwise(starts)):
        pq.write_table(table.slice(start, stop - start), folder / f"shard-{i:05d}.parquet")


def stream_batches(files: list[Path], batch_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield features and labels; rows are shuffled within chunks."""
    random = np.random.default_rng(seed)
    for file in files:
        for chunk in pq.ParquetFile(file).iter_batches(batch_size=CHUNK_ROWS):
            labels = chunk.column(LABEL).to_numpy()
            columns = [chunk.column(name).to_numpy() for name in chunk.schema.names if name != LABEL]
            features = np.stack(columns, axis=1).astype(np.float32)
            order = random.permutation(len(labels))
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                yield torch.from_numpy(features[rows]), torch.from_numpy(labels[rows])


def save_checkpoint(path: Path, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write beside the old checkpoint, then replace it: whoever is killed here leaves a whole file behind."""
    unfinished = path.with_suffix(".unfinished")
    torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
    os.replace(unfinished, path)


def train(args: argparse.Namespace) -> None:
    """Do the work of one rank."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    files = sorted(args.shards.glob("*.parquet"))
    if len(files) < world_size:
        raise SystemExit(f"{args.shards} must hold a shard for each of {world_size} ranks; it holds {len(files)}")
    n_features = len(pq.read_schema(files[0]).names) - 1
    torch.manual_seed(args.seed)
    network = nn.Sequential(nn.BatchNorm1d(n_features), TreeEnsemble(n_features, 2, args.trees, args.depth))
    optimizer = torch.optim.Adam(network.parameters(), lr=args.learning_rate)
    first_epoch = 0
    if args.checkpoint.exists():
        state = torch.load(args.checkpoint, weights_only=True)
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"] + 1
    print(f"rank {rank} pid {os.getpid()} starts at epoch {first_epoch}", flush=True)
    model = DistributedDataParallel(network)
    for epoch in range(first_epoch, args.epochs):
        total = torch.zeros(3)  # loss, hits, rows
        with model.join():
            for x, y in stream_batches(files[rank::world_size], args.batch_size, seed=1000 * epoch + rank):
                logits = model(x)
                loss = functional.cross_entropy(logits, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += torch.tensor([loss.item() * len(y), (logits.argmax(dim=1) == y).sum().item(), len(y)])
        dist.all_reduce(total)
        if rank == 0:
            save_checkpoint(args.checkpoint, epoch, network, optimizer)
            loss_sum, n_hits, n_rows = total.tolist()
            print(f"epoch {epoch} loss {loss_sum / n_rows:.4f} accuracy {n_hits / n_rows:.4f}", flush=True)


def join_group(timeout: float) -> None:
    """Meet the other ranks, under a name that is new with each start.

    torchrun keeps one store for all starts. Without the prefix, a rank that is started again may find the address of a
    worker that is dead, and wait for it.
    """
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(f"start {os.environ['TORCHELASTIC_RESTART_COUNT']}", store),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=timeout),
    )


def main() -> None:
    """Read the command line; write shards, or train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True, help="folder of .parquet files")
    parser.add_argument("--write-demo-shards", type=int, metavar="N", help="fill the folder with N shards and stop")
    parser.add_argument("--checkpoint", type=Path, default=Path("trees.pt"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="rows a rank")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for other ranks before giving up")
    args = parser.parse_args()
    if args.write_demo_shards:
        write_demo_shards(args.shards, args.write_demo_shards)
        return
    join_group(args.timeout)
    try:
        train(args)
        dist.barrier()  # ranks leave together: gloo may abort one whose peer has already gone
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
