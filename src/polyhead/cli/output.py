"""What commands print: lines for people on standard output, progress on standard error, JSON where asked."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from polyhead.config import to_json
from polyhead.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """Adds `--json FILE`: all that the command prints, as JSON; `-` for standard output instead of the lines."""
    return click.option(
        "--json", "json_to", metavar="FILE", help="Write what is printed as JSON to FILE, or - for standard output."
    )(command)


class Printer:
    """Prints lines unless JSON goes to standard output; a progress line is replaced in place on a terminal."""

    def __init__(self, json_to: str | None) -> None:
        self._json_to = json_to
        self._is_quiet = json_to == "-"
        self._width = 0
        self._last = 0

    def line(self, text: str = "") -> None:
        """A line on standard output."""
        if not self._is_quiet:
            click.echo(text)

    def lines(self, texts: Sequence[str]) -> None:
        """Several lines."""
        for text in texts:
            self.line(text)

    def show(self, text: str) -> None:
        """A progress line on standard error, if that is a terminal; "" clears it."""
        if not sys.stderr.isatty():
            return
        cut = text[: shutil.get_terminal_size().columns - 1]
        click.echo("\r" + cut.ljust(self._width) + ("\r" if not cut else ""), nl=False, err=True)
        self._width = len(cut)

    def json(self, value: object) -> None:
        """Writes the value where `--json` says."""
        if self._json_to is None:
            return
        raw = to_json(value)
        if self._json_to == "-":
            click.echo(raw.decode(), nl=False)
            return
        try:
            Path(self._json_to).write_bytes(raw)
        except OSError as error:
            raise ConfigError(f"cannot write {self._json_to}", got=error.strerror, do="name a file that can be") from None


def table(rows: Sequence[Sequence[object]], *, left: int = 1) -> list[str]:
    """Columns two spaces apart, the first `left` ones to the left, the rest to the right; row 0 is the heading."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return [
        "  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in cells
    ]
