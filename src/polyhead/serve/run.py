"""Listening: one process, one event loop, one queue; as many ports as are asked for."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from polyhead.errors import ConfigError
from polyhead.progress import counted
from polyhead.serve.connections import SURPLUS, Acceptor, Connection, connections_of, look_on
from polyhead.serve.settings import ConnectionLimits
from polyhead.values import Value

log = logging.getLogger(__name__)

ENDING = 0.9  # of the drain time is for answers that are under way; the rest is for closing what they used
LEAST_DRAIN = 1.0  # seconds of a drain time at least


class Listener(Value, eq=False):
    """An application and the socket that it answers on."""

    app: ASGIApp
    socket: socket.socket


def bound(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket that listens on this address; port 0 takes a free one. `shared`: by several processes.

    Raises ConfigError for an address that is taken or not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise ConfigError(
            "the server cannot listen on this address",
            got=f"{host}:{port} ({error.strerror or error})",
            do="give another port, or --host 127.0.0.1 for this machine alone",
        ) from None
    return listening


LIMITS = ConnectionLimits()
OTHER_FILES = 256  # that a server has open beside its connections


def allow_open_files(limits: ConnectionLimits) -> None:
    """Lets this process have as many files open as the connections need, where the system's hard limit allows it."""
    with suppress(ImportError, OSError, ValueError):  # not on every system
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = (1 + SURPLUS) * limits.open + OTHER_FILES
        if soft != resource.RLIM_INFINITY and soft < needed:
            most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def stop_signals() -> Iterator[signal.Signals]:
    """The signals that end a server once its answers are sent; a hang-up is none where its parent ignores it."""
    yield from (signal.SIGTERM, signal.SIGINT)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        yield signal.SIGHUP


def end_in_time(seconds: float) -> None:
    """Ends this process after so many seconds, whatever threads still run.

    Nothing in a bundle depends on them: its files are replaced whole, and what an upload left is removed at the next
    start. A second clock, which needs no turn of Python's, ends the process where the first one gets none.
    """
    seconds = max(LEAST_DRAIN, seconds)

    def end() -> None:
        log.warning("the server did not end within %g s; what still ran is left", seconds)
        sys.stderr.flush()
        os._exit(0)

    clock = threading.Timer(seconds, end)
    clock.daemon = True
    clock.start()
    faulthandler.dump_traceback_later(seconds + 1, exit=True)


async def serve(
    listeners: Sequence[Listener],
    *,
    drain_seconds: float,
    ready: Callable[[], None],
    limits: ConnectionLimits = LIMITS,
    refused: Callable[[int], None] = lambda status: None,
    stopping: Callable[[], None] = lambda: None,
    until: asyncio.Event | None = None,
) -> None:
    """Serves until a signal of `stop_signals`, or `until` is set; then answers what was accepted, and returns.

    The first application starts before any port answers; `ready` is called when all do, unless the server is to stop by
    then. `refused` gets the status of each connection that is closed for its limits, 0 if it was not answered.
    `stopping` is called with a signal, between two steps of whatever the event loop does.
    """
    allow_open_files(limits)
    servers = list[_Server]()

    def connections() -> list[object]:
        return [connection for server in servers for connection in server.server_state.connections]

    protocol = connections_of(limits, lambda: sum(len(server.server_state.connections) for server in servers), refused)
    for i, listener in enumerate(listeners):
        servers.append(_Server(listener.app, protocol, drain_seconds=drain_seconds, is_first=not i))
    loop = asyncio.get_running_loop()

    def stop(by: str) -> None:
        _stop(servers, f"told to stop by {by} with {counted(len(connections()), 'connection')} open")

    def signalled(number: int, frame: object) -> None:
        stopping()
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop, signal.Signals(number).name)

    before = _handled(signalled)
    beside = [asyncio.create_task(look_on(connections, limits))]
    if until is not None:
        beside.append(asyncio.create_task(_then(until, partial(stop, "its program"))))
    first, *others = servers
    running = [asyncio.create_task(first.serve(sockets=[listeners[0].socket]))]
    while not first.started and not running[0].done():
        await asyncio.sleep(0.01)
    if not running[0].done() and not first.should_exit:
        for server, listener in zip(others, listeners[1:], strict=True):
            running.append(asyncio.create_task(server.serve(sockets=[listener.socket])))
        first.others = running[1:]
        while not all(server.started or task.done() for server, task in zip(servers, running, strict=True)):
            await asyncio.sleep(0.01)
        if not first.should_exit:
            ready()
    try:
        await asyncio.gather(*running)
    finally:
        log.info("stopped")
        for task in beside:
            task.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(servers: Sequence[_Server], why: str) -> None:
    """Refuses new requests and answers the rest; a second call also cuts off running requests."""
    for server in servers:
        server.force_exit = server.should_exit
        server.should_exit = True
    is_again = any(server.force_exit for server in servers)
    log.info("%s: %s", why, "what is under way is cut off" if is_again else "what waits is answered")


def _handled(handler: Callable[..., None]) -> dict[signal.Signals, Any]:
    """Calls the handler for every signal that stops a server; gives what handled each before.

    Python calls it as soon as it can, also while the event loop is busy; the loop's own handlers would wait for it.
    """
    before = {}
    for number in stop_signals():
        with suppress(ValueError):  # not the main thread
            before[number] = signal.signal(number, handler)
    return before


async def _then(event: asyncio.Event, call: Callable[[], None]) -> None:
    await event.wait()
    call()


class _Server(uvicorn.Server):
    """A server whose signals are handled for all ports together."""

    def __init__(self, app: ASGIApp, protocol: type[Connection], *, drain_seconds: float, is_first: bool) -> None:
        self.others: Sequence[asyncio.Task[None]] = ()  # of the first one: those that end before the application does
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                loop="none",
                lifespan="on" if is_first else "off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=ENDING * max(LEAST_DRAIN, drain_seconds),  # type: ignore[arg-type] # a float is waited
                timeout_keep_alive=75,
                ws="none",
            )
        )

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Without uvicorn's own handling of signals."""
        await self._serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts connections by `Acceptor` in place of the event loop's own server."""
        await super().startup(sockets=[])
        for listener in sockets or ():
            self.servers.append(await self._accepting(listener))  # type: ignore[arg-type]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for connections that were just accepted, so that uvicorn ends them like all others."""
        for server in self.servers:
            server.close()
            if isinstance(server, Acceptor):
                await server.wait_closed()
        await super().shutdown(sockets)

    async def _wait_tasks_to_complete(self) -> None:
        """Waits also for the other ports, since the application that is stopped then answers on all."""
        await super()._wait_tasks_to_complete()
        if self.others:
            await asyncio.wait(self.others)

    async def _accepting(self, listener: socket.socket) -> Acceptor | asyncio.Server:
        try:
            return Acceptor(listener, self._protocol)
        except NotImplementedError:  # the event loop has no `add_reader` (on Windows)
            return await asyncio.get_running_loop().create_server(self._protocol, sock=listener)

    def _protocol(self) -> asyncio.Protocol:
        state, app_state = self.server_state, self.lifespan.state
        return self.config.http_protocol_class(config=self.config, server_state=state, app_state=app_state)  # type: ignore[call-arg]
