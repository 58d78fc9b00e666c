"""What a model file may say: metadata, then the parts made of it. Whatever passes can predict, explain and export.

A file may be valid JSON and safetensors and still lie: types, shapes, orders and sizes are checked here, so that no
later step reads outside an array, fails, or computes NaN. `softwood.model.file` reads the parts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softwood.arguments import ACTIVATIONS, MAX_DEPTH, check_gamma
from softwood.model.container import ModelFileError
from softwood.model.lookup_trees import LookupTrees
from softwood.model.model import Model
from softwood.model.parts import TASKS, BatchNorm, Head, ModelMember, Trees
from softwood.tabular.encoding.base_columns import BaseColumn, CalendarUnit, Code
from softwood.tabular.encoding.columns import Column, Preprocessor
from softwood.tabular.encoding.features import ENCODING_NAMES, LOOKUP, Encoding, FeatureKind
from softwood.tabular.encoding.lookups import Lookup
from softwood.tabular.reading.table import DATES, KINDS

# No weight of a split, alone or times the scale of its feature, is larger: sums over features stay within float32.
_LARGEST_WEIGHT = 1e20
_LARGEST_FOLDED_WEIGHT = 1e30
# Scores of a member stay within this.
_LARGEST_SCORE = 1e30
# Steps of lookups; products with them are exact.
_SMALLEST_STEP, _LARGEST_STEP = 2.0**-80, 2.0**80
_MAX_ENTRIES = 1 << 16


def require(condition: bool, complaint: str) -> None:
    """Raise a ModelFileError with the complaint unless the condition holds."""
    if not condition:
        raise ModelFileError(complaint)


def is_whole(value: Any, low: int, high: int) -> bool:
    """Whether a value of JSON is an integer within [low, high]; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_number(value: Any) -> bool:
    """Whether a value of JSON is null, true, false, or a number that a 64-bit type holds; NaN and infinity are."""
    return value is None or isinstance(value, (bool, float)) or is_whole(value, -(2**63), 2**63 - 1)


# Metadata -----------------------------------------------------------------------------------------------------------


def check_metadata(metadata: dict[str, Any]) -> None:
    """Refuse types and texts that would be converted, or fail, only later."""
    check_texts(metadata)
    require(isinstance(metadata["has_column_names"], bool), "has_column_names must be true or false.")
    name = metadata.get("target_name")
    require(name is None or isinstance(name, str), "the name of its target is no text.")
    estimator = metadata["estimator"]
    require(isinstance(estimator, dict), "its estimator is no object.")
    require(isinstance(estimator.get("params", {}), dict), "its parameters are no object.")
    require(isinstance(estimator.get("has_metric", False), bool), "has_metric must be true or false.")
    require(type(metadata.get("mean_parameters_read", 0.0)) is float, "the numbers that a row reads must be counted.")
    _check_history(metadata["history"])
    given = metadata.get("given_columns", [])
    require(isinstance(given, list) and all(isinstance(name, str) for name in given), "given columns have no names.")
    for column in metadata["preprocessor"]["columns"]:
        require(all(isinstance(column[key], str) for key in ("name", "kind")), "the name of a column is no text.")
        numbers = [column[key] for key in ("offset", "unit")]
        require(all(type(number) in (int, float) for number in numbers), "the unit of a column is no number.")
        lists = [column["calendar"], [] if column["levels"] is None else column["levels"]]
        require(all(isinstance(items, list) for items in lists), "the levels of a column are no list.")
        require(type(column.get("is_frequent", False)) is bool, "a column has no kind of levels.")
    for lookup in metadata["preprocessor"].get("lookups", []):
        require(isinstance(lookup, list) and len(lookup) == 3, "a lookup has three numbers.")
        require(all(is_whole(number, 0, 2**31 - 1) for number in lookup), "entries of a lookup must be counted.")
    require(is_whole(metadata["preprocessor"]["n_target_columns"], 1, 2**31 - 1), "target columns must be counted.")
    for member in metadata["members"]:
        require(all(isinstance(member[key], str) for key in ("encoding", "activation")), "a member has no names.")
        require(type(member["gamma"]) in (int, float), "gamma is no number.")
        if "step" in member:
            require(type(member["step"]) is float, "the step of a member is no number.")
            require(is_whole(member.get("n_trees", 1), 1, 2**31 - 1), "the trees of a member must be counted.")
            require(is_whole(member.get("depth", 1), 1, MAX_DEPTH), "the depth of a member is out of range.")
            require(is_whole(member["n_trainable"], 0, 2**62), "the weights of a member must be counted.")
        if "batch_norm" in member:
            norm = member["batch_norm"]
            require(type(norm["epsilon"]) is float, "the epsilon of batch normalisation is no number.")
            require(is_whole(norm["n_rows"], 0, 2**62), "the rows of batch normalisation must be counted.")
    _check_loss(metadata["head"]["loss"])
    require(isinstance(metadata["head"]["task"], str), "its task is no text.")


