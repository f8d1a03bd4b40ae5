"""Character offsets of spans from tools that count in other units than Python."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import cached_property
from itertools import accumulate

from polyhead.errors import BadValue


class Places:
    """The characters of a text by the units of browsers: UTF-16, with each line end as one unit."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.is_plain = not text or (max(text) < "\U00010000" and "\r" not in text)  # every unit is a character

    def of_units(self, start: int, end: int) -> tuple[int, int] | None:
        """The characters between two UTF-16 offsets; None if there are none."""
        return self._inside(start, end) if self.is_plain else _between(self._utf16, start, end)

    def of_passage(self, start: int, end: int, passage: str) -> tuple[int, int] | None:
        """The characters between two offsets, in whichever unit, that equal the passage, except for white space."""
        wanted = {_squeezed(passage), _squeezed(passage.replace("\\n", "\n"))}  # line ends may be written as escapes
        ways: list[Callable[[], tuple[int, int] | None]] = [
            lambda: self.of_units(start, end),
            lambda: self._inside(start, end),
            lambda: _between(self._lines_as_one, start, end),
        ]
        for way in ways[:1] if self.is_plain else ways:
            place = way()
            if place is not None and _squeezed(self.text[slice(*place)]) in wanted:
                return place
        return None

    def of_edges(self, start: int, end: int) -> tuple[int, int]:
        """The characters between two offsets, in the only unit (UTF-16's or Python's) in which both are edges of words.

        Raises BadValue if the units differ and both or neither fit, and if there are no such characters.
        """
        wide, plain = self.of_units(start, end), self._inside(start, end)
        got = f"{start} to {end} in {self.text!r}"
        if wide is None and plain is None:
            raise BadValue(
                "a span is empty, or ends outside its text",
                got=got,
                allowed=f"0 <= start < end <= {len(self.text)}",
                do="label this text again, or remove the record",
            )
        if wide == plain and wide is not None:
            return wide
        fitting = [place for place in (wide, plain) if place is not None and self._has_edges(*place)]
        if len(fitting) != 1:
            raise BadValue(
                "nobody can tell what a span covers: an emoji before it may count as one or as two",
                got=got,
                allowed="a span that begins and ends at edges of words by one of the two counts alone",
                do="label this text again without the emoji before it, or remove the record",
            )
        return fitting[0]

    def _inside(self, start: int, end: int) -> tuple[int, int] | None:
        return (start, end) if 0 <= start < end <= len(self.text) else None

    def _has_edges(self, start: int, end: int) -> bool:
        text = self.text
        is_clean = not text[start].isspace() and not text[end - 1].isspace() and any(map(str.isalnum, text[start:end]))
        return is_clean and all(
            place in (0, len(text)) or not (text[place - 1].isalnum() and text[place].isalnum())
            for place in (start, end)
        )

    @cached_property
    def _utf16(self) -> list[int]:
        return [0, *accumulate(1 + (letter > "\uffff") for letter in self.text)]

    @cached_property
    def _lines_as_one(self) -> list[int]:
        widths = (0 if letter == "\r" else 1 + (letter > "\uffff") for letter in self.text)
        return [0, *accumulate(widths)]


def _between(begins: list[int], start: int, end: int) -> tuple[int, int] | None:
    """The numbers of the characters that begin at the units `start` and `end`."""
    first, last = bisect_right(begins, start) - 1, bisect_left(begins, end)
    if not 0 <= first < last < len(begins) or begins[first] != start or begins[last] != end:
        return None
    return first, last


def _squeezed(text: str) -> str:
    return "".join(text.split())
