"""Lines of a file or a pipe as inputs, in pieces that do not wait for lines that have not arrived.

Files whose lines are no inputs, such as tables and packed files, are refused, except by `read_texts`.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from polyhead.data.formats.lines import in_utf8, strict_json
from polyhead.data.guess_texts import CONTEXTS, TEXTS
from polyhead.data.rows import open_rows
from polyhead.data.tables.base import table_format
from polyhead.data.tables.json_rows import JsonRows
from polyhead.data.tables.written import without_surrogates
from polyhead.engine.inputs import input_of
from polyhead.errors import BadValue, DataError, PolyheadError
from polyhead.store.jobs.columns import RowInput, roles_of
from polyhead.store.jobs.documents import PIECE_ROWS
from polyhead.tasks.limits import LONGEST_LINE, SHORTEN, lines_in
from polyhead.values import Value

PIECE = 256  # inputs answered at a time: bounds memory
BLOCK = 2**20  # bytes asked of the system at a time; a pipe gives what it has
PACKED = {b"\x1f\x8b": "gzip", b"PAR1": "Parquet", b"PK\x03\x04": "zip"}  # how such files begin
HEAD = 2**20  # bytes in which the first line that is not blank is looked for
SEPARATORS = ",;\t|"
COLUMNS_OF_TEXTS = (*TEXTS, *CONTEXTS)
"""Names by which a column of texts is known, the likeliest first."""
KNOWN = {
    *(COLUMNS_OF_TEXTS + tuple(f"{name}s" for name in COLUMNS_OF_TEXTS)),
    *["text_a", "text_b", "text1", "text2", "sentence1", "sentence2", "premise", "hypothesis", "title", "subject"],
    *["answer", "answers", "choices", "options", "tokens", "tags", "ner_tags"],
    *["id", "idx", "index", "uid", "label", "labels", "class", "category", "target", "intent", "sentiment", "topic"],
}
"""Names of columns of labelled texts."""
_NAME = re.compile(r"[^\W\d][\w.-]{0,39}(?: [\w.-]{1,40}){0,3}")
LEAST_CELLS, LEAST_ROWS = 3, 4  # that say "table" where no name of a column is known
_OBJECTS = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*\{")  # how an array of objects begins


class InputLine(RowInput, eq=False):
    """One input, with the caller's own name for it: any value of JSON."""

    id: Any = None


class LineChunk(Value, eq=False):
    """At most PIECE lines that are not blank, with their numbers from 1, and the count of blank lines between."""

    lines: list[tuple[int, bytes]]
    blank: int


def pieces(source: IO[bytes]) -> Iterator[LineChunk]:
    """All lines of `source`, each piece as soon as a read of a pipe gave whole lines.

    Lines end in LF, CR LF or CR. Raises DataError for bytes that begin as a packed file.
    """
    number = 0
    for block in _whole_lines(in_utf8(source)):
        lines: list[tuple[int, bytes]] = []
        blank = 0
        for line in (line for part in block for line in lines_in(part)):
            number += 1
            if number == 1 and (packed := packed_format(line)) is not None:
                raise DataError(
                    f"what comes in is no text: it begins as a {packed} file",
                    allowed="text, one input a line",
                    do="unpack it first, or answer its rows: `polyhead predict BUNDLE FILE --text COLUMN -o OUT`",
                )
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if text.strip():
                lines.append((number, text))
            else:
                blank += 1
            if len(lines) == PIECE:
                yield LineChunk(lines=lines, blank=blank)
                lines, blank = [], 0
        if lines or blank:
            yield LineChunk(lines=lines, blank=blank)


def read_lines(path: str) -> list[InputLine]:
    """All lines of a file that are not blank; raises DataError that names the file."""
    check_input_lines(path, "auto", do="give its texts in a file of their own, one a line or as JSON Lines")
    try:
        with open(path, "rb") as source:
            return [line_of(number, raw, "auto") for piece in pieces(source) for number, raw in piece.lines]
    except FileNotFoundError:
        raise DataError(f"no file at {path}", do="give the path of a file that exists") from None
    except DataError as error:
        raise error.at(path) from None


def read_texts(path: str, column: str | None) -> list[InputLine]:
    """The inputs of a table's rows, where its name says that it is one or a column is named; else the inputs of lines.

    Raises DataError that names the file, and BadValue for a row without a text.
    """
    name = path.lower().removesuffix(".gz")
    if column is None and (name.endswith(".jsonl") or table_format(path) is None):
        return read_lines(path)

    file = open_rows(path)
    roles = roles_of(path, file.survey(lambda text: None), {} if column is None else {"text": column})
    read = []
    for chunk in file.chunks(roles.wanted, start=0, size=PIECE_ROWS):
        for row in roles.inputs(chunk):
            if isinstance(row, BadValue):
                raise row
            read.append(InputLine(input=row.input, words=row.words))
    return read


def _whole_lines(source: IO[bytes]) -> Iterator[list[bytes]]:
    """Lines without their LF, in the blocks in which they arrive; then the last one, if it has no LF."""
    read = getattr(source, "read1", None) or source.read
    begun: list[bytes] = []  # blocks of a line whose end has not come yet
    while block := read(BLOCK):
        head, *following = block.split(b"\n")
        begun.append(head)
        if sum(map(len, begun)) > LONGEST_LINE:
            raise DataError("a line is too long", allowed=f"{LONGEST_LINE:,} bytes", do=SHORTEN)
        if following:
            yield [b"".join(begun), *following[:-1]]
            begun = [following[-1]]
    if last := b"".join(begun):
        yield [last]


