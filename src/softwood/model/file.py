"""A fitted model to and from one file: its parts as plain data and arrays.

docs/file-format.md describes the result. `softwood.model.container` puts plain data and arrays into a safetensors file;
`softwood.model.file_checks` refuses contents that no fit could have produced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from softwood.model.container import ModelFileError, read_container, write_container
from softwood.model.file_checks import check_metadata, check_model, check_preprocessor, require
from softwood.model.lookup_trees import LookupTrees
from softwood.model.model import Model
from softwood.model.packing import (
    differences,
    pack_floats,
    pack_integers,
    pack_text,
    runs,
    unpack_floats,
    unpack_integers,
    unpack_text,
)
from softwood.model.parts import BatchNorm, Head, ModelMember, Trees
from softwood.tabular.encoding.columns import Preprocessor
from softwood.tabular.encoding.lookups import Lookup
from softwood.training.losses import LOSS_NAMES, Loss

# What reading damaged parts raises.
_DAMAGE = (LookupError, TypeError, ValueError, AttributeError, OverflowError, MemoryError, RecursionError)


def write_model(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a model to one file. If the process is killed, the old or the new file is there, complete."""
    data, arrays = model.preprocessor.to_plain()
    metadata = {
        "preprocessor": data,
        "head": _head_to_plain(model.head, arrays),
        "members": [
            _member_to_plain(member, i, arrays, model.preprocessor.lookups) for i, member in enumerate(model.members)
        ],
        "has_column_names": model.has_column_names,
        "estimator": model.estimator,
        "target_name": model.target_name,
    }
    arrays["importances"] = model.importances
    metadata["mean_parameters_read"] = model.mean_parameters_read
    arrays["history"] = pack_text(json.dumps(model.history))
    if model.given_columns:
        arrays["given_columns"] = pack_text(json.dumps(model.given_columns))
    write_container(path, metadata, arrays)


def read_model(path: str | os.PathLike[str]) -> Model:
    """Read a model file. A `ModelFileError` says what is wrong with one that cannot be read."""
    metadata, arrays = read_container(path)
    try:
        if "history" not in metadata:
            metadata["history"] = json.loads(unpack_text(arrays["history"]))
        if "given_columns" in arrays:
            metadata["given_columns"] = json.loads(unpack_text(arrays["given_columns"]))
        check_metadata(metadata)
        preprocessor = Preprocessor.from_plain(metadata["preprocessor"], arrays)
        check_preprocessor(preprocessor)
        model = Model(
            preprocessor,
            [_member_from_plain(data, i, arrays, preprocessor) for i, data in enumerate(metadata["members"])],
            _head_from_plain(metadata["head"], arrays),
            metadata["history"],
            metadata["has_column_names"],
            metadata["estimator"],
            target_name=metadata.get("target_name"),
            given_columns=tuple(metadata.get("given_columns", ())),
        )
        model.importances = arrays["importances"]
        model.mean_parameters_read = float(metadata.get("mean_parameters_read", float("nan")))
        check_model(model)
    except ModelFileError as error:
        raise ModelFileError(f"{os.fspath(path)!r} is damaged: {error}") from None
    except _DAMAGE as error:
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
            raise ModelFileError(f"class labels of dtype {dtype.str} are shorter than their dtype says.")
        classes = np.array(values, dtype=dtype)
        require(classes.tolist() == values, "class labels do not have their dtype.")
    mean, scale = arrays.get("head.target_mean"), arrays.get("head.target_scale")
    return Head(str(data["task"]), Loss(**fields), classes, mean, scale)


def _unknown_loss(*_: Any) -> Any:
    raise ValueError("The loss of this model was a Python function, which its file does not hold; pass loss= again.")


