"""The client, for threads and for coroutines: requests and their answers.

A coroutine's calls run in threads of the client; cancelling the coroutine aborts its call.
"""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

import msgspec

from polyhead.client.answers import ErrorFacts, Prediction, StreamPart, TaskInfo, failure_of
from polyhead.client.connection import Call, Connections
from polyhead.errors import BackendError, BadValue

if TYPE_CHECKING:
    import ssl

    import numpy as np

TIMEOUT, RETRIES = 30.0, 2
CALLS = 64  # concurrent calls of an asynchronous client
Answer = TypeVar("Answer")
Decoded = TypeVar("Decoded")


class AnswerStream:
    """Parts of an answer as they arrive; `end` holds the rest, results without answers, after the last part."""

    def __init__(self, lines: Generator[bytes], call: Call) -> None:
        self.end: Prediction | None = None
        self._lines, self._call, self._lock = lines, call, threading.Lock()

    def __iter__(self) -> Iterator[StreamPart]:
        while (part := self.following()) is not None:
            yield part

    def following(self) -> StreamPart | None:
        """The next part, after waiting for it; None after the last."""
        with self._lock:
            for line in self._lines:
                part = part_of(line)
                if isinstance(part, StreamPart):
                    return part
                self.end = part
        if self.end is None:
            raise BackendError("the server stopped before its answer was whole", do="ask again")
        return None

    def abort(self) -> None:
        """Aborts the rest, from any thread: a waiting reader gets a BackendError."""
        self._call.abort()

    def close(self) -> None:
        """The same, and waits until nobody is reading."""
        self.abort()
        with self._lock:
            self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """A client of one server; several threads may share it.

    `key` is sent as a bearer token. A call waits at most `timeout` seconds; if the server is overloaded, the call is
    repeated when the server says, at most `retries` times and within that time. `context` checks certificates of https.
    Errors are those of `polyhead.errors`: the server's own, or BackendError if it does not answer in time. A caller
    that passes a method a `Call` can abort it from another thread.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Connects at the first call; `url` is `http://HOST:PORT`, with a path if a proxy needs one."""
        self._connections = Connections(url, key=key, timeout=timeout, retries=retries, context=context)

    def predict(
        self,
        inputs: Iterable[object] | str,
        *,
        tasks: Iterable[str] | None = None,
        deadline: float | None = None,
        familiar: bool = False,
        none_below: float | Mapping[str, float] | None = None,
        call: Call | None = None,
    ) -> Prediction:
        """One result per input. `tasks` None: all but those that write texts. `deadline`: seconds to answer.

        `familiar`: whether answers say which share of the rows known of their task lies as far out as the text; below
        `none_below`, of all tasks or by name, they also say `none_of_these`.
        An input is a text, a pair of texts, a `Question`, a `Passage`, or any form of `/v1/predict` as a dictionary; a
        single one, except a pair, needs no list.
        """
        body = predict_body(inputs, tasks, deadline, familiar=familiar, none_below=none_below)
        return self._request("/v1/predict", Prediction, call, body=body)

    def stream(
        self,
        inputs: Iterable[object] | str,
        *,
        tasks: Iterable[str] | None = None,
        deadline: float | None = None,
        familiar: bool = False,
        none_below: float | Mapping[str, float] | None = None,
    ) -> AnswerStream:
        """The same, with answers of each task as soon as they are available. Close it unless you read all of it."""
        body, call = predict_body(inputs, tasks, deadline, familiar=familiar, none_below=none_below), Call()
        return AnswerStream(self._connections.lines("/v1/predict/stream", body, call), call)

    def tasks(self, *, call: Call | None = None) -> list[TaskInfo]:
        """The tasks of the server."""
        return self._request("/v1/tasks", list[TaskInfo], call, of="tasks")

    def task(self, name: str, *, call: Call | None = None) -> TaskInfo:
        """One of them, with its card, scores and path."""
        return self._request(f"/v1/tasks/{quote(name, safe='')}", TaskInfo, call)

    def embed(self, texts: Sequence[str], *, dimensions: int | None = None, call: Call | None = None) -> np.ndarray:
        """The texts' mean vectors, float32 (texts, dimensions), each of length 1; `dimensions` None: all."""
        import numpy as np

        body = json_body({"input": list_of(texts), "encoding_format": "base64", "dimensions": dimensions})
        answer = self._request("/v1/embeddings", list[dict[str, Any]], call, of="data", body=body)
        rows = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in answer]
        return np.stack(rows).astype(np.float32)

    def close(self) -> None:
        """Closes idle connections."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(
        self, path: str, kind: type[Decoded], call: Call | None, *, of: str | None = None, body: bytes | None = None
    ) -> Decoded:
        """The answer, or its field `of`."""
        answer = self._connections.ask("GET" if body is None else "POST", path, body, call or Call())
        try:
            fields = msgspec.json.decode(answer)
            return msgspec.convert(fields if of is None else fields[of], kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, LookupError, TypeError) as error:
            raise BackendError(
                f"{self._connections.url} answers otherwise than a server of polyhead", got=str(error)
            ) from None


class AsyncStream:
    """Parts of an answer as they arrive; `end` holds the rest, results without answers, after the last part."""

    def __init__(self, client: AsyncClient, stream: AnswerStream) -> None:
        self._client, self._stream = client, stream

    @property
    def end(self) -> Prediction | None:
        """None until the last part has arrived."""
        return self._stream.end

    async def __aiter__(self) -> AsyncIterator[StreamPart]:
        while (part := await self._client._run(self._stream, self._stream.following)) is not None:
            yield part

    async def aclose(self) -> None:
        """Aborts the rest."""
        self._stream.abort()
        await self._client._run(self._stream, self._stream.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncClient:
    """A client of one server for coroutines; arguments, answers and errors are those of `Client`.

    At most 64 calls run at one time, each in a thread; further ones wait. Cancelling one closes its connection, so that
    the server drops work that has not begun.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        context: ssl.SSLContext | None = None,
    ) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._client = Client(url, key=key, timeout=timeout, retries=retries, context=context)
        self._threads = ThreadPoolExecutor(CALLS, "polyhead-client")

    async def predict(
        self,
        inputs: Iterable[object] | str,
        *,
        tasks: Iterable[str] | None = None,
        deadline: float | None = None,
        familiar: bool = False,
        none_below: float | Mapping[str, float] | None = None,
    ) -> Prediction:
        """One result per input."""
        options = {"tasks": tasks, "deadline": deadline, "familiar": familiar, "none_below": none_below}
        return await self._ask(self._client.predict, inputs, **options)

    def stream(
        self,
        inputs: Iterable[object] | str,
        *,
        tasks: Iterable[str] | None = None,
        deadline: float | None = None,
        familiar: bool = False,
        none_below: float | Mapping[str, float] | None = None,
    ) -> AsyncStream:
        """The same, with answers of each task as soon as they are available: `async for part in client.stream(...)`."""
        stream = self._client.stream(inputs, tasks=tasks, deadline=deadline, familiar=familiar, none_below=none_below)
        return AsyncStream(self, stream)

    async def tasks(self) -> list[TaskInfo]:
        """The tasks of the server."""
        return await self._ask(self._client.tasks)

    async def task(self, name: str) -> TaskInfo:
        """One of them, with its card, scores and path."""
        return await self._ask(self._client.task, name)

    async def embed(self, texts: Sequence[str], *, dimensions: int | None = None) -> np.ndarray:
        """The texts' mean vectors, float32 (texts, dimensions), each of length 1."""
        return await self._ask(self._client.embed, texts, dimensions=dimensions)

    async def aclose(self) -> None:
        """Closes idle connections."""
        self._client.close()
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _ask(self, method: Callable[..., Answer], *arguments: object, **named: object) -> Answer:
        call = Call()
        return await self._run(call, partial(method, *arguments, **named, call=call))

    async def _run(self, call: Call | AnswerStream, answer: Callable[[], Answer]) -> Answer:
        import asyncio

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, answer)
        except asyncio.CancelledError:
            call.abort()
            raise


