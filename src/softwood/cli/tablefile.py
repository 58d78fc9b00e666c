"""CSV, TSV and Parquet files to and from Arrow tables, whole or in batches.

A path goes in, `pyarrow.Table`s come out, and the other way round; `softwood.tabular.reading.table` gives columns their
kinds. Files whose names end in .gz are compressed. A file that cannot be read gives a `TableFileError` of one line with
the remedy. Needs pyarrow, which the extra "cli" installs.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

try:
    import pyarrow as pa
    import pyarrow.compute as compute
    import pyarrow.csv as arrow_csv
    import pyarrow.parquet as parquet
except ImportError as error:
    raise ImportError("Reading table files needs pyarrow: pip install 'softwood[cli]'.") from error

from softwood.cli.textformat import TableFileError, TextFormat, has_leading_zeros, text_format
from softwood.model.whole_file import whole_file
from softwood.tabular.reading.table import DATES
from softwood.tabular.reading.texts import hint

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
_PARQUET = (".parquet", ".pq")
FORMATS = ".csv, .tsv (both also .gz) and .parquet"
NO_ROWS = "{} must hold at least one row; it has a header only. Check how it was written."
# First letters of texts that spreadsheets take for formulas.
_FORMULA = "=+-@\t\r"
# What stands for a missing cell in text files; an empty cell always does.
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "#N/A")


def read_file(
    path: str | os.PathLike[str], kinds: Mapping[str, str] | None = None, *, delimiter: str | None = None
) -> pa.Table:
    """Read a whole file; the types of text columns are inferred from all rows, but for those whose kind is given.

    Numbers with leading zeros (0123) are texts: they are codes, and would lose the zeros.

    Parameters
    ----------
    path : path
        The file.
    kinds : mapping of str to str, optional
        Kinds (`softwood.tabular.reading.table.KINDS`) of columns that a model reads.
    delimiter : str, optional
        What separates cells, instead of what the file's name and header say; the file is then text, whatever its name.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "fruit.csv")
    >>> _ = path.write_text("weight,colour\\n1.5,red\\nNA,green\\n")
    >>> read_file(path).to_pydict()
    {'weight': [1.5, None], 'colour': ['red', 'green']}
    """
    path, separator = _inspect(path, delimiter)
    format_ = None if separator is None else text_format(path, separator, is_given=delimiter is not None)
    try:
        table = parquet.read_table(path) if format_ is None else _read_text(path, format_, kinds or {})
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error, format_) from error
    _check_columns(table.schema, path, is_text=format_ is not None)
    if table.num_rows == 0:
        raise TableFileError(NO_ROWS.format(path))
    return table


def read_batches(
    path: str | os.PathLike[str], kinds: Mapping[str, str], *, batch_rows: int = 65_536, delimiter: str | None = None
) -> Iterator[pa.Table]:
    """Read a file of any length piece by piece, in memory that does not grow with it.

    Parameters
    ----------
    path : path
        The file.
    kinds : mapping of str to str
        Kinds (`softwood.tabular.reading.table.KINDS`) of the columns that a model reads. Types are not inferred for
        these, so that a column has the same type in every batch; other text columns are read as strings.
    batch_rows : int
        Approximate number of rows per batch.
    delimiter : str, optional
        As in `read_file`.
    """
    path, separator = _inspect(path, delimiter)
    format_ = None if separator is None else text_format(path, separator, is_given=delimiter is not None)
    try:
        pieces = _parquet_batches(path, batch_rows) if format_ is None else _text_batches(path, format_, kinds)
        for piece in pieces:
            for first in range(0, piece.num_rows, batch_rows):
                yield pa.Table.from_batches([piece.slice(first, batch_rows)])
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error, format_) from error


@contextmanager
def local_file(source: str) -> Iterator[str]:
    """The path of a table's file; standard input ("-") is copied to a temporary one, which is then removed."""
    if source != "-":
        yield source
        return
    with tempfile.TemporaryDirectory() as folder:
        start = sys.stdin.buffer.read(4)
        suffix = ".parquet" if start == b"PAR1" else ".csv.gz" if start.startswith(b"\x1f\x8b") else ".csv"
        path = os.path.join(folder, f"input{suffix}")
        with open(path, "wb") as file:
            file.write(start)
            shutil.copyfileobj(sys.stdin.buffer, file)
        try:
            yield path
        except TableFileError as error:
            raise TableFileError(str(error).replace(path, "standard input")) from error


