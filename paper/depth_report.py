"""Theorem 1 in the report: what `benchmarks/depth_scaling.py` measured."""

from __future__ import annotations

import json
from pathlib import Path

from paper.claims import Claim, graded, table
from paper.runner import ROOT, Record

NAME = "depth_scaling"
RESULTS = ROOT / "benchmarks" / "depth_scaling.json"
PICTURE = "../docs/images/depth_scaling.svg"


def _read() -> Record | None:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else None


def section(results: Path, pictures: Path) -> str:
    """The report's part on this theorem."""
    content = _read()
    if content is None:
        return "not run"
    found = content["results"]
    kinds = sorted({result["leaves"] for result in found if result["leaves"] is not None})
    rows = []
    for depth in sorted({result["depth"] for result in found}):
        by_leaves = {result["leaves"]: result for result in found if result["depth"] == depth}
        passes = ("forward_us", "backward_us")
        cells = [f"{by_leaves[n][p]:.3f}" if n in by_leaves else "" for p in passes for n in (*kinds, None)]
        rows.append([str(depth), *cells])
    names = [*(f"{n}" for n in kinds), "all (logistic)"]
    head = ["depth", *(f"{what}: {n}" for what in ("forward", "backward") for n in names)]
    setting, machine = content["setting"], content["machine"]
    return (
        f"`python benchmarks/depth_scaling.py`, commit {machine['commit']}, {machine['cpu']}.\n\n![Cost against "
        f"depth]({PICTURE})\n\nMicroseconds per further sample, by the number of leaves that each sample reaches; "
        f"one tree, {setting['features']} features, {setting['outputs']} outputs, one thread, float32, median of "
        f"{setting['rounds']} rounds. Beyond depth 14 the weights no longer fit into the caches.\n\n"
        + table(head, rows)
    )


def growth(found: list[Record], leaves: int | None, which: str) -> tuple[int, int, float]:
    """Least and greatest depth, and how many times as dear the greatest is."""
    points = sorted((result["depth"], result[which]) for result in found if result["leaves"] == leaves)
    return points[0][0], points[-1][0], points[-1][1] / points[0][1]


def claims(results: Path) -> list[Claim]:
    """What the paper says of costs."""
    text = (
        "At a fixed number of reached leaves, the forward pass costs O(depth) and the backward pass nothing for depth"
    )
    content = _read()
    if content is None:
        return [Claim(text, "section 3, theorem 1")]
    found = content["results"]
    low, high, forward = growth(found, 1, "forward_us")
    _, _, backward = growth(found, 1, "backward_us")
    dense_low, dense_high, dense = growth(found, None, "forward_us")
    words = (
        f"1 leaf, depth {low} to {high}: forward {forward:.1f} times, backward {backward:.1f} times; all leaves, depth "
        f"{dense_low} to {dense_high}: forward {dense:.0f} times"
    )
    # Linear in depth would be high / low; caches and rounding may cost as much again.
    verdict = graded(2 * high / low / max(forward, backward), holds=1, in_part=0.1)
    return [Claim(text, "section 3, theorem 1", words, "our test; the paper has none", verdict)]
