"""Stored answers as a table: a row for each document, with its text where a file of texts is given."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import msgspec

from polyhead.data.tables.arrow import arrow_for
from polyhead.data.tables.delimited import record_bytes
from polyhead.data.tables.written import text_of_cell
from polyhead.engine.familiar import KEY
from polyhead.store.jobs.labels import AT_ONCE, ID, SCORE, TEXTS, LabelRequest, given_rows
from polyhead.store.jobs.stored import StoredAnswers
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task

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


def write_answers(file: IO[bytes], ending: str, rows: Iterable[Row], tasks: Mapping[str, Task]) -> int:
    """Writes rows of `stored_rows` or `label_rows` of these tasks in the format of the ending; returns their number."""
    written = 0

    def counted_rows() -> Iterator[Row]:
        nonlocal written
        for row in rows:
            written += 1
            yield row

    _WRITERS[ending](file, counted_rows(), tasks)
    return written


def _to_jsonl(file: IO[bytes], rows: Iterator[Row], tasks: Mapping[str, Task]) -> None:
    file.writelines(msgspec.json.encode(row) + b"\n" for row in rows)


def _to_csv(file: IO[bytes], rows: Iterator[Row], tasks: Mapping[str, Task]) -> None:
    first = list(itertools.islice(rows, 1))
    columns = _columns(tasks, first)
    file.write(record_bytes(list(columns)))
    for row in itertools.chain(first, rows):
        file.write(record_bytes(["" if row.get(name) is None else text_of_cell(row[name]) for name in columns]))


def _to_parquet(file: IO[bytes], rows: Iterator[Row], tasks: Mapping[str, Task]) -> None:
    arrow = arrow_for()
    first = list(itertools.islice(rows, ROWS))
    types = {str: arrow.string(), float: arrow.float64(), list: arrow.list_(arrow.string())}
    schema = arrow.schema([(name, types[kind]) for name, kind in _columns(tasks, first).items()])
    with arrow.parquet.ParquetWriter(file, schema) as writer:
        chunk = first
        while chunk:
            writer.write_table(arrow.Table.from_pylist(chunk, schema))
            chunk = list(itertools.islice(rows, ROWS))


def _columns(tasks: Mapping[str, Task], first: Sequence[Row]) -> dict[str, type]:
    """Every column of rows that begin so, and what its cells hold; pairs may follow a single text."""
    columns: dict[str, Any] = {ID: str, **dict.fromkeys(TEXTS, str)}
    for name, task in tasks.items():
        columns[name] = float if task.range is not None else list if kind_of(task).scores == "sigmoid" else str
        columns[name + SCORE] = columns[f"{name}.{KEY}"] = float
    names = {name for row in first for name in row}
    names |= {ID, *(TEXTS if TEXTS[0] in names else ())}
    return {name: kind for name, kind in columns.items() if name in names}


_WRITERS: Mapping[str, Callable[[IO[bytes], Iterator[Row], Mapping[str, Task]], None]] = {
    ".csv": _to_csv,
    ".jsonl": _to_jsonl,
    ".parquet": _to_parquet,
}
