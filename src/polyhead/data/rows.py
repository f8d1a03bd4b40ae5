"""Rows of a file: JSON, CSV, TSV, xlsx, Parquet, sets of the `datasets` library, and formats of annotated texts."""

from __future__ import annotations

import csv
import io
import json
import os
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, BinaryIO, TextIO

from polyhead.data.formats import AnnotationFormat, RecordFormat, dialect, documents, sheets
from polyhead.data.formats.argilla import ENDS_OF_COLUMNS
from polyhead.data.formats.base import file_format, record_format
from polyhead.data.formats.hub import DATASETS as DATASETS
from polyhead.data.formats.hub import dataset_rows, parquet_rows
from polyhead.data.formats.label_studio import SHORT
from polyhead.data.formats.lines import bad_row, unpacked
from polyhead.errors import BadValue, DataError, EmptyData
from polyhead.files import open_plain
from polyhead.tasks.limits import LONGEST_LINE, MOST_VALUES, SHORTEN, lines_of, too_long, too_many_values
from polyhead.text.prefix import LONGEST_TEXT
from polyhead.text.tokenize import lone_surrogates
from polyhead.values import Value

PACKABLE = (".jsonl", ".json", ".csv", ".tsv")  # which are read packed with gzip too
FORMATS = (
    *(form + packed for form in PACKABLE for packed in ("", ".gz")),
    ".xlsx",
    ".parquet",
    f"{DATASETS}ID[/config][:split]",
)
OTHERS = (".conll", ".conllu", ".iob", ".bio", ".spacy", "lines with __label__", "a folder of texts")
# Characters of one CSV cell: all that a quote which is never closed can swallow. The csv module's own limit is 131,072.
CELL_LIMIT = LONGEST_TEXT
HEAD = 2**12  # bytes from which a format of annotated texts is known
UTF_16 = ("\udcff\udcfe", "\udcfe\udcff")  # how a file of UTF-16 begins, as bytes that are not UTF-8 come out


class Row(Value):
    """One row: its number, from 1 (the line of a JSONL file, else the record), and its values by column."""

    number: int
    values: Mapping[str, object]


class _Lines:
    """The lines of a file, of which some can be given back."""

    def __init__(self, file: TextIO, *, has_escapes: bool, tabs: bool) -> None:
        self.taken: list[str] = []  # since it was last cleared
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
        """All that were taken but the first come again."""
        self._back.extendleft(reversed(self.taken[1:]))


