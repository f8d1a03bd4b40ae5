"""Values as text for JSON and cells of CSV, and the base of formats that write one line per row."""

from __future__ import annotations

import gzip
import json
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from polyhead.data.tables.base import Chunk, Writer
from polyhead.text.tokenize import repair


class LineWriter(Writer):
    """Writes one line per row, after a head; gzip-compressed or not."""

    def piece(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> bytes:
        """The lines of a chunk."""
        return self._bytes(self.lines(chunk, answers))

    def whole(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The head, then the pieces unchanged."""
        if head := self.head():
            yield self._bytes([head])
        yield from pieces

    @abstractmethod
    def lines(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> list[bytes]:
        """One line per row, with its line end."""

    def head(self) -> bytes:
        """The line above all rows; empty here."""
        return b""

    def _bytes(self, lines: Sequence[bytes]) -> bytes:
        whole = b"".join(lines)
        return gzip.compress(whole, mtime=0) if self.packed else whole


def text_of_cell(value: object) -> str:
    """A string unchanged, anything else as JSON."""
    if isinstance(value, str):
        return repair(value)
    text = json_bytes(value).decode()
    return str(msgspec.json.decode(text)) if text.startswith('"') else text  # a date, or bytes in base64


def is_null(value: object) -> bool:
    """Whether JSON writes the value as null, which includes numbers that are not finite."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def without_surrogates(value: object) -> object:
    """A JSON value with lone surrogates replaced, since no UTF-8 file can hold them."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return _repaired(value)
    return value


def json_bytes(value: object) -> bytes:
    """The value as JSON, with lone surrogates replaced."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_repaired(value))


def _repaired(value: object) -> object:
    try:
        return _each_repaired(value)
    except RecursionError:  # the json module can write whatever it has read
        return json.loads(repair(json.dumps(value, ensure_ascii=False)))


def _each_repaired(value: object) -> object:
    if isinstance(value, str):
        return repair(value)
    if isinstance(value, list):
        return [_each_repaired(item) for item in value]
    if isinstance(value, dict):
        return {repair(key): _each_repaired(item) for key, item in value.items()}
    return value
