"""Options that several verbs take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def backend_option(command: Command) -> Command:
    """Adds `--backend`."""
    return click.option(
        "--backend",
        type=click.Choice(["torch", "reference"]),
        default="torch",
        show_default=True,
        help="What computes: torch, or reference: plain numpy, slow, without torch.",
    )(command)


def names_in(given: tuple[str, ...]) -> tuple[str, ...]:
    """Task names of an option that may be repeated and may hold several between commas, each once.

    Raises click.BadParameter for an option that names none.
    """
    names = tuple(dict.fromkeys(name.strip() for one in given for name in one.split(",") if name.strip()))
    if given and not names:
        raise click.BadParameter("it names no task", param_hint="'--tasks'")
    return names


def tasks_option(said: str) -> Callable[[Command], Command]:
    """Adds `--tasks a,b`, which may be repeated; `--task` is the same."""
    return click.option("--tasks", "--task", "tasks", multiple=True, metavar="NAMES", help=said)
