"""The application: routes of every registered format behind the guard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from anyio import create_task_group
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from polyhead.serve.formats import FORMATS
from polyhead.serve.formats.admin import is_upload
from polyhead.serve.guard import Guard, Observer, Paths, no_route
from polyhead.serve.http import HttpError
from polyhead.serve.keys import NO_KEYS, AccessKeys
from polyhead.serve.service import Service


def application(
    service: Service,
    *,
    formats: Iterable[str] | None = None,
    keys: AccessKeys = NO_KEYS,
    hosts: Collection[str] | None = None,
    observers: Sequence[Observer] = (),
    beside: Sequence[Callable[[], AbstractAsyncContextManager[None]]] = (),
) -> Starlette:
    """An ASGI application over a service, which it starts and stops; `formats` are names of wire formats, None all.

    `hosts` are the host names allowed without a key, in addition to the server's addresses; None allows any, for tests
    and for embedding in another application. `observers` are called after every answered request. The contexts in
    `beside` are entered after the service has started, and left before it stops.
    """
    chosen = FORMATS if formats is None else {name: FORMATS.named(name) for name in formats}
    by_format = [(each, each.routes(service)) for each in chosen.values()]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await service.start()
        async with create_task_group():  # loads the modules of streams before a caller needs them
            pass
        try:
            async with AsyncExitStack() as stack:
                for each in beside:
                    await stack.enter_async_context(each())
                yield
        finally:
            await service.stop()

    def larger(method: str, path: str) -> int:
        return limits.upload_bytes if service.settings.admin and is_upload(method, path) else 0

    limits = service.settings.limits
    guard = Middleware(
        Guard,
        paths=Paths(by_format),
        body_bytes=limits.body_bytes,
        larger=larger,
        keys=keys,
        hosts=hosts,
        observers=(*observers, service.metrics.exchange),
    )
    app = Starlette(
        routes=[route for _, routes in by_format for route in routes],
        middleware=[guard],
        lifespan=lifespan,
        exception_handlers={HTTPException: _of_starlette},
    )
    app.state.formats = tuple(chosen.values())
    return app


async def _of_starlette(request: Request, error: Exception) -> Response:
    """Another method than the route takes; the guard tells it in the form of the path's format."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        raise no_route(request.scope)
    problem = {405: "the route does not take this method"}.get(status, "refused")
    methods = (getattr(error, "headers", None) or {}).get("Allow")
    allowed = None if methods is None else methods.split(", ")
    got = f"{request.method} {request.scope['path'][:200]}"
    raise HttpError(status, problem, got=got, allowed=allowed, do="see /docs for all routes")
