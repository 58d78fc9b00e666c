"""A fitted model in, one dependency-free C99 file and its header out.

The C does what the compiled predictor does, in the same precision and order of sums (core/include/softwood/predictor.h
has them), by the conditional traversal of the paper's Algorithm 1: level by level, many nodes at a time. It needs the
standard library and its mathematics only, allocates nothing, and keeps no state: any number of threads may call it. The
parts that are the same for every model are in `softwood.export.c_text`; here are the tables and what joins them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from softwood.export import ExportError
from softwood.export import c_text as text
from softwood.model.model import Model
from softwood.model.predictor import LINKS, base_columns, is_plain, native_head
from softwood.model.program import FoldedMember, TreeGroup, fold_member, folded_encoding
from softwood.tabular.columns import CALENDAR_PARTS
from softwood.tabular.features import FEATURE_KINDS

_LANES = 8
# Nodes that the C follows at a time: enough to keep a processor busy, in a few kilobytes of stack.
_BATCH = 128
_C_WORDS = (
    "auto break case char const continue default do double else enum extern float for goto if inline int long register "
    "restrict return short signed sizeof static struct switch typedef union unsigned void volatile while"
)


def c_source(model: Model, stem: str) -> tuple[str, str]:
    """Header and source of a model; their names begin with `stem`, made into an identifier."""
    name = _identifier(stem)
    _check(model)
    head = native_head(model.head)
    folded = [fold_member(member, model.preprocessor.encodings[member.encoding]) for member in model.members]
    n_outputs = 2 if model.head.task == "binary" else model.n_outputs
    has_categories = "category" in model.preprocessor.kinds
    header = text.HEADER.format(
        name=name,
        guard=f"{name.upper()}_H",
        upper=name.upper(),
        n_columns=model.n_columns,
        n_outputs=n_outputs,
        columns=_column_comment(model),
        outputs=_output_comment(model),
        lookup=text.LOOKUP_DECLARATION.format(name=name) if has_categories else "",
    )
    source = "\n".join(
        part
        for part in [
            text.PREAMBLE.format(stem=stem, n_scores=model.n_outputs, batch=_BATCH),
            _readers(model),
            *(_encoding(model, i) for i in range(len(model.preprocessor.encodings))),
            text.NUMBERS,
            *(text.ACTIVATIONS[kind] for kind in sorted({member.trees.activation for member in model.members})),
            text.TRAVERSAL_START,
            *(
                _trees(member, trees, f"{i}_{g}")
                for i, member in enumerate(folded)
                for g, trees in enumerate(member.groups)
            ),
            _lookup(model, name) if has_categories else "",
            _predict(model, folded, name, head),
        ]
        if part
    )
    return header, source


def _identifier(stem: str) -> str:
    name = re.sub(r"\W", "_", stem, flags=re.ASCII)
    if not name or not (name[0].isascii() and name[0].isalpha()) or name in _C_WORDS.split():
        name = "model_" + name
    return name


def _check(model: Model) -> None:
    for column in model.preprocessor.columns:
        for level in column.levels or ():
            if level is not None and "\0" in level:
                raise ExportError(
                    f"C cannot express category {level!r} of column {column.name!r}: a string of C ends at its first "
                    "NUL. Rename the category and fit again."
                )


# Tables -------------------------------------------------------------------------------------------------------------


def _float(value: Any) -> str:
    """A literal that reads back as the same float32."""
    if value == 0:
        return "0"
    digits = f"{np.float32(value):.9g}"
    return digits + ("f" if any(c in digits for c in ".e") else ".0f")


def _double(value: float) -> str:
    digits = repr(float(value))
    return digits if math.isfinite(float(value)) else f"({digits})"


def _array(kind: str, name: str, values: Iterable[str]) -> str:
    lines, line = [], "   "
    for value in values:
        if len(line) + len(value) > 117:
            lines.append(line)
            line = "   "
        line += f" {value},"
    return f"static const {kind} {name}[] = {{\n" + "\n".join([*lines, line]) + "\n};\n"


def _string(label: str) -> str:
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}" for byte in label.encode()
    )
    return f'"{escaped}"'


def _comment(words: str) -> str:
    """Words that cannot end a comment, nor begin one inside it."""
    printable = "".join(c if c.isprintable() else " " for c in words)
    return printable.replace("*/", "* /").replace("/*", "/ *").replace("??/", "? ?/").rstrip("\\")


# From columns to the inputs of the trees ----------------------------------------------------------------------------


def _readers(model: Model) -> str:
    columns = base_columns(model.preprocessor)
    kinds = {c["kind"] for c in columns}
    parts = [text.AS_FLOAT] if 0 in kinds else []
    if kinds & {1, 5}:
        parts.append(text.CODE_OF)
    parts += [text.CALENDAR[part] for i, part in enumerate(CALENDAR_PARTS) if 2 + i in kinds]
    lines = []
    if is_plain(columns):
        lines.append(f"    for (int j = 0; j < {len(columns)}; ++j) base[j] = as_float(row[j]);")
        columns = []
    for b, c in enumerate(columns):
        cell, code = f"row[{c['source']}]", f"code_of(row[{c['source']}], {c['n_levels']}, {c['missing_code']})"
        if c["kind"] == 0:
            value = f"as_float(({cell} - {_double(c['offset'])}) / {_double(c['unit'])})"
        elif c["kind"] == 1:
            value = f"(float){code}"
        elif c["kind"] == 5:
            parts.append(_array("float", f"means_{b}", map(_float, c["means"])))
            value = f"means_{b}[({code} + {c['n_levels'] + 1}) % {c['n_levels'] + 1}]"
        else:
            value = f"{CALENDAR_PARTS[c['kind'] - 2]}_of({cell})"
        lines.append(f"    base[{b}] = {value};")
    body = "\n".join(lines)
    return "\n".join([*parts, f"static void read_row(const double *row, float *base) {{\n{body}\n}}\n"])


def _encoding(model: Model, i: int) -> str:
    encoding = list(model.preprocessor.encodings.values())[i]
    bound = folded_encoding(encoding).get("bound")
    arrays = [_array("int", f"source_{i}", (str(s) for s in encoding.source.tolist()))]
    counts = np.bincount(encoding.kind, minlength=len(FEATURE_KINDS))
    parameters = {"mean": encoding.mean} | ({"scale": encoding.scale} if bound is None else {"bound": bound})
    if counts[1:4].sum():
        parameters["start"] = encoding.start
    if counts[1:3].sum():
        parameters["rate"] = encoding.rate
    arrays += [_array("float", f"{key}_{i}", map(_float, values.tolist())) for key, values in parameters.items()]
    loops, first = [], 0
    for kind, count in zip(FEATURE_KINDS, counts.tolist(), strict=True):
        if count:
            feature = text.SCALED_FEATURE if bound is None else text.FEATURE
            body = text.FEATURES[kind].replace("$", feature)
            loops.append(text.FEATURE_LOOP.format(first=first, end=first + count, body=body))
        first += count
    loops = [loop.replace("@", str(i)) for loop in loops]
    p, width = encoding.n_features, _width(encoding.n_features)
    rest = f"    x[{p}] = 1.0f;\n    for (int f = {p + 1}; f < {width}; ++f) x[f] = 0.0f;\n"
    body = "".join(loops) + rest
    return "\n".join([*arrays, f"static void encode_{i}(const float *base, float *x) {{\n{body}}}\n"])


# Trees and head -----------------------------------------------------------------------------------------------------


def _width(n_features: int) -> int:
    """Floats a split takes: its weights, its bias, and zeros up to a multiple of the partial sums."""
    return -(-(n_features + 1) // _LANES) * _LANES


def _trees(member: FoldedMember, trees: TreeGroup, i: str) -> str:
    m, n_splits, p = trees.split_weight.shape
    rows = np.zeros((m, n_splits, _width(p)), dtype=np.float32)
    rows[:, :, :p] = trees.split_weight
    rows[:, :, p] = trees.split_bias
    by_level = [rows[:, (1 << level) - 1 : (2 << level) - 1].ravel() for level in range(trees.depth)]
    tables = [
        _array("float", f"splits_{i}", map(_float, np.concatenate(by_level).tolist())),
        _array("float", f"leaves_{i}", map(_float, trees.leaf_weight.ravel().tolist())),
    ]
    gamma = np.float32(member.gamma)
    function = text.TRAVERSAL.format(
        i=i,
        n_trees=m,
        depth=trees.depth,
        width=_width(p),
        minor=member.activation,
        half=_float(gamma / np.float32(2)),
        inverse=_float(np.float32(1) / gamma),
        rounder=_double(member.rounder),
    )
    return "\n".join([*tables, function])


def _lookup(model: Model, name: str) -> str:
    parts, cases = [], []
    for j, column in enumerate(model.preprocessor.columns):
        if column.levels is None:
            continue
        labels = [level for level in column.levels if level is not None]  # None is the last where there is one
        missing = len(labels) if None in column.levels else -1
        if labels:
            parts.append(_array("char *const", f"labels_{j}", map(_string, labels)))
        table = f"labels_{j}" if labels else "NULL"
        cases.append(f"    case {j}: return find({table}, {len(labels)}, {missing}, label);")
    return "\n".join([*parts, text.LOOKUP.format(name=name, cases="\n".join(cases))])


def _predict(model: Model, folded: list[FoldedMember], name: str, head: dict[str, Any]) -> str:
    encodings = model.preprocessor.encodings
    names = list(encodings)
    offset = np.sum([member.offset.astype(np.float64) for member in folded], axis=0)
    steps = []
    for e, encoding_name in enumerate(names):
        readers = [i for i, member in enumerate(model.members) if member.encoding == encoding_name]
        if readers:
            steps.append(f"    encode_{e}(base, x);")
            steps += [f"    add_trees_{i}_{g}(x, scores);" for i in readers for g in range(len(folded[i].groups))]
    return text.PREDICT.format(
        name=name,
        upper=name.upper(),
        n_columns=model.n_columns,
        n_base=len(base_columns(model.preprocessor)),
        width=max(_width(encoding.n_features) for encoding in encodings.values()),
        offset=", ".join(map(_double, offset)),
        steps="\n".join(steps),
        n_members=_double(len(model.members)),
        head=_head(model, head),
    )


def _head(model: Model, head: dict[str, Any]) -> str:
    link = LINKS[head["link"]]
    if link in ("binary", "softmax"):
        return text.HEADS[link]
    n_targets = len(head["target_mean"])
    body = text.HEADS["regression"].format(
        mean=", ".join(map(_double, head["target_mean"])),
        scale=", ".join(map(_double, head["target_scale"])),
        value="exp(scores[c])" if link == "exponential" else "scores[c]",
        per_target=model.n_outputs // n_targets,
    )
    rank = head["quantile_rank"]
    if len(rank) > 1:
        body += text.SORT_QUANTILES.format(n_quantiles=len(rank), rank=", ".join(map(str, rank)))
    return body


# Words of the header ------------------------------------------------------------------------------------------------


def _column_comment(model: Model) -> str:
    words = {
        "datetime": "seconds since 1970-01-01 UTC",
        "boolean": "0 or 1",
        "category": "category code",
        "numeric": "number",
    }
    columns = model.preprocessor.columns
    return "\n".join(f" *   {j:4d}  {_comment(c.name)}: {words[c.kind]}" for j, c in enumerate(columns))


def _output_comment(model: Model) -> str:
    if model.head.classes is not None:
        labels = [_comment(str(label)) for label in model.head.classes.tolist()]
        return "\n".join(f" *   {c:4d}  probability of class {label}" for c, label in enumerate(labels))
    kind = "quantiles of each target" if model.head.loss.name == "quantile" else "predicted value of each target"
    return f" *   {kind}, in the order of the fit"
