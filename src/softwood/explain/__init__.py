"""What a fitted model looks at: importances, the way of one row through the trees, rules in words, unused nodes.

All functions take a fitted estimator or a `softwood.model.Model`. Nodes of a tree are numbered in heap order (children
of i are 2i+1 and 2i+2); the last 2^d of them are the leaves. A model averages its members, so all contributions are
divided by their number, and those of all trees together with the model's offset are the raw scores of a row.
"""

from softwood.explain.columns import (
    Contributions,
    Usage,
    column_contributions,
    importances,
    shap_explanation,
    tree_traffic,
    usage,
)
from softwood.explain.explainer import ContributionExplainer
from softwood.explain.leaves import most_probable_leaves
from softwood.explain.paths import DecisionPath, TreePath, decision_path, rules

__all__ = [
    "ContributionExplainer",
    "Contributions",
    "DecisionPath",
    "TreePath",
    "Usage",
    "column_contributions",
    "decision_path",
    "importances",
    "most_probable_leaves",
    "rules",
    "shap_explanation",
    "tree_traffic",
    "usage",
]
