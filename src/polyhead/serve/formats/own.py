"""Polyhead's own format: any inputs, any tasks, answers as they come, and what each cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from polyhead.engine.answers import Result
from polyhead.engine.familiar import KEY, NONE, check_none_below
from polyhead.engine.inputs import AnyInput, requested_input_of
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.request import TaskResults
from polyhead.engine.tickets import Ticket
from polyhead.errors import BadValue
from polyhead.serve.checks import characters_of, check_deadline, forget_results, size_of
from polyhead.serve.event_loop import off_loop
from polyhead.serve.exchange import RequestCost, Served, total_cost, versions_served
from polyhead.serve.explain import Why, explain_request
from polyhead.serve.formats.asking import addressed_task
from polyhead.serve.formats.base import TASK_QUERY, Operation, WireFormat, get, post
from polyhead.serve.formats.facts import Tasks, task, tasks
from polyhead.serve.http import AT_ONCE, body_of, gone, json_content, json_value, raw, whole_body
from polyhead.serve.service import Service, TaskSelection
from polyhead.tasks.calibration import CalibrationChoice, wish_of, with_calibrated
from polyhead.tasks.task import Answer
from polyhead.values import Value, few_digits

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
    """Options of a request."""

    deadline: float | None = None  # seconds; tasks that are not done by then are late
    receipt: bool = True  # whether each result says what it cost
    # Whether answers say what calibration makes of them; by task also how.
    calibrated: bool | dict[str, bool | CalibrationChoice] = True
    familiar: bool = False  # whether answers say which share of their task's known rows lies as far out as the text
    # The share below which an answer says `none_of_these`, of all tasks or by task; None: as each task says.
    none_below: float | dict[str, float] | None = None
    explain: bool = False  # whether each result says which words moved it: a text of n words costs n + 1 texts


class PredictRequest(Value):
    """Inputs and the tasks that are asked about all of them."""

    # One input or a list: see `polyhead.engine.inputs.FORMS`.
    inputs: Annotated[
        Any, msgspec.Meta(extra_json_schema={"anyOf": [*_FORMS, _LISTED]}, examples=[["where is my order?"]])
    ] = UNSET
    text: str | list[str] | UnsetType = UNSET  # the same for texts alone, in place of `inputs`
    tasks: list[str] | None = None  # None: the one of the address, else all but those that write texts
    options: Options = Options()

    def listed(self) -> list[Any]:
        """All inputs; raises BadValue unless one of the two fields holds them."""
        fields = [value for value in (self.inputs, self.text) if value is not UNSET]
        if len(fields) != 1:
            problem = "the body says its inputs twice" if fields else "the body has no inputs"
            do = 'send {"inputs": ["where is my order?"]} or {"text": "where is my order?"}'
            raise BadValue(problem, allowed=["inputs", "text"], do=do)
        return fields[0] if isinstance(fields[0], list) else fields


class PredictAnswer(Value, omit_defaults=True):
    """A result for each input, in order, and the version of each task that gave them."""

    results: list[dict[str, Any]]
    versions: Mapping[str, Served]
    trunk: str  # digest
    receipt: RequestCost
    bundles: dict[str, str] | UnsetType = UNSET  # of a set: the digest of each one's trunk, by name


class OwnFormat(WireFormat):
    """`/v1/predict`, `/v1/predict/stream`, `/v1/tasks`."""

    name = "polyhead"
    refuses_queries = True

    def operations(self) -> Sequence[Operation]:
        """An entry for each route."""
        answer = "Answers tasks for texts, pairs and questions: one pass of the encoder an input."
        asked: dict[str, Any] = {"request": PredictRequest, "queries": (TASK_QUERY,)}
        stream = "The same, each task's answers as soon as they are done: a line each, or a server-sent event."
        return [
            post("/v1/predict", _predict, answer, response=PredictAnswer, **asked),
            post("/v1/predict/stream", _stream, stream, media=NDJSON, **asked),
            get("/v1/tasks", tasks, "All tasks that can be asked.", response=Tasks),
            get("/v1/tasks/{name}", task, "A task, its card, scores and path."),
        ]


_DECODER = msgspec.json.Decoder(PredictRequest)


class _Query(Value, eq=False):
    """A request, read and checked; it is answered by the tasks of the moment in which it was read."""

    options: Options
    inputs: list[AnyInput]
    words: list[np.ndarray | None] | None
    names: TaskSelection

    @property
    def loaded(self) -> LoadedTasks:
        """The tasks of that moment."""
        return self.names.loaded


async def _predict(service: Service, request: Request) -> Response:
    query, is_gone = await _read(service, request), gone(request)
    inputs, words, deadline = query.inputs, query.words, query.options.deadline
    familiar, none_below = query.options.familiar, query.options.none_below
    if query.options.explain:
        if familiar or none_below is not None:
            raise BadValue("an explained answer does not say how familiar it is", do="leave out one of the two options")
        why = await explain_request(service, inputs, query.names, words=words, deadline=deadline, is_gone=is_gone)
        return json_content(await off_loop(size_of(why.ticket), _explained, service, why, query.options))
    ticket = await service.ask(
        inputs, query.names, words=words, deadline=deadline, is_gone=is_gone, familiar=familiar, none_below=none_below
    )
    size = size_of(ticket)
    return await off_loop(size, _response, service, ticket, query.options, size)


async def _read(service: Service, request: Request) -> _Query:
    body = await whole_body(request)
    return await off_loop(len(body), _read_now, service, body, addressed_task(request))


def _read_now(service: Service, body: bytes, addressed: str | None) -> _Query:
    requested = json_value(body, _DECODER)
    listed, options = requested.listed(), requested.options
    service.check_count(len(listed), len(requested.tasks or ()))
    if requested.tasks is not None and not requested.tasks:
        allowed, do = list(service.named(None)), "name some, or leave 'tasks' out"
        raise BadValue("the list of tasks is empty", allowed=allowed, do=do)
    names = service.named([addressed] if requested.tasks is None and addressed is not None else requested.tasks)
    check_deadline(options.deadline)
    _check_wishes(service, names, options)
    read = [requested_input_of(row, where=f"input {number}") for number, row in enumerate(listed)]
    inputs, words = [entry for entry, _ in read], [entry_words for _, entry_words in read]
    service.check_inputs(inputs, names)
    own_words = words if any(entry_words is not None for entry_words in words) else None
    return _Query(options=options, inputs=inputs, words=own_words, names=names)


def _check_wishes(service: Service, names: TaskSelection, options: Options) -> None:
    """Raises UnknownTask for a missing task, BadValue for one that is not asked or a choice that it does not have."""
    if isinstance(options.none_below, dict):
        service.named(options.none_below)
    check_none_below(options.none_below, names.loaded.tasks, names)
    if isinstance(options.calibrated, bool):
        return
    service.named(options.calibrated).loaded.check_choices(options.calibrated, names)


def _response(service: Service, ticket: Ticket, options: Options, size: int) -> Response:
    answer = _answer(service, ticket, options)
    if size <= AT_ONCE:
        return json_content(msgspec.structs.replace(answer, results=few_digits(answer.results)))
    forget_results(ticket)
    return json_content(msgspec.structs.replace(answer, results=raw(map(few_digits, _taken(answer.results)))))


def _taken(results: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each result; it is released when the next is requested."""
    for number in range(len(results)):
        result, results[number] = results[number], {}
        yield result


