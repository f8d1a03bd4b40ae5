"""Whether the lines of a file are inputs: a table's are cells, and a packed file has none."""

from __future__ import annotations

import json
from pathlib import Path

from polyhead.errors import DataError

TABLES = {".csv": "CSV", ".tsv": "TSV", ".parquet": "Parquet"}
PACKED = {b"\x1f\x8b": "gzip", b"PAR1": "Parquet", b"PK\x03\x04": "zip"}  # how such files begin
HEAD = 2**20  # bytes in which the first line that is not blank is looked for


def check_lines(path: str, form: str, *, do: str) -> None:
    """Raises DataError for a file whose lines are no inputs, as its name or its beginning says; `do`: what to do.

    `form` is how its lines are to be read: "auto", "text" or "json". A pipe is not looked at: what is read is gone.
    """
    if not Path(path).exists():
        return  # who opens it says so
    name, head = path.lower(), _head(Path(path))
    ending = Path(name.removesuffix(".gz")).suffix
    what = TABLES.get(ending) or packed(head)
    if what is None and name.endswith(".gz"):
        what = "gzip"
    if what is not None:
        raise _no_lines(path, f"a {what} file, whose lines are no texts", do)
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
        raise _no_lines(
            path,
            "a list of JSON, or one value of it over several lines",
            "write one object a line, into a file that ends in .jsonl",
        )


def packed(head: bytes) -> str | None:
    """What a file that begins so is, where it is no text."""
    return next((what for magic, what in PACKED.items() if head.startswith(magic)), None)


def packed_input(what: str) -> DataError:
    """The error for such bytes in a pipe."""
    return DataError(
        f"what comes in is no text: it begins as a {what} file",
        allowed="text, one input a line",
        do="unpack it first, or name the file to `polyhead score`, which reads its rows",
    )


def _no_lines(path: str, got: str, do: str) -> DataError:
    return DataError(f"{path} does not hold one input a line", got=got, allowed="plain text, or JSON Lines", do=do)


def _head(path: Path) -> bytes:
    """How a plain file begins."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(HEAD)


def _value(line: bytes) -> object:
    """The line as JSON; None where it is none."""
    try:
        return json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
