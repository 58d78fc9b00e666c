"""A fitted estimator and rows with known targets in, one self-contained HTML page out.

This module gathers the page's data as JSON; `report.html` beside it draws them in the browser (`report_charts.js`,
`report.js`, `report_trees.js`), without any network: metrics beside those of baselines, confusion, calibration, effects
of columns, rows of the largest errors, size and speed, history, and trees that can be explored.
"""

from __future__ import annotations

import html
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import softwood
from softwood.cli.metrics import METRICS
from softwood.cli.task import class_labels
from softwood.explain import column_contributions, decision_path, importances, tree_traffic
from softwood.explain.baseline import baseline_predictions
from softwood.explain.effects import Effect, column_effect
from softwood.explain.history import mean_history
from softwood.explain.judgement import Judgement, judge
from softwood.explain.tree_view import strongest_trees, tree_view
from softwood.model.model import Model, model_of
from softwood.model.whole_file import write_whole
from softwood.tabular.reading.table import DATES, Table

N_TREES = 16
N_ROWS = 24
N_WORST = 10
MAX_DEPTH = 6
_N_COLUMNS = 8
_N_EFFECTS = 6
_N_POINTS = 500
# Traffic and background means are taken from this many rows at most.
_N_TRAFFIC_ROWS = 1000
_N_TIMED_ROWS = 10_000
_SCRIPTS = ("report_charts.js", "report.js", "report_trees.js")


def write_report(
    path: str | os.PathLike[str],
    estimator: Any,
    X: Any,
    y: Any,
    *,
    target_name: str | None = None,
    training: tuple[Any, Any] | None = None,
) -> None:
    """Write one HTML page about a model and rows with known targets; it appears whole or not at all.

    Parameters
    ----------
    path : path
        HTML file to write.
    estimator : fitted estimator or Model
    X : table [n, p]
        Rows, best held out from training.
    y : array-like [n]
        Their targets.
    target_name : str, optional
        What is predicted, for the title.
    training : tuple of table and array-like, optional
        The rows that the model was trained on, with their targets. The baselines are fitted to them; without them, to
        X and y by cross-validation.

    Examples
    --------
    >>> import tempfile
    >>> from softwood import TreeEnsembleClassifier
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = TreeEnsembleClassifier(n_members=1, max_epochs=5, random_state=0).fit(X[::2], y[::2])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = Path(folder) / "report.html"
    ...     write_report(page, model, X[1::2], y[1::2], training=(X[::2], y[::2]))
    ...     "logistic regression" in page.read_text(encoding="utf-8")
    True
    """
    page = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    data = report_data(estimator, X, y, target_name=target_name, training=training)
    # A cell of the table may hold "</script>"; JSON may spell "<" otherwise.
    text = json.dumps(data, allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")
    scripts = "".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in _SCRIPTS)
    title = f"Predicting {data['target']}: report on a softwood model"
    for name, value in {"title": html.escape(title), "scripts": scripts, "data": text}.items():
        page = page.replace(f"{{{{{name}}}}}", value)
    write_whole(path, page.encode("utf-8"))


def report_data(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    target_name: str | None = None,
    training: tuple[Any, Any] | None = None,
) -> dict[str, Any]:
    """All that the page shows, as JSON data; parameters as in `write_report`."""
    model = model_of(estimator)
    judged = judge(model, X, y)
    table = model.program.read(X)
    trees = strongest_trees(model, X)[:N_TREES]
    worst = np.argsort(-judged.errors(), kind="stable")[:N_WORST]
    shown = list(dict.fromkeys([*range(min(N_ROWS - N_WORST, table.n_rows)), *worst.tolist(), *range(table.n_rows)]))
    return {
        "target": target_name or model.target_name or "target",
        "task": "regression" if judged.classes is None else "classification",
        "n_rows": table.n_rows,
        "n_columns": table.n_columns,
        "is_cross_validated": training is None,
        "softwood": softwood.__version__,
        "metrics": _metrics(judged, table, _read_training(model, training)),
        **_curves(judged),
        "size": _size(model, table),
        "history": _history(model),
        "importances": [[name, round(share, 4)] for name, share in importances(model)[:20]],
        "effects": _effects(model, table, judged),
        "worst": _worst(model, table, judged, worst),
        "outputs": _output_names(model),
        "trees": _trees(model, X, trees),
        "rows": _rows(model, table, judged, np.array(shown[:N_ROWS]), trees),
    }


def _output_names(model: Model) -> list[str]:
    if model.head.classes is None:
        return ["raw score"]
    labels = class_labels(model.head.classes)
    return labels if model.n_outputs > 1 else [labels[1]]


