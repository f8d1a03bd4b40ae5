"""Parquet: rows read in chunks, pieces written, and pieces joined into one file. pyarrow is the extra `store`."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polyhead.errors import BadValue, DataError
from polyhead.jobs.answers import AddedColumn
from polyhead.jobs.columns import Ask, Roles
from polyhead.jobs.source import Chunk, Show, Source
from polyhead.jobs.survey import Survey, Word
from polyhead.jobs.values import arrow_for, values_of
from polyhead.jobs.write import Writer, is_null, text_of
from polyhead.tasks.limits import SHORTEN, check_packing, too_long
from polyhead.text.prefix import LONGEST_TEXT

GROUP_ROWS = 2**16  # of a row group at least, but for the last: pieces are joined up to it


class ParquetFile(Source):
    """A Parquet file."""

    def survey(self, show: Show) -> Survey:
        """From the file's footer."""
        with self._opened() as file:
            schema = file.schema_arrow
            twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
            if twice:
                raise DataError(f"{self.path} has two columns of one name", got=twice)
            return Survey(
                rows=file.metadata.num_rows, columns={field.name: _word(_plain_type(field.type)) for field in schema}
            )

    def chunks(self, wanted: Sequence[str], *, start: int, size: int) -> Iterator[Chunk]:
        """Row groups before `start` are not read."""
        waiting: list[Any] = []
        with self._opened() as file:
            check_packing(file.metadata, wanted, self.path)
            for batch in _batches(file, list(wanted), start, size):
                waiting.append(batch)
                while sum(map(len, waiting)) >= size:
                    table = arrow_for().Table.from_batches(waiting)
                    yield TableChunk(table.slice(0, size), self.path, start)
                    start, waiting = start + size, table.slice(size).to_batches()
        if sum(map(len, waiting)):
            yield TableChunk(arrow_for().Table.from_batches(waiting), self.path, start)

    def schema(self, survey: Survey, names: Sequence[str]) -> Any:
        """Types as in the file, but for codes of a dictionary."""
        arrow = arrow_for()
        with self._opened() as file:
            fields = [file.schema_arrow.field(name) for name in names]
        return arrow.schema([arrow.field(field.name, _plain_type(field.type), field.nullable) for field in fields])

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        arrow = arrow_for(f"reading {Path(self.path).name}")
        try:
            name = os.fsencode(self.path)  # which may be any bytes
            with arrow.OSFile(name) as raw, arrow.parquet.ParquetFile(raw) as file:
                yield file
        except MemoryError:
            raise
        except (arrow.ArrowException, OSError) as error:  # OSError: a page that is damaged
            raise DataError(f"cannot read {self.path}", got=error, do="give a whole Parquet file") from None


class TableChunk(Chunk):
    """Rows of a Parquet file."""

    def __init__(self, table: Any, path: str, before: int) -> None:
        self._table, self._path, self._before = table, path, before  # rows before it in the file

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def asks(self, roles: Roles) -> list[Ask | BadValue]:
        """Every row can be read; its values may ask nothing."""
        name = Path(self._path).name
        return [
            _ask(roles, values, f"{name} row {number}")
            for number, values in enumerate(self.kept(roles.wanted), start=self._before + 1)
        ]

    def kept(self, names: Sequence[str]) -> list[dict[str, object]]:
        """Every row has all columns."""
        columns = [self._values(name) for name in names]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)] or [
            {} for _ in range(len(self))
        ]

    def column(self, name: str) -> Any:
        """An array."""
        column = self._table.column(name)
        return column.cast(_plain_type(column.type))

    def _values(self, name: str) -> list[object]:
        """Plain values."""
        column = self.column(name)
        try:
            return [value for array in column.chunks for value in values_of(array)]
        except (ValueError, OverflowError, arrow_for().ArrowNotImplementedError) as error:
            do = "leave the column out with --keep and --fresh, or write .parquet"
            raise DataError(f"column '{name}' of {self._path} cannot be written as text", got=error, do=do) from None


class ParquetWriter(Writer):
    """Pieces and the whole as Parquet."""

    def __init__(self, kept: Sequence[str], columns: Sequence[AddedColumn], schema: Any) -> None:
        super().__init__(kept, columns)
        arrow = arrow_for("writing Parquet")
        self._kept_schema = schema
        added = [arrow.field(column.name, _type_of(column)) for column in columns]
        self.schema = arrow.schema([*schema, *added])

    def piece(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> bytes:
        """A file of its own, with one row group."""
        arrow = arrow_for()
        arrays = [
            _array(chunk.column(name), field.type) for name, field in zip(self.kept, self._kept_schema, strict=True)
        ]
        for at, column in enumerate(self.columns):
            values = [_cell(column, row[at]) for row in answers]
            arrays.append(arrow.array(values, _type_of(column)))
        table = arrow.Table.from_arrays(arrays, schema=self.schema)
        written = io.BytesIO()
        arrow.parquet.write_table(table, written, row_group_size=max(len(table), 1))
        return written.getvalue()

    def whole(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Pieces joined into row groups of at least GROUP_ROWS rows, which are all that is held."""
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


class _Sink(io.RawIOBase):
    """Holds what was written until it is taken."""

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
        """What was written since the last time."""
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


def _ask(roles: Roles, values: Mapping[str, object], where: str) -> Ask | BadValue:
    try:
        if longest := too_long(values.values()):
            raise BadValue(
                f"{where}: a text is too long", got=f"{longest:,} characters", allowed=LONGEST_TEXT, do=SHORTEN
            )
        return roles.ask(values, where=where, from_cells=False)
    except BadValue as error:
        return error


def _plain_type(kind: Any) -> Any:
    """The type of the values of a column that is coded by a dictionary; any other as it is."""
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
    """The values of a kept column: an array as it is, a list as an array of this type."""
    arrow = arrow_for()
    if not isinstance(values, list):
        return values
    if arrow.types.is_string(kind):
        values = [None if is_null(value) else text_of(value) for value in values]
    return arrow.array(values, kind)


def _type_of(column: AddedColumn) -> Any:
    arrow = arrow_for()
    return {
        "text": arrow.string,
        "json": arrow.string,
        "number": arrow.float64,
        "texts": lambda: arrow.list_(arrow.string()),
        "places": lambda: arrow.list_(arrow.int64()),
        "numbers": lambda: arrow.list_(arrow.float64()),
        "shares": lambda: arrow.struct([(name, arrow.float64()) for name in column.fields]),
    }[column.form]()


def _cell(column: AddedColumn, value: object) -> object:
    return text_of(value) if column.form == "json" and value is not None else value
