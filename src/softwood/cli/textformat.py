"""The first bytes of a text table in, its separator and decimal sign out; files that are not UTF-8 text are refused.

`softwood.cli.tablefile` reads the table itself.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import zlib
from dataclasses import dataclass

_SAMPLE_BYTES = 1 << 16
_SCAN_BYTES = 1 << 24
_QUOTED = re.compile(r'"[^"]*"')
_GZIP = b"\x1f\x8b"
# Bytes that no text has: control characters other than tab, line feed, form feed, carriage return and escape.
_CONTROL = bytes(set(range(32)) - {9, 10, 12, 13, 27})


class TableFileError(ValueError):
    """A table file that cannot be read or written; the message says why and what to do."""


@dataclass(frozen=True)
class TextFormat:
    """How the cells of a text table are written."""

    separator: str
    decimal_point: str = "."


def text_format(path: str, separator: str, *, is_given: bool = False) -> TextFormat:
    """Look at the beginning of a file whose name promises the given separator, or whose reader does (`is_given`).

    A .csv file may also have semicolons or tabs; where commas separate no cells, they may stand for decimal points.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "fruit.csv")
    >>> _ = path.write_text("weight;colour\\n1,5;red\\n")
    >>> text_format(str(path), ",")
    TextFormat(separator=';', decimal_point=',')
    """
    text = _decoded(_beginning(path), path)
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise TableFileError(f"{path} is empty; it must hold a header and rows. Check how it was written.")
    header = _QUOTED.sub("", lines[0])
    if separator == "," and "," not in header and not is_given:
        separator = next((other for other in ";\t" if other in header), separator)
    if separator != ",":
        mark = re.escape(separator)
        cell = re.compile(rf'(?:^|{mark}) *"?[-+]?\d+,\d+"? *(?={mark}|$)')
        if any(cell.search(line) for line in lines[1:]):
            return TextFormat(separator, ",")
    return TextFormat(separator)


def has_leading_zeros(path: str, format_: TextFormat) -> bool:
    """Whether a cell of the file may have a leading zero, as 0123 has; false if certainly none does."""
    if path.lower().endswith(".gz"):  # not worth reading it once more
        return True
    cell = re.compile(rb'(?:\A|[\n\r" ' + re.escape(format_.separator).encode() + rb"])[-+]?0[0-9]")
    with open(path, "rb") as file:
        rest = b""
        while block := file.read(_SCAN_BYTES):
            if cell.search(rest + block):
                return True
            rest = block[-3:]
    return False


def _beginning(path: str) -> bytes:
    """The first bytes of a file, uncompressed."""
    with open(path, "rb") as file:
        start = file.read(_SAMPLE_BYTES)
    if not path.lower().endswith(".gz"):
        return start
    if not start.startswith(_GZIP):
        raise TableFileError(
            f"{path} is not compressed with gzip, although its name ends in .gz. Rename it, or compress it."
        )
    try:
        with gzip.open(path) as file:
            return file.read(_SAMPLE_BYTES)
    except (EOFError, OSError, zlib.error) as error:
        raise TableFileError(f"{path} is truncated or damaged ({error}). Get a fresh copy.") from error


def _decoded(start: bytes, path: str) -> str:
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _not_utf8(path, "UTF-16")
    if any(byte in _CONTROL for byte in start):
        raise TableFileError(f"{path} is not a text file, despite its name. Save the table as CSV or Parquet.")
    # A character may be cut in two at the end of the sample.
    whole = start if len(start) < _SAMPLE_BYTES else start[: start.rfind(b"\n") + 1] or start[:-3]
    try:
        return whole.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _not_utf8(path, "LATIN1") from None


def _not_utf8(path: str, likely: str) -> TableFileError:
    name = shlex.quote(path)
    return TableFileError(
        f"{path} must be UTF-8 text; it looks like {likely}. Convert it: iconv -f {likely} -t UTF-8 {name} > "
        f"{shlex.quote('utf8-' + os.path.basename(path))}"
    )