def lines_read(lines: Sequence[tuple[int, bytes]], form: str) -> tuple[list[dict[str, Any]], list[InputLine]]:
    """An object for each of these lines, with its number, id and error, and the lines without an error as inputs."""
    rows: list[dict[str, Any]] = []
    read: list[InputLine] = []
    for number, raw in lines:
        rows.append({"line": number})
        try:
            line = line_of(number, raw, form)
        except DataError as error:
            name = without_surrogates((_object(raw) or {}).get("id"))
            if name is not None and _is_json(name):
                rows[-1]["id"] = name
            rows[-1]["error"] = str(error)
            continue
        if line.id is not None:
            rows[-1]["id"] = line.id
        read.append(line)
    return rows, read


def line_of(number: int, raw: bytes, form: str) -> InputLine:
    """A line as an input; raises BadValue (or DataError) with the line's number."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadValue(f"line {number} is not UTF-8", got=error.reason, do="save the file as UTF-8") from None
    start = text.lstrip()[:1]
    if form == "text" or (form == "auto" and start not in ("{", '"')):
        return InputLine(input=(text,))
    try:
        row = strict_json(text)  # keeps lone surrogates, which are replaced and counted when read
    except DataError as error:
        raise BadValue(f"line {number}: {error.what}", got=error.got, allowed=error.allowed, do=error.do) from None
    except (ValueError, RecursionError) as error:
        if form == "auto" and start == '"':
            return InputLine(input=(text,))
        do = "fix it, or write the text as a JSON string"
        raise BadValue(f"line {number} is not JSON", got=error, do=do) from None
    read, words = input_of(row, where=f"line {number}")
    name = without_surrogates(row.get("id")) if isinstance(row, dict) else None
    if not _is_json(name):
        do = "write it as a string, or leave it out: answers have the line's number too"
        raise BadValue(f"line {number}: the id holds NaN or infinity, which JSON has not", got=name, do=do)
    return InputLine(input=read, words=words, id=name)


def _is_json(value: object) -> bool:
    """True if JSON can hold the value; NaN and infinity would become null."""
    return bool(msgspec.json.decode(msgspec.json.encode(value)) == value)


def check_input_lines(path: str, form: str, *, do: str) -> None:
    """Raises DataError, with `do`, for a file whose lines are no inputs, as its name or its beginning says.

    `form` of the lines: "auto", "text" or "json". A pipe is not checked, since reading consumes it.
    """
    if not Path(path).exists():
        return  # opening it raises the error
    name, head = path.lower(), _head(Path(path))
    ending = Path(name.removesuffix(".gz")).suffix
    table = table_format(path)
    format_name = table.name if table is not None and table is not JsonRows else packed_format(head)
    if format_name is None and name.endswith(".gz"):
        format_name = "gzip"
    if format_name is not None:
        raise _no_lines(path, f"a {format_name} file, whose lines are no texts", do)
    first = next((line for line in head.splitlines() if line.strip()), b"")
    value = _value(first)
    if form == "text" and (ending in (".json", ".jsonl") or isinstance(value, dict)):
        raise _no_lines(
            path,
            "objects of JSON, which --format text takes for texts",
            "leave --format out, so that each line is read as JSON; or pipe the lines in, to have them as they stand",
        )
    if (ending == ".json" and first and not isinstance(value, dict | str)) or (
        ending == ".jsonl" and isinstance(value, list)
    ):
        is_table = ending == ".json" and _OBJECTS.match(head)
        raise _no_lines(
            path,
            "a list of JSON, or one value of it over several lines",
            do if is_table else "write one object a line, into a file that ends in .jsonl",
        )


def packed_format(head: bytes) -> str | None:
    """The format of a file that begins so, if it is no text."""
    return next((name for magic, name in PACKED.items() if head.startswith(magic)), None)


def _no_lines(path: str, got: str, do: str) -> DataError:
    return DataError(f"{path} does not hold one input a line", got=got, allowed="plain text, or JSON Lines", do=do)


def _head(path: Path) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return in_utf8(file).read(HEAD)


def _value(line: bytes) -> object:
    """The line as JSON; None for anything else."""
    try:
        return json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None


def columns_of_header(lines: Sequence[bytes]) -> list[str] | None:
    """The columns that the first of these lines names, if they are the head of a table; None for lines of text.

    Of a table the first line is names between separators, without blanks after them. One of the names is known, or
    as many lines as `LEAST_ROWS` have the same number of cells, `LEAST_CELLS` or more.
    """
    texts = [line.decode("utf-8-sig", "replace") for line in lines[: 2 * LEAST_ROWS]]
    for mark in SEPARATORS:
        if not texts or mark not in texts[0] or f"{mark} " in texts[0]:
            continue
        rows = _records(texts, mark)
        names = rows[0] if rows else []
        if len(names) < 2 or len(set(names)) < len(names) or not all(map(_NAME.fullmatch, names)):
            continue
        is_known = any(name.casefold() in KNOWN for name in names)
        is_even = len(rows) >= LEAST_ROWS and len(names) >= LEAST_CELLS and {len(row) for row in rows} == {len(names)}
        if is_known or is_even:
            return names
    return None


def columns_of_objects(lines: Sequence[bytes]) -> list[str] | None:
    """The columns of rows in JSON if none is an input; else None, and for a single line."""
    rows = [_object(line) for line in lines[: 2 * LEAST_ROWS]]
    for row in rows:
        if row is None:
            return None
        with suppress(PolyheadError):
            input_of(row, where="")
            return None
    return list(rows[0] or ()) if len(rows) > 1 else None


def _object(line: bytes) -> dict[str, object] | None:
    value = _value(line)
    return value if isinstance(value, dict) else None


def _records(lines: Sequence[str], mark: str) -> list[list[str]]:
    try:
        return list(csv.reader(lines, delimiter=mark))
    except csv.Error:
        return []
