"""Rows of a file, with labels or without, as a task reads them for a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from polyhead.data.columns import Source
from polyhead.data.read import read
from polyhead.data.rows import open_rows
from polyhead.engine.inputs import AnyInput, input_type_of, input_types_of, task_input
from polyhead.errors import BadValue, EmptyData
from polyhead.store.jobs.columns import RowInput, roles_of
from polyhead.store.jobs.documents import PIECE_ROWS
from polyhead.tasks.task import Task
from polyhead.text.question import TaskInput, texts_of
from polyhead.values import Value


class FileRows(Value, eq=False):
    """Inputs that a task reads, where they stand, and their labels where these are known."""

    inputs: list[TaskInput]
    words: Sequence[np.ndarray | None] | None
    rows: list[int]
    targets: list[np.ndarray] | None
    whole: int  # rows that there were

    def text(self, place: int) -> str:
        """What a row says."""
        return " | ".join(text for text in texts_of(self.inputs[place]) if text.strip())


def labelled_rows(source: Source, task: Task, *, most: int, seed: int) -> FileRows:
    """At most so many labelled rows, drawn; raises what reading the file raises."""
    examples = read(source, task)
    kept = sample(len(examples.inputs), most, seed)
    taken = examples.take(kept)
    own_words = taken.words if taken.gold is None else None  # None: the words of the text, which gold has cut here
    return FileRows(
        inputs=taken.inputs, words=own_words, rows=taken.rows, targets=taken.targets, whole=len(examples.inputs)
    )


def plain_rows(
    path: str, task: Task, roles: Mapping[str, str], *, most: int, seed: int, show: Callable[[str], None]
) -> FileRows:
    """At most so many rows that the task can read, drawn; raises EmptyData where there is none."""
    file = open_rows(path)
    known = roles_of(path, file.survey(show), dict(roles))
    read_types = input_types_of(task)
    read_rows: list[tuple[int, RowInput]] = []
    start = 0
    for chunk in file.chunks(known.wanted, start=0, size=PIECE_ROWS):
        for place, row in enumerate(known.inputs(chunk)):
            if not isinstance(row, BadValue) and _fits(row.input, read_types):
                read_rows.append((start + place + 1, row))
        start += len(chunk)
    if not read_rows:
        raise EmptyData(
            f"{path} holds no row that task '{task.name}' reads",
            got=f"{start:,} rows",
            allowed=read_types,
            do="name the columns: --text COLUMN",
        )
    kept = [read_rows[place] for place in sample(len(read_rows), most, seed)]
    return FileRows(
        inputs=[task_input(row.input) for _, row in kept],
        words=_words([row.words for _, row in kept]),
        rows=[number for number, _ in kept],
        targets=None,
        whole=len(read_rows),
    )


def _fits(entry: AnyInput, read_types: Sequence[str]) -> bool:
    return input_type_of(entry) in read_types and all(text.strip() for text in texts_of(task_input(entry))[:1])


def _words(words: list[np.ndarray | None]) -> list[np.ndarray | None] | None:
    return words if any(each is not None for each in words) else None


def sample(count: int, most: int, seed: int) -> list[int]:
    """At most so many of the numbers below `count`, drawn without repetition, in order."""
    places: list[int] = np.sort(np.random.default_rng(seed).permutation(count)[:most]).tolist()
    return places
