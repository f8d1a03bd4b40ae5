"""A wire format: routes over one service. One file each, registered; more may be added from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from polyhead.registry import Registry
from polyhead.serve.http import error_response
from polyhead.serve.service import Service
from polyhead.values import Value

Handler = Callable[[Service, Request], Awaitable[Response]]
Access = Literal["open", "predict", "admin"]
"""Whose keys open a route, where the server has keys: nobody needs one, either sort will do, admin keys alone."""
TASK_QUERY = "task"  # names the task in an address: `?task=mood`


class Wire(Value, forbid_unknown_fields=False):
    """Base of what clients of other services send: fields that are not known are left unread."""


class Operation(Value, eq=False):
    """A route: its request and answer for the OpenAPI file, the keys that open it, and its handler."""

    method: str
    path: str  # as its route has it: "/v1/tasks/{name}"
    summary: str
    response: Any = None  # the type of its answer; None: nothing is said of it
    request: Any = None  # the type of its body; None: it has none
    example: Any = None  # a body; None: as `examples.example_of` makes it of the type
    access: Access = "predict"
    queries: tuple[str, ...] = ()  # names of the parameters that its address may have: "task"
    media: str = "application/json"  # of the answer; "": it has no body
    is_listed: bool = True  # whether it stands in the OpenAPI file
    statuses: Mapping[int, str] = {}  # other answers than those that every route may give
    handler: Handler | None = None  # None: the format makes the route itself


def get(path: str, handler: Handler, summary: str, **more: Any) -> Operation:
    """A route that is read."""
    return Operation(method="GET", path=path, handler=handler, summary=summary, **more)


def post(path: str, handler: Handler, summary: str, **more: Any) -> Operation:
    """A route that is sent a body."""
    return Operation(method="POST", path=path, handler=handler, summary=summary, **more)


class WireFormat:
    """The routes of one format, and the form in which its clients read errors."""

    name: ClassVar[str]
    refuses_queries: ClassVar[bool] = False  # of other names; clients of other services may send some

    def operations(self) -> Sequence[Operation]:
        """An entry for each route and method. Routes without an entry need a key, and no admin key."""
        return ()

    def routes(self, service: Service) -> Sequence[BaseRoute]:
        """All routes, which ask this service: by default those of the operations that have a handler."""
        return [
            Route(each.path, partial(each.handler, service), methods=[each.method])
            for each in self.operations()
            if each.handler is not None
        ]

    def error_response(self, error: Exception) -> Response:
        """An error as clients read it, whoever raised it on the way to one of the format's routes.

        See `polyhead.serve.http` for an error's status, facts and headers.
        """
        return error_response(error)

    @property
    def has_own_errors(self) -> bool:
        """Whether errors have another form than the server's own."""
        return type(self).error_response is not WireFormat.error_response


FORMATS: Registry[WireFormat] = Registry("wire format")
"""The wire formats that are registered, by name."""
register_format = FORMATS.register
