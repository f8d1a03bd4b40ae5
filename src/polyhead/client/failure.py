"""A server's errors as the classes of `polyhead.errors`, in its own words."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from polyhead import errors
from polyhead.errors import BackendError, ConfigError, Overloaded, PolyheadError


class ErrorFacts(msgspec.Struct, frozen=True):
    """The facts of an error as a server tells them."""

    type: str = ""
    message: str = ""
    got: str | list[str] | None = None
    allowed: str | list[str] | None = None
    do: str | None = None


class Body(msgspec.Struct, frozen=True):
    """The body of an answer that is none."""

    error: ErrorFacts


_DECODER = msgspec.json.Decoder(Body)
_KEYS = (401, 403)


def error_of_response(status: int, headers: Mapping[str, str], body: bytes) -> PolyheadError:
    """The error that a server tells with this answer; `status` is an attribute too, and of Overloaded `retry_after`."""
    try:
        told = _DECODER.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        kind = BackendError if status >= 500 else PolyheadError
        said = body[:200].decode("utf-8", "replace").strip()
        return kind(f"the server answered with status {status}", got=said or None, status=status)
    facts: dict[str, object] = {"status": status}
    if status == 429:
        facts["retry_after"] = retry_after(headers)
    return failure_of(told, status, facts)


def failure_of(told: ErrorFacts, status: int, facts: Mapping[str, object]) -> PolyheadError:
    """An error of the class that the server names, else one that its status fits."""
    kind = getattr(errors, told.type, None)
    if not (isinstance(kind, type) and issubclass(kind, PolyheadError)):
        kind = Overloaded if status == 429 else BackendError if status >= 500 else PolyheadError
        kind = ConfigError if status in _KEYS else kind
    error: PolyheadError = kind.__new__(kind)  # without the constructor, which would make the sentence again
    what = told.message
    for label, fact in (("Do", told.do), ("Allowed", told.allowed), ("Got", told.got)):
        what = what.rpartition(f" {label}: ")[0] or what if fact is not None else what
    PolyheadError.__init__(error, what.removesuffix("."), got=told.got, allowed=told.allowed, do=told.do, **facts)
    error.args = (told.message,)  # the sentence as the server made it
    return error


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds after which a server that has too much to do may be asked again; 1 where it says none."""
    value = headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() else 1.0