def _member_to_plain(
    member: ModelMember, i: int, arrays: dict[str, np.ndarray], lookups: Sequence[Lookup]
) -> dict[str, Any]:
    trees = member.trees
    prefix = f"members.{i}."
    if isinstance(trees, LookupTrees):
        arrays |= {prefix + name: array for name, array in _lookup_arrays(trees, lookups).items()}
        fields = {name: getattr(trees, name) for name in ("gamma", "activation", "step", "n_trainable")}
        return {"encoding": member.encoding, "n_trees": len(trees.leaf_weight), "depth": trees.depth, **fields}
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


def _lookup_arrays(trees: LookupTrees, lookups: Sequence[Lookup]) -> dict[str, np.ndarray]:
    """Arrays of lookup trees as a file holds them: integers packed; tables and splits as runs."""
    begin = trees.value_begin(lookups)
    is_last = np.zeros(len(trees.values), dtype=bool)
    is_last[begin[1:] - 1] = True
    first = begin[:-1] - np.arange(len(begin) - 1)  # of each table among the values without the last ones
    return {
        "table_count": pack_integers(np.diff(trees.table_begin).astype(np.int32)),
        "table_column": pack_integers(differences(trees.table_column, trees.table_begin[:-1])),
        "values": pack_integers(differences(trees.values[~is_last], first)),
        "last_values": pack_integers(trees.values[is_last]),
        "split_bias": pack_floats(trees.split_bias),
        "leaf_weight": pack_floats(trees.leaf_weight),
        "offset": trees.offset,
    }


def _lookups_from_plain(
    data: dict[str, Any], i: int, get: Callable[[str], Any], lookups: Sequence[Lookup]
) -> LookupTrees:
    split_bias, leaf_weight, offset = get("split_bias"), get("leaf_weight"), get("offset")
    if "n_trees" in data:  # earlier files hold these arrays unpacked
        m, n_leaves = data["n_trees"], 1 << data["depth"]
        split_bias = unpack_floats(split_bias, (m, n_leaves - 1))
        leaf_weight = unpack_floats(leaf_weight, (m, n_leaves, offset.size))
    counts = unpack_integers(get("table_count"), split_bias.size, np.int32)
    require(bool(np.all((counts >= 0) & (counts <= len(lookups)))), f"splits of member {i} have too many tables.")
    table_begin = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    steps = unpack_integers(get("table_column"), int(table_begin[-1]), np.int32)
    columns = runs(steps, table_begin[:-1])
    inside = bool(np.all((columns >= 0) & (columns < len(lookups))))
    require(inside, f"a table of member {i} reads a column that does not exist.")
    begin = np.cumsum([0, *(lookups[c].n_entries - 1 for c in columns.tolist())])
    known = runs(unpack_integers(get("values"), int(begin[-1]), np.int16), begin[:-1])
    last = unpack_integers(get("last_values"), len(columns), np.int16)
    return LookupTrees(
        table_begin=table_begin,
        table_column=columns,
        values=np.insert(known, begin[1:], last),
        split_bias=split_bias,
        leaf_weight=leaf_weight,
        offset=offset,
        step=float(data["step"]),
        gamma=float(data["gamma"]),
        activation=str(data["activation"]),
        n_trainable=int(data["n_trainable"]),
    )


def _member_from_plain(
    data: dict[str, Any], i: int, arrays: dict[str, np.ndarray], preprocessor: Preprocessor
) -> ModelMember:
    get: Callable[[str], Any] = lambda name: arrays.get(f"members.{i}.{name}")  # noqa: E731
    if "step" in data:
        return ModelMember(str(data["encoding"]), _lookups_from_plain(data, i, get, preprocessor.lookups))
    split_weight, mask, norm = get("split_weight"), get("feature_mask"), None
    require(split_weight.ndim == 3 and split_weight.size > 0, f"member {i} has no splits.")
    if mask is not None:
        packed = (*split_weight.shape[:2], -(-split_weight.shape[2] // 8))
        require(mask.shape == packed and mask.dtype == np.uint8, f"the feature mask of member {i} has the wrong shape.")
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
