"""HTTP bodies and statuses: JSON in and out, compressed bodies, examples, and every error as an answer."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import lru_cache, partial
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from msgspec import inspect
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from polyhead.data.formats.lines import check_each_key_once
from polyhead.errors import (
    SEVERAL,
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
from polyhead.nesting import DEEPEST, levels_and_values
from polyhead.serve.event_loop import off_loop
from polyhead.values import Value

JSON = "application/json"
CONNECTION = "polyhead.connection"  # in a scope: whether the caller hung up
GONE, INTERNAL = 499, 500
UNPACKED = ("", "identity")  # values of `Content-Encoding` of a body that is not compressed
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

MOST_VALUES = 131_072  # in all its lists and objects: more would take the decoder, which nothing interrupts, too long
AT_ONCE = 8192  # values of a list that are written before other threads may run
MOST_TOLD = 100  # values of an error's list that an answer shows
FACT_LEVELS = 3  # of lists and objects in each other that it shows
LARGEST_NUMBER = 2**53  # from which on a number is told as a text
# A path of two parts or more, unless it is a route that is named with its method.
_FILE = re.compile(
    r"(?<!GET )(?<!POST )(?<!PUT )(?<!DELETE )(?<![\w./:])(?:[A-Za-z]:\\|/)[^\s'\",:;()/\\]+[/\\][^\s'\",:;()]*"
)
_OURS = re.compile(r"\b(src|bin|lib)/[\w./-]+\.(cpp|hpp|py|so|h|c)\b(:\d+)?")

Decoded = TypeVar("Decoded")


Fact = str | int | float | bool | list[Any] | dict[str, Any] | None
"""A fact of an error as JSON holds it."""


class HttpError(PolyheadError):
    """An error that has a status of its own."""

    named: str = "HttpError"  # its type as callers are told
    status: int

    def __init__(self, status: int, what: str, **facts: Any) -> None:
        super().__init__(what, status=status, **facts)


class ErrorBody(Value):
    """The four facts of an error, and its type; `got` and `allowed` are JSON values if possible."""

    type: str
    message: str
    got: Fact = None
    allowed: Fact = None
    do: str | None = None


class ErrorReply(Value):
    """The body of every answer that is none."""

    error: ErrorBody


def json_content(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, headers=headers, media_type=JSON)


def raw(values: Iterable[object]) -> list[Any]:
    """Each value as `msgspec.Raw`, JSON by itself: one call that writes all of them would stop every other thread."""
    return [msgspec.Raw(msgspec.json.encode(_divided(value))) for value in values]


def _divided(value: object) -> object:
    """The value, in which long lists are JSON already, made of a part of each at a time."""
    if isinstance(value, dict):
        return {name: _divided(inner) if isinstance(inner, (dict, list)) else inner for name, inner in value.items()}
    if not isinstance(value, list) or len(value) <= AT_ONCE:
        return value
    parts = (msgspec.json.encode(value[start : start + AT_ONCE])[1:-1] for start in range(0, len(value), AT_ONCE))
    return msgspec.Raw(b"[" + b",".join(parts) + b"]")


async def body_value(request: Request, decoder: msgspec.json.Decoder[Decoded]) -> Decoded:
    """The body as a value; raises what `json_value` raises."""
    body = await whole_body(request)
    return await off_loop(len(body), json_value, body, decoder)


async def whole_body(request: Request) -> bytes:
    """The body as it came; raises HttpError 415 where it is compressed."""
    coding = request.headers.get("content-encoding", "")
    if coding not in UNPACKED:
        raise HttpError(
            415, "the body is compressed", got=coding, allowed="a body as it is", do="send it without compression"
        )
    return await request.body()


def json_value(body: bytes, decoder: msgspec.json.Decoder[Decoded]) -> Decoded:
    """A JSON value; raises HttpError 400 for invalid JSON or too many parts, 422 for JSON of another form."""
    try:
        return decoder.decode(checked_json(body))
    except msgspec.ValidationError as error:
        raise form_error(error, decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        do = "send one JSON object in UTF-8"
        raise HttpError(400, "the body is not JSON", got=str(error), do=do) from None


def form_error(error: msgspec.ValidationError, of: Any) -> HttpError:
    """The error for an invalid body of this type, with the fields allowed at that place and an example."""
    fault, problem = fault_of(error), "the body has another form than this route reads"
    got = f"{fault.what}, at '{fault.path}'" if fault.place else fault.what
    body = msgspec.json.encode(example_of(of)).decode()
    return HttpError(422, problem, got=got, allowed=fields_at(of, fault.place), do=f"send such as {body}")


def checked_json(body: bytes) -> bytes:
    """The JSON without a byte order mark.

    Raises HttpError 400 if it has more levels or values than are allowed, or an object that names a key twice, of which
    a decoder keeps the last value. What is no JSON is left to the decoder.
    """
    body = body.removeprefix(BOM_UTF8)
    opened = body.count(b"[") + body.count(b"{")
    if opened > DEEPEST or opened + body.count(b",") > MOST_VALUES:
        levels, values = levels_and_values(body)
        if levels > DEEPEST:
            raise HttpError(400, "the body is nested too deeply", allowed=f"{DEEPEST} levels", do="send flatter values")
        if values > MOST_VALUES:
            allowed, do = f"{MOST_VALUES:,}", "send several requests"
            raise HttpError(400, "the body holds too many values", allowed=allowed, do=do)
    try:
        with suppress(ValueError):
            check_each_key_once(body.decode())
    except DataError as error:
        raise HttpError(400, f"in the body {error.what}", got=error.got, allowed=error.allowed, do=error.do) from None
    return body


def status_of(error: Exception) -> int:
    """The status that tells of an error."""
    if isinstance(error, HttpError):
        return error.status
    if isinstance(error, (CancelledError, ClientDisconnect)):
        return GONE
    return next((STATUS[each] for each in type(error).__mro__ if each in STATUS), INTERNAL)


def body_of(error: Exception, places: Mapping[str, str] = MappingProxyType({})) -> ErrorBody:
    """The public facts of an error; for an internal fault of the server only that there was one.

    `places` are paths with other names for callers: they are replaced by these names, and other paths are removed.
    """
    if not isinstance(error, PolyheadError):
        sentence = "nobody waits for this any longer" if status_of(error) == GONE else "the server failed"
        return ErrorBody(type="ServerError", message=sentence)
    is_own = isinstance(error, HttpError)  # which speaks of requests and routes alone

    def clean(words: str) -> str:
        return words if is_own else without_files(replaced(words, places))

    got, allowed = (fact_in_json(fact, clean) for fact in (error.got, error.allowed))
    name, message = error.named if isinstance(error, HttpError) else type(error).__name__, clean(str(error))
    do = None if error.do is None else clean(error.do[:1000])
    return ErrorBody(type=name, message=message, got=got, allowed=allowed, do=do)


def fact_in_json(fact: object, clean: Callable[[str], str], *, longest: int = 1000, level: int = 0) -> Fact:
    """A fact of an error as JSON, its texts cleaned; of collections the first values, of texts `longest` characters."""
    if fact is None or isinstance(fact, bool) or (isinstance(fact, int | float) and abs(fact) < LARGEST_NUMBER):
        return fact
    if isinstance(fact, (*SEVERAL, dict)) and level < FACT_LEVELS:
        inner = partial(fact_in_json, clean=clean, longest=200, level=level + 1)
        if isinstance(fact, dict):
            return {clean(str(name)[:200]): inner(value) for name, value in islice(fact.items(), MOST_TOLD)}
        values = [inner(value) for value in islice(fact, MOST_TOLD)]
        return [*values, f"and {len(fact) - MOST_TOLD:,} more"] if len(fact) > MOST_TOLD else values
    return clean(str(fact)[:longest])


def without_files(words: str) -> str:
    """The words without what callers need not know: paths of files, and where in a library something failed."""
    return _OURS.sub("(a file)", _FILE.sub("(a file)", words))


def replaced(words: str, places: Mapping[str, str]) -> str:
    """The words with each path in `places` replaced by its name, if it is a whole path or the beginning of one.

    A relative path is replaced only if more of a path follows, since a folder may have the name of any word.
    """
    for path in sorted(places, key=len, reverse=True):
        end = r"(?![\w-]|\.\w)" if path.startswith(("/", "\\")) or path[1:2] == ":" else r"(?=[/\\])"
        words = re.sub(rf"(?<![\w./\\-]){re.escape(path)}{end}", places[path].replace("\\", r"\\"), words)
    return words


def headers_of(error: Exception) -> dict[str, str]:
    """Headers that go with an error."""
    if isinstance(error, Overloaded):
        return {"Retry-After": str(max(1, round(getattr(error, "retry_after", 1.0))))}
    status = status_of(error)
    if status == 405 and isinstance(error, HttpError) and isinstance(error.allowed, list):
        return {"Allow": ", ".join(error.allowed)}
    return {"WWW-Authenticate": "Bearer"} if status == 401 else {}


def error_response(error: Exception) -> Response:
    """An error as the server's own routes tell it."""
    return json_content(ErrorReply(error=body_of(error)), status_of(error), headers_of(error))


