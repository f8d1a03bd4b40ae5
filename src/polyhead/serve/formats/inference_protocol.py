"""The Open Inference Protocol, version 2, of Triton, KServe and OpenVINO Model Server: a task is a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from polyhead._version import __version__
from polyhead.engine.tickets import Ticket
from polyhead.errors import PolyheadError
from polyhead.serve.checks import size_of
from polyhead.serve.event_loop import off_loop
from polyhead.serve.formats.base import Operation, WireFormat, get, post
from polyhead.serve.formats.models import (
    ALL,
    EXTENSIONS,
    PLATFORM,
    SHARED_MEMORY,
    Inference,
    ServedModel,
    model_named,
    read_inference,
)
from polyhead.serve.formats.tensors import LENGTH_HEADER, InferRequest, answer_with, request_in
from polyhead.serve.http import HttpError, gone, headers_of, json_content, status_of, whole_body
from polyhead.serve.service import Service

CHANGES = {403: "The server takes no changes.", 501: "Changes are made elsewhere."}
PACKED = {415: "The body is packed."}


class InferenceProtocol(WireFormat):
    """`/v2` and all below it."""

    name = "inference-protocol"

    def routes(self, service: Service) -> Sequence[BaseRoute]:
        """All routes, which ask this service."""
        others = partial(_refuse, service)
        methods = ["GET", "POST", "PUT", "DELETE"]
        return [*super().routes(service), Route("/v2/{rest:path}", others, methods=methods)]

    def error_response(self, error: Exception) -> Response:
        """An error of the guard as the protocol tells it."""
        if not isinstance(error, PolyheadError):
            return super().error_response(error)
        return json_content({"error": str(error)}, status_of(error), headers_of(error))

    def operations(self) -> Sequence[Operation]:
        """An entry for each route; probes need no key."""
        late, ready = {504: "It was not done by the deadline.", **PACKED}, "200 where the model answers."
        probe: dict[str, Any] = {"access": "open", "media": "", "statuses": {503: "It is not."}}
        change = "/v2/repository/models/{name}/{change}"
        listed = [
            get("/v2", _server, "The server and its extensions."),
            get("/v2/health/live", _live, "200 as long as the server lives.", **probe),
            get("/v2/health/ready", _ready, "200 once it is warm, until it stops.", **probe),
            post("/v2/repository/index", _index, "All models: a task each."),
            post(change, _changed, "Refused: see the answer.", statuses=CHANGES),
        ]
        for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            listed += [
                get(model, _metadata, "A model's inputs and outputs."),
                get(f"{model}/ready", _model_ready, ready, media="", statuses={503: "It does not."}),
                post(f"{model}/infer", _infer, "Answers, as tensors.", request=InferRequest, statuses=late),
            ]
        return listed


async def _server(service: Service, request: Request) -> Response:
    return json_content({"name": PLATFORM, "version": __version__, "extensions": EXTENSIONS})


async def _live(service: Service, request: Request) -> Response:
    return Response(status_code=200)


async def _ready(service: Service, request: Request) -> Response:
    return Response(status_code=200 if service.is_ready else 503)


async def _refuse(service: Service, request: Request) -> Response:
    is_memory = "sharedmemory" in request.path_params["rest"]
    do = "send texts in the body" if is_memory else "see docs/guides/clients.md"
    problem = SHARED_MEMORY if is_memory else "this part of the protocol is not spoken"
    raise HttpError(404, problem, got=f"{request.method} {request.url.path}", do=do)


async def _index(service: Service, request: Request) -> Response:
    versions = service.loaded.versions
    state = {"state": "READY" if service.is_ready else "UNAVAILABLE", "reason": ""}
    names = [*service.tasks] + [ALL] * (ALL not in service.tasks)
    return json_content([{"name": name, "version": versions.get(name, ""), **state} for name in names])


async def _changed(service: Service, request: Request) -> Response:
    """Models are never loaded or unloaded by a name alone: a task is a version with proof that it moves no other."""
    name, change = request.path_params["name"], request.path_params["change"]
    if change not in ("load", "unload"):
        raise HttpError(404, "there is no such route", got=change, allowed="load, unload")
    if not service.settings.admin:
        raise HttpError(
            403, f"task '{name}' is not {change}ed: this server takes no changes", do="start it with its admin switch"
        )
    verb = "PUT" if change == "load" else "DELETE"
    raise HttpError(501, f"task '{name}' is not {change}ed here", do=f"ask {verb} /v1/tasks/{name}, which checks it")


async def _model_ready(service: Service, request: Request) -> Response:
    _model_of(service, request)
    return Response(status_code=200 if service.is_ready else 503)


async def _metadata(service: Service, request: Request) -> Response:
    model = _model_of(service, request)
    facts = {"inputs": model.inputs, "outputs": model.outputs}
    return json_content({"name": model.name, "versions": model.versions, "platform": PLATFORM, **facts})


async def _infer(service: Service, request: Request) -> Response:
    body, model = await whole_body(request), _model_of(service, request)
    inference = await off_loop(len(body), _read, service, model, body, request.headers.get(LENGTH_HEADER))
    ticket = await inference.ask(service, is_gone=gone(request))
    return await off_loop(size_of(ticket), _answered, inference, ticket)


def _model_of(service: Service, request: Request) -> ServedModel:
    """The model that a route names."""
    return model_named(service, request.path_params["name"], request.path_params.get("version"))


def _read(service: Service, model: ServedModel, body: bytes, json_bytes: str | None) -> Inference:
    return read_inference(service, model, *request_in(body, json_bytes))


def _answered(inference: Inference, ticket: Ticket) -> Response:
    return answer_with(inference.tensors(ticket), inference.request, inference.facts(ticket))
