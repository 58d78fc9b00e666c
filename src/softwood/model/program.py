"""The prediction program: what a fitted model computes, as plain data that any language can run.

A row of a table passes five steps, and a `Program` holds one attribute for each:

1. ``columns``: the table's columns as numbers; categories by code, dates as seconds since 1970, NaN where missing.
2. ``base``: base columns, in float32; `softwood.tabular.encoding.base_columns` defines their kinds.
3. ``encodings``, ``lookups``: what trees read of base columns. Linear splits weigh the features of an encoding, whose
   kinds `softwood.tabular.encoding.features` defines; splits that are sums of tables read the cells of
   `softwood.tabular.encoding.lookups`.
4. ``members``: ensembles of trees; raw scores are the mean over members of offset plus sum of trees.
5. ``head``: raw scores to class probabilities, values or quantiles.

`softwood.model.lowering` makes a program of a model. The native predictor, C, ONNX, PyTorch and the explanations start
from it. `Program.interpret` runs it in NumPy: slow, but the definition that the others are tested against. It does not
define rounding; core/include/softwood/predictor.h says which bits the predictor and the exported C guarantee.

Legend: n rows, q base columns, p features, k scores, m trees, d depth, t targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood import reference
from softwood.model.lookup_trees import LookupTrees
from softwood.tabular.encoding.base_columns import BaseColumn, Code, are_plain
from softwood.tabular.encoding.features import Encoding
from softwood.tabular.encoding.lookups import Lookup
from softwood.tabular.reading.table import Table, read_part, read_table


class Link(Enum):
    """How scores become predictions."""

    IDENTITY = "identity"
    EXPONENTIAL = "exponential"
    BINARY = "binary"
    SOFTMAX = "softmax"
    LOGISTIC = "logistic"

    def inverse(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Predictions [n, k] of scores [n, k]; for BINARY, the probability of the second class, for LOGISTIC of each
        label.
        """
        if self is Link.SOFTMAX:
            exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
            return exponentials / exponentials.sum(axis=1, keepdims=True)
        if self in (Link.BINARY, Link.LOGISTIC):
            e = np.exp(-np.abs(scores))
            return np.where(scores >= 0, 1, e) / (1 + e)
        return np.exp(scores) if self is Link.EXPONENTIAL else scores


