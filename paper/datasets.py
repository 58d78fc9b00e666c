"""The paper's 26 data sets: reading them, and splitting the 23 tables into training and test rows.

The folder is that of ``--data``: ``pmlb/<name>/<name>.tsv.gz`` for tables, ``mnist``, ``fashion-mnist`` and ``cifar10``
for images in their original files.
"""

from __future__ import annotations

import gzip
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

# From small to large, by the size of rows times columns, so that a run has something to show soon.
TABLES = (
    "ecoli", "heart-c", "pima", "diabetes", "crx", "flare", "yeast", "dermatology", "solar-flare_2", "vehicle",
    "breast-cancer-wisconsin", "car-evaluation", "hypothyroid", "churn", "nursery", "twonorm", "ann-thyroid", "texture",
    "satimage", "spambase", "optdigits", "dna", "sleep",
)  # fmt: skip
IMAGES = ("mnist", "fashion-mnist", "cifar10")


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test rows of one table; labels are class numbers from 0."""

    X_train: NDArray[np.float64]
    y_train: NDArray[np.int64]
    X_test: NDArray[np.float64]
    y_test: NDArray[np.int64]


def read_table(folder: Path, name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Features [n, p] as they stand in the file, and class numbers [n]."""
    import pandas as pd

    path = folder / "pmlb" / name / f"{name}.tsv.gz"
    if not path.exists():
        raise FileNotFoundError(f"{path} is needed; name the folder of the data sets by --data or SOFTWOOD_DATA.")
    frame = pd.read_csv(path, sep="\t")
    labels = np.unique(frame["target"], return_inverse=True)[1]
    return frame.drop(columns="target").to_numpy(dtype=np.float64), labels


def split_table(folder: Path, name: str, split: int) -> Split:
    """The 70/30 split number `split`, stratified by class (so that rare classes occur on both sides)."""
    X, y = read_table(folder, name)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=split, stratify=y)
    return Split(X_train, y_train, X_test, y_test)


def read_images(folder: Path, name: str, part: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images [n, channels, height, width] and labels [n] of `part`, "train" or "test"."""
    if name == "cifar10":
        files = [f"data_batch_{i}.bin.xz" for i in range(1, 6)] if part == "train" else ["test_batch.bin.xz"]
        content = b"".join(lzma.decompress((folder / name / file).read_bytes()) for file in files)
        records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + 3 * 32 * 32)
        return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)
    prefix = folder / name / ("train" if part == "train" else "t10k")
    images, labels = _read_idx(f"{prefix}-images-idx3-ubyte.gz"), _read_idx(f"{prefix}-labels-idx1-ubyte.gz")
    return images[:, None], labels.astype(np.int64)


def _read_idx(path: str) -> NDArray[Any]:
    """An IDX file: a big-endian header (type, number of dimensions, their lengths), then bytes."""
    with gzip.open(path) as file:
        header = file.read(4)
        shape = np.frombuffer(file.read(4 * header[3]), dtype=">i4")
        return np.frombuffer(file.read(), dtype=np.uint8).reshape(shape)
