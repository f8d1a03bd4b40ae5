"""Shared parts of formats that ask one task or for vectors: the requested task, answers, labels, spans and costs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from polyhead.engine.answers import Result
from polyhead.engine.familiar import KEY, NONE
from polyhead.engine.inputs import AnyInput, input_types_of, task_input
from polyhead.engine.tickets import Ticket
from polyhead.errors import BackendError, BadValue, PolyheadError
from polyhead.serve.exchange import RequestCost, total_cost, versions_served
from polyhead.serve.formats.base import TASK_QUERY
from polyhead.serve.http import HttpError, gone
from polyhead.serve.service import Service, TaskSelection
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Answer, Task
from polyhead.text.question import texts_of
from polyhead.text.tokenize import Input
from polyhead.values import Value, few_digits

PORT_TASK = "polyhead.task"  # in a scope: the task of the port that a request came to
TASK_HEADER, RECEIPT_HEADER = "x-polyhead-task", "X-Polyhead-Receipt"
FAMILIAR_HEADER, NONE_HEADER = "X-Polyhead-Familiar", "X-Polyhead-None-Of-These"
HEADER_TEXTS = 256  # that headers speak of: proxies take a few kB of them
LATE = {504: "It was not done by the deadline."}  # an answer of routes that ask one task
PAIR = '{"text": "a", "text_pair": "b"}'  # as pipelines of transformers take it
LEAST_NORM = 1e-12  # as torch's `normalize`


class TaskAnswers(Value, eq=False):
    """One task's answers to all inputs of a request."""

    task: Task
    inputs: Sequence[AnyInput]
    answers: list[Answer]
    ticket: Ticket
    costs: RequestCost


class Vectors(Value, eq=False):
    """Mean vectors of texts as they are, float32 (texts, width)."""

    rows: np.ndarray
    costs: RequestCost

    def normalized(self, dimensions: int | None = None) -> np.ndarray:
        """The first `dimensions` of each, all where None, divided by their length."""
        rows = self.rows[:, :dimensions]
        lengths = np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
        return np.asarray(rows / np.maximum(lengths, LEAST_NORM), np.float32)


def for_task(app: ASGIApp, task: str) -> ASGIApp:
    """The same application for another port, where requests without a task mean this one."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[PORT_TASK] = task
        await app(scope, receive, send)

    return answer


def requested_task(service: Service, request: Request, named: str | None = None) -> TaskSelection:
    """The task that a request means, as it is in this moment: the request is answered by it whatever changes meanwhile.

    The first of: `named` in its body; `?task=`; the header `X-Polyhead-Task`; the port's; the first label of its host
    name, where a task has that name; the server's default; the only one. Raises BadValue where there is none of these,
    UnknownTask for a name that no task has.
    """
    requested = named or addressed_task(request)
    if requested is None:
        requested = _task_of_host(service, request) or service.settings.default_task
    if requested is not None:
        return service.named([requested])
    names = service.named(None)
    if len(names) != 1:
        raise BadValue(
            "the request names no task",
            allowed=list(names),
            do="add ?task=NAME to the address, or start the server with --default-task NAME",
        )
    return names


def addressed_task(request: Request) -> str | None:
    """The task that a request names outside its body, else the one of the port that it came to."""
    named = named_task(request)
    return request.scope.get(PORT_TASK) if named is None else named


def named_task(request: Request) -> str | None:
    """The task that a request names outside its body: in `?task=`, or the header `X-Polyhead-Task`; "" is a name."""
    named = request.query_params.getlist(TASK_QUERY)
    if len(named) > 1:
        raise BadValue("the address names several tasks", got=named, do="name several in the body's 'tasks'")
    return named[0] if named else request.headers.get(TASK_HEADER)


def _task_of_host(service: Service, request: Request) -> str | None:
    label = request.headers.get("host", "").partition(":")[0].partition(".")[0]
    loaded = service.loaded
    return label if label in loaded.tasks and label not in loaded.hidden else None


async def answers_of(
    service: Service, request: Request, inputs: Sequence[AnyInput], requested: TaskSelection
) -> TaskAnswers:
    """The answers of the one task to all inputs; raises the reason for the first that has none."""
    (task,) = requested
    service.check_inputs(inputs, requested)
    ticket = await service.ask(inputs, requested, is_gone=gone(request))
    return TaskAnswers(
        task=ticket.loaded.tasks[task],
        inputs=inputs,
        answers=ticket_answers(ticket, task),
        ticket=ticket,
        costs=costs_of(ticket),
    )


def ticket_answers(ticket: Ticket, task: str) -> list[Answer]:
    """The task's answers to all inputs of a ticket; raises the reason for the first that has none."""
    results = ticket_results(ticket)
    missing = next((number for number, result in enumerate(results) if task not in result.answers), None)
    if missing is not None:
        raise no_answer(results[missing], missing, task)
    return [result.answers[task] for result in results]


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
            raise no_answer(ticket_results(ticket)[number], number, name, titled="vector")
    rows = np.stack([np.reshape(outputs[name], -1) for outputs in ticket.outputs])
    return Vectors(rows=rows, costs=costs_of(ticket))


