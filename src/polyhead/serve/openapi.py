"""The OpenAPI file of the routes, made from the types that they read and write, and the same as a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

from polyhead._version import __version__
from polyhead.serve.formats.base import TASK_QUERY, Operation, WireFormat
from polyhead.serve.http import JSON, ErrorReply, example_of

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
    served = {(route.path, method) for route in routes if isinstance(route, Route) for method in route.methods or ()}
    for wire_format in formats:
        listed = [operation for operation in wire_format.operations() if (operation.path, operation.method) in served]
        operations, prefix = [operation for operation in listed if operation.is_listed], f"{wire_format.name}."
        types = [each for operation in operations for each in (operation.request, operation.response)]
        schemas, named = msgspec.json.schema_components(
            [Any if each is None else each for each in types], ref_template=_REF.replace("{", prefix + "{")
        )
        components |= {prefix + name: schema for name, schema in named.items()}
        refusal = None if wire_format.has_own_errors else error
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
    tag: str, operation: Operation, requested: dict[str, Any], answer: dict[str, Any], error: dict[str, Any] | None
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
    where = {"in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    parameters: list[dict[str, Any]] = [{"name": name, **where} for name in names]
    parameters += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in operation.queries]
    if parameters:
        entry["parameters"] = parameters
    if operation.request is not None:
        example = operation.example if operation.example is not None else example_of(operation.request)
        entry["requestBody"] = {"required": True, "content": {JSON: {"schema": requested, "example": example}}}
    if operation.access != "open":
        entry["security"] = [{"bearer": []}, {"header": []}, {}]
    return entry


ADDRESS = "localhost:8000"
DEEPEST = 4  # objects in each other of which the fields are shown
Schemas = Mapping[str, Any]


def routes_html(described: Mapping[str, Any]) -> str:
    """The OpenAPI file as HTML."""
    schemas: Schemas = described["components"]["schemas"]
    routes = "".join(
        _route(path, method, entry, schemas)
        for path, methods in described["paths"].items()
        for method, entry in methods.items()
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Polyhead {escape(__version__)}: routes</title><style>{STYLE}</style><main><h1>Polyhead: routes</h1>"
        "<p>The same as a file: <a href='/openapi.json'>/openapi.json</a>. Where the server has keys, add "
        f"<code>-H 'Authorization: Bearer KEY'</code> to a line of curl; <code>{ADDRESS}</code> stands for its "
        f"address, <code>TASK</code> for the name of a task.</p>{routes}</main>"
    )


def _route(path: str, method: str, entry: Mapping[str, Any], schemas: Schemas) -> str:
    body = entry.get("requestBody", {}).get("content", {}).get(JSON)
    requested = ""
    if body is not None:
        example = msgspec.json.format(msgspec.json.encode(body["example"]), indent=2).decode()
        requested = f"<h3>Body</h3>{_table(body['schema'], schemas)}<pre>{escape(example)}</pre>"
    answers = "".join(
        f"<dt><code>{escape(status)}</code></dt>"
        f"<dd>{_prose(answer['description'])}{_contents(answer, schemas, status)}</dd>"
        for status, answer in entry["responses"].items()
    )
    return (
        f"<details><summary><b>{escape(method.upper())}</b><code>{escape(path).replace('/', '<wbr>/')}</code>"
        f"<span>{_prose(entry['summary'])}</span><i>{escape(', '.join(entry['tags']))}</i></summary>"
        f"<h3>curl</h3><pre>{escape(curl_of(path + _query(entry), method, body))}</pre>{requested}"
        f"<h3>Answers</h3><dl>{answers}</dl></details>"
    )


def _prose(text: str) -> str:
    """As HTML; code stands between backticks."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _query(entry: Mapping[str, Any]) -> str:
    """The query of an example with curl: which task is asked."""
    named = [parameter["name"] for parameter in entry.get("parameters", ()) if parameter["in"] == "query"]
    return f"?{TASK_QUERY}=TASK" if TASK_QUERY in named else ""


