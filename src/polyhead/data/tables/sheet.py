"""The first sheet of an .xlsx workbook, as if saved as CSV."""

from __future__ import annotations

import datetime
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from polyhead.data.tables.base import Numbered, TableFormat
from polyhead.errors import DataError, MissingExtra
from polyhead.files import open_plain

LARGEST = 2**30  # bytes of all parts of a workbook, unpacked


class Sheet(TableFormat):
    """The first sheet of an Excel workbook."""

    name = "Excel"
    endings = (".xlsx",)
    has_cells = True

    def records(self) -> Iterator[Numbered]:
        """The cells of each row by column."""
        with open_plain(self.path) as file:
            records = sheet_records(file, self.path)
            header = next(records, [])
            self.begin(header, f"the header of {self.path}", "fix the first row")
            for number, record in enumerate(records, start=1):
                yield self.by_column(header, record, number)


def sheet_records(file: BinaryIO, path: str) -> Iterator[list[str]]:
    """The cells of each row as text, the header first; blank rows, and columns without a name, are omitted.

    A date is written in ISO 8601, a formula as its saved value. Raises DataError for a file that is not a workbook or
    unpacks to more than a GiB, MissingExtra without openpyxl.
    """
    try:
        import openpyxl
    except ImportError:
        raise MissingExtra(
            "openpyxl", "xlsx", f"reading {Path(path).name}", instead="save the sheet as CSV in UTF-8"
        ) from None
    _check_size(file, path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about styles and extensions, which hold no data
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            try:
                yield from _named(book.worksheets[0].iter_rows(values_only=True)) if book.worksheets else ()
            finally:
                book.close()
    except (DataError, OSError):
        raise
    except Exception as error:  # any error that a damaged part causes in XML, numbers and dates
        raise DataError(f"cannot read {path}", got=error, do="save it again as an .xlsx workbook, or as CSV") from None


def _check_size(file: BinaryIO, path: str) -> None:
    try:
        with zipfile.ZipFile(file) as parts:
            size = sum(part.file_size for part in parts.infolist())
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is no .xlsx workbook", got=error, do="save it as .xlsx, or as CSV") from None
    if size > LARGEST:
        allowed = f"{LARGEST:,} bytes"
        raise DataError(f"{path} is too large", got=f"{size:,} bytes unpacked", allowed=allowed, do="save it as CSV")
    file.seek(0)


def _named(rows: Iterator[Sequence[object]]) -> Iterator[list[str]]:
    kept: list[int] = []
    for row in rows:
        cells = [_text(value) for value in row]
        if not any(cells):
            continue
        kept = kept or [index for index, cell in enumerate(cells) if cell]
        yield [cells[index] if index < len(cells) else "" for index in kept]


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return str(value)
