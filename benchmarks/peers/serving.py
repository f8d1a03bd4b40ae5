"""A rival over HTTP: one route that answers all tasks of one text, on the server stack that Polyhead uses.

    python serving.py MODULE < job.json

MODULE is a script here with a `load`. Texts that wait while a batch runs are answered together in the next, at most the
job's `batch`. Prints the port, then serves until it is stopped.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
import sys
import threading
from collections import deque

import uvicorn


class Batches:
    """One thread that answers; callers wait on the loop."""

    def __init__(self, answer, most: int) -> None:
        self._answer, self._most = answer, most
        self._waiting: deque[tuple[str, asyncio.Future]] = deque()
        self._ready = threading.Condition()
        self.loop: asyncio.AbstractEventLoop  # of the first question
        threading.Thread(target=self._work, daemon=True).start()

    async def ask(self, text: str):
        self.loop = asyncio.get_running_loop()
        future = self.loop.create_future()
        with self._ready:
            self._waiting.append((text, future))
            self._ready.notify()
        return await future

    def _work(self) -> None:
        while True:
            with self._ready:
                while not self._waiting:
                    self._ready.wait()
                taken = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            self._answer([text for text, _ in taken])
            self.loop.call_soon_threadsafe(_done, [future for _, future in taken])


def _done(asked: list[asyncio.Future]) -> None:
    for future in asked:
        if not future.done():
            future.set_result(None)


def application(batches: Batches):
    """Plain ASGI: nothing that could be left out is in the way."""

    async def app(scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        await batches.ask(json.loads(body)["inputs"][0])
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"application/json"), (b"content-length", b"2")],
            }
        )
        await send({"type": "http.response.body", "body": b"{}"})

    return app


def main() -> None:
    job = json.loads(sys.stdin.readline())
    answer = importlib.import_module(sys.argv[1]).load(job)
    answer(["a text that is as long as a short message"] * 4)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    config = uvicorn.Config(
        application(Batches(answer, job["batch"])), loop="uvloop", http="httptools", lifespan="off", log_level="warning"
    )
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
