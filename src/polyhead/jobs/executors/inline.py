"""Units done by this process, one after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from polyhead.jobs.executors.base import Executor


class Inline(Executor):
    """This process."""

    name = "inline"

    def results(self, units: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Each unit with its result, in order."""
        for unit in units:
            yield unit, self.work(unit)

    def close(self) -> None:
        """Nothing works any more."""
