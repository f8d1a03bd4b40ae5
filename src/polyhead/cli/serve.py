"""`polyhead serve`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from polyhead.cli.options import session_options
from polyhead.cli.output import note
from polyhead.errors import MissingExtra

if TYPE_CHECKING:
    from polyhead.serve.settings import Unknown


@click.command("serve")
@click.argument("bundle", type=click.Path(file_okay=False))
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; this machine alone by default."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free port.")
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
    port: int,
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
        from polyhead.serve.run import Listener, bound, serve
    except ImportError as error:
        raise MissingExtra(error.name or "uvicorn", "serve", "the server") from None
    from polyhead.engine.session import Session
    from polyhead.serve.labels import read_labels
    from polyhead.serve.service import Service
    from polyhead.serve.settings import ServeSettings

    settings = ServeSettings(unknown=unknown, labels={} if labels is None else read_labels(labels))
    socket = bound(host, port)
    session = Session(bundle, backend=backend, precision=precision, deterministic=deterministic)
    app = application(Service(session, settings))
    address = f"http://{host}:{socket.getsockname()[1]}"

    def ready() -> None:
        note(f"{address} answers {len(session.tasks)} tasks")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve([Listener(app=app, socket=socket)], drain_seconds=settings.drain_seconds, ready=ready))
