"""The tables and figures of "The Tree Ensemble Layer" (Hazimeh et al., ICML 2020), run again with this library.

One module a table or figure, each a command: ``python -m paper.table_auc``. What they find is kept under
``paper/results``; ``python -m paper.render`` turns it into ``paper/README.md``. Not part of the installed package:

    pip install 'softwood[paper]'

`runner` keeps finished units and shows progress, `datasets` reads and splits data, `learners` tunes and fits,
`published` holds the paper's own figures, `comparison` the statistics.
"""
