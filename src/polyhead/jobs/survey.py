"""What a file holds: the number of rows, and the type of each column."""

from __future__ import annotations

from collections.abc import Set
from typing import Literal

from polyhead.config import Value

Word = Literal["null", "bool", "int", "float", "text", "list", "object", "mixed", "other"]
"""Type of a column. `mixed`: values of several types, or integers that no type holds; `other`: dates, bytes."""
Met = Word | Literal["long"]
"""Type of one value; `long`: an integer of 64 bits beyond EXACT."""

EXACT = 2**53  # up to here a column of floating-point numbers holds every integer


class Survey(Value):
    """Facts about a whole file."""

    rows: int  # those that cannot be read included
    columns: dict[str, Word]  # in the order in which they were met


def word_of(value: object) -> Met:
    """The type of one value from JSON."""
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
    """The type of a column that holds values of these types; null fits any."""
    if "long" in met and "float" in met:
        return "mixed"
    words: set[Word] = {"int" if word == "long" else word for word in met if word != "null"}
    if len(words) < 2:
        return next(iter(words), "null")
    return "float" if words == {"int", "float"} else "mixed"
