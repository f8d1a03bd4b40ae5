"""Limits of a task's labels, and of a row in a data file: larger ones are refused before they are parsed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from polyhead.errors import DataError
from polyhead.text.prefix import LONGEST_TEXT

LABELS_OF_TASK = 10_000  # of a task
CHARACTERS_OF_LABEL = 1000  # characters
LONGEST_LINE = 2**26  # bytes of a line: LONGEST_TEXT characters, each as an escape of six bytes
MOST_VALUES = 2**20  # values in one row of JSON Lines
SHORTEN = "shorten it, or split it over several rows"
# A column of a Parquet row group with at least this many bytes must not exceed this compression ratio.
PACKED, DENSEST = 2**28, 200
_REST = 2**20  # bytes of the rest of a line, read at a time


def lines_of(file: BinaryIO) -> Iterator[bytes | None]:
    """Lines that end in LF; None for one that is too long, the rest of which is skipped."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) <= LONGEST_LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(_REST)
        yield None


def lines_in(block: bytes) -> list[bytes]:
    """The lines, without their ends, of bytes whose only LF is the last: each line ends in LF, CR LF or CR."""
    return block.removesuffix(b"\n").removesuffix(b"\r").split(b"\r")


def every_line(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines that end in LF, CR LF or CR (none is in a JSON string); None for a line that is too long."""
    number = 0
    for block in lines_of(file):
        for line in [None] if block is None else lines_in(block):
            number += 1
            yield number, line


def too_many_values(text: str) -> bool:
    """True if a line of JSON holds more values than a row may have; values inside strings count too."""
    return len(text) > MOST_VALUES and sum(map(text.count, ",[{")) > MOST_VALUES


def too_long(values: Iterable[object]) -> int | None:
    """The length of the first text above the limit."""
    return next((len(value) for value in values if isinstance(value, str) and len(value) > LONGEST_TEXT), None)


def check_packing(metadata: Any, wanted: Mapping[str, object] | Iterable[str], path: str) -> None:
    """Raises DataError for a Parquet file with a part that unpacks to far more than any text does.

    `metadata` is pyarrow's, from the file's footer; nothing else is read.
    """
    names, before = set(wanted), 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        for number in range(group.num_columns):
            column = group.column(number)
            size, packed = column.total_uncompressed_size, max(1, column.total_compressed_size)
            long = size > 4 * LONGEST_TEXT * max(1, group.num_rows)
            if column.path_in_schema.split(".")[0] in names and (long or (size > PACKED and size > DENSEST * packed)):
                raise DataError(
                    f"{path}: column '{column.path_in_schema}' of rows {before + 1:,} to "
                    f"{before + group.num_rows:,} is too large to be read",
                    got=f"{size:,} bytes packed into {packed:,}",
                    allowed=f"texts of at most {LONGEST_TEXT:,} characters, packed {DENSEST} times or less",
                    do="write the file again with fewer rows in a row group, and no longer texts",
                )
        before += group.num_rows
