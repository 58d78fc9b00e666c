"""A fitted model to and from one file: its parts as plain data and arrays, checked when they are read.

docs/file-format.md describes the result. `softwood.model.container` puts plain data and arrays into a safetensors file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from softwood.arguments import ACTIVATIONS, MAX_DEPTH
from softwood.model.container import ModelFileError, read_container, write_container
from softwood.model.model import Model
from softwood.model.parts import TASKS, BatchNorm, Head, ModelMember, Trees
from softwood.tabular.base_columns import CalendarUnit
from softwood.tabular.columns import Preprocessor
from softwood.tabular.features import ENCODING_NAMES, LOOKUP, FeatureKind
from softwood.tabular.table import KINDS
from softwood.training.losses import LOSS_NAMES, Loss


def write_model(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a model to one file; a kill at any moment leaves the old file or the new one, whole."""
    data, arrays = model.preprocessor.to_plain()
    metadata = {
        "preprocessor": data,
        "head": _head_to_plain(model.head, arrays),
        "members": [_member_to_plain(member, i, arrays) for i, member in enumerate(model.members)],
        "history": model.history,
        "has_column_names": model.has_column_names,
        "estimator": model.estimator,
        "target_name": model.target_name,
    }
    arrays["importances"] = model.importances
    write_container(path, metadata, arrays)


def read_model(path: str | os.PathLike[str]) -> Model:
    """Read a model file. A `ModelFileError` says what is wrong with one that cannot be read."""
    metadata, arrays = read_container(path)
    try:
        model = Model(
            Preprocessor.from_plain(metadata["preprocessor"], arrays),
            [_member_from_plain(data, i, arrays) for i, data in enumerate(metadata["members"])],
            _head_from_plain(metadata["head"], arrays),
            {str(key): list(values) for key, values in metadata["history"].items()},
            bool(metadata["has_column_names"]),
            dict(metadata["estimator"]),
            target_name=None if metadata.get("target_name") is None else str(metadata["target_name"]),
        )
        model.importances = arrays["importances"]
        _check(model)
    except ModelFileError as error:
        raise ModelFileError(f"{os.fspath(path)!r} is damaged: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise ModelFileError(
            f"{os.fspath(path)!r} is damaged: its metadata and arrays do not describe a model "
            f"({type(error).__name__}: {error}). Save the model again, or get a fresh copy of the file."
        ) from error
    return model


# To and from plain data ---------------------------------------------------------------------------------------------