def check_texts(data: Any) -> None:
    """Refuse texts, keys included, that UTF-8 cannot write: halves of a surrogate pair."""
    if isinstance(data, str):
        try:
            data.encode()
        except UnicodeEncodeError:
            raise ModelFileError(f"the text {data!r} is no valid Unicode.") from None
    elif isinstance(data, dict):
        for key, value in data.items():
            check_texts(key)
            check_texts(value)
    elif isinstance(data, list):
        for value in data:
            check_texts(value)


def _check_history(history: Any) -> None:
    require(isinstance(history, dict), "its history is no object.")
    require(all(isinstance(values, list) for values in history.values()), "its history holds no lists.")
    if not history:
        return
    require(len({len(values) for values in history.values()}) == 1, "the columns of its history differ in length.")
    missing = {"member", "epoch", "is_best", "train_loss", "validation_loss"} - history.keys()
    require(not missing, f"its history has no {', '.join(sorted(missing))}.")
    for name, values in history.items():
        if name in ("member", "epoch"):
            require(all(is_whole(value, 0, 2**31 - 1) for value in values), f"{name} in its history must be counted.")
        require(all(is_number(value) for value in values), f"{name} in its history must be numbers.")


def _check_loss(loss: Any) -> None:
    require(isinstance(loss, dict), "its loss is no object.")
    for name in ("n_classes", "n_outputs"):
        value = loss.get(name)
        require(value is None or is_whole(value, 1, 2**31 - 1), f"{name} of its loss must be counted.")
    numbers = [loss.get(name, 0.5) for name in ("label_smoothing", "delta", "power")]
    quantiles = loss["quantiles"]
    require(isinstance(quantiles, list), "the quantiles of its loss are no list.")
    require(
        all(type(value) in (int, float) and math.isfinite(value) for value in [*numbers, *quantiles]),
        "a number of its loss is not finite.",
    )


# Parts --------------------------------------------------------------------------------------------------------------


def check_model(model: Model) -> None:
    """Refuse a model whose parts do not fit together, are out of order, or hold numbers that overflow."""
    require(len(model.members) > 0, "it has no members.")
    names = model.column_names
    require(len(set(names)) == len(names), "two columns have the same name.")
    given = model.given_columns
    require(len(set(given)) == len(given), "two given columns have the same name.")
    require(not given or set(names) < set(given), "its columns are not some of the given ones.")
    largest_score = max(_check_member(model, i, member) for i, member in enumerate(model.members))
    _check_head(model.head, model.n_outputs, largest_score)
    importances = model.importances
    require(
        importances.shape == (model.n_columns,) and importances.dtype.kind == "f", "importances are of wrong shape."
    )
    require(bool(np.all(importances >= 0) and np.all(importances <= 1)), "importances must lie between 0 and 1.")


