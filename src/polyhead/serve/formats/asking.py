"""What formats share that ask about one task, which their requests may leave out, or for vectors of texts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import PurePath

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from polyhead.engine.answers import Result
from polyhead.engine.inputs import AnyInput
from polyhead.engine.tickets import Ticket
from polyhead.errors import BackendError, BadValue, PolyheadError
from polyhead.serve.formats.own import RequestCost, total
from polyhead.serve.http import HttpError, gone
from polyhead.serve.service import Names, Served, Service
from polyhead.tasks.task import Answer, Task
from polyhead.values import Value

PORT_TASK = "polyhead.task"  # in a scope: the task of the port that a request came to
TASK_HEADER, RECEIPT_HEADER = "x-polyhead-task", "X-Polyhead-Receipt"
LATE = {504: "It was not done by the deadline."}  # an answer of routes that ask one task
LEAST_NORM = 1e-12  # as torch's `normalize`
Handler = Callable[[Request], Awaitable[Response]]


class Foreign(Value, forbid_unknown_fields=False):
    """A body of another server's format: fields that it does not need are ignored."""


class RequestExtension(Value):
    """What a request cost, and which version of each task answered: in a format's place for extensions."""

    passes: int
    layers: int
    tokens: int
    cut: int
    cached: int  # inputs that were answered from the cache
    versions: dict[str, Served]


class TaskAnswers(Value, eq=False):
    """One task's answers to all inputs of a request."""

    task: Task
    inputs: Sequence[AnyInput]
    answers: list[Answer]
    ticket: Ticket
    costs: RequestExtension


class Vectors(Value, eq=False):
    """Mean vectors of texts as they are, float32 (texts, width)."""

    rows: np.ndarray
    costs: RequestExtension

    def normalized(self, dimensions: int | None = None) -> np.ndarray:
        """The first `dimensions` of each, all where None, divided by their length."""
        rows = self.rows[:, :dimensions]
        lengths = np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
        return np.asarray(rows / np.maximum(lengths, LEAST_NORM), np.float32)


