"""A gRPC server on the event loop of the HTTP server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from polyhead.errors import ConfigError, MissingExtra
from polyhead.serve.grpc.calls import SERVICE, Calls
from polyhead.serve.grpc.messages import message_classes
from polyhead.serve.guard import Observer
from polyhead.serve.keys import NO_KEYS, AccessKeys
from polyhead.serve.service import Service

# Seconds after which a connection is asked to end, as clients open another by themselves: whoever sends a request
# without end holds one of the calls that are allowed for so long, and for the seconds that a body may take.
LONGEST_CONNECTION = 300


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