def _check_head(head: Head, k: int, largest_score: float) -> None:
    require(head.task in TASKS, f"unknown task {head.task!r}.")
    head.loss.check()
    if head.task != "regression":
        classes: list[Any] = [] if head.classes is None else head.classes.tolist()
        expected = 1 if head.task == "binary" else len(classes)
        require(k == expected and len(classes) >= 2, f"it has {k} outputs for {len(classes)} classes.")
        n_outputs = head.loss.outputs_for(k if head.task == "multilabel" else 1)
        require(n_outputs == k, f"its loss has {n_outputs} outputs, its trees {k}.")
        name = "cross_entropy" if head.task == "multiclass" else "binary_cross_entropy"
        require(head.loss.name == name, "its loss is not that of its task.")
        require(len(set(classes)) == len(classes), "two classes have the same label.")
        require(all(math.isfinite(label) for label in classes if isinstance(label, float)), "a class is not finite.")
        return
    mean, scale = head.target_mean, head.target_scale
    if mean is None or scale is None:
        raise ModelFileError("the standardisation of its targets is missing.")
    require(mean.ndim == 1 and mean.shape == scale.shape, "targets have a wrong shape.")
    require(mean.dtype == scale.dtype == np.float64, "targets have a wrong type.")
    require(len(mean) > 0 and head.loss.outputs_for(len(mean)) == k, f"it has {k} outputs for {len(mean)} targets.")
    require(head.classes is None, "a regression has no classes.")
    require(bool(np.isfinite(mean).all() and np.isfinite(scale).all()), "means or scales of targets are not finite.")
    require(bool((scale > 0).all()), "scales of targets must be positive.")
    with np.errstate(over="ignore"):
        require(bool(np.isfinite(scale * largest_score + np.abs(mean)).all()), "scales of targets are too large.")


def check_preprocessor(preprocessor: Preprocessor) -> None:
    """Refuse columns, encodings and lookups that contradict each other."""
    for column in preprocessor.columns:
        _check_column(column)
    for j, means in preprocessor.target_means.items():
        shape = (len(preprocessor.columns[j].levels or ()) + 1, preprocessor.n_target_columns)
        require(means.shape == shape and means.dtype == np.float32, "target means have a wrong shape.")
        require(bool(np.isfinite(means).all()), "target means are not finite.")
    base = preprocessor.base_columns()
    for name, encoding in preprocessor.encodings.items():
        require(name in (*ENCODING_NAMES, LOOKUP), f"unknown encoding {name!r}.")
        _check_encoding(encoding, base)
    for lookup in preprocessor.lookups:
        _check_lookup(lookup, base)


def _check_column(column: Column) -> None:
    require(column.kind in KINDS, f"unknown kind of column {column.kind!r}.")
    require((column.levels is not None) == (column.kind == "category"), "a category has no levels.")
    levels = column.levels or ()
    require(all(level is None or isinstance(level, str) for level in levels), "a level is no string.")
    in_order = sorted(set(levels), key=lambda level: (level is None, level or ""))
    require(list(levels) == in_order, f"the levels of column {column.name!r} are out of order.")
    known = {unit.value for unit in CalendarUnit} if column.kind in DATES else set()
    require(set(column.calendar) <= known, "unknown part of the calendar.")
    require(len(set(column.calendar)) == len(column.calendar), "a part of the calendar occurs twice.")
    require(math.isfinite(column.offset), "an offset is not finite.")
    require(math.isfinite(column.unit) and column.unit > 0, "a unit is not positive.")


