"""Rows of a table from any source: a file of any format, a folder, a hub data set, or memory."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from polyhead.data.formats import AnnotationFormat, RecordFormat
from polyhead.data.formats.argilla import ENDS_OF_COLUMNS
from polyhead.data.formats.base import file_format, record_format
from polyhead.data.formats.label_studio import SHORT
from polyhead.data.formats.lines import bad_row, unpacked
from polyhead.data.tables import (
    TABLES,
    Chunk,
    Numbered,
    Row,
    Survey,
    TableFormat,
    file_endings,
    is_address,
    joint_word,
    table_format,
    word_of,
)
from polyhead.data.tables.documents import HEAD_RECORDS
from polyhead.errors import BadValue, DataError, EmptyData, PolyheadError
from polyhead.progress import Show
from polyhead.tasks.limits import SHORTEN, too_long
from polyhead.text.prefix import LONGEST_TEXT
from polyhead.text.tokenize import lone_surrogates

OTHERS = (".conll", ".conllu", ".iob", ".bio", ".spacy", "lines with __label__", "a folder of texts")
OTHER_SHEETS = (".xls", ".xlsb", ".ods")
HEAD = 2**12  # bytes examined to recognize a format of annotated texts
SHOW_EVERY = 100_000  # rows


class Rows:
    """The rows of one table, in order. `columns` holds the columns seen so far, all of them after the last row.

    Iterating raises BadValue with the row's number for a row that cannot be read, DataError for a file that
    cannot.
    """

    def __init__(self, path: str, wanted: Sequence[str] | None = None) -> None:
        """Opens the table; `wanted` are the columns to read, if the format can skip others; None: all."""
        self.path = path
        self.form: AnnotationFormat | None = None  # annotated texts, from the first row on
        known = table_format(path)
        self._table: TableFormat | None = known(path, wanted) if known else None
        self.columns: dict[str, None] = {} if self._table is None else self._table.columns
        self.has_cells = self._table is not None and self._table.has_cells
        self._known: Survey | None = None  # None: not read yet

    def __str__(self) -> str:
        return self.path

    def __iter__(self) -> Iterator[Row]:
        for row in self.each():
            if isinstance(row, BadValue):
                raise row
            yield row

    def each(self) -> Iterator[Row | BadValue]:
        """The rows, with an error in place of an unreadable row; still raises DataError."""
        for row in self._each():
            longest = None if isinstance(row, BadValue) else too_long(row.values.values())
            if isinstance(row, BadValue) or longest is None:
                yield row
            else:
                kept = {name: value for name, value in row.values.items() if too_long([value]) is None}
                problem, got = "a text is too long", f"{longest:,} characters"
                yield bad_row(self.path, row.number, problem, got=got, allowed=LONGEST_TEXT, do=SHORTEN, kept=kept)

    def survey(self, show: Show = lambda text: None) -> Survey:
        """The number of rows, and the columns with their types; the table is read for it once."""
        if self._known is None:
            known = None if self._table is None else self._table.survey()
            self._known = known or self._survey(show)
        return self._known

    def chunks(self, wanted: Sequence[str], *, start: int, size: int) -> Iterator[Chunk]:
        """These columns of the rows from `start` on, in chunks of `size` rows; only one chunk is in memory."""
        known = table_format(self.path)
        chunks = known(self.path, wanted).chunks(start, size) if known else None
        if chunks is not None:
            yield from chunks
            return
        rows = islice(Rows(self.path, wanted)._named(), start, None)
        while piece := list(islice(rows, size)):
            yield Chunk(piece, self.path, has_cells=self.has_cells)

    def schema(self, names: Sequence[str]) -> Any:
        """These columns as a schema of pyarrow; None if the table has no types beyond those of its survey."""
        return None if self._table is None else self._table.schema(names)

    def _each(self) -> Iterator[Row | BadValue]:
        if is_address(self.path):
            assert self._table is not None
            yield from self._of_table(self._table)
            return
        try:
            form = file_format(self.path, self._head())
            if form is not None:
                self.form = form
                yield from self._plain(form.rows(self.path))
            elif self._table is not None:
                yield from self._of_table(self._table)
            else:
                problem = f"the format of {self.path} is not known by its name"
                do = "name it as what it is: a table with any separator as .csv"
                if self.path.lower().endswith(OTHER_SHEETS):
                    do = "save it as .xlsx or .csv"
                raise DataError(problem, allowed=(*file_endings(), *_addresses(), *OTHERS), do=do)
        except FileNotFoundError:
            raise no_file(self.path) from None
        except (OSError, EOFError, zlib.error) as error:  # gzip may raise any of these for a damaged file
            raise DataError(f"cannot read {self.path}", got=error, do="restore the file") from None

    def _head(self) -> bytes:
        if os.path.isdir(self.path):
            return b""
        with unpacked(self.path) as file:
            return file.read(HEAD)

    def _of_table(self, table: TableFormat) -> Iterator[Row | BadValue]:
        """The rows of a table, converted if an annotation tool saved it."""
        head, values = table.head(), table.records()
        if head is None:
            first = list(islice(values, 1))
            if any(name in SHORT or name.endswith(ENDS_OF_COLUMNS) for name in self.columns):
                first += islice(values, HEAD_RECORDS)
                head = [each[1] for each in first if not isinstance(each, BadValue)]
            values = chain(first, values)
        form = record_format(head or [])
        del head
        if form is None:
            yield from self._plain(values)
            return
        self.columns.clear()
        yield from self._of_records(form, values)

    def _plain(self, values: Iterable[Numbered]) -> Iterator[Row | BadValue]:
        for each in values:
            if isinstance(each, BadValue):
                yield each
            elif isinstance(each[1], dict):
                self.columns.update(dict.fromkeys(each[1]))
                yield Row(number=each[0], values=each[1])
            else:
                by_pandas = 'frame.to_json("rows.jsonl", orient="records", lines=True)'
                do = f'write {{"column": value, ...}}; of a frame {by_pandas}'
                yield self._bad("the row is not a JSON object", each[1], each[0], do)

    def _of_records(self, form: RecordFormat, values: Iterable[Numbered]) -> Iterator[Row | BadValue]:
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
                problem = f"the record is not as {form.name} writes it"
                yield self._bad(problem, record, number, "export the records again, or remove this one")

    def _named(self) -> Iterator[Row | BadValue]:
        """The rows, with an error in place of a row that has a column name which is not a string."""
        for row in self.each():
            if isinstance(row, Row) and any(map(lone_surrogates, row.values)):
                do = "write lone surrogates as they were meant"
                yield self._bad("a column's name is no text", list(row.values), row.number, do)
            else:
                yield row

    def _survey(self, show: Show) -> Survey:
        rows, count, fault = Rows(self.path), 0, None
        words: dict[str, set[Any]] = {}
        for row in rows._named():
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

    def _bad(self, problem: str, got: object, number: int, do: str, allowed: object = None) -> BadValue:
        return bad_row(self.path, number, problem, got=got, allowed=allowed, do=do)


def open_file(path: str) -> Rows:
    """The rows of a plain file, which can be read again; raises DataError if it is missing or of an unknown format."""
    known = table_format(path)
    if not Path(path).exists():
        raise no_file(path)
    if not Path(path).is_file():
        raise DataError(f"{path} is no file", do="give a file: a job that was stopped reads it again")
    if known is None or known.address:
        problem = f"the format of {path} is not known by its name"
        raise DataError(problem, allowed=list(file_endings()), do="name it as what it is")
    return Rows(path)


def open_rows(path: Path | str | Rows) -> Rows:
    """Rows of a file or an address, or those that are open already; raises DataError for anything else."""
    if isinstance(path, Rows):
        return path
    return Rows(str(path)) if is_address(str(path)) else open_file(str(path))


def no_file(path: str) -> DataError:
    """The error for a missing file."""
    return DataError(f"no file at {path}", do="give the path of a file that exists")


def no_rows(path: str) -> EmptyData:
    """The error for a file without rows."""
    return EmptyData(f"no rows in {path}", do="give a file with rows, and with a header if it is CSV")


def first_columns(path: str) -> list[str]:
    """The columns of the first row; empty for an unreadable table."""
    rows = Rows(path, ())
    with suppress(PolyheadError):
        next(iter(rows), None)
    return list(rows.columns)


def _addresses() -> list[str]:
    return [f"{table.address}{table.place}" for table in TABLES.values() if table.place]
