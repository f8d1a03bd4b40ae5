"""The rows of a file in chunks: surveyed once, then read on from any row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from polyhead.errors import BadValue, DataError
from polyhead.jobs.columns import Ask, Roles
from polyhead.jobs.source import Chunk, Show, Source
from polyhead.jobs.survey import Met, Survey, joint_word, word_of
from polyhead.tasks.rows import FORMATS, Row, Rows
from polyhead.text.tokenize import lone_surrogates

SHOW_EVERY = 100_000  # rows


class RowChunk(Chunk):
    """Rows of JSON Lines, CSV or TSV."""

    def __init__(self, rows: Sequence[Row | BadValue], path: str, *, from_cells: bool) -> None:
        self._rows, self._name, self._from_cells = rows, Path(path).name, from_cells

    def __len__(self) -> int:
        return len(self._rows)

    def asks(self, roles: Roles) -> list[Ask | BadValue]:
        """A row that could not be read asks nothing, and says why."""
        return [self._ask(roles, row) for row in self._rows]

    def _ask(self, roles: Roles, row: Row | BadValue) -> Ask | BadValue:
        if isinstance(row, BadValue):
            return row
        try:
            return roles.ask(row.values, where=f"{self._name} row {row.number}", from_cells=self._from_cells)
        except BadValue as error:
            return error

    def kept(self, names: Sequence[str]) -> list[dict[str, object]]:
        """A row has the columns that its line has; one that could not be read has none."""
        chosen = frozenset(names)
        return [
            {} if isinstance(row, BadValue) else {n: v for n, v in row.values.items() if n in chosen}
            for row in self._rows
        ]

    def column(self, name: str) -> list[object]:
        """A list."""
        return [None if isinstance(row, BadValue) else row.values.get(name) for row in self._rows]


class RowFile(Source):
    """A file of JSON Lines, CSV or TSV, each also packed."""

    def survey(self, show: Show) -> Survey:
        """Reads all of it; a cell holds text."""
        rows, count = Rows(self.path, ()), 0
        words: dict[str, set[Met]] = {}
        fault: BadValue | None = None
        for row in _each(rows):
            count += 1
            if count % SHOW_EVERY == 0:
                show(f"looking at {Path(self.path).name}: {count:,} rows")
            if isinstance(row, BadValue):
                fault = fault or row
            elif not rows.has_cells:
                for name, value in row.values.items():
                    words.setdefault(name, set()).add(word_of(value))
        if rows.has_cells:
            words = {name: {"text"} for name in rows.columns}
        if fault is not None and not words:
            raise DataError(f"no row of {self.path} can be read", got=fault, do="give another file")
        return Survey(rows=count, columns={name: joint_word(types) for name, types in words.items()})

    def chunks(self, wanted: Sequence[str], *, start: int, size: int) -> Iterator[Chunk]:
        """The rows before `start` are read too, and dropped."""
        rows = Rows(self.path, wanted)
        remaining = islice(_each(rows), start, None)
        while rows_read := list(islice(remaining, size)):
            yield RowChunk(rows_read, self.path, from_cells=rows.has_cells)

    def schema(self, survey: Survey, names: Sequence[str]) -> Any:
        """Of the types that the survey found."""
        from polyhead.jobs.values import schema_of_words

        return schema_of_words({name: survey.columns[name] for name in names})


def _each(rows: Rows) -> Iterator[Row | BadValue]:
    """The rows, with the error in the place of one that cannot be read, or whose columns cannot be named."""
    for row in rows.each():
        if isinstance(row, Row) and any(map(lone_surrogates, row.values)):
            yield BadValue(
                f"{Path(rows.path).name} row {row.number}: a column's name is no text",
                got=list(row.values),
                do="write lone surrogates as they were meant",
            )
        else:
            yield row


def open_source(path: str) -> Source:
    """The file by its name's ending; raises DataError where there is none, or none that can be read."""
    name = path.lower()
    if not Path(path).exists():
        raise DataError(f"no file at {path}", do="give the path of a file that exists")
    if not Path(path).is_file():
        raise DataError(f"{path} is no file", do="give a file: a job that was stopped reads it again")
    if name.endswith(".parquet"):
        from polyhead.jobs.table import ParquetFile

        return ParquetFile(path)
    if name.removesuffix(".gz").endswith((".jsonl", ".csv", ".tsv")):
        return RowFile(path)
    allowed = [form for form in FORMATS if form.startswith(".")]
    raise DataError(f"the format of {path} is not known by its name", allowed=allowed, do="name it as what it is")
