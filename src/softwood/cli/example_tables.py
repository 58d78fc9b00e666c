"""Tables that come with scikit-learn, by a name that the command line accepts instead of a file.

Each comes as one Arrow table with its target among the columns, under a name that says what it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Name -> (function of sklearn.datasets, name of the target, task).
EXAMPLES = {
    "breast-cancer": ("load_breast_cancer", "diagnosis", "classification"),
    "iris": ("load_iris", "species", "classification"),
    "wine": ("load_wine", "cultivar", "classification"),
    "digits": ("load_digits", "digit", "classification"),
    "diabetes": ("load_diabetes", "progression", "regression"),
}


def load_example(name: str) -> tuple[Any, str, str]:
    """Return (Arrow table, name of its target, task) of one of `EXAMPLES`.

    Examples
    --------
    >>> table, target, task = load_example("iris")
    >>> table.num_rows, target, task, table[target][0].as_py()
    (150, 'species', 'classification', 'setosa')
    """
    import pyarrow as pa
    from sklearn import datasets

    function, target, task = EXAMPLES[name]
    bunch = getattr(datasets, function)()
    columns = {str(feature): bunch.data[:, j] for j, feature in enumerate(bunch.feature_names)}
    labels = bunch.target
    if task == "classification" and name != "digits":
        labels = np.asarray(bunch.target_names, dtype=object)[labels]
    return pa.table(columns | {target: labels}), target, task
