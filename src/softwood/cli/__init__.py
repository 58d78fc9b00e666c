"""The command `softwood`: a line of a shell in, files and a table of figures out.

`commands` and `explaining` have its subcommands, `console` what they share; `tablefile` reads and writes tables.
"""

from softwood.cli.commands import app

__all__ = ["app"]
