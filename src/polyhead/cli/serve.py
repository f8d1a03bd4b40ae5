"""`polyhead serve`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Annotated

import click
import msgspec

from polyhead.cli.command import option, verb
from polyhead.cli.options import File, SessionOptions, keep_compiled
from polyhead.cli.output import note
from polyhead.cli.serve_options import (
    ADMIN_KEYS,
    PREDICT_KEYS,
    Port,
    PortType,
    ThresholdType,
    access_file,
    grpc_beside,
    hosts_of,
    in_order,
    keys_of,
    read_config,
    supervise,
    tell_changes,
)
from polyhead.errors import MissingExtra
from polyhead.machine import processors
from polyhead.progress import counted
from polyhead.serve.settings import ServeSettings, read_labels
from polyhead.values import Value

if TYPE_CHECKING:
    from socket import socket

    from polyhead.serve.guard import Observer
    from polyhead.serve.keys import AccessKeys
    from polyhead.serve.service import Service
    from polyhead.serve.workers import WorkerPlace


STREAMS = 2  # batches that run at once at most, each on two processors or more


class AccessOptions(Value):
    """Who may ask the server."""

    keys: Annotated[
        File,
        option(
            "File of API keys, one a line: KEY or predict:KEY opens all routes but changes, admin:KEY those too. What "
            f"follows ' #' names the key in the log. {PREDICT_KEYS} and {ADMIN_KEYS} hold more, between commas."
        ),
    ] = None
    no_keys: Annotated[bool, option("Need no key, also where other machines reach the server.")] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        option(
            "Name by which the server may be asked without a key, beside its addresses, localhost and --host; .NAME "
            "for a name and all below it, '*' for any. Other names are refused, since a web page can point one of its "
            "own at this machine. May be repeated.",
            "--allowed-host",
            metavar="NAME",
        ),
    ] = ()


class SetOptions(SessionOptions):
    """How the sessions of one bundle or of several compute, and which tasks are cascades."""

    cascades: Annotated[
        tuple[tuple[str, float], ...],
        option(
            "Of a task that several bundles have: the first one answers where the calibrated probability of its label "
            "is this or more, the next one the other texts. `polyhead evaluate --cascade` chooses it. May be repeated.",
            "--cascade",
            type=ThresholdType(),
        ),
    ] = ()


@verb("serve")
def command(
    bundles: Annotated[tuple[str, ...], option(type=click.Path(file_okay=False), metavar="BUNDLE...")],
    *,
    host: str = option("Address to listen on; this machine alone by default.", "127.0.0.1"),
    ports: tuple[Port, ...] = option(
        "Port for all tasks, by default 8000; TASK=PORT: one of its own for a task, where requests that name no task "
        "mean this one. May be repeated. 0 takes a free port.",
        "--port",
        type=PortType(),
    ),
    how: SetOptions,
    settings: ServeSettings,
    labels: str | None = option(
        "TOML file that gives questions of a decisions API to tasks of other names, and options to labels.",
        type=click.Path(dir_okay=False),
    ),
    access: AccessOptions,
    access_log: File = option("Append a line of JSON for each request, without texts; - prints it."),
    traces: bool = option("Make OpenTelemetry spans; needs the extra otel and an SDK."),
    config: File = option(
        "TOML file with any of these options, such as inputs = 64. What the command line says goes before it.",
        is_eager=True,
        callback=read_config,
    ),
) -> None:
    """Answer all tasks of BUNDLE over HTTP; of several bundles, each task on its own bundle's encoder.

    \b
    polyhead serve cheap deep --cascade topics=0.9    texts of which cheap is not sure go to deep
    """
    try:
        from polyhead.serve.exchange import AccessLog, Tracing
        from polyhead.serve.keys import check_keys
        from polyhead.serve.run import bound
        from polyhead.serve.workers import WorkerPlace
    except ImportError as error:
        raise MissingExtra(error.name or "uvicorn", "", "the server") from None
    from polyhead.machine import share_arenas

    known, place = keys_of(access.keys), WorkerPlace.found(os.environ)
    if labels is not None:
        settings = msgspec.structs.replace(settings, labels=read_labels(labels))
    check_keys(known, host=host, admin=settings.admin, no_keys=access.no_keys)
    observers = [Tracing().exchange] if traces else []
    with ExitStack() as opened:
        ordered = in_order(ports)
        sockets = place.take() if place else [opened.enter_context(bound(host, port.number)) for port in ordered]
        places = [(port.task, socket) for port, socket in zip(ordered, sockets, strict=True)]
        if place is None and settings.workers > 1:
            return supervise(sockets, settings, address=address_of(host, sockets[0]))
        if (file := opened.enter_context(access_file(access_log))) is not None:
            log = AccessLog(file)
            opened.callback(log.close)
            observers.append(log.exchange)
        share_arenas()
        service = service_of(bundles, settings, how)
        named = (settings.default_task, *(task for task, _ in places))
        service.loaded.task_names([task for task in named if task is not None])
        hosts = hosts_of(access.allowed_hosts, host)
        return run(service, places, host=host, worker=place, keys=known, hosts=hosts, observers=observers)


def service_of(bundles: Sequence[str], settings: ServeSettings, how: SetOptions) -> Service:
    """A service of one bundle, or of a set."""
    from polyhead.engine.session import Session
    from polyhead.engine.several import SessionSet
    from polyhead.serve.service import Service
    from polyhead.serve.several import ServiceSet

    keep_compiled()
    options = {**msgspec.structs.asdict(how), "streams": max(1, min(STREAMS, processors() // 2))}
    cascades = dict(options.pop("cascades"))
    if len(bundles) == 1 and not cascades:
        return Service(Session(bundles[0], **options), settings)
    return ServiceSet(SessionSet(bundles, cascades=cascades, **options), settings)


def run(
    service: Service,
    places: Sequence[tuple[str | None, socket]],
    *,
    host: str,
    worker: WorkerPlace | None,
    keys: AccessKeys,
    hosts: Sequence[str] | None,
    observers: Sequence[Observer],
) -> None:
    """Serves until it is told to stop: at each place all tasks, or the one that requests mean there."""
    import uvloop

    from polyhead.serve.app import application
    from polyhead.serve.formats.asking import for_task
    from polyhead.serve.run import Listener, end_in_time, serve
    from polyhead.serve.workers import CountsOfAll

    tell_changes(worker)
    beside = grpc_beside(service, host, keys=keys, observers=observers, worker=worker)
    app = application(service, keys=keys, hosts=hosts, observers=observers, beside=beside)
    public = app if worker is None else CountsOfAll(app, worker)
    listeners = [
        Listener(app=public if task is None else for_task(public, task), socket=listening) for task, listening in places
    ]
    if worker is not None:
        listeners.append(Listener(app=app, socket=worker.own_socket()))

    def ready() -> None:
        if worker is not None:
            worker.begin()
            return
        for task, listening in places:
            subject = counted(len(service.tasks), "task") if task is None else f"for task '{task}'"
            note(f"{address_of(host, listening)} answers {subject}")

    settings = service.settings

    clock_of_the_end = cache(end_in_time)  # begins once, at the first signal

    def stopping() -> None:
        service.drain()
        clock_of_the_end(settings.drain_seconds)

    serving = serve(
        listeners,
        drain_seconds=settings.drain_seconds,
        ready=ready,
        limits=settings.connections,
        refused=service.metrics.refuse,
        stopping=stopping,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serving)


def address_of(host: str, listening: socket) -> str:
    """The address of a socket that listens on this host."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}"
