"""Parquet files in, pieces of a table out, in memory that does not grow with the files.

Files are named by a path, a list of paths, a glob, a folder or a pyarrow dataset. All must have the same columns.
`TableFiles.pieces` cuts their rows into pieces of a fixed number of rows, wherever one file ends and the next begins,
so that what is learned depends on the rows and their order, and not on how they are spread over files. What the pieces
mean is left to `softwood.tabular.out_of_core.sketch`. Needs pyarrow (extra "parquet"), which is imported when it is
used.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_SUFFIXES = (".parquet", ".pq")
# Cells and rows of a piece, at most.
_PIECE_CELLS, _PIECE_ROWS = 1 << 22, 1 << 17
# Bytes of a column that are read ahead: row groups may be larger than memory.
_BUFFER_BYTES = 1 << 18
# Tables of at most this many cells are read whole.
IN_MEMORY_CELLS = 1 << 24


def are_files(X: Any) -> bool:
    """Whether X names files: a path or glob, a list of them, or a pyarrow dataset."""
    if isinstance(X, (str, os.PathLike)):
        return True
    if isinstance(X, (list, tuple)):
        return bool(X) and all(isinstance(x, (str, os.PathLike)) for x in X)
    return type(X).__module__.startswith("pyarrow") and hasattr(X, "get_fragments")


@dataclass(frozen=True)
class RowShare:
    """Which rows belong to a random share of a table, or to the rest of it: by the hashes of their numbers.

    >>> part = RowShare(0.25, seed=0)
    >>> rest = RowShare(0.25, seed=0, is_rest=True)
    >>> numbers = np.arange(10_000)
    >>> int(part(numbers).sum()), bool(np.all(part(numbers) != rest(numbers)))
    (2458, True)
    """

    share: float
    seed: int
    is_rest: bool = False

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """Mask [n] of rows with the given numbers."""
        return (mixed(numbers, self.seed) < np.uint64(self.share * 2.0**64)) != self.is_rest


def mixed(numbers: np.ndarray, seed: int) -> np.ndarray:
    """Well-mixed 64-bit hashes [n] of numbers of rows."""
    z = (numbers.astype(np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return z ^ (z >> np.uint64(29))


@dataclass(frozen=True, eq=False)
class ParquetPart:
    """One Parquet file: its path, file system, and the values of columns that only its path tells."""

    path: str
    filesystem: Any
    keys: dict[str, Any] = field(default_factory=dict)

    def open(self) -> Any:
        """The file, checked to be one."""
        import pyarrow as pa
        import pyarrow.parquet as parquet

        try:
            source = self.filesystem.open_input_file(self.path)
            if source.size() == 0:
                raise ValueError(f"{self.path} is empty (0 bytes); it must be a Parquet file. Write it again.")
            return parquet.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise self.unreadable(error) from error

    def require_readable(self) -> None:
        """Read all rows, of which nothing is kept; raise the error that names the file if one cannot be read."""
        file = self.open()
        try:
            for _ in file.iter_batches(use_threads=False):
                pass
        except Exception as error:
            raise self.unreadable(error) from error
        finally:
            file.close()

    def unreadable(self, error: Exception) -> ValueError:
        """The error for a file that is damaged, absent or no Parquet file."""
        reason = " ".join(str(error).split())[:200]
        return ValueError(f"{self.path} cannot be read ({reason}). Check that it is a whole Parquet file.")


@dataclass(frozen=True, eq=False)
class TableFiles:
    """A table in Parquet files. Made by `open_files`.

    Attributes
    ----------
    parts : list of ParquetPart
    schema : pyarrow.Schema
        Of all columns, targets and weights among them.
    lengths : list of int
        Rows of each file.
    target : str or list of str
        Column or columns to be learned.
    weight, offset : str, optional
        Columns of weights and offsets.
    features : list of str
        All other columns, but for those left out.
    keeps : callable, optional
        Which rows belong, of numbers [n] of rows: a mask. All do without it. Its `repr` says which.
    """

    parts: list[ParquetPart]
    schema: Any
    lengths: list[int]
    target: str | list[str]
    weight: str | None
    offset: str | None
    features: list[str]
    keeps: Callable[[np.ndarray], np.ndarray] | None = None

    @property
    def n_rows(self) -> int:
        """Rows of all files."""
        return sum(self.lengths)

    @property
    def n_cells(self) -> int:
        """Cells of all columns that a model may read."""
        return self.n_rows * len(self.features)

    @property
    def targets(self) -> list[str]:
        """Names of the target's columns."""
        return [self.target] if isinstance(self.target, str) else self.target

    @property
    def columns(self) -> list[str]:
        """All columns that are read."""
        return [*self.features, *self.targets, *(name for name in (self.weight, self.offset) if name is not None)]

    def identity(self) -> dict[str, Any]:
        """What changes with the files and with what is read of them, as plain data."""
        found = []
        for part in self.parts:
            about = part.filesystem.get_file_info([part.path])[0]
            found.append([part.path, about.size, about.mtime_ns, sorted(map(str, part.keys.items()))])
        types = [f"{name}: {self.schema.field(name).type}" for name in self.columns]
        roles = [self.targets, self.weight, self.offset]
        return {"files": found, "roles": roles, "columns": types, "rows": repr(self.keeps)}

    def pieces(self, columns: Sequence[str] | None = None) -> Iterator[tuple[int, Any]]:
        """Pieces of the table (pyarrow.Table), each with the number of its first row.

        All have the same number of rows, but for the last one. With `columns`, they have some of the columns only, and
        the same rows.
        """
        import pyarrow as pa

        names = self.columns if columns is None else list(columns)
        size = self.piece_rows
        held: list[Any] = []
        n_held = first = 0
        for batch in self._batches(names):
            held.append(batch)
            n_held += len(batch)
            while n_held >= size:
                joined = pa.concat_tables(held)
                yield first, joined.slice(0, size).combine_chunks()
                first, n_held = first + size, n_held - size
                held = [joined.slice(size)]
        if n_held:
            yield first, pa.concat_tables(held).combine_chunks()

    @property
    def piece_rows(self) -> int:
        """Rows of a piece."""
        return min(_PIECE_ROWS, max(1024, _PIECE_CELLS // len(self.columns)))

    def read(self) -> Any:
        """The whole table (pyarrow.Table)."""
        import pyarrow as pa

        parts = [piece for _, piece in self.pieces()]
        if not parts:
            raise ValueError(f"A table must have rows; {_listed(self.parts)} have none.")
        return pa.concat_tables(parts).combine_chunks()

    def _batches(self, names: list[str]) -> Iterator[Any]:
        import pyarrow as pa

        schema = pa.schema([self.schema.field(name) for name in names])
        for part in self.parts:
            file = part.open()
            try:
                own = [name for name in names if name not in part.keys]
                for batch in file.iter_batches(batch_size=self.piece_rows, columns=own, use_threads=False):
                    table = pa.Table.from_batches([batch])
                    for name in names:
                        if name in part.keys:
                            table = table.append_column(name, pa.repeat(pa.scalar(part.keys[name]), len(table)))
                    yield table.select(names).cast(schema)
            except (pa.ArrowException, OSError) as error:
                raise part.unreadable(error) from error
            finally:
                file.close()


def open_files(
    X: Any, y: Any, sample_weight: Any = None, offset: Any = None, *, drop: Sequence[str] = ()
) -> TableFiles:
    """Find the files of a table, and check that they have the same columns, `y` and `sample_weight` among them."""
    parts = _find_parts(X)
    schema, lengths = _common_schema(parts)
    names = {"y": y, "sample_weight": sample_weight, "offset": offset}
    chosen: list[str] = []
    for what, value in names.items():
        several = isinstance(value, (list, tuple)) and what == "y"
        for name in value if several else [value]:
            if name is None and what != "y":
                continue
            if not isinstance(name, str):
                raise TypeError(
                    f"{what} must be the name of a column where X names files; got {type(name).__name__}. Write the "
                    "values to a column of the files."
                )
            if name not in schema.names:
                shown = ", ".join(map(repr, schema.names[:12])) + (", ..." if len(schema.names) > 12 else "")
                raise ValueError(f"{what} must be the name of a column of the files; got {name!r}. They have {shown}.")
            chosen.append(name)
    features = [name for name in schema.names if name not in chosen and name not in drop]
    if not features:
        raise ValueError("A model needs a column besides the target; the files have no other.")
    target = list(y) if isinstance(y, (list, tuple)) else y
    return TableFiles(parts, schema, lengths, target, sample_weight, offset, features)


def is_long(files: TableFiles) -> bool:
    """Whether a table is trained on without being read into memory; decided by its size alone."""
    return files.n_cells > IN_MEMORY_CELLS


def first_rows(files: TableFiles) -> Any:
    """Feature columns of the first piece (pyarrow.Table), whose cells say what texts hold."""
    _, piece = next(files.pieces())
    return piece.select(files.features)


def read_whole(files: TableFiles) -> tuple[Any, Any, Any, Any]:
    """Features (pyarrow.Table), targets, weights and offsets (None without any) of all rows."""
    table = files.read()
    for name in files.targets:
        _require_values(table.column(name), name, 0)
    y: Any = table.select(files.targets) if not isinstance(files.target, str) else table.column(files.target)
    if isinstance(files.target, str):
        y = y.cast(y.type.value_type) if hasattr(y.type, "value_type") and hasattr(y.type, "index_type") else y
        y = y.to_numpy()
    weight, offset = (
        optional_values(table, files.weight, "sample_weight"),
        optional_values(table, files.offset, "offset"),
    )
    return table.select(files.features), y, weight, offset


def _require_values(column: Any, name: str, first_row: int) -> None:
    if column.null_count:
        row = first_row + int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise ValueError(
            f"The target {name!r} must have a value in every row; that of row {row} is missing. Leave such rows out of "
            "the files."
        )


def target_values(files: TableFiles, piece: Any, first_row: int) -> np.ndarray:
    """Targets [n] or [n, t] of a piece, none of which is missing."""
    columns = []
    for name in files.targets:
        _require_values(piece.column(name), name, first_row)
        columns.append(plain_values(piece.column(name)))
    return columns[0] if isinstance(files.target, str) else np.column_stack(columns)


def plain_values(column: Any) -> np.ndarray:
    """Cells of an Arrow column as an array of numbers, truth values or texts."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    values = column.to_numpy()
    return values.astype(str) if values.dtype.kind == "O" and isinstance(values[0], str) else values


def optional_values(piece: Any, name: str | None, what: str) -> np.ndarray | None:
    """A column of numbers, none of which is missing; None without a name."""
    if name is None:
        return None
    column = piece.column(name)
    if column.null_count:
        raise ValueError(f"{what} must have a number in every row; column {name!r} has missing cells.")
    return np.asarray(plain_values(column), dtype=np.float64)


def _find_parts(X: Any) -> list[ParquetPart]:
    """The files that X names."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError("Reading Parquet files needs pyarrow: pip install 'softwood[parquet]'.") from error
    from pyarrow import fs

    if hasattr(X, "get_fragments"):
        return _fragments(X, "The dataset")
    local = fs.LocalFileSystem()
    found: list[ParquetPart] = []
    for given in X if isinstance(X, (list, tuple)) else [X]:
        name = os.fspath(given)
        if os.path.isdir(name):
            found += _folder(name)
        elif os.path.exists(name):
            found.append(ParquetPart(os.path.abspath(name), local))
        else:
            matches = sorted(glob.glob(name, recursive=True))
            if not matches:
                raise ValueError(
                    f"X must name Parquet files; no file matches {name!r} (the current folder is {os.getcwd()})."
                )
            found += [ParquetPart(os.path.abspath(path), local) for path in matches if os.path.isfile(path)]
    if not found:
        raise ValueError(f"X must name Parquet files; {X!r} names folders only.")
    return found


def _folder(name: str) -> list[ParquetPart]:
    """The files of a folder and of those in it, which may be named after values of columns (year=2024)."""
    from pyarrow import dataset

    files = sorted(
        path
        for path in glob.glob(os.path.join(glob.escape(name), "**", "*"), recursive=True)
        if path.lower().endswith(_SUFFIXES) and os.path.isfile(path) and not os.path.basename(path).startswith("_")
    )
    if not files:
        raise ValueError(f"X must name Parquet files; the folder {name!r} has no file that ends in .parquet or .pq.")
    empty = [path for path in files if os.path.getsize(path) == 0]
    if empty:
        raise ValueError(f"{empty[0]} is empty (0 bytes); it must be a Parquet file. Write it again.")
    files = [os.path.abspath(path) for path in files]
    if any("=" in folder for path in files for folder in os.path.relpath(path, name).split(os.sep)[:-1]):
        found = dataset.dataset(files, format="parquet", partitioning="hive", partition_base_dir=os.path.abspath(name))
        return _fragments(found, name)
    from pyarrow import fs

    return [ParquetPart(path, fs.LocalFileSystem()) for path in files]


def _fragments(found: Any, name: str) -> list[ParquetPart]:
    from pyarrow import dataset

    parts = []
    for fragment in found.get_fragments():
        if getattr(getattr(fragment, "format", None), "default_extname", "") != "parquet":
            raise ValueError(f"{name} must consist of Parquet files; it has a {type(fragment).__name__}.")
        parts.append(
            ParquetPart(fragment.path, fragment.filesystem, dataset.get_partition_keys(fragment.partition_expression))
        )
    if not parts:
        raise ValueError(f"X must name Parquet files; {name} has none.")
    return parts


def _common_schema(parts: Sequence[ParquetPart]) -> tuple[Any, list[int]]:
    """Schema of all files and the rows of each. A column without any value (of type null) fits every type."""
    import pyarrow as pa

    fields: dict[str, tuple[Any, str]] = {}  # with the file that the type was found in
    lengths = []
    for i, part in enumerate(parts):
        with part.open() as file:
            lengths.append(file.metadata.num_rows)
            schema = pa.schema([f.remove_metadata() for f in file.schema_arrow])
        own = [f for f in schema if f.name not in part.keys]
        own += [pa.field(name, pa.scalar(value).type) for name, value in part.keys.items()]
        names = [f.name for f in own]
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"Column names of {part.path} must differ; {repeated!r} occurs twice. Rename one.")
        if i > 0 and set(names) != set(fields):
            name = sorted(set(names) ^ set(fields))[0]
            has = "has a column" if name in names else "lacks the column"
            raise ValueError(
                f"All files must have the same columns; {part.path} {has} {name!r}, unlike {parts[0].path}. Name "
                "files of one table, or write them again."
            )
        for f in own:
            known = fields.get(f.name)
            if known is None or pa.types.is_null(known[0]):
                fields[f.name] = (f.type, part.path)
            elif not _are_alike(f.type, known[0]):
                raise ValueError(
                    f"All files must have the same types; column {f.name!r} is {f.type} in {part.path} and {known[0]} "
                    f"in {known[1]}. Write one of them again with the other's type."
                )
    return pa.schema([pa.field(name, type_) for name, (type_, _) in fields.items()]), lengths


def _are_alike(one: Any, other: Any) -> bool:
    """Whether columns of two types can be one column: the same type, both texts, or one without values."""
    import pyarrow as pa

    def is_text(type_: Any) -> bool:
        return pa.types.is_string(type_) or pa.types.is_large_string(type_)

    return one == other or pa.types.is_null(one) or (is_text(one) and is_text(other))


def _listed(parts: Sequence[ParquetPart]) -> str:
    return ", ".join(part.path for part in parts[:3]) + (" and others" if len(parts) > 3 else "")
