"""Units done by this process, one after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from polyhead.machine import one_blas_thread
from polyhead.store.jobs.executors.base import Executor


class Inline(Executor):
    """This process."""

    name = "inline"

    def results(self, units: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Each unit with its result, in order."""
        for unit in units:
            with one_blas_thread():  # not around the yield, where other code runs
                done = self.work(unit)
            yield unit, done

    def close(self) -> None:
        """Nothing works any more."""