class Rows:
    """The rows of one file, in order. `columns` holds the columns met so far, all of them after the last row.

    Iterating raises BadValue with the row's number for a row that cannot be read, DataError for a file that
    cannot.
    """

    def __init__(self, path: str, wanted: Sequence[str]) -> None:
        self.path = path
        self.wanted = tuple(wanted)  # columns to read, where a format can leave others unread
        self.columns: dict[str, None] = {}
        self.form: AnnotationFormat | None = None  # of annotated texts, from the first row on
        name = path.lower().removesuffix(".gz")
        self.has_cells = name.endswith((".csv", ".tsv", ".xlsx"))  # every value is a string

    def __iter__(self) -> Iterator[Row]:
        for row in self.each():
            if isinstance(row, BadValue):
                raise row
            yield row

    def each(self) -> Iterator[Row | BadValue]:
        """The rows, with the error in the place of one that cannot be read; still raises DataError."""
        for row in self._each():
            longest = None if isinstance(row, BadValue) else too_long(row.values.values())
            if isinstance(row, BadValue) or longest is None:
                yield row
            else:
                yield self._bad("a text is too long", f"{longest:,} characters", row.number, SHORTEN, LONGEST_TEXT)

    def _each(self) -> Iterator[Row | BadValue]:
        if self.path.startswith(DATASETS):
            yield from self._of_table(self._numbered(dataset_rows(self.path, self._begin)))
            return
        name = self.path.lower()
        bare = name.removesuffix(".gz")
        try:
            form = file_format(self.path, self._head())
            if form is not None:
                self.form = form
                yield from self._of_file(form.rows(self.path))
            elif bare.endswith((".jsonl", ".json")):
                yield from self._json()
            elif bare.endswith((".csv", ".tsv")):
                yield from self._of_table(self._cells())
            elif name.endswith(".xlsx"):
                yield from self._sheet()
            elif name.endswith(".parquet"):
                yield from self._of_table(self._numbered(parquet_rows(self.path, self._begin)))
            else:
                what = f"the format of {self.path} is not known by its name"
                raise DataError(
                    what, allowed=(*FORMATS, *OTHERS), do="name it as what it is: a table with any separator as .csv"
                )
        except FileNotFoundError:
            raise DataError(f"no file at {self.path}", do="give the path of a file that exists") from None
        except (OSError, EOFError, zlib.error) as error:  # gzip reports a damaged file by any of them
            raise DataError(f"cannot read {self.path}", got=error, do="restore the file") from None

    def _head(self) -> bytes:
        if os.path.isdir(self.path):
            return b""
        with unpacked(self.path) as file:
            return file.read(HEAD)

    def _begin(self, names: list[str]) -> list[str]:
        """The columns to read of those that are there: of an export all, as they belong together."""
        self._check_once(names, f"the schema of {self.path}", "write it again with a name for each")
        self.columns.update(dict.fromkeys(names))
        is_export = any(name.endswith(ENDS_OF_COLUMNS) for name in names)
        return [name for name in names if is_export or name in self.wanted]

    def _numbered(self, rows: Iterable[dict[str, object]]) -> Iterator[Row]:
        for number, values in enumerate(rows, start=1):
            yield Row(number=number, values=values)

    def _of_file(self, rows: Iterable[tuple[int, dict[str, object]] | BadValue]) -> Iterator[Row | BadValue]:
        for each in rows:
            if isinstance(each, BadValue):
                yield each
            else:
                self.columns.update(dict.fromkeys(each[1]))
                yield Row(number=each[0], values=each[1])

    def _json(self) -> Iterator[Row | BadValue]:
        """A row for each value: of an array, of what else lists records, or of the lines; or as its format has it."""
        with unpacked(self.path) as file:
            document = documents.document_in(file, self.path)
            head = documents.head_of_lines(file) if document is None else document
            form, is_lines = record_format(head), document is None
            values = self._lines(file) if document is None else enumerate(document, start=1)
            del document, head
            yield from self._plain(values, is_lines) if form is None else self._of_records(form, values)

    def _plain(self, values: Iterable[tuple[int, object] | BadValue], is_lines: bool) -> Iterator[Row | BadValue]:
        for each in values:
            if isinstance(each, BadValue):
                yield each
            elif isinstance(each[1], dict):
                self.columns.update(dict.fromkeys(each[1]))
                yield Row(number=each[0], values=each[1])
            else:
                do = (
                    'write {"column": value, ...}; of a frame frame.to_json("rows.jsonl", orient="records", lines=True)'
                )
                what = "the line is not a JSON object" if is_lines else "it is not a JSON object"
                yield self._bad(what, each[1], each[0], do)

    def _of_records(
        self, form: RecordFormat, values: Iterable[tuple[int, object] | BadValue]
    ) -> Iterator[Row | BadValue]:
        self.form, count = form, 0
        for each in values:
            if isinstance(each, BadValue):
                yield each
                continue
            number, record = each
            try:
                for row in form.rows(record):
                    count += 1
                    self.columns.update(dict.fromkeys(row))
                    yield Row(number=count if form.many else number, values=row)
            except BadValue as error:
                number = count + 1 if form.many else number
                yield error.at(f"{os.path.basename(self.path)} row {number}", source=self.path, row=number)
            except (AttributeError, KeyError, TypeError, ValueError):
                what = f"the record is not as {form.name} writes it"
                yield self._bad(what, record, number, "export the records again, or remove this one")

    def _of_table(self, rows: Iterator[Row | BadValue]) -> Iterator[Row | BadValue]:
        """The rows of a table, or what it says as a tool of annotation saved it, of which its columns tell."""
        head = list(islice(rows, 1))
        if not any(name in SHORT or name.endswith(ENDS_OF_COLUMNS) for name in self.columns):
            yield from chain(head, rows)
            return
        head += islice(rows, documents.HEAD_RECORDS)
        form = record_format([dict(row.values) for row in head if isinstance(row, Row)])
        if form is None:
            yield from chain(head, rows)
            return
        self.columns.clear()
        values = ((row if isinstance(row, BadValue) else (row.number, dict(row.values))) for row in chain(head, rows))
        yield from self._of_records(form, values)

    def _lines(self, file: BinaryIO) -> Iterator[tuple[int, object] | BadValue]:
        """The values of JSON Lines with the numbers of their lines."""
        for number, line in _lines(file):
            if line is None:
                what, allowed = "the line is too long", f"{LONGEST_LINE:,} bytes"
                yield self._bad(what, f"more than {allowed}", number, SHORTEN, allowed)
                continue
            try:
                text = self._utf8(line, number)
                if text.strip():
                    yield number, self._value(text, number)
            except BadValue as error:
                yield error

    def _utf8(self, line: bytes, number: int) -> str:
        try:
            return line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise self._bad("the line is not UTF-8", error, number, "save the file as UTF-8") from None

    def _value(self, text: str, number: int) -> object:
        if too_many_values(text):
            raise self._bad("the line holds too many values", None, number, SHORTEN, f"{MOST_VALUES:,}")
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._bad("the line is not JSON", error, number, "fix the line") from None

    def _cells(self) -> Iterator[Row | BadValue]:
        csv.field_size_limit(max(csv.field_size_limit(), CELL_LIMIT))
        # In TSV files a quote is a plain character, as the registered text/tab-separated-values says.
        tabs = self.path.lower().removesuffix(".gz").endswith(".tsv")
        style: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        sample, is_whole = ("", True) if tabs else self._sample()
        if not tabs:
            style = {"delimiter": dialect.delimiter_of(sample, is_whole=is_whole), "strict": True}
        has_escapes = self._has_escapes(tabs=tabs)
        style |= {"escapechar": "\\"} if has_escapes else {}
        # Bytes that are not UTF-8 come out as lone surrogates, so that their record can be named.
        with (
            unpacked(self.path) as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="") as file,
        ):
            if dialect.SAID.match(sample):
                file.readline()
            lines = _Lines(file, has_escapes=has_escapes, tabs=tabs)
            records = self._records(csv.reader(lines, **style), lines)
            header = next(records, None)
            if header is None:
                return
            if isinstance(header, BadValue):
                raise header
            self._check_header(header)
            self.columns.update(dict.fromkeys(header))
            for number, record in enumerate(records, start=1):
                yield record if isinstance(record, BadValue) else self._by_column(header, record, number)

    def _has_escapes(self, *, tabs: bool) -> bool:
        with unpacked(self.path) as file:
            return dialect.has_escapes(file, tabs=tabs)

    def _sample(self) -> tuple[str, bool]:
        """How the file begins, and whether that is all of it."""
        with unpacked(self.path) as file:
            sample = file.read(dialect.SAMPLE + 1)
        text = sample[: dialect.SAMPLE].decode("utf-8-sig", errors="replace")
        return text, len(sample) <= dialect.SAMPLE

    def _sheet(self) -> Iterator[Row | BadValue]:
        with open_plain(self.path) as file:
            records = sheets.records_of(file, self.path)
            header = next(records, [])
            self._check_once(header, f"the header of {self.path}", "fix the first row")
            self.columns.update(dict.fromkeys(header))
            for number, record in enumerate(records, start=1):
                yield self._by_column(header, record, number)

    def _records(self, reader: Iterator[list[str]], lines: _Lines) -> Iterator[list[str] | BadValue]:
        """Records that are not blank, the error in the place of one that is not CSV; number 0 is the header.

        Of what a quote swallows that is never closed the first line alone is lost. Where there is one column, a blank
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
                record = self._bad("the record is not CSV", error, number + blank, "fix its quotes")
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

    def _escaped(self, record: str, number: int) -> BadValue:
        return self._bad(
            "a backslash escapes what follows it, as databases write tables",
            record,
            number,
            "write the table again without escapes, in CSV with quotes doubled, or as JSON Lines; "
            f"`polyhead check {os.path.basename(self.path)}` lists every such row",
            'quotes inside a cell as "" (RFC 4180); a cell \\N is no value',
        )

    def _check_header(self, header: list[str]) -> None:
        what = f"the header of {self.path}"
        if any(map(lone_surrogates, header)):
            got = "UTF-16" if header[0].startswith(UTF_16) else header
            raise DataError(f"{what} is not UTF-8", got=got, do="save the file as UTF-8")
        self._check_once(header, what, "fix the first line")

    def _check_once(self, names: Sequence[str], what: str, do: str) -> None:
        """Raises DataError where two columns have one name: nobody knows which is meant. Some may have none."""
        counts = Counter(name for name in names if name)
        if twice := [name for name, count in counts.items() if count > 1]:
            raise DataError(f"{what} has two columns of one name", got=twice, do=do)

    def _by_column(self, header: list[str], record: list[str], number: int) -> Row | BadValue:
        if len(record) != len(header):
            do = "quote cells that hold the delimiter or a line end"
            got = f"{len(record)} cells, where the header has {len(header)}"
            return self._bad("the record has another number of cells than the header", got, number, do)
        if any(map(lone_surrogates, record)):
            return self._bad("the record is not UTF-8", record, number, "save the file as UTF-8")
        cells = (None if cell == dialect.NULL else cell for cell in record)
        return Row(number=number, values=dict(zip(header, cells, strict=True)))

    def _bad(self, what: str, got: object, number: int, do: str, allowed: object = None) -> BadValue:
        return bad_row(self.path, number, what, got=got, allowed=allowed, do=do)


def no_rows(path: str) -> EmptyData:
    """The error for a file that holds no row at all."""
    return EmptyData(f"no rows in {path}", do="give a file with rows, and with a header if it is CSV")


def lines_in(block: bytes) -> list[bytes]:
    """The lines, without their ends, of bytes that hold LF at their end alone: each line ends in LF, CR LF or CR."""
    return block.removesuffix(b"\n").removesuffix(b"\r").split(b"\r")


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines that end in LF, CR LF or CR; a string of JSON can hold none of them. None: it is too long."""
    number = 0
    for block in lines_of(file):
        for line in [None] if block is None else lines_in(block):
            number += 1
            yield number, line
