"""Tables given where lines are meant: how they are known, and the command that answers their rows."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress

from polyhead.data.guess_texts import CONTEXTS, TEXTS
from polyhead.data.tables.base import written_ending
from polyhead.engine.inputs import input_of
from polyhead.errors import DataError, PolyheadError

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
    """The columns of rows in JSON of which none is an input; None where one is, and for a single line."""
    rows = [_object(line) for line in lines[: 2 * LEAST_ROWS]]
    for row in rows:
        if row is None:
            return None
        with suppress(PolyheadError):
            input_of(row, where="")
            return None
    return list(rows[0] or ()) if len(rows) > 1 else None


def _object(line: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _records(lines: Sequence[str], mark: str) -> list[list[str]]:
    try:
        return list(csv.reader(lines, delimiter=mark))
    except csv.Error:
        return []


def command_for(bundle: str, file: str, columns: Sequence[str]) -> str:
    """The command that answers the rows of a file; COLUMN stands where it is not known which one holds the texts."""
    names = {name.casefold(): name for name in columns}
    column = next((names[name] for name in COLUMNS_OF_TEXTS if name in names), "COLUMN")
    words = shlex.join(["polyhead", "predict", bundle, file, "--text"])
    return f"{words} {column if column == 'COLUMN' else shlex.quote(column)} -o answered{written_ending(file)}"


def objects_as_inputs(bundle: str, columns: Sequence[str], where: str) -> DataError:
    """The error for rows in JSON that would be read as inputs; `where` they came from."""
    file = where if where.lower().endswith((".jsonl", ".json")) else "FILE.jsonl"
    return DataError(
        f"{where} holds rows of a table, which are no inputs",
        got=f"objects with {', '.join(columns)}",
        allowed='objects with "text", or with the other keys that `polyhead predict --help` names',
        do=f"answer its rows: `{command_for(bundle, file, columns)}`",
    )


def rows_as_lines(bundle: str, columns: Sequence[str], where: str) -> DataError:
    """The error for a table whose lines would be answered as texts; `where` it came from."""
    command = command_for(bundle, "FILE.csv", columns)
    return DataError(
        f"{where} holds a table, whose lines are no texts",
        got=f"a first line with the columns {', '.join(columns)}",
        allowed="one text a line, or JSON Lines",
        do=f"answer the rows of its file: `{command}`; or, if these are texts, add --format text",
    )
