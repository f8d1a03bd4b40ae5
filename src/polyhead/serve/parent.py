"""The server that started a process of changes, as that process sees it: it ends with the server, and not after."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading

from polyhead.errors import BundleError

SET_DEATH_SIGNAL = 1  # of Linux' prctl


class Parent:
    """Who holds the other end of a pipe, and nobody else does: the pipe ends with that process, however it ends."""

    def __init__(self, alive: int) -> None:
        """`alive` is the end to read; nobody ever writes to the other one."""
        self._alive = alive

    def end_with(self) -> None:
        """Ends this process at once when the other one has ended: by the kernel on Linux, else by a thread."""
        with contextlib.suppress(OSError, AttributeError):  # not on every system
            ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
        threading.Thread(target=self._wait, name="polyhead-parent", daemon=True).start()

    def check(self) -> None:
        """Raises BundleError where the other process has ended, so that nothing is changed that nobody waits for."""
        if select.select([self._alive], [], [], 0)[0]:
            raise BundleError("the server that asked for this change has ended", do="ask the server again")

    def _wait(self) -> None:
        os.read(self._alive, 1)
        os._exit(1)
