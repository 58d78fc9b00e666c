"""Containers of any kind in, typed columns out: table -> cells of a column -> what texts stand for."""
