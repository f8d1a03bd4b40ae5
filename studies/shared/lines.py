"""Lines that all papers' commands print: numbers with their spread, what a study lacks, where its rows are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from polyhead.cli.output import Printer
from studies.shared.options import json_option

if TYPE_CHECKING:
    from studies.shared.rows import Spread

Command = TypeVar("Command", bound=Callable[..., Any])
MOST_MISSING = 5
MISSING = "-"


def rows_option(default: Path) -> Callable[[Command], Command]:
    """Adds `--rows FILE`, which may be repeated: parts of one study."""
    return click.option(
        "--rows",
        "files",
        type=click.Path(exists=True, dir_okay=False),
        multiple=True,
        metavar="FILE",
        help=f"Runs of the study: a results file or JSON lines, may be repeated; by default {default}, if it is there.",
    )


def split_option(command: Command) -> Command:
    """Adds `--split`."""
    return click.option(
        "--split",
        type=click.Choice(["test", "validation"]),
        default="test",
        show_default=True,
        help="Whose scores of our study; choices are made on validation.",
    )(command)


def study_options(default: Path) -> Callable[[Command], Command]:
    """Adds `--rows`, `--split` and `--json`."""
    return lambda command: json_option(rows_option(default)(split_option(command)))


def there(files: Sequence[str], default: Path) -> tuple[str, ...]:
    """The files given, else the default one where it exists."""
    return tuple(files) or ((str(default),) if default.is_file() else ())


def no_runs(make: str, default: Path) -> str:
    """What stands in place of our numbers where there are no rows."""
    return f"At our scale: no runs here. `{make}` writes {default}; or give another file with --rows."


def needs_runs(make: str) -> click.UsageError:
    """For a plot without rows."""
    return click.UsageError(f"there are no runs to draw: give --rows, or run `{make}`")


def at_our_scale(printer: Printer, what: str, seeds: int) -> None:
    """The heading of our own numbers."""
    printer.lines(["", f"At our scale: {what}, {seeds} seed{'s' if seeds != 1 else ''}", ""])


def tell_study(printer: Printer, what: str, seeds: Collection[int], *, make: str, default: Path) -> None:
    """The heading of our own numbers, or where they would come from."""
    if seeds:
        at_our_scale(printer, what, len(seeds))
    else:
        printer.lines(["", no_runs(make, default)])


def draw_study(
    printer: Printer, plot: str | None, rows: Sequence[object], draw: Callable[[str], None], *, make: str
) -> None:
    """Lets `draw` draw into the file that was asked for; click.UsageError where there are no rows."""
    if plot is None:
        return
    if not rows:
        raise needs_runs(make)
    draw(plot)
    printer.line(f"drawn into {plot}")


def number(value: float | None, spread: float | None = None, *, signed: bool = False) -> str:
    """`63.1`, `63.1 ±0.4`, `+2.0`, `-` for none."""
    if value is None:
        return MISSING
    return f"{value:{'+' if signed else ''}.1f}" + (f" ±{spread:.1f}" if spread is not None else "")


def spread_of(spread: Spread | None, *, signed: bool = False) -> str:
    """A mean with its deviation."""
    return MISSING if spread is None else number(spread.mean, spread.deviation, signed=signed)


def missing_lines(notes: Sequence[str]) -> list[str]:
    """The runs that a study lacks: the first few, and how many more."""
    if not notes:
        return []
    more = len(notes) - MOST_MISSING
    lines = [f"  {note}" for note in notes[:MOST_MISSING]] + ([f"  and {more} more"] if more > 0 else [])
    return ["", "The study is not whole:", *lines]


def otherwise_lines(lines: Sequence[str]) -> list[str]:
    """Numbers of the paper that do not follow from its others."""
    return ["", "The paper prints some numbers otherwise:", *(f"  {line}" for line in lines)] if lines else []
