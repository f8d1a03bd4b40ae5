"""What a server did in the last minute, second by second: from what its queue tells of each batch."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from polyhead.engine.queue import BatchFacts
from polyhead.values import Value

SECONDS = 60


class LoadAnswer(Value):
    """Columns of the last full seconds, oldest first."""

    now: int  # inputs that wait at this moment
    requests: list[int]  # answered in each second; one that was read in several batches counts in each
    inputs: list[int]
    waiting: list[int]  # the most inputs that waited behind a batch
    milliseconds: list[float | None]  # from an input's coming to its answer, the mean; None where there was no answer
    slowest: list[float | None]


class Load:
    """Counts of the last minute. `batch` is called by one thread, `answer` by any other."""

    def __init__(self, waiting: Callable[[], int], *, clock: Callable[[], float] = monotonic) -> None:
        """`waiting` says how many inputs wait."""
        self._waiting, self._clock = waiting, clock
        # A ring: a second is replaced as a whole, so that no reader sees it half made.
        self._ring = [_Second(-1) for _ in range(SECONDS + 2)]

    def batch(self, facts: BatchFacts) -> None:
        """Counts a batch."""
        now = int(self._clock())
        place = now % len(self._ring)
        second = self._ring[place]
        if second.at != now:
            second = self._ring[place] = _Second(now)
        second.requests += facts.tickets
        second.inputs += facts.inputs
        second.time += sum(facts.waited) + facts.seconds * len(facts.waited)
        second.slowest = max(second.slowest, max(facts.waited, default=0.0) + facts.seconds)
        second.waiting = max(second.waiting, self._waiting())

    def answer(self) -> LoadAnswer:
        """The last minute; the second that is under way is left out."""
        now = int(self._clock())
        seconds = [self._second(at) for at in range(now - SECONDS, now)]
        return LoadAnswer(
            now=self._waiting(),
            requests=[each.requests for each in seconds],
            inputs=[each.inputs for each in seconds],
            waiting=[each.waiting for each in seconds],
            milliseconds=[round(1000 * each.time / each.inputs, 2) if each.inputs else None for each in seconds],
            slowest=[round(1000 * each.slowest, 2) if each.inputs else None for each in seconds],
        )

    def _second(self, at: int) -> _Second:
        second = self._ring[at % len(self._ring)]
        return second if second.at == at else _Second(at)


class _Second:
    __slots__ = ("at", "inputs", "requests", "slowest", "time", "waiting")

    def __init__(self, at: int) -> None:
        self.at = at
        self.requests = self.inputs = self.waiting = 0
        self.time = self.slowest = 0.0  # seconds
