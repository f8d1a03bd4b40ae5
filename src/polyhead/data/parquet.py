"""Parquet: rows read in chunks, pieces written, pieces joined into one file. pyarrow is the extra `store`.

Values become plain ones at any depth; no date, time or text stops a job.
"""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from polyhead.arguments import twice_in
from polyhead.errors import BadValue, DataError, MissingExtra
from polyhead.store.jobs.columns import AddedColumn, Roles, RowInput, Survey, Word
from polyhead.store.jobs.rows import Chunk, RowSource, Show, Writer, cell_text, is_null
from polyhead.tasks.limits import SHORTEN, check_packing, too_long
from polyhead.text.prefix import LONGEST_TEXT

GROUP_ROWS = 2**16  # of a row group at least, but for the last: pieces are joined up to it
UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}  # digits of a second


class ParquetFile(RowSource):
    """A Parquet file."""

    def survey(self, show: Show) -> Survey:
        """From the file's footer."""
        with self._opened() as file:
            schema = file.schema_arrow
            twice = sorted(twice_in(schema.names))
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

    def schema(self, names: Sequence[str]) -> Any:
        """The types of the file; of a column that is coded by a dictionary, that of its values."""
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

    def inputs(self, roles: Roles) -> list[RowInput | BadValue]:
        """Every row can be read; its values may make no input."""
        name = Path(self._path).name
        return [
            _input(roles, values, f"{name} row {number}")
            for number, values in enumerate(self.kept(roles.wanted), start=self._before + 1)
        ]

    def kept(self, names: Sequence[str]) -> list[dict[str, object]]:
        """Every row has all columns."""
        columns = [self._values(name) for name in names]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)] or [
            {} for _ in range(len(self))
        ]

    def column(self, name: str) -> Any:
        """A chunked array of pyarrow, decoded if a dictionary codes it."""
        column = self._table.column(name)
        return column.cast(_plain_type(column.type))

    def _values(self, name: str) -> list[object]:
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


def arrow_for(purpose: str = "Parquet") -> Any:
    """pyarrow, which is of the extra `store`; raises MissingExtra."""
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtra("pyarrow", "store", purpose) from None
    return importlib.import_module("pyarrow")


def schema_of_words(columns: Mapping[str, Word]) -> Any:
    """The schema of columns that hold these; what Parquet has no plain type for is JSON in a string."""
    arrow = arrow_for("writing Parquet")
    types = {"bool": arrow.bool_(), "int": arrow.int64(), "float": arrow.float64()}
    return arrow.schema([arrow.field(name, types.get(word, arrow.string())) for name, word in columns.items()])


def values_of(array: Any) -> list[object]:
    """One a row. Durations, times finer than Python's, and dates out of its range are texts.

    A time zone that this machine does not know is UTC; bytes of a text that are not UTF-8 are lone surrogates. Raises
    ValueError for a struct with two fields of one name.
    """
    arrow, types, kind = arrow_for(), arrow_for().types, array.type
    if types.is_dictionary(kind):
        return values_of(array.dictionary_decode())
    if types.is_duration(kind):
        counts, unit = array.cast(arrow.int64()).to_pylist(), UNITS[kind.unit]
        return [None if count is None else _duration(count, unit) for count in counts]
    if types.is_temporal(kind) and not types.is_interval(kind):
        return _times(array)
    if types.is_struct(kind):
        return _structs(array)
    if types.is_map(kind):
        return _maps(array)
    if types.is_nested(kind) and not types.is_union(kind):
        return _lists(array)
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        texts = array.cast(arrow.large_binary()).to_pylist()
        return [None if text is None else text.decode("utf-8", "surrogateescape") for text in texts]


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


def _input(roles: Roles, values: Mapping[str, object], where: str) -> RowInput | BadValue:
    try:
        if longest := too_long(values.values()):
            raise BadValue(
                f"{where}: a text is too long", got=f"{longest:,} characters", allowed=LONGEST_TEXT, do=SHORTEN
            )
        return roles.row_input(values, where=where, from_cells=False)
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
        values = [None if is_null(value) else cell_text(value) for value in values]
    return arrow.array(values, kind)


def _type_of(column: AddedColumn) -> Any:
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


def _cell(column: AddedColumn, value: object) -> object:
    return cell_text(value) if column.form == "json" and value is not None else value


def _times(array: Any) -> list[object]:
    """Dates and times; those that Python has not are spelt by pyarrow, `10000-01-01`."""
    arrow, kind = arrow_for(), array.type
    if getattr(kind, "tz", None) is not None and not _is_known(kind):
        array = array.cast(arrow.timestamp(kind.unit, "UTC"))
    if getattr(kind, "unit", None) == "ns":
        return list(array.cast(arrow.string()).to_pylist())
    try:
        return list(array.to_pylist())
    except (ValueError, OverflowError):
        return [_time(array.slice(at, 1)) for at in range(len(array))]


def _time(array: Any) -> object:
    try:
        return array.to_pylist()[0]
    except (ValueError, OverflowError):
        return array.cast(arrow_for().string()).to_pylist()[0]


def _is_known(kind: Any) -> bool:
    """Whether both pyarrow and Python know the time zone."""
    arrow = arrow_for()
    first = arrow.array([0], kind)
    try:
        first.cast(arrow.string())
        first.cast(arrow.timestamp("s", kind.tz)).to_pylist()
    except ValueError:
        return False
    return True


def _structs(array: Any) -> list[object]:
    names = [field.name for field in array.type]
    if len(set(names)) < len(names):
        raise ValueError(f"a struct has two fields of one name: {', '.join(names)}")
    fields = [values_of(field) for field in array.flatten()]
    return [
        {name: field[at] for name, field in zip(names, fields, strict=True)} if is_there else None
        for at, is_there in enumerate(array.is_valid().to_pylist())
    ]


def _maps(array: Any) -> list[object]:
    """Lists of pairs: keys may be anything, and repeat."""
    places = array.offsets.to_pylist() or [0]
    first, inner = places[0], slice(places[0], places[-1])
    pairs = list(zip(values_of(array.keys[inner]), values_of(array.items[inner]), strict=True))
    return [
        pairs[places[at] - first : places[at + 1] - first] if is_there else None
        for at, is_there in enumerate(array.is_valid().to_pylist())
    ]


def _lists(array: Any) -> list[object]:
    inner = iter(values_of(array.flatten()))
    lengths = importlib.import_module("pyarrow.compute").list_value_length(array).to_pylist()
    return [None if length is None else list(islice(inner, length)) for length in lengths]


def _duration(count: int, digits: int) -> str:
    """A duration of ISO 8601 in days and seconds, to the last digit: `P1DT3661.5S`."""
    seconds, part = divmod(abs(count), 10**digits)
    days, seconds = divmod(seconds, 24 * 60 * 60)
    fraction = f".{part:0{digits}d}".rstrip("0") if part else ""
    time = f"T{seconds}{fraction}S" if seconds or part else ""
    return f"{'-' if count < 0 else ''}P{f'{days}D' if days or not time else ''}{time}"
