"""Rests after passes of the encoder and parts of new graphs, so that callers get the processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, sleep

from polyhead.engine.compile.ops import PART

FEW, MANY = 4, 16  # inputs of one pass while callers ask, and else
REST = 5.0  # times the pass, or the part of a graph, before it
LONGEST_REST = 0.5  # seconds


class Pace:
    """While callers ask, a rest follows each pass; `is_busy` says whether any wait."""

    def __init__(self, is_busy: Callable[[], bool] = lambda: False) -> None:
        self._is_busy = is_busy

    @property
    def at_once(self) -> int:
        """How many inputs the next pass may have."""
        return FEW if self._is_busy() else MANY

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Around one pass."""
        began, is_busy = perf_counter(), self._is_busy()
        yield
        if is_busy or self._is_busy():
            sleep(min(REST * (perf_counter() - began), LONGEST_REST))

    @contextmanager
    def building(self) -> Iterator[None]:
        """Around graphs that this thread builds: each part counts as a pass."""
        token = PART.set(self.one_pass)
        try:
            yield
        finally:
            PART.reset(token)


ALONE = Pace()  # nobody asks
