"""The facts of one HTTP request, for its answer, metrics, access log and traces."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from time import monotonic, time, time_ns
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import Scope

from polyhead.engine.loaded import FactOfTasks, LoadedTasks
from polyhead.engine.receipt import Receipt
from polyhead.engine.tickets import Ticket
from polyhead.errors import MissingExtra
from polyhead.values import Value

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

UNKNOWN_ROUTE = "unmatched"  # of paths that no route has: they would be labels without end
SUMMED = ("passes", "layers", "tokens", "cut")  # of receipts
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


class Served(Value):
    """The version of a task that answered."""

    version: str  # "" of a task that lies in no bundle
    digest: str  # of its arrays; "" of a task that lies in no bundle
    before: tuple[Served, ...] | UnsetType = UNSET  # of a cascade: those that answered where they were sure


class RequestCost(Value):
    """The total cost of a request: the sum of its inputs' receipts."""

    passes: int = 0
    layers: int = 0
    tokens: int = 0
    cut: int = 0
    cached: int = 0  # inputs that were answered from the cache, with no pass
    options: RequestCost | UnsetType = UNSET  # of decisions: of options' words that were read with the text
    versions: Mapping[str, Served] | UnsetType = UNSET  # in the formats of others, whose bodies have no place for them


def versions_served(ticket: Ticket) -> Mapping[str, Served]:
    """Which version of each of its tasks answered a ticket."""
    return _VERSIONS(ticket.loaded, ticket.tasks)


def _served(loaded: LoadedTasks, name: str) -> Served:
    *before, last = [
        Served(version=home.versions.get(name, ""), digest=home.records[name].arrays if name in home.records else "")
        for home in loaded.homes(name)
    ]
    return msgspec.structs.replace(last, before=tuple(before)) if before else last


_VERSIONS = FactOfTasks(
    lambda loaded, names: {name: _served(loaded, name) for name in names if name not in loaded.hidden}
)


def total_cost(receipts: Sequence[Receipt], *, cached: int = 0) -> RequestCost:
    """The sum of these."""
    sums = {name: sum(getattr(receipt, name) for receipt in receipts) for name in SUMMED}
    return RequestCost(**sums, cached=cached)


log = logging.getLogger(__name__)
WAITING = 100_000  # lines that may wait to be written; beyond, lines are dropped and counted
PAUSE = 0.2  # seconds between two looks at what waits


class Line(Value, omit_defaults=True):
    """A request that was answered."""

    time: str  # when it began, in UTC
    route: str  # as the server has it, "/v1/tasks/{name}"; "unmatched" for any other path
    method: str
    status: int
    milliseconds: float
    inputs: int = 0
    tokens: int = 0  # of all inputs, special tokens included
    passes: int = 0  # of the encoder
    cut: int = 0  # tokens that were not read
    cached: int = 0  # inputs that were answered from the cache
    waited: float | None = None  # milliseconds until the encoder began
    key: str = ""  # the name of the caller's key
    trace: str = ""  # the id of its trace
    dropped: int = 0  # lines before this one that could not be written in time


class AccessLog:
    """Writes a line for every request to an open binary file; `close` writes what waits."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._waiting, self._dropped = file, deque[Line](), 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="polyhead-access-log", daemon=True)
        self._thread.start()

    def exchange(self, exchange: Exchange) -> None:
        """Notes a request that was answered."""
        if len(self._waiting) >= WAITING:
            self._dropped += 1
            return
        dropped, self._dropped = self._dropped, 0
        line = Line(
            time=datetime.fromtimestamp(exchange.time, UTC).isoformat(timespec="milliseconds"),
            route=exchange.route,
            method=exchange.method,
            status=exchange.status,
            milliseconds=round(exchange.seconds * 1000, 3),
            inputs=exchange.inputs,
            tokens=exchange.tokens,
            passes=exchange.passes,
            cut=exchange.cut,
            cached=exchange.cached,
            waited=round(exchange.waited * 1000, 3) or None,
            key=exchange.key,
            trace=exchange.trace,
            dropped=dropped,
        )
        self._waiting.append(line)

    def close(self) -> None:
        """Writes what waits, and ends; the file stays open."""
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        encoder = msgspec.json.Encoder()
        while True:
            is_last = self._ended.wait(PAUSE)
            lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
            try:
                if lines:
                    self._file.write(b"".join(encoder.encode(line) + b"\n" for line in lines))
                    self._file.flush()
            except (OSError, ValueError) as error:  # a full disk, a closed pipe: requests go on
                log.warning("%d lines of the access log could not be written: %s", len(lines), error)
            if is_last:
                return


class Tracing:
    """Makes the spans of a request when it has ended, so that nothing is done meanwhile."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        """`tracer` None takes the one of this process; raises MissingExtra where OpenTelemetry is not installed."""
        try:
            from opentelemetry import context, propagate, trace
        except ImportError as error:
            raise MissingExtra(error.name or "opentelemetry", "otel", "traces") from None
        self._trace, self._propagate, self._nothing = trace, propagate, context.Context()
        self._tracer = trace.get_tracer("polyhead") if tracer is None else tracer

    def exchange(self, exchange: Exchange) -> None:
        """Makes the spans of an answered request, within its caller's trace if it names one."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in exchange.scope["headers"]}
        parent, ahead = self._propagate.extract(headers, self._nothing), time_ns() - int(monotonic() * 1e9)

        def at(seconds: float) -> int:
            return ahead + int(seconds * 1e9)

        attributes: dict[str, str | int] = {
            "http.request.method": exchange.method,
            "http.route": exchange.route,
            "http.response.status_code": exchange.status,
            "polyhead.inputs": exchange.inputs,
            "polyhead.tokens": exchange.tokens,
            "polyhead.passes": exchange.passes,
        }
        span = self._tracer.start_span(
            f"{exchange.method} {exchange.route}",
            context=parent,
            kind=self._trace.SpanKind.SERVER,
            attributes=attributes,
            start_time=at(exchange.began),
        )
        if exchange.status >= 500:
            span.set_status(self._trace.StatusCode.ERROR)
        if span.is_recording():
            exchange.trace = self._trace.format_trace_id(span.get_span_context().trace_id)
            inside = self._trace.set_span_in_context(span, self._nothing)
            for begun, taken, answered in exchange.timings:
                for name, start, end in (("wait", begun, taken), ("batch", taken, answered)):
                    self._tracer.start_span(name, context=inside, start_time=at(start)).end(at(end))
        span.end(at(exchange.began + exchange.seconds))
