"""Routes for operators: health, metrics, and the description of all routes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from polyhead._version import __version__
from polyhead.serve.changes import ChangeState
from polyhead.serve.exposition import exposition_text, families_of
from polyhead.serve.formats.base import Operation, WireFormat, get
from polyhead.serve.http import JSON, json_content
from polyhead.serve.openapi import openapi_document, routes_html
from polyhead.serve.service import Service
from polyhead.values import Value

CSP = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
TEXT = "text/plain"
REFUSED = "what lies on disk cannot be taken over: the server's log says why, and GET /v1/changes with an admin's key"


class Health(Value):
    """The state of the server."""

    status: Literal["starting", "ready", "stopping"]
    version: str
    backend: str
    precision: str
    trunk: str  # digest
    tasks: int
    waiting: int  # inputs
    seconds: float  # since it began
    changes: ChangeState  # how far it follows its bundle
    bundles: dict[str, str] | UnsetType = UNSET  # of a set: the digest of each one's trunk, by name


class HealthFormat(WireFormat):
    """`/health`, `/metrics`, `/openapi.json`, `/docs`."""

    name = "health"

    def operations(self) -> Sequence[Operation]:
        """An entry for each route."""
        counts = "Counts in the text format of Prometheus."  # which name all tasks
        lives = "200 as long as the server lives, and how it is."
        return [
            get("/health", _health, lives, response=Health, access="open"),
            get("/metrics", _metrics, counts, media=TEXT),
            get("/openapi.json", _openapi, "This description.", access="open"),
            get("/docs", _docs, "This description as a page.", media="text/html", access="open"),
        ]


async def _health(service: Service, request: Request) -> Response:
    backend = service.session.backend
    facts = Health(
        status="ready" if service.is_ready else "stopping" if service.is_closing else "starting",
        version=__version__,
        backend=backend.name,
        precision=backend.precision,
        trunk=service.session.bundle.digest,
        tasks=len(service.tasks),
        waiting=service.waiting,
        seconds=round(monotonic() - service.began, 3),
        changes=_without_reason(service.change_state),
        bundles=service.bundles,
    )
    return json_content(facts, headers={"Cache-Control": "no-store"})


def _without_reason(state: ChangeState) -> ChangeState:
    """The state without the reason of a refusal, which may name tasks and labels: anyone can read this."""
    if state.refusal is None:
        return state
    refusal = msgspec.structs.replace(state.refusal, error=REFUSED)
    return msgspec.structs.replace(state, refusal=refusal)


async def _metrics(service: Service, request: Request) -> Response:
    families = families_of(service)
    content, media = await asyncio.to_thread(exposition_text, families, request.headers.get("accept", ""))
    return Response(content, media_type=media, headers={"Cache-Control": "no-store"})


async def _openapi(_: Service, request: Request) -> Response:
    return Response((await _described(request))[0], media_type=JSON)


async def _docs(_: Service, request: Request) -> Response:
    headers = {"Content-Security-Policy": CSP, "X-Content-Type-Options": "nosniff"}
    return HTMLResponse((await _described(request))[1], headers=headers)


async def _described(request: Request) -> tuple[bytes, bytes]:
    """The description as a file and as a page: the same for every request, so it is made by the first."""
    state = request.app.state
    if not hasattr(state, "described"):
        state.described = await asyncio.to_thread(_files, state.formats, request.app.routes)
    described: tuple[bytes, bytes] = state.described
    return described


def _files(formats: Sequence[WireFormat], routes: Sequence[BaseRoute]) -> tuple[bytes, bytes]:
    described = openapi_document(formats, routes)
    return msgspec.json.encode(described), routes_html(described).encode()
