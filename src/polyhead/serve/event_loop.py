"""The event loop kept free: long work in threads, rests of background work, and how late callbacks run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from time import monotonic, perf_counter, sleep
from typing import ParamSpec, TypeVar

from polyhead.engine.compile.ops import PART

LARGE = 16_384  # characters, bytes or values, of which work is done in another thread
# Two threads: each more would let the event loop wait longer for Python's lock.
_THREADS = ThreadPoolExecutor(2, "polyhead-beside")
P = ParamSpec("P")
T = TypeVar("T")


async def off_loop(size: int, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Calls a function, in a thread if the size of its work is LARGE."""
    if size < LARGE:
        return function(*arguments, **named)
    call = partial(copy_context().run, function, *arguments, **named)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, call)


FEW, MANY = 4, 16  # inputs of one pass while callers ask, and else
REST = 5.0  # times the pass, or the part of a graph, before it
LONGEST_REST = 0.5  # seconds


class Pace:
    """While callers ask, a rest follows each pass; `is_busy` says whether any wait."""

    def __init__(self, is_busy: Callable[[], bool] = lambda: False) -> None:
        self._is_busy = is_busy

    @property
    def at_once(self) -> int:
        """The maximum number of inputs of the next pass."""
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


HALVED = 1.0  # seconds after which a delay counts half


class LoopLag:
    """The longest recent delay; it decays with time."""

    def __init__(self) -> None:
        self._longest, self._at = 0.0, monotonic()

    @property
    def seconds(self) -> float:
        """The delay to expect."""
        return float(self._longest * 0.5 ** ((monotonic() - self._at) / HALVED))

    def learn(self, seconds: float) -> None:
        """Takes a delay, from when a callback was ready to when the loop ran it."""
        self._longest, self._at = max(seconds, self.seconds), monotonic()
