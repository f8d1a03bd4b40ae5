"""Seconds that work takes, whatever else the machine does meanwhile."""

from __future__ import annotations

import time


class Clock:
    """Counts from when it is made."""

    def __init__(self) -> None:
        self._wall, self._processor = time.monotonic(), time.process_time()

    @property
    def wall(self) -> float:
        """Seconds that passed."""
        return time.monotonic() - self._wall

    @property
    def seconds(self) -> float:
        """Seconds of work: those that passed, but no more than the processor spent on it."""
        return min(self.wall, time.process_time() - self._processor)
