"""The page at `/`, the files that it is made of, and the load that it draws. It asks what every client can ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from importlib.resources import files
from pathlib import PurePosixPath

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from polyhead.engine.queue import BatchFacts
from polyhead.serve.formats.base import Operation, WireFormat
from polyhead.serve.http import json_content
from polyhead.serve.metrics import Load
from polyhead.serve.service import Service

START = "index.html"
MEDIA: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # a script that would put HTML into the page fails
        "trusted-types 'none'",
    )
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # kept, and asked for again by its tag each time
}


class PageFormat(WireFormat):
    """`/`, `/page/…` and `/v1/load`."""

    name = "page"

    def routes(self, service: Service) -> Sequence[BaseRoute]:
        """All routes. The files lie in memory, since they are few and small."""
        load = Load(lambda: service.waiting)

        def count(facts: BatchFacts) -> None:
            if service.is_ready:  # not what warms it
                load.batch(facts)

        service.observers.append(count)
        by_file = page_files()
        pages = [_file_route(f"/page/{name}", name, body) for name, body in by_file.items()]
        return [
            _file_route("/", START, by_file[START]),
            *pages,
            Route("/v1/load", partial(_load, load), methods=["GET"]),
        ]

    def operations(self) -> Sequence[Operation]:
        """An entry for each path: the page needs no key, its data do."""
        paths = ["/", *(f"/page/{name}" for name in page_files())]
        opened = [Operation(method="GET", path=path, summary="", access="open", is_listed=False) for path in paths]
        return [*opened, Operation(method="GET", path="/v1/load", summary="The load of the last minutes.")]


def page_files() -> dict[str, bytes]:
    """The files of the page, by name."""
    folder = files("polyhead.serve") / "page"
    return {
        file.name: file.read_bytes()
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if PurePosixPath(file.name).suffix in MEDIA
    }


def _file_route(path: str, name: str, body: bytes) -> Route:
    """A route that answers with one file, or with 304 to whoever has it."""
    tag = f'"{sha256(body).hexdigest()[:20]}"'
    headers = {**HEADERS, "Content-Type": MEDIA[PurePosixPath(name).suffix], "ETag": tag}

    async def answer(request: Request) -> Response:
        held = {each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")}
        if tag in held or "*" in held:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers)

    return Route(path, answer, methods=["GET"])


async def _load(load: Load, request: Request) -> Response:
    return json_content(load.answer(), headers={"Cache-Control": "no-store"})
