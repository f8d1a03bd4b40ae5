"""What `polyhead serve` needs beside its settings: ports, keys, hosts, access log, file of options, workers."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from polyhead.cli.output import DASH, note
from polyhead.errors import ConfigError, suggestion
from polyhead.nesting import toml_of
from polyhead.values import Value

if TYPE_CHECKING:
    import socket

    from polyhead.serve.guard import Observer
    from polyhead.serve.keys import AccessKeys
    from polyhead.serve.service import Service
    from polyhead.serve.settings import ServeSettings
    from polyhead.serve.workers import WorkerPlace

PORTS = click.IntRange(0, 65535)
FOR_ALL = 8000
PREDICT_KEYS, ADMIN_KEYS = "POLYHEAD_KEYS", "POLYHEAD_ADMIN_KEYS"


class Port(Value):
    """A port, and the task that requests to it mean where they name none."""

    number: int
    task: str | None = None


class PortType(click.ParamType[Port]):
    """`PORT`, or `TASK=PORT`."""

    name = "[task=]port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Port:
        """The port; click's own error for what is none."""
        if isinstance(value, Port):
            return value
        task, _, number = str(value).rpartition("=")
        if not (number.isascii() and number.isdigit()) or (not task and "=" in str(value)):
            self.fail(f"{value!r} is neither PORT nor TASK=PORT.", param, ctx)
        return Port(number=PORTS.convert(int(number), param, ctx), task=task or None)


class ThresholdType(click.ParamType[tuple[str, float]]):
    """`TASK=PROBABILITY`."""

    name = "task=probability"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """The task and its threshold; click's own error for what is none."""
        if isinstance(value, tuple):
            return value
        task, _, number = str(value).rpartition("=")
        try:
            return task or self.fail(f"{value!r} is not TASK=PROBABILITY.", param, ctx), float(number)
        except ValueError:
            self.fail(f"{value!r} is not TASK=PROBABILITY.", param, ctx)


def in_order(ports: tuple[Port, ...]) -> list[Port]:
    """Those for all tasks first, 8000 where none is given, then those of single tasks."""
    for_all = [port for port in ports if port.task is None] or [Port(number=FOR_ALL)]
    return [*for_all, *(port for port in ports if port.task is not None)]


def keys_of(path: str | None) -> AccessKeys:
    """The keys of this file and of the environment; raises ConfigError for what is none."""
    from polyhead.serve.keys import AccessKeys, keys_in

    keys = list[Any]()
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
            raise ConfigError("the file of keys cannot be read", got=f"{path} ({reason})") from None
        keys += keys_in(text, source=path)
        if not keys:
            raise ConfigError("the file of keys holds none", got=path, do="add a line, or leave --keys out")
    for name, purpose in ((PREDICT_KEYS, "predict"), (ADMIN_KEYS, "admin")):
        lines = os.environ.get(name, "").replace(",", "\n")
        keys += keys_in(lines, source=name, purpose=purpose, before=len(keys))  # type: ignore[arg-type]
    return AccessKeys(keys)


def hosts_of(allowed: Sequence[str], host: str) -> list[str] | None:
    """The names by which a server on this host may be asked without a key; None where it may be any."""
    return None if "*" in allowed else [name.lower().rstrip(".") for name in (host, *allowed)]


@contextmanager
def access_file(path: str | None) -> Iterator[BinaryIO | None]:
    """The open file of the access log, where there is to be one."""
    if path is None:
        yield None
    elif path == DASH:
        yield sys.stdout.buffer
    else:
        try:
            file = open(path, "ab")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise ConfigError("the access log cannot be written", got=f"{path} ({error.strerror})") from None
        with file:
            yield file


def read_config(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Takes the file's values as defaults of the options."""
    if path is None:
        return
    try:
        table = toml_of(Path(path))
    except OSError as error:
        raise ConfigError("the settings cannot be read", got=f"{path} ({error.strerror})") from None
    options = [param for param in context.command.params if isinstance(param, click.Option) and param is not parameter]
    known = {word.removeprefix("--"): param for param in options for word in param.opts}
    values = dict[str, Any]()
    for name, value in table.items():
        param = known.get(name.replace("_", "-"))
        if param is None or isinstance(value, dict):
            allowed = sorted(known)
            raise ConfigError(f"{path}: there is no option '{name}'", allowed=allowed, do=suggestion(name, allowed))
        values[str(param.name)] = [value] if param.multiple and not isinstance(value, list) else value
    context.default_map = values


def grpc_beside(
    service: Service, host: str, *, keys: AccessKeys, observers: Sequence[Observer], worker: WorkerPlace | None
) -> list[Callable[[], AbstractAsyncContextManager[None]]]:
    """What answers over gRPC, where the settings have a port for it; raises ConfigError for one that is taken."""
    from polyhead.serve.grpc.listen import check_grpc, grpc_listening
    from polyhead.serve.run import bound

    port, is_shared = service.settings.grpc_port, worker is not None
    if port is None:
        return []
    check_grpc()
    if is_shared and not port:
        raise ConfigError("several workers cannot share a port that is not named", do="give --grpc a number over 0")
    bound(host, port, shared=is_shared).close()

    def ready(number: int) -> None:
        if worker is None or worker.number == 1:
            note(f"{host}:{number} answers the Open Inference Protocol over gRPC")

    more: dict[str, Any] = {"keys": keys, "observers": observers, "is_shared": is_shared, "ready": ready}
    return [partial(grpc_listening, service, host, port, **more)]


def tell_changes(place: WorkerPlace | None) -> None:
    """Logs each change of tasks and each stop; of several workers, the first logs what all do."""
    loggers = ("changes", "run", "workers") if place is None else ("changes",) if place.number == 1 else ()
    for name in loggers:
        logging.getLogger(f"polyhead.serve.{name}").setLevel(logging.INFO)


def supervise(sockets: list[socket.socket], settings: ServeSettings, *, address: str) -> None:
    """Starts this very command once more for each worker, and keeps them running; ends the process with their code."""
    from polyhead.serve.workers import Supervisor

    tell_changes(None)
    supervisor = Supervisor(
        [sys.executable, *sys.orig_argv[1:]],
        sockets,
        workers=settings.workers,
        environment=os.environ,
        drain_seconds=settings.drain_seconds,
        ready=lambda: note(f"{address} answers by {settings.workers} workers"),
    )
    if code := asyncio.run(supervisor.run()):
        sys.exit(code)
