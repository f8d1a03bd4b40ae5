"""JSON in and out, and every error as a status with a body that says what failed, what is allowed and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from polyhead.config import Value
from polyhead.errors import (
    BackendError,
    BadName,
    ConfigError,
    DataError,
    LockError,
    MissingExtra,
    Overloaded,
    PolyheadError,
    UnknownTask,
)
from polyhead.nesting import DEEPEST, is_deep

JSON = "application/json"
CONNECTION = "polyhead.connection"  # in a scope: whether the caller hung up
GONE, INTERNAL = 499, 500
STATUS: Mapping[type[PolyheadError], int] = {
    UnknownTask: 404,
    Overloaded: 429,
    BackendError: 503,
    MissingExtra: 501,
    BadName: 422,
    LockError: 409,
    DataError: 422,
    ConfigError: 422,
    PolyheadError: 400,
}
"""The status of each kind of error; the first kind, from its own class upward, that is named here counts."""

# A path of two parts or more, unless it is a route that is named with its method.
_FILE = re.compile(
    r"(?<!GET )(?<!POST )(?<!PUT )(?<!DELETE )(?<![\w./:])(?:[A-Za-z]:\\|/)[^\s'\",:;()/\\]+[/\\][^\s'\",:;()]*"
)
_OURS = re.compile(r"\b(src|bin|lib)/[\w./-]+\.(cpp|hpp|py|so|h|c)\b(:\d+)?")

Decoded = TypeVar("Decoded")


class HttpError(PolyheadError):
    """An error that has a status of its own."""

    def __init__(self, status: int, what: str, **facts: Any) -> None:
        super().__init__(what, **facts)
        self.status = status


class ErrorBody(Value):
    """The four facts of an error, and its type."""

    type: str
    message: str
    got: str | None = None
    allowed: str | None = None
    do: str | None = None


class ErrorAnswer(Value):
    """The body of every answer that is none."""

    error: ErrorBody


def encoded(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, headers=headers, media_type=JSON)


async def decoded(request: Request, decoder: msgspec.json.Decoder[Decoded]) -> Decoded:
    """The body as a value; raises HttpError 400 for what is no JSON, 422 for JSON of another form."""
    body = await request.body()
    if is_deep(body):
        raise HttpError(400, "the body is nested too deeply", allowed=f"{DEEPEST} levels", do="send flatter values")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise HttpError(422, "the body has another form than this route reads", got=str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        do = "send one JSON object in UTF-8"
        raise HttpError(400, "the body is not JSON", got=str(error), do=do) from None


def status_of(error: Exception) -> int:
    """The status that tells of an error."""
    if isinstance(error, HttpError):
        return error.status
    if isinstance(error, (CancelledError, ClientDisconnect)):
        return GONE
    return next((STATUS[each] for each in type(error).__mro__ if each in STATUS), INTERNAL)


def body_of(error: Exception) -> ErrorBody:
    """What is told of an error; of a fault of the server's own nothing but that there was one."""
    if not isinstance(error, PolyheadError):
        what = "nobody waits for this any longer" if status_of(error) == GONE else "the server failed"
        return ErrorBody(type="ServerError", message=what)
    is_own = isinstance(error, HttpError)  # which speaks of requests and routes alone
    got, allowed, do = (
        None if fact is None else str(fact)[:1000] if is_own else without_files(str(fact)[:1000])
        for fact in (error.got, error.allowed, error.do)
    )
    name, message = "HttpError" if is_own else type(error).__name__, str(error)
    return ErrorBody(type=name, message=message if is_own else without_files(message), got=got, allowed=allowed, do=do)


def without_files(words: str) -> str:
    """The words without what callers need not know: paths of files, and where in a library something failed."""
    return _OURS.sub("(a file)", _FILE.sub("(a file)", words))


def headers_of(error: Exception) -> dict[str, str]:
    """Headers that go with an error."""
    if isinstance(error, Overloaded):
        return {"Retry-After": str(max(1, round(getattr(error, "retry_after", 1.0))))}
    status = status_of(error)
    if status == 405 and isinstance(error, HttpError) and error.allowed is not None:
        return {"Allow": str(error.allowed)}
    return {"WWW-Authenticate": "Bearer"} if status == 401 else {}


def answer_of(error: Exception) -> Response:
    """An error as the server's own routes tell it."""
    return encoded(ErrorAnswer(error=body_of(error)), status_of(error), headers_of(error))


def gone(request: Request) -> Callable[[], bool]:
    """Whether the caller of a request hung up, asked at any time and from any thread."""
    connection = request.scope.get(CONNECTION)
    return lambda: bool(getattr(connection, "disconnected", False))
