"""Rows of a file in chunks: read in any format from any row on, and written with their answers, a piece at a time.

Lines of JSON, CSV and TSV are here; tables of Parquet are in `parquet`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from polyhead.data.rows import Row, Rows
from polyhead.errors import BadValue, DataError
from polyhead.store.jobs.columns import AddedColumn, Met, Roles, RowInput, Survey, joint_word, word_of
from polyhead.text.tokenize import lone_surrogates, repair

SHOW_EVERY = 100_000  # rows
Show = Callable[[str], None]


class Chunk(ABC):
    """Consecutive rows."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def inputs(self, roles: Roles) -> list[RowInput | BadValue]:
        """The input of each row, or the error of a row without one."""

    @abstractmethod
    def kept(self, names: Sequence[str]) -> list[dict[str, object]]:
        """The values of these columns, row by row; a row may lack some."""

    @abstractmethod
    def column(self, name: str) -> Any:
        """The values of one column, a list or an array of pyarrow; None where a row has none."""


class RowSource(ABC):
    """A file to read."""

    def __init__(self, path: str) -> None:
        self.path = path

    @abstractmethod
    def survey(self, show: Show) -> Survey:
        """Its rows and columns. Raises DataError for a file that cannot be read."""

    @abstractmethod
    def chunks(self, wanted: Sequence[str], *, start: int, size: int) -> Iterator[Chunk]:
        """These columns of the rows from `start` on, `size` at a time; no more are held."""

    def schema(self, names: Sequence[str]) -> Any:
        """These columns as a schema of pyarrow; None if the file has no types beyond those that its survey found."""
        return None


