"""Changes of tasks by admins, one at a time, and shadow candidates of tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import msgspec

from polyhead.bundle.manifest import read_bundle_file
from polyhead.bundle.versions import check_known
from polyhead.engine.compile.compiled import COMPILED
from polyhead.errors import PolyheadError, UnknownTask
from polyhead.files import held
from polyhead.serve.change_process import ChangeProcess
from polyhead.serve.changes import ChangeState
from polyhead.serve.http import HttpError, body_of
from polyhead.serve.orders import ChangeOperation, ChangeResult, Order, as_http, status_of_change
from polyhead.serve.service import Service
from polyhead.serve.shadow import ShadowCandidate, Shadows, ShadowState
from polyhead.serve.uploads import AT_ONCE, Receiver, StagedTask, Staging, refused, staged, sweep_uploads
from polyhead.serve.workers import WorkerPlace
from polyhead.tasks.task import Task, check_name

log = logging.getLogger(__name__)

LOCK = ".admin.lock"  # in the bundle: held by the server that makes a change an admin asked for
MOST_SHADOWS = 8
P = ParamSpec("P")
T = TypeVar("T")


class Admin:
    """The changes that admins ask of one server. Every error is an HttpError without paths of this machine."""

    def __init__(self, service: Service, *, make: Callable[[Order], Awaitable[ChangeResult]] | None = None) -> None:
        """`make` makes a change and its certificate; the default runs it in a separate process."""
        self._process = ChangeProcess()
        self.service, self._make = service, make or self._process.make
        self.served = service  # or the set that the service is a part of
        # Raises an error where an upload cannot stand beside the other bundles' tasks.
        self.check: Callable[[Task], None] = lambda task: None
        self._root = service.session.bundle.root
        self._running: set[asyncio.Task[ChangeResult]] = set()
        self._preparing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # once there was a candidate
        self._promoted: set[str] = set()  # tasks whose candidates are being made live
        self.shadows = Shadows(service.session, chance=random.Random(secrets.randbits(64)), pace=service.pace)
        service.opening.append(self._begin_to_prepare)
        service.closing.append(self.close)
        sweep_uploads(self._root)

    async def in_thread(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Calls a function that blocks, its errors without paths."""
        with self._http_errors():
            return await asyncio.to_thread(function, *arguments, **named)

    async def put(
        self, name: str, body: AsyncIterator[bytes], *, encoding: str, actor: str, allow_lost_labels: bool = False
    ) -> ChangeResult:
        """Adds or replaces a task with the upload; the same upload again changes nothing.

        A version that lacks labels of the live one is refused, unless `allow_lost_labels` lets them go.
        """
        await self.in_thread(self._check_free)
        staging = await self.in_thread(Staging, self._root)
        try:
            upload = await self._received(staging, name, body, encoding)
        except BaseException:
            await asyncio.to_thread(staging.close)
            raise
        order = self._order("put", name, actor, source=upload.root, allow_lost_labels=allow_lost_labels)
        return await self._changed(order, staging)

    async def remove(self, name: str, *, actor: str) -> ChangeResult:
        """Removes a task with all its versions, and its candidate."""
        await self.in_thread(self._check_there, name)
        answer = await self._changed(self._order("remove", name, actor))
        await self._drop_gone()
        return answer

    async def roll_back(self, name: str, version: str | None, *, actor: str) -> ChangeResult:
        """Makes an earlier version live, by default the one before the live one."""
        await self.in_thread(self._check_there, name)
        return await self._changed(self._order("rollback", name, actor, version=version))

    async def put_shadow(self, name: str, body: AsyncIterator[bytes], *, encoding: str, share: float) -> ShadowState:
        """Starts a shadow of the live task: the uploaded candidate also answers a share of requests."""
        if self.service.settings.workers > 1:
            raise HttpError(
                501,
                "a candidate lives in the memory of one process, and this server has several",
                do="try the candidate on a server that was started without --workers",
            )
        self._known(name)
        self._check_stays(name)
        if name not in self.shadows.candidates and len(self.shadows.candidates) >= MOST_SHADOWS:
            raise HttpError(409, "too many candidates are asked already", allowed=MOST_SHADOWS, do="drop one")
        staging = await self.in_thread(Staging, self._root)
        try:
            upload = await self._received(staging, name, body, encoding)
            others = self.service.default_tasks()
            candidate = await self.in_thread(self.shadows.attach, upload, staging, share=share, others=others)
        except BaseException:
            await asyncio.to_thread(staging.close)
            raise
        try:
            self._known(name)  # it may be removed by now
            self._check_stays(name)  # or promoted
        except HttpError:
            await self.in_thread(self.shadows.detach, candidate)
            raise
        if self.shadows not in self.service.hidden_tasks:
            self.service.hidden_tasks.append(self.shadows)
            self._loop = asyncio.get_running_loop()
            self.service.changes.observers.append(self._follow)
        before = self.shadows.add(candidate)
        if before is not None:
            await self.in_thread(self.shadows.detach, before)
        return candidate.state(has_texts=False)

    def shadow(self, name: str, *, has_texts: bool) -> ShadowState:
        """The comparison of a task's candidate with the live version so far."""
        return self._candidate(name).state(has_texts=has_texts)

    async def drop_shadow(self, name: str) -> ShadowState:
        """Removes the candidate of a task, and returns its comparison with the live version."""
        candidate = self._candidate(name)
        self._check_stays(name)
        self.shadows.remove(name)
        await self.in_thread(self.shadows.detach, candidate)
        return candidate.state(has_texts=False)

    async def promote(self, name: str, *, actor: str, allow_lost_labels: bool = False) -> ChangeResult:
        """Makes the candidate of a task the live version by a certified change, and ends its shadow."""
        candidate = self._candidate(name)
        self._check_stays(name)
        self._promoted.add(name)
        source = candidate.staged.root
        order = self._order("put", name, actor, source=source, allow_lost_labels=allow_lost_labels)
        answer = await self._changed(order, ended=lambda: self._promoted.discard(name))
        if self.shadows.candidates.get(name) is candidate:
            await self.drop_shadow(name)
        return answer

    def _follow(self, state: ChangeState) -> None:
        """The bundle's changes were taken over, whoever made them; called in the thread that did."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._drop_gone(), self._loop)

    async def _drop_gone(self) -> None:
        """Forgets the candidates of tasks that are gone."""
        gone = self.shadows.candidates.keys() - self.service.tasks.keys() - self._promoted
        for candidate in list(filter(None, map(self.shadows.remove, gone))):
            await self.in_thread(self.shadows.detach, candidate)

    def _begin_to_prepare(self) -> None:
        """Lets the process of changes ask all probes, so that the first change takes no longer than others.

        Not where compiled graphs are not kept, as in tests and in a program of one's own; of several workers one does.
        """
        place = WorkerPlace.found(os.environ)
        is_wanted = COMPILED.path is not None and os.access(self._root, os.W_OK)
        if is_wanted and (place is None or place.number == 1):
            self._preparing = asyncio.ensure_future(self._prepare())

    async def _prepare(self) -> None:
        try:
            await self._make(self._order("prepare", "", ""))
        except (HttpError, OSError) as error:
            log.warning("the first change will take longer than others, since it could not be prepared: %s", error)

    async def close(self) -> None:
        """Waits for a running change, at most for the drain time, then removes staged uploads."""
        if self._preparing is not None:
            self._preparing.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=self.service.seconds_left())
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, *filter(None, [self._preparing]), return_exceptions=True)
        await self._process.close()
        if self.shadows in self.service.hidden_tasks:
            self.service.hidden_tasks.remove(self.shadows)
            self.service.changes.observers.remove(self._follow)
        for name in list(self.shadows.candidates):
            candidate = self.shadows.remove(name)
            if candidate is not None:
                await asyncio.to_thread(candidate.staging.close)
        await asyncio.to_thread(self.shadows.close)

    async def _received(self, staging: Staging, name: str, body: AsyncIterator[bytes], encoding: str) -> StagedTask:
        """An upload, read and checked; the bundle is unchanged."""
        with self._http_errors(staging):
            check_name(name)
            if encoding != "identity":
                raise refused("the upload is compressed", status=415, got=encoding, allowed="a plain tar")
            most, waiting = self.service.settings.limits.upload_bytes, bytearray()
            receiver = await asyncio.to_thread(Receiver, staging.root, name, most=most)
            try:
                async for part in body:
                    waiting += part
                    if len(waiting) >= AT_ONCE:
                        await asyncio.to_thread(receiver.feed, bytes(waiting))
                        waiting.clear()
                await asyncio.to_thread(receiver.feed, bytes(waiting))
                await asyncio.to_thread(receiver.end)
            finally:
                await asyncio.to_thread(receiver.close)
            upload = await asyncio.to_thread(staged, staging.root, name, self._root)
            self.check(upload.record.task)
            return upload

    def _order(self, operation: ChangeOperation, name: str, actor: str, **more: Any) -> Order:
        return Order(operation=operation, root=str(self._root.resolve()), name=name, actor=actor, **more)

    async def _changed(
        self, order: Order, staging: Staging | None = None, *, ended: Callable[[], None] = lambda: None
    ) -> ChangeResult:
        """Runs the change, also if its caller disconnects; `ended` is called at its end."""
        running = asyncio.ensure_future(self._change(order, staging))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        running.add_done_callback(lambda _: ended())
        return await asyncio.shield(running)

    async def _change(self, order: Order, staging: Staging | None) -> ChangeResult:
        try:
            async with self._alone():
                with self._http_errors(staging):
                    outcome = await self._make(order)
                return await self._taken(outcome)
        finally:
            if staging is not None:
                await asyncio.to_thread(staging.close)

    async def _taken(self, outcome: ChangeResult) -> ChangeResult:
        """The result, once this server has loaded the changed bundle."""
        try:
            with self._http_errors():
                await self.service.changes.take()
        except Exception as error:
            raise HttpError(
                500,
                "the change is in the bundle with its certificate, and this server cannot take it over: it answers as "
                "before",
                got=str(error) if isinstance(error, HttpError) else type(error).__name__,
                do=_back_from(outcome),
            ) from error
        if outcome.is_changed:
            return outcome
        return msgspec.structs.replace(outcome, note="the bundle holds just this already, so nothing was changed")

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """A lock shared by all servers of the bundle; raises HttpError 409 if another change is running."""
        with contextlib.ExitStack() as stack, self._http_errors():
            await asyncio.to_thread(stack.enter_context, self._lock())
            yield

    def _lock(self) -> contextlib.AbstractContextManager[None]:
        busy = HttpError(409, "another change of this bundle is under way", do="ask again when it is done")
        return held(self._root / LOCK, patience=0.0, busy=busy)

    def _check_free(self) -> None:
        """Raises HttpError 409, before an upload is read, if another change is running."""
        with self._lock():
            pass

    def _check_there(self, name: str) -> None:
        """Raises UnknownTask if the bundle does not have the task, whether or not this server answers it."""
        check_known(read_bundle_file(self._root), name)

    def _known(self, name: str) -> str:
        """The name; raises HttpError 404 unless callers may ask the task."""
        with self._http_errors():
            self.service.named([name])
        return name

    def _check_stays(self, name: str) -> None:
        """Raises HttpError 409 while the candidate of a task is being promoted, which needs its files."""
        if name in self._promoted:
            problem = f"the candidate of task '{name}' is being promoted"
            raise HttpError(409, problem, do="ask again when that is done; it is no candidate then")

    def _candidate(self, name: str) -> ShadowCandidate:
        candidate = self.shadows.candidates.get(self._known(name))
        if candidate is None:
            raise HttpError(404, f"task '{name}' has no candidate", do=f"PUT one at /v1/tasks/{name}/shadow")
        return candidate

    @contextlib.contextmanager
    def _http_errors(self, staging: Staging | None = None) -> Iterator[None]:
        """A context that turns PolyheadErrors into HttpErrors without paths of this machine."""
        places = {str(self._root): "the bundle", str(self._root.resolve()): "the bundle"}
        if staging is not None:
            places[str(staging.root)] = "the upload"
        try:
            yield
        except HttpError as error:
            raise as_http(body_of(error), error.status, places) from None
        except PolyheadError as error:
            is_upload = staging is not None and not isinstance(error, UnknownTask)
            status = status_of_change(error)
            raise as_http(
                body_of(error, places), 422 if is_upload and status in (400, 409) else status, places
            ) from None
        except OSError as error:
            raise HttpError(
                507, "the server cannot write", got=error.strerror, do="make room on its disk, or give it access"
            ) from None


def _back_from(outcome: ChangeResult) -> str:
    """How to leave a change that is in the bundle, and that its server cannot take over."""
    if outcome.after is None:
        return "start the server anew: the task's files are gone, and the bundle is read as it is now"
    return f"remove task '{outcome.task}'" if outcome.before is None else f"roll task '{outcome.task}' back"
