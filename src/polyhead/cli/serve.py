"""`polyhead serve`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from polyhead.cli.options import session_options
from polyhead.cli.output import note
from polyhead.cli.ports import Port, PortType, in_order
from polyhead.cli.serve_changes import changes_options, place_of_worker, supervise, with_changes
from polyhead.cli.serve_options import access_file, hosts_of, keys_of, serve_settings, settings_options
from polyhead.errors import MissingExtra
from polyhead.progress import counted

if TYPE_CHECKING:
    from socket import socket

    from polyhead.serve.guard import Observer
    from polyhead.serve.keys import AccessKeys
    from polyhead.serve.service import Service
    from polyhead.serve.workers import WorkerPlace


@click.command("serve")
@click.argument("bundle", type=click.Path(file_okay=False))
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; this machine alone by default."
)
@click.option(
    "--port",
    "ports",
    type=PortType(),
    multiple=True,
    help="Port for all tasks, by default 8000; TASK=PORT: one of its own for a task, where requests that name no task "
    "mean this one. May be repeated. 0 takes a free port.",
)
@click.option("--default-task", metavar="TASK", help="The task that requests for one task mean where they name none.")
@session_options
@changes_options
@settings_options
def command(
    bundle: str,
    host: str,
    ports: tuple[Port, ...],
    default_task: str | None,
    backend: str | None,
    precision: str | None,
    deterministic: bool,
    keys: str | None,
    no_keys: bool,
    allowed_hosts: tuple[str, ...],
    access_log: str | None,
    traces: bool,
    **given: Any,
) -> None:
    """Answer all tasks of BUNDLE over HTTP."""
    try:
        from polyhead.serve.exchange import AccessLog, Tracing
        from polyhead.serve.keys import check_keys
        from polyhead.serve.run import bound
    except ImportError as error:
        raise MissingExtra(error.name or "uvicorn", "serve", "the server") from None
    from polyhead.engine.session import Session
    from polyhead.machine import share_arenas
    from polyhead.serve.service import Service

    known, place = keys_of(keys), place_of_worker()
    settings = with_changes(serve_settings(given, default_task=default_task), given)
    check_keys(known, host=host, admin=settings.admin, no_keys=no_keys)
    observers = [Tracing().exchange] if traces else []
    with ExitStack() as opened:
        asked = in_order(ports)
        sockets = [opened.enter_context(bound(host, port.number)) for port in asked] if place is None else place.take()
        places = [(port.task, socket) for port, socket in zip(asked, sockets, strict=True)]
        if place is None and settings.workers > 1:
            return supervise(sockets, settings, address=address_of(host, sockets[0]))
        if (file := opened.enter_context(access_file(access_log))) is not None:
            log = AccessLog(file)
            opened.callback(log.close)
            observers.append(log.exchange)
        share_arenas()
        session = Session(bundle, backend=backend, precision=precision, deterministic=deterministic)
        session.task_names([task for task in (default_task, *(task for task, _ in places)) if task is not None])
        hosts = hosts_of(allowed_hosts, host)
        service = Service(session, settings)
        run(service, places, host=host, worker=place, keys=known, hosts=hosts, observers=observers)
    return None


def run(
    service: Service,
    places: Sequence[tuple[str | None, socket]],
    *,
    host: str,
    worker: WorkerPlace | None,
    keys: AccessKeys,
    hosts: Sequence[str] | None,
    observers: Sequence[Observer],
) -> None:
    """Serves until it is told to stop: at each place all tasks, or the one that requests mean there."""
    import uvloop

    from polyhead.serve.app import application
    from polyhead.serve.formats.asking import for_task
    from polyhead.serve.run import EndInTime, Listener, serve
    from polyhead.serve.workers import CountsOfAll

    app = application(service, keys=keys, hosts=hosts, observers=observers)
    public = app if worker is None else CountsOfAll(app, worker)
    listeners = [
        Listener(app=public if task is None else for_task(public, task), socket=listening) for task, listening in places
    ]
    if worker is not None:
        listeners.append(Listener(app=app, socket=worker.own_socket()))

    def ready() -> None:
        if worker is not None:
            worker.begin()
            return
        for task, listening in places:
            what = counted(len(service.tasks), "task") if task is None else f"for task '{task}'"
            note(f"{address_of(host, listening)} answers {what}")

    settings = service.settings
    end = EndInTime(settings.drain_seconds)

    def stopping() -> None:
        service.drain()
        end()

    serving = serve(
        listeners,
        drain_seconds=settings.drain_seconds,
        ready=ready,
        limits=settings.connections,
        refused=service.metrics.refuse,
        stopping=stopping,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serving)


def address_of(host: str, listening: socket) -> str:
    """The address of a socket that listens on this host."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}"
