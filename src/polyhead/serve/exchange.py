"""One HTTP request and what it asked of the service: for metrics, the access log and traces."""

from __future__ import annotations

from contextvars import ContextVar
from time import monotonic, time

from starlette.types import Scope

from polyhead.engine.tickets import Ticket

UNKNOWN_ROUTE = "unmatched"  # of paths that no route has: they would be labels without end
ARRIVED = "polyhead.arrived"  # in a scope: when the last byte of the request could be read (monotonic clock)


class Exchange:
    """A request, filled while it is answered; it holds no text and no key."""

    __slots__ = (
        "began", "cached", "cut", "inputs", "key", "method", "passes", "route", "scope", "seconds", "status", "time",
        "timings", "tokens", "trace", "waited",
    )  # fmt: skip

    def __init__(self, scope: Scope) -> None:
        self.scope, self.method, self.route = scope, str(scope["method"]), UNKNOWN_ROUTE
        self.time, self.began, self.seconds, self.status = time(), monotonic(), 0.0, 0
        self.key = self.trace = ""  # names: of the caller's key, of the trace
        self.inputs = self.tokens = self.passes = self.cut = self.cached = 0
        self.waited = 0.0  # seconds, of the call that waited longest
        self.timings: list[tuple[float, float, float]] = []  # of each call: begun, taken into a batch, answered

    @property
    def age(self) -> float:
        """Seconds since the whole request could be read."""
        return max(0.0, monotonic() - float(self.scope.get(ARRIVED, self.began)))

    def add(self, ticket: Ticket) -> None:
        """Counts a call that was answered."""
        ended = monotonic()
        taken = ended if ticket.taken is None else ticket.taken
        self.timings.append((ticket.begun, taken, ended))
        self.waited = max(self.waited, taken - ticket.begun)
        self.inputs += len(ticket.inputs)
        self.cached += ticket.cached
        for result in ticket.results:
            if result is not None:
                receipt = result.receipt
                self.tokens += receipt.tokens
                self.passes += receipt.passes
                self.cut += receipt.cut


EXCHANGE: ContextVar[Exchange | None] = ContextVar("polyhead_exchange", default=None)
"""The request that is being answered; None for calls that no request makes."""
