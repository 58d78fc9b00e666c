"""A table with its target in it in; features, target and task out, checked.

`learning_task` takes a table apart for training and says what is wrong with it; `known_task` does the same for an
existing model, whose columns and classes the table must have. Files are left to `softwood.cli.tablefile`.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import narwhals as nw
import numpy as np
from sklearn.model_selection import train_test_split

from softwood.model.model import Model
from softwood.tabular.encoding.columns import MAX_ONE_HOT_LEVELS
from softwood.tabular.reading.cells import is_text
from softwood.tabular.reading.table import DATES, Table, read_table, resolve_kinds
from softwood.tabular.reading.texts import hint, looks_like

LEARNING_TASKS = ("classification", "regression")
# A target of whole numbers with at most this many different ones is taken for class labels.
MAX_INTEGER_CLASSES = 20


@dataclass(frozen=True, eq=False)
class LearningTask:
    """What is to be learned, and from which rows.

    Attributes
    ----------
    features : data frame
        In the container that the table came in.
    target : ndarray [n]
        Class labels, or numbers.
    target_name : str
    task : {"classification", "regression"}
    notes : list of str
        What was left out, and why.
    column_kinds : dict of str to str, optional
        What the estimator must be told about columns, so that a part of the rows is read as the whole table is.
    """

    features: Any
    target: np.ndarray
    target_name: str
    task: str
    notes: list[str] = field(default_factory=list)
    column_kinds: dict[str, str] | None = None

    def take(self, rows: np.ndarray) -> LearningTask:
        """The rows with the given indices."""
        return replace(self, features=_take(self.features, rows), target=self.target[rows])

    def split(self, test_fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices of training and test rows; classes are spread evenly where each has two rows."""
        if not 0 < test_fraction < 1:
            raise ValueError(f"--test-fraction must be between 0 and 1; got {test_fraction:g}.")
        n = len(self.target)
        stratify = None
        if self.task == "classification":
            counts = np.unique(self.target, return_counts=True)[1]
            if counts.min() >= 2 and min(test_fraction, 1 - test_fraction) * n >= len(counts):
                stratify = self.target
        if n < 2:
            raise ValueError(f"The table must have at least two rows, one of them for the test; it has {n}. Add rows.")
        training, test = train_test_split(np.arange(n), test_size=test_fraction, random_state=seed, stratify=stratify)
        return np.sort(training), np.sort(test)


def learning_task(
    frame: Any,
    target: str,
    *,
    task: str = "auto",
    drop: Iterable[str] = (),
    kinds: Mapping[str, str] | None = None,
    strict: bool = False,
) -> LearningTask:
    """Take a data frame apart for training.

    Parameters
    ----------
    frame : data frame
        With the target among its columns.
    target : str
        Name of the target.
    task : {"auto", "classification", "regression"}
        "auto" decides by the target: words, booleans and few whole numbers are classes.
    drop : iterable of str
        Columns to leave out.
    kinds : mapping of str to str, optional
        Declared kinds of columns; see `softwood.tabular.reading.table.resolve_kinds`.
    strict : bool
        Refuse columns that nothing can be learned from, rather than leave them out with a note.

    Examples
    --------
    >>> import pyarrow as pa
    >>> frame = pa.table({"size": [1.0, 2.0, 3.0], "sort": ["a", "b", "a"]})
    >>> found = learning_task(frame, "sort")
    >>> found.task, found.features.column_names
    ('classification', ['size'])
    >>> learning_task(frame, "sorte")
    Traceback (most recent call last):
    ValueError: The table must have a column 'sorte'; did you mean 'sort'? Its columns are 'size', 'sort'.
    """
    if task not in ("auto", *LEARNING_TASKS):
        raise ValueError(f"The task must be auto, classification or regression; got {task!r}.")
    names = _names(frame)
    dropped = {names[require_column(name, names)] for name in drop}
    declared = {names[require_column(name, names)]: kind for name, kind in (kinds or {}).items()}
    require_column(target, names)
    kept = [name for name in names if name not in dropped - {target}]
    # Dropped before it is read: a column may be dropped because it cannot be.
    frame = _select(frame, kept)
    found = resolve_kinds({name: kind for name, kind in declared.items() if name in kept}, _unread(kept))
    table = read_table(frame, declared=found)
    j = kept.index(target)
    frame, table, notes = _with_target(frame, table, j)
    task = infer_task(table, j) if task == "auto" else task
    values = _target_values(table, j, task)
    if len(kept) == 1:
        raise ValueError(
            f"A model needs a column besides the target {target!r}; the table has no other. "
            "Add at least one feature column."
        )
    features, more = _usable_features(table, [i for i in range(len(kept)) if i != j], strict=strict)
    chosen = [kept[i] for i in features]
    return LearningTask(
        _select(frame, chosen), values, target, task, notes + more, _kinds_of(table, features, declared)
    )


