"""Options of `polyhead serve` about a bundle that changes, and about several processes; how these are started."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from polyhead.cli.output import note

if TYPE_CHECKING:
    import socket

    from polyhead.serve.settings import ServeSettings
    from polyhead.serve.workers import WorkerPlace

Command = TypeVar("Command", bound=Callable[..., Any])
NAMES = ("workers", "admin", "watch_seconds")


def changes_options(command: Command) -> Command:
    """Adds `--workers`, `--admin` and `--watch-seconds`, as `with_changes` takes them."""
    for option in (
        click.option(
            "--watch-seconds",
            type=click.FloatRange(0),
            default=1.0,
            show_default=True,
            help="Seconds between two looks whether BUNDLE has changed; 0 never looks.",
        ),
        click.option("--admin", is_flag=True, help="Let admins change tasks over HTTP."),
        click.option(
            "--workers",
            type=click.IntRange(1, 256),
            default=1,
            show_default=True,
            help="Processes that answer at the same address, each with its share of the processors.",
        ),
    ):
        command = option(command)
    return command


def with_changes(settings: ServeSettings, given: Mapping[str, Any]) -> ServeSettings:
    """The settings with what these options say."""
    return msgspec.structs.replace(settings, **{name: given[name] for name in NAMES})


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
