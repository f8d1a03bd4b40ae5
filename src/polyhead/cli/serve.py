"""`polyhead serve`."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from polyhead.cli.options import session_options
from polyhead.cli.output import note
from polyhead.cli.serve_options import access_file, keys_of, settings_of, settings_options
from polyhead.errors import MissingExtra


@click.command("serve")
@click.argument("bundle", type=click.Path(file_okay=False))
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; this machine alone by default."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free port.")
@session_options
@settings_options
def command(
    bundle: str,
    host: str,
    port: int,
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
        from polyhead.serve.keys import check_keys
        from polyhead.serve.run import Listener, bound, serve
        from polyhead.serve.tracing import Tracing
    except ImportError as error:
        raise MissingExtra(error.name or "uvicorn", "serve", "the server") from None
    from polyhead.engine.session import Session
    from polyhead.serve.service import Service

    settings, known = settings_of(given), keys_of(keys)
    check_keys(known, host=host, admin=settings.admin, no_keys=no_keys)
    observers = [Tracing().exchange] if traces else []
    with access_file(access_log) as file:
        log = None if file is None else AccessLog(file)
        if log is not None:
            observers.append(log.exchange)
        socket = bound(host, port)
        session = Session(bundle, backend=backend, precision=precision, deterministic=deterministic)
        service = Service(session, settings)
        app = application(service, keys=known, observers=observers)
        address = f"http://{host}:{socket.getsockname()[1]}"

        def ready() -> None:
            note(f"{address} answers {len(session.tasks)} tasks")

        served = serve(
            [Listener(app=app, socket=socket)],
            drain_seconds=settings.drain_seconds,
            ready=ready,
            limits=settings.connections,
            refused=service.metrics.refuse,
        )
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(served)
        finally:
            if log is not None:
                log.close()
