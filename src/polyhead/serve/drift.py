"""Detects tasks that receive other texts than they were validated on, from a sample of live answers.

No text is kept, only the length, mean vector and answer scores of each sampled text.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from weakref import ref

import numpy as np

from polyhead.bundle.format import SEEN
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.row_profile import RowProfile, stored_profile
from polyhead.engine.familiar import LEAST as KNOWN
from polyhead.engine.familiar import directions, reads_one_text
from polyhead.engine.inputs import task_input
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.session import Session
from polyhead.engine.tickets import Ticket
from polyhead.errors import PolyheadError
from polyhead.evaluate.drift import distances, unlike_rows
from polyhead.evaluate.profile import as_texts, scores_in
from polyhead.tasks.task import Answer, Task
from polyhead.values import Value

log = logging.getLogger(__name__)

SPACING = 0.05  # seconds at least between two requests that are looked at
TEXTS = 16  # of such a request at most, evenly spaced
WAITING = 64  # requests that wait to be taken into windows
WINDOW = 256  # texts of a task that are compared: the newest
LEAST = 128  # of them before anything is told: chance alone puts fewer too far
STEP = 32  # new texts after which a task is compared again
REST = 50  # times as long as a comparison took no other begins: they take 2 % of a processor at most


class LiveDrift(Value):
    """The distance of a task's latest texts from those that it was validated on."""

    task: str
    version: str
    texts: int
    unlike: float  # share of them that are farther from the known ones than nearly all of these are
    distances: Mapping[str, float]  # by aspect, 0 to 1


class LiveText(Value, eq=False):
    """A sampled text."""

    length: int  # characters
    vector: np.ndarray  # float32 (width,)
    answers: Mapping[str, Answer]


class _Window:
    """The newest texts of one version of a task; after a removal another one may have its name."""

    def __init__(self, version: str, record: TaskRecord) -> None:
        self.version, self.record, self.new = version, record, 0
        self.rows: deque[tuple[int, np.ndarray, np.ndarray]] = deque(maxlen=WINDOW)  # lengths, vectors, scores

    def add(self, task: Task, text: LiveText) -> None:
        self.rows.append((text.length, text.vector, scores_in(task, text.answers[task.name])))
        self.new += 1

    def is_of(self, version: str | None, record: TaskRecord | None) -> bool:
        return (version, record) == (self.version, self.record)

    @property
    def is_due(self) -> bool:
        return self.new >= STEP and len(self.rows) >= LEAST

    def seen(self) -> RowProfile:
        lengths, vectors, scores = zip(*self.rows, strict=True)
        return RowProfile(
            vectors=directions(np.stack(vectors)), lengths=np.array(lengths, np.float32), scores=np.stack(scores)
        )


