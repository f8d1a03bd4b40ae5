"""The numbered lines of a text file, compressed or not, in UTF-8 or UTF-16, and the JSON in them."""

from __future__ import annotations

import codecs
import gzip
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, BinaryIO, cast

from polyhead.arguments import twice_in
from polyhead.errors import BadValue, DataError
from polyhead.files import open_plain
from polyhead.tasks.limits import LONGEST_LINE, SHORTEN, lines_of

BLOCK = 2**16  # bytes
WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@contextmanager
def unpacked(path: str) -> Iterator[BinaryIO]:
    """The file, decompressed if its name ends in .gz, and as `in_utf8`."""
    with open_plain(path) as file:
        if not path.lower().endswith(".gz"):
            yield in_utf8(file)
            return
        with gzip.open(file, "rb") as inside:
            yield in_utf8(cast(IO[bytes], inside))


def in_utf8(file: IO[bytes]) -> BinaryIO:
    """The file; if it begins with a byte order mark of UTF-16, its text in UTF-8, which raises DataError at a fault.

    Raises DataError for UTF-32. Only buffered files are looked at.
    """
    start = file.peek(4)[:4] if isinstance(file, io.BufferedReader | gzip.GzipFile) else b""
    if start in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):
        raise DataError("the file is UTF-32", allowed=["UTF-8", "UTF-16"], do="save it as UTF-8")
    if start[:2] in WIDE:
        return io.BufferedReader(_Narrowed(cast(io.BufferedReader, file)))
    return cast(BinaryIO, file)


class _Narrowed(io.RawIOBase):
    """A file in UTF-16 as UTF-8; of places only the beginning can be sought."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self._restart()

    def _restart(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-16")("surrogatepass")
        self._ready, self._at = b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if (offset, whence) == (0, io.SEEK_SET):
            self._file.seek(0)
            self._restart()
        elif (offset, whence) != (0, io.SEEK_CUR):
            raise io.UnsupportedOperation("only the beginning can be sought")
        return self._at

    def readinto(self, buffer: Any) -> int:
        block = b"begin"
        while not self._ready and block:
            block = self._file.read1(BLOCK)  # of a pipe what has arrived
            try:
                text = self._decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                do = "save the file again, as UTF-8"
                raise DataError("the file is not whole UTF-16", got=error.reason, do=do) from None
            self._ready = text.encode("utf-8", "surrogatepass")  # which the reader of a row tells with its number
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        self._at += size
        return size


def text_lines(path: str) -> Iterator[tuple[int, str | BadValue]]:
    """Lines without their ends; an error in place of a line that is too long or not UTF-8."""
    with unpacked(path) as file:
        for number, line in enumerate(lines_of(file), start=1):
            if line is None:
                allowed = f"{LONGEST_LINE:,} bytes"
                got = f"more than {allowed}"
                yield number, bad_row(path, number, "the line is too long", got=got, allowed=allowed, do=SHORTEN)
                continue
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                yield number, bad_row(path, number, "the line is not UTF-8", got=error, do="save the file as UTF-8")


def strict_json(text: str) -> Any:
    """The value of a JSON text; raises ValueError if it is none, and DataError for an object that names a key twice.

    Other readers keep the last of the values. Lone surrogates stay.
    """
    return _DECODER.decode(text)


def check_each_key_once(text: str) -> None:
    """Raises what `strict_json` raises. No number is made a value, which would take most of the time."""
    _KEYS.decode(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = twice_in(key for key, _ in pairs)
        raise DataError("an object names a key twice", got=twice, allowed="each key once", do="keep one of the values")
    return value


def _unread(number: str) -> None:
    """Called for each number, so that other threads may run in between."""


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
_KEYS = json.JSONDecoder(object_pairs_hook=_object, parse_float=_unread, parse_int=_unread)


def bad_row(
    path: str,
    number: int,
    problem: str,
    *,
    got: object,
    do: str,
    allowed: object = None,
    kept: Mapping[str, object] = MappingProxyType({}),
) -> BadValue:
    """The error for one row of a file; `kept` are the values of the row that could be read, by column."""
    problem = f"{Path(path).name} row {number}: {problem}"
    return BadValue(problem, got=got, allowed=allowed, do=do, source=path, row=number, kept=dict(kept))
