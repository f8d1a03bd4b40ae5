"""A format of tables in one file: blocks of `column: value` lines with a blank line between rows; read and written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from polyhead.data.tables import Chunk, Numbered, TableFormat, Writer, register_table


class CardWriter(Writer):
    """Writes a block for each row."""

    def piece(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> bytes:
        """The kept columns, then the answers."""
        blocks = []
        for row, cells in zip(chunk.kept(self.kept), answers, strict=True):
            named = {column.name: cell for column, cell in zip(self.columns, cells, strict=True) if cell is not None}
            blocks.append("".join(f"{name}: {value}\n" for name, value in (row | named).items()))
        return "".join(f"{block}\n" for block in blocks).encode()

    def whole(self, pieces: Any) -> Iterator[bytes]:
        """One after the other."""
        yield from pieces


class Cards(TableFormat):
    """A row a block; every value is a string."""

    name = "cards"
    endings = written = (".cards",)
    has_cells = True
    writer = CardWriter

    def records(self) -> Iterator[Numbered]:
        """The lines of each block by what stands before their colon."""
        with open(self.path, encoding="utf-8") as file:
            blocks = file.read().strip("\n").split("\n\n")
        for number, block in enumerate(blocks, start=1):
            lines = [line.partition(": ") for line in block.splitlines()]
            if all(mark for _, mark, _ in lines):
                yield number, {name: value for name, _, value in lines}
            else:
                yield self.bad("the row has a line without a colon", block, number, "write column: value")


register_table(Cards)
