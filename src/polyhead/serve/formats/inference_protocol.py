"""The Open Inference Protocol, version 2, of Triton, KServe and OpenVINO Model Server: a task is a model.

The model `all` answers every task at once, each as one tensor of JSON, unless a task has that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from polyhead._version import __version__
from polyhead.engine.familiar import check_none_below
from polyhead.engine.inputs import AnyInput, input_of, input_types_of
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.tickets import Ticket
from polyhead.errors import BadValue, PolyheadError, UnknownTask
from polyhead.serve.checks import check_deadline, size_of
from polyhead.serve.event_loop import off_loop
from polyhead.serve.formats.asking import costs_of, no_answer, ticket_results
from polyhead.serve.formats.base import Operation, get, post, routes_of
from polyhead.serve.formats.tensors import (
    LENGTH_HEADER,
    TEXT,
    InferRequest,
    Tensor,
    TensorFacts,
    answer_with,
    request_in,
    tensor_texts,
)
from polyhead.serve.http import HttpError, check_parts, gone, headers_of, json_content, status_of
from polyhead.serve.http import error_response as standard_answer_of
from polyhead.serve.service import Service, TaskSelection
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Answer, Task
from polyhead.values import Value

ALL, PLATFORM = "all", "polyhead"
CHANGES = {403: "The server takes no changes.", 501: "Changes are made elsewhere."}
PACKED = {415: "The body is packed."}
SHARED_MEMORY = "shared memory of clients is not read"


class ServedModel(Value, eq=False):
    """A task as a model, or all of them, as they were in a moment."""

    name: str
    tasks: tuple[Task, ...]
    loaded: LoadedTasks
    version: str = ""  # "" of all of them, and of a task that lies in no bundle
    is_all: bool = False

    @property
    def versions(self) -> list[str]:
        """The versions that answer: the live one, where there are any."""
        return [self.version] if self.version else []

    @property
    def inputs(self) -> list[TensorFacts]:
        """`text`, and `text_b` for a pair; of other tasks `input`: each a JSON object as `/v1/predict` takes it."""
        types: tuple[str, ...] = ("text",) if self.is_all else input_types_of(self.tasks[0])
        known: dict[tuple[str, ...], tuple[str, ...]] = {("text",): ("text",), ("pair",): ("text", "text_b")}
        names = known.get(types, ("input",))
        return [TensorFacts(name=name, datatype=TEXT, shape=[-1]) for name in names]

    @property
    def outputs(self) -> list[TensorFacts]:
        """One tensor of JSON a task of all of them; of one task `answer`, and what its kind has beside."""
        if self.is_all:
            return [TensorFacts(name=task.name, datatype=TEXT, shape=[-1]) for task in self.tasks]
        return _outputs_of(self.tasks[0])


class InferenceProtocol:
    """`/v2` and all below it."""

    name = "inference-protocol"

    def routes(self, service: Service) -> Sequence[BaseRoute]:
        """All routes, which ask this service."""
        rest = partial(_nothing, service)
        methods = ["GET", "POST", "PUT", "DELETE"]
        return [*routes_of(service, self.operations()), Route("/v2/{rest:path}", rest, methods=methods)]

    def error_response(self, error: Exception) -> Response:
        """An error of the guard as the protocol tells it."""
        return protocol_error(error) if isinstance(error, PolyheadError) else standard_answer_of(error)

    def operations(self) -> Sequence[Operation]:
        """What each takes and gives; probes need no key."""
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


def protocol_error(error: PolyheadError) -> Response:
    """An error as the protocol tells it."""
    return json_content({"error": str(error)}, status_of(error), headers_of(error))


async def _server(service: Service, request: Request) -> Response:
    return json_content(
        {"name": PLATFORM, "version": __version__, "extensions": ["binary_tensor_data", "model_repository"]}
    )


async def _live(service: Service, request: Request) -> Response:
    return Response(status_code=200)


async def _ready(service: Service, request: Request) -> Response:
    return Response(status_code=200 if service.is_ready else 503)


async def _nothing(service: Service, request: Request) -> Response:
    do = "send texts in the body" if "sharedmemory" in request.path_params["rest"] else "see docs/guides/clients.md"
    what = SHARED_MEMORY if "sharedmemory" in request.path_params["rest"] else "this part of the protocol is not spoken"
    raise HttpError(404, what, got=f"{request.method} {request.url.path}", do=do)


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


def _model_of(service: Service, request: Request) -> ServedModel:
    """The model that a route names; raises UnknownTask for what is not served, or not in that version."""
    name = request.path_params["name"]
    is_all = name == ALL and ALL not in service.loaded.tasks
    names = service.named(None if is_all else [name])
    version = "" if is_all else names.loaded.versions.get(name, "")
    model = ServedModel(name=name, tasks=names.tasks, loaded=names.loaded, version=version, is_all=is_all)
    _check_version(request, model.version)
    return model


def _check_version(request: Request, live: str) -> None:
    """Raises UnknownTask where a route names another version than the live one."""
    version = request.path_params.get("version")
    if version is not None and version != live:
        raise UnknownTask(
            f"version '{version}' of model '{request.path_params['name']}' is not served",
            allowed=[live] if live else [],
            do="leave the version out for the live one",
        )


async def _model_ready(service: Service, request: Request) -> Response:
    _model_of(service, request)
    return Response(status_code=200 if service.is_ready else 503)


async def _metadata(service: Service, request: Request) -> Response:
    model = _model_of(service, request)
    facts = {"inputs": model.inputs, "outputs": model.outputs}
    return json_content({"name": model.name, "versions": model.versions, "platform": PLATFORM, **facts})


async def _infer(service: Service, request: Request) -> Response:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise HttpError(415, "the body is packed", got=encoding, allowed="identity", do="send it as it is")
    body, model = await request.body(), _model_of(service, request)
    asked, inputs, words, names = await off_loop(
        len(body), _read, service, model, body, request.headers.get(LENGTH_HEADER)
    )
    timeout = asked.parameters.timeout
    deadline = timeout / 1e6 if timeout else None
    ticket = await service.ask(
        inputs,
        names,
        words=words,
        deadline=deadline,
        is_gone=gone(request),
        familiar=asked.parameters.familiar,
        none_below=asked.parameters.none_below,
    )
    return await off_loop(size_of(ticket), _answered, service, model, asked, ticket)


def _read(
    service: Service, model: ServedModel, body: bytes, json_bytes: str | None
) -> tuple[InferRequest, list[AnyInput], list[np.ndarray | None] | None, TaskSelection]:
    """The request, its inputs and their words, and the tasks that it asks, as its model has them."""
    asked, binary = request_in(body, json_bytes)
    check_deadline(asked.parameters.timeout or None)
    check_none_below(asked.parameters.none_below, model.loaded.tasks)
    _check_outputs(asked, {facts.name for facts in model.outputs})
    inputs, words = _inputs(model, tensor_texts(asked, binary, most=service.settings.limits.inputs))
    wanted = {output.name for output in asked.outputs}
    tasks = (task.name for task in model.tasks if not model.is_all or not wanted or task.name in wanted)
    names = TaskSelection.of(tasks, model.loaded)
    service.check_inputs(inputs, names)
    return asked, inputs, words, names


def _answered(service: Service, model: ServedModel, asked: InferRequest, ticket: Ticket) -> Response:
    wanted = {output.name for output in asked.outputs}
    version = "" if model.is_all else ticket.loaded.versions.get(model.name, "")
    tensors = _tensors_of_all(ticket) if model.is_all else _tensors_of(ticket, model.name)
    fields = {
        "model_name": model.name,
        "model_version": version,
        "parameters": {"x_receipt": _in_json(costs_of(ticket))},
    }
    if asked.id is not None:
        fields["id"] = asked.id
    return answer_with([each for each in tensors if not wanted or each.facts.name in wanted], asked, fields)


def _inputs(model: ServedModel, texts: dict[str, list[str]]) -> tuple[list[AnyInput], list[np.ndarray | None] | None]:
    """The inputs from their tensors, which are of one length, and their words; `input` in place of `text` is JSON."""
    allowed = [["input"], [facts.name for facts in model.inputs]] + [["text", "text_b"]] * model.is_all
    if sorted(texts) not in map(sorted, allowed) or len({len(each) for each in texts.values()}) > 1:
        raise BadValue(
            f"these are not the inputs of model '{model.name}'",
            got=", ".join(f"{name} ({len(each)} values)" for name, each in texts.items()) or "none",
            allowed=" or ".join(" and ".join(names) for names in allowed) + ", of one length",
        )
    if "text_b" in texts:
        return list(zip(texts["text"], texts["text_b"], strict=True)), None
    if "text" in texts:
        return [(text,) for text in texts["text"]], None
    read = [input_of(_json(text, number), where=f"input {number}") for number, text in enumerate(texts["input"])]
    return [entry for entry, _ in read], [own for _, own in read]


def _json(text: str, number: int) -> object:
    content = text.encode("utf-8", "surrogatepass")
    check_parts(content)
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadValue(f"input {number} is not JSON", got=str(error), do="or send the tensor 'text'") from None


def _tensors_of(ticket: Ticket, task: str) -> list[Tensor]:
    results = ticket_results(ticket)
    missing = next((number for number, result in enumerate(results) if task not in result.answers), None)
    if missing is not None:
        raise no_answer(results[missing], missing, task)
    return _tensors(ticket.loaded.tasks[task], [result.answers[task] for result in results])


@lru_cache(maxsize=4096)
def _outputs_of(task: Task) -> list[TensorFacts]:
    return [tensor.facts for tensor in _tensors(task, [])]


def _tensors(task: Task, answers: Sequence[Answer]) -> list[Tensor]:
    """`answer` in JSON, and, where the task's kind has them, its label, scores in the order of labels, or number."""
    rows, labels, kind = len(answers), len(task.labels), kind_of(task)
    tensors = [_texts("answer", [_in_json(answer) for answer in answers])]
    if kind.per_word or kind.per_option or kind.scores is None:
        return tensors
    if kind.scores == "range":
        return [*tensors, _numbers("value", "FP64", np.array([kind.cell_of(answer) for answer in answers]))]
    if kind.cell == "text":
        tensors.append(_texts("label", [str(kind.cell_of(answer)) for answer in answers]))
    scores = np.array([list(answer["scores"].values()) for answer in answers]).reshape(rows, labels)
    return [*tensors, _numbers("scores", "FP32", scores.astype(np.float32))]