class BatchWriter:
    """Writes tables one after the other to a CSV, TSV or Parquet file, or as CSV to standard output ("-").

    Use it in a with statement. The file appears under its name when the statement ends without an error; until then,
    and after an error or Ctrl-C, there is none, or the old one.

    `escape` puts an apostrophe before texts that spreadsheets would take for formulas: those that begin with =, +, -,
    @, a tab or a carriage return. Parquet files are written as they are.
    """

    def __init__(self, path: str | os.PathLike[str], *, escape: bool = False) -> None:
        self.path = os.fspath(path)
        self.escape = escape
        self.n_rows = 0
        self._writer: Any = None
        self._opened = ExitStack()
        # Refuse an unknown format before any work is done.
        self._separator = "," if self.path == "-" else _format_of(self.path)

    def __enter__(self) -> BatchWriter:
        return self

    def write(self, table: pa.Table) -> None:
        """Append a table; all have the same columns."""
        if self.escape and self._separator is not None:
            table = _escaped(table)
        if self._writer is None:
            self._writer = self._open(table.schema)
        self._writer.write_table(table)
        self.n_rows += table.num_rows

    def _open(self, schema: pa.Schema) -> Any:
        """Streams and writer, to be closed in the reverse order: the file last, which then takes its name."""
        if self.path == "-":
            file: Any = sys.stdout.buffer
        else:
            file = self._opened.enter_context(whole_file(self.path))
            if self.path.lower().endswith(".gz"):
                file = self._opened.enter_context(gzip.GzipFile("", "wb", fileobj=file))
        stream = pa.PythonFile(file, mode="w")
        if self._separator is None:
            return self._opened.enter_context(parquet.ParquetWriter(stream, schema))
        options = arrow_csv.WriteOptions(delimiter=self._separator, quoting_style="needed")
        return self._opened.enter_context(arrow_csv.CSVWriter(stream, schema, write_options=options))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)
        if self.path == "-":
            sys.stdout.flush()


def _escaped(table: pa.Table) -> pa.Table:
    names = [f"'{name}" if name[:1] in _FORMULA else name for name in table.column_names]
    columns = []
    for column in table.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = compute.replace_substring_regex(column, rf"\A([{re.escape(_FORMULA)}])", r"'\1")
        columns.append(column)
    return pa.table(columns, names=names)


# Formats ------------------------------------------------------------------------------------------------------------


def _inspect(path: str | os.PathLike[str], delimiter: str | None) -> tuple[str, str | None]:
    """The path as a string and its format, of a file that exists and is not empty."""
    name = os.fspath(path)
    separator = delimiter or _format_of(name)
    if os.path.isdir(name):
        raise TableFileError(f"{name} is a folder; a table is one file. Name a file in it.")
    if not os.path.isfile(name):
        raise TableFileError(f"There is no file {name!r}. Check the path (the current folder is {os.getcwd()}).")
    if os.path.getsize(name) == 0:
        raise TableFileError(f"{name} is empty; it must hold a header and rows. Check how it was written.")
    return name, separator


def _format_of(name: str) -> str | None:
    """Separator of a text file, or None for Parquet."""
    stem = name[:-3] if name.lower().endswith(".gz") else name
    suffix = os.path.splitext(stem)[1].lower()
    if suffix in _PARQUET and stem == name:
        return None
    if suffix not in _SEPARATORS:
        raise TableFileError(f"A table's file name must end in {FORMATS}; got {name!r}. Rename or convert it.")
    return _SEPARATORS[suffix]


def _convert_options(
    format_: TextFormat, types: Mapping[str, pa.DataType] | None = None, **more: Any
) -> arrow_csv.ConvertOptions:
    return arrow_csv.ConvertOptions(
        null_values=list(MISSING),
        strings_can_be_null=True,
        column_types=types,
        decimal_point=format_.decimal_point,
        **more,
    )


def _parse_options(format_: TextFormat) -> arrow_csv.ParseOptions:
    return arrow_csv.ParseOptions(delimiter=format_.separator, newlines_in_values=True)


def _read_text(path: str, format_: TextFormat, kinds: Mapping[str, str]) -> pa.Table:
    types = {name: type_ for name, type_ in _text_types(path, format_, kinds).items() if name in kinds}
    options = {"parse_options": _parse_options(format_), "convert_options": _convert_options(format_, types)}
    try:
        table = arrow_csv.read_csv(path, **options)
    except pa.ArrowInvalid:  # again in one thread: only then does the message contain the line
        table = arrow_csv.read_csv(path, read_options=_one_thread(), **options)
    numbers = [f.name for f in table.schema if f.name not in kinds and _is_number(f.type)]
    if len(set(table.column_names)) < table.num_columns or not numbers or not has_leading_zeros(path, format_):
        return table
    texts = dict.fromkeys(numbers, pa.string())
    convert = _convert_options(format_, texts, include_columns=numbers)
    again = arrow_csv.read_csv(path, parse_options=_parse_options(format_), convert_options=convert)
    for name in numbers:
        if compute.any(compute.match_substring_regex(again[name], r"\A\s*[-+]?0[0-9]")).as_py():
            table = table.set_column(table.column_names.index(name), name, again[name])
    return table