def ticket_results(ticket: Ticket) -> list[Result]:
    """The results of a ticket that is answered."""
    return [result for result in ticket.results if result is not None]


def no_answer(result: Result, number: int, task: str, *, titled: str | None = None) -> PolyheadError:
    """Why a task has no answer to an input, as an error."""
    problem = f"input {number} has no {titled or f'answer of task {task!r}'}"
    if task in result.skipped:
        do = "send inputs that the task reads" if titled is None else "leave it out, or send a text"
        return BadValue(problem, got=result.skipped[task], do=do, row=number)
    if task in result.failed:
        do = "ask again; GET /v1/tasks tells which version is live"
        return BackendError(problem, got=result.failed[task], do=do, row=number)
    do = "ask for less at once, or allow more time"
    return HttpError(504, problem, got="it was not done by the deadline", do=do, row=number)


def costs_of(ticket: Ticket) -> RequestCost:
    """The cost of an answered ticket, and the versions that answered, for a format's extension field."""
    cost = total_cost([result.receipt for result in ticket_results(ticket)], cached=ticket.cached)
    return msgspec.structs.replace(cost, versions=versions_served(ticket))


def receipt_headers(costs: RequestCost) -> dict[str, str]:
    """The receipt as JSON in a header, for formats whose body has no place for it."""
    return {RECEIPT_HEADER: msgspec.json.encode(costs).decode("ascii")}


def familiar_of(answered: TaskAnswers, key: str) -> list[Any] | None:
    """A value of familiarity in each answer; None unless all have it."""
    values = [answer[key] for answer in answered.answers if key in answer]
    return values if len(values) == len(answered.answers) else None


def list_headers(answered: TaskAnswers) -> dict[str, str]:
    """Headers of an answer that is a bare list: the receipt, and of a task with a limit how familiar each text is."""
    headers = receipt_headers(answered.costs)
    if len(answered.answers) <= HEADER_TEXTS and (shares := familiar_of(answered, KEY)) is not None:
        headers[FAMILIAR_HEADER] = msgspec.json.encode([round(share, 4) for share in shares]).decode()
        headers[NONE_HEADER] = msgspec.json.encode(familiar_of(answered, NONE)).decode()
    return headers


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


def text_or_pair_list(service: Service, value: object, field: str, task: Task) -> list[AnyInput]:
    """The same for a task, where an entry may be a pair as pipelines of transformers take it."""
    entries = value if isinstance(value, list) and value else [value]
    service.check_count(len(entries), 1)
    if any(isinstance(entry, dict) for entry in entries):
        inputs = [_text_or_pair(entry, field) for entry in entries]
    else:
        inputs = [(text,) for text in text_list(service, value, field)]
    if reads_pairs(task) and min(map(len, inputs)) == 1:
        raise BadValue(
            f"task '{task.name}' reads a pair of texts", got="one text", allowed=PAIR, do="send both texts of each pair"
        )
    return list(inputs)


def _text_or_pair(entry: object, field: str) -> Input:
    match {"text": entry} if isinstance(entry, str) else entry:
        case {"text": str(first), "text_pair": str(second), **others} if not others:
            return first, second
        case {"text": str(text), **others} if not others:
            return (text,)
    raise BadValue(f"'{field}' holds what is no text or pair", got=repr(entry)[:100], allowed=f"a string, or {PAIR}")