def gone(request: Request) -> Callable[[], bool]:
    """Whether the caller of a request hung up, asked at any time and from any thread."""
    connection = request.scope.get(CONNECTION)
    return lambda: bool(getattr(connection, "disconnected", False))


LONGEST = 1000  # characters of a fault, which may hold what the client sent
REQUIRED = "Field required"
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


class Fault(Value):
    """A fault and its place: names and numbers from the top of the body, "..." for any key of an object."""

    what: str
    place: tuple[str | int, ...]

    @property
    def path(self) -> str:
        """The place as it is written in code: `questions[2].choices`."""
        steps = "".join(f"[{step}]" if isinstance(step, int) or step == "..." else f".{step}" for step in self.place)
        return steps.removeprefix(".")


def fault_of(error: msgspec.ValidationError) -> Fault:
    """The field and the reason that an error names."""
    sentence, mark, path = str(error).rpartition(" - at `")
    if not mark:
        sentence, path = path, ""
    steps = _STEP.findall(path.removesuffix("`").removeprefix("key in "))
    place = tuple(int(index) if index.isdigit() else name or index for name, index in steps)
    if sentence.startswith(missing := "Object missing required field `"):
        return Fault(what=REQUIRED, place=(*place, sentence.removeprefix(missing).removesuffix("`")))
    return Fault(what=sentence[:LONGEST], place=place)


