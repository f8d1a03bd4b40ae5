"""The separator of a CSV file's columns, and whether it uses backslash escapes, as databases write tables."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import BinaryIO

SEPARATORS = (",", ";", "\t", "|", "^", "~", "\x1f", "\x01")
SAMPLE = 2**16  # bytes from the beginning of a file
RECORDS = 50  # after the header
SAID = re.compile(r"\ufeff?\"?sep=(.)\"?(?:\r\n|\r|\n)")  # a first line in which spreadsheets declare the separator

NULL = "\\N"  # databases' cell for a missing value
_MARKS = re.escape("".join(SEPARATORS))
_NULL_CELL = re.compile(rf"[{_MARKS}\r\n]\\N[{_MARKS}\r\n]".encode())
_INNER_QUOTE = re.compile(rf'\\"[^"{_MARKS}\r\n]'.encode())  # inside a cell, and not doubled
# characters after an escaping backslash: in cells with quotes, with tabs
_ESCAPED = {False: r'["\\\r\n]', True: r"[\t\\\r\ntnr]"}
_PLAIN = {tabs: re.compile(rf"\\(?!{marks})") for tabs, marks in _ESCAPED.items()}
_ESCAPE = {tabs: re.compile(rf"\\{marks}") for tabs, marks in _ESCAPED.items()}
_BLOCK, _OVERLAP = 2**20, 4  # bytes


def has_escapes(file: BinaryIO, *, tabs: bool = False) -> bool:
    """Whether backslashes may be escapes in the table: a cell is NULL, or a backslash precedes a quote in a cell."""
    kept, block = b"\n", b"begin"
    while block:
        block = file.read(_BLOCK)
        part = kept + (block or b"\n")
        if b"\\" in part and (_NULL_CELL.search(part) or (not tabs and _INNER_QUOTE.search(part))):
            return True
        kept = part[-_OVERLAP:]
    return False


def with_plain_backslashes(line: str, *, tabs: bool = False) -> str:
    """The line for a reader that treats backslashes as escapes, so that a backslash which escapes nothing is kept."""
    return _PLAIN[tabs].sub(r"\\\\", line) if "\\" in line else line


def is_escaped(record: str, *, tabs: bool = False) -> bool:
    """Whether the lines of a record hold a backslash before a quote, a line end or another backslash."""
    return "\\" in record and _ESCAPE[tabs].search(record) is not None


def delimiter_of(sample: str, *, is_whole: bool) -> str:
    """The separator of a table with this beginning; `is_whole` if nothing follows the sample.

    It splits the header into several cells, and at least half of the first records into as many. A comma is preferred;
    then the separator that splits the header into most cells. A table of one column counts as comma-separated. A first
    line such as `sep=;` overrides all of this.
    """
    if (declared := SAID.match(sample)) is not None:
        return declared[1]
    widths = {mark: _widths(sample, mark, is_whole=is_whole) for mark in SEPARATORS}
    fitting = [mark for mark, cells in widths.items() if cells and cells[0] > 1 and _agree(cells)]
    if not fitting or "," in fitting:
        return ","
    return max(fitting, key=lambda mark: widths[mark][0])


def _agree(widths: Sequence[int]) -> bool:
    return 2 * widths.count(widths[0]) - 1 > len(widths) // 2


def _widths(sample: str, mark: str, *, is_whole: bool) -> list[int]:
    """Numbers of cells of the header and of the first non-blank records; empty if the header cannot be read."""
    widths: list[int] = []
    reader = csv.reader(io.StringIO(sample, newline=""), delimiter=mark, strict=True)
    try:
        for record in reader:
            if record:
                widths.append(len(record))
            if len(widths) > RECORDS:
                return widths
    except csv.Error:
        return widths
    return widths if is_whole or len(widths) < 2 else widths[:-1]
