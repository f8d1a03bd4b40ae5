"""What a check found: of which kind, how bad it is, what to do, and every row that shows it."""

from __future__ import annotations

from typing import Literal

from polyhead.values import Value

Level = Literal["fault", "hint"]
"""A fault makes scores wrong, or stops training; a hint is worth a look."""

LONGEST = 200  # characters of a text that are kept with its place


class RowRef(Value):
    """One row that shows what was found."""

    split: str
    file: str
    row: int
    text: str = ""
    label: str = ""
    other: str = ""  # the row, label or text that it is compared with


class Finding(Value):
    """One kind of fault in one task, or one file."""

    kind: str
    level: Level
    what: str  # a sentence about the data
    do: str
    task: str = ""
    split: str = ""
    rows: int = 0  # that show it
    of: int = 0  # rows that were looked at
    places: tuple[RowRef, ...] = ()


def short(text: str, longest: int = LONGEST) -> str:
    """The text on one line, cut where it is longer."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 3] + "..."
