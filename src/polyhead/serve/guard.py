"""What stands before every route: bodies that are cut off while they stream, and errors as answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyhead.serve.http import CONNECTION, HttpError, answer_of, status_of

log = logging.getLogger(__name__)


class Guard:
    """Refuses bodies of more than so many bytes, and tells every error as JSON; a fault is logged, not shown."""

    def __init__(
        self, app: ASGIApp, *, body_bytes: int, told: Mapping[str, Callable[[Exception], Response]] | None = None
    ) -> None:
        """`told` says how errors are told on a path, where that is not the server's own way."""
        self._app, self._most, self._told = app, body_bytes, told or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[CONNECTION] = getattr(receive, "__self__", None)
        read = 0
        is_begun = False

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > self._most:
                    raise HttpError(
                        413,
                        "the body is too large",
                        allowed=f"{self._most:,} bytes",
                        do="send less at once, or raise the server's limit",
                    )
            return message

        async def noted(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        try:
            declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
            if declared.isdigit() and int(declared) > self._most:
                read = int(declared)
                raise HttpError(413, "the body is too large", got=f"{read:,} bytes", allowed=f"{self._most:,} bytes")
            await self._app(scope, limited, noted)
        except Exception as error:
            if status_of(error) == 500:
                log.exception("a request to %s failed", scope["path"])
            if is_begun:
                raise
            await self._told.get(scope["path"], answer_of)(error)(scope, receive, send)