def predict_body(
    inputs: Iterable[object] | str,
    tasks: Iterable[str] | None,
    deadline: float | None,
    *,
    familiar: bool = False,
    none_below: float | Mapping[str, float] | None = None,
) -> bytes:
    """The body of `/v1/predict`; raises BadValue for invalid inputs."""
    if isinstance(tasks, str):
        raise BadValue("tasks come in a list, and one name was given", got=tasks, do="give [...]")
    rows = [row_of(entry, number) for number, entry in enumerate(_inputs(inputs))]
    body: dict[str, Any] = {"inputs": rows}
    if tasks is not None:
        body["tasks"] = list(tasks)
    _check_number(deadline, "deadline")
    for limit in none_below.values() if isinstance(none_below, Mapping) else [none_below]:
        _check_number(limit, "none_below")
    wishes = {"deadline": deadline, "familiar": familiar or None, "none_below": none_below}
    if options := {name: wish for name, wish in wishes.items() if wish is not None}:
        body["options"] = options
    return json_body(body)


def _check_number(value: object, field: str) -> None:
    """Raises BadValue for a value that is neither None nor a finite number."""
    try:
        is_finite = value is None or (isinstance(value, Real) and isfinite(value))
    except OverflowError:  # of a whole number
        is_finite = False
    if not is_finite:
        allowed, do = "a finite number, or None", "leave it out for the server's own"
        raise BadValue(f"'{field}' is no number that can be sent", got=repr(value), allowed=allowed, do=do)


