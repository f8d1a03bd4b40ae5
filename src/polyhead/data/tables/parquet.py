"""Parquet: rows read in order or from any row group on; pieces written and joined into one file."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from polyhead.arguments import twice_in
from polyhead.data.formats.argilla import ENDS_OF_COLUMNS
from polyhead.data.tables.arrow import arrow_for, values_of, with_numbers
from polyhead.data.tables.base import Chunk, NewColumn, Numbered, Row, Survey, TableFormat, Word, Writer
from polyhead.data.tables.hub import with_names
from polyhead.data.tables.written import is_null, text_of_cell
from polyhead.errors import BadValue, DataError
from polyhead.files import open_plain
from polyhead.tasks.limits import SHORTEN, check_packing, too_long
from polyhead.text.prefix import LONGEST_TEXT

GROUP_ROWS = 2**16  # minimum rows of a row group, except the last: pieces are joined to reach it
METADATA = b"huggingface"  # key of a file's schema metadata: the features of its columns


class ParquetWriter(Writer):
    """Pieces and the whole file as Parquet."""

    def __init__(self, kept: Sequence[str], columns: Sequence[NewColumn], **about: Any) -> None:
        """Kept columns have their own types, or those of their values."""
        super().__init__(kept, columns, **about)
        arrow = arrow_for("writing Parquet")
        self.nulled_in = ("mixed", "list", "object") if self.kept_schema is None else ()  # what is written as JSON
        kept_fields = _schema_of_words(self.types) if self.kept_schema is None else self.kept_schema
        self.schema = arrow.schema(
            [*kept_fields, *(arrow.field(column.name, arrow_type_of(column)) for column in columns)]
        )

    def piece(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> bytes:
        """A complete file with one row group."""
        arrow = arrow_for()
        arrays = [_array(chunk.column(name), field.type) for name, field in zip(self.kept, self.schema, strict=False)]
        for at, column in enumerate(self.columns):
            values = [_cell(column, row[at]) for row in answers]
            arrays.append(arrow.array(values, arrow_type_of(column)))
        table = arrow.Table.from_arrays(arrays, schema=self.schema)
        written = io.BytesIO()
        arrow.parquet.write_table(table, written, row_group_size=max(len(table), 1))
        return written.getvalue()

    def whole(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Pieces joined into row groups of at least GROUP_ROWS rows; only one group is in memory."""
        arrow, sink = arrow_for(), _Sink()
        with arrow.parquet.ParquetWriter(sink, self.schema) as writer:
            waiting: list[Any] = []
            for piece in pieces:
                reader = arrow.BufferReader(piece)
                waiting.append(arrow.parquet.read_table(reader, schema=self.schema))
                if sum(map(len, waiting)) >= GROUP_ROWS:
                    writer.write_table(arrow.concat_tables(waiting), row_group_size=2 * GROUP_ROWS)
                    waiting = []
                yield from sink.taken()
            if waiting:
                writer.write_table(arrow.concat_tables(waiting), row_group_size=2 * GROUP_ROWS)
        yield from sink.taken()


