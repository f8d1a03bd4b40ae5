"""Who makes a change, for its certificate: `--actor`, the environment's POLYHEAD_ACTOR, or the login name."""

from __future__ import annotations

import getpass

import click

VARIABLE = "POLYHEAD_ACTOR"
LONGEST = 200  # characters


def login_name() -> str:
    """The name that the person of this process is logged in by; "" where it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the first before Python 3.13
        return ""


def checked_name(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """The name of `--actor`, by default the login name."""
    name = login_name() if value is None else value.strip()
    if len(name) > LONGEST or not name.isprintable():
        raise click.BadParameter(f"a name is at most {LONGEST} characters, each of which can be printed")
    return name