@dataclass(frozen=True, eq=False)
class PredictionHead:
    """How raw scores become predictions: the link, then for a regression scale and mean by target, then sorting.

    Attributes
    ----------
    link : Link
    classes : ndarray, optional
        Labels of a classification in the order of the outputs (BINARY: the score is for the second). For LOGISTIC, the
        names of the labels, of which a row may have any number.
    target_mean, target_scale : ndarray [t], optional
        Of a regression: predictions are value * scale + mean. Scores of one target stand side by side.
    quantile_ranks : tuple of int
        Place of each quantile of a target in rising order; empty if scores are not quantiles. Quantiles of a row that
        are out of order are sorted.
    """

    link: Link
    classes: np.ndarray | None = None
    target_mean: NDArray[np.float64] | None = None
    target_scale: NDArray[np.float64] | None = None
    quantile_ranks: tuple[int, ...] = ()

    @property
    def n_targets(self) -> int:
        """Targets of a regression; 0 for a classification."""
        return 0 if self.target_mean is None else len(self.target_mean)

    def shape(self, n_scores: int) -> tuple[int, ...]:
        """Shape of one row's prediction: [classes]; or [], [t], [quantiles] or [t, quantiles]."""
        if self.n_targets == 0:
            return (2 if self.link is Link.BINARY else n_scores,)
        return tuple(size for size in (self.n_targets, n_scores // self.n_targets) if size > 1)

    def predictions(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Class probabilities [n, classes], or predicted values [n] or [n, t], or quantiles [n, q] or [n, t, q]."""
        values = np.asarray(self.link.inverse(scores), dtype=np.float64)
        if self.link is Link.BINARY:
            return np.column_stack([1 - values[:, 0], values[:, 0]])
        if self.link in (Link.SOFTMAX, Link.LOGISTIC):
            return values
        assert self.target_mean is not None
        assert self.target_scale is not None
        values = values.reshape(len(values), self.n_targets, -1)
        values = values * self.target_scale[:, None] + self.target_mean[:, None]
        if self.quantile_ranks:  # quantiles learned one by one may cross
            values = np.sort(values, axis=2)[:, :, list(self.quantile_ranks)]
        return values.reshape(len(values), *self.shape(scores.shape[1]))

    def labels(self, scores: NDArray[np.float64]) -> np.ndarray:
        """Most probable class [n] of each row of raw scores [n, k]; for LOGISTIC, 1 for each label it has [n, k]."""
        if self.link is Link.LOGISTIC:
            return (scores > 0).astype(np.int64)
        assert self.classes is not None
        return self.classes[(scores[:, 0] > 0).astype(int) if self.link is Link.BINARY else scores.argmax(axis=1)]


@dataclass(frozen=True, eq=False)
class TreeGroup:
    """Trees of one depth: split_weight [m, 2^d - 1, p], split_bias [m, 2^d - 1], leaf_weight [m, 2^d, k], float32.

    Nodes stand in heap order. A row goes left with probability S(weight . features + bias).
    """

    split_weight: NDArray[np.float32]
    split_bias: NDArray[np.float32]
    leaf_weight: NDArray[np.float32]

    @property
    def depth(self) -> int:
        """Depth d of the trees."""
        return self.leaf_weight.shape[1].bit_length() - 1


@dataclass(frozen=True, eq=False)
class FoldedMember:
    """One ensemble: its raw scores are `offset` [k] plus the sum of all trees.

    Attributes
    ----------
    encoding : str
        Name of the encoding whose features the trees read.
    groups : tuple of TreeGroup
        By rising depth.
    offset : ndarray [k], float32
    activation : str
        Shape of S, one of `softwood.arguments.ACTIVATIONS`.
    gamma : float
        Width of the soft band.
    rounder : float
        Adding and subtracting it in float64 rounds a leaf's share in a score to so few bits that sums of shares are
        exact, in any order.
    """

    encoding: str
    groups: tuple[TreeGroup, ...]
    offset: NDArray[np.float32]
    activation: str
    gamma: float
    rounder: float


@dataclass(frozen=True)
class TableColumn:
    """A column of the table: its name, and its kind, one of `softwood.tabular.reading.table.KINDS`."""

    name: str
    kind: str


@dataclass(frozen=True, eq=False)
class Program:
    """A fitted model's prediction; see the module's description.

    `given_columns` are the names of all columns at fit if `columns` are only some of them; otherwise it is empty.
    """

    columns: tuple[TableColumn, ...]
    base: tuple[BaseColumn, ...]
    encodings: Mapping[str, Encoding]
    members: tuple[FoldedMember | LookupTrees, ...]
    head: PredictionHead
    has_column_names: bool = False
    lookups: tuple[Lookup, ...] = ()
    given_columns: tuple[str, ...] = ()

    def read(self, X: Any) -> Table:
        """A table with this program's columns, matched by name where both have names; an error if they do not match."""
        must_match = self.has_column_names
        if not self.given_columns:
            return read_table(X, kinds=self.kinds, names=self.column_names, must_match=must_match)
        return read_part(X, kinds=self.kinds, places=self.places, given=self.given_columns, must_match=must_match)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Position of each of this program's columns in the table at fit."""
        if not self.given_columns:
            return tuple(range(len(self.columns)))
        place = {name: j for j, name in enumerate(self.given_columns)}
        return tuple(place[column.name] for column in self.columns)

    @property
    def column_names(self) -> list[str]:
        """Names of the table's columns."""
        return [column.name for column in self.columns]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the table's columns."""
        return tuple(column.kind for column in self.columns)

    @property
    def n_scores(self) -> int:
        """Raw scores per row, k."""
        return len(self.members[0].offset)

    @property
    def n_outputs(self) -> int:
        """Number of outputs of the head per row."""
        return 2 if self.head.link is Link.BINARY else self.n_scores

    @property
    def codes(self) -> dict[int, Code]:
        """Levels of the columns that hold categories, by number of the column."""
        return {code.column: code for code in self.base if isinstance(code, Code)}

    @property
    def is_plain(self) -> bool:
        """Whether base rows are the table's rows, rounded."""
        return len(self.base) == len(self.columns) and are_plain(self.base)

    @property
    def offset(self) -> NDArray[np.float64]:
        """Sum over members of the offsets [k]."""
        return np.sum([member.offset.astype(np.float64) for member in self.members], axis=0)

    def column_of_feature(self, encoding: str) -> NDArray[np.intp]:
        """Number of the table's column that each feature [p] of an encoding is made from."""
        return np.array([column.column for column in self.base])[self.encodings[encoding].source]

    def interpret(self, cells: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Raw scores [n, k] and predictions of rows of numbers [n, n_columns], by the definition of each step."""
        base = np.column_stack([column.read(cells[:, column.column]) for column in self.base])
        inputs = {name: encoding.evaluate(base) for name, encoding in self.encodings.items()}
        total = np.tile(self.offset, (len(cells), 1))
        for member in self.members:
            shape: dict[str, Any] = {"activation": member.activation, "gamma": member.gamma}
            if isinstance(member, LookupTrees):
                m, n_splits = member.split_bias.shape
                t = member.split_values(self.lookups, base).reshape(len(base), -1)
                # Splits that read one split value each.
                chosen = np.eye(m * n_splits, dtype=np.float32).reshape(m, n_splits, -1)
                total += reference.forward(t, chosen, member.leaf_weight, **shape)
                continue
            x = inputs[member.encoding]
            for trees in member.groups:
                total += reference.forward(
                    x, trees.split_weight, trees.leaf_weight, split_bias=trees.split_bias, **shape
                )
        scores = total / len(self.members)
        return scores, self.head.predictions(scores)
