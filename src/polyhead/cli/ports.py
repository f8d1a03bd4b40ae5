"""`--port`: where the server listens, for all tasks or for one."""

from __future__ import annotations

from typing import Any

import click

from polyhead.values import Value

PORTS = click.IntRange(0, 65535)
FOR_ALL = 8000


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


def in_order(ports: tuple[Port, ...]) -> list[Port]:
    """Those for all tasks first, 8000 where none is given, then those of single tasks."""
    for_all = [port for port in ports if port.task is None] or [Port(number=FOR_ALL)]
    return [*for_all, *(port for port in ports if port.task is not None)]