def reads_pairs(task: Task) -> bool:
    """Whether the task reads nothing but pairs of texts."""
    return input_types_of(task) == ("pair",)


class ScoredLabel(Value):
    """A label and its score."""

    label: str
    score: float


class SpanAnswer(Value):
    """A labelled part of a text, in the names of both `token_spans.v1` and transformers' pipeline; in code points."""

    label: str
    entity_group: str
    score: float
    text: str
    word: str
    start: int
    end: int


def has_spans(task: Task) -> bool:
    """Whether the task's labels are of parts of a text."""
    return kind_of(task).labels_words


def check_span_labels(task: Task, *, spans: bool, route: str) -> None:
    """Raises BadValue for a task without labels or a number, and, unless `spans`, for one whose labels are of parts."""
    kind = kind_of(task)
    if spans if has_spans(task) else kind.scores is not None and not (kind.per_word or kind.per_option):
        return
    raise BadValue(
        f"{route} has no form for answers of task '{task.name}'",
        got=f"kind '{task.kind}'",
        do=f"ask POST /models/{task.name}, which gives spans" if has_spans(task) else "ask POST /v1/predict",
    )


def label_scores(task: Task, answer: Answer) -> list[ScoredLabel]:
    """Every label with its probability in the task's order; they sum to 1 only for `single_label`.

    A regression task has one entry: its name, with the number that it answers, in the task's range.
    """
    kind = kind_of(task)
    if kind.scores == "range":
        return [ScoredLabel(label=task.name, score=kind.cell_of(answer))]  # type: ignore[arg-type]
    return [ScoredLabel(label=label, score=score) for label, score in answer["scores"].items()]


def label_of(task: Task, answer: Answer) -> str:
    """The label that is answered; of a task that answers several or none, the most probable one."""
    kind = kind_of(task)
    return str(kind.cell_of(answer)) if kind.cell == "text" else ranked(task, answer)[0].label


def ranked(task: Task, answer: Answer) -> list[ScoredLabel]:
    """The same, most probable first, with few digits; of equals, the first in the task's order."""
    scored = sorted(label_scores(task, answer), key=lambda scored: -scored.score)
    return [ScoredLabel(label=each.label, score=few_digits(each.score)) for each in scored]


def answer_spans(answer: Answer, text: str) -> list[SpanAnswer]:
    """The spans of an answer; of labels that are not BIO, one for each word that was read."""
    spans = answer["spans"] if "spans" in answer else answer["words"]
    return [_span(span, text[span["start"] : span["end"]]) for span in spans]


def _span(span: Answer, text: str) -> SpanAnswer:
    label, score, start, end = span["label"], few_digits(span["score"]), span["start"], span["end"]
    return SpanAnswer(label=label, entity_group=label, score=score, text=text, word=text, start=start, end=end)


def pipelined(answered: TaskAnswers) -> list[Sequence[ScoredLabel | SpanAnswer]]:
    """For each input what a pipeline of transformers gives of all labels: ranked labels with scores, or spans."""
    task = answered.task
    if not has_spans(task):
        return [ranked(task, answer) for answer in answered.answers]
    texts = [texts_of(task_input(entry))[-1] for entry in answered.inputs]
    return [answer_spans(answer, text) for answer, text in zip(answered.answers, texts, strict=True)]


async def cut_at(answered: TaskAnswers, number: int) -> int | None:
    """The end of the part of an input's text that was read, in code points; None if all of it was."""
    result, (text, *others) = answered.ticket.results[number], texts_of(task_input(answered.inputs[number]))
    if result is None or not result.receipt.cut or others:
        return None
    only: Input = (text,)
    (encoded,) = await asyncio.to_thread(answered.ticket.loaded.homes(answered.task.name)[-1].tokenizer.encode, [only])
    read = int(encoded.offsets[encoded.sequence == 0].max(initial=0))
    # A word is labelled where its first token was read, so that its span may end behind the last of these.
    return max([read, *(span.end for span in answer_spans(answered.answers[number], text))])