def known_task(frame: Any, model: Model, target: str) -> LearningTask:
    """Take a data frame apart for a fitted model: its columns, and true targets in the model's terms."""
    require_column(target, _names(frame))
    model_columns(frame, model)  # an error names those that are missing
    # Other columns of the table may be of a kind that cannot be read.
    chosen = list(dict.fromkeys([*model.column_names, target]))
    frame, j = _select(frame, chosen), chosen.index(target)
    frame, table, notes = _with_target(frame, read_table(frame), j)
    features = _select(frame, model.column_names)
    if model.head.classes is None:
        return LearningTask(features, _target_values(table, j, "regression"), target, "regression", notes)
    if model.head.task == "multilabel":
        raise ValueError(
            f"The model must predict one target; this one predicts {len(model.head.classes)} labels of each row. "
            "Evaluate it in Python, with the estimator that softwood.load returns."
        )
    index_of = {label: i for i, label in enumerate(class_labels(model.head.classes))}
    labels = _class_texts(table, j)
    unknown = sorted({label for label in labels if label not in index_of})
    if unknown:
        raise ValueError(
            f"The classes of {target!r} must be those of the model, {', '.join(map(repr, index_of))}; got "
            f"{unknown[0]!r}. Choose another column with --target, or leave these rows out."
        )
    codes = np.array([index_of[label] for label in labels])
    return LearningTask(features, model.head.classes[codes], target, "classification", notes)


def class_labels(classes: np.ndarray) -> list[str]:
    """Class labels as text, spelt as `Table.labels` spells cells."""
    return [str(label) for label in Table(None, ("category",), len(classes), columns=(classes,)).labels(0)]


def model_columns(frame: Any, model: Model) -> Any:
    """The columns that a model reads, in its order; an error names those that the table lacks."""
    names = _names(frame)
    missing = [name for name in model.column_names if name not in names]
    if missing:
        some = ", ".join(map(repr, missing[:5])) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ValueError(
            f"The table must have the {model.n_columns} columns of the model; {some} {_remedy(missing, names)}"
        )
    return _select(frame, model.column_names)


def require_column(name: str, names: Sequence[str]) -> int:
    """Number of a column; an error suggests the nearest name."""
    if name in names:
        return list(names).index(name)
    shown = ", ".join(map(repr, names[:12])) + (", ..." if len(names) > 12 else "")
    near = _nearest(name, names, 0.5)
    hint = "." if near is None else f"; did you mean {near!r}?"
    raise ValueError(f"The table must have a column {name!r}{hint} Its columns are {shown}.")


def infer_task(table: Table, j: int) -> str:
    """Task for a target column: classes for words, booleans and few whole numbers, else regression."""
    if table.kinds[j] in ("category", "boolean"):
        return "classification"
    if table.kinds[j] in DATES:
        return "regression"
    values = np.unique(table.numbers(j))
    is_whole = bool(np.all(values == np.rint(values)))
    return "classification" if is_whole and len(values) <= MAX_INTEGER_CLASSES else "regression"


def _class_texts(table: Table, j: int) -> list[str]:
    """Class labels of a column without missing cells, in the same spelling whether or not they came as text."""
    if table.columns is not None and is_text(table.columns[j]) and table.kinds[j] in ("boolean", "numeric"):
        numbers = table.numbers(j)
        return class_labels(numbers.astype(bool) if table.kinds[j] == "boolean" else numbers)
    return list(table.labels(j))


def _names(frame: Any) -> list[str]:
    return [str(name) for name in nw.from_native(frame, eager_only=True).columns]


def _select(frame: Any, names: Sequence[str]) -> Any:
    return nw.from_native(frame, eager_only=True).select(names).to_native()


def _take(frame: Any, rows: np.ndarray) -> Any:
    return nw.from_native(frame, eager_only=True)[rows].to_native()


def _with_target(frame: Any, table: Table, j: int) -> tuple[Any, Table, list[str]]:
    """Frame and table without the rows whose target is missing, and a note if there were any."""
    name = table.name(j)
    present = np.array([label is not None for label in table.labels(j)])
    if not present.any():
        raise ValueError(f"The target {name!r} must hold values; all its cells are missing. Choose another column.")
    if present.all():
        return frame, table, []
    rows = np.flatnonzero(present)
    note = f"{len(present) - len(rows)} of {len(present)} rows have no {name!r} and were left out."
    return _take(frame, rows), table.take(rows), [note]


