"""What the caller wants scores to rise or fall with, as signs of base columns.

The constraint itself is the trainer's (core/src/lookup_monotone.h has the proof): splits never move against a column's
sign, and the leaves of each tree increase from left to right. Links and averages over members keep the order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from softwood.tabular.encoding.base_columns import Value
from softwood.tabular.encoding.columns import Preprocessor
from softwood.tabular.encoding.features import LOOKUP


def monotone_signs(chosen: Any, preprocessor: Preprocessor, task: str, encodings: Sequence[str]) -> dict[int, int]:
    """Sign by number of base column, from `monotonic_cst`: -1, 0 or 1 by name, or one per column; None for none.

    Examples
    --------
    >>> from softwood.tabular.encoding.columns import learn_columns
    >>> from softwood.tabular.reading.table import read_table
    >>> preprocessor = learn_columns(read_table([[1.0, 2.0], [3.0, 4.0]]))
    >>> monotone_signs([0, -1], preprocessor, "regression", ["lookup"])
    {1: -1}
    """
    names = [column.name for column in preprocessor.columns]
    by_column = {j: sign for j, sign in enumerate(_by_column(chosen, names)) if sign != 0}
    if not by_column:
        return {}
    if task in ("multiclass", "multilabel"):
        several = "more than two classes" if task == "multiclass" else "several labels"
        raise ValueError(
            f"monotonic_cst needs one score per row: a regression or two classes; got {several}. Fit one model per "
            f"{'class' if task == 'multiclass' else 'label'}, or leave monotonic_cst out."
        )
    if set(encodings) != {LOOKUP}:
        raise ValueError('monotonic_cst needs encoding="auto", batch_norm=False and l2=0.')
    for j in by_column:
        if preprocessor.columns[j].kind not in ("numeric", "boolean"):
            name, kind = preprocessor.columns[j].name, preprocessor.columns[j].kind
            raise ValueError(f"monotonic_cst must be 0 for columns that are not numbers; column {name!r} is a {kind}.")
    base = preprocessor.base_columns()
    return {b: by_column[c.column] for b, c in enumerate(base) if isinstance(c, Value) and c.column in by_column}


def refuse_monotone(chosen: Any, what: str) -> None:
    """Raise a ValueError if there are constraints, for kinds of training that cannot keep them."""
    if chosen is not None:
        raise ValueError(f"monotonic_cst cannot be combined with {what}; fit the whole table instead.")


def restrict_monotone(chosen: Any, names: Sequence[str], columns: Sequence[int]) -> list[int] | None:
    """What `monotonic_cst` says of some of the columns with the given names, by their numbers."""
    return None if chosen is None else [_by_column(chosen, names)[j] for j in columns]


def _by_column(chosen: Any, names: Sequence[str]) -> list[int]:
    if chosen is None:
        return []
    if isinstance(chosen, Mapping):
        unknown = [str(name) for name in chosen if name not in names]
        if unknown:
            raise ValueError(f"monotonic_cst must name columns of the table; {unknown} are not among {names}.")
        values = np.array([chosen.get(name, 0) for name in names])
    else:
        values = np.asarray(chosen)
    if values.shape != (len(names),) or not np.isin(values, (-1, 0, 1)).all():
        raise ValueError(
            f"monotonic_cst must be -1, 0 or 1 for each of the {len(names)} columns, as an array or by name; "
            f"got {chosen!r}."
        )
    return [int(value) for value in values]
