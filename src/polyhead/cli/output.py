"""What commands print: lines for people on standard output, progress on standard error, JSON where asked."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from polyhead.bundle.format import BUNDLE, TRUNK
from polyhead.errors import ConfigError
from polyhead.files import remove_leftovers, replacing
from polyhead.progress import COMMANDS, ProgressDisplay, shown
from polyhead.progress import counted as counted
from polyhead.progress import in_bytes as in_bytes
from polyhead.progress import text_table as text_table
from polyhead.values import few_digits, to_json

LARGEST_REPORT = 2**26  # bytes
DASH = "-"  # standard input or output in place of a file


JSON_OPTION: dict[str, Any] = {
    "metavar": "[FILE]",
    "is_flag": False,
    "flag_value": DASH,
    "help": "Write the results to FILE as JSON, replacing an earlier report; without FILE, or with -, write JSON to "
    "standard output instead of text.",
}


class Printer:
    """Prints lines unless JSON goes to standard output, and shows progress on standard error.

    Raises ConfigError at once when `json_to` cannot be written, not after hours of work.
    """

    def __init__(self, json_to: str | None = None) -> None:
        self.json_to = json_to
        self._is_quiet = json_to == DASH
        self._display = ProgressDisplay(sys.stderr)
        if json_to is not None and not self._is_quiet:
            check_writable(json_to)
            _check_report(Path(json_to))

    def line(self, text: str = "") -> None:
        """A line on standard output."""
        self.show("")
        if not self._is_quiet:
            click.echo(shown(text))

    def lines(self, texts: Iterable[str]) -> None:
        """Several lines."""
        for text in texts:
            self.line(text)

    def show(self, text: str) -> None:
        """A progress line on standard error, in place on a terminal and else now and then; "" clears it."""
        self._display.show(shown(text))

    def json(self, value: object) -> None:
        """Writes the value where `--json` says."""
        if self.json_to is None:
            return
        raw = to_json(few_digits(msgspec.to_builtins(value)))
        if self._is_quiet:
            click.echo(json_shown(raw).decode(), nl=False)
            return
        with writing_file(self.json_to) as file:
            file.write(raw)


def note(text: str) -> None:
    """A line on standard error for people: a warning or a reason, never a result."""
    click.echo(f"polyhead: {shown(text)}", err=True)


def check_writable(name: str) -> None:
    """Raises ConfigError unless a file of this name can be written.

    Files of a bundle, and files that the running command also reads, or writes by another option, cannot.
    """
    check_kept_files(name)
    path, do = Path(name), "name a file in a folder that you can write to"
    if path.is_dir():
        reason = "it is a folder"
    elif not path.parent.is_dir():
        reason = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "permission denied"
    else:
        return
    raise ConfigError(f"cannot write {name}", got=reason, do=do)


def check_kept_files(name: str) -> None:
    """Raises ConfigError for a file of a bundle, or one that another argument of the command names too."""
    path = Path(name)
    if bundle := _bundle_of(path):
        reason, do = f"it would be a file of the bundle {bundle}", "name a file outside of it"
    elif len(options := _given_as(path)) > 1:
        reason, do = f"it is {' and '.join(options)} of this command", "name another file"
    else:
        return
    raise ConfigError(f"cannot write {name}", got=reason, do=do)


def check_apart(written: Iterable[str | None], read: Mapping[Path, str]) -> None:
    """Raises ConfigError if a file to write is also read; `read` says by file what it is."""
    for name in written:
        for path, subject in read.items():
            if name not in (None, DASH) and _is_same(Path(str(name)), path):
                raise ConfigError(f"cannot write {name}", got=f"it is {subject}", do="name another file")


def _bundle_of(path: Path) -> Path | None:
    """The bundle that the file would lie in, if any."""
    folders = Path(os.path.realpath(path)).parents
    return next((folder for folder in folders if (folder / BUNDLE).is_file() and (folder / TRUNK).is_dir()), None)


def _given_as(path: Path) -> list[str]:
    """The arguments and options of the running command that name this file."""
    context = click.get_current_context(silent=True)
    if context is None or (path.exists() and not path.is_file()):
        return []
    options = []
    for parameter in context.command.params:
        if not (isinstance(parameter.type, click.Path) or (parameter.metavar or "").strip("[]") == "FILE"):
            continue
        value = context.params.get(parameter.name or "")
        for name in value if isinstance(value, tuple) else (value,):
            if isinstance(name, (str, Path)) and str(name) != DASH and _is_same(path, Path(name)):
                options.append(
                    parameter.opts[0]
                    if isinstance(parameter, click.Option)
                    else parameter.human_readable_name.strip("[]").removeprefix("TEXT... | ")
                )
    return options


def _is_same(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return path.samefile(other)
    return os.path.realpath(path) == os.path.realpath(other)


def _check_report(path: Path) -> None:
    """Raises ConfigError if a report would replace a file that is not JSON, so no earlier report."""
    if not path.is_file() or not path.stat().st_size:
        return
    try:
        if path.stat().st_size > LARGEST_REPORT:
            reason = "it is too large for an earlier report"
        else:
            msgspec.json.decode(path.read_bytes())
            return
    except OSError as error:
        reason = f"what it holds cannot be read: {error.strerror}"
    except (ValueError, RecursionError):  # msgspec's errors of JSON and UTF-8 are ValueErrors
        reason = "it holds something other than JSON"
    raise ConfigError(f"cannot write the report to {path}", got=reason, do="name another file, or remove this one")


FINISHED = "what was finished is kept"  # of work that does not count it


@contextmanager
def stoppable(then: str) -> Iterator[None]:
    """When the user interrupts the block, the error says what is kept, and how to go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"{str(error) or FINISHED}; {then}") from None


