"""Which format and route a path belongs to, and whose keys open it: asked before any route is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from polyhead.config import Value
from polyhead.serve.exchange import UNKNOWN_ROUTE
from polyhead.serve.formats.base import Access, Described, TellsErrors, WireFormat
from polyhead.serve.http import answer_of


class Place(Value, eq=False):
    """A route, as far as it is known without asking it."""

    route: str  # its path with the names of its parameters
    access: Mapping[str, Access] = {}  # by method; others need a key for predict
    format: WireFormat | None = None

    def answer_of(self, error: Exception) -> Response:
        """An error as this route's format tells it."""
        return self.format.answer_of(error) if isinstance(self.format, TellsErrors) else answer_of(error)


NOWHERE = Place(route=UNKNOWN_ROUTE)


class Paths:
    """The places of all routes."""

    def __init__(self, routes: Iterable[tuple[WireFormat, Iterable[BaseRoute]]]) -> None:
        self._exact: dict[str, Place] = {}
        self._others: list[tuple[re.Pattern[str], Place]] = []
        for wire_format, own in routes:
            described = wire_format.operations() if isinstance(wire_format, Described) else ()
            access: dict[str, dict[str, Access]] = {}
            for operation in described:
                methods = access.setdefault(operation.path, {})
                methods[operation.method] = operation.access
                if operation.method == "GET":
                    methods["HEAD"] = operation.access
            for route in own:
                if isinstance(route, Route):
                    place = Place(route=route.path, access=access.get(route.path, {}), format=wire_format)
                    if route.param_convertors:
                        self._others.append((route.path_regex, place))
                    else:
                        self._exact.setdefault(route.path, place)

    def of(self, path: str) -> Place:
        """The place of a path; `NOWHERE` where no route has it."""
        place = self._exact.get(path)
        if place is None:
            place = next((place for pattern, place in self._others if pattern.match(path)), NOWHERE)
        return place
