"""A table as a frame and in Parquet files, for tests of fits to files; `frame`, `labelled` and `long` are fixtures."""

from __future__ import annotations

import numpy as np
import pytest

FEW = {"n_members": 2, "n_trees": 8, "max_epochs": 3, "random_state": 0, "n_jobs": 1}
ONE = FEW | {"n_members": 1, "n_trees": 4}
FEATURES = ["a", "b", "c", "d", "colour"]


def table(n=3000, seed=0):
    """Numbers, a missing cell here and there, a category, labels, counts, weights."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    score = 2 * X[:, 0] * X[:, 1] + X[:, 2]
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    frame.loc[::13, "c"] = np.nan
    frame["colour"] = rng.choice(["red", "green", "blue"], n)
    label = np.where(score + (frame.colour == "red") + rng.normal(size=n) > 0, "yes", "no")
    exposure = rng.uniform(1, 3, n)
    counts = rng.poisson(exposure * np.exp(0.5 * X[:, 0]))
    return frame.assign(
        label=label, value=score.astype(np.float64), count=counts, log_exposure=np.log(exposure),
        weight=rng.integers(0, 3, n),
    )  # fmt: skip


def write(frame, folder, ends=(1000, 1700), columns=None):
    """Write a frame as several files, and return the glob of them."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    folder.mkdir(exist_ok=True)
    rows = frame if columns is None else frame[columns]
    for i, (first, end) in enumerate(zip([0, *ends], [*ends, len(frame)], strict=True)):
        parquet.write_table(
            pa.Table.from_pandas(rows.iloc[first:end], preserve_index=False),
            folder / f"{i}.parquet",
            row_group_size=400,
        )
    return str(folder / "*.parquet")


@pytest.fixture(scope="module")
def frame():
    return table()


@pytest.fixture(scope="module")
def labelled(frame, tmp_path_factory):
    """Files with features and a label."""
    return write(frame, tmp_path_factory.mktemp("labelled"), columns=[*FEATURES, "label"])


@pytest.fixture
def long(monkeypatch):
    """Short tables are trained on like long ones, in several pieces, blocks and windows."""
    from softwood.tabular.out_of_core import files
    from softwood.training import stream

    monkeypatch.setattr(files, "IN_MEMORY_CELLS", 100)
    monkeypatch.setattr(files, "_PIECE_ROWS", 700)
    monkeypatch.setattr(stream, "_BLOCK_CELLS", 200)
    monkeypatch.setattr(stream, "_WINDOW_CELLS", 5000)


def same(one, other, X):
    method = "predict_proba" if hasattr(one, "classes_") else "predict"
    np.testing.assert_array_equal(getattr(one, method)(X), getattr(other, method)(X))