class DriftWatch:
    """Samples mean vectors and answers of requests, and compares them with the bundle's summaries in another thread.

    `asked` and `take` run on the event loop and never wait. A task is watched if its live version keeps a summary and
    it reads one text, in requests whose layers give the mean vector anyway.
    """

    def __init__(self, session: Session, vectors: str, *, now: Callable[[], float] = monotonic) -> None:
        """`vectors` names the hidden task whose output is the mean vector."""
        self._session, self._vectors, self._now, self._next = session, vectors, now, 0.0
        self._known: tuple[Callable[[], LoadedTasks | None], frozenset[str]] = (lambda: None, frozenset())
        self._waiting: queue.Queue[tuple[LoadedTasks, list[LiveText]] | None] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None
        self._windows: dict[str, _Window] = {}  # by task; these and what follows are the thread's
        self._due: deque[str] = deque()
        self._states: dict[str, tuple[_Window, LiveDrift]] = {}
        self._rests_until = 0.0

    def asked(self, tasks: Sequence[str], loaded: LoadedTasks) -> tuple[str, ...]:
        """The mean vector's task, for a sampled request; else nothing."""
        now = self._now()
        if now < self._next or self._vectors in tasks or self._waiting.full():
            return ()
        names = tuple(tasks)
        if self._watched(loaded).isdisjoint(names):
            return ()
        if loaded.runs_alike(names) != loaded.runs_alike((*names, self._vectors)):
            return ()  # it would run more layers, or in batches of its own
        self._next = now + SPACING
        return (self._vectors,)

    def take(self, ticket: Ticket, hidden: tuple[str, ...]) -> None:
        """Takes some of the ticket's texts."""
        read = [number for number, outputs in enumerate(ticket.outputs) if self._vectors in outputs]
        texts = []
        for number in read[:: -(-len(read) // TEXTS) or 1]:
            result, vector = ticket.results[number], ticket.outputs[number][self._vectors]
            if result is not None:
                ((text,),) = as_texts([task_input(ticket.inputs[number])])
                texts.append(LiveText(length=len(text), vector=vector.copy(), answers=result.answers))
        if not texts or self._waiting.full():
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="polyhead-drift", daemon=True)
            self._thread.start()
        self._waiting.put_nowait((ticket.loaded, texts))

    def states(self) -> list[LiveDrift]:
        """The latest comparison of each task's live version."""
        loaded = self._session.loaded
        versions, records = loaded.versions, loaded.records
        return [
            state
            for name, (window, state) in sorted(self._states.copy().items())
            if window.is_of(versions.get(name), records.get(name))
        ]

    @property
    def is_idle(self) -> bool:
        """Whether all that was taken by now is compared."""
        return not self._waiting.unfinished_tasks and not self._due

    def close(self) -> None:
        """Ends the thread; what waits there is left."""
        thread, self._thread = self._thread, None
        if thread is not None:
            with suppress(queue.Empty):
                while True:
                    self._waiting.get_nowait()
            self._waiting.put(None)
            thread.join()

    def _watched(self, loaded: LoadedTasks) -> frozenset[str]:
        known, names = self._known
        if known() is not loaded:
            names = frozenset(
                name
                for name, record in loaded.records.items()
                if SEEN in record.files and name in loaded.versions and reads_one_text(record.task)
            )
            self._known = (ref(loaded), names)
        return names

    def _work(self) -> None:
        while True:
            with suppress(queue.Empty):  # the pause is over
                pause = max(0.0, self._rests_until - monotonic()) if self._due else None
                item = self._waiting.get(timeout=pause)
                if item is None:
                    return
                self._add(*item)
                self._waiting.task_done()
            if self._due and monotonic() >= self._rests_until:
                self._compare(self._due[0])
                self._due.popleft()

    def _add(self, loaded: LoadedTasks, texts: Sequence[LiveText]) -> None:
        for name in self._watched(loaded):
            version, record, window = loaded.versions[name], loaded.records[name], self._windows.get(name)
            if window is None or not window.is_of(version, record):
                window = self._windows[name] = _Window(version, record)
            for text in texts:
                if name in text.answers:
                    window.add(loaded.tasks[name], text)
            if window.is_due and name not in self._due:
                self._due.append(name)
        for name in self._windows.keys() - self._session.loaded.records.keys() - set(self._due):
            del self._windows[name]  # removed since: names of tasks that come and go would fill the memory
            self._states.pop(name, None)

    def _compare(self, name: str) -> None:
        window, bundle, began = self._windows[name], self._session.bundle, monotonic()
        window.new = 0
        try:
            is_live = name in bundle.lines and window.is_of(bundle.version(name), bundle.tasks[name])
            known, rows = (stored_profile(bundle, name) if is_live else None), window.seen()
            if known is not None and len(known.lengths) >= KNOWN:
                share, _, _ = unlike_rows(known, rows)
                state = LiveDrift(
                    task=name,
                    version=window.version,
                    texts=len(rows.lengths),
                    unlike=share,
                    distances=distances(known, rows),
                )
                self._states[name] = window, state
        except PolyheadError as error:
            log.warning("the texts of task '%s' cannot be compared with those that it knows: %s", name, error)
        except Exception:
            log.exception("the texts of task '%s' cannot be compared with those that it knows", name)
        self._rests_until = monotonic() + REST * (monotonic() - began)
