"""The option `--plot`, and what its file may be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from polyhead.cli.output import check_writable

Command = TypeVar("Command", bound=Callable[..., Any])
DRAWN = (".svg", ".png", ".pdf")


def plot_option(help_text: str) -> Callable[[Command], Command]:
    """Adds `--plot FILE`."""
    return click.option("--plot", metavar="FILE", help=help_text)


def check_drawable(plot: str | None) -> None:
    """Refuses, before any work, a file that cannot be drawn into: click.BadParameter or ConfigError."""
    if plot is None:
        return
    if Path(plot).suffix not in DRAWN:
        raise click.BadParameter(f"a figure ends in {' or '.join(DRAWN)}", param_hint="'--plot'")
    check_writable(plot)
