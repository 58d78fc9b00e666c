"""The tables and figures of "The Tree Ensemble Layer" (Hazimeh et al., ICML 2020), run again with this library.

One module per table or figure, each a command: ``python -m paper.table_auc``. ``python -m paper.run`` runs all of them
in the order of what is worth having first, unit by unit, into a folder of unit files; ``python -m paper.collect`` turns
finished units into ``paper/results``, ``python -m paper.render`` those into ``paper/README.md``, and ``python -m
paper.verify`` runs recorded units once more. Not part of the installed package:

    pip install 'softwood[paper]'

`runner` keeps units, `datasets` reads and splits data, `learners` says what is compared, `search` tunes and judges,
`costs` measures fits ahead of the long runs, `published` holds the paper's own numbers, `comparison` the statistics,
`claims` the verdicts. `auc_report` reports table 2, `depth_report` the benchmark of theorem 1.
"""
