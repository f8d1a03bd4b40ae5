"""Rows in memory, readable under an address while they are held."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

from polyhead.data.tables.base import Numbered, TableFormat
from polyhead.errors import DataError

Records = Sequence[Mapping[str, object]]
ADDRESS = "memory:"
SHOWN = re.compile(rf"(\S*/)?{ADDRESS}[0-9]+")
_HELD: dict[str, tuple[Records, int]] = {}
_NUMBERS = count()


class InMemory(TableFormat):
    """A table of rows that `in_memory` holds."""

    name = "memory"
    address = ADDRESS

    def records(self) -> Iterator[Numbered]:
        """Each row, numbered from 0; rows before those have negative numbers."""
        if self.path not in _HELD:
            raise DataError(f"no rows are held in memory at {self.path}", do="give the path of a file")
        rows, before = _HELD[self.path]
        for row in rows:
            self.columns.update(dict.fromkeys(row))
        return ((number - before, dict(row)) for number, row in enumerate(rows))


@contextmanager
def in_memory(rows: Records, *, before: int = 0) -> Iterator[str]:
    """A context with an address under which these rows are read; `before` of them have negative numbers."""
    address = f"{ADDRESS}{next(_NUMBERS)}"
    _HELD[address] = (rows, before)
    try:
        yield address
    finally:
        del _HELD[address]
