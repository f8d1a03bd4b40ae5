"""Faults that stop a job are retryable faults of the machine; a fault of a row becomes the row's answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from polyhead.engine.answers import AnswerTable
from polyhead.engine.inputs import AnyInput, InputType, input_types_of
from polyhead.engine.session import Session
from polyhead.errors import BackendError, PolyheadError, in_words
from polyhead.text.question import Question

# Messages of torch, ONNX Runtime and OpenVINO about a lack of memory, which has no specific error type.
NO_MEMORY = re.compile(r"out of memory|can't allocate|failed to allocate|bad_alloc|ALLOC_FAILED", re.IGNORECASE)
# Built-in inputs; every task of an input type can answer the one of its type.
PROBES: Mapping[InputType, AnyInput] = {
    "text": ("a text",),
    "pair": ("a text", "another text"),
    "question": Question(text="which one?", options=("this", "that")),
}


def all_columns(
    session: Session,
    inputs: Sequence[AnyInput],
    words: Sequence[np.ndarray | None],
    *,
    tasks: Iterable[str] | None,
    familiar: bool = False,
) -> AnswerTable:
    """Answers as columns; if every task fails on every input, columns with these errors.

    Raises MemoryError, OSError and errors that no row causes, such as MissingExtra.
    """
    try:
        return session.columns(inputs, tasks=tasks, words=words, familiar=familiar)
    except (MemoryError, OSError):
        raise
    except Exception:
        # A stream records failures of tasks, and raises other errors, such as a missing package.
        stream = session.stream(inputs, tasks=tasks, words=words)
        for _ in stream:
            pass
        return stream.columns()


def check_machine(session: Session, columns: AnswerTable) -> None:
    """Raises errors that no row causes: MemoryError, OSError, or BackendError if no task answers any text.

    If a row failed in every task that it fits, these tasks answer a built-in text. If one succeeds, the row is at
    fault; if none does, every row would fail.
    """
    errors = {name: column.errors for name, column in columns.tasks.items() if column.errors}
    for error in {id(error): error for by_row in errors.values() for error in by_row.values()}.values():
        _check_error(error)
    answered = {row for column in columns.tasks.values() for row in column.rows.tolist()} if errors else set()
    without = [name for name, by_row in errors.items() if not by_row.keys() <= answered]
    if not without:
        return
    types = {input_type for name in without for input_type in input_types_of(session.tasks[name])}
    probes = [probe for input_type, probe in PROBES.items() if input_type in types]
    try:
        session.columns(probes, tasks=without)
    except (MemoryError, OSError):
        raise
    except Exception as error:
        raise BackendError(
            "tasks fail on every text, also on a built-in one; earlier answers are kept",
            got=f"{', '.join(without)}: {in_words(error)}",
            do="repair the cause, then run the same command again",
        ) from error


def _check_error(error: Exception) -> None:
    if isinstance(error, (MemoryError, OSError)):
        raise error
    if not isinstance(error, PolyheadError) and NO_MEMORY.search(str(error)):
        raise MemoryError(in_words(error)) from error
