"""How late the event loop runs callbacks that are ready. In an overloaded server one turn of it takes seconds."""

from __future__ import annotations

from time import monotonic

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
