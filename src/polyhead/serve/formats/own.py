"""Polyhead's own format: any inputs, any tasks, answers as they come, and what each cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from polyhead.bundle.read import Bundle
from polyhead.config import Value
from polyhead.engine.answers import Result
from polyhead.engine.inputs import AnyInput, InputType, input_of, input_types_of
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.queue import Ticket
from polyhead.engine.receipt import Receipt
from polyhead.engine.request import TaskResults
from polyhead.errors import BadValue, BundleError
from polyhead.serve.explain import Why, explained
from polyhead.serve.formats.base import Operation
from polyhead.serve.http import HttpError, body_of, decoded, encoded, gone
from polyhead.serve.service import Names, Served, Service
from polyhead.tasks.calibration import CalibrationChoice, wish_of, with_calibrated
from polyhead.tasks.task import Answer, Task

NDJSON, EVENTS = "application/x-ndjson", "text/event-stream"


_TEXT = {"type": "string"}


def _object(*names: str, needed: int) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(names, _TEXT), "required": list(names[:needed])}


_FORMS = [
    _TEXT,
    _object("text", "text_b", needed=1),
    _object("question", "context", needed=2),
    _object("question", "context", needed=1)
    | {"properties": {"question": _TEXT, "context": _TEXT, "options": {"type": "array", "items": _TEXT, "minItems": 2}}}
    | {"required": ["question", "options"]},
    {"type": "object", "properties": {"tokens": {"type": "array", "items": _TEXT}}, "required": ["tokens"]},
]
_LISTED = {"type": "array", "items": {"anyOf": _FORMS}, "minItems": 1}


class Options(Value):
    """How a request is answered."""

    deadline: float | None = None  # seconds; tasks that are not done by then are late
    receipt: bool = True  # whether each result says what it cost
    # Whether answers say what calibration makes of them; by task also how.
    calibrated: bool | dict[str, bool | CalibrationChoice] = True
    explain: bool = False  # whether each result says which words moved it: a text of n words costs n + 1 texts


class PredictRequest(Value):
    """Inputs and the tasks that are asked about all of them."""

    # One input or a list: see `polyhead.engine.inputs.FORMS`.
    inputs: Annotated[Any, msgspec.Meta(extra_json_schema={"anyOf": [*_FORMS, _LISTED]})]
    tasks: list[str] | None = None  # None: all, but those that write texts
    options: Options = Options()


class Cost(Value):
    """What a request cost in all: the sum of its inputs' receipts."""

    passes: int = 0
    layers: int = 0
    tokens: int = 0
    cut: int = 0
    cached: int = 0  # inputs that were answered from the cache, with no pass


class PredictAnswer(Value, omit_defaults=True):
    """A result for each input, in order, and the version of each task that gave them."""

    results: list[dict[str, Any]]
    versions: dict[str, Served]
    trunk: str  # digest
    receipt: Cost


class StageLine(Value):
    """One task's answers, by the number of the input; `layers_left` are run for other tasks."""

    task: str
    answers: dict[int, dict[str, Any]]
    layers_left: int


class Tasks(Value):
    """All tasks that can be asked."""

    trunk: str  # digest
    tasks: list[TaskFacts]


class TaskFacts(Value):
    """A task that can be asked."""

    name: str
    task: Task
    inputs: tuple[InputType, ...]  # that it reads
    version: str
    digest: str
    headline: tuple[str, float | None] | None = None  # the score on test rows: metric, value


class OwnFormat:
    """`/v1/predict`, `/v1/predict/stream`, `/v1/tasks`."""

    name = "polyhead"

    def routes(self, service: Service) -> Sequence[BaseRoute]:
        """All routes, which ask this service."""
        return [
            Route("/v1/predict", partial(_predict, service), methods=["POST"]),
            Route("/v1/predict/stream", partial(_stream, service), methods=["POST"]),
            Route("/v1/tasks", partial(_tasks, service), methods=["GET"]),
            Route("/v1/tasks/{name}", partial(_task, service), methods=["GET"]),
        ]

    def operations(self) -> Sequence[Operation]:
        """What each route takes and gives."""
        stream = "The same, each task's answers as soon as they are done: a line each, or a server-sent event."
        return [
            Operation(
                method="POST",
                path="/v1/predict",
                summary="Answers tasks for texts, pairs and questions: one pass of the encoder an input.",
                request=PredictRequest,
                response=PredictAnswer,
            ),
            Operation(method="POST", path="/v1/predict/stream", summary=stream, request=PredictRequest, media=NDJSON),
            Operation(method="GET", path="/v1/tasks", summary="All tasks that can be asked.", response=Tasks),
            Operation(method="GET", path="/v1/tasks/{name}", summary="A task, its card, scores and path."),
        ]


_DECODER = msgspec.json.Decoder(PredictRequest)


async def _predict(service: Service, request: Request) -> Response:
    asked, inputs, words, names = await _read(service, request)
    deadline, is_gone = asked.options.deadline, gone(request)
    if asked.options.explain:
        why = await explained(service, inputs, names, words=words, deadline=deadline, is_gone=is_gone)
        return encoded(_explained(service, why, asked.options))
    ticket = await service.ask(inputs, names, words=words, deadline=deadline, is_gone=is_gone)
    return encoded(_answer(service, ticket, asked.options))


