"""What a file holds: its rows, and its columns with what stands in them."""

from __future__ import annotations

from typing import Literal

from polyhead.config import Value

Word = Literal["null", "bool", "int", "float", "text", "list", "object", "mixed", "other"]
"""What stands in a column. `mixed`: values of several words, or integers over 64 bits; `other`: dates and the like."""


class Survey(Value):
    """Facts about a whole file."""

    rows: int  # those that cannot be read included
    columns: dict[str, Word]  # in the order in which they were met


def word_of(value: object) -> Word:
    """The word of one value from JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int():
            return "int" if -(2**63) <= value < 2**63 else "mixed"
        case float():
            return "float"
        case str():
            return "text"
        case list():
            return "list"
        case _:
            return "object"


def joint_word(words: set[Word]) -> Word:
    """The word of a column that holds values of these; nulls fit any."""
    found = words - {"null"}
    if len(found) < 2:
        return next(iter(found), "null")
    return "float" if found == {"int", "float"} else "mixed"
