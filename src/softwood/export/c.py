"""A prediction program in, one dependency-free C99 file and its header out.

The C does what the compiled predictor does, in the same precision and order of sums (core/include/softwood/predictor.h
has them), by the conditional traversal of the paper's Algorithm 1: level by level, many nodes at a time. It needs the
standard library and its mathematics only, allocates nothing, and keeps no state: any number of threads may call it. The
parts that are the same for every model are in `softwood.export.c_text`; here are the tables and what joins them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from softwood.export import ExportError
from softwood.export import c_text as text
from softwood.model.lookup_trees import LookupTrees
from softwood.model.program import FoldedMember, Link, PredictionHead, Program, TreeGroup
from softwood.tabular.encoding.base_columns import BaseColumn, CalendarPart, CalendarUnit, Code, TargetMean, Value
from softwood.tabular.encoding.features import LARGEST_FEATURE, Encoding, FeatureKind
from softwood.tabular.encoding.lookups import ONE_FRACTION, Lookup
from softwood.tabular.reading.table import DATES

_LANES = 8
# Nodes that the C follows at a time: enough to keep a processor busy, in a few kilobytes of stack.
_BATCH = 128
_C_WORDS = (
    "auto break case char const continue default do double else enum extern float for goto if inline int long register "
    "restrict return short signed sizeof static struct switch typedef union unsigned void volatile while"
)


def c_source(program: Program, stem: str) -> tuple[str, str]:
    """Header and source of a program; their names begin with `stem`, made into an identifier."""
    name = _identifier(stem)
    _check(program)
    header = text.HEADER.format(
        name=name,
        guard=f"{name.upper()}_H",
        upper=name.upper(),
        n_columns=len(program.columns),
        n_outputs=program.n_outputs,
        columns=_column_comment(program),
        outputs=_output_comment(program.head),
        lookup=text.LOOKUP_DECLARATION.format(name=name) if program.codes else "",
    )
    largest = _float(LARGEST_FEATURE)
    source = "\n".join(
        part
        for part in [
            text.PREAMBLE.format(stem=stem, n_scores=program.n_scores, batch=_BATCH, largest=largest),
            _readers(program),
            *(_encoding(encoding, i) for i, encoding in enumerate(program.encodings.values())),
            _cells(program.lookups) if program.lookups else "",
            text.NUMBERS,
            *(text.ACTIVATIONS[kind] for kind in sorted({member.activation for member in program.members})),
            text.TRAVERSAL_START if program.encodings else "",
            *(_member(member, i, program.lookups) for i, member in enumerate(program.members)),
            _lookup(program, name) if program.codes else "",
            _predict(program, name),
        ]
        if part
    )
    return header, source


def _identifier(stem: str) -> str:
    name = re.sub(r"\W", "_", stem, flags=re.ASCII)
    if not name or not (name[0].isascii() and name[0].isalpha()) or name in _C_WORDS.split():
        name = "model_" + name
    return name


def _check(program: Program) -> None:
    for j, code in program.codes.items():
        for level in code.levels:
            if level is not None and "\0" in level:
                name = program.columns[j].name
                raise ExportError(
                    f"C cannot express category {level!r} of column {name!r}: a string of C ends at its first NUL. "
                    "Rename the category and fit again."
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


def _readers(program: Program) -> str:
    """`read_row`, which makes the base row, and what it calls."""
    base = program.base
    parts = [text.AS_FLOAT] if any(isinstance(column, Value) for column in base) else []
    if program.codes:
        parts.append(text.CODE_OF)
    units = {column.unit for column in base if isinstance(column, CalendarPart)}
    parts += [text.CALENDAR[unit] for unit in CalendarUnit if unit in units]
    parts += [
        _array("float", f"means_{b}", map(_float, column.means.tolist()))
        for b, column in enumerate(base)
        if isinstance(column, TargetMean)
    ]
    if program.is_plain:
        body = f"    for (int j = 0; j < {len(base)}; ++j) base[j] = as_float(row[j]);"
    else:
        body = "\n".join(f"    base[{b}] = {_base_column(column, b)};" for b, column in enumerate(base))
    return "\n".join([*parts, f"static void read_row(const double *row, float *base) {{\n{body}\n}}\n"])


def _base_column(column: BaseColumn, b: int) -> str:
    cell = f"row[{column.column}]"
    if isinstance(column, Value):
        return f"as_float(({cell} - {_double(column.offset)}) / {_double(column.unit)})"
    if isinstance(column, CalendarPart):
        return f"{column.unit.value}_of({cell})"
    code = column if isinstance(column, Code) else column.code
    n_levels = len(code.levels)
    found = f"code_of({cell}, {n_levels}, {code.missing_code})"
    if isinstance(column, TargetMean):
        return f"means_{b}[({found} + {n_levels + 1}) % {n_levels + 1}]"
    return f"(float){found}"


def _encoding(encoding: Encoding, i: int) -> str:
    """`encode_<i>`, which makes the inputs of the trees, and its tables."""
    ranges = encoding.ranges()
    used = {"mean": encoding.mean}
    used |= {"scale": encoding.scale} if encoding.bound is None else {"bound": encoding.bound}
    if {FeatureKind.SOFT_CLIP, FeatureKind.RAMP, FeatureKind.LEVEL} & ranges.keys():
        used["start"] = encoding.start
    if {FeatureKind.SOFT_CLIP, FeatureKind.RAMP} & ranges.keys():
        used["rate"] = encoding.rate
    arrays = [_array("int", f"source_{i}", map(str, encoding.source.tolist()))]
    arrays += [_array("float", f"{key}_{i}", map(_float, values.tolist())) for key, values in used.items()]
    feature = text.SCALED_FEATURE if encoding.bound is None else text.FEATURE
    loops = [
        text.FEATURE_LOOP.format(first=some.start, end=some.stop, body=text.FEATURES[kind].replace("$", feature))
        for kind, some in ranges.items()
    ]
    p, width = encoding.n_features, _width(encoding.n_features)
    rest = f"    x[{p}] = 1.0f;\n    for (int f = {p + 1}; f < {width}; ++f) x[f] = 0.0f;\n"
    body = "".join(loops).replace("@", str(i)) + rest
    return "\n".join([*arrays, f"static void encode_{i}(const float *base, float *x) {{\n{body}}}\n"])


# Trees and head -----------------------------------------------------------------------------------------------------


def _width(n_features: int) -> int:
    """Floats a split takes: its weights, its bias, and zeros up to a multiple of the partial sums."""
    return -(-(n_features + 1) // _LANES) * _LANES


def _member(member: FoldedMember | LookupTrees, i: int, lookups: Sequence[Lookup]) -> str:
    if isinstance(member, LookupTrees):
        return _lookup_trees(member, i, lookups)
    return "\n".join(_trees(member, trees, f"{i}_{g}") for g, trees in enumerate(member.groups))


def _cells(lookups: Sequence[Lookup]) -> str:
    """`read_cells`, which finds the entries of a base row, and its tables."""
    parts, steps = [text.CELL_OF_CODE], []
    if any(len(lookup.knots) for lookup in lookups):
        parts.append(text.CELL_OF_NUMBER.format(one=_float(ONE_FRACTION)))
    for i, lookup in enumerate(lookups):
        value = f"base[{lookup.base_column}]"
        if len(lookup.knots):
            parts.append(_array("float", f"knots_{i}", map(_float, lookup.knots.tolist())))
            parts.append(_array("float", f"rates_{i}", map(_float, lookup.rates.tolist())))
            steps.append(f"    cells[{i}] = cell_of_number({value}, knots_{i}, rates_{i}, {len(lookup.knots)});")
        else:
            steps.append(f"    cells[{i}] = cell_of_code({value}, {lookup.n_codes});")
    body = "\n".join(steps)
    return "\n".join([*parts, f"static void read_cells(const float *base, struct cell *cells) {{\n{body}\n}}\n"])


def _lookup_trees(trees: LookupTrees, i: int, lookups: Sequence[Lookup]) -> str:
    m, n_splits = trees.split_bias.shape
    n_tables = len(trees.table_column)
    # A table that nothing reads, since arrays of C are not empty.
    columns = trees.table_column if n_tables else np.zeros(1, dtype=np.int32)
    begin = trees.value_begin(lookups)[:-1] if n_tables else np.zeros(1, dtype=np.int64)
    values = trees.values if n_tables else np.zeros(1, dtype=np.int16)
    scaled = trees.leaf_weight * np.float32(trees.leaf_scale)
    gamma = np.float32(trees.gamma)
    return "\n".join(
        [
            _array("int", f"tables_{i}", map(str, trees.table_begin.tolist())),
            _array("int", f"columns_{i}", map(str, columns.tolist())),
            _array("int", f"begin_{i}", map(str, begin.tolist())),
            _array("short", f"values_{i}", map(str, values.tolist())),
            _array("float", f"bias_{i}", map(_float, trees.split_bias.ravel().tolist())),
            _array("float", f"leaves_{i}", map(_float, scaled.ravel().tolist())),
            text.LOOKUP_TREES.format(
                i=i,
                n_trees=m,
                n_splits=n_splits,
                depth=trees.depth,
                one=ONE_FRACTION,
                unit=_float(trees.unit),
                minor=trees.activation,
                half=_float(gamma / np.float32(2)),
                inverse=_float(np.float32(1) / gamma),
                scale=_double(1 / trees.leaf_scale),
            ),
        ]
    )


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


def _lookup(program: Program, name: str) -> str:
    parts, cases = [], []
    for j, code in program.codes.items():
        labels = [level for level in code.levels if level is not None]  # None is the last where there is one
        if labels:
            parts.append(_array("char *const", f"labels_{j}", map(_string, labels)))
        table = f"labels_{j}" if labels else "NULL"
        cases.append(f"    case {j}: return find({table}, {len(labels)}, {code.missing_code}, label);")
    return "\n".join([*parts, text.LOOKUP.format(name=name, cases="\n".join(cases))])


def _predict(program: Program, name: str) -> str:
    memory, steps = [f"float base[{len(program.base)}]"], []
    if program.encodings:
        width = max(_width(encoding.n_features) for encoding in program.encodings.values())
        memory.append(f"float x[{width}]")
    for e, encoding in enumerate(program.encodings):
        readers = [
            (i, m) for i, m in enumerate(program.members) if isinstance(m, FoldedMember) and m.encoding == encoding
        ]
        steps += [f"    encode_{e}(base, x);"] if readers else []
        steps += [f"    add_trees_{i}_{g}(x, scores);" for i, member in readers for g in range(len(member.groups))]
    if program.lookups:
        memory.append(f"struct cell cells[{len(program.lookups)}]")
        steps.append("    read_cells(base, cells);")
        readers_of_cells = [i for i, member in enumerate(program.members) if isinstance(member, LookupTrees)]
        steps += [f"    add_lookups_{i}(cells, scores);" for i in readers_of_cells]
    return text.PREDICT.format(
        name=name,
        upper=name.upper(),
        n_columns=len(program.columns),
        memory="; ".join(memory),
        offset=", ".join(map(_double, program.offset)),
        steps="\n".join(steps),
        n_members=_double(len(program.members)),
        head=_head(program.head, program.n_scores),
    )


def _head(head: PredictionHead, n_scores: int) -> str:
    if head.target_mean is None or head.target_scale is None:
        return text.CLASS_PROBABILITIES[head.link]
    body = text.TARGETS.format(
        mean=", ".join(map(_double, head.target_mean)),
        scale=", ".join(map(_double, head.target_scale)),
        value="exp(scores[c])" if head.link is Link.EXPONENTIAL else "scores[c]",
        per_target=n_scores // head.n_targets,
    )
    ranks = head.quantile_ranks
    if len(ranks) > 1:
        body += text.SORT_QUANTILES.format(n_quantiles=len(ranks), rank=", ".join(map(str, ranks)))
    return body


# Words of the header ------------------------------------------------------------------------------------------------


def _column_comment(program: Program) -> str:
    words = {
        **dict.fromkeys(DATES, "seconds since 1970-01-01 UTC"),
        "boolean": "0 or 1",
        "category": "category code",
        "numeric": "number",
    }
    columns = enumerate(program.columns)
    return "\n".join(f" *   {j:4d}  {_comment(c.name)}: {words[c.kind]}" for j, c in columns)


def _output_comment(head: PredictionHead) -> str:
    if head.classes is not None:
        labels = [_comment(str(label)) for label in head.classes.tolist()]
        what = "label" if head.link is Link.LOGISTIC else "class"
        return "\n".join(f" *   {c:4d}  probability of {what} {label}" for c, label in enumerate(labels))
    kind = "quantiles of each target" if head.quantile_ranks else "predicted value of each target"
    return f" *   {kind}, in the order of the fit"
