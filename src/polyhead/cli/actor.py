"""Who makes a change, for its certificate: `--actor`, the environment's POLYHEAD_ACTOR, or the login name."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
VARIABLE = "POLYHEAD_ACTOR"
LONGEST = 200  # characters


def actor_option(command: Command) -> Command:
    """Adds `--actor NAME`, which comes as `actor`."""
    return click.option(
        "--actor",
        metavar="NAME",
        envvar=VARIABLE,
        callback=_checked,
        help=f"Who makes the change, for its certificate; '' names nobody. [default: {VARIABLE}, or the login name]",
    )(command)


def login_name() -> str:
    """The name that the person of this process is logged in by; "" where it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the first before Python 3.13
        return ""


def _checked(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    name = login_name() if value is None else value.strip()
    if len(name) > LONGEST or not name.isprintable():
        raise click.BadParameter(f"a name is at most {LONGEST} characters, each of which can be printed")
    return name
