"""Answers as soon as each is known."""

from __future__ import annotations

from collections.abc import Iterator

from polyhead.config import Value
from polyhead.engine.backends.base import forks
from polyhead.engine.call import Call, Reader
from polyhead.engine.columns import Column, Columns
from polyhead.engine.process import ProcessGuard
from polyhead.tasks.task import Answer


class TaskResults(Value):
    """One task's answers to some inputs."""

    task: str
    answers: dict[int, Answer]  # by the number of the input
    layers_left: int  # that the batch would still run for other tasks


class Stream(Iterator[TaskResults]):
    """Gives a task's answers once the layers that it needs have run: tasks that need the fewest come first.

    A task over pairs read separately, in windows or over options is given when all that it reads of an input is there.
    After the deadline nothing more is given; `columns` then names what is late. What fails for one task is named there
    too, and stops no other. Tasks that are replaced or removed meanwhile answer here as when it began; what only they
    need stays in memory until the stream has ended or is forgotten.
    """

    def __init__(self, call: Call, reader: Reader) -> None:
        self._call, self._found, self._home = (call, call.found(reader), ProcessGuard(forks=forks(reader.backend)))

    def __next__(self) -> TaskResults:
        """The next answers; work goes on until they are known."""
        self._home.check()
        found = next(self._found)
        column = Column(
            self._call.roster.tasks[found.task], self._call.asked.inputs, found.outputs, skipped={}, failed={}, late=()
        )
        answers = dict(zip(column.rows.tolist(), column.answers, strict=True))
        return TaskResults(task=found.task, answers=answers, layers_left=found.layers_left)

    def columns(self) -> Columns:
        """All that is answered by now, the receipts so far, and why the rest is not answered."""
        return self._call.columns()
