"""CSV with any separator, and TSV; CSV is written too."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from polyhead.data.formats.lines import bad_row, unpacked
from polyhead.data.tables import dialect
from polyhead.data.tables.base import Chunk, Numbered, TableFormat, row_name
from polyhead.data.tables.written import LineWriter, is_null, text_of_cell
from polyhead.errors import BadValue, DataError
from polyhead.tasks.limits import LONGEST_LINE
from polyhead.text.prefix import LONGEST_TEXT
from polyhead.text.tokenize import lone_surrogates

# Maximum characters of one CSV cell: limits what an unclosed quote can swallow. The csv module's own limit is 131,072.
CELL_LIMIT = LONGEST_TEXT
ZIP = "PK\x03\x04"  # how a zip archive begins, such as a workbook
QUOTED = re.compile(r'^"([^"]*)"$')


class CsvWriter(LineWriter):
    """Comma-separated values under a header; null is an empty cell, lists and objects are JSON."""

    def head(self) -> bytes:
        """The names of all columns."""
        return record_bytes([*self.kept, *(column.name for column in self.columns)])

    def lines(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> list[bytes]:
        """One record per row."""
        rows = zip(chunk.kept(self.kept), answers, strict=True)
        return [record_bytes([*(_cell(row.get(n)) for n in self.kept), *map(_cell, cells)]) for row, cells in rows]


class Delimited(TableFormat):
    """Text between separators under a header; in TSV a quote is a plain character (as registered with IANA)."""

    name = "CSV"
    endings = (".csv", ".tsv")
    is_packable = has_cells = True
    written, writer = (".csv",), CsvWriter

    def records(self) -> Iterator[Numbered]:
        """The cells of each record by column."""
        csv.field_size_limit(max(csv.field_size_limit(), CELL_LIMIT))
        tabs = self.path.lower().removesuffix(".gz").endswith(".tsv")
        style: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        sample, is_whole = ("", True) if tabs else self._sample()
        if not tabs:
            style = {"delimiter": dialect.delimiter_of(sample, is_whole=is_whole), "strict": True}
        with unpacked(self.path) as raw:
            has_escapes = dialect.has_escapes(raw, tabs=tabs)
        style |= {"escapechar": "\\"} if has_escapes else {}
        # Invalid UTF-8 becomes lone surrogates, so that the record can be named.
        with (
            unpacked(self.path) as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="") as file,
        ):
            if dialect.SAID.match(sample):
                file.readline()
            lines = _Lines(file, has_escapes=has_escapes, tabs=tabs)
            records = self._records(csv.reader(lines, **style), lines, style["delimiter"])
            header = next(records, None)
            if header is None:
                return
            if isinstance(header, BadValue):
                raise header
            self._check_header(header)
            for number, record in enumerate(records, start=1):
                yield record if isinstance(record, BadValue) else self.by_column(header, record, number)

    def _sample(self) -> tuple[str, bool]:
        """The beginning of the file, and whether that is all of it."""
        with unpacked(self.path) as file:
            sample = file.read(dialect.SAMPLE + 1)
        text = sample[: dialect.SAMPLE].decode("utf-8-sig", errors="replace")
        return text, len(sample) <= dialect.SAMPLE

    def _records(self, reader: Iterator[list[str]], lines: _Lines, delimiter: str) -> Iterator[list[str] | BadValue]:
        """Non-blank records, with an error in place of a record that is not CSV; number 0 is the header.

        After an unclosed quote, only the first line of what it swallowed is lost. In a table of one column, a blank
        line is a row with an empty cell, unless nothing follows it.
        """
        number, width, blank = 0, 0, 0
        while True:
            lines.taken.clear()
            record: list[str] | BadValue | None
            try:
                record = next(reader, None)
            except csv.Error as error:
                lines.give_back()
                what, do, kept = "the record is not CSV", "fix its quotes", self._name_in(lines.taken, delimiter)
                record = bad_row(self.path, number + blank, what, got=error, do=do, kept=kept)
            if record is None:
                return
            if lines.has_escapes and dialect.is_escaped("".join(lines.taken), tabs=lines.tabs):
                record = self._escaped("".join(lines.taken).strip(), number + blank)
            if not record:
                blank += width == 1
                continue
            for _ in range(blank):
                yield [""]
            yield record
            number, blank = number + blank + 1, 0
            width = width or (len(record) if isinstance(record, list) else 0)

    def _name_in(self, lines: Sequence[str], delimiter: str) -> dict[str, str | None]:
        """The first cell of a record of broken quotes, if that names the row and its own quotes are whole."""
        cell, mark, _ = "".join(lines[:1]).partition(delimiter)
        cell = QUOTED.sub(r"\1", cell)
        return row_name([*self.columns], [cell]) if mark and '"' not in cell else {}

    def _escaped(self, record: str, number: int) -> BadValue:
        return self.bad(
            "a backslash escapes what follows it, as databases write tables",
            record,
            number,
            "write the table again without escapes, in CSV with quotes doubled, or as JSON Lines; "
            f"`polyhead check {os.path.basename(self.path)}` lists every such row",
            'quotes inside a cell as "" (RFC 4180); a cell \\N is no value',
        )

    def _check_header(self, header: list[str]) -> None:
        subject = f"the header of {self.path}"
        if any(map(lone_surrogates, header)):
            if header[0].startswith(ZIP):
                raise DataError(f"{self.path} is a zip archive and no text", do="name it .xlsx if it is a workbook")
            raise DataError(f"{subject} is not UTF-8", got=header, do="save the file as UTF-8")
        self.begin(header, subject, "fix the first line")


class _Lines:
    """The lines of a file, with the option to push some back."""

    def __init__(self, file: TextIO, *, has_escapes: bool, tabs: bool) -> None:
        self.taken: list[str] = []  # lines since the last clear
        self._file, self._back, self.has_escapes = file, deque[str](), has_escapes
        self.tabs = tabs

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._back.popleft() if self._back else self._read()
        self.taken.append(line)
        return dialect.with_plain_backslashes(line, tabs=self.tabs) if self.has_escapes else line

    def _read(self) -> str:
        line = self._file.readline(LONGEST_LINE)
        if not line:
            raise StopIteration
        if len(line) < LONGEST_LINE:
            return line
        while line and not line.endswith(("\n", "\r")):
            line = self._file.readline(2**20)
        raise csv.Error(f"a line of more than {LONGEST_LINE:,} characters")

    def give_back(self) -> None:
        """Pushes back all lines taken, except the first."""
        self._back.extendleft(reversed(self.taken[1:]))


def record_bytes(cells: Sequence[object]) -> bytes:
    """A record that ends in LF; cells with CR or LF are quoted, for which the csv module needs both as the line end."""
    record = io.StringIO(newline="")
    csv.writer(record, lineterminator="\r\n").writerow(cells)
    return record.getvalue().removesuffix("\r\n").encode("utf-8", "replace") + b"\n"


def _cell(value: object) -> str:
    return "" if is_null(value) else text_of_cell(value)
