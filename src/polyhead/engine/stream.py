"""Answers as soon as each is known."""

from __future__ import annotations

from collections.abc import Iterator

from polyhead.engine.backends.base import forks
from polyhead.engine.call import Call, Reader, TaskResults
from polyhead.engine.columns import Columns
from polyhead.engine.process import ProcessGuard


class Stream(Iterator[TaskResults]):
    """Gives a task's answers once the layers that it needs have run: tasks that need the fewest come first.

    A task over pairs read separately, in windows or over options is given when all that it reads of an input is there.
    After the deadline nothing more is given; `columns` then names what is late. What fails for one task is named there
    too, and stops no other. Tasks that are replaced or removed meanwhile answer here as when it began; what only they
    need stays in memory until the stream has ended or is forgotten.
    """

    def __init__(self, call: Call, reader: Reader) -> None:
        self._call, self._results, self._home = call, call.results(reader), ProcessGuard(forks=forks(reader.backend))

    def __next__(self) -> TaskResults:
        """The next answers; work goes on until they are known."""
        self._home.check()
        return next(self._results)

    def columns(self) -> Columns:
        """All that is answered by now, the receipts so far, and why the rest is not answered."""
        return self._call.columns()
