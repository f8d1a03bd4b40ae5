"""Tables with another encoding than UTF-8, as spreadsheets write them, or without a header."""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, BinaryIO

from polyhead.data.formats.lines import in_utf8
from polyhead.data.guess_kind import looks_like_labels
from polyhead.data.rows import Rows
from polyhead.data.tables import Row
from polyhead.files import open_plain
from polyhead.values import Value

BLOCK = 2**20  # bytes
SHOWN = 8  # letters
LOOKED_AT = 200  # rows that decide whether the first line is a row
WORDS = 3  # minimum words of a text; names of columns seldom have as many


class Recoded(Value):
    """The content of a file in UTF-8, and letters by which a reader can check the encoding that was guessed."""

    content: bytes
    letters: tuple[str, ...]


def recoded(path: str) -> Recoded | None:
    """The content of a file in Windows-1252.

    None for UTF-8 (even if a few of its bytes are invalid), for any other encoding, and for an unreadable file.
    """
    try:
        with open_plain(path) as file:
            if in_utf8(file) is not file or _is_utf8(file):
                return None
            file.seek(0)
            content = file.read()
        text = content.decode("cp1252")
    except (OSError, UnicodeDecodeError):
        return None
    if "\0" in text or _is_nearly_utf8(content):
        return None
    counts = Counter(letter for letter in text if not letter.isascii())
    letters = tuple(letter for letter, _ in counts.most_common(SHOWN))
    return Recoded(content=text.encode(), letters=letters)


def _is_utf8(file: BinaryIO) -> bool:
    decoder, block = codecs.getincrementaldecoder("utf-8")(), b"begin"
    try:
        while block:
            block = file.read(BLOCK)
            decoder.decode(block, final=not block)
    except UnicodeDecodeError:
        return False
    return True


def _is_nearly_utf8(content: bytes) -> bool:
    """Whether more letters are valid UTF-8 than invalid: in Windows-1252, letters are hardly ever valid UTF-8."""
    letters = [letter for letter in content.decode("utf-8", "replace") if not letter.isascii()]
    return 2 * letters.count("\ufffd") <= len(letters)


def without_header(path: str) -> list[dict[str, Any]] | None:
    """The rows of a table without a header, under generated column names; None if the first line names the columns.

    The first line is a row if one of its cells is a label that occurs again in its column, and another is a text of
    several words, as the cells below it are.
    """
    head = [row.values for row in islice(Rows(path, ()).each(), LOOKED_AT) if isinstance(row, Row)]
    names = list(head[0]) if head else []
    columns = {name: [str(row[name]) for row in head if str(row.get(name) or "").strip()] for name in names}
    texts = sorted((n for n in names if _is_text(n, columns[n])), key=lambda n: -sum(map(len, columns[n])))
    labels = [name for name in names if name not in texts and _is_label(name, columns[name])]
    if not labels or not texts:
        return None
    called = {name: f"column_{number}" for number, name in enumerate(names, 1)}
    called |= dict(zip(texts, ("text", "text_b"), strict=False)) | {labels[0]: "label"}
    rows: list[dict[str, Any]] = [{called[name]: name for name in names}]
    return rows + [{called[name]: value for name, value in row.values.items()} for row in Rows(path, ())]


def as_lines(rows: Iterable[dict[str, Any]]) -> bytes:
    """The rows as JSON Lines."""
    return b"".join(json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n" for row in rows)


def _is_label(name: str, values: Sequence[str]) -> bool:
    return values.count(name) > 1 and looks_like_labels([name, *values])


def _is_text(name: str, values: Sequence[str]) -> bool:
    is_long = [len(value.split()) >= WORDS for value in values]
    return len(name.split()) >= WORDS and 2 * sum(is_long) > len(is_long)
