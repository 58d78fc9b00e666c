"""The command `softwood`: a line of a shell in, files and a table of metrics out.

`commands` and `explaining` have its subcommands, `console` what they share; `tablefile` reads and writes tables, `task`
finds target and task in one, `metrics` says how good a model is, `tune` searches for hyperparameters.
"""
