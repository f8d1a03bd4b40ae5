"""OpenAI's decisions, `POST /v1/decisions`: questions in order about one input, an answer or a refusal for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from polyhead.errors import PolyheadError
from polyhead.serve.decide import Decided, Decision, decide_request
from polyhead.serve.event_loop import off_loop
from polyhead.serve.formats.base import Operation, Wire, WireFormat, post
from polyhead.serve.formats.messages import Item, Part, conversation_text, words_of_parts
from polyhead.serve.formats.systemone import answered_by, chosen_of, decided_body
from polyhead.serve.http import (
    HttpError,
    body_of,
    checked_json,
    fault_of,
    gone,
    headers_of,
    json_content,
    raw,
    status_of,
    whole_body,
)
from polyhead.serve.questions import DecisionQuestion, Option
from polyhead.serve.service import Service
from polyhead.text.characters import has_visible
from polyhead.values import few_digits

PATH = "/v1/decisions"
ERROR_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class Predicate(Wire, tag_field="type", tag="predicate"):
    """A statement, answered with the probability that it is true."""

    instructions: str | list[Part]
    name: str | None = None


class ChoiceValue(Wire):
    """One option of a choice."""

    value: str | bool
    description: str | None = None


class DecisionChoice(Wire, tag_field="type", tag="choice"):
    """One of several options."""

    instructions: str | list[Part]
    choices: list[ChoiceValue]
    name: str | None = None


class Level(Wire):
    """One level of a score."""

    label: str
    description: str | None = None


class DecisionScore(Wire, tag_field="type", tag="score"):
    """One of several ordered levels."""

    instructions: str | list[Part]
    levels: list[Level]
    name: str | None = None


Question = Predicate | DecisionChoice | DecisionScore
EXAMPLE = {"type": "predicate", "name": "TASK", "instructions": "the customer is waiting"}


class DecisionsRequest(Wire):
    """An input and the questions about it. What concerns caches of prompts is taken, and has no effect."""

    model: Annotated[str, msgspec.Meta(examples=["polyhead"])]
    input: Annotated[str | list[Item], msgspec.Meta(examples=["where is my order?"])]
    questions: Annotated[list[Question], msgspec.Meta(examples=[[EXAMPLE]])]
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: str | None = None


class InvalidField(HttpError):
    """A request that cannot be answered, and the field that is wrong."""

    def __init__(self, param: str | None, what: str, **facts: Any) -> None:
        super().__init__(400, what, **facts)
        self.param = param


class DecisionsFormat(WireFormat):
    """The route of OpenAI's decisions."""

    name = "decisions"

    def operations(self) -> Sequence[Operation]:
        """The entry of the route."""
        summary = "Typed questions about an input, each answered by the task of its name."
        statuses = {400: "The request cannot be answered"}
        return [post(PATH, _decide, summary, request=DecisionsRequest, statuses=statuses)]

    def error_response(self, error: Exception) -> Response:
        """An error as clients of this format read it: 400 for a request that cannot be answered."""
        status, body = status_of(error), body_of(error)
        status = 400 if status == 422 else status
        kind = ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        fields = {"message": body.message, "type": kind, "param": getattr(error, "param", None), "code": None}
        return json_content({"error": fields}, status, headers_of(error))


_DECODER = msgspec.json.Decoder(DecisionsRequest)


async def _decide(service: Service, request: Request) -> Response:
    body = await whole_body(request)
    requested, text, questions = await off_loop(len(body), _read, service, body)
    answered = await decide_request(service, text, questions, is_gone=gone(request))
    return await off_loop(len(body), _response, service, requested, questions, answered)


def _response(
    service: Service, requested: DecisionsRequest, questions: Sequence[DecisionQuestion], answered: Decided
) -> Response:
    triples = zip(requested.questions, questions, answered.answers, strict=True)
    body = decided_body(
        service,
        raw(few_digits(_answer(each, question, answer)) for each, question, answer in triples),
        answered,
        input_tokens_details={"cached_tokens": answered.options_kept, "cache_write_tokens": answered.options_read},
        output_tokens_details={"reasoning_tokens": 0},
        total_tokens=answered.input_tokens,
    )
    return json_content(body)


def _read(service: Service, body: bytes) -> tuple[DecisionsRequest, str, list[DecisionQuestion]]:
    """The request, the text that its questions are about, and these as they are answered."""
    requested, limits = _decoded(body), service.settings.limits
    _check_size("questions", len(requested.questions), 1, limits.questions)
    questions = [_parse(each, f"questions[{i}]", options=limits.options) for i, each in enumerate(requested.questions)]
    text = requested.input if isinstance(requested.input, str) else _text(requested.input)
    if not has_visible(text):
        raise InvalidField("input", "the input holds no text", do="give the text that the questions are about")
    return requested, text, questions


def _decoded(body: bytes) -> DecisionsRequest:
    try:
        return _DECODER.decode(checked_json(body))
    except msgspec.ValidationError as error:
        fault = fault_of(error)
        raise InvalidField(fault.path or None, f"the body has another form: {fault.what}, at '{fault.path}'") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidField(None, f"the body is not JSON: {error}", do="send one JSON object in UTF-8") from None


def _text(items: Sequence[Item]) -> str:
    try:
        return conversation_text(items)
    except PolyheadError as error:
        raise InvalidField("input", str(error)) from None


def _parse(question: Question, place: str, *, options: int) -> DecisionQuestion:
    try:
        instructions = words_of_parts(question.instructions)
    except PolyheadError as error:
        raise InvalidField(f"{place}.instructions", str(error)) from None
    name = question.name or ""
    if isinstance(question, Predicate):
        sides = (Option(value=True), Option(value=False))
        return DecisionQuestion(name=name, form="predicate", instructions=instructions, options=sides)
    if isinstance(question, DecisionChoice):
        field = f"{place}.choices"
        choices = tuple(Option(value=each.value, words=each.description or "") for each in question.choices)
    else:
        field = f"{place}.levels"
        choices = tuple(Option(value=each.label, words=each.description or "") for each in question.levels)
    _check_size(field, len(choices), 2, options)
    form: Literal["choice", "score"] = "choice" if isinstance(question, DecisionChoice) else "score"
    if form == "choice" and len({(type(each.value), each.value) for each in choices}) < len(choices):
        raise InvalidField(field, "each choice must be unique", do="leave out what is there twice")
    return DecisionQuestion(name=name, form=form, instructions=instructions, options=choices)


def _check_size(field: str, size: int, least: int, most: int) -> None:
    if not least <= size <= most:
        raise InvalidField(field, f"'{field}' has another size than is allowed", got=size, allowed=f"{least} to {most}")


def _answer(requested: Question, question: DecisionQuestion, answer: Decision | PolyheadError) -> dict[str, Any]:
    if isinstance(answer, PolyheadError):
        return {"type": "refusal", "name": requested.name, "x_reason": body_of(answer)}
    shares = answer.probabilities
    if isinstance(requested, Predicate):
        return {"type": "predicate", "name": requested.name, "probability": shares[0], **answered_by(answer)}
    each = [(option.value, share) for option, share in zip(question.options, shares, strict=True)]
    if isinstance(requested, DecisionChoice):
        probabilities = [{"value": value, "probability": share} for value, share in each]
    else:
        probabilities = [
            {"label": label, "value": level, "probability": share} for level, (label, share) in enumerate(each)
        ]
    return {"name": requested.name, **chosen_of(question, answer, probabilities)}
