"""How late the event loop comes to what is ready. With more requests than it can read, a turn takes seconds."""

from __future__ import annotations

from time import monotonic

HALVED = 1.0  # seconds in which a lag that was seen counts half


class LoopLag:
    """The longest lag seen of late, which fades."""

    def __init__(self) -> None:
        self._longest, self._at = 0.0, monotonic()

    @property
    def seconds(self) -> float:
        """The lag to expect."""
        return float(self._longest * 0.5 ** ((monotonic() - self._at) / HALVED))

    def learn(self, seconds: float) -> None:
        """Takes a lag: from when something was ready to when the loop came to it."""
        self._longest, self._at = max(seconds, self.seconds), monotonic()
