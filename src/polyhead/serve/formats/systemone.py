"""System One, `POST /v1/systemone` and `GET /v1/models`: named questions about a state, probabilities back."""

from __future__ import annotations

import asyncio
import datetime
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from polyhead.bundle.format import BUNDLE
from polyhead.errors import PolyheadError
from polyhead.serve.decide import Decided, Decision, decide_request
from polyhead.serve.event_loop import LARGE, off_loop
from polyhead.serve.formats.base import Operation, Wire, WireFormat, get, post
from polyhead.serve.http import (
    REQUIRED,
    HttpError,
    body_of,
    checked_json,
    fault_of,
    gone,
    headers_of,
    json_content,
    plain_body,
    raw,
    status_of,
)
from polyhead.serve.questions import (
    DecisionQuestion,
    Option,
    choice_confidence,
    expectation,
    json_text,
    most_probable,
    score_confidence,
)
from polyhead.serve.service import Service
from polyhead.text.characters import has_visible
from polyhead.values import few_digits

PATH, MODELS = "/v1/systemone", "/v1/models"
ALIAS = "jev-latest"  # the model that clients name if they are not told another
FAMILY = "jev-"  # models of the service that clients know: all are answered, so that nothing has to be changed
LEVELS = 10  # of a score
REQUEST_ID = "x-typesafe-request-id"
ERROR_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    415: "unsupported_media_type",
    429: "rate_limit_error",
    503: "overloaded_error",
}
Words = str | dict[str, Any] | list[Any]


class Outcomes(Wire, forbid_unknown_fields=True):
    """Descriptions of a yes and of a no."""

    holds: Words | None = msgspec.field(default=None, name="true")
    fails: Words | None = msgspec.field(default=None, name="false")


class Noul(Wire, tag_field="type", tag="noul"):
    """A question that is answered by yes or no."""

    instructions: Words | None = None
    criteria: Outcomes | None = None


class SystemOneChoice(Wire, tag_field="type", tag="choice"):
    """One of several options, by name."""

    criteria: dict[str, Words | None]
    instructions: Words | None = None


class SystemOneScore(Wire, tag_field="type", tag="score"):
    """One of several ordered levels."""

    criteria: list[Words]
    instructions: Words | None = None


Question = Noul | SystemOneChoice | SystemOneScore


EXAMPLE = {"TASK": {"type": "noul", "instructions": "the customer is waiting"}}


class SystemOneRequest(Wire):
    """A state and the questions about it, each read by itself."""

    model: Annotated[str, msgspec.Meta(examples=[ALIAS])]
    state: Annotated[Words, msgspec.Meta(examples=["where is my order?"])]
    questions: Annotated[dict[str, msgspec.Raw], msgspec.Meta(examples=[EXAMPLE])]


class InvalidRequest(PolyheadError):
    """An error for an invalid request: each fault, with its place."""

    def __init__(self, *faults: tuple[Sequence[str | int], str, str]) -> None:
        """A fault is its place below the body, a message, and its kind."""
        self.faults = faults
        super().__init__("; ".join(message for _, message, _ in faults))


class SystemOneFormat(WireFormat):
    """The routes of System One; the list of models is OpenAI's too."""

    name = "systemone"

    def operations(self) -> Sequence[Operation]:
        """An entry for each route."""
        summary = "Typed questions about a state, each answered by the task of its id."
        listed = get(MODELS, _models, "The models that may be named.")
        return [post(PATH, answer_state, summary, request=SystemOneRequest), listed]

    def error_response(self, error: Exception) -> Response:
        """An error as clients of this format read it."""
        if isinstance(error, InvalidRequest):
            detail: object = [
                {"loc": ["body", *place], "msg": message, "type": kind} for place, message, kind in error.faults
            ]
            return json_content({"detail": detail}, 422)
        status, body = status_of(error), body_of(error)
        if status == 422:
            return json_content({"detail": [{"loc": ["body"], "msg": body.message, "type": body.type}]}, 422)
        kind = ERROR_TYPES.get(status, "api_error")
        return json_content({"detail": {"error_type": kind, "message": body.message}}, status, headers_of(error))


_DECODER = msgspec.json.Decoder(SystemOneRequest)
_QUESTION = msgspec.json.Decoder(Question)