async def _read(
    service: Service, request: Request
) -> tuple[PredictRequest, list[AnyInput], list[np.ndarray | None] | None, Names]:
    asked = await decoded(request, _DECODER)
    listed = asked.inputs if isinstance(asked.inputs, list) else [asked.inputs]
    service.check_count(len(listed), len(asked.tasks or ()))
    names = service.named(asked.tasks)
    read = [input_of(row, where=f"input {number}") for number, row in enumerate(listed)]
    inputs, words = [entry for entry, _ in read], [own for _, own in read]
    service.check_inputs(inputs, names)
    return asked, inputs, words if any(own is not None for own in words) else None, names


def _answer(service: Service, ticket: Ticket, options: Options) -> PredictAnswer:
    results = [result for result in ticket.results if result is not None]
    return PredictAnswer(
        results=[_result(result, _answers(ticket, result, options), options) for result in results],
        versions=service.served(ticket),
        trunk=service.session.bundle.digest,
        receipt=total([result.receipt for result in results], cached=ticket.cached),
    )


def _answers(ticket: Ticket, result: Result, options: Options) -> dict[str, Answer]:
    """The answers as the request wants them calibrated."""
    if options.calibrated is True:
        return result.answers
    return {name: _wished(ticket.loaded, name, [answer], options)[0] for name, answer in result.answers.items()}


def _wished(loaded: LoadedTasks, name: str, answers: Sequence[Answer], options: Options) -> list[Answer]:
    wish = wish_of(options.calibrated, name)
    return with_calibrated(loaded.tasks[name], loaded.calibrations.get(name), answers, wish)


def _explained(service: Service, why: Why, options: Options) -> PredictAnswer:
    """The results of the inputs themselves, each with why; the receipt is that of all that was read for it."""
    answer = _answer(service, why.ticket, options)
    results = [
        {**answer.results[place], "explained": several}
        for place, several in zip(why.places, why.explanations, strict=True)
    ]
    return msgspec.structs.replace(answer, results=results)


def _result(result: Result, answers: dict[str, Answer], options: Options) -> dict[str, Any]:
    """What there is of a result: failures, and tasks that do not fit, only where there are any."""
    fields: dict[str, Any] = {"answers": answers}
    for name in ("skipped", "failed", "late"):
        if value := getattr(result, name):
            fields[name] = value
    if options.receipt:
        fields["receipt"] = result.receipt
    return fields


def total(receipts: Sequence[Receipt], *, cached: int = 0) -> Cost:
    """The sum of these."""
    names = ("passes", "layers", "tokens", "cut")
    sums = {name: sum(getattr(receipt, name) for receipt in receipts) for name in names}
    return Cost(**sums, cached=cached)


async def _stream(service: Service, request: Request) -> Response:
    asked, inputs, words, names = await _read(service, request)
    if asked.options.explain:
        raise BadValue("answers are explained when all are there", do="ask without streaming")
    is_events = EVENTS in request.headers.get("accept", "")
    lines: asyncio.Queue[TaskResults | None] = asyncio.Queue()
    answering = asyncio.ensure_future(
        service.ask(
            inputs, names, words=words, deadline=asked.options.deadline, stage=lines.put_nowait, is_gone=gone(request)
        )
    )
    answering.add_done_callback(lambda _: lines.put_nowait(None))
    await asyncio.sleep(0)
    if answering.done() and answering.exception() is not None:  # refused before anything was read: it has its status
        raise answering.exception() or HttpError(500, "the server failed")

    async def body() -> AsyncIterator[bytes]:
        try:
            while (stage := await lines.get()) is not None:
                answers = stage.answers
                if asked.options.calibrated is not True:
                    several = _wished(service.loaded, stage.task, list(answers.values()), asked.options)
                    answers = dict(zip(answers, several, strict=True))
                line = StageLine(task=stage.task, answers=answers, layers_left=stage.layers_left)
                yield _line("task", line, is_events=is_events)
            try:
                answer = _answer(service, answering.result(), asked.options)
            except Exception as error:  # its status is sent already
                yield _line("error", {"error": body_of(error)}, is_events=is_events)
                return
            end = msgspec.to_builtins(answer, str_keys=True)
            for fields in end["results"]:
                del fields["answers"]  # which were sent
            yield _line("end", end, is_events=is_events)
        finally:
            answering.cancel()

    return StreamingResponse(body(), media_type=EVENTS if is_events else NDJSON, headers={"Cache-Control": "no-store"})


def _line(event: str, value: object, *, is_events: bool) -> bytes:
    content = msgspec.json.encode(value)
    return b"event: " + event.encode() + b"\ndata: " + content + b"\n\n" if is_events else content + b"\n"


async def _tasks(service: Service, request: Request) -> Response:
    facts = [_facts(service, name) for name in service.tasks]
    return encoded(Tasks(trunk=service.session.bundle.digest, tasks=facts))


async def _task(service: Service, request: Request) -> Response:
    (name,) = service.named([request.path_params["name"]])
    bundle = service.session.bundle
    facts = msgspec.to_builtins(_facts(service, name))
    if name in bundle.tasks:
        facts |= {"card": bundle.card(name), "scores": bundle.scores(name), "path": bundle.tasks[name].path}
    return encoded(facts)


def _facts(service: Service, name: str) -> TaskFacts:
    loaded, bundle = service.loaded, service.session.bundle
    return TaskFacts(
        name=name,
        task=loaded.tasks[name],
        inputs=input_types_of(loaded.tasks[name]),
        version=loaded.versions.get(name, ""),
        digest=loaded.records[name].arrays if name in loaded.records else "",
        headline=_headline(bundle, name),
    )


def _headline(bundle: Bundle, name: str) -> tuple[str, float | None] | None:
    """The score; None also of a task whose files are gone already, while it answers its last requests."""
    with suppress(BundleError):
        return bundle.headline(name) if name in bundle.tasks else None
    return None
