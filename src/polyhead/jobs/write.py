"""Rows with their answers as bytes: a piece at a time, then all pieces as one file."""

from __future__ import annotations

import csv
import gzip
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from polyhead.jobs.answers import AddedColumn
from polyhead.jobs.source import Chunk
from polyhead.text.tokenize import repair


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


class _Lines(Writer):
    """Formats whose pieces follow each other as they are; packed where the file's name says so."""

    def __init__(self, kept: Sequence[str], columns: Sequence[AddedColumn], *, packed: bool) -> None:
        super().__init__(kept, columns)
        self._packed = packed

    def piece(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> bytes:
        """Lines without the head."""
        return self._bytes(self.lines(chunk, answers))

    def whole(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The head, then the pieces' bytes."""
        if head := self.head():
            yield self._bytes([head])
        yield from pieces

    @abstractmethod
    def lines(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> list[bytes]:
        """A line a row, with its end."""

    def head(self) -> bytes:
        """What stands above all rows."""
        return b""

    def _bytes(self, lines: Sequence[bytes]) -> bytes:
        whole = b"".join(lines)
        return gzip.compress(whole, mtime=0) if self._packed else whole


class JsonWriter(_Lines):
    """A JSON object a line; numbers that are not finite are null."""

    def lines(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> list[bytes]:
        """Objects: what is kept, then the answers."""
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
        """The header."""
        return _record([*self.kept, *(column.name for column in self.columns)])

    def lines(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> list[bytes]:
        """Records."""
        rows = zip(chunk.kept(self.kept), answers, strict=True)
        return [_record([*(cell_of(row.get(n)) for n in self.kept), *map(cell_of, cs)]) for row, cs in rows]


def text_of(value: object) -> str:
    """A string as it is, anything else as JSON."""
    if isinstance(value, str):
        return repair(value)
    text = _json(value).decode()
    return str(msgspec.json.decode(text)) if text.startswith('"') else text  # a date, or bytes in base64


def cell_of(value: object) -> str:
    """The same, and null as nothing."""
    return "" if is_null(value) else text_of(value)


def is_null(value: object) -> bool:
    """Whether JSON has null for it: numbers that are not finite are none there."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def writable(value: object) -> object:
    """A value of JSON as it is, but for lone surrogates, which no UTF-8 file can hold: they are replaced."""
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


class _Last:
    """Keeps the record that a csv writer wrote last."""

    text = ""

    def write(self, text: str) -> None:
        self.text = text


def _record(cells: Sequence[str]) -> bytes:
    """A record that ends in LF; cells that hold CR or LF are quoted, for which the csv module needs both as the end."""
    last = _Last()
    csv.writer(last, lineterminator="\r\n").writerow(cells)
    return last.text.removesuffix("\r\n").encode() + b"\n"