def plain_body(body: bytes, coding: str, *, most: int) -> bytes:
    """The body of a request with this `Content-Encoding`: "" or "identity" as it is, "zstd" where that is installed.

    Raises HttpError: 415 for any other coding, 413 for more than `most` bytes, 400 for a body that is broken.
    """
    if coding in UNPACKED:
        return body
    zstd = _zstd() if coding == "zstd" else None
    if zstd is None:
        raise HttpError(
            415,
            "the body is compressed in a way that the server does not read",
            got=coding,
            allowed="a body as it is, or zstd where the server has 'backports.zstd' or Python 3.14",
            do="send it as it is; of TypeSafeClient: compression=False",
        )
    reader = zstd.ZstdDecompressor()
    try:
        content: bytes = reader.decompress(body, max_length=most + 1)
    except zstd.ZstdError as error:
        raise HttpError(400, "the body is not what its 'Content-Encoding' says", got=str(error)) from None
    if len(content) > most:
        raise HttpError(413, "the body is too large", allowed=f"{most:,} bytes", do="send less at once")
    if not reader.eof:
        raise HttpError(400, "the body is not what its 'Content-Encoding' says", got="the end is missing")
    return content


def _zstd() -> Any:
    """The module of Python 3.14, or the same for those before it; None where neither is there."""
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            return None
    return zstd


@lru_cache(maxsize=256)
def example_of(of: Any) -> Any:
    """A value of this type, as JSON holds it."""
    return _example(inspect.type_info(of))


def fields_at(of: Any, place: Sequence[str | int]) -> list[str] | None:
    """The names of the fields that an object at this place of a value may have; None where no object is read there.

    Where the last step names no object, the fields are those of the object around it.
    """
    within, names = inspect.type_info(of), None
    for step in (None, *place):
        within = within if step is None else _step(within, step)
        for each in _members(within):
            if isinstance(each, inspect.StructType):
                tag = [] if each.tag_field is None else [each.tag_field]
                names = [*tag, *(field.encode_name for field in each.fields)]
                break
    return names


def _example(of: inspect.Type) -> Any:
    if isinstance(of, inspect.Metadata):
        examples = (of.extra_json_schema or {}).get("examples")
        return examples[0] if examples else _example(of.type)
    if isinstance(of, inspect.StructType):
        tag = {} if of.tag_field is None else {of.tag_field: of.tag}
        shown = [field for field in of.fields if field.required or _has_example(field.type)]
        return tag | {field.encode_name: _example(field.type) for field in shown}
    if isinstance(of, inspect.UnionType):
        return _example(of.types[0])
    if isinstance(of, inspect.LiteralType):
        return of.values[0]
    if isinstance(of, inspect.ListType | inspect.VarTupleType):
        return [_example(of.item_type)]
    if isinstance(of, inspect.DictType):
        return {"...": _example(of.value_type)}
    plain: dict[type[inspect.Type], Any] = {inspect.IntType: 1, inspect.FloatType: 1.0, inspect.BoolType: True}
    return plain.get(type(of), "...")


def _has_example(of: inspect.Type) -> bool:
    return isinstance(of, inspect.Metadata) and "examples" in (of.extra_json_schema or {})


def _members(of: inspect.Type) -> Sequence[inspect.Type]:
    """The types of a union, or the one type."""
    of = of.type if isinstance(of, inspect.Metadata) else of
    return of.types if isinstance(of, inspect.UnionType) else (of,)


def _step(within: inspect.Type, step: str | int) -> inspect.Type:
    """The type of a field, or of what a list or a table holds."""
    for each in _members(within):
        if isinstance(each, inspect.StructType):
            for field in each.fields:
                if field.encode_name == step:
                    return field.type
        elif isinstance(each, inspect.ListType | inspect.VarTupleType) and not isinstance(step, str | None):
            return each.item_type
        elif isinstance(each, inspect.DictType):
            return each.value_type
    return inspect.AnyType()
