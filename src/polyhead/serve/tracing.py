"""OpenTelemetry traces: a span a request, and in it one for waiting and one for the batch. Needs the extra `otel`.

Only the API is used: which SDK takes the spans, and where it sends them, is set up outside, by its own command
`opentelemetry-instrument` for example.
"""

from __future__ import annotations

from time import monotonic, time_ns
from typing import TYPE_CHECKING

from polyhead.errors import MissingExtra
from polyhead.serve.exchange import Exchange

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


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
        """Makes the spans of a request that was answered; it goes on its caller's trace where it names one."""
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
