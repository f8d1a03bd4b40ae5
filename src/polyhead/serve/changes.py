"""Changes of a served bundle: new tasks are loaded, warmed and tried before callers see them."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from time import monotonic, time
from typing import TypeVar

import msgspec

from polyhead.bundle.format import BUNDLE
from polyhead.bundle.read import Bundle
from polyhead.engine.loaded import Changes, LoadedTasks
from polyhead.engine.session import Session
from polyhead.serve.event_loop import ALONE, Pace
from polyhead.serve.trial import Isolation, check_new, without_paths
from polyhead.values import Value

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 300.0  # seconds until content that was refused is tried again
OVERTAKEN = 10  # attempts at content that changes while it is read
T = TypeVar("T")
Mark = tuple[int, ...]


class Refusal(Value):
    """A state of the bundle on disk that was not taken over."""

    at: float  # seconds since 1970
    error: str  # without paths


class ChangeState(Value):
    """The state of following the bundle's changes."""

    is_watched: bool
    taken: int  # changes that were taken over
    refused: int  # attempts that failed
    refusal: Refusal | None = None  # why what lies on disk now is not live; None where it is


def in_lines(changes: Changes, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The changes, one line per task; the mappings hold the versions of tasks."""
    lines = [f"task '{name}' was added, {after.get(name, '')}" for name in changes.attached]
    lines += [f"task '{name}' went from {before.get(name, '')} to {after.get(name, '')}" for name in changes.replaced]
    lines += [f"task '{name}' was removed" for name in changes.detached]
    return lines or ["the bundle's families changed, no task did"]


class BundleChanges:
    """Loads changes of a bundle's folder, all of them or none.

    New tasks are loaded next to the live ones, and answer built-in inputs (which compiles their graphs) and their
    probes; other tasks must answer their own probes as before. Then the tasks are swapped. Running calls end with the
    tasks they began with. After a failure the old tasks stay, the reason is logged and shown by `state`, and the same
    content is tried again after growing pauses.
    """

    def __init__(
        self,
        session: Session,
        *,
        seconds: float,
        warm: Callable[[LoadedTasks], None],
        requested: Callable[[LoadedTasks], Sequence[str]],
        pace: Pace = ALONE,
    ) -> None:
        """`seconds` between two looks at the folder, 0 for none; `warm` answers texts with the tasks of a moment.

        `requested` gives the names of the tasks that callers request in one call.
        """
        self._session, self._seconds, self._warm, self._asked = session, seconds, warm, requested
        self._places = {str(session.bundle.root.resolve()): "the bundle", str(session.bundle.root): "the bundle"}
        self._isolation = Isolation(tolerance=session.backend.tolerance, pace=pace)
        self._pace = pace
        self._thread = ThreadPoolExecutor(1, "polyhead-changes")  # a runtime keeps memory for each thread that calls it
        self.taking = threading.Lock()  # held from the check of what is new until it answers; one for all of a set
        self._live: Mark | None = None  # the file as it was last taken over, or found to hold nothing new
        self._refused: tuple[Mark, Exception] | None = None
        self._again, self._pause = 0.0, FIRST_PAUSE
        self._state = ChangeState(is_watched=seconds > 0, taken=0, refused=0)
        self._watching: asyncio.Task[None] | None = None
        self.observers: list[Callable[[ChangeState], None]] = []  # called in the thread that took over, or failed to

    @property
    def state(self) -> ChangeState:
        """How far the server follows its bundle."""
        return self._state

    def start(self) -> None:
        """Looks at the folder from now on; called on the event loop."""
        if self._seconds and self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self, seconds: float) -> None:
        """Stops watching; waits at most `seconds` for a change that is being loaded."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        with suppress(TimeoutError):
            await asyncio.wait_for(self._in_thread(self._ended), seconds)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def take(self) -> Changes:
        """Takes over what lies on disk now, and gives what changed; raises why it cannot be taken over."""
        return await self._in_thread(self.take_now)

    def take_now(self, *, is_patient: bool = False) -> Changes:
        """The same in this thread; with `is_patient`, refused content is tried again only after its pause."""
        with self.taking:
            for retries in reversed(range(OVERTAKEN)):
                mark = self._mark()
                if mark == self._live:
                    return Changes()
                if self._refused is not None and self._refused[0] != mark:
                    self._pause = FIRST_PAUSE
                elif self._refused is not None and is_patient and monotonic() < self._again:
                    return Changes()
                try:
                    changes, is_new = self._taken()
                except Exception as error:
                    if retries and self._mark() != mark:
                        continue  # it changed again while it was read, and earlier files may be gone
                    self._refuse(mark, error)
                    raise
                self._live, self._refused, self._pause = mark, None, FIRST_PAUSE
                self._tell(taken=self._state.taken + is_new, refusal=None)
                return changes
            raise AssertionError("the last of them returns or raises")

    def _ended(self) -> None:
        with self.taking:
            pass

    async def _watch(self) -> None:
        while True:
            with suppress(Exception):  # it is logged and told
                await self._in_thread(partial(self.take_now, is_patient=True))
            await asyncio.sleep(self._seconds)

    def _mark(self) -> Mark:
        """A value that changes when the list of live versions is replaced."""
        try:
            facts = os.stat(self._session.bundle.root / BUNDLE)
        except OSError:
            return ()
        return facts.st_ino, facts.st_mtime_ns, facts.st_size

    def _taken(self) -> tuple[Changes, bool]:
        """The changes, and whether there were any."""
        session, on_disk = self._session, Bundle.open(self._session.bundle.root, verify=False)
        if (on_disk.digest, on_disk.lines, on_disk.families) == (
            session.bundle.digest,
            session.bundle.lines,
            session.bundle.families,
        ):
            return Changes(), False
        before = session.loaded.versions
        with self._pace.building():
            changes = session.refresh(check=self._check)
        for words in in_lines(changes, before, session.loaded.versions):
            log.info(words)
        return changes, True

    def _check(self, old: LoadedTasks, new: LoadedTasks, changes: Changes) -> None:
        session, changed = self._session, [*changes.attached, *changes.replaced]
        check_new(new, session, changed, pace=self._pace, beside=self._asked(new))
        self._warm(new)
        self._isolation.check(old, new, session.bundle, changed, requested=self._asked)

    def _refuse(self, mark: Mark, error: Exception) -> None:
        text = without_paths(error, self._places)
        is_known = self._refused is not None and self._refused[0] == mark
        self._refused, self._again = (mark, error), monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        refusal = self._state.refusal if is_known and self._state.refusal else Refusal(at=time(), error=text)
        self._tell(refused=self._state.refused + 1, refusal=refusal)
        log.warning("the bundle changed and cannot be taken over, so the tasks stay as they are: %s", text)

    def _tell(self, **fields: object) -> None:
        self._state = msgspec.structs.replace(self._state, **fields)
        for observer in self.observers:
            observer(self._state)
