"""What stands before every route: keys, bodies cut off while they stream, errors as answers, and the counts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyhead.serve.exchange import EXCHANGE, Exchange
from polyhead.serve.http import CONNECTION, GONE, HttpError, status_of
from polyhead.serve.keys import NO_KEYS, Keys
from polyhead.serve.paths import Paths, Place

ADMIN = "polyhead.admin"  # in a scope: the name of the key for admin that was checked
log = logging.getLogger(__name__)
Observer = Callable[[Exchange], None]
"""Told of every request that was answered, in the event loop; must not wait for anything."""


class Guard:
    """Refuses whoever has no key, and bodies of more than so many bytes; a fault is logged, not shown.

    Errors are told in the form of the format whose path was asked.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        paths: Paths,
        body_bytes: int,
        larger: Callable[[str, str], int] = lambda method, path: 0,
        keys: Keys = NO_KEYS,
        observers: Sequence[Observer] = (),
    ) -> None:
        """`larger` gives the bytes of routes that may have more, by method and path."""
        self._app, self._paths, self._keys, self._observers = app, paths, keys, observers
        self._body_bytes, self._larger = body_bytes, larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[CONNECTION] = getattr(receive, "__self__", None)
        exchange, place = Exchange(scope), self._paths.of(scope["path"])
        exchange.route = place.route
        EXCHANGE.set(exchange)  # of this request's own asyncio task

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
            await send(message)

        try:
            if self._keys:
                key = self._keys.opened(scope["headers"], place.access(exchange.method))
                if key is not None:
                    exchange.key = key.name
                    if key.purpose == "admin":
                        scope[ADMIN] = key.name
            await self._app(scope, self._limited(scope, receive), noted)
        except Exception as error:
            if exchange.status:  # the answer had begun
                exchange.status = status_of(error)
                raise
            await self._refuse(error, place, scope, receive, noted)
        finally:
            exchange.status = exchange.status or GONE  # it was stopped before it was answered
            exchange.seconds = monotonic() - exchange.began
            for observer in self._observers:
                observer(exchange)

    async def _refuse(self, error: Exception, place: Place, scope: Scope, receive: Receive, send: Send) -> None:
        if status_of(error) == 500:
            log.exception("a request to %s failed", place.route)
        await place.answer_of(error, scope["method"])(scope, receive, send)

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        """The body, as far as it is allowed; raises HttpError 413, before any of it is read where its size is said."""
        most = max(self._body_bytes, self._larger(scope["method"], scope["path"]))
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared[:20]) > most:
            raise _too_large(most, f"{int(declared[:20]):,} bytes")
        read = 0

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > most:
                    raise _too_large(most)
            return message

        return limited


def _too_large(most: int, got: str | None = None) -> HttpError:
    do = "send less at once, or raise the server's limit"
    return HttpError(413, "the body is too large", got=got, allowed=f"{most:,} bytes", do=do)
