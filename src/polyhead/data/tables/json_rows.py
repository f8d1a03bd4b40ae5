"""JSON: one value per line, or one document that lists them; written as one object per line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from polyhead.data.formats.lines import strict_json, unpacked
from polyhead.data.tables import documents
from polyhead.data.tables.base import Chunk, Numbered, TableFormat
from polyhead.data.tables.written import LineWriter, json_bytes
from polyhead.errors import BadValue, DataError
from polyhead.tasks.limits import LONGEST_LINE, MOST_VALUES, SHORTEN, every_line, too_many_values


class JsonWriter(LineWriter):
    """One JSON object per line; numbers that are not finite are null."""

    def lines(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> list[bytes]:
        """One object per row: kept columns, then the answers."""
        lines_out = []
        for row, cells in zip(chunk.kept(self.kept), answers, strict=True):
            for column, cell in zip(self.columns, cells, strict=True):
                if cell is not None or not column.sparse:
                    row[column.name] = cell
            lines_out.append(json_bytes(row) + b"\n")
        return lines_out


class JsonRows(TableFormat):
    """JSON Lines, an array, or an object that holds records."""

    name = "JSON"
    endings = (".jsonl", ".json")
    is_packable = True
    written, writer = (".jsonl",), JsonWriter

    def head(self) -> list[Any]:
        """All values of a document, else the values of the first lines."""
        with unpacked(self.path) as file:
            self._document = documents.document_in(file, self.path)
            return documents.head_of_lines(file) if self._document is None else self._document

    def records(self) -> Iterator[Numbered]:
        """The values, with the numbers of their lines or their positions in the document."""
        document, self._document = self._document, None
        if document is not None:
            yield from enumerate(document, start=1)
            return
        with unpacked(self.path) as file:
            for number, line in every_line(file):
                if line is None:
                    problem, allowed = "the line is too long", f"{LONGEST_LINE:,} bytes"
                    yield self.bad(problem, f"more than {allowed}", number, SHORTEN, allowed)
                    continue
                try:
                    text = self._text(line, number)
                    if text.strip():
                        yield number, self._value(text, number)
                except BadValue as error:
                    yield error

    def _text(self, line: bytes, number: int) -> str:
        try:
            return line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise self.bad("the line is not UTF-8", error, number, "save the file as UTF-8") from None

    def _value(self, text: str, number: int) -> object:
        if too_many_values(text):
            raise self.bad("the line holds too many values", None, number, SHORTEN, f"{MOST_VALUES:,}")
        try:
            return strict_json(text)
        except DataError as error:
            raise self.bad(error.what, error.got, number, str(error.do), error.allowed) from None
        except (ValueError, RecursionError) as error:
            raise self.bad("the line is not JSON", error, number, "fix the line") from None
