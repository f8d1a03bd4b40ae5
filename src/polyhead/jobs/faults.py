"""Which failures stop a job: those of the machine, which would be gone the next time. Those of a row are its answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from polyhead.engine.inputs import AnyInput, InputType, input_types_of
from polyhead.engine.session import Columns, Session
from polyhead.errors import BackendError, PolyheadError, in_words
from polyhead.text.question import Question

# How torch, ONNX Runtime and OpenVINO say, in errors of no type of its own, that there is no memory.
NO_MEMORY = re.compile(r"out of memory|can't allocate|failed to allocate|bad_alloc|ALLOC_FAILED", re.IGNORECASE)
# Texts of our own, each of which every task of its form answers.
PROBES: Mapping[InputType, AnyInput] = {
    "text": ("a text",),
    "pair": ("a text", "another text"),
    "question": Question(text="which one?", options=("this", "that")),
}


def all_columns(
    session: Session, inputs: Sequence[AnyInput], words: Sequence[np.ndarray | None], *, tasks: Iterable[str] | None
) -> Columns:
    """What a call gives; where every task fails on every input, columns that say so. Raises what is no row's fault."""
    try:
        return session.columns(inputs, tasks=tasks, words=words)
    except (MemoryError, OSError):
        raise
    except Exception:
        # A stream keeps what fails, and raises what is no task's own: a missing package, for one.
        stream = session.stream(inputs, tasks=tasks, words=words)
        for _ in stream:
            pass
        return stream.columns()


def check_machine(session: Session, columns: Columns) -> None:
    """Raises what no row is to blame for: MemoryError, OSError, or BackendError where no task answers any text.

    Where a row failed in every task that it fits, those tasks are asked about a text of our own. If one answers, the
    row is at fault; if none does, whatever was asked would fail, and the reason is nobody's answer.
    """
    errors = {name: column.errors for name, column in columns.tasks.items() if column.errors}
    for error in {id(one): one for by_row in errors.values() for one in by_row.values()}.values():
        _check_error(error)
    answered = {row for column in columns.tasks.values() for row in column.rows.tolist()} if errors else set()
    without = [name for name, by_row in errors.items() if not by_row.keys() <= answered]
    if not without:
        return
    probes = [PROBES[form] for form in PROBES if any(form in input_types_of(session.tasks[name]) for name in without)]
    try:
        session.columns(probes, tasks=without)
    except (MemoryError, OSError):
        raise
    except Exception as error:
        raise BackendError(
            "tasks fail on every text, also on one of our own; what was answered before is kept",
            got=f"{', '.join(without)}: {in_words(error)}",
            do="run the same command again when this is repaired",
        ) from error


def _check_error(error: Exception) -> None:
    if isinstance(error, (MemoryError, OSError)):
        raise error
    if not isinstance(error, PolyheadError) and NO_MEMORY.search(str(error)):
        raise MemoryError(in_words(error)) from error
