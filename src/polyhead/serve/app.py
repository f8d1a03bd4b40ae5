"""The application: routes of every registered format behind the guard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from polyhead.serve.formats import FORMATS
from polyhead.serve.formats.base import TellsErrors
from polyhead.serve.guard import Guard
from polyhead.serve.http import HttpError, answer_of
from polyhead.serve.service import Service


def application(service: Service, *, formats: Iterable[str] | None = None) -> Starlette:
    """An ASGI application over a service, which it starts and stops; `formats` are names of wire formats, None all."""
    chosen = FORMATS if formats is None else {name: FORMATS.named(name) for name in formats}
    by_format = {name: list(each.routes(service)) for name, each in chosen.items()}
    routes: list[BaseRoute] = [route for each in by_format.values() for route in each]
    told = {
        route.path: each.told
        for name, each in chosen.items()
        if isinstance(each, TellsErrors)
        for route in by_format[name]
        if isinstance(route, Route)
    }

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    guard = Middleware(Guard, body_bytes=service.settings.limits.body_bytes, told=told)
    return Starlette(
        routes=routes, middleware=[guard], lifespan=lifespan, exception_handlers={HTTPException: _of_starlette}
    )


async def _of_starlette(request: Request, error: Exception) -> Response:
    """No such route, or another method than it takes."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = {404: "there is no such route", 405: "the route does not take this method"}.get(status, "refused")
    got = f"{request.method} {request.url.path}"
    return answer_of(HttpError(status, what, got=got, do="see /docs for all routes"))
