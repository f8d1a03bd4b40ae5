"""Options that several commands of the studies take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from polyhead.cli.command import OutputFile
from polyhead.cli.options import DRAWN
from polyhead.cli.output import JSON_OPTION, check_writable

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """Adds `--json FILE`: the command's results as JSON; `-` for standard output, instead of text."""
    return click.option("--json", "json_to", **JSON_OPTION)(command)


def plot_option(help_text: str) -> Callable[[Command], Command]:
    """Adds `--plot FILE`."""
    return click.option("--plot", metavar="FILE", help=help_text, type=OutputFile(*DRAWN))


def check_drawable(plot: str | None) -> None:
    """Refuses, before any work, a file that cannot be written."""
    if plot is not None:
        check_writable(plot)