async def answer_state(service: Service, request: Request) -> Response:
    """The answers to the questions of a request; raises InvalidRequest for one that cannot be answered."""
    body, coding = await request.body(), request.headers.get("content-encoding", "")
    # An unpacked body may be as large as any body.
    size = len(body) if coding in ("", "identity") else LARGE
    requested, by_name, questions, state = await off_loop(size, _read, service, body, coding)
    answered = await decide_request(service, state, questions, is_gone=gone(request))
    return await off_loop(size, _response, service, requested, by_name, questions, answered)


def _read(
    service: Service, body: bytes, coding: str
) -> tuple[SystemOneRequest, dict[str, Question], list[DecisionQuestion], str]:
    """The request, its questions, these as they are answered, and the state that they are about."""
    limit = service.settings.limits
    requested = _decoded(plain_body(body, coding, most=limit.body_bytes))
    named = requested.model.rpartition("/")[2]  # gateways put the maker before it
    if not named.startswith(FAMILY) and named != model_name(service):
        allowed = [ALIAS, model_name(service)]
        raise HttpError(404, "the server has no such model", got=requested.model, allowed=allowed, do=f"ask {MODELS}")
    if not 1 <= len(requested.questions) <= limit.questions:
        size = "too_short" if not requested.questions else "too_long"
        raise InvalidRequest(
            (["questions"], f"1 to {limit.questions} questions are allowed, not {len(requested.questions)}", size)
        )
    by_name = _questions(requested.questions)
    questions = _decision_questions(by_name, options=limit.options)
    state = _words(requested.state, ["state"])
    if not has_visible(state):
        raise InvalidRequest((["state"], "The state holds no text", "empty"))
    return requested, by_name, questions, state


def _response(
    service: Service,
    requested: SystemOneRequest,
    by_name: Mapping[str, Question],
    questions: Sequence[DecisionQuestion],
    answered: Decided,
) -> Response:
    _check(requested.questions, answered)
    answers = {
        question.name: raw([few_digits(_answer(question, decision, by_name[question.name]))])[0]
        for question, decision in zip(questions, answered.answers, strict=True)
        if isinstance(decision, Decision)
    }
    body = decided_body(service, answers, answered)
    return json_content(body, headers={REQUEST_ID: f"req_{secrets.token_hex(8)}"})


