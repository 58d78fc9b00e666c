"""Mutants of safetensors files: whole files whose metadata or arrays lie, whatever they describe.

A mutant differs in one or two places: a value of the JSON has another size, type or place; an array holds other
numbers, or has another type or shape, or is gone. The header and all lengths are right, so that only what the file
*says* can be refused. Nothing here knows what a model or a checkpoint is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors.numpy import load, save

NUMBERS = [0, 1, -1, 2, 7, 0.5, -0.5, 1e-308, 1e308, -1e308, 1e-40, 1e38, 2**31, -(2**31), 2**63, 10**400, -0.0]
NUMBERS += [float("nan"), float("inf"), float("-inf")]
OTHERS = [None, True, False, "", "1", "nan", "\ud800", "é" * 300, [], {}, [1], {"a": 1}, [[]], "numeric", "category"]
CELLS = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e30, 1e-40, 0.0, -1.0, 1.0, 1e6, -1e15, 255, 2**31 - 1, -(2**31)]
TYPES = ["f2", "f4", "f8", "i1", "u1", "i2", "i4", "i8", "u4", "?"]


@dataclass
class File:
    """Metadata of a file, its JSON text under `key` as `data`, and its arrays."""

    header: dict[str, str]
    key: str
    data: Any
    arrays: dict[str, np.ndarray]

    @classmethod
    def parse(cls, contents: bytes, key: str) -> File:
        size = int.from_bytes(contents[:8], "little")
        header = json.loads(contents[8 : 8 + size])["__metadata__"]
        return cls(header, key, json.loads(header[key]), load(contents))

    def contents(self) -> bytes:
        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        return save(arrays, {**self.header, self.key: json.dumps(self.data)})


def mutants(contents: bytes, key: str, n: int, seed: int) -> Iterator[tuple[str, File]]:
    """`n` mutants of a file, each with words on what was changed; the same ones at each call."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        file = File.parse(contents, key)
        changes = [_mutate(file, rng) for _ in range(1 if rng.random() < 0.8 else 2)]
        yield " and ".join(changes), file


def _mutate(file: File, rng: np.random.Generator) -> str:
    return _mutate_json(file, rng) if rng.random() < 0.55 or not file.arrays else _mutate_array(file, rng)


def _choose(items: list[Any], rng: np.random.Generator) -> Any:
    return items[int(rng.integers(len(items)))]


def _mutate_json(file: File, rng: np.random.Generator) -> str:
    """Walk down from the root; long lists and histories would draw all mutants if places were drawn evenly."""
    parent, place, path = {"": file.data}, "", "json"
    while isinstance(parent[place], (dict, list)) and parent[place] and rng.random() < 0.93:
        parent = parent[place]
        place = _choose(list(parent) if isinstance(parent, dict) else list(range(len(parent))), rng)
        path += f".{place}"
    if parent[place] is file.data and place == "":
        return _mutate_array(file, rng) if file.arrays else path
    old = parent[place]
    kind = rng.random()
    if isinstance(parent, dict) and kind < 0.08:
        del parent[place]
        return f"{path} removed"
    if isinstance(old, list) and old and kind < 0.6:
        parent[place] = _other_list(old, rng)
    elif isinstance(old, dict) and kind < 0.5:
        parent[place] = {**old, _choose(["extra", "\ud800", "name", "0"], rng): _choose(NUMBERS + OTHERS, rng)}
    elif isinstance(old, (int, float)) and kind < 0.75:
        parent[place] = _choose(NUMBERS, rng)
    else:
        parent[place] = _choose(NUMBERS + OTHERS, rng)
    return f"{path}: {str(old)[:60]} -> {str(parent[place])[:60]!a}"


def _other_list(old: list[Any], rng: np.random.Generator) -> list[Any]:
    shuffled = [old[i] for i in rng.permutation(len(old))]
    return _choose([shuffled, old[::-1], old[:-1], old[1:], old + old, old + old[:1], [old[0]] * len(old)], rng)


def _mutate_array(file: File, rng: np.random.Generator) -> str:
    name = _choose(sorted(file.arrays), rng)
    old = file.arrays[name]
    how = _choose(["cell", "cell", "cell", "all", "scale", "type", "shape", "order", "gone", "swap"], rng)
    new, detail = old.copy(), ""
    if how in ("cell", "all") and old.size:
        value = _choose(CELLS, rng)
        detail = str(value)
        with np.errstate(all="ignore"):
            cast = np.array([value]).astype(old.dtype)[0]
        new.reshape(-1)[... if how == "all" else int(rng.integers(old.size))] = cast
    elif how == "scale":
        factor = _choose([-1, 1e-30, 1e30, 1e10], rng)
        detail = str(factor)
        with np.errstate(all="ignore"):
            new = (old.astype(np.float64) * factor).astype(old.dtype)
    elif how == "type":
        detail = _choose(TYPES, rng)
        with np.errstate(all="ignore"):
            new = old.astype(detail)
    elif how == "shape":
        choices = [old.ravel(), old[None], old[:0], old[:-1], old.T, np.concatenate([old, old]) if old.ndim else old]
        new = _choose(choices, rng)
        detail = str(new.shape)
    elif how == "order":
        new = old[::-1]
    elif how == "gone":
        del file.arrays[name]
        return f"array {name} gone"
    elif how == "swap":
        other = _choose(sorted(file.arrays), rng)
        new, file.arrays[other] = file.arrays[other], old
        detail = other
    file.arrays[name] = new
    return f"array {name} {how} {detail}"