def _answer(service: Service, ticket: Ticket, options: Options) -> PredictAnswer:
    results = [result for result in ticket.results if result is not None]
    pairs = zip(results, _answers(ticket.loaded, ticket.tasks, results, options), strict=True)
    return PredictAnswer(
        results=[_result(result, answers, options) for result, answers in pairs],
        versions=versions_served(ticket),
        trunk=service.session.bundle.digest,
        bundles=service.bundles,
        receipt=total_cost([result.receipt for result in results], cached=ticket.cached),
    )


def _answers(
    loaded: LoadedTasks, tasks: Sequence[str], results: Sequence[Result], options: Options
) -> Sequence[dict[str, Answer]]:
    """The answers as the request wants them calibrated: each task's to all inputs at once."""
    if options.calibrated is True:
        return [result.answers for result in results]
    wished = [dict(result.answers) for result in results]
    for name in tasks:
        by_bundle: dict[str | UnsetType, list[dict[str, Answer]]] = {}
        for result, answers in zip(results, wished, strict=True):
            if name in answers:
                bundle = (result.receipt.bundles or {}).get(name, UNSET)
                by_bundle.setdefault(bundle, []).append(answers)
        for bundle, answered in by_bundle.items():
            adjusted = _wished(loaded.part(bundle), name, [answers[name] for answers in answered], options)
            for answers, answer in zip(answered, adjusted, strict=True):
                answers[name] = answer
    return wished