class Writer(ABC):
    """Writes kept and added columns in one format. Equal rows give equal bytes."""

    def __init__(self, kept: Sequence[str], columns: Sequence[AddedColumn]) -> None:
        self.kept, self.columns = tuple(kept), tuple(columns)

    @abstractmethod
    def piece(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> bytes:
        """A chunk with the cells of `columns` of each of its rows."""

    @abstractmethod
    def whole(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The file that these pieces make."""


class RowChunk(Chunk):
    """Rows of JSON Lines, CSV or TSV."""

    def __init__(self, rows: Sequence[Row | BadValue], path: str, *, from_cells: bool) -> None:
        self._rows, self._name, self._from_cells = rows, Path(path).name, from_cells

    def __len__(self) -> int:
        return len(self._rows)

    def inputs(self, roles: Roles) -> list[RowInput | BadValue]:
        """A row that could not be read has no input, and its error says why."""
        return [row if isinstance(row, BadValue) else self._input(roles, row) for row in self._rows]

    def _input(self, roles: Roles, row: Row) -> RowInput | BadValue:
        try:
            return roles.row_input(row.values, where=f"{self._name} row {row.number}", from_cells=self._from_cells)
        except BadValue as error:
            return error

    def kept(self, names: Sequence[str]) -> list[dict[str, object]]:
        """A row has the columns that its line has; one that could not be read has none."""
        chosen = frozenset(names)
        return [
            {} if isinstance(row, BadValue) else {n: v for n, v in row.values.items() if n in chosen}
            for row in self._rows
        ]

    def column(self, name: str) -> list[object]:
        """A list; None in a row that could not be read."""
        return [None if isinstance(row, BadValue) else row.values.get(name) for row in self._rows]


class RowFile(RowSource):
    """A file of JSON Lines, CSV or TSV, each also packed."""

    def survey(self, show: Show) -> Survey:
        """Reads the whole file; a cell holds text."""
        rows, count = Rows(self.path, ()), 0
        words: dict[str, set[Met]] = {}
        fault: BadValue | None = None
        for row in _each(rows):
            count += 1
            if count % SHOW_EVERY == 0:
                show(f"looking at {Path(self.path).name}: {count:,} rows")
            if isinstance(row, BadValue):
                fault = fault or row
            elif not rows.has_cells:
                for name, value in row.values.items():
                    words.setdefault(name, set()).add(word_of(value))
        if rows.has_cells:
            words = {name: {"text"} for name in rows.columns}
        if fault is not None and not words:
            raise DataError(f"no row of {self.path} can be read", got=fault, do="give another file")
        return Survey(rows=count, columns={name: joint_word(types) for name, types in words.items()})

    def chunks(self, wanted: Sequence[str], *, start: int, size: int) -> Iterator[Chunk]:
        """The rows before `start` are read too, and dropped."""
        rows = Rows(self.path, wanted)
        remaining = islice(_each(rows), start, None)
        while rows_read := list(islice(remaining, size)):
            yield RowChunk(rows_read, self.path, from_cells=rows.has_cells)


def _each(rows: Rows) -> Iterator[Row | BadValue]:
    """The rows; in place of one that cannot be read, or has a column whose name is no text, the error."""
    for row in rows.each():
        if isinstance(row, Row) and any(map(lone_surrogates, row.values)):
            yield BadValue(
                f"{Path(rows.path).name} row {row.number}: a column's name is no text",
                got=list(row.values),
                do="write lone surrogates as they were meant",
            )
        else:
            yield row


class _Lines(Writer):
    """Formats of one line a row, whose pieces follow each other as they are, under a head; packed with gzip or not."""

    def __init__(self, kept: Sequence[str], columns: Sequence[AddedColumn], *, packed: bool) -> None:
        super().__init__(kept, columns)
        self._packed = packed

    def piece(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> bytes:
        return self._bytes(self.lines(chunk, answers))

    def whole(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        if head := self.head():
            yield self._bytes([head])
        yield from pieces

    @abstractmethod
    def lines(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> list[bytes]:
        """A line a row, with its end."""

    def head(self) -> bytes:
        """The line above all rows; none here."""
        return b""

    def _bytes(self, lines: Sequence[bytes]) -> bytes:
        whole = b"".join(lines)
        return gzip.compress(whole, mtime=0) if self._packed else whole


class JsonWriter(_Lines):
    """A JSON object a line; numbers that are not finite are null."""

    def lines(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> list[bytes]:
        """An object a row: kept columns, then the answers."""
        lines_out = []
        for row, cells in zip(chunk.kept(self.kept), answers, strict=True):
            for column, cell in zip(self.columns, cells, strict=True):
                if cell is not None or not column.sparse:
                    row[column.name] = cell
            lines_out.append(_json(row) + b"\n")
        return lines_out


class CsvWriter(_Lines):
    """Comma-separated values under a header; null is an empty cell, lists and objects are JSON."""

    def head(self) -> bytes:
        """The names of all columns."""
        return _record([*self.kept, *(column.name for column in self.columns)])

    def lines(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> list[bytes]:
        """A record a row."""
        rows = zip(chunk.kept(self.kept), answers, strict=True)
        return [_record([*(cell_of(row.get(n)) for n in self.kept), *map(cell_of, cs)]) for row, cs in rows]


def cell_text(value: object) -> str:
    """A string as it is, anything else as JSON."""
    if isinstance(value, str):
        return repair(value)
    text = _json(value).decode()
    return str(msgspec.json.decode(text)) if text.startswith('"') else text  # a date, or bytes in base64


def cell_of(value: object) -> str:
    """A cell of CSV: `cell_text` the value, and nothing for null."""
    return "" if is_null(value) else cell_text(value)


def is_null(value: object) -> bool:
    """Whether JSON writes the value as null, as it does numbers that are not finite."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def utf8_value(value: object) -> object:
    """A value of JSON with lone surrogates replaced, as no UTF-8 file can hold them."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return _repaired(value)
    return value


def _json(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_repaired(value))


def _repaired(value: object) -> object:
    try:
        return _each_repaired(value)
    except RecursionError:  # what json can read it can write
        return json.loads(repair(json.dumps(value, ensure_ascii=False)))


def _each_repaired(value: object) -> object:
    if isinstance(value, str):
        return repair(value)
    if isinstance(value, list):
        return [_each_repaired(item) for item in value]
    if isinstance(value, dict):
        return {repair(key): _each_repaired(item) for key, item in value.items()}
    return value


def _record(cells: Sequence[str]) -> bytes:
    """A record that ends in LF; cells that hold CR or LF are quoted, for which the csv module needs both as the end."""
    record = io.StringIO(newline="")
    csv.writer(record, lineterminator="\r\n").writerow(cells)
    return record.getvalue().removesuffix("\r\n").encode() + b"\n"
