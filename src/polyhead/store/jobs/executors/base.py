"""The interface of executors: every unit of a job is done at least once, whatever happens to the workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Self

from polyhead.errors import JobError
from polyhead.machine import one_blas_thread
from polyhead.registry import Registry

Work = Callable[[Any], Any]
"""What is done with a unit, a value that can be compared.

It is pickled once for every worker, and has no effect but its result: a unit whose worker was lost is done again.
"""
TRIES = 3  # workers that a unit may lose


class Executor(ABC):
    """Workers that hold one `Work`; a context manager that stops them at its end."""

    name: ClassVar[str]

    def __init__(self, work: Work, *, workers: int, address: str | None = None) -> None:
        """`address`: that of a cluster, for executors that use one."""
        self.work, self.workers, self.address = work, workers, address

    @abstractmethod
    def results(self, units: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Each unit with its result, in any order. An error of the work itself is raised here."""

    @abstractmethod
    def close(self) -> None:
        """Stops the workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lost(unit: object, how: str) -> JobError:
    """The error for a unit that ended every worker it was given to."""
    return JobError(
        f"{TRIES} workers ended while they did the same unit",
        got=f"{unit}: {how}",
        do="look whether memory ran out, and run the same command again: what was finished is kept",
    )


EXECUTORS: Registry[type[Executor]] = Registry("executor")
"""The executors that are registered, by name."""
register_executor = EXECUTORS.register


class Inline(Executor):
    """An executor in the current process."""

    name = "inline"

    def results(self, units: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Each unit with its result, in order."""
        for unit in units:
            with one_blas_thread():  # not around the yield, where other code runs
                done = self.work(unit)
            yield unit, done

    def close(self) -> None:
        """Does nothing: there are no workers."""