def _wished(part: LoadedTasks, name: str, answers: Sequence[Answer], options: Options) -> list[Answer]:
    wish = wish_of(options.calibrated, name)
    return with_calibrated(part.tasks[name], part.calibrations.get(name), answers, wish)


def _explained(service: Service, why: Why, options: Options) -> PredictAnswer:
    """The results of the inputs themselves, each with why; the receipt is that of all that was read for it."""
    answer = _answer(service, why.ticket, options)
    results = [
        few_digits({**answer.results[place], "explained": msgspec.to_builtins(by_task)})
        for place, by_task in zip(why.places, why.explanations, strict=True)
    ]
    return msgspec.structs.replace(answer, results=raw(results))


def _result(result: Result, answers: dict[str, Answer], options: Options) -> dict[str, Any]:
    """A result; failures and tasks that do not fit are included only if there are any."""
    fields: dict[str, Any] = {"answers": answers}
    for name in ("skipped", "failed", "late"):
        if value := getattr(result, name):
            fields[name] = value
    if options.receipt:
        fields["receipt"] = result.receipt
    return fields


async def _stream(service: Service, request: Request) -> Response:
    query = await _read(service, request)
    if query.options.explain:
        raise BadValue("answers are explained when all are there", do="ask without streaming")
    is_events = EVENTS in request.headers.get("accept", "")
    stages: asyncio.Queue[TaskResults | None] = asyncio.Queue()
    answering = asyncio.ensure_future(
        service.ask(
            query.inputs,
            query.names,
            words=query.words,
            deadline=query.options.deadline,
            stage=stages.put_nowait,
            is_gone=gone(request),
            familiar=query.options.familiar,
            none_below=query.options.none_below,
        )
    )
    answering.add_done_callback(lambda _: stages.put_nowait(None))
    try:
        first = await stages.get()
        if first is None:  # refused before anything was told: it has its status
            answering.result()
    except BaseException:
        answering.cancel()
        raise
    body = _lines(service, query, answering, stages, first, is_events=is_events)
    return StreamingResponse(body, media_type=EVENTS if is_events else NDJSON, headers={"Cache-Control": "no-store"})


async def _lines(
    service: Service,
    query: _Query,
    answering: asyncio.Future[Ticket],
    stages: asyncio.Queue[TaskResults | None],
    stage: TaskResults | None,
    *,
    is_events: bool,
) -> AsyncIterator[bytes]:
    """A line for each stage from `stage` on, and one for the end, by the tasks of the request's own moment."""
    try:
        while stage is not None:
            labels = len(query.loaded.tasks[stage.task].labels)
            size = (1 + labels) * len(stage.answers) + characters_of(query.inputs)
            yield _line("task", await off_loop(size, _stage, query, stage), is_events=is_events)
            stage = await stages.get()
        try:
            ticket = answering.result()
            end = await off_loop(size_of(ticket), _end, service, ticket, query.options)
        except Exception as error:  # its status is sent already
            failure = msgspec.json.encode({"error": body_of(error)})
            yield _line("error", failure, is_events=is_events)
            return
        yield _line("end", end, is_events=is_events)
    finally:
        answering.cancel()
        del answering, stages, stage, query  # anyio's error of a caller who is gone keeps this frame


def _stage(query: _Query, stage: TaskResults) -> bytes:
    """One task's answers as the request wants them calibrated, in JSON."""
    answers = stage.answers
    if query.options.calibrated is not True:
        adjusted = _wished(query.loaded.part(stage.bundle), stage.task, list(answers.values()), query.options)
        answers = dict(zip(answers, adjusted, strict=True))
    shown: dict[int, Any] = dict(zip(answers, raw(map(few_digits, answers.values())), strict=True))
    return msgspec.json.encode(msgspec.structs.replace(stage, answers=shown))


def _end(service: Service, ticket: Ticket, options: Options) -> bytes:
    """The end of a stream in JSON: results without the answers that were sent, with the familiarity they lacked."""
    answer = _answer(service, ticket, msgspec.structs.replace(options, calibrated=True))
    forget_results(ticket)
    results = []
    for fields in answer.results:
        answers = fields.pop("answers")
        late = {key: {name: each[key] for name, each in answers.items() if key in each} for key in (KEY, NONE)}
        results.append({**fields, **{key: by_task for key, by_task in late.items() if by_task}})
    return msgspec.json.encode(msgspec.structs.replace(answer, results=raw(map(few_digits, results))))


def _line(event: str, line: bytes, *, is_events: bool) -> bytes:
    return b"event: " + event.encode() + b"\ndata: " + line + b"\n\n" if is_events else line + b"\n"
