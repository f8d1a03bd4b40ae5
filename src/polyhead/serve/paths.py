"""Which format and route a path belongs to, and whose keys open it: asked before any route is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from polyhead.serve.exchange import UNKNOWN_ROUTE
from polyhead.serve.formats.base import Access, Described, TellsErrors, WireFormat
from polyhead.serve.http import error_response
from polyhead.values import Value


class Method(Value, eq=False):
    """One method of a path."""

    access: Access
    format: WireFormat


class PathFacts(Value, eq=False):
    """All that is known of a path without asking its routes."""

    route: str  # the path with the names of its parameters
    methods: Mapping[str, Method] = {}

    def access(self, method: str) -> Access:
        """Whose keys open it; of a method that it does not take, those for predict."""
        known = self.methods.get(method)
        return "predict" if known is None else known.access

    def answer_of(self, error: Exception, method: str) -> Response:
        """An error as the format tells it that has this method, else the first that has the path."""
        known = self.methods.get(method) or next(iter(self.methods.values()), None)
        if known is not None and isinstance(known.format, TellsErrors):
            return known.format.told(error)
        return error_response(error)


NOWHERE = PathFacts(route=UNKNOWN_ROUTE)


class Paths:
    """The places of all routes."""

    def __init__(self, routes: Iterable[tuple[WireFormat, Iterable[BaseRoute]]]) -> None:
        methods: dict[str, dict[str, Method]] = {}
        patterns: dict[str, re.Pattern[str] | None] = {}
        for wire_format, own in routes:
            access = _described(wire_format)
            by_default: Access = "admin" if getattr(wire_format, "admin", False) else "predict"
            for route in own:
                if not isinstance(route, Route):
                    raise TypeError(f"wire format '{wire_format.name}' has a route that is no starlette.routing.Route")
                patterns.setdefault(route.path, route.path_regex if route.param_convertors else None)
                of_path = methods.setdefault(route.path, {})
                for method in route.methods or ():
                    its = access.get((route.path, "GET" if method == "HEAD" else method), by_default)
                    of_path.setdefault(method, Method(access=its, format=wire_format))
        places = {path: PathFacts(route=path, methods=of_path) for path, of_path in methods.items()}
        self._exact = {path: place for path, place in places.items() if patterns[path] is None}
        self._others = [(pattern, places[path]) for path, pattern in patterns.items() if pattern is not None]

    def of(self, path: str) -> PathFacts:
        """The place of a path; `NOWHERE` where no route has it.

        All of the path has to fit: `$` in a pattern would let a line break stand behind it.
        """
        place = self._exact.get(path)
        if place is None:
            place = next((place for pattern, place in self._others if pattern.fullmatch(path)), NOWHERE)
        return place


def _described(wire_format: WireFormat) -> dict[tuple[str, str], Access]:
    operations = wire_format.operations() if isinstance(wire_format, Described) else ()
    return {(operation.path, operation.method): operation.access for operation in operations}