def _tensors_of_all(ticket: Ticket) -> list[Tensor]:
    """One tensor of JSON a task: its answer, or why there is none."""
    results = ticket_results(ticket)

    def told_of(task: str, number: int) -> dict[str, Any]:
        result = results[number]
        if task in result.answers:
            return result.answers[task]
        for what in ("skipped", "failed"):
            if task in getattr(result, what):
                return {what: getattr(result, what)[task]}
        return {"late": True}

    return [_texts(task, [_in_json(told_of(task, number)) for number in range(len(results))]) for task in ticket.tasks]


def _in_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _texts(name: str, texts: list[str]) -> Tensor:
    return Tensor(facts=TensorFacts(name=name, datatype=TEXT, shape=[len(texts) or -1]), values=texts)


def _numbers(name: str, datatype: str, values: np.ndarray) -> Tensor:
    shape = [values.shape[0] or -1, *values.shape[1:]]
    return Tensor(facts=TensorFacts(name=name, datatype=datatype, shape=shape), values=values)


def _check_outputs(asked: InferRequest, known: set[str]) -> None:
    for output in asked.outputs:
        if output.name not in known:
            raise BadValue(f"the model has no output '{output.name}'", allowed=sorted(known))
        if output.parameters.shared_memory_region is not None:
            raise BadValue(SHARED_MEMORY, got=f"output '{output.name}'", do="read it from the answer")
        if output.parameters.classification:
            raise BadValue(
                f"output '{output.name}' is not ranked here", got="class_count", do="sort 'scores', or ask 'answer'"
            )
