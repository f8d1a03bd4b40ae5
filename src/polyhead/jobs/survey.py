"""What a file holds: its rows, and its columns with what stands in them."""

from __future__ import annotations

from collections.abc import Set
from typing import Literal

from polyhead.config import Value

Word = Literal["null", "bool", "int", "float", "text", "list", "object", "mixed", "other"]
"""What stands in a column. `mixed`: values of several words, or integers that no type holds; `other`: dates, bytes."""
Met = Word | Literal["long"]
"""What one value is; `long`: an integer of 64 bits that is beyond EXACT."""

EXACT = 2**53  # up to here a column of floating-point numbers holds every integer


class Survey(Value):
    """Facts about a whole file."""

    rows: int  # those that cannot be read included
    columns: dict[str, Word]  # in the order in which they were met


def word_of(value: object) -> Met:
    """The word of one value from JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int():
            if abs(value) <= EXACT:
                return "int"
            return "long" if -(2**63) <= value < 2**63 else "mixed"
        case float():
            return "float"
        case str():
            return "text"
        case list():
            return "list"
        case _:
            return "object"


def joint_word(met: Set[Met]) -> Word:
    """The word of a column that holds values of these; nulls fit any."""
    if "long" in met and "float" in met:
        return "mixed"
    words: set[Word] = {"int" if word == "long" else word for word in met if word != "null"}
    if len(words) < 2:
        return next(iter(words), "null")
    return "float" if words == {"int", "float"} else "mixed"
