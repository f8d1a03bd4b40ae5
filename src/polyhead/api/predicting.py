"""Inputs of a `Model`, and its answers as lists: None for a missing answer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyhead.data.guess_kind import is_missing
from polyhead.engine.answers import AnswerColumn, AnswerTable
from polyhead.engine.inputs import IN_WORDS, InputType, Passage, input_type_of, input_types_of, reads_in_words
from polyhead.errors import BadValue
from polyhead.progress import counted
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.question import Question
from polyhead.text.words import join_tokens
from polyhead.values import few_digits


def is_alone(texts: object, tasks: Mapping[str, Task]) -> bool:
    """Whether this is one input: a string, a `Question`, a `Passage`, or a tuple of two texts, which is a pair.

    Raises BadValue for such a tuple if none of these tasks reads pairs.
    """
    if isinstance(texts, str | Question | Passage):
        return True
    if not isinstance(texts, tuple) or len(texts) != 2 or not tasks:
        return False
    if not all(isinstance(text, str) or is_missing(text) for text in texts):
        return False
    if any("pair" in input_types_of(task) for task in tasks.values()):
        return True
    raise BadValue(
        "a tuple of two texts is a pair, and no task here reads pairs",
        got=texts,
        allowed=_reads(tasks),
        do="put two texts into a list: predict([a, b])",
    )


def check_names_of_scores(tasks: Mapping[str, Task]) -> None:
    """Raises BadValue if a task has the name of another one's column of scores, `TASK.scores`."""
    names = {f"{name}.scores" for name, task in tasks.items() if kind_of(task).score_cell is not None}
    if twice := sorted(names.intersection(tasks)):
        do = "leave out the scores, or name tasks: predict(texts, tasks=[...], scores=True)"
        raise BadValue("two columns of answers would have one name", got=twice, do=do)


def as_input(entry: Any) -> Any:
    """An input as a session takes it: words joined to a text, a missing text as an empty one."""
    if isinstance(entry, list):
        return join_tokens(entry)[0]
    return "" if entry is None else entry


def word_places(inputs: Sequence[Any]) -> list[np.ndarray | None] | None:
    """The places of the words of inputs that are lists of words."""
    if not any(isinstance(entry, list) for entry in inputs):
        return None
    return [join_tokens(entry)[1] if isinstance(entry, list) else None for entry in inputs]


def cells_by_task(
    columns: AnswerTable, inputs: Sequence[Any], *, are_named: bool, has_scores: bool
) -> dict[str, list[Any]]:
    """The answers of each task that reads some inputs; with `has_scores` also each label's score in `TASK.scores`.

    Raises BadValue if a named task reads none of them, or no task does. Warns of a failed task.
    """
    types = {_type_of(entry) for entry in inputs if entry is not None}
    cells: dict[str, list[Any]] = {}
    for name, column in columns.tasks.items():
        if types and types.isdisjoint(input_types_of(column.task)):
            if are_named:
                raise _unread(types, {name: column.task})
            continue
        if column.failed:
            row, reason = next(iter(column.failed.items()))
            inputs_failed = counted(len(column.failed), "input")
            warnings.warn(f"task '{name}' failed on {inputs_failed}. Row {row}: {reason}", stacklevel=3)
        kind = kind_of(column.task)
        cells[name] = _spread(column, [few_digits(kind.cell_of(answer)) for answer in column.answers], len(inputs))
        if has_scores and kind.score_cell is not None:
            cells[f"{name}.scores"] = _spread(
                column, [few_digits(answer["scores"]) for answer in column.answers], len(inputs)
            )
    if not cells and columns.tasks:
        raise _unread(types, {name: column.task for name, column in columns.tasks.items()})
    return cells


def _spread(column: AnswerColumn, values: Sequence[Any], count: int) -> list[Any]:
    """The values of the answered inputs, None for the others."""
    cells = list[Any]([None] * count)
    for row, value in zip(column.rows.tolist(), values, strict=True):
        cells[row] = value
    return cells


def _type_of(entry: Any) -> InputType:
    return "text" if isinstance(entry, str | list) else input_type_of(entry)


def _unread(types: set[InputType], tasks: Mapping[str, Task]) -> BadValue:
    subject = f"task '{next(iter(tasks))}' reads" if len(tasks) == 1 else "the tasks read"
    return BadValue(
        f"{subject} no input of this form",
        got=" and ".join(sorted(IN_WORDS[input_type] for input_type in types)),
        allowed=_reads(tasks),
        do="give such inputs; a pair is a tuple of two texts, or columns of a data frame: text=..., text_b=...",
    )


def _reads(tasks: Mapping[str, Task]) -> list[str]:
    return [f"{reads_in_words(input_types_of(task))} (task '{name}')" for name, task in tasks.items()]
