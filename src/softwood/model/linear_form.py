"""A model of lookups in, the same model with linear splits out, for training that knows no other splits.

On a number a table is a sum of ramps from knot to knot, on a category a sum of flags. Warm starts, `partial_fit`,
PyTorch and ONNX start from this form; a row's split values differ by the rounding of fractions only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from softwood.model.lookup_trees import LookupTrees
from softwood.model.model import Model
from softwood.model.parts import Trees
from softwood.tabular.encoding.features import LOOKUP, Encoding, FeatureKind
from softwood.tabular.encoding.lookups import Lookup


def linear_form(model: Model) -> Model:
    """The model with linear splits; itself if it has no others."""
    lookups = model.preprocessor.lookups
    if not lookups:
        return model
    encoding, features = linear_encoding(lookups)
    members = [
        replace(member, trees=linear_trees(member.trees, lookups, features))
        if isinstance(member.trees, LookupTrees)
        else member
        for member in model.members
    ]
    preprocessor = replace(model.preprocessor, encodings={LOOKUP: encoding, **model.preprocessor.encodings}, lookups=())
    linear = replace(model, preprocessor=preprocessor, members=members)
    if "importances" in model.__dict__:
        linear.importances = model.importances
    return linear


def linear_encoding(lookups: Sequence[Lookup]) -> tuple[Encoding, list[np.ndarray]]:
    """Features of all lookups, and the numbers of those of each: its ramps or flags, then "missing" of a number."""
    found: list[tuple[int, int, float, float]] = []
    places = []
    for lookup in lookups:
        first = len(found)
        j = lookup.base_column
        if len(lookup.knots):
            rates = np.minimum(1 / np.diff(lookup.knots.astype(np.float64)), np.finfo(np.float32).max).tolist()
            ramps = zip(lookup.knots[:-1].tolist(), rates, strict=True)
            found += [(j, FeatureKind.RAMP, start, rate) for start, rate in ramps]
            found.append((j, FeatureKind.MISSING, 0.0, 1.0))
        else:
            found += [(j, FeatureKind.LEVEL, float(code), 1.0) for code in range(lookup.n_codes)]
        places.append(np.arange(first, len(found)))
    found = found or [(0, FeatureKind.MISSING, 0.0, 1.0)]  # trees need an input, if only one that no split reads
    source, kind, start, rate = (np.array(values) for values in zip(*found, strict=True))
    order = np.argsort(kind, kind="stable")
    rank = np.argsort(order, kind="stable")
    zero = np.zeros(len(order), dtype=np.float32)
    encoding = Encoding(
        source[order].astype(np.int32),
        kind[order].astype(np.uint8),
        start[order].astype(np.float32),
        rate[order].astype(np.float32),
        zero,
        zero + 1,
    )
    return encoding, [rank[place] for place in places]


def linear_trees(trees: LookupTrees, lookups: Sequence[Lookup], features: Sequence[np.ndarray]) -> Trees:
    """Linear splits on the features of `linear_encoding`."""
    m, n_splits = trees.split_bias.shape
    weight = np.zeros((m * n_splits, max(1, sum(map(len, features)))), dtype=np.float32)
    mask = np.zeros(weight.shape, dtype=bool)
    bias = trees.split_bias.ravel().astype(np.float64)
    for c, lookup in enumerate(lookups):
        splits, steps = trees.tables_of(c, lookups)
        values = steps.astype(np.float64) * trees.step
        if len(lookup.knots):
            constant, slopes = values[:, 0], np.diff(values[:, :-1], axis=1)
            slopes = np.column_stack([slopes, values[:, -1] - constant])
        else:
            constant = values[:, -1]
            slopes = values[:, :-1] - constant[:, None]
        weight[splits[:, None], features[c]] = slopes
        mask[splits[:, None], features[c]] = True
        bias[splits] += constant
    shape = (m, n_splits, weight.shape[1])
    return Trees(
        split_weight=weight.reshape(shape),
        split_bias=bias.astype(np.float32).reshape(m, n_splits),
        leaf_weight=trees.leaf_weight,
        offset=trees.offset,
        gamma=trees.gamma,
        activation=trees.activation,
        feature_mask=None if mask.all() else mask.reshape(shape),
    )
