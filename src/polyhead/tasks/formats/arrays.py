"""A file that is one JSON array of objects."""

from __future__ import annotations

import json
from typing import BinaryIO

from polyhead.errors import DataError

LARGEST = 2**28  # bytes of a file that is read as a whole


def begins_with_array(file: BinaryIO) -> bool:
    """Whether the first visible character is a bracket; reads on from the file's beginning."""
    head = file.read(2**12).removeprefix(b"\xef\xbb\xbf").lstrip()
    file.seek(0)
    return head.startswith(b"[")


def values_of(file: BinaryIO, path: str) -> list[object]:
    """The values of the array. Raises DataError for what is too large, no UTF-8 or no JSON array."""
    do = "save it as JSON Lines: an object on each line, in a file named .jsonl"
    raw = file.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise DataError(f"{path} is too large to be read as one JSON array", allowed=f"{LARGEST:,} bytes", do=do)
    try:
        values = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no JSON array", got=error, do=do) from None
    return values if isinstance(values, list) else [values]