def _read_training(model: Model, training: tuple[Any, Any] | None) -> tuple[Table, np.ndarray] | None:
    return None if training is None else (model.program.read(training[0]), np.asarray(training[1]).ravel())


def _metrics(judged: Judgement, table: Table, training: tuple[Table, np.ndarray] | None) -> dict[str, Any]:
    """Metrics of the model and of the baselines: names of learners, and for each metric a value of each."""
    others = baseline_predictions(table, judged.target, classes=judged.classes, training=training)
    found = [judged.metrics(predicted) for predicted in (judged.predicted, *others.values())]
    lines = [[*METRICS[name], [round(each[name], 4) for each in found]] for name in found[0]]
    return {"learners": ["softwood", *others], "lines": lines}


def _curves(judged: Judgement) -> dict[str, Any]:
    """Calibration, and for a classification its confusion and ROC curves; for a regression, truth by prediction."""
    found: dict[str, Any] = {"calibration": _significant(judged.calibration())}
    if judged.classes is None:
        n = len(judged.target)
        chosen = np.linspace(0, n - 1, min(n, _N_POINTS)).astype(int)
        return found | {"points": _significant(np.column_stack([judged.predicted, judged.target])[chosen])}
    if judged.is_binary:
        found["thresholds"] = [judged.counts_above(c) for c in (0, 1)]
    return found | {"confusion": judged.confusion(), "roc": judged.roc()}


