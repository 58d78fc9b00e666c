"""The image example runs from files to table, on a task small enough for a test."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")

EXAMPLE = Path(__file__).parents[1] / "examples" / "cnn_mnist.py"


def write_idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">i4").tobytes()
    path.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.fixture
def image_folder(tmp_path):
    """Images whose class is the row of the one bright stripe in them."""
    rng = np.random.default_rng(0)
    for part, n in (("train", 1500), ("t10k", 200)):
        labels = rng.integers(0, 10, n).astype(np.uint8)
        images = rng.integers(0, 60, (n, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[4 + 2 * label : 6 + 2 * label] += 150
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", labels)
    return tmp_path


def test_image_example_trains_both_networks(image_folder):
    output = image_folder / "out.json"
    options = "--filters 4 --dense-units 320 --epochs 3 --batch-size 50 --threads 1"
    command = [sys.executable, EXAMPLE, "--data", image_folder, "--json", output, *options.split()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "Results on the test images" in run.stdout
    results = {row["model"]: row for row in json.loads(output.read_text())["results"]}
    assert results["CNN-TEL"]["accuracy"] > 0.9
    assert results["CNN-Dense"]["accuracy"] > 0.9
    assert 1 <= results["CNN-TEL"]["reachable_leaves"] < 16
    assert results["CNN-Dense"]["reachable_leaves"] is None
    assert results["CNN-TEL"]["parameters"] < results["CNN-Dense"]["parameters"] / 5