def _check_encoding(encoding: Encoding, base: list[BaseColumn]) -> None:
    arrays = encoding.arrays()
    require(all(a.shape == (encoding.n_features,) for a in arrays.values()), "an encoding's arrays differ in length.")
    types = [a.dtype for a in arrays.values()]
    require(types == [np.int32, np.uint8] + [np.float32] * 4, "an encoding's arrays have a wrong type.")
    require(encoding.n_features > 0, "an encoding has no features.")
    inside = encoding.source.min() >= 0 and encoding.source.max() < len(base)
    require(bool(inside), "an encoding reads a column that does not exist.")
    require(int(encoding.kind.max()) < len(FeatureKind), "an encoding has an unknown kind of feature.")
    require(bool(np.all(np.diff(encoding.kind.astype(int)) >= 0)), "an encoding's features are out of order.")
    require(all(np.isfinite(a).all() for a in arrays.values()), "an encoding holds numbers that are not finite.")
    require(bool((encoding.rate > 0).all() and (encoding.scale >= 0).all()), "an encoding's scales are negative.")
    for j in np.flatnonzero(encoding.kind == FeatureKind.LEVEL):
        column, code = base[encoding.source[j]], float(encoding.start[j])
        if isinstance(column, Code):
            require(
                code.is_integer() and 0 <= code < len(column.levels), "an encoding names a level that is not there."
            )


def _check_lookup(lookup: Lookup, base: list[BaseColumn]) -> None:
    require(0 <= lookup.base_column < len(base), "a lookup reads a column that does not exist.")
    column, knots = base[lookup.base_column], lookup.knots
    if isinstance(column, Code):
        require(not len(knots) and 0 <= lookup.n_codes <= len(column.levels), "a lookup has codes that do not exist.")
        return
    require(knots.ndim == 1 and knots.dtype == np.float32 and lookup.n_codes == 0, "knots are of a wrong type.")
    require(1 < len(knots) < _MAX_ENTRIES, "a lookup has too few or too many knots.")
    require(bool(np.isfinite(knots).all() and np.all(knots[1:] > knots[:-1])), "knots must be finite and increase.")


def _check_lookup_trees(model: Model, i: int, trees: LookupTrees) -> float:
    """Check one member of lookups, and return the largest score that it can give."""
    m, n_leaves, k = trees.leaf_weight.shape
    depth = n_leaves.bit_length() - 1
    is_perfect = m > 0 and k > 0 and 1 <= depth <= MAX_DEPTH and n_leaves == 1 << depth
    require(is_perfect, f"member {i} has no perfect trees.")
    shapes = {"split_bias": (m, n_leaves - 1), "leaf_weight": (m, n_leaves, model.n_outputs)}
    for name, shape in (shapes | {"offset": (model.n_outputs,)}).items():
        array = getattr(trees, name)
        require(array.shape == shape, f"{name} of member {i} has shape {array.shape}, not {shape}.")
        require(array.dtype == np.float32, f"{name} of member {i} has a wrong type.")
        require(bool(np.isfinite(array).all()), f"{name} of member {i} holds numbers that are not finite.")
    is_rising = np.diff(trees.table_column) > 0
    is_rising[trees.table_begin[1:-1][trees.table_begin[1:-1] < len(trees.table_column)] - 1] = True
    require(bool(is_rising.all()), f"columns of a split of member {i} are out of order.")
    require(trees.sums_fit(model.preprocessor.lookups), f"values of a split of member {i} are too large.")
    require(trees.activation in ACTIVATIONS, f"member {i} has an unknown activation.")
    check_gamma(trees.gamma, np.dtype(np.float32))
    require(math.frexp(trees.step)[0] == 0.5, f"the step of member {i} must be a power of two.")
    require(_SMALLEST_STEP <= trees.step <= _LARGEST_STEP, f"the step of member {i} is out of range.")
    require(float(np.abs(trees.split_bias).max()) <= _LARGEST_WEIGHT, f"biases of member {i} are too large.")
    largest = float((np.abs(trees.leaf_weight).max(axis=(1, 2)).sum(dtype=np.float64) + np.abs(trees.offset)).max())
    require(largest <= _LARGEST_SCORE, f"weights of leaves of member {i} are too large.")
    return largest