def _size(model: Model, table: Table) -> dict[str, Any]:
    """How large the model is, and CPU times of its predictions on this machine, on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        model.save(path)
        n_bytes = path.stat().st_size
    predictor, some = model.predictor(), table.rows(0, _N_TIMED_ROWS)
    row = np.array([_number(model, some, j) for j in range(table.n_columns)])
    counts = model.n_parameters
    return {
        "members": len(model.members),
        "trees": len(model.members[0].trees.leaf_weight),
        "depth": model.members[0].trees.leaf_weight.shape[1].bit_length() - 1,
        "stored": counts.stored,
        "read": None if np.isnan(counts.read) else round(counts.read),
        "file_bytes": n_bytes,
        "row_us": round(1e6 * _least_seconds(lambda: predictor.predict_row(row)), 2),
        "bulk_us": round(1e6 * _least_seconds(lambda: predictor.predict(some, n_threads=1)) / some.n_rows, 3),
    }


def _number(model: Model, table: Table, j: int) -> float:
    """The first cell of a column as `Predictor.predict_row` takes it."""
    if table.kinds[j] == "category":
        code = model.program.codes.get(j)
        return -1.0 if code is None else float(code.encode([table.labels(j)[0]])[0])
    return float(table.numbers(j)[0])


def _least_seconds(call: Callable[[], Any]) -> float:
    """Least CPU time of a call, of at least three calls and as many as fit into a tenth of a second.

    Other processes on a busy machine do not count, unlike in elapsed time.
    """
    begin = time.perf_counter()
    times: list[float] = []
    while len(times) < 3 or time.perf_counter() - begin < 0.1:
        start = time.thread_time()
        call()
        times.append(time.thread_time() - start)
    return min(times)


def _effects(model: Model, table: Table, judged: Judgement) -> dict[str, Any]:
    """Effects of the most important columns, for the second of two classes, the most frequent classes, or the value."""
    names, shown, target = ["mean prediction"], [0], None
    if judged.classes is None:
        target = judged.target
    elif judged.is_binary:
        names, shown, target = [judged.labels[1]], [1], (judged.codes == 1).astype(np.float64)
    else:
        shown = sorted(np.argsort(-np.bincount(judged.codes), kind="stable")[:_N_EFFECTS].tolist())
        names = [judged.labels[c] for c in shown]
    places = {name: j for j, name in enumerate(model.column_names)}
    found = []
    for name, share in importances(model)[:_N_EFFECTS]:
        effect = column_effect(model, table, places[name], target) if share > 0 else None
        if effect is not None:
            found.append(_plain_effect(effect, shown))
    return {"series": names, "columns": found}


def _plain_effect(effect: Effect, shown: list[int]) -> dict[str, Any]:
    return {
        "column": effect.column,
        "kind": effect.kind,
        "values": _significant(effect.values, 9),
        "labels": effect.labels,
        "predictions": _significant(effect.mean_prediction[:, shown].T),
        "edges": _significant(effect.edges, 9),
        "rows": effect.rows.tolist(),
        "truth": _significant(effect.truth, 9),
        "missing": effect.n_missing,
    }


def _worst(model: Model, table: Table, judged: Judgement, rows: np.ndarray) -> dict[str, Any]:
    """Rows of the largest errors, with the cells of the columns that matter most."""
    names = [name for name, _ in importances(model)[:5]]
    places = [model.column_names.index(name) for name in names]
    some = table.take(rows)
    lines = [
        {
            "row": int(row),
            "truth": _cell(judged.target[row]),
            "prediction": _prediction(model, judged.predicted[row]),
            "error": float(f"{judged.errors()[row]:.4g}"),
            "cells": [_shown(some, i, j) for j in places],
        }
        for i, row in enumerate(rows)
    ]
    return {"columns": names, "rows": lines}


def _history(model: Model) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {
        name: [round(value, 5) if np.isfinite(value) else None for value in values.tolist()]
        for name, values in mean_history(model).items()
    }
    found["metric"] = ["R²" if model.head.task == "regression" else "accuracy"]
    return found


def _trees(model: Model, X: Any, trees: list[tuple[int, int]]) -> list[dict[str, Any]]:
    found = []
    traffic = tree_traffic(model, model.program.read(X).rows(0, _N_TRAFFIC_ROWS), trees)
    for (member, tree), reach in zip(trees, traffic, strict=True):
        views = [
            tree_view(model, reach, member=member, tree=tree, output=k, max_depth=MAX_DEPTH)
            for k in range(model.n_outputs)
        ]
        nodes = [
            {
                "x": round(node.x, 5),
                "level": node.level,
                "end": node.is_end,
                "leaves": node.n_below,
                "values": [float(f"{view.nodes[node.index].value:.4g}") for view in views],
                "columns": [[name, round(w, 3)] for name, w in zip(node.features, node.weights, strict=True)],
            }
            for node in views[0].nodes
        ]
        reach = reach[: len(nodes)]
        found.append(
            {"member": member, "tree": tree, "depth": views[0].depth, "nodes": nodes, "reach": _rounded(reach)}
        )
    return found


def _rows(
    model: Model, table: Table, judged: Judgement, numbers: np.ndarray, trees: list[tuple[int, int]]
) -> list[dict[str, Any]]:
    """The paths of some rows through the trees."""
    some = table.take(numbers)
    shares = column_contributions(model, some, background=table.rows(0, _N_TRAFFIC_ROWS))
    found = []
    for i, row in enumerate(numbers):
        path = decision_path(model, some, i)
        ways = {(way.member, way.tree): way for way in path.trees}
        values = shares.values[i]
        order = np.argsort(-np.abs(values).max(axis=1), kind="stable")[:_N_COLUMNS]
        found.append(
            {
                "row": int(row),
                "truth": _cell(judged.target[row]),
                "prediction": _prediction(model, path.prediction),
                "scores": [round(float(score), 4) for score in path.raw_scores],
                "columns": [[model.column_names[j], _shown(some, i, j), _rounded(values[j])] for j in order],
                "trees": [
                    {
                        "reach": {
                            str(i): round(p, 4) for i, p in ways[key].reach.items() if i < 2 ** (MAX_DEPTH + 1) - 1
                        },
                        "adds": [float(f"{value:.4g}") for value in ways[key].contribution],
                    }
                    for key in trees
                ],
            }
        )
    return found


def _prediction(model: Model, prediction: np.ndarray) -> str:
    if model.head.classes is None:
        return ", ".join(f"{value:.4g}" for value in np.ravel(prediction))
    best = int(np.argmax(prediction))
    return f"{class_labels(model.head.classes)[best]} ({prediction[best]:.0%})"


def _shown(table: Table, row: int, j: int) -> str:
    one = table.rows(row, row + 1)
    if table.kinds[j] in ("category", *DATES):
        label = one.labels(j)[0]
        return "missing" if label is None else label.removesuffix(" 00:00:00")
    number = float(one.numbers(j)[0])
    return str(bool(number)).lower() if table.kinds[j] == "boolean" and not np.isnan(number) else _cell(number)


def _cell(value: Any) -> str:
    if isinstance(value, (float, np.floating)):
        return "missing" if np.isnan(value) else f"{value:.5g}"
    return str(value)


def _rounded(values: np.ndarray) -> Any:
    return np.round(values, 4).tolist()


def _significant(values: np.ndarray, digits: int = 5) -> Any:
    """Nested lists of numbers, rounded."""
    if values.ndim > 1:
        return [_significant(row, digits) for row in values]
    return [float(f"{value:.{digits}g}") for value in values]
