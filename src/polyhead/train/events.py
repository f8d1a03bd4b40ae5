"""What long work tells the outside: lines, progress with an estimate, and one JSON line an event."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

Say = Callable[[str], None]


class Events:
    """Tells a listener what happens, and keeps a JSONL file of it where asked.

    `say` gets finished lines; `show` gets a line that replaces the last one shown (progress), "" to clear it.
    """

    def __init__(self, *, say: Say | None = None, show: Say | None = None, file: Path | None = None) -> None:
        self._say, self._show, self._file = say or _silent, show or _silent, file
        self._shown = 0.0
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)

    def line(self, text: str) -> None:
        """A line for people."""
        self._show("")
        self._say(text)

    def event(self, name: str, **facts: object) -> None:
        """A line for programs: time in seconds since 1970, name, facts."""
        if self._file is not None:
            with self._file.open("ab") as out:
                out.write(msgspec.json.encode({"time": time.time(), "event": name, **facts}) + b"\n")

    def progress(self, label: str, *, unit: str) -> Progress:
        """A counter that shows rate and estimate at most five times a second."""
        return Progress(self, label, unit)

    def _progress(self, text: str, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self._shown > 0.2:
            self._shown = now
            self._show(text)


class Progress:
    """Done, total, rate and time left of one long step."""

    def __init__(self, events: Events, label: str, unit: str) -> None:
        self._events, self._label, self._unit = events, label, unit
        self._started = time.monotonic()

    def update(self, done: int, total: int, note: str = "") -> None:
        """Shows where the work stands."""
        seconds = time.monotonic() - self._started
        rate = done / seconds if seconds > 0 else 0.0
        left = (total - done) / rate if rate else 0.0
        self._events._progress(
            f"{self._label}: {done:,} of {total:,} {self._unit}, {rate:,.0f} a second, "
            f"about {duration(left)} left{note and '  ' + note}"
        )

    def finish(self) -> float:
        """Clears the line; gives the seconds that passed."""
        self._events._progress("", force=True)
        return time.monotonic() - self._started


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s` or `1 h 02 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _silent(text: str) -> None:
    pass