class Parquet(TableFormat):
    """A Parquet file; classes as their names, if the file has them."""

    name = "Parquet"
    endings = written = (".parquet",)
    writer = ParquetWriter

    def records(self) -> Iterator[Numbered]:
        """The wanted columns of each row; all columns for an export of annotations, since they belong together."""
        open_plain(self.path).close()
        before = 0
        with self._opened() as file:
            names = list(file.schema_arrow.names)
            self.begin(names, f"the schema of {self.path}", "write it again with a name for each")
            is_export = any(name.endswith(ENDS_OF_COLUMNS) for name in names)
            read = [name for name in names if is_export or self.wanted is None or name in self.wanted]
            features = _features(file.schema_arrow.metadata or {})
            check_packing(file.metadata, read, self.path)
            for batch in _batches(file, read, 0, 1024):
                for number, values in enumerate(_plain_rows(batch, self.path, before), start=before + 1):
                    yield number, {name: with_names(value, features.get(name)) for name, value in values.items()}
                before += len(batch)

    def survey(self) -> Survey:
        """Read from the file's footer."""
        with self._opened() as file:
            schema = file.schema_arrow
            if twice := sorted(twice_in(schema.names)):
                raise DataError(f"{self.path} has two columns of one name", got=twice)
            types = {field.name: _word(_plain_type(field.type)) for field in schema}
            return Survey(rows=file.metadata.num_rows, columns=types)

    def chunks(self, start: int, size: int) -> Iterator[Chunk]:
        """Row groups before `start` are not read."""
        waiting: list[Any] = []
        with self._opened() as file:
            check_packing(file.metadata, self.wanted or (), self.path)
            for batch in _batches(file, list(self.wanted or ()), start, size):
                waiting.append(batch)
                while sum(map(len, waiting)) >= size:
                    table = arrow_for().Table.from_batches(waiting)
                    yield ArrowChunk(table.slice(0, size), self.path, start)
                    start, waiting = start + size, table.slice(size).to_batches()
        if sum(map(len, waiting)):
            yield ArrowChunk(arrow_for().Table.from_batches(waiting), self.path, start)

    def schema(self, names: Sequence[str]) -> Any:
        """The types of the file; for a dictionary-encoded column, the type of its values."""
        arrow = arrow_for()
        with self._opened() as file:
            fields = [file.schema_arrow.field(name) for name in names]
        return arrow.schema([arrow.field(field.name, _plain_type(field.type), field.nullable) for field in fields])

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        arrow = arrow_for(f"reading {Path(self.path).name}")
        try:
            name = os.fsencode(self.path)  # these may be any bytes
            with arrow.OSFile(name) as raw, arrow.parquet.ParquetFile(raw) as file:
                yield file
        except (MemoryError, FileNotFoundError):
            raise
        except (arrow.ArrowException, OSError) as error:  # OSError: a damaged page
            raise DataError(f"cannot read {self.path}", got=error, do="give a whole Parquet file") from None


class ArrowChunk(Chunk):
    """Rows of a Parquet file."""

    def __init__(self, table: Any, path: str, before: int) -> None:
        super().__init__((), path, has_cells=False)
        self._table, self._path, self._before = table, path, before  # rows before it in the file

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def rows(self, names: Sequence[str]) -> list[Row | BadValue]:
        """The rows; a row with a text that is too long is an error."""
        return [self._row(values, number) for number, values in enumerate(self.kept(names), start=self._before + 1)]

    def _row(self, values: Mapping[str, object], number: int) -> Row | BadValue:
        if longest := too_long(values.values()):
            problem, got = f"{self.name} row {number}: a text is too long", f"{longest:,} characters"
            return BadValue(problem, got=got, allowed=LONGEST_TEXT, do=SHORTEN)
        return Row(number=number, values=values)

    def kept(self, names: Sequence[str]) -> list[dict[str, object]]:
        """All columns: every row has each of them."""
        columns = [self._values(name) for name in names]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)] or [
            {} for _ in range(len(self))
        ]

    def column(self, name: str) -> Any:
        """A chunked array of pyarrow, decoded if it is dictionary-encoded."""
        column = self._table.column(name)
        return column.cast(_plain_type(column.type))

    def _values(self, name: str) -> list[object]:
        column = self.column(name)
        try:
            return [value for array in column.chunks for value in values_of(array)]
        except (ValueError, OverflowError, arrow_for().ArrowNotImplementedError) as error:
            do = "leave the column out with --keep and --fresh, or write .parquet"
            raise DataError(f"column '{name}' of {self._path} cannot be written as text", got=error, do=do) from None