def for_task(app: ASGIApp, task: str) -> ASGIApp:
    """The same application for a port of its own, where requests that name no task mean this one."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[PORT_TASK] = task
        await app(scope, receive, send)

    return answer


def requested_task(service: Service, request: Request, named: str | None = None) -> Names:
    """The task that a request means, as it is in this moment: the request is answered by it whatever changes meanwhile.

    The first of: `named` in its body; `?task=`; the header `X-Polyhead-Task`; the port's; the first label of its host
    name, where a task has that name; the server's default; the only one. Raises BadValue where there is none of these,
    UnknownTask for a name that no task has.
    """
    asked = (
        named
        or named_task(request)
        or request.scope.get(PORT_TASK)
        or _task_of_host(service, request)
        or service.settings.default_task
    )
    if asked is not None:
        return service.named([asked])
    names = service.named(None)
    if len(names) != 1:
        raise BadValue(
            "the request names no task",
            allowed=list(names),
            do="add ?task=NAME to the address, or start the server with --default-task NAME",
        )
    return names


def named_task(request: Request) -> str | None:
    """The task that a request itself names beside its body: `?task=`, or the header `X-Polyhead-Task`."""
    return request.query_params.get("task") or request.headers.get(TASK_HEADER)


def _task_of_host(service: Service, request: Request) -> str | None:
    label = request.headers.get("host", "").partition(":")[0].partition(".")[0]
    loaded = service.loaded
    return label if label in loaded.tasks and label not in loaded.hidden else None


async def answers_of(service: Service, request: Request, inputs: Sequence[AnyInput], asked: Names) -> TaskAnswers:
    """The answers of the one task to all inputs; raises the reason for the first that has none."""
    (task,) = asked
    service.check_inputs(inputs, asked)
    ticket = await service.ask(inputs, asked, is_gone=gone(request))
    results = ticket_results(ticket)
    missing = next((number for number, result in enumerate(results) if task not in result.answers), None)
    if missing is not None:
        raise no_answer(results[missing], missing, task)
    return TaskAnswers(
        task=ticket.loaded.tasks[task],
        inputs=inputs,
        answers=[result.answers[task] for result in results],
        ticket=ticket,
        costs=costs_of(service, ticket),
    )


async def vectors_of(service: Service, request: Request, texts: Sequence[str]) -> Vectors:
    """Mean vectors of the texts, one queue and one pass with all other requests; raises the reason where one has none.

    They are means over the last states of all tokens, special tokens included, as all-MiniLM's and most other models
    of sentence-transformers pool.
    """
    inputs, name = [(text,) for text in texts], service.vectors
    service.check_inputs(inputs, (name,))
    ticket = await service.ask(inputs, (name,), is_gone=gone(request))
    for number, outputs in enumerate(ticket.outputs):
        if name not in outputs:
            raise no_answer(ticket_results(ticket)[number], number, name, titled="the vector")
    rows = np.stack([np.reshape(outputs[name], -1) for outputs in ticket.outputs])
    return Vectors(rows=rows, costs=costs_of(service, ticket))


def ticket_results(ticket: Ticket) -> list[Result]:
    """The results of a ticket that is answered."""
    return [result for result in ticket.results if result is not None]


def no_answer(result: Result, number: int, task: str, *, titled: str | None = None) -> PolyheadError:
    """Why a task has no answer to an input, as an error."""
    what = f"input {number} has no answer of {titled or f'task {task!r}'}"
    if task in result.skipped:
        return BadValue(what, got=result.skipped[task], do="send inputs that the task reads", row=number)
    if task in result.failed:
        return BackendError(what, got=result.failed[task], do="ask again; GET /v1/tasks tells which version is live")
    return HttpError(504, what, got="it was not done by the deadline", do="ask for less at once, or allow more time")


def costs_of(service: Service, ticket: Ticket) -> RequestExtension:
    """What an answered ticket cost."""
    sums: RequestCost = total([result.receipt for result in ticket_results(ticket)], cached=ticket.cached)
    return RequestExtension(**msgspec.structs.asdict(sums), versions=service.served(ticket))


def receipt_headers(costs: RequestExtension) -> dict[str, str]:
    """The receipt as JSON in a header, for formats whose body has no place for it."""
    return {RECEIPT_HEADER: msgspec.json.encode(costs).decode("ascii")}


def short_trunk_name(service: Service) -> str:
    """The trunk's name, without the folder that it came from."""
    return PurePath(service.session.bundle.trunk_name).name


def check_dimensions(service: Service, dimensions: int | None) -> None:
    """Raises BadValue for more dimensions than vectors have, or none."""
    width = service.session.shape.width
    if dimensions is not None and not 1 <= dimensions <= width:
        raise BadValue("vectors do not have so many dimensions", got=dimensions, allowed=f"1 to {width}")


def text_list(service: Service, value: object, field: str) -> list[str]:
    """One text or a list of texts, as a list; raises BadValue for anything else, token ids among it, and for too many.

    How many there are is looked at before what they are.
    """
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list) and texts:
        service.check_count(len(texts), 1)
    if isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        return texts
    if isinstance(texts, list) and any(isinstance(entry, int | list) for entry in texts):
        raise BadValue(
            f"'{field}' holds token ids, which mean nothing to the trunk's own tokenizer",
            allowed="a string or a list of strings",
            do="send the texts; clients that count tokens have a switch for that (LangChain: "
            "check_embedding_ctx_length=False)",
        )
    raise BadValue(f"'{field}' holds no text", allowed="a string or a list of one string or more", do="send the texts")


def with_errors(handler: Handler, answer: Callable[[PolyheadError], Response]) -> Handler:
    """The handler, with its errors told as a format tells them."""

    async def telling(request: Request) -> Response:
        try:
            return await handler(request)
        except PolyheadError as error:
            return answer(error)

    return telling
