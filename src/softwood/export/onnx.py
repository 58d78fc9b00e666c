"""A prediction program in, an ONNX graph of standard operators out.

The graph takes the raw columns, batch of any size. A model of numbers only has one input, ``X`` [n, columns], double; a
model with categories has one input [n, 1] for each column, by its name: double, or string for a category. NaN is a
missing number, the empty string a missing category. Dates are seconds since 1970 (UTC). A classifier gives ``label``
[n] and ``probabilities`` [n, classes] (of several labels, both [n, labels]); a regressor gives ``values`` [n, outputs].

Trees are computed densely, by two matrix products per member: ONNX has no operator for a conditional traversal. Splits
that are sums of tables are computed in their linear form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from softwood.export import ExportError
from softwood.model.linear_form import linear_encoding, linear_trees
from softwood.model.lookup_trees import LookupTrees
from softwood.model.program import FoldedMember, Link, PredictionHead, Program, TreeGroup
from softwood.tabular.encoding.base_columns import (
    FARTHEST_SECONDS,
    BaseColumn,
    CalendarPart,
    CalendarUnit,
    Code,
    TargetMean,
    Value,
)
from softwood.tabular.encoding.features import LARGEST_FEATURE, Encoding, FeatureKind
from softwood.tabular.encoding.lookups import ONE_FRACTION

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

OPSET, ML_OPSET, IR_VERSION = 17, 3, 8
_LARGEST = np.float32(LARGEST_FEATURE)


def onnx_graph(program: Program) -> ModelProto:
    """The program as an ONNX graph; see the module's description of its inputs and outputs."""
    try:
        import onnx
        from onnx import helper
    except ImportError as error:
        raise ImportError("Export to ONNX needs the package onnx: pip install 'softwood[onnx]'.") from error
    graph = _Graph()
    inputs, base = _base_matrix(graph, program)
    encoded = {name: _inputs(graph, base, encoding) for name, encoding in program.encodings.items()}
    total = graph.constant(program.offset)
    for member in program.members:
        if isinstance(member, LookupTrees):
            continue
        for trees in member.groups:
            total = graph("Add", total, _scores(graph, encoded[member.encoding], member, trees))
    if program.lookups:
        encoding, features = linear_encoding(program.lookups)
        x = _inputs(graph, base, encoding, ramp_steps=ONE_FRACTION)
        for member in program.members:
            if isinstance(member, LookupTrees):
                linear = linear_trees(member, program.lookups, features)
                assert linear.split_bias is not None
                group = TreeGroup(linear.split_weight, linear.split_bias, linear.leaf_weight)
                total = graph("Add", total, _scores(graph, x, member, group))
    scores = graph("Div", total, graph.constant(np.float64(len(program.members))))
    outputs = _head(graph, program.head, program.n_scores, scores)
    found = helper.make_graph(graph.nodes, "softwood", inputs, outputs, graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    proto = helper.make_model(found, opset_imports=opsets, ir_version=IR_VERSION, producer_name="softwood")
    onnx.checker.check_model(proto, full_check=True)
    return proto


class _Graph:
    """Nodes and constants as they are added. Calling it adds a node and returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def __call__(self, operator: str, *inputs: str, output: str | None = None, domain: str = "", **fields: Any) -> str:
        from onnx import helper

        name = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], domain=domain, **fields))
        return name

    def split(self, x: str, sizes: Sequence[int]) -> list[str]:
        """Columns of x [n, sum of sizes] in pieces."""
        from onnx import helper

        names = [f"Split_{len(self.nodes)}_{i}" for i in range(len(sizes))]
        lengths = self.constant(np.array(sizes, dtype=np.int64))
        self.nodes.append(helper.make_node("Split", [x, lengths], names, axis=1))
        return names

    def constant(self, value: Any) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def cast(self, x: str, dtype: Any) -> str:
        from onnx import helper

        return self("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def clip(self, x: str, low: np.floating, high: np.floating) -> str:
        return self("Clip", x, self.constant(low), self.constant(high))


# From columns to the inputs of the trees ----------------------------------------------------------------------------


def _base_matrix(graph: _Graph, program: Program) -> tuple[list[ValueInfoProto], str]:
    """Inputs of the graph, and the base matrix [n, q] in float."""
    from onnx import TensorProto, helper

    n_columns = len(program.columns)
    if not program.codes:
        inputs = [helper.make_tensor_value_info("X", TensorProto.DOUBLE, ["n", n_columns])]
        if program.is_plain:
            return inputs, _as_float(graph, "X")
        columns = graph.split("X", [1] * n_columns)
    else:
        columns = _input_names(program.column_names)
        kinds = [TensorProto.STRING if kind == "category" else TensorProto.DOUBLE for kind in program.kinds]
        inputs = [helper.make_tensor_value_info(c, kind, ["n", 1]) for c, kind in zip(columns, kinds, strict=True)]
    cells = columns.copy()
    for j, code in program.codes.items():
        cells[j] = _codes(graph, columns[j], code)
    base = [_base_column(graph, cells[column.column], column) for column in program.base]
    return inputs, graph("Concat", *base, axis=1)


def _input_names(names: list[str]) -> list[str]:
    if len(set(names)) < len(names) or "" in names:
        raise ExportError(f"ONNX needs a distinct name for each input; got columns {names}. Rename them and fit again.")
    return names


def _as_float(graph: _Graph, x: str) -> str:
    largest = np.float64(np.finfo(np.float32).max)
    held = graph("Min", graph("Max", x, graph.constant(-largest)), graph.constant(largest))
    # Min and Max need not pass NaN on.
    return graph.cast(graph("Where", graph("IsNaN", x), x, held), np.float32)


def _codes(graph: _Graph, labels: str, code: Code) -> str:
    """Codes [n, 1] in float; -1 for an unknown label."""
    known = [(level, i) for i, level in enumerate(code.levels) if level is not None]
    if "" not in code.levels:
        known.append(("", code.missing_code))
    return graph(
        "LabelEncoder",
        labels,
        domain="ai.onnx.ml",
        keys_strings=[level for level, _ in known],
        values_floats=[float(i) for _, i in known],
        default_float=-1.0,
    )


def _base_column(graph: _Graph, cell: str, column: BaseColumn) -> str:
    """A base column [n, 1] of cells [n, 1]: numbers, or codes of categories."""
    if isinstance(column, Value):
        shifted = graph("Sub", cell, graph.constant(np.float64(column.offset)))
        return _as_float(graph, graph("Div", shifted, graph.constant(np.float64(column.unit))))
    if isinstance(column, CalendarPart):
        return _calendar_part(graph, cell, column.unit)
    if isinstance(column, TargetMean):  # the last mean is for the code -1, and an index of -1 is the last
        means = graph.constant(np.ascontiguousarray(column.means))
        return graph("Gather", means, graph.cast(cell, np.int64))
    return cell


def _calendar_part(graph: _Graph, seconds: str, unit: CalendarUnit) -> str:
    def number(value: int) -> str:
        return graph.constant(np.int64(value))

    def quotient(x: str, divisor: int) -> str:  # of numbers that are not negative
        return graph("Div", x, number(divisor))

    is_missing = graph("IsNaN", seconds)
    present = graph("Where", is_missing, graph.constant(np.float64(0)), seconds)
    whole = graph.cast(graph.clip(present, np.float64(-FARTHEST_SECONDS), np.float64(FARTHEST_SECONDS)), np.int64)
    in_day = graph("Mod", whole, number(86_400))
    days = graph("Div", graph("Sub", whole, in_day), number(86_400))
    if unit is CalendarUnit.HOUR:
        value = quotient(in_day, 3600)
    elif unit is CalendarUnit.WEEKDAY:
        value = graph("Mod", graph("Add", days, number(3)), number(7))
    else:  # days of years that begin in March repeat every 146097 days, and months of 153 days every five
        era = graph("Mod", graph("Add", days, number(719_468)), number(146_097))
        leap = graph(
            "Sub", graph("Add", graph("Sub", era, quotient(era, 1460)), quotient(era, 36_524)), quotient(era, 146_096)
        )
        year = quotient(leap, 365)
        before = graph("Sub", graph("Add", graph("Mul", year, number(365)), quotient(year, 4)), quotient(year, 100))
        day = graph("Sub", era, before)
        march = quotient(graph("Add", graph("Mul", day, number(5)), number(2)), 153)
        value = graph("Add", graph("Mod", graph("Add", march, number(2)), number(12)), number(1))
    missing = graph.constant(np.float32("nan"))
    return graph("Where", is_missing, missing, graph.cast(value, np.float32))


def _inputs(graph: _Graph, base: str, encoding: Encoding, ramp_steps: int = 0) -> str:
    """Inputs of the trees [n, p] in float; the kinds are those of `softwood.tabular.encoding.features`.

    Ramps are rounded to a multiple of one over `ramp_steps`, unless that is 0.
    """
    pieces = []
    for kind, chosen in encoding.ranges().items():
        x = graph("Gather", base, graph.constant(encoding.source[chosen].astype(np.int64)), axis=1)
        r = _feature_function(graph, kind, x, encoding.start[chosen], encoding.rate[chosen])
        if ramp_steps and kind is FeatureKind.RAMP:
            steps = graph.constant(np.float32(ramp_steps))
            r = graph("Div", graph("Round", graph("Mul", r, steps)), steps)
        feature = graph("Sub", r, graph.constant(encoding.mean[chosen]))
        if encoding.bound is None:
            feature = graph("Mul", feature, graph.constant(encoding.scale[chosen]))
            feature = graph.clip(feature, -_LARGEST, _LARGEST)
        else:
            bound = encoding.bound[chosen]
            feature = graph("Max", graph("Min", feature, graph.constant(bound)), graph.constant(-bound))
        if kind is not FeatureKind.MISSING:
            feature = graph("Where", graph("IsNaN", x), graph.constant(np.float32(0)), feature)
        pieces.append(feature)
    return graph("Concat", *pieces, axis=1)


def _feature_function(graph: _Graph, kind: FeatureKind, x: str, start: np.ndarray, rate: np.ndarray) -> str:
    """r(x) of features of one kind."""
    if kind is FeatureKind.LINEAR:
        return x
    if kind is FeatureKind.LEVEL:
        return graph.cast(graph("Equal", x, graph.constant(start)), np.float32)
    if kind is FeatureKind.MISSING:
        return graph.cast(graph("IsNaN", x), np.float32)
    z = graph("Mul", graph("Sub", x, graph.constant(start)), graph.constant(rate))
    if kind is FeatureKind.RAMP:
        return graph.clip(z, np.float32(0), np.float32(1))
    z = graph.clip(z, -_LARGEST, _LARGEST)
    third = graph("Div", z, graph.constant(np.float32(3)))
    return graph("Div", z, graph("Sqrt", graph("Add", graph.constant(np.float32(1)), graph("Mul", third, third))))


# Trees and head -----------------------------------------------------------------------------------------------------


def _scores(graph: _Graph, x: str, member: FoldedMember | LookupTrees, trees: TreeGroup) -> str:
    """Sum of some trees of a member [n, k] in double."""
    split_weight, split_bias, leaf_weight, depth = trees.split_weight, trees.split_bias, trees.leaf_weight, trees.depth
    m, n_leaves, k = leaf_weight.shape
    levels = [slice((1 << level) - 1, (2 << level) - 1) for level in range(depth)]
    weight = np.concatenate([split_weight[:, nodes].reshape(-1, split_weight.shape[2]) for nodes in levels])
    bias = np.concatenate([split_bias[:, nodes].ravel() for nodes in levels])
    t = graph("Add", graph("MatMul", x, graph.constant(np.ascontiguousarray(weight.T))), graph.constant(bias))
    minor = _minor(graph, graph("Abs", t), member.activation, np.float32(member.gamma))
    major = graph("Sub", graph.constant(np.float32(1)), minor)
    is_negative = graph("Less", t, graph.constant(np.float32(0)))
    sizes = [m << level for level in range(depth)]
    left = graph.split(graph("Where", is_negative, minor, major), sizes)
    right = graph.split(graph("Where", is_negative, major, minor), sizes)
    reach = None
    for level in range(depth):
        # [n, m, nodes, 1] each, so that children of a node end up side by side.
        shape = graph.constant(np.array([-1, m, 1 << level, 1], dtype=np.int64))
        both = graph("Concat", graph("Reshape", left[level], shape), graph("Reshape", right[level], shape), axis=3)
        reach = both if reach is None else graph("Mul", both, graph("Reshape", reach, shape))
    assert reach is not None
    flat = graph("Reshape", reach, graph.constant(np.array([-1, m * n_leaves], dtype=np.int64)))
    return graph.cast(graph("MatMul", flat, graph.constant(leaf_weight.reshape(-1, k))), np.float64)


def _minor(graph: _Graph, abs_t: str, activation: str, gamma: np.float32) -> str:
    """Probability of the less likely side of a split."""

    def number(value: Any) -> str:
        return graph.constant(np.float32(value))

    inverse = np.float32(1) / gamma
    if activation == "logistic":
        return graph("Sigmoid", graph("Mul", abs_t, number(-inverse)))
    inside = graph("Mul", graph("Sub", number(gamma / 2), abs_t), number(inverse))
    s = graph("Max", inside, number(0))
    square = graph("Mul", s, s)
    if activation == "smooth_step":
        return graph("Mul", square, graph("Sub", number(3), graph("Mul", number(2), s)))
    inner = graph("Add", number(10), graph("Mul", s, graph("Sub", graph("Mul", number(6), s), number(15))))
    return graph("Mul", graph("Mul", square, s), inner)


def _head(graph: _Graph, head: PredictionHead, n_scores: int, scores: str) -> list[ValueInfoProto]:
    from onnx import TensorProto, helper

    if head.classes is not None:
        if head.link is Link.BINARY:
            scores = graph("Concat", graph("Mul", scores, graph.constant(np.float64(0))), scores, axis=1)
        is_multilabel = head.link is Link.LOGISTIC
        graph.cast(graph("Sigmoid", scores) if is_multilabel else graph("Softmax", scores, axis=1), np.float32)
        graph.nodes[-1].output[0] = "probabilities"
        probabilities = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", len(head.classes)])
        return [_labels(graph, scores, n_scores) if is_multilabel else _label(graph, head.classes), probabilities]
    assert head.target_scale is not None
    assert head.target_mean is not None
    values = graph("Exp", scores) if head.link is Link.EXPONENTIAL else scores
    scale, mean = (np.repeat(each, n_scores // head.n_targets) for each in (head.target_scale, head.target_mean))
    values = graph("Add", graph("Mul", values, graph.constant(scale)), graph.constant(mean))
    ranks = head.quantile_ranks
    if len(ranks) > 1:  # quantiles learned one by one may cross
        shape = graph.constant(np.array([-1, head.n_targets, len(ranks)], dtype=np.int64))
        values = _sorted(graph, graph("Reshape", values, shape), len(ranks))
        values = graph("Gather", values, graph.constant(np.array(ranks, dtype=np.int64)), axis=2)
        values = graph("Reshape", values, graph.constant(np.array([-1, n_scores], dtype=np.int64)))
    graph("Identity", values, output="values")
    return [helper.make_tensor_value_info("values", TensorProto.DOUBLE, ["n", n_scores])]


def _sorted(graph: _Graph, x: str, length: int) -> str:
    from onnx import helper

    names = [f"TopK_{len(graph.nodes)}_{part}" for part in ("values", "indices")]
    count = graph.constant(np.array([length], dtype=np.int64))
    graph.nodes.append(helper.make_node("TopK", [x, count], names, axis=-1, largest=0, sorted=1))
    return names[0]


def _labels(graph: _Graph, scores: str, n_labels: int) -> ValueInfoProto:
    from onnx import TensorProto, helper

    graph.cast(graph("Greater", scores, graph.constant(np.float64(0))), np.int64)
    graph.nodes[-1].output[0] = "label"
    return helper.make_tensor_value_info("label", TensorProto.INT64, ["n", n_labels])


def _label(graph: _Graph, classes: np.ndarray) -> ValueInfoProto:
    from onnx import TensorProto, helper

    place = graph("ArgMax", "probabilities", axis=1, keepdims=0)
    if classes.dtype.kind in "iub":
        labels, kind = classes.astype(np.int64), TensorProto.INT64
    elif classes.dtype.kind == "f":
        labels, kind = classes.astype(np.float64), TensorProto.DOUBLE
    else:
        labels, kind = np.array([str(label) for label in classes.tolist()], dtype=object), TensorProto.STRING
    graph("Gather", graph.constant(labels), place, output="label")
    return helper.make_tensor_value_info("label", kind, ["n"])
