"""Evaluation sets of a fit in, checked tables and what judges each epoch out; see `softwood.training.judge`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwood.model.parts import Head
from softwood.tabular.encoding.columns import Preprocessor
from softwood.tabular.out_of_core.files import are_files, open_files, read_whole
from softwood.tabular.reading.table import Table
from softwood.tabular.target import Problem
from softwood.training.judge import EvaluationSet, Judge, Metric
from softwood.training.samples import MemberData


def read_evaluation_sets(
    eval_set: Any, read: Callable[[Any], Table], make_problem: Callable[[Any, int, Any], Problem], *, has_offset: bool
) -> list[tuple[Table, Problem]]:
    """Tables and targets of the argument `eval_set` of a fit: a tuple, a list of them, or None.

    Parameters
    ----------
    eval_set : object
    read : callable
        Reads a table with the columns of the fit.
    make_problem : callable
        Checks targets: makes a problem of y, the number of rows and weights.
    has_offset : bool
        Whether the rows of the fit have an offset.
    """
    if eval_set is None:
        return []
    is_several = isinstance(eval_set, list) or (isinstance(eval_set, tuple) and all(map(_is_pair, eval_set)))
    sets = list(eval_set) if is_several else [eval_set]
    found = [_read_evaluation_set(one, read, make_problem) for one in sets]
    if any((problem.offset is not None) != has_offset for _, problem in found):
        raise ValueError(
            "Rows of an eval_set must have an offset if those of X have one, and only then: give a tuple "
            "(X, y, sample_weight, offset), with None for weights of 1."
        )
    return found


def _is_pair(one: Any) -> bool:
    """Whether something is an evaluation set, and not the rows of one."""
    return isinstance(one, tuple) and len(one) in (2, 3, 4) and len(getattr(one[0], "shape", ())) == 2


def _read_evaluation_set(
    one: Any, read: Callable[[Any], Table], make_problem: Callable[[Any, int, Any], Problem]
) -> tuple[Table, Problem]:
    if not isinstance(one, tuple) or len(one) not in (2, 3, 4):
        length = f" of length {len(one)}" if hasattr(one, "__len__") else ""
        raise ValueError(
            "eval_set must be a tuple (X, y), (X, y, sample_weight) or (X, y, sample_weight, offset), or a list of "
            f"such tuples; got {type(one).__name__}{length}."
        )
    X, y, weight, offset = (*one, None, None)[:4]
    if are_files(X):
        X, y, weight, offset = read_whole(open_files(X, y, weight, offset))
    table = read(X)
    return table, make_problem(y, table.n_rows, weight).with_offset(offset)


def join_evaluation_sets(
    preprocessor: Preprocessor, sets: Sequence[tuple[Table, Problem]]
) -> tuple[NDArray[np.float32], Problem, list[int]]:
    """All evaluation sets as one: base matrix, targets, and where each set ends.

    Rows of all sets but the last get no weight in the loss that the trainer computes.
    """
    problems = [problem for _, problem in sets]
    base = np.concatenate([preprocessor.read(table) for table, _ in sets])
    weights = [np.zeros_like(problem.weight) for problem in problems[:-1]] + [problems[-1].weight]
    offsets = [problem.offset for problem in problems]
    if any((offset is None) != (offsets[-1] is None) for offset in offsets):
        raise ValueError("Either all evaluation sets or none must have an offset.")
    joined = replace(
        problems[-1],
        y=np.concatenate([problem.y for problem in problems]),
        weight=np.concatenate(weights),
        offset=None if offsets[-1] is None else np.concatenate([o for o in offsets if o is not None]),
        set_weights=tuple(problem.weight for problem in problems),
    )
    return base, joined, np.cumsum([len(problem.y) for problem in problems]).tolist()


def make_judge(
    member: MemberData, problem: Problem, head: Head, metric: Metric | None, ends: Sequence[int]
) -> Judge | None:
    """The judge of one member: of its held-out rows, or of evaluation sets that end at `ends`."""
    held_out = member.validation
    if held_out is None:
        return None
    if problem.set_weights:
        return Judge(head, metric, evaluation_sets(problem, head, ends))
    chosen = slice(None) if held_out.rows is None else held_out.rows
    of_rows = None if held_out.sample_weight is None else _unless_equal(held_out.sample_weight[chosen])
    y, trained_y = problem.given_y[chosen], problem.scaled_y(head)[chosen]
    return Judge(head, metric, [EvaluationSet(slice(None), y, trained_y, of_rows)])


def evaluation_sets(problem: Problem, head: Head, ends: Sequence[int]) -> list[EvaluationSet]:
    """The sets of a problem that `join_evaluation_sets` made; they end at `ends`."""
    y, trained_y = problem.given_y, problem.scaled_y(head)
    rows = [slice(first, end) for first, end in zip([0, *ends], ends, strict=False)]
    weights = [_unless_equal(weight) for weight in problem.set_weights]
    return [EvaluationSet(r, y[r], trained_y[r], weight) for r, weight in zip(rows, weights, strict=True)]


def _unless_equal(weight: NDArray[np.float64]) -> NDArray[np.float64] | None:
    return None if np.all(weight == weight[0]) else weight