def _is_number(type_: pa.DataType) -> bool:
    return pa.types.is_integer(type_) or pa.types.is_floating(type_)


def _text_batches(path: str, format_: TextFormat, kinds: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    # More threads would read far ahead of whoever takes the batches, and hold it all in memory.
    yield from arrow_csv.open_csv(
        path,
        read_options=_one_thread(),
        parse_options=_parse_options(format_),
        convert_options=_convert_options(format_, _text_types(path, format_, kinds)),
    )


def _one_thread() -> arrow_csv.ReadOptions:
    return arrow_csv.ReadOptions(use_threads=False)


def _text_types(path: str, format_: TextFormat, kinds: Mapping[str, str]) -> dict[str, pa.DataType]:
    """Arrow types of a file's columns, where the kinds of a model (or their absence) settle them."""
    options = {"parse_options": _parse_options(format_), "convert_options": _convert_options(format_)}
    with arrow_csv.open_csv(path, read_options=_one_thread(), **options) as inferred:
        schema = inferred.schema
    _check_columns(schema, path, is_text=True)
    types = {field.name: _type_for(kinds.get(field.name), field.type) for field in schema}
    return {name: type_ for name, type_ in types.items() if type_ is not None}


def _type_for(kind: str | None, inferred: pa.DataType) -> pa.DataType | None:
    """Arrow type for a text column of the given kind; None where the first rows must decide (dates, times of day)."""
    if kind in ("date", *DATES) or (kind == "numeric" and pa.types.is_temporal(inferred)):
        return None
    return {"numeric": pa.float64(), "boolean": pa.bool_()}.get(kind or "", pa.string())


def _parquet_batches(path: str, batch_rows: int) -> Iterator[pa.RecordBatch]:
    file = parquet.ParquetFile(path, pre_buffer=False)
    _check_columns(file.schema_arrow, path, is_text=False)
    yield from file.iter_batches(batch_size=batch_rows, use_threads=False)


# Errors -------------------------------------------------------------------------------------------------------------


def _check_columns(schema: pa.Schema, path: str, *, is_text: bool) -> None:
    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated:
        raise TableFileError(f"Column names of {path} must differ; {repeated[0]!r} occurs twice. Rename one.")
    binary = [field.name for field in schema if pa.types.is_binary(field.type)]
    if binary and is_text:
        raise TableFileError(
            f"{path} must be UTF-8 text; column {binary[0]!r} is not. Convert it: iconv -f latin1 -t utf8 {path}"
        )


def _unreadable(path: str, error: Exception, format_: TextFormat | None) -> TableFileError:
    if isinstance(error, PermissionError):
        return TableFileError(f"{path} must be readable; it is not. Allow it: chmod u+r {shlex.quote(path)}")
    text = re.sub(r"^Could not open Parquet input source '.*?': ", "", " ".join(str(error).split()))
    if "cannot infer number of columns" in text:  # a header line without a line break
        return TableFileError(NO_ROWS.format(path))
    ragged = re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", text)
    if ragged:
        line, expected, got = ragged.groups()
        where = f"Line {line}" if line else "A line"
        return TableFileError(
            f"{where} of {path} has {got} fields, and the header {expected}: correct the line, or put quotes around "
            "fields that contain the separator."
        )
    wrong = re.search(r"In CSV column #(\d+): (?:Row #(\d+): )?.*?error to (\w+): invalid value '(.*?)'", text)
    if wrong:
        column, line, type_, value = wrong.groups()
        needed = {"double": "numbers", "bool": "true or false"}.get(type_, type_)
        where = f" in line {line}" if line else ""
        return TableFileError(
            f"Column {_column_name(path, format_, int(column))!r} of {path} must hold {needed}, as in training; got "
            f"{value!r}{where}{hint(value, 'numeric')}. Correct the cell, or leave it empty if the value is missing."
        )
    return TableFileError(
        f"{path} cannot be read ({text[:200]}). Check that it is complete and has the format that its name says."
    )


def _column_name(path: str, format_: TextFormat | None, number: int) -> str:
    assert format_ is not None  # only text has cells of a wrong type
    with arrow_csv.open_csv(path, parse_options=_parse_options(format_)) as reader:
        return str(reader.schema.names[number])