def _check_member(model: Model, i: int, member: ModelMember) -> float:
    """Check one member, and return the largest score that it can give."""
    trees = member.trees
    if isinstance(trees, LookupTrees):
        require(member.encoding == LOOKUP, f"member {i} of lookups names an encoding.")
        return _check_lookup_trees(model, i, trees)
    require(member.encoding in model.preprocessor.encodings, f"member {i} names an encoding that is not there.")
    encoding = model.preprocessor.encodings[member.encoding]
    p = encoding.n_features
    m, n_leaves, k = trees.leaf_weight.shape
    depth = n_leaves.bit_length() - 1
    is_perfect = m > 0 and k > 0 and 1 <= depth <= MAX_DEPTH and n_leaves == 1 << depth
    require(is_perfect, f"member {i} has no perfect trees.")
    shapes: dict[str, tuple[int, ...]] = {
        "split_weight": (m, n_leaves - 1, p),
        "split_bias": (m, n_leaves - 1),
        "leaf_weight": (m, n_leaves, model.n_outputs),
        "offset": (model.n_outputs,),
        "feature_mask": (m, n_leaves - 1, p),
    }
    for name, shape in shapes.items():
        array = getattr(trees, name)
        if array is None and name in ("split_bias", "feature_mask"):
            continue
        require(array.shape == shape, f"{name} of member {i} has shape {array.shape}, not {shape}.")
        require(bool(np.isfinite(array).all()), f"{name} of member {i} holds numbers that are not finite.")
    if trees.batch_norm is not None:
        _check_batch_norm(trees.batch_norm, i, p)
    dtypes = {a.dtype for a in (trees.split_weight, trees.leaf_weight, trees.split_bias) if a is not None}
    require(dtypes <= {np.dtype(np.float32)} or dtypes <= {np.dtype(np.float64)}, f"member {i} has a wrong type.")
    require(trees.offset.dtype.kind == "f", f"offset of member {i} has a wrong type.")
    require(trees.activation in ACTIVATIONS, f"member {i} has an unknown activation.")
    check_gamma(trees.gamma, np.dtype(np.float32))
    return _check_sizes(trees, encoding, i)


def _check_batch_norm(norm: BatchNorm, i: int, p: int) -> None:
    for name in ("mean", "variance", "scale", "shift"):
        array = getattr(norm, name)
        require(array is not None and array.shape == (p,), f"batch norm of member {i} has a wrong shape.")
        require(array.dtype in (np.float32, np.float64), f"batch norm of member {i} has a wrong type.")
        require(bool(np.isfinite(array).all()), f"batch norm of member {i} is not finite.")
    require(bool((norm.variance >= 0).all()), f"a variance in the batch norm of member {i} is negative.")
    require(1e-30 < norm.epsilon < 1e30, f"epsilon in the batch norm of member {i} must be positive.")


def _check_sizes(trees: Trees, encoding: Encoding, i: int) -> float:
    """Refuse weights whose products and sums could leave the range of float32; return the largest score."""
    with np.errstate(over="ignore", invalid="ignore"):
        split_weight, split_bias, leaf_weight = trees.folded()
        weight, scale = np.abs(split_weight).max(axis=(0, 1)), encoding.scale.astype(np.float64)
        bias = 0.0 if split_bias is None else float(np.abs(split_bias).max())
        score = np.abs(leaf_weight).max(axis=1).sum(axis=0, dtype=np.float64) + np.abs(trees.offset)
    is_small = bool(np.all(weight <= _LARGEST_WEIGHT) and np.all(weight * scale <= _LARGEST_FOLDED_WEIGHT))
    require(is_small and bias <= _LARGEST_WEIGHT, f"weights of splits of member {i} are too large.")
    largest = float(score.max())
    require(largest <= _LARGEST_SCORE, f"weights of leaves of member {i} are too large.")
    return largest
