"""A server's answers as values, and its errors as the classes of `polyhead.errors`, with the server's wording."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from polyhead import errors
from polyhead.errors import BackendError, ConfigError, Overloaded, PolyheadError


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """The version of a task that answered, and the digest of its arrays; both "" for a task without a version."""

    version: str = ""
    digest: str = ""


class ClientResult(msgspec.Struct, frozen=True, kw_only=True):
    """Answers to one input by task, and for each other requested task the reason for none. The receipt is its cost."""

    answers: dict[str, dict[str, Any]] = {}
    receipt: dict[str, Any] = {}
    skipped: dict[str, str] = {}  # tasks that do not fit the input
    failed: dict[str, str] = {}  # tasks that could not be computed
    late: tuple[str, ...] = ()  # tasks that were not done by the deadline
    # By task, at the end of a stream; `predict` has both in the answers.
    familiar: dict[str, float] = {}
    none_of_these: dict[str, bool] = {}


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """One result per input, in order; the versions of the tasks and the trunk that answered, and the total cost."""

    results: list[ClientResult]
    versions: dict[str, Version] = {}
    trunk: str = ""
    receipt: dict[str, int] = {}
    bundles: dict[str, str] = {}  # of a set of bundles: the digest of each one's trunk, by name


class StreamPart(msgspec.Struct, frozen=True, kw_only=True):
    """One task's answers to some of the inputs, by their numbers, as soon as they are available."""

    task: str
    answers: dict[int, dict[str, Any]]
    layers_left: int = 0  # inputs still running for other tasks
    bundle: str = ""  # of a set of bundles: the one that answered


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A task of the server. `task` holds its kind, labels and the rest of its declaration."""

    name: str
    task: dict[str, Any]
    version: str = ""
    digest: str = ""
    headline: tuple[str, float | None] | None = None  # its score on test rows: metric, value
    calibration: dict[str, Any] | None = None  # how far off its probabilities are, where that is known
    card: str = ""  # this and the following: only for a single task requested by name
    scores: Any = None
    path: Any = None


class ErrorFacts(msgspec.Struct, frozen=True):
    """The facts of an error in a server's answer."""

    type: str = ""
    message: str = ""
    got: Any = None
    allowed: Any = None
    do: str | None = None


_KEYS = (401, 403)


def error_of_response(status: int, headers: Mapping[str, str], body: bytes) -> PolyheadError:
    """The error in this answer of a server; it has the attribute `status`, and for Overloaded `retry_after`."""
    try:
        sent = msgspec.convert(msgspec.json.decode(body)["error"], ErrorFacts)
    except (msgspec.MsgspecError, UnicodeDecodeError, LookupError, TypeError):
        kind = BackendError if status >= 500 else PolyheadError
        text = body[:200].decode("utf-8", "replace").strip()
        return kind(f"the server answered with status {status}", got=text or None, status=status)
    facts: dict[str, object] = {"status": status}
    if status == 429:
        facts["retry_after"] = retry_after(headers)
    return failure_of(sent, status, facts)


def failure_of(sent: ErrorFacts, status: int, facts: Mapping[str, object]) -> PolyheadError:
    """An error of the class that the server names, else of one that fits its status."""
    kind = getattr(errors, sent.type, None)
    if not (isinstance(kind, type) and issubclass(kind, PolyheadError)):
        kind = Overloaded if status == 429 else BackendError if status >= 500 else PolyheadError
        kind = ConfigError if status in _KEYS else kind
    error: PolyheadError = kind.__new__(kind)  # without the constructor, which would build the sentence again
    problem = sent.message
    for label, fact in (("Do", sent.do), ("Allowed", sent.allowed), ("Got", sent.got)):
        problem = problem.rpartition(f" {label}: ")[0] or problem if fact is not None else problem
    PolyheadError.__init__(error, problem.removesuffix("."), got=sent.got, allowed=sent.allowed, do=sent.do, **facts)
    error.args = (sent.message,)  # the server's sentence
    return error


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds after which an overloaded server may be called again; 1 if it says nothing."""
    value = headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() else 1.0
