"""The process that something was opened in: threads and locks of libraries do not go with a fork."""

from __future__ import annotations

import os

from polyhead.errors import BackendError


class ProcessGuard:
    """The process that makes it; what `forks` has no threads of its own, and goes on in any other."""

    def __init__(self, *, forks: bool) -> None:
        self._pid = None if forks else os.getpid()

    def check(self) -> None:
        """Raises BackendError in any other process, where a call would wait for threads that are not there."""
        process = os.getpid()
        if self._pid not in (None, process):
            raise BackendError(
                "a session that was opened before a fork cannot answer after it",
                got=f"process {process}, forked from process {self._pid}, which opened it",
                allowed="the process that opened it",
                do="open a session in each process after the fork, or start processes with multiprocessing's 'spawn'",
            )


class Pool:
    """The threads that torch keeps for products: of a process that was forked after they began, they are gone."""

    def __init__(self) -> None:
        self._has_threads = self._is_lost = False

    def use(self, threads: int) -> None:
        """Called before torch computes in so many threads; raises BackendError where that would never end."""
        if threads < 2:
            return
        if self._is_lost:
            raise BackendError(
                "torch cannot compute in several threads in a process that was forked after it had",
                got=f"{threads} threads",
                allowed="one thread",
                do="call torch.set_num_threads(1) after the fork, start processes with multiprocessing's 'spawn', or "
                "take another backend",
            )
        if not self._has_threads:
            self._has_threads = True
            os.register_at_fork(after_in_child=self._lose)

    def _lose(self) -> None:
        self._is_lost = True


TORCH_POOL = Pool()
