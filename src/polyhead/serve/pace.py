"""Passes of the encoder beside those of callers, which must not wait long for the processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, sleep

AT_ONCE = 4  # inputs of one pass
REST = 2.0  # times the pass before it
LONGEST_REST = 0.2  # seconds


class Pace:
    """While callers ask, a rest follows each pass; `is_busy` says whether any wait."""

    def __init__(self, is_busy: Callable[[], bool] = lambda: False) -> None:
        self._is_busy = is_busy

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Around one pass."""
        began, is_busy = perf_counter(), self._is_busy()
        yield
        if is_busy or self._is_busy():
            sleep(min(REST * (perf_counter() - began), LONGEST_REST))


ALONE = Pace()  # nobody asks
