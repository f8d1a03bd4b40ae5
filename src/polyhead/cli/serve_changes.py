"""Several processes of `polyhead serve`: how they are started, and how one finds its place."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from polyhead.cli.output import note

if TYPE_CHECKING:
    import socket

    from polyhead.serve.settings import ServeSettings
    from polyhead.serve.workers import WorkerPlace


def place_of_worker() -> WorkerPlace | None:
    """The place of this process among workers; None where it is none."""
    from polyhead.serve.workers import WorkerPlace

    return WorkerPlace.found(os.environ)


def supervise(sockets: list[socket.socket], settings: ServeSettings, *, address: str) -> None:
    """Starts this very command once more for each worker, and keeps them running; ends the process with their code."""
    from polyhead.serve.workers import Supervisor

    async def supervised() -> int:
        return await Supervisor(
            [sys.executable, *sys.orig_argv[1:]],
            sockets,
            workers=settings.workers,
            environment=os.environ,
            drain_seconds=settings.drain_seconds,
            ready=lambda: note(f"{address} answers by {settings.workers} workers"),
        ).run()

    if code := asyncio.run(supervised()):
        sys.exit(code)
