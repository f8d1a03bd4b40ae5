"""A gRPC server on the event loop of the HTTP server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from polyhead._version import __version__
from polyhead.engine.tickets import Ticket
from polyhead.errors import ConfigError, MissingExtra
from polyhead.serve.checks import size_of
from polyhead.serve.event_loop import off_loop
from polyhead.serve.exchange import EXCHANGE, Exchange
from polyhead.serve.formats.base import Access
from polyhead.serve.formats.models import EXTENSIONS, PLATFORM, Inference, model_named, read_inference
from polyhead.serve.grpc.messages import infer_request, infer_response, message_classes, message_in, tensor_metadata
from polyhead.serve.guard import Observer
from polyhead.serve.http import GONE, HttpError, body_of, headers_of, status_of
from polyhead.serve.keys import NO_KEYS, AccessKeys
from polyhead.serve.service import Service

# Seconds after which a connection is asked to end, as clients open another by themselves: whoever sends a request
# without end holds one of the calls that are allowed for so long, and for the seconds that a body may take.
LONGEST_CONNECTION = 300
log = logging.getLogger(__name__)
SERVICE = "inference.GRPCInferenceService"
CODES: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    413: "RESOURCE_EXHAUSTED",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    GONE: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""The code of each status; INTERNAL for any other."""
LONGEST = 2000  # characters of an error's message, which goes in a header
LATEST = 1e6  # seconds from which on a deadline is none
Method = Callable[[bytes, Any], Awaitable[bytes]]


def check_grpc() -> None:
    """Raises MissingExtra where a package of the extra is not installed."""
    try:
        import grpc.aio  # noqa: F401
    except ImportError:
        raise MissingExtra("grpcio", "grpc", "gRPC") from None
    message_classes()


@asynccontextmanager
async def grpc_listening(
    service: Service,
    host: str,
    port: int,
    *,
    keys: AccessKeys = NO_KEYS,
    observers: Sequence[Observer] = (),
    is_shared: bool = False,
    ready: Callable[[int], None] = lambda port: None,
) -> AsyncIterator[None]:
    """A context in which calls at this address are answered; port 0 takes a free one, which is passed to `ready`.

    `is_shared`: by several processes. At the end new calls are refused, and running ones are answered in the seconds
    that the service has left. Raises ConfigError for an address in use.
    """
    import grpc

    server = grpc.aio.server(
        options=_options(service, is_shared=is_shared), maximum_concurrent_rpcs=service.settings.connections.open
    )
    methods = Calls(service, keys=keys, observers=observers).methods()
    handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    try:
        number = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except RuntimeError as error:
        raise ConfigError("gRPC cannot listen on this address", got=f"{host}:{port} ({error})") from None
    await server.start()
    ready(number)
    try:
        yield
    finally:
        await server.stop(service.seconds_left())


def _options(service: Service, *, is_shared: bool) -> list[tuple[str, Any]]:
    limits, connections = service.settings.limits, service.settings.connections
    return [
        ("grpc.so_reuseport", int(is_shared)),
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", connections.header_bytes),
        ("grpc.max_connection_age_ms", 1000 * LONGEST_CONNECTION),
        ("grpc.max_connection_age_grace_ms", int(1000 * connections.body_seconds)),
    ]


