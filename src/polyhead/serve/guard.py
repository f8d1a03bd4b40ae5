"""Middleware before every route: paths, keys, hosts, queries, limits of bodies, errors as answers, and counts."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic

from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyhead.serve.exchange import EXCHANGE, UNKNOWN_ROUTE, Exchange
from polyhead.serve.formats.base import Access, Operation, WireFormat
from polyhead.serve.http import CONNECTION, GONE, HttpError, error_response, fields_at, status_of
from polyhead.serve.keys import ADMIN_KEY, HAS_KEYS, NO_KEYS, AccessKeys, host_in, is_host_name
from polyhead.values import Value

log = logging.getLogger(__name__)
Observer = Callable[[Exchange], None]
"""Told of every request that was answered, in the event loop; must not wait for anything."""


class Guard:
    """Refuses paths that no route has, whoever has no key, queries that are not read, and bodies that are too large.

    Where a request needs no key, it refuses what a page of another site made a browser ask: by another origin than the
    server, or by a host name that is not the server's. A fault is logged, not shown. Errors have the form of the
    format that the path belongs to.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        paths: Paths,
        body_bytes: int,
        larger: Callable[[str, str], int] = lambda method, path: 0,
        keys: AccessKeys = NO_KEYS,
        hosts: Collection[str] | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        """`larger` gives the bytes of routes that may have more, by method and path.

        `hosts` are the names by which the server may be asked without a key, ".NAME" for a name and all below it; None
        allows any.
        """
        self._app, self._paths, self._keys, self._observers = app, paths, keys, observers
        self._hosts = hosts
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
            if place is NOWHERE:
                raise no_route(scope, self._paths)
            self._admit(scope, exchange, place)
            place.check_query(exchange.method, QueryParams(scope.get("query_string", b"")))
            await self._app(scope, self._limited(scope, receive), noted)
        except Exception as error:
            if exchange.status:  # the answer had begun
                exchange.status = status_of(error)
                raise
            await self._refuse(error, place, scope, receive, noted)
        except asyncio.CancelledError:  # the server ends and waits no longer; an answer that had begun is cut off
            if not exchange.status:
                await self._refuse(_stopped(), place, scope, receive, noted)
        finally:
            scope.pop(CONNECTION, None)  # which holds the scope: a cycle for the garbage collector
            exchange.status = exchange.status or GONE  # it was stopped before it was answered
            exchange.seconds = monotonic() - exchange.began
            for observer in self._observers:
                observer(exchange)

    def _admit(self, scope: Scope, exchange: Exchange, place: PathFacts) -> None:
        """Notes who asks; raises HttpError for a request without a key, or one that a foreign page made."""
        access, headers = place.access(exchange.method), dict(scope["headers"])
        host, scope[HAS_KEYS] = headers.get(b"host", b"").decode("latin-1"), bool(self._keys)
        name = host_in(host)
        key = self._keys.opened(scope["headers"], access) if self._keys else None
        if key is not None:
            exchange.key = key.name
            if key.purpose == "admin":
                scope[ADMIN_KEY] = key.name
        elif access != "open":
            origin = headers.get(b"origin")
            if origin is not None and not self._is_own(origin.decode("latin-1"), host):
                do = "ask from a page of this server, from a program, or give it keys"
                raise HttpError(403, "a page of another site asks", got=origin.decode("latin-1")[:200], do=do)
            if self._hosts is not None and is_host_name(name) and name and not self._is_allowed(name):
                raise HttpError(
                    403,
                    "the server does not know this name as its own",
                    got=name[:200],
                    allowed=["an IP address", "localhost", *self._hosts],
                    do="ask it by its address, or start it with --allowed-host NAME",
                )

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether a page's origin is the host of the request, port included, or one of the server's public names."""
        authority = origin.partition("://")[2]
        if authority == host:
            return bool(host)
        try:
            name = host_in(authority)
        except HttpError:
            return False
        return bool(self._hosts) and is_host_name(name) and self._is_allowed(name)

    def _is_allowed(self, name: str) -> bool:
        name = name.lower()
        return any(
            name == host.removeprefix(".") or (host[:1] == "." and name.endswith(host)) for host in self._hosts or ()
        )

    async def _refuse(self, error: Exception, place: PathFacts, scope: Scope, receive: Receive, send: Send) -> None:
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


def no_route(scope: Scope, paths: Paths | None = None) -> HttpError:
    """The error for a path that no route has; names one of `paths` that differs in its slashes alone."""
    path = scope["path"][:200]
    meant = re.sub("//+", "/", path).rstrip("/")
    has_route = paths is not None and paths.of(meant) is not NOWHERE
    do = f"ask {meant}" if has_route else "see /docs for all routes"
    return HttpError(404, "there is no such route", got=f"{scope['method']} {path}", do=do)


def _stopped() -> HttpError:
    problem, do = "the server stops, and this was not done in the time that it had left", "ask again when it is back"
    return HttpError(503, problem, do=do)


def _too_large(most: int, got: str | None = None) -> HttpError:
    do = "send less at once, or raise the server's limit"
    return HttpError(413, "the body is too large", got=got, allowed=f"{most:,} bytes", do=do)


class PathFacts(Value, eq=False):
    """The facts about a path that need no call of its routes."""

    route: str  # the path with the names of its parameters
    methods: Mapping[str, tuple[Operation, WireFormat]] = {}  # what each does, and its format

    def access(self, method: str) -> Access:
        """The keys that open it; for an unsupported method, those for predict."""
        return self.methods[method][0].access if method in self.methods else "predict"

    def check_query(self, method: str, query: Iterable[str]) -> None:
        """Raises HttpError 422 for names that the route does not read, unless its format leaves them unread."""
        operation, known = self.methods.get(method, (None, None))
        if operation is None or known is None or not known.refuses_queries:
            return
        if unread := [name for name in dict.fromkeys(query) if name not in operation.queries]:
            fields = None if operation.request is None else fields_at(operation.request, ())
            do = f"name it in the body, which has {', '.join(map(repr, fields))}" if fields else "leave it out"
            problem = "the address has a query that the route does not read"
            raise HttpError(422, problem, got=unread, allowed=list(operation.queries), do=do)

    def answer_of(self, error: Exception, method: str) -> Response:
        """An error in the form of the format that has this method, else of the first one with this path."""
        _, known = self.methods.get(method) or next(iter(self.methods.values()), (None, None))
        return error_response(error) if known is None else known.error_response(error)


NOWHERE = PathFacts(route=UNKNOWN_ROUTE)


class Paths:
    """The paths of all routes."""

    def __init__(self, routes: Iterable[tuple[WireFormat, Iterable[BaseRoute]]]) -> None:
        methods: dict[str, dict[str, tuple[Operation, WireFormat]]] = {}
        patterns: dict[str, re.Pattern[str] | None] = {}
        for wire_format, format_routes in routes:
            operations = {(each.path, each.method): each for each in wire_format.operations()}
            for route in format_routes:
                if not isinstance(route, Route):
                    raise TypeError(f"wire format '{wire_format.name}' has a route that is no starlette.routing.Route")
                patterns.setdefault(route.path, route.path_regex if route.param_convertors else None)
                of_path = methods.setdefault(route.path, {})
                for method in route.methods or ():
                    unlisted = Operation(method=method, path=route.path, summary="")
                    operation = operations.get((route.path, "GET" if method == "HEAD" else method), unlisted)
                    of_path.setdefault(method, (operation, wire_format))
        places = {path: PathFacts(route=path, methods=of_path) for path, of_path in methods.items()}
        self._exact = {path: place for path, place in places.items() if patterns[path] is None}
        self._others = [(pattern, places[path]) for path, pattern in patterns.items() if pattern is not None]

    def of(self, path: str) -> PathFacts:
        """The facts about a path; `NOWHERE` if no route has it.

        The whole path must match: `$` in a pattern would allow a line break at the end.
        """
        place = self._exact.get(path)
        if place is None:
            place = next((place for pattern, place in self._others if pattern.fullmatch(path)), NOWHERE)
        return place