def _decoded(body: bytes) -> SystemOneRequest:
    """The request; raises InvalidRequest for an invalid body."""
    try:
        return _DECODER.decode(checked_json(body))
    except msgspec.ValidationError as error:
        raise InvalidRequest(_fault(error)) from None
    except (HttpError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(([0], f"JSON decode error: {error}", "json_invalid")) from None


def _questions(raw_questions: Mapping[str, msgspec.Raw]) -> dict[str, Question]:
    """The questions; raises InvalidRequest with every invalid one."""
    questions, faults = dict[str, Question](), list[tuple[Sequence[str | int], str, str]]()
    for name, each in raw_questions.items():
        try:
            questions[name] = _QUESTION.decode(each)
        except msgspec.ValidationError as error:
            faults.append(_fault(error, "questions", name))
    if faults:
        raise InvalidRequest(*faults)
    return questions


def _decision_questions(questions: Mapping[str, Question], *, options: int) -> list[DecisionQuestion]:
    """The questions in the form in which they are answered; raises InvalidRequest with each of a wrong size."""
    requested, faults = list[DecisionQuestion](), list[tuple[Sequence[str | int], str, str]]()
    for name, question in questions.items():
        try:
            requested.append(_decision_question(name, question, options=options))
        except InvalidRequest as error:
            faults += [(["questions", name, *place], message, kind) for place, message, kind in error.faults]
    if faults:
        raise InvalidRequest(*faults)
    return requested


def _decision_question(name: str, question: Question, *, options: int) -> DecisionQuestion:
    if not name:
        raise InvalidRequest(([], "A question needs a name", "too_short"))
    instructions = _words(question.instructions, ["instructions"])
    if isinstance(question, Noul):
        outcomes = question.criteria or Outcomes()
        sides = [(True, outcomes.holds, "true"), (False, outcomes.fails, "false")]
        described = [Option(value=value, words=_words(words, ["criteria", key])) for value, words, key in sides]
        return DecisionQuestion(name=name, form="predicate", instructions=instructions, options=tuple(described))
    most, unit = (options, "options") if isinstance(question, SystemOneChoice) else (LEVELS, "levels")
    if not 2 <= (size := len(question.criteria)) <= most:
        problem = f"2 to {most} {unit} are allowed, not {size}"
        raise InvalidRequest((["criteria"], problem, "too_short" if size < 2 else "too_long"))
    if isinstance(question, SystemOneChoice):
        named = [
            Option(value=value, words=_words(words, ["criteria", value])) for value, words in question.criteria.items()
        ]
        return DecisionQuestion(name=name, form="choice", instructions=instructions, options=tuple(named))
    levels = [Option(value=_words(level, ["criteria", number])) for number, level in enumerate(question.criteria)]
    return DecisionQuestion(name=name, form="score", instructions=instructions, options=tuple(levels))


def _words(value: Words | None, place: Sequence[str | int]) -> str:
    try:
        return json_text(value)
    except PolyheadError as error:
        raise InvalidRequest((place, str(error), "too_deep")) from None


def _check(names: Mapping[str, object], answered: Decided) -> None:
    """Raises InvalidRequest with each question that no task answers, or the error of a failed task."""
    errors = {
        name: error for name, error in zip(names, answered.answers, strict=True) if isinstance(error, PolyheadError)
    }
    for error in errors.values():
        if status_of(error) != 422:
            raise error
    if errors:
        raise InvalidRequest(*((["questions", name], str(error), "unanswerable") for name, error in errors.items()))


def _answer(requested: DecisionQuestion, decision: Decision, question: Question) -> dict[str, Any]:
    shares = decision.probabilities
    if isinstance(question, Noul):
        return {"type": "noul", "noul": shares[0], **answered_by(decision)}
    if isinstance(question, SystemOneChoice):
        return chosen_of(
            requested, decision, dict(zip((option.value for option in requested.options), shares, strict=True))
        )
    legend = {str(number): level for number, level in enumerate(question.criteria)}
    probabilities = {str(number): share for number, share in enumerate(shares)}
    return {"legend": legend, **chosen_of(requested, decision, probabilities)}


def chosen_of(requested: DecisionQuestion, decision: Decision, probabilities: object) -> dict[str, Any]:
    """The answer to a choice or a score; `probabilities` are in the format's own form."""
    shares = decision.probabilities
    if requested.form == "choice":
        chosen = {"choice": requested.options[most_probable(shares)].value, "confidence": choice_confidence(shares)}
    else:
        chosen = {"score": expectation(shares), "confidence": score_confidence(shares)}
    return {"type": requested.form, **chosen, "probabilities": probabilities, **answered_by(decision)}


def answered_by(decision: Decision) -> dict[str, Any]:
    """The task that answered, and how familiar the text is to it, in extension fields."""
    fields = {"x_task": decision.task, "x_familiar": decision.familiar, "x_none_of_these": decision.none_of_these}
    return {"x_answered_by": decision.answered_by, **{key: value for key, value in fields.items() if value is not None}}


def decided_body(service: Service, answers: object, decided: Decided, **usage: object) -> dict[str, Any]:
    """The body of the answers to all questions; `usage` holds further fields of their cost."""
    return {
        "model": model_name(service),
        "answers": answers,
        "usage": {"input_tokens": decided.input_tokens, "output_tokens": 0, **usage},
        "x_receipt": decided.receipt,
        "x_versions": decided.versions,
    }


def _fault(error: msgspec.ValidationError, *place: str) -> tuple[Sequence[str | int], str, str]:
    """The place, message and kind of an error of msgspec."""
    fault = fault_of(error)
    kind = "missing" if fault.what == REQUIRED else "value_error" if "nvalid value" in fault.what else "type_error"
    return [*place, *fault.place], fault.what, kind


def model_name(service: Service) -> str:
    """The name under which a server answers: its trunk's digest, so that another encoder has another name."""
    return f"polyhead-{service.session.bundle.digest[:12]}"


async def _models(service: Service, request: Request) -> Response:
    """The bundle under its own name and the clients' default one, as both formats list models."""
    bundle = service.session.bundle
    changed = await asyncio.to_thread((bundle.root / BUNDLE).stat)
    seconds = int(changed.st_mtime)
    released = datetime.datetime.fromtimestamp(seconds, datetime.UTC).date().isoformat()
    described = f"Tasks over one encoder, {bundle.trunk_name}: {', '.join(service.tasks)}"
    names = (ALIAS, model_name(service))
    return json_content(
        {
            "models": [{"name": name, "description": described, "release_date": released} for name in names],
            "object": "list",
            "data": [{"id": name, "object": "model", "created": seconds, "owned_by": "polyhead"} for name in names],
        }
    )
