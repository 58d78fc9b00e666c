"""A sketch of a table to bytes and back, so that a cache need not read the table again. No code runs on reading."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

from softwood.tabular.encoding.columns import ColumnFacts
from softwood.tabular.encoding.target_means import TargetSums
from softwood.tabular.out_of_core.outline import LevelSums
from softwood.tabular.out_of_core.sketch import PieceSums, Sample, Sketch


def pack_summary(sketch: Sketch, sums: LevelSums | None) -> bytes:
    """What was learned in passes over a table: its sketch, and sums by level if they were needed."""
    from safetensors.numpy import save

    arrays: dict[str, np.ndarray] = {}
    sample = sketch.sample
    given = {"keys": sample.keys, "numbers": sample.numbers, "y": sample.y, "weight": sample.weight}
    given |= {} if sample.offset is None else {"offset": sample.offset}
    given |= {f"column.{j}": column for j, column in enumerate(sample.columns)}
    given |= {"class_counts": sketch.class_counts}
    given |= {} if sketch.classes is None else {"classes": sketch.classes}
    given |= {name: np.stack([getattr(s, name) for s in sketch.sums]) for name in ("missing", "ends")}
    given["piece_weight"] = np.array([s.weight for s in sketch.sums])
    given["all_ones"] = np.array([s.all_ones for s in sketch.sums])
    for j, of in (sums.by_column if sums is not None else {}).items():
        given |= {f"sums.{j}.{name}": getattr(of, name) for name in ("count", "total", "squares")}
    texts = {}
    for name, array in given.items():
        if array.dtype.kind in "OU":
            texts[name] = [array.dtype.kind, array.tolist()]
        else:
            arrays[name] = np.ascontiguousarray(array)
    facts = [
        [f.name, f.kind, f.low, f.high, f.parts, None if f.levels is None else list(f.levels.items())]
        for f in sketch.facts
    ]
    plain = {"n_rows": sketch.n_rows, "facts": facts, "texts": texts}
    plain["level_sums"] = None if sums is None else sorted(sums.by_column)
    return save(arrays, {"summary": json.dumps(plain)})


def unpack_summary(data: bytes) -> tuple[Sketch, LevelSums | None]:
    """Inverse of `pack_summary`.

    Raises
    ------
    ValueError
        If the data is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays: dict[str, Any] = dict(load(data))
        n_header = int.from_bytes(data[:8], "little")
        plain = json.loads(json.loads(data[8 : 8 + n_header])["__metadata__"]["summary"])
        for name, (kind, texts) in plain["texts"].items():
            arrays[name] = np.array(texts, dtype=object if kind == "O" else str)
        return _sketch(plain, arrays), _level_sums(plain, arrays)
    except (SafetensorError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"The summary of a cache is damaged ({error}): remove the cache, and fit again.") from error


def _sketch(plain: dict[str, Any], arrays: dict[str, Any]) -> Sketch:
    facts = []
    for name, kind, low, high, parts, levels in plain["facts"]:
        counts = None if levels is None else Counter(dict(levels))
        facts.append(ColumnFacts(name, kind, low, high, tuple((a, b) for a, b in parts), counts))
    columns = tuple(arrays[f"column.{j}"] for j in range(len(facts)))
    sample = Sample(arrays["keys"], arrays["numbers"], columns, arrays["y"], arrays["weight"], arrays.get("offset"))
    sums = tuple(
        PieceSums(float(weight), bool(ones), missing, ends)
        for weight, ones, missing, ends in zip(
            arrays["piece_weight"], arrays["all_ones"], arrays["missing"], arrays["ends"], strict=True
        )
    )
    return Sketch(plain["n_rows"], tuple(facts), arrays.get("classes"), arrays["class_counts"], sums, sample)


def _level_sums(plain: dict[str, Any], arrays: dict[str, Any]) -> LevelSums | None:
    if plain["level_sums"] is None:
        return None
    names = ("count", "total", "squares")
    return LevelSums({j: TargetSums(*(arrays[f"sums.{j}.{name}"] for name in names)) for j in plain["level_sums"]})
