"""`/classify`, a path of three kinds of servers: each request is answered in the form of its own kind.

`inputs` is that of vLLM's semantic router and of pipelines of transformers, `input` that of Infinity or vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex
from time import time
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from polyhead.engine.familiar import KEY, NONE
from polyhead.errors import BadValue
from polyhead.serve.checks import size_of
from polyhead.serve.event_loop import off_loop
from polyhead.serve.exchange import RequestCost
from polyhead.serve.formats.asking import (
    LATE,
    PAIR,
    ScoredLabel,
    TaskAnswers,
    answers_of,
    check_span_labels,
    cut_at,
    familiar_of,
    has_spans,
    label_of,
    label_scores,
    list_headers,
    pipelined,
    ranked,
    reads_pairs,
    requested_task,
    text_list,
    text_or_pair_list,
)
from polyhead.serve.formats.base import Handler, Operation, Wire, WireFormat, post
from polyhead.serve.http import body_value, json_content, raw
from polyhead.serve.service import Service
from polyhead.values import Value, few_digits

UNSAID = "default/not-specified"  # the model of Infinity's client where its caller names none
UNSET = msgspec.UNSET


class ClassifyRequest(Wire):
    """A body of any of the three; fields that one server alone has say whose it is."""

    # Semantic router: a text, or texts; or pairs as pipelines of transformers take them.
    inputs: Annotated[Any, msgspec.Meta(examples=[["where is my order?"]])] = UNSET
    input: Any = UNSET  # vLLM: a text or texts; Infinity: texts
    model: str | None = None  # the task
    raw_scores: bool | msgspec.UnsetType = UNSET  # Infinity
    use_activation: bool | None | msgspec.UnsetType = UNSET  # vLLM, as all below
    activation: bool | None | msgspec.UnsetType = UNSET
    softmax: bool | None | msgspec.UnsetType = UNSET
    truncate_prompt_tokens: int | None | msgspec.UnsetType = UNSET
    add_special_tokens: bool | msgspec.UnsetType = UNSET
    priority: int | msgspec.UnsetType = UNSET
    request_id: str | None | msgspec.UnsetType = UNSET
    messages: Any = UNSET


OF_VLLM = ClassifyRequest.__struct_fields__[4:]


class Usage(Value):
    """Tokens that were read, special tokens included."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class Classes(Value):
    """One text as vLLM answers it: probabilities in the order of the task's labels."""

    index: int
    label: str
    probs: list[float]
    num_classes: int
    x_familiar: float | msgspec.UnsetType = UNSET  # of a task with a limit, as the next
    x_none_of_these: bool | msgspec.UnsetType = UNSET


class ClassesAnswer(Value):
    """vLLM's answer."""

    id: str
    created: int
    model: str
    data: list[Classes]
    usage: Usage
    x_receipt: RequestCost
    object: Literal["list"] = "list"


class RankedAnswer(Value):
    """Infinity's answer: all labels of each text, the most probable first."""

    id: str
    created: int
    model: str
    data: list[list[ScoredLabel]]
    usage: Usage
    x_receipt: RequestCost
    x_familiar: list[float] | msgspec.UnsetType = UNSET  # of a task with a limit, a number a text; as the next
    x_none_of_these: list[bool] | msgspec.UnsetType = UNSET
    object: Literal["classify"] = "classify"


class ClassifyFormat(WireFormat):
    """`/classify`; `/vllm/classify` and `/infinity/classify` answer in one of these forms whatever the body says."""

    name = "classify"

    def operations(self) -> Sequence[Operation]:
        """An entry for each route."""
        summary_of_both = "Labels of texts, in the form of the server that the body is written for."

        def of(path: str, handler: Handler, summary: str, field: str, answer: Any = None) -> Operation:
            example = {field: ["where is my order?"], "model": "TASK"}
            facts = {"request": ClassifyRequest, "example": example, "response": answer, "statuses": LATE}
            return post(path, handler, summary, **facts)

        return [
            of("/classify", _classify, summary_of_both, "inputs"),
            of("/vllm/classify", _as_vllm, "Labels of texts, as vLLM answers.", "input", ClassesAnswer),
            of("/infinity/classify", _as_infinity, "Labels of texts, as Infinity answers.", "input", RankedAnswer),
        ]


_DECODER = msgspec.json.Decoder(ClassifyRequest)


async def _classify(service: Service, request: Request) -> Response:
    body = await _read(request)
    if body.inputs is not UNSET:
        return await _router(service, request, body)
    of_vllm = any(getattr(body, name) is not UNSET for name in OF_VLLM)
    if body.raw_scores is not UNSET or (isinstance(body.input, list) and not of_vllm):
        return await _infinity(service, request, body)
    return await _vllm(service, request, body)


