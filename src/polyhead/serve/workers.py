"""Several server processes at the same addresses, each with its own queue, on one bundle folder.

The parent listens and answers nothing. Each worker gets the listening sockets, a share of the processors, and two
pipes: in one it says that it is ready, at the end of the other it sees that the parent is gone. What no process knows
of the others, such as counts, a worker asks of them over sockets in a private folder.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path as FilePath
from time import monotonic

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyhead.machine import processors
from polyhead.progress import counted
from polyhead.serve.run import stop_signals
from polyhead.values import Value

log = logging.getLogger(__name__)

VARIABLE = "POLYHEAD_WORKER"  # in a worker's environment: its place as JSON
YOUNG = 10.0  # seconds; a worker that ends before is started again after a pause
LONGEST_PAUSE = 30.0
GRACE = 2.0  # seconds beyond the draining that workers have to end; they end by themselves before
PATIENCE = 1.0  # seconds that a worker waits for what another one tells


class WorkerPlace(Value):
    """A worker's settings from its parent."""

    number: int  # from 1
    of: int
    sockets: tuple[int, ...]  # file descriptors that listen
    ready: int  # of the pipe to write to
    alive: int  # of the pipe that ends with the parent
    folder: str  # of the workers' own sockets
    processors: tuple[int, ...]  # of all workers

    @classmethod
    def found(cls, environment: Mapping[str, str]) -> WorkerPlace | None:
        """The place of this process; None if it is not a worker."""
        text = environment.get(VARIABLE)
        return None if text is None else msgspec.json.decode(text, type=cls)

    def share(self) -> list[int]:
        """The processors of this worker: its own part of them, or a shared one if there are more workers."""
        processors = list(self.processors[self.number - 1 :: self.of])
        return processors or [self.processors[(self.number - 1) % len(self.processors)]]

    def take(self) -> list[socket.socket]:
        """Restricts this process to its share of the processors, before any computation; returns its sockets.

        Where a container's quota and not the number of processors is the limit, nobody is kept to some of them.
        """
        if hasattr(os, "sched_setaffinity") and len(self.processors) == processors():
            with suppress(OSError):
                os.sched_setaffinity(0, self.share())
        for descriptor in (*self.sockets, self.ready, self.alive):
            os.set_inheritable(descriptor, False)
        return [socket.socket(fileno=descriptor) for descriptor in self.sockets]

    def own_socket(self) -> socket.socket:
        """A listening socket at which the other workers ask this one."""
        path = self.path_of(self.number)
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(path))
        listening.listen(64)
        return listening

    def path_of(self, number: int) -> FilePath:
        """The socket path on which a worker listens for the others."""
        return FilePath(self.folder) / f"{number}.sock"

    def others(self) -> list[int]:
        """The numbers of the other workers."""
        return [number for number in range(1, self.of + 1) if number != self.number]

    def begin(self) -> None:
        """Says that the worker answers, and ends it with its parent; called on the running event loop."""
        os.write(self.ready, b"1")
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(self.alive)
            os.kill(os.getpid(), signal.SIGTERM)

        loop.add_reader(self.alive, gone)


