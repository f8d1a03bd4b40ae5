"""`polyhead serve`."""

from __future__ import annotations

import asyncio

import click

from polyhead.cli.options import session_options
from polyhead.cli.output import note
from polyhead.errors import MissingExtra


@click.command("serve")
@click.argument("bundle", type=click.Path(file_okay=False))
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; this machine alone by default."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free port.")
@session_options
def command(bundle: str, host: str, port: int, backend: str | None, precision: str | None, deterministic: bool) -> None:
    """Answer all tasks of BUNDLE over HTTP."""
    try:
        import uvloop

        from polyhead.serve.app import application
        from polyhead.serve.run import Listener, bound, serve
    except ImportError as error:
        raise MissingExtra(error.name or "uvicorn", "serve", "the server") from None
    from polyhead.engine.session import Session
    from polyhead.serve.service import Service
    from polyhead.serve.settings import ServeSettings

    settings = ServeSettings()
    socket = bound(host, port)
    session = Session(bundle, backend=backend, precision=precision, deterministic=deterministic)
    app = application(Service(session, settings))
    address = f"http://{host}:{socket.getsockname()[1]}"

    def ready() -> None:
        note(f"{address} answers {len(session.tasks)} tasks")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve([Listener(app=app, socket=socket)], drain_seconds=settings.drain_seconds, ready=ready))
