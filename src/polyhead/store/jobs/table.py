"""Stored answers as a table: a row for each document, with its text where a file of texts is given."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO

import msgspec

from polyhead.data.tables.arrow import arrow_for
from polyhead.data.tables.base import NewColumn
from polyhead.data.tables.delimited import record_bytes
from polyhead.data.tables.parquet import arrow_type_of
from polyhead.data.tables.written import text_of_cell
from polyhead.errors import ConfigError
from polyhead.store.jobs.answers import stored_cells
from polyhead.store.jobs.labels import AT_ONCE, ID, SCORE, TEXTS, LabelRequest, given_rows
from polyhead.store.jobs.stored_answers import StoredAnswers
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.values import few_digits

WRITTEN = (".csv", ".jsonl", ".parquet")  # endings of files that are written
ROWS = 2**14  # of a piece of Parquet
Row = Mapping[str, object]


def stored_rows(answers: StoredAnswers, wish: LabelRequest) -> Iterator[dict[str, object]]:
    """Each document's id in hexadecimal, answers and scores, in the order of the store."""
    for ids, places in answers.fragments():
        for start in range(0, len(ids), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            for name, row_answers in zip(ids[part], given_rows(answers, wish, places[part]), strict=True):
                yield {ID: name.tobytes().hex(), **row_answers}


def table_columns(tasks: Mapping[str, Task], wish: LabelRequest) -> tuple[NewColumn, ...]:
    """Columns of a table: id, texts, then each task's answer, score and additional columns (`wish.beside`).

    Raises ConfigError for two columns of one name.
    """
    columns = [NewColumn(name=name, form="text") for name in (ID, *TEXTS)]
    for name in wish.tasks:
        kind = kind_of(tasks[name])
        columns.append(NewColumn(name=name, form=kind.cell))
        if kind.scores in ("softmax", "sigmoid") and not kind.generates:
            columns.append(NewColumn(name=name + SCORE, form="number"))
        cells = [cell for beside in wish.beside if beside.task == name for cell in stored_cells(beside, tasks[name])]
        columns += [NewColumn(name=name + cell.end, form=cell.form, fields=cell.fields) for cell in cells]
    names = [column.name for column in columns]
    if several := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            "two columns of the table would have one name",
            got=several,
            do="name other tasks, or leave out --scores, --calibrated or --familiar",
        )
    return tuple(columns)


def write_answers(file: IO[bytes], ending: str, rows: Iterable[Row], columns: Sequence[NewColumn]) -> int:
    """Writes rows of `stored_rows` or `label_rows` in the format of the ending; returns their number.

    `columns` come from `table_columns`; columns of texts are left out where rows have no text.
    """
    written = 0

    def counted_rows() -> Iterator[Row]:
        nonlocal written
        for row in rows:
            written += 1
            yield few_digits(row)

    _WRITERS[ending](file, counted_rows(), columns)
    return written


def _to_jsonl(file: IO[bytes], rows: Iterator[Row], columns: Sequence[NewColumn]) -> None:
    file.writelines(msgspec.json.encode(row) + b"\n" for row in rows)


def _to_csv(file: IO[bytes], rows: Iterator[Row], columns: Sequence[NewColumn]) -> None:
    first = list(itertools.islice(rows, 1))
    names = [column.name for column in _written(columns, first)]
    file.write(record_bytes(names))
    for row in itertools.chain(first, rows):
        file.write(record_bytes(["" if row.get(name) is None else text_of_cell(row[name]) for name in names]))


def _to_parquet(file: IO[bytes], rows: Iterator[Row], columns: Sequence[NewColumn]) -> None:
    arrow = arrow_for()
    first = list(itertools.islice(rows, ROWS))
    schema = arrow.schema([(column.name, arrow_type_of(column)) for column in _written(columns, first)])
    with arrow.parquet.ParquetWriter(file, schema) as writer:
        chunk = first
        while chunk:
            writer.write_table(arrow.Table.from_pylist(chunk, schema))
            chunk = list(itertools.islice(rows, ROWS))


def _written(columns: Sequence[NewColumn], first: Sequence[Row]) -> list[NewColumn]:
    """The columns that the file gets: columns of texts only if one of the `first` rows has a text."""
    has_texts = any(TEXTS[0] in row for row in first)
    return [column for column in columns if has_texts or column.name not in TEXTS]


_WRITERS: Mapping[str, Callable[[IO[bytes], Iterator[Row], Sequence[NewColumn]], None]] = {
    ".csv": _to_csv,
    ".jsonl": _to_jsonl,
    ".parquet": _to_parquet,
}
