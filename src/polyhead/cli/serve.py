"""`polyhead serve`."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import click

from polyhead.cli.options import session_options
from polyhead.cli.output import note
from polyhead.cli.ports import Port, PortType, in_order
from polyhead.cli.serve_changes import changes_options, place_of_worker, supervise, with_changes
from polyhead.cli.serve_options import access_file, keys_of, settings_of, settings_options
from polyhead.errors import MissingExtra


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
@click.option(
    "--unknown",
    type=click.Choice(["refuse", "similarity"]),
    default="refuse",
    show_default=True,
    help="What a question of a decisions API that no task answers gets: no answer, or one by the similarity of the "
    "text with the words of its options.",
)
@click.option(
    "--labels",
    type=click.Path(dir_okay=False),
    help="TOML file that gives questions of a decisions API to tasks of other names, and options to labels.",
)
@session_options
@changes_options
@settings_options
def command(
    bundle: str,
    host: str,
    ports: tuple[Port, ...],
    default_task: str | None,
    unknown: str,
    labels: str | None,
    backend: str | None,
    precision: str | None,
    deterministic: bool,
    keys: str | None,
    no_keys: bool,
    access_log: str | None,
    traces: bool,
    **given: Any,
) -> None:
    """Answer all tasks of BUNDLE over HTTP."""
    try:
        import uvloop

        from polyhead.serve.access_log import AccessLog
        from polyhead.serve.app import application
        from polyhead.serve.formats.asking import for_task
        from polyhead.serve.keys import check_keys
        from polyhead.serve.run import Listener, bound, serve
        from polyhead.serve.tracing import Tracing
        from polyhead.serve.workers import CountsOfAll
    except ImportError as error:
        raise MissingExtra(error.name or "uvicorn", "serve", "the server") from None
    from polyhead.engine.session import Session
    from polyhead.serve.labels import read_labels
    from polyhead.serve.service import Service

    known, place = keys_of(keys), place_of_worker()
    renamed = {} if labels is None else read_labels(labels)
    settings = settings_of(given, default_task=default_task, unknown=unknown, labels=renamed)
    settings = with_changes(settings, given)
    check_keys(known, host=host, admin=settings.admin, no_keys=no_keys)
    observers = [Tracing().exchange] if traces else []
    with ExitStack() as opened:
        asked = in_order(ports)
        sockets = [opened.enter_context(bound(host, port.number)) for port in asked] if place is None else place.take()
        named = [port.task for port in asked]
        if place is None and settings.workers > 1:
            return supervise(sockets, settings, address=f"http://{host}:{sockets[0].getsockname()[1]}")
        if (file := opened.enter_context(access_file(access_log))) is not None:
            log = AccessLog(file)
            opened.callback(log.close)
            observers.append(log.exchange)
        session = Session(bundle, backend=backend, precision=precision, deterministic=deterministic)
        session.task_names([task for task in (default_task, *named) if task is not None])
        service = Service(session, settings)
        app = application(service, keys=known, observers=observers)
        public = app if place is None else CountsOfAll(app, place)
        listeners = [
            Listener(app=public if task is None else for_task(public, task), socket=socket)
            for task, socket in zip(named, sockets, strict=True)
        ]
        if place is not None:
            listeners.append(Listener(app=app, socket=place.own_socket()))

        def ready() -> None:
            if place is not None:
                place.begin()
                return
            for task, socket in zip(named, sockets, strict=True):
                what = f"{len(service.tasks)} tasks" if task is None else f"for task '{task}'"
                note(f"http://{host}:{socket.getsockname()[1]} answers {what}")

        limits, drain = settings.connections, settings.drain_seconds
        refused = service.metrics.refuse
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(listeners, drain_seconds=drain, ready=ready, limits=limits, refused=refused))
    return None
