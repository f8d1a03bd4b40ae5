"""Accepting connections, many in one turn of the event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

AT_ONCE = 128  # connections accepted in one turn of the loop at most
PAUSE = 0.5  # seconds until the next try where the system refuses, such as without a free file descriptor
log = logging.getLogger(__name__)


class Acceptor:
    """Accepts a listening socket's connections, as the server of `loop.create_server` does.

    libuv accepts one in each turn of its loop. Turns of an overloaded server are long, so callers would wait for many
    seconds.
    """

    def __init__(self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Begins at once. Raises NotImplementedError where the event loop has no `add_reader` (on Windows)."""
        self._loop, self._listening, self._protocol = asyncio.get_running_loop(), listening, protocol
        self._connecting = set[asyncio.Task[None]]()
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._go_on()

    def close(self) -> None:
        """Accepts no more. The socket stays open."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening.fileno())

    async def wait_closed(self) -> None:
        """Waits until each accepted connection has its protocol."""
        await asyncio.gather(*self._connecting, return_exceptions=True)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                own, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:  # the caller is gone already
                continue
            except OSError as error:
                log.warning("connections wait: %s", error)
                self._loop.remove_reader(self._listening.fileno())
                self._pause = self._loop.call_later(PAUSE, self._go_on)
                return
            task = self._loop.create_task(self._connected(own))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connected(self, own: socket.socket) -> None:
        try:
            own.setblocking(False)
            await self._loop.connect_accepted_socket(self._protocol, own)
        except OSError:  # gone meanwhile
            own.close()
