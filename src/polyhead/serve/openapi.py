"""The OpenAPI file of the formats that are served, made from the types that their routes read and write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

from polyhead._version import __version__
from polyhead.serve.examples import example_of
from polyhead.serve.formats.base import Described, Operation, TellsErrors, WireFormat
from polyhead.serve.http import JSON, ErrorReply

REFUSALS: Mapping[int, str] = {
    400: "The body is not JSON, or nested too deeply.",
    401: "A key is needed.",
    413: "The body is too large.",
    422: "The body has another form than the route reads, or holds more than is allowed.",
    429: "Too much waits to be answered; `Retry-After` says for how many seconds.",
}
WITHOUT_BODY = (401, 429)
_REF = "#/components/schemas/{name}"


def openapi_document(formats: Iterable[WireFormat], routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """OpenAPI 3.1, with an entry for each operation that these formats describe and that has one of these routes.

    Types are named after their format, since several have types of the same name.
    """
    (error,), components = msgspec.json.schema_components([ErrorReply], ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    there = {(route.path, method) for route in routes if isinstance(route, Route) for method in route.methods or ()}
    for wire_format in formats:
        listed = wire_format.operations() if isinstance(wire_format, Described) else ()
        listed = [operation for operation in listed if (operation.path, operation.method) in there]
        operations, own = [operation for operation in listed if operation.is_listed], f"{wire_format.name}."
        types = [each for operation in operations for each in (operation.request, operation.response)]
        schemas, named = msgspec.json.schema_components(
            [Any if each is None else each for each in types], ref_template=_REF.replace("{", own + "{")
        )
        components |= {own + name: schema for name, schema in named.items()}
        refusal = None if isinstance(wire_format, TellsErrors) else error
        for number, operation in enumerate(operations):
            entry = _entry(wire_format.name, operation, schemas[2 * number], schemas[2 * number + 1], refusal)
            paths.setdefault(operation.path, {})[operation.method.lower()] = entry
    schemes = {"bearer": {"type": "http", "scheme": "bearer"}}
    schemes["header"] = {"type": "apiKey", "in": "header", "name": "x-api-key"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Polyhead", "version": __version__, "description": "One encoder, every task."},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": schemes},
    }


def _entry(
    tag: str, operation: Operation, asked: dict[str, Any], answer: dict[str, Any], error: dict[str, Any] | None
) -> dict[str, Any]:
    refusals = {s: text for s, text in REFUSALS.items() if operation.request is not None or s in WITHOUT_BODY}
    if operation.access == "open":
        refusals.pop(401)
    if "{" in operation.path:
        refusals[404] = "There is nothing of that name."
    if operation.request is not None:
        refusals[404] = "There is no task of that name."
    answered: dict[str, Any] = {"description": "The answer."}
    if operation.media:
        answered["content"] = {operation.media: {"schema": answer}}
    entry: dict[str, Any] = {"tags": [tag], "summary": operation.summary, "responses": {"200": answered}}
    for status, text in sorted({**refusals, **operation.statuses}.items()):
        entry["responses"][str(status)] = {"description": text}
        if error is not None:
            entry["responses"][str(status)]["content"] = {JSON: {"schema": error}}
    names = [part[1:-1].partition(":")[0] for part in operation.path.split("/") if part.startswith("{")]
    if names:
        where = {"in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        entry["parameters"] = [{"name": name, **where} for name in names]
    if operation.request is not None:
        example = operation.example if operation.example is not None else example_of(operation.request)
        entry["requestBody"] = {"required": True, "content": {JSON: {"schema": asked, "example": example}}}
    if operation.access != "open":
        entry["security"] = [{"bearer": []}, {"header": []}, {}]
    return entry
