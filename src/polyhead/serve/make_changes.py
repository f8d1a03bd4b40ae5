"""`python -m polyhead.serve.make_changes`: the process that makes changes for a server, see `change_process`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
from functools import partial
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


def end_with_parent(alive: int) -> None:
    """Ends this process when its parent ends: by the kernel on Linux, else by a thread.

    `alive` is a pipe whose other end the parent alone holds; nothing is ever written there, and it closes with it.
    """

    def wait() -> None:
        os.read(alive, 1)
        os._exit(1)

    with contextlib.suppress(OSError, AttributeError):  # not on every system
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
    threading.Thread(target=wait, name="polyhead-parent", daemon=True).start()


def check_parent(alive: int | None) -> None:
    """Raises BundleError if the parent with this pipe has ended: then no caller waits for the change."""
    if alive is not None and select.select([alive], [], [], 0)[0]:
        raise BundleError("the server that asked for this change has ended", do="ask the server again")


def make_changes(orders: BinaryIO, replies: BinaryIO) -> None:
    """Replies with a line of JSON to each line of `orders`: first `ChangeSettings`, then changes to make."""
    settings = msgspec.json.decode(orders.readline(), type=ChangeSettings)
    if settings.alive is not None:
        end_with_parent(settings.alive)
    if settings.processors and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, settings.processors)
    lower_priority()
    load_plugins()
    COMPILED.path = None if settings.compiled is None else Path(settings.compiled)
    prover = Prover()
    for order in orders:
        replies.write(change_reply(order, prover, partial(check_parent, settings.alive)) + b"\n")
        replies.flush()
        prover.store()
        trim()


if __name__ == "__main__":
    make_changes(sys.stdin.buffer, sys.stdout.buffer)