def _inputs(inputs: Iterable[object] | str) -> list[object]:
    """The inputs as a list, also for a single one; raises BadValue for two texts that may be a pair."""
    if isinstance(inputs, str | Mapping) or hasattr(inputs, "context"):
        return [inputs]
    listed = list_of(inputs)
    if isinstance(inputs, tuple) and len(listed) == 2 and all(isinstance(text, str) for text in listed):
        raise BadValue(
            "a tuple of two texts may be a pair, or two texts",
            got=inputs,
            do="give [(a, b)] for a pair, [a, b] for two",
        )
    return listed


def row_of(entry: object, number: int) -> object:
    """An input as JSON value."""
    if isinstance(entry, str | Mapping):
        return entry
    if isinstance(entry, tuple | list) and len(entry) in (1, 2) and all(isinstance(text, str) for text in entry):
        return {"text": entry[0], "text_b": entry[1]} if len(entry) == 2 else entry[0]
    if hasattr(entry, "options") and hasattr(entry, "text"):  # a Question
        return {"question": entry.text, "options": list(entry.options), "context": getattr(entry, "context", "")}
    if hasattr(entry, "question") and hasattr(entry, "context"):  # a Passage
        return {"question": entry.question, "context": entry.context}
    raise BadValue(
        f"input {number} is none that can be sent",
        got=repr(entry),
        allowed="a string, a pair of strings, a Question, a Passage, or a dictionary",
        row=number,
    )


def list_of(values: Iterable[object]) -> list[object]:
    """The values as a list; raises BadValue for a string, which Python would treat as a list of letters."""
    if isinstance(values, str | bytes | Mapping):
        raise BadValue("inputs come in a list, and one value was given", got=repr(values), do="give [...]")
    return list(values)


def json_body(body: object) -> bytes:
    """JSON; lone surrogates, which UTF-8 cannot hold, are replaced one for one, so that offsets stay true."""
    try:
        return msgspec.json.encode(body, enc_hook=_plain)
    except UnicodeEncodeError:
        return msgspec.json.encode(_repaired(body), enc_hook=_plain)


def _plain(value: Any) -> Any:
    """A value that JSON has no form for, such as numpy's strings and numbers, as one that it has."""
    if isinstance(value, str):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise BadValue("the request holds a value that cannot be sent", got=repr(value), allowed="values of JSON")


def _repaired(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, Mapping):
        return {_repaired(name): _repaired(item) for name, item in value.items()}
    if hasattr(value, "tolist"):  # an array
        return _repaired(value.tolist())
    return [_repaired(item) for item in value] if isinstance(value, list | tuple) else value


def part_of(line: bytes) -> StreamPart | Prediction:
    """A line of a stream; raises the error that it contains."""
    try:
        fields = msgspec.json.decode(line)
        if "task" in fields:
            return msgspec.json.decode(line, type=StreamPart)
        if "error" not in fields:
            return msgspec.json.decode(line, type=Prediction)
        facts = msgspec.convert(fields["error"], ErrorFacts)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BackendError("a line of the answer is none of a server of polyhead", got=str(error)) from None
    raise failure_of(facts, 500, {})
