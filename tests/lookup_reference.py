"""Trees of lookups in dense NumPy and float64: the readable definition that the core is tested against.

In come the arrays of `_core.LookupMember`; out go split values, scores and gradients. The splits of all blocks are laid
out as whole trees, and what comes after the split values is left to `softwood.reference`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softwood import reference

LANES, LEVELS = 16, 4


@dataclass
class Column:
    """The basis of one column; see core/include/softwood/lookup.h."""

    n_entries: int
    n_knots: int = 0
    n_levels: int = 0
    lazy: bool = False
    ramp_scale: np.ndarray | None = None
    ramp_mean: np.ndarray | None = None
    linear: np.ndarray | None = None
    level_scale: np.ndarray | None = None
    level_mean: np.ndarray | None = None

    def basis(self) -> np.ndarray:
        """The matrix [n_entries, weights] that makes values of weights."""
        entry = np.arange(self.n_entries)
        is_knot = entry < self.n_knots
        rows = []
        for r in range(self.n_knots - 1):
            rows.append(is_knot * self.ramp_scale[r] * ((entry > r) - self.ramp_mean[r]))
        if self.n_knots:
            rows.append(is_knot * self.linear)
        for e in range(self.n_entries - self.n_levels, self.n_entries):
            centre = 0 if self.lazy else self.level_mean[e]
            rows.append(self.level_scale[e] * ((entry == e) - centre))
        return np.array(rows, dtype=np.float64).reshape(-1, self.n_entries).T


def native_columns(columns: list[Column]) -> dict[str, np.ndarray]:
    def floats(name: str) -> np.ndarray:
        given = [getattr(column, name) for column in columns]
        filled = [np.zeros(c.n_entries) if v is None else v for c, v in zip(columns, given, strict=True)]
        return np.concatenate(filled).astype(np.float32)

    integers = {n: np.array([getattr(c, n) for c in columns], np.int32) for n in ("n_entries", "n_knots", "n_levels")}
    names = ("ramp_scale", "ramp_mean", "linear", "level_scale", "level_mean")
    return integers | {"lazy": np.array([c.lazy for c in columns], np.uint8)} | {name: floats(name) for name in names}


@dataclass
class Places:
    """Where the splits and leaves of a tree of depth d stand: block of the tree and lane, in heap order."""

    depth: int

    def __post_init__(self) -> None:
        n_block_levels = (self.depth - 1) // LEVELS + 1
        root_levels = self.depth - LEVELS * (n_block_levels - 1)
        exponents = [0] + [root_levels + LEVELS * i for i in range(n_block_levels - 1)]
        first_block = np.concatenate([[0], np.cumsum(2 ** np.array(exponents))])
        self.n_blocks = int(first_block[-1])
        self.n_leaf_blocks = 2 ** exponents[-1]
        splits = []
        for level in range(self.depth):
            block_level = 0 if level < root_levels else 1 + (level - root_levels) // LEVELS
            within = level if level < root_levels else (level - root_levels) % LEVELS
            for place in range(2**level):
                splits.append((first_block[block_level] + (place >> within), 2**within - 1 + place % 2**within))
        self.split_block, self.split_lane = np.array(splits).T
        leaf = np.arange(2**self.depth) << max(0, LEVELS - self.depth)
        self.leaf_block, self.leaf_lane = leaf // LANES, leaf % LANES


@dataclass
class Forest:
    """Parameters of all trees, float64."""

    columns: list[Column]
    n_trees: int
    depth: int
    block_columns: np.ndarray  # [trees * blocks, columns of a block]
    activation: str
    gamma: float

    def __post_init__(self) -> None:
        self.places = Places(self.depth)
        counts = [self.columns[c].basis().shape[1] for c in self.block_columns.ravel()]
        self.row = np.concatenate([[0], np.cumsum(counts)]).astype(int)  # of each block's column in the table

    def of_splits(self, block_array: np.ndarray) -> np.ndarray:
        """[trees * blocks, 16, ...] -> [trees, splits, ...]."""
        p = self.places
        return block_array.reshape(self.n_trees, p.n_blocks, *block_array.shape[1:])[:, p.split_block, p.split_lane]

    def of_leaves(self, leaf_weight: np.ndarray) -> np.ndarray:
        """[trees * leaf blocks, k, 16] -> [trees, leaves, k]."""
        p = self.places
        by_tree = leaf_weight.reshape(self.n_trees, p.n_leaf_blocks, -1, LANES)
        return by_tree[:, p.leaf_block, :, p.leaf_lane].transpose(1, 0, 2)

    def split_values(self, cells: np.ndarray, table: np.ndarray, bias: np.ndarray) -> np.ndarray:
        """t of every block and sample, [n, trees * blocks, 16]."""
        entry, fraction = decode(cells)
        t = np.tile(np.asarray(bias, np.float64), (len(cells), 1, 1))
        for i, c in enumerate(self.block_columns.ravel()):
            values = self.columns[c].basis() @ table[self.row[i] : self.row[i + 1]]
            values = np.concatenate([values, np.zeros((1, LANES))])
            f, e = fraction[:, c, None], entry[:, c]
            t[:, i // self.block_columns.shape[1]] += (1 - f) * values[e] + f * values[e + 1]
        return t

    def as_layer(self, cells: np.ndarray, arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Arguments x, split_weight, leaf_weight of the layer: its features are the split values themselves."""
        t = self.split_values(cells, np.asarray(arrays["table"], np.float64), arrays["split_bias"])
        by_split = np.stack([self.of_splits(row) for row in t])  # [n, trees, splits]
        m, n_splits = by_split.shape[1:]
        return (
            by_split.reshape(len(t), -1),
            np.eye(m * n_splits).reshape(m, n_splits, -1),
            self.of_leaves(np.asarray(arrays["leaf_weight"], np.float64)),
        )

    def scores(self, cells: np.ndarray, arrays: dict[str, np.ndarray]) -> np.ndarray:
        layer = self.as_layer(cells, arrays)
        return reference.forward(*layer, activation=self.activation, gamma=self.gamma) + arrays["offset"]

    def reached_leaves(self, cells: np.ndarray, arrays: dict[str, np.ndarray]) -> np.ndarray:
        x, w, _ = self.as_layer(cells, arrays)
        return reference.reachability(x, w, activation=self.activation, gamma=self.gamma).leaves

    def gradients(
        self, cells: np.ndarray, arrays: dict[str, np.ndarray], grad_scores: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Gradients of the trained arrays, and dL/dt [n, trees * blocks, 16]."""
        x, w, leaf = self.as_layer(cells, arrays)
        grad = reference.backward(grad_scores, x, w, leaf, activation=self.activation, gamma=self.gamma)
        p, n = self.places, len(cells)
        grad_t = np.zeros((n, self.n_trees, p.n_blocks, LANES))
        grad_t[:, :, p.split_block, p.split_lane] = grad.x.reshape(n, self.n_trees, -1)
        grad_t = grad_t.reshape(n, -1, LANES)
        k = leaf.shape[2]
        grad_leaf = np.zeros((self.n_trees, p.n_leaf_blocks, k, LANES))
        for i in range(leaf.shape[1]):
            grad_leaf[:, p.leaf_block[i], :, p.leaf_lane[i]] = grad.leaf_weight[:, i]
        grads = {
            "table": self.table_gradient(cells, grad_t),
            "split_bias": grad_t.sum(axis=0),
            "leaf_weight": grad_leaf.reshape(-1, k, LANES),
        }
        return grads, grad_t

    def table_gradient(self, cells: np.ndarray, grad_t: np.ndarray) -> np.ndarray:
        entry, fraction = decode(cells)
        result = np.zeros((self.row[-1], LANES))
        for i, c in enumerate(self.block_columns.ravel()):
            here = grad_t[:, i // self.block_columns.shape[1]]
            grad_values = np.zeros((self.columns[c].n_entries + 1, LANES))
            np.add.at(grad_values, entry[:, c], here * (1 - fraction[:, c, None]))
            np.add.at(grad_values, entry[:, c] + 1, here * fraction[:, c, None])
            result[self.row[i] : self.row[i + 1]] = self.columns[c].basis().T @ grad_values[:-1]
        return result


def decode(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (cells & 0xFFFF).astype(int), (cells >> 16) / 65535
