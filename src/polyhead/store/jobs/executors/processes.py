"""Units done by processes of this machine (`spawn`); a killed one is replaced, and its unit is done again.

Each multiplies matrices in a single thread: several processes share the processor's cores better than one product does.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from polyhead.errors import JobError, in_words, without_frames
from polyhead.store.jobs.executors.base import TRIES, Executor, Work, lost

# variables of libraries that multiply matrices
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
PATIENCE = 5.0  # seconds for a worker to end without being killed


class Processes(Executor):
    """Processes of this machine."""

    name = "processes"

    def __init__(self, work: Work, *, workers: int, address: str | None = None) -> None:
        super().__init__(work, workers=workers, address=address)
        self._workers: list[_Worker] = []

    def results(self, units: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Each unit with its result, as it is done."""
        ahead, again = iter(units), deque[Any]()
        losses: Counter[Any] = Counter()
        try:
            while True:
                self._replace()
                for worker in self._workers:
                    if worker.unit is None and (unit := again.popleft() if again else next(ahead, None)) is not None:
                        worker.give(unit)
                busy = {worker.connection: worker for worker in self._workers if worker.unit is not None}
                if not busy:
                    return
                for connection in wait(list(busy)):
                    worker = busy[connection]  # type: ignore[index]
                    unit, worker.unit = worker.unit, None
                    try:
                        is_done, result = pickle.loads(worker.connection.recv_bytes())
                    except (EOFError, OSError):
                        worker.end()
                        losses[unit] += 1
                        if losses[unit] >= TRIES:
                            raise lost(unit, f"exit code {worker.process.exitcode}") from None
                        again.append(unit)
                        continue
                    if not is_done:
                        raise result
                    yield unit, result
        finally:
            if any(worker.unit is not None for worker in self._workers):  # nobody waits for their results any more
                self.close()

    def close(self) -> None:
        """Ends the processes."""
        for worker in self._workers:
            worker.end()
        self._workers = []

    def _replace(self) -> None:
        """Replaces workers that ended."""
        self._workers = [worker for worker in self._workers if not worker.is_ended]
        while len(self._workers) < self.workers:
            self._workers.append(_Worker(self.work))


class _Worker:
    """One process, and its current unit."""

    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.unit: Any = None
        self.is_ended = False
        self.process = context.Process(target=work_loop, args=(theirs, work), daemon=True)
        with single_threaded_children():
            self.process.start()
        theirs.close()

    def give(self, unit: Any) -> None:
        """Sends a unit; if the process has ended, reading its pipe reports it."""
        self.unit = unit
        with suppress(OSError):
            self.connection.send(unit)

    def end(self) -> None:
        """Ends the process."""
        self.is_ended = True
        self.connection.close()
        if self.unit is not None:
            self.process.terminate()
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextmanager
def single_threaded_children() -> Iterator[None]:
    """A context in which new processes multiply matrices in one thread."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def work_loop(connection: Connection, work: Work) -> None:
    """The loop of a worker: does units until none is sent."""
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            unit = connection.recv()
            try:
                content = pickle.dumps((True, work(unit)), pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                content = portable_error(error)
            connection.send_bytes(content)


def portable_error(error: Exception) -> bytes:
    """The error in a form that can be sent to another process, as text if necessary."""
    try:
        content = pickle.dumps((False, without_frames(error)))
        pickle.loads(content)
    except Exception:
        content = pickle.dumps((False, JobError("a worker failed", got=in_words(error))))
    return content