def _head_to_plain(head: Head, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    loss = asdict(head.loss)
    if callable(head.loss.name):
        loss["name"] = None
    data: dict[str, Any] = {"task": head.task, "loss": loss}
    if head.classes is not None:
        data["classes"] = {"dtype": head.classes.dtype.str, "values": head.classes.tolist()}
    for name in ("target_mean", "target_scale"):
        value = getattr(head, name)
        if value is not None:
            arrays[f"head.{name}"] = value
    return data


def _head_from_plain(data: dict[str, Any], arrays: dict[str, np.ndarray]) -> Head:
    fields = dict(data["loss"])
    if fields["name"] is None:  # a function cannot be stored; prediction needs only its link, the identity
        fields["name"] = _unknown_loss
    elif fields["name"] not in LOSS_NAMES:
        raise ModelFileError(f"unknown loss {fields['name']!r}.")
    fields["quantiles"] = tuple(fields["quantiles"])
    classes = None
    if "classes" in data:
        dtype = np.dtype(str(data["classes"]["dtype"]))
        values = data["classes"]["values"]
        if dtype.kind not in "biufUO" or any(not isinstance(v, (str, int, float, bool)) for v in values):
            raise ModelFileError("class labels must be strings, numbers or booleans.")
        if dtype.kind == "U" and not 0 <= dtype.itemsize <= 4 * max(map(len, values), default=1):
            raise ModelFileError(f"class labels of dtype {dtype.str} are shorter than that.")
        classes = np.array(values, dtype=dtype)
    mean, scale = arrays.get("head.target_mean"), arrays.get("head.target_scale")
    return Head(str(data["task"]), Loss(**fields), classes, mean, scale)


def _unknown_loss(*_: Any) -> Any:
    raise ValueError("The loss of this model was a Python function, which its file does not hold; pass loss= again.")


def _member_to_plain(member: ModelMember, i: int, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    trees = member.trees
    prefix = f"members.{i}."
    optional: dict[str, np.ndarray | None] = {"split_bias": trees.split_bias}
    if trees.feature_mask is not None:
        optional["feature_mask"] = np.packbits(trees.feature_mask, axis=2)
    data = {"encoding": member.encoding, "gamma": float(trees.gamma), "activation": trees.activation}
    if trees.batch_norm is not None:
        norm = trees.batch_norm
        data["batch_norm"] = {"epsilon": float(norm.epsilon), "n_rows": int(norm.n_rows)}
        optional |= {f"batch_norm.{name}": getattr(norm, name) for name in ("mean", "variance", "scale", "shift")}
    arrays[prefix + "split_weight"] = trees.split_weight
    arrays[prefix + "leaf_weight"] = trees.leaf_weight
    arrays[prefix + "offset"] = trees.offset
    arrays |= {prefix + name: array for name, array in optional.items() if array is not None}
    return data


def _member_from_plain(data: dict[str, Any], i: int, arrays: dict[str, np.ndarray]) -> ModelMember:
    get: Callable[[str], Any] = lambda name: arrays.get(f"members.{i}.{name}")  # noqa: E731
    split_weight, mask, norm = get("split_weight"), get("feature_mask"), None
    _require(split_weight.ndim == 3 and split_weight.size > 0, f"member {i} has no splits.")
    if mask is not None:
        packed = (*split_weight.shape[:2], -(-split_weight.shape[2] // 8))
        _require(mask.shape == packed and mask.dtype == np.uint8, f"the feature mask of member {i} has a wrong shape.")
        mask = np.unpackbits(mask, axis=2, count=split_weight.shape[2]).astype(bool)
    if "batch_norm" in data:
        parts = {name: get(f"batch_norm.{name}") for name in ("mean", "variance", "scale", "shift")}
        epsilon, n_rows = float(data["batch_norm"]["epsilon"]), int(data["batch_norm"]["n_rows"])
        norm = BatchNorm(**parts, epsilon=epsilon, n_rows=n_rows)
    trees = Trees(
        split_weight=split_weight,
        split_bias=get("split_bias"),
        leaf_weight=get("leaf_weight"),
        offset=get("offset"),
        gamma=float(data["gamma"]),
        activation=str(data["activation"]),
        batch_norm=norm,
        feature_mask=mask,
    )
    return ModelMember(str(data["encoding"]), trees)


# Checks of what a file says -----------------------------------------------------------------------------------------


def _check(model: Model) -> None:
    """Refuse a model whose parts do not fit together, so that no later step can read outside an array."""
    _require(len(model.members) > 0, "it has no members.")
    _check_preprocessor(model.preprocessor)
    for i, member in enumerate(model.members):
        _check_member(model, i, member)
    head, k = model.head, model.n_outputs
    _require(head.task in TASKS, f"unknown task {head.task!r}.")
    if head.task == "regression":
        sizes = {None if a is None else a.shape for a in (head.target_mean, head.target_scale)}
        _require(len(sizes) == 1 and None not in sizes, "the standardisation of its targets is missing.")
        assert head.target_mean is not None
        _require(head.target_mean.ndim == 1 and head.target_mean.dtype == np.float64, "targets have a wrong shape.")
        n_targets = len(head.target_mean)
        _require(
            n_targets > 0 and head.loss.outputs_for(n_targets) == k, f"it has {k} outputs for {n_targets} targets."
        )
    else:
        classes = () if head.classes is None else head.classes
        expected = 1 if head.task == "binary" else len(classes)
        _require(k == expected and len(classes) >= 2, f"it has {k} outputs for {len(classes)} classes.")
        _require(head.loss.outputs_for(1) == k, f"its loss has {head.loss.outputs_for(1)} outputs, its trees {k}.")
    _require(model.importances.shape == (model.n_columns,), "importances have a wrong shape.")


def _check_preprocessor(preprocessor: Preprocessor) -> None:
    for j, means in preprocessor.target_means.items():
        shape = (len(preprocessor.columns[j].levels or ()) + 1, preprocessor.n_target_columns)
        _require(means.shape == shape and means.dtype == np.float32, "target means have a wrong shape.")
        _require(bool(np.isfinite(means).all()), "target means are not finite.")
    for column in preprocessor.columns:
        _require(column.kind in KINDS, f"unknown kind of column {column.kind!r}.")
        _require((column.levels is not None) == (column.kind == "category"), "a category has no levels.")
        _require(all(level is None or isinstance(level, str) for level in column.levels or ()), "a level is no string.")
        _require(set(column.calendar) <= {unit.value for unit in CalendarUnit}, "unknown part of the calendar.")
        _require(bool(np.isfinite([column.offset, column.unit]).all()) and column.unit > 0, "a unit is not positive.")
    n_base = len(preprocessor.base_columns())
    for name, encoding in preprocessor.encodings.items():
        _require(name in (*ENCODING_NAMES, LOOKUP), f"unknown encoding {name!r}.")
        arrays = encoding.arrays()
        _require(
            all(a.shape == (encoding.n_features,) for a in arrays.values()), "an encoding's arrays differ in length."
        )
        types = [a.dtype for a in arrays.values()]
        _require(types == [np.int32, np.uint8] + [np.float32] * 4, "an encoding's arrays have a wrong type.")
        _require(encoding.n_features > 0, "an encoding has no features.")
        inside = encoding.source.min() >= 0 and encoding.source.max() < n_base
        _require(bool(inside), "an encoding reads a column that does not exist.")
        _require(int(encoding.kind.max()) < len(FeatureKind), "an encoding has an unknown kind of feature.")
        _require(bool(np.all(np.diff(encoding.kind.astype(int)) >= 0)), "an encoding's features are out of order.")
        _require(all(np.isfinite(a).all() for a in arrays.values()), "an encoding holds numbers that are not finite.")


def _check_member(model: Model, i: int, member: ModelMember) -> None:
    trees = member.trees
    _require(member.encoding in model.preprocessor.encodings, f"member {i} names an encoding that is not there.")
    p = model.preprocessor.encodings[member.encoding].n_features
    m, n_leaves, k = trees.leaf_weight.shape
    depth = n_leaves.bit_length() - 1
    _require(
        m > 0 and k > 0 and 1 <= depth <= MAX_DEPTH and n_leaves == 1 << depth, f"member {i} has no perfect trees."
    )
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
        _require(array.shape == shape, f"{name} of member {i} has shape {array.shape}, not {shape}.")
        _require(bool(np.isfinite(array).all()), f"{name} of member {i} holds numbers that are not finite.")
    if trees.batch_norm is not None:
        for name in ("mean", "variance", "scale", "shift"):
            array = getattr(trees.batch_norm, name)
            _require(array is not None and array.shape == (p,), f"batch norm of member {i} has a wrong shape.")
    dtypes = {a.dtype for a in (trees.split_weight, trees.leaf_weight, trees.split_bias) if a is not None}
    _require(dtypes <= {np.dtype(np.float32)} or dtypes <= {np.dtype(np.float64)}, f"member {i} has a wrong type.")
    _require(trees.activation in ACTIVATIONS, f"member {i} has an unknown activation.")
    _require(np.isfinite(trees.gamma) and trees.gamma > 0, f"gamma of member {i} must be positive.")


def _require(condition: bool, complaint: str) -> None:
    if not condition:
        raise ModelFileError(complaint)
