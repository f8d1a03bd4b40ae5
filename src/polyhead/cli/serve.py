"""`polyhead serve`."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from polyhead.cli.options import session_options
from polyhead.cli.output import note
from polyhead.cli.serve_changes import changes_options, place_of_worker, supervise, with_changes
from polyhead.errors import MissingExtra


@click.command("serve")
@click.argument("bundle", type=click.Path(file_okay=False))
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; this machine alone by default."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free port.")
@session_options
@changes_options
def command(
    bundle: str, host: str, port: int, backend: str | None, precision: str | None, deterministic: bool, **given: Any
) -> None:
    """Answer all tasks of BUNDLE over HTTP."""
    try:
        import uvloop

        from polyhead.serve.app import application
        from polyhead.serve.run import Listener, bound, serve
        from polyhead.serve.workers import CountsOfAll
    except ImportError as error:
        raise MissingExtra(error.name or "uvicorn", "serve", "the server") from None
    from polyhead.engine.session import Session
    from polyhead.serve.service import Service
    from polyhead.serve.settings import ServeSettings

    settings, place = with_changes(ServeSettings(), given), place_of_worker()
    sockets = [bound(host, port)] if place is None else place.take()
    address = f"http://{host}:{sockets[0].getsockname()[1]}"
    if place is None and settings.workers > 1:
        return supervise(sockets, settings, address=address)
    session = Session(bundle, backend=backend, precision=precision, deterministic=deterministic)
    app = application(Service(session, settings))
    public = app if place is None else CountsOfAll(app, place)
    listeners = [Listener(app=public, socket=each) for each in sockets]
    if place is not None:
        listeners.append(Listener(app=app, socket=place.own_socket()))

    def ready() -> None:
        if place is None:
            note(f"{address} answers {len(session.tasks)} tasks")
        else:
            place.begin()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(listeners, drain_seconds=settings.drain_seconds, ready=ready))
    return None