class Calls:
    """The calls of one service. `observers` are called after each answered call, as for HTTP requests."""

    def __init__(self, service: Service, *, keys: AccessKeys, observers: Sequence[Observer]) -> None:
        self._service, self._keys, self._observers = service, keys, observers

    def methods(self) -> dict[str, Method]:
        """Each call by its name: from bytes of a message and a context of grpc.aio to bytes of a message."""
        calls: dict[str, tuple[Callable[[Any, Any], Awaitable[bytes]], Access]] = {
            "ServerLive": (self._live, "open"),
            "ServerReady": (self._ready, "open"),
            "ModelReady": (self._model_ready, "predict"),
            "ServerMetadata": (self._server, "predict"),
            "ModelMetadata": (self._metadata, "predict"),
            "ModelInfer": (self._infer, "predict"),
        }
        return {name: self._guarded(name, call, access) for name, (call, access) in calls.items()}

    def _guarded(self, name: str, call: Callable[[Any, Any], Awaitable[bytes]], access: Access) -> Method:
        async def answer(data: bytes, context: Any) -> bytes:
            exchange = _exchange_of(name, context)
            EXCHANGE.set(exchange)  # of this call's own asyncio task
            try:
                key = self._keys.opened(exchange.scope["headers"], access) if self._keys else None
                exchange.key = "" if key is None else key.name
                if self._service.is_draining and access != "open":
                    raise HttpError(503, "the server stops", do="ask again when it is back")
                message = await off_loop(len(data), message_in, data, f"{name}Request")
                answered = await call(message, context)
                exchange.status = 200
                return answered
            except Exception as error:
                exchange.status = status_of(error)
                if exchange.status == 500:
                    log.exception("a call of %s failed", name)
                return await _refused(error, context)
            finally:  # of a call that nobody waits for, too
                exchange.status = exchange.status or GONE
                exchange.seconds = monotonic() - exchange.began
                for observer in (*self._observers, self._service.metrics.exchange):
                    observer(exchange)

        return answer

    async def _live(self, message: Any, context: Any) -> bytes:
        return _message("ServerLiveResponse", live=True)

    async def _ready(self, message: Any, context: Any) -> bytes:
        service = self._service
        return _message("ServerReadyResponse", ready=service.is_ready and not service.is_draining)

    async def _model_ready(self, message: Any, context: Any) -> bytes:
        model_named(self._service, message.name, message.version or None)
        return _message("ModelReadyResponse", ready=self._service.is_ready)

    async def _server(self, message: Any, context: Any) -> bytes:
        return _message("ServerMetadataResponse", name=PLATFORM, version=__version__, extensions=EXTENSIONS[:1])

    async def _metadata(self, message: Any, context: Any) -> bytes:
        model = model_named(self._service, message.name, message.version or None)
        tensors = {"inputs": tensor_metadata(model.inputs), "outputs": tensor_metadata(model.outputs)}
        name, versions = model.name, model.versions
        return _message("ModelMetadataResponse", name=name, versions=versions, platform=PLATFORM, **tensors)

    async def _infer(self, message: Any, context: Any) -> bytes:
        seconds = context.time_remaining()
        deadline = seconds if seconds is not None and seconds < LATEST else None
        inference = await off_loop(message.ByteSize(), self._inference, message)
        ticket = await inference.ask(self._service, deadline=deadline)
        return await off_loop(size_of(ticket), _answered, inference, ticket)

    def _inference(self, message: Any) -> Inference:
        model = model_named(self._service, message.model_name, message.model_version or None)
        return read_inference(self._service, model, *infer_request(message))


def _answered(inference: Inference, ticket: Ticket) -> bytes:
    return infer_response(inference.facts(ticket), inference.tensors(ticket))


def _message(name: str, /, **fields: Any) -> bytes:
    return bytes(message_classes()[name](**fields).SerializeToString())


def _exchange_of(name: str, context: Any) -> Exchange:
    """The call in the form of an HTTP request; its headers are the textual metadata."""
    metadata = context.invocation_metadata() or ()
    headers = [(key.encode(), value.encode()) for key, value in metadata if isinstance(value, str)]
    exchange = Exchange({"type": "grpc", "method": "POST", "headers": headers})
    exchange.route = f"/{SERVICE}/{name}"
    return exchange


async def _refused(error: Exception, context: Any) -> bytes:
    """Ends the call with the error: it raises what grpc.aio takes as the end."""
    import grpc

    code = getattr(grpc.StatusCode, CODES.get(status_of(error), "INTERNAL"))
    more = tuple((name.lower(), value) for name, value in headers_of(error).items())
    await context.abort(code, body_of(error).message[:LONGEST], more)
    raise asyncio.CancelledError  # it is not reached
