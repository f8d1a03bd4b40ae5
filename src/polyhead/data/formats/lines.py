"""The numbered lines of a text file, compressed or not."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from polyhead.errors import BadValue
from polyhead.files import open_plain
from polyhead.tasks.limits import LONGEST_LINE, SHORTEN, lines_of


@contextmanager
def unpacked(path: str) -> Iterator[BinaryIO]:
    """The file, decompressed if its name ends in .gz."""
    with open_plain(path) as file:
        if not path.lower().endswith(".gz"):
            yield file
            return
        with gzip.open(file, "rb") as inside:
            yield cast(BinaryIO, inside)


def text_lines(path: str) -> Iterator[tuple[int, str | BadValue]]:
    """Lines without their ends; an error in place of a line that is too long or not UTF-8."""
    with unpacked(path) as file:
        for number, line in enumerate(lines_of(file), start=1):
            if line is None:
                allowed = f"{LONGEST_LINE:,} bytes"
                got = f"more than {allowed}"
                yield number, bad_row(path, number, "the line is too long", got=got, allowed=allowed, do=SHORTEN)
                continue
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                yield number, bad_row(path, number, "the line is not UTF-8", got=error, do="save the file as UTF-8")


def bad_row(path: str, number: int, problem: str, *, got: object, do: str, allowed: object = None) -> BadValue:
    """The error for one row of a file."""
    problem = f"{Path(path).name} row {number}: {problem}"
    return BadValue(problem, got=got, allowed=allowed, do=do, source=path, row=number)
