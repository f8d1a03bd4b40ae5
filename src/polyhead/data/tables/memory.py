"""Rows in memory, read under an address as long as somebody holds them."""

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
    """Rows that `in_memory` holds."""

    name = "memory"
    address = ADDRESS

    def records(self) -> Iterator[Numbered]:
        """Each row, numbered from 0 on; rows that came before have negative numbers."""
        if self.path not in _HELD:
            raise DataError(f"no rows are held in memory at {self.path}", do="give the path of a file")
        rows, before = _HELD[self.path]
        for row in rows:
            self.columns.update(dict.fromkeys(row))
        return ((number - before, dict(row)) for number, row in enumerate(rows))


@contextmanager
def in_memory(rows: Records, *, before: int = 0) -> Iterator[str]:
    """An address under which these rows are read inside; `before` of them are numbered below 0."""
    address = f"{ADDRESS}{next(_NUMBERS)}"
    _HELD[address] = (rows, before)
    try:
        yield address
    finally:
        del _HELD[address]
