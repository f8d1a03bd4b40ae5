"""Rows of a file: JSON Lines and arrays, CSV, TSV, xlsx, Parquet, and sets of the `datasets` library."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from polyhead.config import Value
from polyhead.errors import BadValue, DataError, EmptyData, MissingExtra
from polyhead.files import open_plain
from polyhead.tasks.formats import arrays, dialect, sheets
from polyhead.tasks.limits import LONGEST_LINE, MOST_VALUES, SHORTEN, check_packing, lines_of, too_long, too_many_values
from polyhead.text.prefix import LONGEST_TEXT
from polyhead.text.tokenize import lone_surrogates

DATASETS = "datasets:"  # begins the path of rows that come from a hub
PACKABLE = (".jsonl", ".json", ".csv", ".tsv")  # which are read packed with gzip too
FORMATS = (
    *(form + packed for form in PACKABLE for packed in ("", ".gz")),
    ".xlsx",
    ".parquet",
    f"{DATASETS}ID[/config][:split]",
)
# Characters of one CSV cell: all that a quote which is never closed can swallow. The csv module's own limit is 131,072.
CELL_LIMIT = LONGEST_TEXT
UTF_16 = ("\udcff\udcfe", "\udcfe\udcff")  # how a file of UTF-16 begins, as bytes that are not UTF-8 come out


class Row(Value):
    """One row: its number, from 1 (the line of a JSONL file, else the record), and its values by column."""

    number: int
    values: Mapping[str, object]


class _Lines:
    """The lines of a file, of which some can be given back."""

    def __init__(self, file: TextIO) -> None:
        self.taken: list[str] = []  # since it was last cleared
        self._file, self._back = file, deque[str]()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._back.popleft() if self._back else self._read()
        self.taken.append(line)
        return line

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
            yield from self._dataset()
            return
        name = self.path.lower()
        try:
            bare = name.removesuffix(".gz")
            if bare.endswith(".jsonl"):
                yield from self._json_lines()
            elif bare.endswith(".json"):
                yield from self._json()
            elif bare.endswith((".csv", ".tsv")):
                yield from self._cells()
            elif name.endswith(".xlsx"):
                yield from self._sheet()
            elif name.endswith(".parquet"):
                yield from self._parquet()
            else:
                what = f"the format of {self.path} is not known by its name"
                raise DataError(what, allowed=FORMATS, do="name it as what it is: a table with any separator as .csv")
        except FileNotFoundError:
            raise DataError(f"no file at {self.path}", do="give the path of a file that exists") from None
        except (OSError, EOFError, zlib.error) as error:  # gzip reports a damaged file by any of them
            raise DataError(f"cannot read {self.path}", got=error, do="restore the file") from None

    def _json_lines(self) -> Iterator[Row | BadValue]:
        with _opened(self.path) as file:
            for number, line in _lines(file):
                if line is None:
                    what, allowed = "the line is too long", f"{LONGEST_LINE:,} bytes"
                    yield self._bad(what, f"more than {allowed}", number, SHORTEN, allowed)
                    continue
                try:
                    text = self._utf8(line, number)
                    values = self._object(text, number) if text.strip() else None
                except BadValue as error:
                    yield error
                    continue
                if values is not None:
                    self.columns.update(dict.fromkeys(values))
                    yield Row(number=number, values=values)

    def _json(self) -> Iterator[Row | BadValue]:
        """Objects of one array, or on a line each."""
        with _opened(self.path) as file:
            values = arrays.values_of(file, self.path) if arrays.begins_with_array(file) else None
        if values is None:
            yield from self._json_lines()
            return
        for number, value in enumerate(values, start=1):
            if isinstance(value, dict):
                self.columns.update(dict.fromkeys(value))
                yield Row(number=number, values=value)
            else:
                yield self._bad("it is not a JSON object", value, number, 'write {"column": value, ...}')

    def _utf8(self, line: bytes, number: int) -> str:
        try:
            return line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise self._bad("the line is not UTF-8", error, number, "save the file as UTF-8") from None

    def _object(self, text: str, number: int) -> dict[str, object]:
        if too_many_values(text):
            raise self._bad("the line holds too many values", None, number, SHORTEN, f"{MOST_VALUES:,}")
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._bad("the line is not JSON", error, number, "fix the line") from None
        if not isinstance(values, dict):
            do = 'write {"column": value, ...}'
            raise self._bad("the line is not a JSON object", text.strip(), number, do)
        return values

    def _cells(self) -> Iterator[Row | BadValue]:
        csv.field_size_limit(max(csv.field_size_limit(), CELL_LIMIT))
        # In TSV files a quote is a plain character, as the registered text/tab-separated-values says.
        tabs = self.path.lower().removesuffix(".gz").endswith(".tsv")
        style: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        sample, is_whole = ("", True) if tabs else self._sample()
        if not tabs:
            style = {"delimiter": dialect.separator_of(sample, is_whole=is_whole), "strict": True}
        # Bytes that are not UTF-8 come out as lone surrogates, so that their record can be named.
        with (
            _opened(self.path) as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="") as file,
        ):
            if dialect.SAID.match(sample):
                file.readline()
            lines = _Lines(file)
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

    def _sample(self) -> tuple[str, bool]:
        """How the file begins, and whether that is all of it."""
        with _opened(self.path) as file:
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
            if not record:
                blank += width == 1
                continue
            for _ in range(blank):
                yield [""]
            yield record
            number, blank = number + blank + 1, 0
            width = width or (len(record) if isinstance(record, list) else 0)

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
        return Row(number=number, values=dict(zip(header, record, strict=True)))

    def _parquet(self) -> Iterator[Row]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise MissingExtra("pyarrow", "store", f"reading {Path(self.path).name}") from None
        number = 0
        try:
            name = os.fsencode(self.path)  # which may be any bytes
            open_plain(self.path).close()
            with pyarrow.OSFile(name) as raw, pyarrow.parquet.ParquetFile(raw) as file:
                names = list(file.schema_arrow.names)
                self._check_once(names, f"the schema of {self.path}", "write it again with a name for each")
                self.columns.update(dict.fromkeys(names))
                chosen = [name for name in names if name in self.wanted]
                check_packing(file.metadata, chosen, self.path)
                for group in range(file.num_row_groups):
                    for batch in file.iter_batches(batch_size=1024, row_groups=[group], columns=chosen):
                        for values in self._values(batch, number):
                            number += 1
                            yield Row(number=number, values=values)
        except pyarrow.ArrowException as error:
            raise DataError(f"cannot read {self.path}", got=error, do="give a Parquet file") from None

    def _values(self, batch: Any, before: int) -> list[dict[str, object]]:
        try:
            return cast(list[dict[str, object]], batch.to_pylist())
        except UnicodeDecodeError as error:
            last = before + batch.num_rows
            raise DataError(
                f"{self.path}: one of the rows {before + 1:,} to {last:,} holds a string that is not UTF-8",
                got=error,
                do="write the file again with strings in UTF-8, or its column as binary",
            ) from None
        except ValueError as error:  # pyarrow's for a struct with two fields of one name, and for dates of year 10,000
            last = before + batch.num_rows
            raise DataError(
                f"{self.path}: one of the rows {before + 1:,} to {last:,} holds a value that Python cannot hold",
                got=error,
                do="write the file again without this column, or with its values as strings",
            ) from None

    def _dataset(self) -> Iterator[Row]:
        """Rows of `datasets:owner/name[/config][:split]`; labels of type ClassLabel by their names."""
        try:
            import datasets
        except ImportError:
            raise MissingExtra("datasets", "datasets", f"reading {self.path}") from None
        name, _, split = self.path.removeprefix(DATASETS).partition(":")
        parts = name.split("/")
        config = "/".join(parts[2:]) or None
        try:
            dataset = datasets.load_dataset("/".join(parts[:2]), config, split=split or "train")
        except Exception as error:  # the library raises many types of its own, and those of the network
            raise DataError(
                f"cannot load {self.path}", got=error, allowed="datasets:owner/name[/config][:split]"
            ) from error
        names = {column: _class_names(feature) for column, feature in dataset.features.items()}
        self.columns.update(dict.fromkeys(names))
        for number, values in enumerate(dataset, start=1):
            yield Row(number=number, values={key: _named(value, names[key]) for key, value in values.items()})

    def _bad(self, what: str, got: object, number: int, do: str, allowed: object = None) -> BadValue:
        name = Path(self.path).name
        what = f"{name} row {number}: {what}"
        return BadValue(what, got=got, allowed=allowed, do=do, source=self.path, row=number)


def no_rows(path: str) -> EmptyData:
    """The error for a file that holds no row at all."""
    return EmptyData(f"no rows in {path}", do="give a file with rows, and with a header if it is CSV")


def lines_in(block: bytes) -> list[bytes]:
    """The lines, without their ends, of bytes that hold LF at their end alone: each line ends in LF, CR LF or CR."""
    return block.removesuffix(b"\n").removesuffix(b"\r").split(b"\r")


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    with open_plain(path) as file:
        if not path.lower().endswith(".gz"):
            yield file
            return
        with gzip.open(file, "rb") as unpacked:
            yield cast(BinaryIO, unpacked)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines that end in LF, CR LF or CR; a string of JSON can hold none of them. None: it is too long."""
    number = 0
    for block in lines_of(file):
        for line in [None] if block is None else lines_in(block):
            number += 1
            yield number, line


def _class_names(feature: Any) -> list[str] | None:
    inner = getattr(feature, "feature", feature)
    names = getattr(inner, "names", None)
    return list(names) if names else None


def _named(value: object, names: list[str] | None) -> object:
    """An index of a ClassLabel (or a list of them) as its name; -1 is the library's mark for no label."""
    if names is None:
        return value
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return names[value] if 0 <= value < len(names) else None
    return value
