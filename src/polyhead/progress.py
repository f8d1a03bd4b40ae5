"""What people read on the way: progress of long work, shown in place on a terminal or now and then; tables of text."""

from __future__ import annotations

import html
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

Show = Callable[[str], None]
"""Shows a line of progress."""
UNIT_SECONDS = 10.0  # that a unit of work takes, so that a stop loses little
FIRST_ROWS = 64  # of the first unit, whose time nobody knows yet
SOON, NOW_AND_THEN = 2.0, 10.0  # seconds until the first line in a file, and between two of them
# Characters that make a terminal do anything but show letters in order: controls, ends of lines, turns of direction.
COMMANDS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


STEPS = re.compile(r": ([0-9][0-9,]*) of ([0-9][0-9,]*)")  # in a line of progress


class ProgressDisplay:
    """A line of progress on a stream; None shows nothing."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream, self._width = stream, 0
        self._next = time.monotonic() + SOON

    def line(self, text: str) -> None:
        """A line that stays."""
        self.show("")
        if self._stream is not None:
            self._stream.write(text + "\n")
            self._stream.flush()

    def show(self, text: str) -> None:
        """A line that takes the place of the last one; "" clears it."""
        if self._stream is None:
            return
        if self._stream.isatty():
            cut = text[: shutil.get_terminal_size().columns - 1]
            self._stream.write("\r" + cut.ljust(self._width) + ("\r" if not cut else ""))
            self._width = len(cut)
        elif text and time.monotonic() >= self._next:
            self._stream.write(text + "\n")
            self._next = time.monotonic() + NOW_AND_THEN
        self._stream.flush()


class NotebookDisplay(ProgressDisplay):
    """One output of a notebook: warnings, a bar for the current step or else the last line; on a click all lines."""

    def __init__(self, show: Callable[[dict[str, str]], None]) -> None:
        """`show` replaces the output by this content, media type -> text."""
        super().__init__(None)
        self._show, self._lines = show, list[str]()

    def line(self, text: str) -> None:
        """A line that stays."""
        self._lines.append(text)
        self.show("")

    def show(self, text: str) -> None:
        """The current step; "" for none."""
        steps = STEPS.search(text)
        done, total = (int(number.replace(",", "")) for number in steps.groups()) if steps else (0, 0)
        bar = f'<progress value="{done}" max="{total}" style="width: 16em"></progress> ' if total else ""
        warned = [line for line in self._lines if "warning: " in line]
        current = [text] if text else [line for line in self._lines[-1:] if line not in warned]
        visible = [f"<div>{html.escape(line)}</div>" for line in warned]
        visible += [f"<div>{bar}{html.escape(line)}</div>" for line in current]
        kept = html.escape("\n".join(self._lines))
        log = f"<details><summary>{counted(len(self._lines), 'line')}</summary><pre>{kept}</pre></details>"
        page = "".join([*visible, log] if self._lines else visible)
        self._show({"text/html": page, "text/plain": "\n".join([*warned, *current])})


@contextmanager
def progress_display(stream: TextIO | None) -> Iterator[ProgressDisplay]:
    """A display on a stream, or in a notebook's output, where the process has one; the end clears the current step."""
    shell, display = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)(), ProgressDisplay(stream)
    if stream is not None and getattr(shell, "kernel", None) is not None:
        output = sys.modules["IPython.display"].display({"text/plain": ""}, raw=True, display_id=True)
        display = NotebookDisplay(lambda content: output.update(content, raw=True))
    try:
        yield display
    finally:
        display.show("")


EARLY = 3.0  # seconds in which the first of the work says too little of the rest


def progress_line(
    label: str,
    *,
    done: int,
    total: int,
    unit: str,
    seconds: float,
    before: int = 0,
    at_most: bool = False,
    share: float | None = None,
) -> str:
    """`label: 5 of 10 texts, 2 a second, about 3 s left`; of those done, `before` took no part of the seconds.

    `at_most`: the work may end before all is done. In the first seconds the time left is not said. `share` is that of
    the work which took the seconds, where units differ.
    """
    rate = (done - before) / seconds if seconds > 0 else 0.0
    parts = [f"{label}: {done:,} of {total:,} {unit}"]
    if rate:
        parts.append(pace(rate))
    if rate and seconds >= EARLY and done < total:
        left = seconds * (1 / share - 1) if share else (total - done) / rate
        parts.append(f"{'at most' if at_most else 'about'} {duration(left)} left")
    return ", ".join(parts)


def pace(rate: float, unit: str = "") -> str:
    """`87 a second`, `2.5 texts a second`, or `4.0 s each` where it is less than one a second."""
    if 0 < rate < 1:
        return f"{duration(1 / rate) if rate < 0.01 else f'{1 / rate:.1f} s'} each"
    return " ".join([f"{rate:.2g}" if rate < 10 else f"{rate:,.0f}", *([unit] if unit else []), "a second"])


def counted(number: int, what: str, *, several: str | None = None) -> str:
    """`1 task`, `6 tasks`, `2 encoder passes`."""
    return f"{number:,} {what if number == 1 else several or what + 's'}"


def in_bytes(number: int) -> str:
    """`605 KB`, `2.97 MB`: three digits, in powers of 1000."""
    size, unit = float(number), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.3g} {unit}" if unit != "B" else f"{number} B"


class UnitSize:
    """How many rows the next unit of work has, so that it ends in about `UNIT_SECONDS` however slow the machine is."""

    def __init__(self, most: int) -> None:
        """`most`: rows of a unit however fast the machine is."""
        self._most, self.rows = most, min(FIRST_ROWS, most)

    def took(self, rows: int, seconds: float) -> None:
        """Learns from a unit that is done; the next ones are at most four times as large."""
        fitting = round(rows * UNIT_SECONDS / seconds) if seconds > 0 else self._most
        self.rows = max(1, min(fitting, 4 * max(rows, self.rows), self._most))


@contextmanager
def stopped_with(kept: Callable[[], int], unit: str) -> Iterator[None]:
    """When the user stops the block, the error says how many of these `unit`, such as rows, `kept` says are kept.

    An error that says it already stays as it is.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if str(error):
            raise
        count = kept()
        raise KeyboardInterrupt(f"{unit} kept: {count:,}" if count else "nothing was finished yet") from None


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s` or `1 h 02 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def shown(text: str) -> str:
    """The text with nothing that a terminal takes for a command: names, labels and errors quote files, which may."""
    return COMMANDS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def text_table(rows: Sequence[Sequence[object]], *, left: int = 1) -> list[str]:
    """Columns two spaces apart, the first `left` to the left, the rest to the right; row 0 is the heading."""
    cells = [[shown(str(cell)) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return [_aligned(row, widths, left) for row in cells]


def _aligned(row: Sequence[str], widths: Sequence[int], left: int) -> str:
    placed = [
        cell.ljust(width) if column < left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(placed).rstrip()


def short(text: str, longest: int = 200, end: str = "...") -> str:
    """The text on one line, cut to so many characters where it is longer."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - len(end)] + end
