"""`python -m polyhead.serve.make_changes`: the process that makes changes for a server, see `change_process`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import msgspec

from polyhead.certify import Prover
from polyhead.engine.compile.compiled import COMPILED
from polyhead.errors import BundleError
from polyhead.machine import trim
from polyhead.plugins import load_plugins
from polyhead.serve.orders import ChangeSettings, change_reply, lower_priority

SET_DEATH_SIGNAL = 1  # of Linux' prctl


class Parent:
    """The only process with the other end of a pipe: the pipe closes when that process ends, however it ends."""

    def __init__(self, alive: int) -> None:
        """`alive` is the end to read; nothing is ever written to the other one."""
        self._alive = alive

    def end_with(self) -> None:
        """Ends this process when the other one ends: by the kernel on Linux, else by a thread."""
        with contextlib.suppress(OSError, AttributeError):  # not on every system
            ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
        threading.Thread(target=self._wait, name="polyhead-parent", daemon=True).start()

    def check(self) -> None:
        """Raises BundleError if the other process has ended: then no caller waits for the change."""
        if select.select([self._alive], [], [], 0)[0]:
            raise BundleError("the server that asked for this change has ended", do="ask the server again")

    def _wait(self) -> None:
        os.read(self._alive, 1)
        os._exit(1)


def make_changes(orders: BinaryIO, replies: BinaryIO) -> None:
    """Replies with a line of JSON to each line of `orders`: first `ChangeSettings`, then changes to make."""
    settings = msgspec.json.decode(orders.readline(), type=ChangeSettings)
    parent = None if settings.alive is None else Parent(settings.alive)
    if parent is not None:
        parent.end_with()
    if settings.processors and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, settings.processors)
    lower_priority()
    load_plugins()
    COMPILED.path = None if settings.compiled is None else Path(settings.compiled)
    prover = Prover()
    for order in orders:
        replies.write(change_reply(order, prover, *(() if parent is None else (parent.check,))) + b"\n")
        replies.flush()
        prover.store()
        trim()


if __name__ == "__main__":
    make_changes(sys.stdin.buffer, sys.stdout.buffer)