def _nearest(name: str, names: Sequence[str], cutoff: float) -> str | None:
    """The name most similar to the given one, ignoring case; None if none is similar enough."""
    by_lower = {other.casefold(): other for other in reversed(names)}
    near = difflib.get_close_matches(name.casefold(), by_lower, n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None


def _remedy(missing: Sequence[str], names: Sequence[str]) -> str:
    if len(missing) > 1:
        return "are missing. Add them, or train without them."
    near = _nearest(missing[0], names, 0.6)
    if near is None:
        return "is missing. Add it, or train without it."
    return f"is missing. If it is called {near!r} here, rename it."


def _target_values(table: Table, j: int, task: str) -> np.ndarray:
    name, kind = table.name(j), table.kinds[j]
    if task == "regression":
        if kind == "category" or kind in DATES:
            raise ValueError(
                f"The target of a regression must hold numbers; {name!r} holds {'dates' if kind in DATES else kind}. "
                "Choose another column, or --task classification."
            )
        values = table.numbers(j)
        if not np.isfinite(values).all():
            raise ValueError(f"The target {name!r} must be finite; it holds an infinity. Leave such rows out.")
        return values
    labels = _class_texts(table, j)
    distinct = sorted(set(labels))
    if len(distinct) < 2:
        raise ValueError(
            f"The target of a classification must have two classes; {name!r} is {distinct[0]!r} in every row. "
            "Choose another target, or add rows of another class."
        )
    if len(distinct) > max(MAX_INTEGER_CLASSES, len(labels) // 2):
        raise ValueError(
            f"The target {name!r} has {len(distinct)} classes in {len(labels)} rows, which is too many to learn. "
            "Choose another column, or --task regression for numbers."
        )
    if kind == "numeric":
        values = table.numbers(j)
        is_whole = np.all(values == np.rint(values)) and np.all(np.abs(values) < 2**62)
        return np.array([int(label) for label in labels]) if is_whole else values  # by label: exact beyond 2^53
    return np.array(labels, dtype=str)


def _unread(names: Sequence[str]) -> Table:
    """A table that has names only."""
    return Table(tuple(names), ("numeric",) * len(names), 0)


def _kinds_of(table: Table, features: Sequence[int], declared: Mapping[str, str]) -> dict[str, str] | None:
    """Kinds that were declared, or that another choice of rows might change: what texts are read as."""
    found = {}
    for i in features:
        name, kind = table.name(i), table.kinds[i]
        if name in declared or (table.columns is not None and is_text(table.columns[i])):
            found[name] = kind
    return found or None


def _usable_features(table: Table, columns: Sequence[int], *, strict: bool) -> tuple[list[int], list[str]]:
    """Columns that something may be learned from, and notes on those left out or that look like mistakes."""
    usable, useless, notes = [], {}, []
    for j in columns:
        reason, note = _look_at(table, j)
        if reason is None:
            usable.append(j)
        else:
            useless[table.name(j)] = reason
        if note is not None:
            notes.append(note)
    if useless and (strict or not usable):
        name, reason = next(iter(useless.items()))
        raise ValueError(f"Column {name!r} {reason}. Leave it out with --drop {shlex.quote(name)}.")
    if useless:
        listed = "; ".join(f"{name!r} {reason}" for name, reason in useless.items())
        notes.insert(0, f"Left out, since nothing can be learned from them: {listed}.")
    return usable, notes


def _look_at(table: Table, j: int) -> tuple[str | None, str | None]:
    """Why a column is of no use, if it is; and a note if it looks like a mistake."""
    name = table.name(j)
    if table.kinds[j] != "category":
        return ("has no values at all" if np.isnan(table.numbers(j)).all() else None), None
    present = [label for label in table.labels(j) if label is not None]
    distinct = set(present)
    if not present:
        return "has no values at all", None
    is_id = len(present) > MAX_ONE_HOT_LEVELS and len(distinct) == len(present)
    words = sorted(label for label in distinct if not _is_number(label))
    remedy = f"Correct or empty such cells, or leave the column out with --drop {shlex.quote(name)}."
    if 0 < len(words) <= len(distinct) // 10:
        mistake = f"Column {name!r} holds numbers, but also {words[0]!r}{hint(words[0], 'numeric')}"
        if is_id:
            raise ValueError(f"{mistake}. {remedy}")
        return None, f"{mistake}, and is read as text. {remedy}"
    alike = looks_like(words)
    if alike is not None and len(words) == len(distinct):
        note = (
            f"Column {name!r} looks like {alike}, but is read as text because of {words[0]!r}{hint(words[0], 'text')}."
        )
        return ("has a different text in every row" if is_id else None), note
    return ("has a different text in every row, like an identifier" if is_id else None), None


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True
