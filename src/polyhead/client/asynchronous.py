"""The same client for coroutines: calls run in threads of its own, and one that is cancelled is given up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from polyhead.client.answers import Prediction, StreamPart, TaskInfo
from polyhead.client.client import RETRIES, TIMEOUT, AnswerStream, Client
from polyhead.client.connection import Call

if TYPE_CHECKING:
    import ssl

    import numpy as np

CALLS = 64  # at one time
Answer = TypeVar("Answer")


class AsyncStream:
    """Parts of an answer as they come; `end` holds the rest, results without answers, once all came."""

    def __init__(self, client: AsyncClient, stream: AnswerStream) -> None:
        self._client, self._stream = client, stream

    @property
    def end(self) -> Prediction | None:
        """None as long as not all came."""
        return self._stream.end

    async def __aiter__(self) -> AsyncIterator[StreamPart]:
        while (part := await self._client._run(self._stream, self._stream.following)) is not None:
            yield part

    async def aclose(self) -> None:
        """Gives up what did not come yet."""
        self._stream.abort()
        await self._client._run(self._stream, self._stream.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncClient:
    """Asks one server from coroutines; its arguments, answers and errors are those of `Client`.

    At most 64 calls are under way at one time, each in a thread; further ones wait. Cancelling one closes its
    connection, so that the server drops what of it was not begun.
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
        self, inputs: Iterable[object] | str, *, tasks: Iterable[str] | None = None, deadline: float | None = None
    ) -> Prediction:
        """One result an input."""
        call = Call()
        return await self._run(call, partial(self._client.predict, inputs, tasks=tasks, deadline=deadline, call=call))

    def stream(
        self, inputs: Iterable[object] | str, *, tasks: Iterable[str] | None = None, deadline: float | None = None
    ) -> AsyncStream:
        """The same, answers of each task as soon as they are known: `async for part in client.stream(...)`."""
        return AsyncStream(self, self._client.stream(inputs, tasks=tasks, deadline=deadline))

    async def tasks(self) -> list[TaskInfo]:
        """The tasks that can be asked."""
        call = Call()
        return await self._run(call, partial(self._client.tasks, call=call))

    async def task(self, name: str) -> TaskInfo:
        """One of them, with its card, scores and path."""
        call = Call()
        return await self._run(call, partial(self._client.task, name, call=call))

    async def embed(self, texts: Sequence[str], *, dimensions: int | None = None) -> np.ndarray:
        """The texts' mean vectors, float32 (texts, dimensions), each of length 1."""
        call = Call()
        return await self._run(call, partial(self._client.embed, texts, dimensions=dimensions, call=call))

    async def aclose(self) -> None:
        """Closes connections that are kept."""
        self._client.close()
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _run(self, call: Call | AnswerStream, answer: Callable[[], Answer]) -> Answer:
        import asyncio

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, answer)
        except asyncio.CancelledError:
            call.abort()
            raise
