"""`polyhead serve`."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from polyhead.cli.options import session_options
from polyhead.cli.output import note
from polyhead.cli.ports import Port, PortType, in_order
from polyhead.errors import MissingExtra

if TYPE_CHECKING:
    from polyhead.serve.settings import Unknown


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
def command(
    bundle: str,
    host: str,
    ports: tuple[Port, ...],
    default_task: str | None,
    unknown: Unknown,
    labels: str | None,
    backend: str | None,
    precision: str | None,
    deterministic: bool,
) -> None:
    """Answer all tasks of BUNDLE over HTTP."""
    try:
        import uvloop

        from polyhead.serve.app import application
        from polyhead.serve.formats.asking import for_task
        from polyhead.serve.run import Listener, bound, serve
    except ImportError as error:
        raise MissingExtra(error.name or "uvicorn", "serve", "the server") from None
    from polyhead.engine.session import Session
    from polyhead.serve.labels import read_labels
    from polyhead.serve.service import Service
    from polyhead.serve.settings import ServeSettings

    renamed = {} if labels is None else read_labels(labels)
    settings = ServeSettings(default_task=default_task, unknown=unknown, labels=renamed)
    with ExitStack() as opened:
        places = [(port.task, opened.enter_context(bound(host, port.number))) for port in in_order(ports)]
        session = Session(bundle, backend=backend, precision=precision, deterministic=deterministic)
        session.task_names([task for task in (default_task, *(task for task, _ in places)) if task is not None])
        service = Service(session, settings)
        app = application(service)
        listeners = [
            Listener(app=app if task is None else for_task(app, task), socket=socket) for task, socket in places
        ]

        def ready() -> None:
            for task, socket in places:
                what = f"{len(service.tasks)} tasks" if task is None else f"for task '{task}'"
                note(f"http://{host}:{socket.getsockname()[1]} answers {what}")

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(listeners, drain_seconds=settings.drain_seconds, ready=ready))