async def _read(request: Request) -> ClassifyRequest:
    body = await body_value(request, _DECODER)
    if body.inputs is not UNSET and body.input is not UNSET:
        raise BadValue("the body says its inputs twice", allowed="'inputs' or 'input'", do="leave out one of them")
    return body


async def _as_vllm(service: Service, request: Request) -> Response:
    return await _vllm(service, request, await _read(request))


async def _as_infinity(service: Service, request: Request) -> Response:
    return await _infinity(service, request, await _read(request))


async def _router(service: Service, request: Request, body: ClassifyRequest) -> Response:
    """Contracts `label_distribution.v1`, `score.v1` and `token_spans.v1`: by the task's kind."""
    meant = requested_task(service, request, body.model)
    check_span_labels(*meant.tasks, spans=True, route="POST /classify")
    inputs = text_or_pair_list(service, body.inputs, "inputs", *meant.tasks)
    answered = await answers_of(service, request, inputs, meant)
    size = size_of(answered.ticket)
    rows: list[Any] = await off_loop(size, pipelined, answered)
    if answered.costs.cut and has_spans(answered.task):
        for number, row in enumerate(rows):
            if (end := await cut_at(answered, number)) is not None:
                rows[number] = {"spans": row, "truncated_at": end}  # in code points, as `token_spans.v1` says it
    rows = await off_loop(size, raw, rows)
    return json_content(rows if isinstance(body.inputs, list) else rows[0], headers=list_headers(answered))


async def _vllm(service: Service, request: Request, body: ClassifyRequest) -> Response:
    if body.messages is not UNSET:
        raise BadValue("chat messages are not read here", allowed="'input'", do="send the text")
    if False in (body.use_activation, body.activation, body.softmax):
        raise _no_raw_scores()
    if body.truncate_prompt_tokens not in (UNSET, None, -1):
        raise BadValue(
            "texts are cut where the trunk ends, not elsewhere",
            got=f"truncate_prompt_tokens {body.truncate_prompt_tokens}",
            allowed="-1, or nothing",
        )
    answered = await _labelled(service, request, body)
    return await off_loop(size_of(answered.ticket), _vllm_response, answered)


def _vllm_response(answered: TaskAnswers) -> Response:
    data = raw(_classes(answered, number) for number in range(len(answered.answers)))
    return json_content(ClassesAnswer(**_facts(answered, "classify"), data=data))


async def _infinity(service: Service, request: Request, body: ClassifyRequest) -> Response:
    if body.raw_scores is True:
        raise _no_raw_scores()
    answered = await _labelled(service, request, body)
    return await off_loop(size_of(answered.ticket), _infinity_response, answered)


def _infinity_response(answered: TaskAnswers) -> Response:
    return json_content(
        RankedAnswer(
            **_facts(answered, "infinity"),
            data=raw(ranked(answered.task, answer) for answer in answered.answers),
            x_familiar=_of_each(answered, KEY),
            x_none_of_these=_of_each(answered, NONE),
        )
    )


def _of_each(answered: TaskAnswers, key: str) -> Any:
    values = familiar_of(answered, key)
    return UNSET if values is None else values


async def _labelled(service: Service, request: Request, body: ClassifyRequest) -> TaskAnswers:
    meant = requested_task(service, request, None if body.model == UNSAID else body.model)
    check_span_labels(*meant.tasks, spans=False, route="POST /classify with 'input'")
    (task,) = meant.tasks
    if reads_pairs(task):
        raise BadValue(
            f"task '{task.name}' reads pairs, for which 'input' has no form",
            do=f"ask POST /models/{task.name} with 'inputs': {PAIR}",
        )
    texts = text_list(service, None if body.input is UNSET else body.input, "input")
    return await answers_of(service, request, [(text,) for text in texts], meant)


def _classes(answered: TaskAnswers, number: int) -> Classes:
    task, answer = answered.task, answered.answers[number]
    probabilities = few_digits([scored.score for scored in label_scores(task, answer)])
    return Classes(
        index=number,
        label=label_of(task, answer),
        probs=probabilities,
        num_classes=len(probabilities),
        x_familiar=answer.get(KEY, UNSET),
        x_none_of_these=answer.get(NONE, UNSET),
    )


def _facts(answered: TaskAnswers, server: str) -> dict[str, Any]:
    """The fields that the answers of both servers have, but for the data."""
    tokens = answered.costs.tokens
    return {
        "id": f"{server}-{token_hex(16)}",
        "created": int(time()),
        "model": answered.task.name,
        "usage": Usage(prompt_tokens=tokens, total_tokens=tokens),
        "x_receipt": answered.costs,
    }


def _no_raw_scores() -> BadValue:
    return BadValue(
        "scores before their activation are not given here",
        do="leave the switch out; probabilities are what tasks answer",
    )