def _schema_of_words(columns: Mapping[str, Word]) -> Any:
    """The schema of columns of these types; types without a plain Parquet equivalent are JSON strings."""
    arrow = arrow_for("writing Parquet")
    types = {"bool": arrow.bool_(), "int": arrow.int64(), "float": arrow.float64()}
    return arrow.schema([arrow.field(name, types.get(word, arrow.string())) for name, word in columns.items()])


class _Sink(io.RawIOBase):
    """Buffers written bytes until they are taken."""

    def __init__(self) -> None:
        self._written: list[bytes] = []
        self._at = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._written.append(bytes(data))
        self._at += len(self._written[-1])
        return len(self._written[-1])

    def tell(self) -> int:
        return self._at

    def taken(self) -> list[bytes]:
        """The bytes written since the last call."""
        taken, self._written = self._written, []
        return taken


def _batches(file: Any, wanted: list[str], start: int, size: int) -> Iterator[Any]:
    """Batches of the rows from `start` on; row groups before it are not read."""
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if start >= rows:
            start -= rows
            continue
        for batch in file.iter_batches(batch_size=size, row_groups=[group], columns=wanted):
            yield batch.slice(min(start, len(batch)))
            start = max(start - len(batch), 0)


def _plain_type(kind: Any) -> Any:
    """The value type of a dictionary-encoded column; any other type unchanged."""
    return kind.value_type if arrow_for().types.is_dictionary(kind) else kind


def _word(kind: Any) -> Word:
    types = arrow_for().types
    named: tuple[tuple[Word, bool], ...] = (
        ("null", types.is_null(kind)),
        ("bool", types.is_boolean(kind)),
        ("int", types.is_integer(kind)),
        ("float", types.is_floating(kind)),
        ("text", types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)),
        ("list", types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)),
        ("object", types.is_struct(kind) or types.is_map(kind)),
    )
    return next((word for word, holds in named if holds), "other")


def _array(values: Any, kind: Any) -> Any:
    """The values of a kept column: an array unchanged, a list as an array of this type."""
    arrow = arrow_for()
    if not isinstance(values, list):
        return values
    if arrow.types.is_string(kind):
        values = [None if is_null(value) else text_of_cell(value) for value in values]
    return arrow.array(values, kind)


def arrow_type_of(column: NewColumn) -> Any:
    """The type of pyarrow for the cells of a new column; raises MissingExtra without pyarrow."""
    arrow = arrow_for()
    return {
        "text": arrow.string,
        "json": arrow.string,
        "number": arrow.float64,
        "flag": arrow.bool_,
        "texts": lambda: arrow.list_(arrow.string()),
        "places": lambda: arrow.list_(arrow.int64()),
        "numbers": lambda: arrow.list_(arrow.float64()),
        "shares": lambda: arrow.struct([(name, arrow.float64()) for name in column.fields]),
    }[column.form]()


def _cell(column: NewColumn, value: object) -> object:
    return text_of_cell(value) if column.form == "json" and value is not None else value


def _features(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    """The features of a hub file's columns in JSON; empty for any other file, or if they cannot be read."""
    with suppress(ValueError, RecursionError, AttributeError):
        features = json.loads(metadata.get(METADATA, b"{}")).get("info", {}).get("features", {})
        return features if isinstance(features, dict) else {}
    return {}


def _plain_rows(batch: Any, path: str, before: int) -> list[dict[str, object]]:
    rows = f"{path}: one of the rows {before + 1:,} to {before + batch.num_rows:,}"
    types = {field.name: str(field.type) for field in batch.schema}
    try:
        return [with_numbers(row, types) for row in batch.to_pylist()]
    except UnicodeDecodeError as error:
        do = "write the file again with strings in UTF-8, or its column as binary"
        raise DataError(f"{rows} holds a string that is not UTF-8", got=error, do=do) from None
    # pyarrow's error for a struct with two fields of one name, and for dates from year 10,000 on
    except ValueError as error:
        do = "write the file again without this column, or with its values as strings"
        raise DataError(f"{rows} holds a value that Python cannot hold", got=error, do=do) from None
