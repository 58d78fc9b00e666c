"""A fitted estimator and rows with known targets in, one self-contained HTML page out.

This module gathers the page's data as JSON; `report.html` beside it draws them in the browser, without any network:
metrics, ROC and calibration (or residuals), history, importances, and trees that can be explored.
"""

from __future__ import annotations

import html
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

import softwood
from softwood.cli.metrics import METRICS, calibration_points, compute_metrics, roc_points
from softwood.cli.task import LearningTask, class_labels
from softwood.explain import column_contributions, decision_path, importances, tree_traffic
from softwood.explain.history import mean_history
from softwood.explain.tree_view import strongest_trees, tree_view
from softwood.model.model import Model
from softwood.model.whole_file import write_whole
from softwood.tabular.table import DATES, Table

N_TREES = 16
N_ROWS = 24
MAX_DEPTH = 6
_N_COLUMNS = 8
_N_POINTS = 500
# Traffic and background means are taken from this many rows at most.
_N_TRAFFIC_ROWS = 1000


def write_report(path: str | os.PathLike[str], estimator: Any, test: LearningTask) -> None:
    """Write the page; it appears whole or not at all.

    Parameters
    ----------
    path : path
        HTML file to write.
    estimator : fitted estimator
    test : LearningTask
        Rows with known targets, best held out from training; see `softwood.cli.task.known_task`.
    """
    template = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    title = f"softwood: {test.task} of {test.target_name}"
    # A cell of the table may hold "</script>"; JSON may spell "<" otherwise.
    data = json.dumps(report_data(estimator, test), allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")
    page = template.replace("{{title}}", html.escape(title)).replace("{{data}}", data)
    write_whole(path, page.encode("utf-8"))


def report_data(estimator: Any, test: LearningTask) -> dict[str, Any]:
    """All that the page shows, as JSON data."""
    model: Model = estimator.model_
    outputs = ["raw score"]
    if model.head.classes is not None:
        labels = class_labels(model.head.classes)
        outputs = labels if model.n_outputs > 1 else [labels[1]]
    elif model.n_outputs > 1:
        outputs = [f"output {k}" for k in range(model.n_outputs)]
    trees = strongest_trees(model, test.features)[:N_TREES]
    return {
        "facts": {
            "target": test.target_name,
            "task": test.task,
            "rows judged": len(test.target),
            "members": len(model.members),
            "trees in each": len(model.members[0].trees.leaf_weight),
            "depth": model.members[0].trees.leaf_weight.shape[1].bit_length() - 1,
            "parameters stored": model.n_parameters.stored,
            "softwood": softwood.__version__,
        },
        "metrics": [
            [*METRICS[name], round(value, 4)]
            for name, value in compute_metrics(estimator, test.features, test.target).items()
        ],
        "curves": _class_curves(estimator, test) if test.task == "classification" else _residuals(estimator, test),
        "history": _history(model),
        "importances": [[name, round(share, 4)] for name, share in importances(model)[:20]],
        "outputs": outputs,
        "trees": _trees(model, test.features, trees),
        "rows": _rows(model, test, trees),
    }


def _class_curves(estimator: Any, test: LearningTask) -> dict[str, Any]:
    probability = estimator.predict_proba(test.features)
    classes = estimator.classes_
    labels = class_labels(classes)
    shown = [1] if len(classes) == 2 else range(len(classes))
    roc, calibration = [], []
    for c in shown:
        is_class = test.target == classes[c]
        if 0 < is_class.sum() < len(is_class):
            roc.append([labels[c], _rounded(roc_points(is_class, probability[:, c]))])
        calibration.append([labels[c], _rounded(calibration_points(is_class, probability[:, c]))])
    return {"roc": roc, "calibration": calibration}


def _residuals(estimator: Any, test: LearningTask) -> dict[str, Any]:
    predicted = np.asarray(estimator.predict(test.features)).reshape(len(test.target), -1)[:, 0]
    chosen = np.linspace(0, len(predicted) - 1, min(len(predicted), _N_POINTS)).astype(int)
    points = np.column_stack([predicted, test.target - predicted])[chosen]
    return {"residuals": [[float(f"{value:.5g}") for value in point] for point in points]}


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


def _rows(model: Model, test: LearningTask, trees: list[tuple[int, int]]) -> list[dict[str, Any]]:
    table = model.program.read(test.features)
    n = min(N_ROWS, table.n_rows)
    some = table.rows(0, n)
    shares = column_contributions(model, some, background=table.rows(0, _N_TRAFFIC_ROWS))
    found = []
    for row in range(n):
        path = decision_path(model, some, row)
        ways = {(way.member, way.tree): way for way in path.trees}
        values = shares.values[row]
        order = np.argsort(-np.abs(values).max(axis=1), kind="stable")[:_N_COLUMNS]
        found.append(
            {
                "truth": _cell(test.target[row]),
                "prediction": _prediction(model, path.prediction),
                "scores": [round(float(score), 4) for score in path.raw_scores],
                "columns": [[model.column_names[j], _shown(some, row, j), _rounded(values[j])] for j in order],
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
    label = one.labels(j)[0] if table.kinds[j] in ("category", *DATES) else _cell(float(one.numbers(j)[0]))
    return "missing" if label is None else label


def _cell(value: Any) -> str:
    if isinstance(value, (float, np.floating)):
        return "missing" if np.isnan(value) else f"{value:.5g}"
    return str(value)


def _rounded(values: np.ndarray) -> Any:
    return np.round(values, 4).tolist()