def curl_of(path: str, method: str, body: Mapping[str, Any] | None) -> str:
    """A line that asks a route."""
    address = ADDRESS + re.sub(r"\{(\w+)(:\w+)?\}", lambda name: "TASK" if name[1] == "name" else name[1].upper(), path)
    if body is not None:
        content = msgspec.json.encode(body["example"]).decode().replace("'", r"\u0027")
        return f"curl {address} -d '{content}'"
    return f"curl {address}" + {"get": "", "put": " -T task.tar"}.get(method, f" -X {method.upper()}")


def _contents(answer: Mapping[str, Any], schemas: Schemas, status: str) -> str:
    """The fields of an answer; errors, which always have the same fields, are left out."""
    if status != "200":
        return ""
    return "".join(_table(content["schema"], schemas) for content in answer.get("content", {}).values())


def _table(schema: Mapping[str, Any], schemas: Schemas) -> str:
    """The fields of an object, with the fields of inner objects below; of anything else its type."""
    rows = "".join(
        f"<tr><td style='padding-left:{1.2 * level:.1f}em'><code>{escape(name)}</code><td>{escape(words)}"
        f"<td>{'needed' if is_needed else ''}"
        for level, name, words, is_needed in _fields(schema, schemas, 0, ())
    )
    return f"<table>{rows}</table>" if rows else f"<p>{escape(_words(schema))}</p>" * bool(schema)


def _fields(
    schema: Mapping[str, Any], schemas: Schemas, level: int, within: tuple[str, ...]
) -> Iterator[tuple[int, str, str, bool]]:
    """Level, name, type and whether it is needed, of each field; `within` are the types around it."""
    for name, inner in _objects(schema, schemas):
        if name in within or level == DEEPEST:
            continue
        for field, form in inner.get("properties", {}).items():
            yield level, field, _words(form), field in inner.get("required", ())
            yield from _fields(form, schemas, level + 1, (*within, name))


def _objects(schema: Mapping[str, Any], schemas: Schemas) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects that a value may be or hold, with their names."""
    if "$ref" in schema:
        name = _name(schema)
        yield from _objects(schemas[name], schemas) if "properties" not in schemas[name] else [(name, schemas[name])]
    for key in ("anyOf", "oneOf"):
        for each in schema.get(key, ()):
            yield from _objects(each, schemas)
    for key in ("items", "additionalProperties"):
        if isinstance(inner := schema.get(key), dict):
            yield from _objects(inner, schemas)


def _words(schema: Mapping[str, Any]) -> str:
    """A type in few words."""
    if "$ref" in schema:
        return _name(schema).rpartition(".")[2]
    if "enum" in schema or "const" in schema:
        return " or ".join(map(_json, schema.get("enum", [schema.get("const")])))
    if choices := [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        words = " or ".join(dict.fromkeys(map(_words, choices)))
    elif schema.get("type") == "array":
        words = f"list of {_words(schema.get('items') or {})}"
    elif schema.get("type") == "object":
        inner = schema.get("additionalProperties")
        fields = ", ".join(schema.get("properties", ()))
        words = f"{{{fields}}}" if fields else f"object of {_words(inner)}" if isinstance(inner, dict) else "object"
    else:
        words = str(schema.get("type", "any value"))
    return f"{words}; {_json(schema['default'])} by default" if "default" in schema else words


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
main { max-width: 64rem; margin: 0 auto; padding: 1rem }
details { border: 1px solid color-mix(in srgb, currentColor 20%, transparent); border-radius: .4rem; margin: .4rem 0 }
details { padding: .4rem .8rem }
summary { cursor: pointer; display: grid; grid-template-columns: 4rem 19rem 1fr 9rem; gap: 0 .8rem }
summary > * { overflow-wrap: anywhere } summary i { opacity: .6; text-align: end }
@media (max-width: 45rem) { summary { grid-template-columns: 4rem 1fr }
  summary span, summary i { grid-column: 2; text-align: start } }
pre { overflow: auto; padding: .6rem; background: color-mix(in srgb, currentColor 7%, transparent) }
table { border-collapse: collapse } td { padding: .1rem .8rem .1rem 0; vertical-align: top; overflow-wrap: anywhere }
td > code, td:last-child { white-space: nowrap }
h3 { font-size: 1rem; margin: .6rem 0 0 } dt { float: left; width: 4rem } dd { margin-left: 4rem }
"""