class Supervisor:
    """Starts workers, restarts one that died, and ends all of them at a stop signal."""

    def __init__(
        self,
        command: Sequence[str],
        sockets: Sequence[socket.socket],
        *,
        workers: int,
        environment: Mapping[str, str],
        drain_seconds: float,
        ready: Callable[[], None],
    ) -> None:
        """`command` starts a worker, which finds its place in the environment; `ready` is called when all answer."""
        self._command, self._sockets, self._count = list(command), sockets, workers
        self._environment, self._drain, self._ready = dict(environment), drain_seconds, ready
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._answering: set[int] = set()
        self._stopping = asyncio.Event()
        self._code = 0

    async def run(self) -> int:
        """Until a signal of `stop_signals`; the exit code: not 0 where no worker could begin."""
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, self._signalled, number.name)
        alive, end = os.pipe()  # nobody writes there: it ends with this process
        try:
            with tempfile.TemporaryDirectory(prefix="polyhead-workers-") as folder:
                keepers = [self._keep(number, folder, alive) for number in range(1, self._count + 1)]
                await asyncio.gather(*keepers, self._end())
        finally:
            os.close(alive)
            os.close(end)
        return self._code

    def _signalled(self, by: str) -> None:
        log.info(
            "told to stop by %s: %s what waits",
            by,
            counted(len(self._running), "worker answers", several="workers answer"),
        )
        self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.terminate()

    async def _end(self) -> None:
        """Kills what has not ended in time after the stop."""
        await self._stopping.wait()
        until = monotonic() + self._drain + GRACE
        while self._running and monotonic() < until:
            await asyncio.sleep(0.05)
        for process in self._running.values():
            log.warning("a worker did not end in time and is killed")
            with suppress(ProcessLookupError):
                process.kill()

    async def _keep(self, number: int, folder: str, alive: int) -> None:
        pause = 0.0
        while not self._stopping.is_set():
            began = monotonic()
            code = await self._worked(number, folder, alive)
            if self._stopping.is_set():
                return
            if not self._answering:  # none has begun: what stops one stops all
                self._code = code if code > 0 else 1
                self._stop()
                return
            pause = 0.0 if monotonic() - began > YOUNG else min(max(1.0, 2 * pause), LONGEST_PAUSE)
            log.warning("worker %d ended with %d and is started again in %.0f s", number, code, pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _worked(self, number: int, folder: str, alive: int) -> int:
        """The exit code of a worker, started and waited for; 1 of one for which the system has no room now."""
        readable, tell = os.pipe()
        loop = asyncio.get_running_loop()
        listening = tuple(each.fileno() for each in self._sockets)
        place = WorkerPlace(
            number=number,
            of=self._count,
            sockets=listening,
            ready=tell,
            alive=alive,
            folder=folder,
            processors=tuple(sorted(os.sched_getaffinity(0)))
            if hasattr(os, "sched_getaffinity")
            else tuple(range(os.cpu_count() or 1)),
        )
        try:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    env=self._environment | {VARIABLE: msgspec.json.encode(place).decode()},
                    pass_fds=(*listening, tell, alive),
                )
            except OSError as error:  # of memory or processes, for example: the others answer on
                log.warning("worker %d cannot be started: %s", number, error)
                return 1
            finally:
                os.close(tell)
            loop.add_reader(readable, self._heard, number, readable)
            self._running[number] = process
            if self._stopping.is_set():
                process.terminate()
            return await process.wait()
        finally:
            self._running.pop(number, None)
            loop.remove_reader(readable)
            os.close(readable)

    def _heard(self, number: int, readable: int) -> None:
        asyncio.get_running_loop().remove_reader(readable)
        if os.read(readable, 1) and number not in self._answering:
            self._answering.add(number)
            if len(self._answering) == self._count:
                self._ready()


class CountsOfAll:
    """An application of a worker, whose `/metrics` holds the counts of all workers, each with the label `worker`.

    The others are asked with the headers of the request, so that they check the same key. Who does not answer in time
    is left out.
    """

    def __init__(self, app: ASGIApp, place: WorkerPlace) -> None:
        self._app, self._place = app, place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on; answers `GET /metrics` with the counts of all workers."""
        if scope["type"] != "http" or scope["path"] != "/metrics" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        from polyhead.serve.exposition import joined_counts  # not in the parent, which imports no engine

        # In the older of the two forms, which can be joined: without the mark at the end that OpenMetrics has.
        headers = [(name, value) for name, value in scope["headers"] if name != b"accept"]
        messages: list[Message] = []

        async def kept(message: Message) -> None:
            messages.append(message)

        await self._app({**scope, "headers": headers}, receive, kept)
        if messages[0]["status"] != 200:
            for message in messages:
                await send(message)
            return
        counts = b"".join(message.get("body", b"") for message in messages[1:])
        others = await asyncio.gather(*(self._counts_of(number, headers) for number in self._place.others()))
        texts = {self._place.number: counts} | dict(zip(self._place.others(), others, strict=True))
        body = joined_counts({n: text.decode() for n, text in sorted(texts.items()) if text is not None}).encode()
        begun = [(n, v) for n, v in messages[0]["headers"] if n.lower() != b"content-length"]
        await send({**messages[0], "headers": [*begun, (b"content-length", str(len(body)).encode())]})
        await send({"type": "http.response.body", "body": body})

    async def _counts_of(self, number: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """The counts of another worker; None if it does not answer."""
        try:
            return await asyncio.wait_for(_metrics_at(self._place.path_of(number), headers), PATIENCE)
        except (OSError, ValueError, TimeoutError):
            return None


async def _metrics_at(path: FilePath, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The body of `GET /metrics` at a socket; raises ValueError for any answer but 200."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        kept = [name + b": " + value for name, value in headers if name in (b"authorization", b"x-api-key")]
        lines = [b"GET /metrics HTTP/1.0", b"host: localhost", b"connection: close", *kept]
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
        await writer.drain()
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        is_whole = b"content-length: %d" % len(body) in head.lower().split(b"\r\n")
        if head.split(b" ", 2)[1:2] != [b"200"] or not is_whole:
            raise ValueError(head.split(b"\r\n")[0])
        return body
    finally:
        writer.close()