@contextmanager
def writing_file(name: str) -> Iterator[IO[bytes]]:
    """A file to write, which takes its name once it is whole, so that no failure loses an older file.

    What was written before a failure stays as `<name>.partial`, or as `<name>.2.partial` if that name is taken. Pipes
    and devices are written directly; of a symbolic link, the target is written. Raises ConfigError if another process
    writes the same file.
    """
    check_writable(name)
    path = Path(os.path.realpath(name))
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    if not remove_leftovers(path.parent, of=path.name):
        raise ConfigError(f"cannot write {name}", got="another process is writing it", do="wait, or name another file")
    with replacing(path) as file:
        try:
            yield file
            file.flush()
        except BaseException:
            _keep(file, path)
            raise


def write_rows(name: str, columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Writes these columns of rows as CSV or JSON Lines, as the file's name says; in CSV a list is JSON in a cell."""
    from polyhead.data.tables.delimited import record_bytes

    with writing_file(name) as file:
        if name.lower().endswith(".jsonl"):
            kept = ({column: row[column] for column in columns if column in row} for row in rows)
            file.writelines(msgspec.json.encode(row) + b"\n" for row in kept)
            return
        file.write(record_bytes(columns))
        file.writelines(record_bytes([_in_cell(row.get(column)) for column in columns]) for row in rows)


def _in_cell(value: object) -> object:
    return msgspec.json.encode(value).decode() if isinstance(value, list | dict) else value


def _keep(file: IO[bytes], path: Path) -> None:
    """Keeps what was written under a free name, and prints it."""
    with suppress(OSError):
        file.flush()
    with suppress(OSError):
        if not os.fstat(file.fileno()).st_size:
            return
        for number in itertools.count(1):
            partial = path.with_name(f"{path.name}{f'.{number}' if number > 1 else ''}.partial")
            with suppress(FileExistsError):
                os.link(file.name, partial)
                note(f"what was written before is in {partial}")
                return


def section(title: str, lines: Iterable[str]) -> list[str]:
    """A title between empty lines, and the lines indented below it."""
    return ["", title, "", *indented(lines)]


def indented(lines: Iterable[str]) -> list[str]:
    """The lines, two spaces to the right."""
    return [f"  {line}".rstrip() for line in lines]


def number(value: float | None, form: str = ".4f") -> str:
    """A number in this form of `format`; `-` for None."""
    return "-" if value is None else format(value, form)


def shown_lines(text: str) -> str:
    """`shown` of several lines."""
    return "\n".join(map(shown, text.split("\n")))


def json_shown(raw: bytes) -> bytes:
    """The same JSON, in which strings have nothing that a terminal would take for a command."""
    text = raw.decode()
    if text.isascii():  # JSON itself escapes controls below 0x20
        return raw.replace(b"\x7f", b"\\u007f")
    lines = (COMMANDS.sub(lambda match: f"\\u{ord(match[0]):04x}", line) for line in text.split("\n"))
    return "\n".join(lines).encode()
