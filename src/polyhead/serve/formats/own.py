"""Polyhead's own format: any inputs, any tasks, answers as they come, and what each cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from polyhead.config import Value
from polyhead.engine.answers import Result
from polyhead.engine.inputs import AnyInput, InputType, input_of, input_types_of
from polyhead.engine.queue import Ticket
from polyhead.engine.receipt import Receipt
from polyhead.engine.request import TaskResults
from polyhead.serve.http import HttpError, body_of, decoded, encoded, gone
from polyhead.serve.service import Served, Service
from polyhead.tasks.task import Task

NDJSON, EVENTS = "application/x-ndjson", "text/event-stream"


class Options(Value):
    """How a request is answered."""

    deadline: float | None = None  # seconds; tasks that are not done by then are late
    receipt: bool = True  # whether each result says what it cost


class PredictRequest(Value):
    """Inputs and the tasks that are asked about all of them."""

    inputs: Any  # one input or a list: see `polyhead.engine.inputs.FORMS`
    tasks: list[str] | None = None  # None: all, but those that write texts
    options: Options = Options()


class Cost(Value):
    """What a request cost in all: the sum of its inputs' receipts."""

    passes: int = 0
    layers: int = 0
    tokens: int = 0
    cut: int = 0


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


_DECODER = msgspec.json.Decoder(PredictRequest)


async def _predict(service: Service, request: Request) -> Response:
    asked, inputs, words, names = await _read(service, request)
    ticket = await service.ask(inputs, names, words=words, deadline=asked.options.deadline, is_gone=gone(request))
    return encoded(_answer(service, ticket, asked.options))


async def _read(
    service: Service, request: Request
) -> tuple[PredictRequest, list[AnyInput], list[np.ndarray | None] | None, tuple[str, ...]]:
    asked = await decoded(request, _DECODER)
    listed = asked.inputs if isinstance(asked.inputs, list) else [asked.inputs]
    names = service.named(asked.tasks)
    read = [input_of(row, where=f"input {number}") for number, row in enumerate(listed)]
    inputs, words = [entry for entry, _ in read], [own for _, own in read]
    service.check_inputs(inputs, names)
    return asked, inputs, words if any(own is not None for own in words) else None, names


def _answer(service: Service, ticket: Ticket, options: Options) -> PredictAnswer:
    results = [result for result in ticket.results if result is not None]
    return PredictAnswer(
        results=[_result(result, options) for result in results],
        versions=service.served(ticket),
        trunk=service.session.bundle.digest,
        receipt=total([result.receipt for result in results]),
    )


def _result(result: Result, options: Options) -> dict[str, Any]:
    """What there is of a result: failures, and tasks that do not fit, only where there are any."""
    fields: dict[str, Any] = {"answers": result.answers}
    for name in ("skipped", "failed", "late"):
        if value := getattr(result, name):
            fields[name] = value
    if options.receipt:
        fields["receipt"] = result.receipt
    return fields


def total(receipts: Sequence[Receipt]) -> Cost:
    """The sum of these."""
    sums = {name: sum(getattr(receipt, name) for receipt in receipts) for name in Cost.__struct_fields__}
    return Cost(**sums)


async def _stream(service: Service, request: Request) -> Response:
    asked, inputs, words, names = await _read(service, request)
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
                line = StageLine(task=stage.task, answers=stage.answers, layers_left=stage.layers_left)
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
    return encoded({"trunk": service.session.bundle.digest, "tasks": [_facts(service, name) for name in service.tasks]})


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
        headline=bundle.headline(name) if name in bundle.tasks else None,
    )
