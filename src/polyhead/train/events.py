"""Reports of long work: lines, progress with an estimate, and one JSON line per event."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from polyhead.progress import progress_line

Say = Callable[[str], None]
Listener = Callable[[str, Mapping[str, object]], None]
"""Hears each event's name and facts."""

UPDATE_SECONDS = 10.0  # between two events of one training; an epoch always ends with one
LAP_SECONDS = 30.0  # between two permanent lines about epochs of one training


class Events:
    """Reports events to a listener, and to a JSONL file on request.

    `say` receives finished lines; `show` receives a line that replaces the last one shown (progress), "" to clear it.
    """

    def __init__(
        self,
        *,
        say: Say | None = None,
        show: Say | None = None,
        file: Path | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._say, self._show, self._file = say or _silent, show or _silent, file
        self._listeners, self._shown = tuple(listeners), 0.0
        self._facts: dict[str, object] = {}
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)

    def within(self, run: str) -> Events:
        """The same for one training among several: its events have `run` among their facts."""
        events = copy.copy(self)
        events._facts = {**self._facts, "run": "/".join([*map(str, self._facts.values()), run])}
        return events

    def line(self, text: str) -> None:
        """A line for people."""
        self._show("")
        self._say(text)

    def event(self, name: str, **facts: object) -> None:
        """A line for programs: time in seconds since 1970, name, facts."""
        facts = {**self._facts, **facts}
        if self._file is not None:
            with self._file.open("ab") as out:
                out.write(msgspec.json.encode({"time": time.time(), "event": name, **facts}) + b"\n")
        for listener in self._listeners:
            listener(name, facts)

    def progress(self, label: str, *, unit: str, done: int = 0, at_most: bool = False) -> Progress:
        """A counter that shows rate and estimate at most five times a second; `done` was finished before.

        `at_most`: the work may end before the total.
        """
        return Progress(self, label, unit, done, at_most=at_most)

    def _progress(self, text: str, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self._shown > 0.2:
            self._shown = now
            self._show(text)


class Progress:
    """Done, total, rate and remaining time of one long step."""

    def __init__(self, events: Events, label: str, unit: str, before: int = 0, *, at_most: bool = False) -> None:
        self._events, self._label, self._unit, self._before = events, label, unit, before
        self._started, self._at_most = time.monotonic(), at_most
        self._last_lap = self._started

    @property
    def seconds(self) -> float:
        """Elapsed seconds."""
        return time.monotonic() - self._started

    def update(self, done: int, total: int, share: float | None = None, *, note: str = "") -> None:
        """Shows the current progress; `share` of the work is done, where units differ."""
        line = progress_line(
            self._label,
            done=done,
            total=total,
            unit=self._unit,
            seconds=self.seconds,
            before=self._before,
            at_most=self._at_most,
            share=share,
        )
        self._events._progress(line + (note and f"  {note}"))

    def lap(self, name: str, number: int, most: int, note: str) -> None:
        """Ends an epoch or a round: a permanent line, unless one came less than LAP_SECONDS before."""
        now = time.monotonic()
        if now - self._last_lap >= LAP_SECONDS:
            self._last_lap = now
            self._events.line(f"{self._label}: {name} {number} of {'at most ' * self._at_most}{most}, {note}")

    def finish(self) -> float:
        """Clears the line; returns the elapsed seconds."""
        self._events._progress("", force=True)
        return self.seconds


class Meter:
    """Aggregates updates for events `training`, one every few seconds, and for events `epoch`.

    `heads` name each task's head, which tasks of one family share; others have a head of their own name. A head in r of
    an update's K micro-batches gets r / K of its own mean gradient; these shares, summed over updates, are its
    effective steps.
    """

    def __init__(
        self, events: Events, heads: Mapping[str, str] | None = None, *, seconds: float = UPDATE_SECONDS
    ) -> None:
        self._events, self._heads, self._seconds = events, dict(heads or {}), seconds
        self.micro_batches = dict.fromkeys(self._heads, 0)  # read of each task so far
        self.effective_steps = dict.fromkeys(self._heads.values(), 0.0)
        self._scores: Mapping[str, Mapping[str, float]] = {}
        self._last: tuple[int, float] | None = None  # step and learning rate of the last unreported update
        self.start()

    def start(self) -> None:
        """Starts the clock: an epoch begins."""
        self._epoch_began, self._epoch_tokens = time.monotonic(), 0
        self._clear()

    def read(self, tasks: Sequence[str]) -> None:
        """Counts an update's micro-batches, by their tasks."""
        for task in tasks:
            head = self._heads.get(task, task)
            self.micro_batches[task] = self.micro_batches.get(task, 0) + 1
            self.effective_steps[head] = self.effective_steps.get(head, 0.0) + 1 / len(tasks)

    def update(self, *, step: int, losses: Sequence[tuple[str, float]], learning_rate: float, tokens: int) -> None:
        """Counts an update, and reports all since the last report if it is time.

        Steps count from 1, over all epochs; `losses` are those of its micro-batches, each with its task; `tokens` are
        without padding.
        """
        self.read([task for task, _ in losses])
        for task, loss in losses:
            self._losses.setdefault(task, []).append(loss)
        self._tokens += tokens
        self._epoch_tokens += tokens
        self._last = step, learning_rate
        if time.monotonic() - self._began >= self._seconds:
            self.tell()

    def tell(self) -> None:
        """Event `training` about the updates since the last one; losses are means over each task's micro-batches."""
        if self._last is None:
            return
        self._events.event(
            "training",
            step=self._last[0],
            loss={task: sum(losses) / len(losses) for task, losses in sorted(self._losses.items())},
            learning_rate=self._last[1],
            tokens_a_second=_rate(self._tokens, self._began),
            micro_batches=self.micro_batches,
            effective_steps={head: round(steps, 4) for head, steps in self.effective_steps.items()},
        )
        self._clear()

    @property
    def tokens_a_second(self) -> float:
        """Tokens per second of the epoch so far, without padding."""
        return _rate(self._epoch_tokens, self._epoch_began)

    def scored(self, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Every task's metrics on validation, with the current weights."""
        self._scores = scores

    def epoch(self, row: Mapping[str, float], *, step: int) -> None:
        """Event `epoch`: its row in the history, and all scores."""
        self._events.event("epoch", step=step, **row, validation=self._scores)

    def _clear(self) -> None:
        self._began, self._tokens = time.monotonic(), 0
        self._losses: dict[str, list[float]] = {}
        self._last = None


def _rate(tokens: int, began: float) -> float:
    return round(tokens / max(time.monotonic() - began, 1e-9), 1)


def _silent(text: str) -> None:
    pass
