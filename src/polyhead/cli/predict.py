"""`polyhead predict`."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from polyhead.cli.lines import Line, check_lines, line_of, pieces
from polyhead.cli.options import names_in, opened, session_options, tasks_option
from polyhead.cli.output import DASH, Printer, counted, json_shown, note, writing
from polyhead.cli.remote import Remote
from polyhead.errors import ConfigError, DataError, EmptyData

if TYPE_CHECKING:
    from polyhead.engine.session import Session

Answering = Callable[[list[Line]], list[dict[str, Any]]]
"""The fields of each line's result."""
SCORED = {".csv": ".csv", ".tsv": ".csv", ".jsonl": ".jsonl", ".parquet": ".parquet"}
"""Endings of files of rows that `polyhead score` reads, each with one that it writes."""


@click.command("predict")
@click.argument("bundle", required=False)
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), required=False)
@tasks_option("Answer these tasks only, with commas between them; by default all that fit an input.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["auto", "text", "json"]),
    default="auto",
    show_default=True,
    help="Format of a line. auto: JSON if it begins with { or is a JSON string, else text.",
)
@click.option(
    "--server",
    metavar="URL",
    help="Ask a server in place of BUNDLE, which is then left out; tasks that write texts answer where --tasks names "
    "them.",
)
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False),
    help="File with the server's key; without it, the environment's POLYHEAD_API_KEY.",
)
@session_options
@click.option(
    "--output", "-o", metavar="FILE", default=DASH, help="Write to FILE, replacing it, instead of to standard output."
)
def command(
    bundle: str | None,
    file: str | None,
    tasks: tuple[str, ...],
    form: str,
    server: str | None,
    key_file: str | None,
    backend: str | None,
    precision: str | None,
    deterministic: bool,
    output: str,
) -> None:
    """Answer tasks of BUNDLE, or of a --server, for every line of FILE (or standard input), one JSON object a line.

    A line is plain text, or JSON: a string, {"text": ...}, {"text": ..., "text_b": ...} for a pair,
    {"tokens": [...]}, {"question": ..., "context": ...} for span tasks, or {"question": ..., "options": [...]}
    (with or without a "context") for multiple choice. An "id" is copied to the answers. Lines from a pipe are
    answered as they arrive. For a table (.csv, .tsv, .parquet) or a compressed file (.gz), use `polyhead score`.

    Each answer line holds the line number, "answers" by task, and the "receipt" of what they cost. "skipped" lists
    the tasks that do not fit the input, with the reason; "failed", if present, those that could not be computed.
    Blank lines are skipped and counted. A line that cannot be read, or that no task can answer, gets the reason
    instead of answers; all other lines are answered. The command then ends with exit code 1, as it does when a task
    failed.
    """
    names = names_in(tasks)
    if server is not None:
        file = _without_bundle(bundle, file, computes=backend or precision or deterministic)
        bundle = "BUNDLE"
    elif key_file is not None:
        raise click.UsageError("--key-file goes with --server.")
    else:
        bundle, file = _folder(bundle), file or DASH
    if file != DASH:
        _check(bundle, file, form)
    with _source(file) as source, _target(output) as target:
        if server is not None:
            with contextlib.closing(Remote(server, key_file=key_file, tasks=names or None)) as remote:
                count = _answered(remote.answers, source, target, form)
        else:
            session = opened(bundle, names, backend=backend, precision=precision, deterministic=deterministic)
            count = _answered(partial(_by_session, session, names or None), source, target, form)
        if not count.lines:
            name = "standard input" if file == DASH else file
            raise EmptyData(f"{name} holds no line to answer", do="give text, one input a line")
    if count.blank:
        note(f"{counted(count.blank, 'blank line')} skipped")
    if count.failed:
        note(f"tasks failed on {counted(count.failed, 'line')}; their place holds the reason")
    if count.unread or count.unanswered:
        note(
            f"of {counted(count.lines, 'line')}, {count.unread:,} could not be read and {count.unanswered:,} "
            "fit no task; their place holds the reason"
        )
    if count.failed or count.unread or count.unanswered:
        sys.exit(1)


@dataclass
class _Count:
    """Counts of the lines so far."""

    lines: int = 0  # not blank
    blank: int = 0
    unread: int = 0
    unanswered: int = 0
    failed: int = 0  # in some task


def _answered(answer: Answering, source: IO[bytes], target: IO[bytes], form: str) -> _Count:
    printer, count = Printer(), _Count()
    for piece in pieces(source):
        rows = _rows(answer, piece.lines, form)
        target.writelines(json_shown(msgspec.json.encode(row)) + b"\n" for row in rows)
        target.flush()
        count.lines += len(rows)
        count.blank += piece.blank
        count.unread += sum("error" in row for row in rows)
        count.unanswered += sum(row.get("answers") == {} and "failed" not in row for row in rows)
        count.failed += sum("failed" in row for row in rows)
        if sys.stdout is None or not sys.stdout.isatty():  # the answers themselves are progress enough
            printer.show(f"{count.lines:,} answered")
    printer.show("")
    return count


def _rows(answer: Answering, lines: list[tuple[int, bytes]], form: str) -> list[dict[str, Any]]:
    """One plain object a line, in order."""
    read: list[Line] = []
    rows: list[dict[str, Any]] = []
    for number, raw in lines:
        rows.append({"line": number})
        try:
            line = line_of(number, raw, form)
        except DataError as error:
            rows[-1]["error"] = str(error)
            continue
        if line.id is not None:
            rows[-1]["id"] = line.id
        read.append(line)
    waiting = [row for row in rows if "error" not in row]
    for row, fields in zip(waiting, answer(read), strict=True):
        row |= {name: fields[name] for name in fields if fields[name] or name not in ("failed", "late")}
    return rows


def _by_session(session: Session, names: tuple[str, ...] | None, lines: list[Line]) -> list[dict[str, Any]]:
    from polyhead.jobs.faults import all_columns

    columns = all_columns(session, [line.input for line in lines], [line.words for line in lines], tasks=names)
    return [msgspec.to_builtins(result) for result in columns.results()]


def _folder(bundle: str | None) -> str:
    """The bundle's folder; click's own errors where there is none, or a file."""
    context = click.get_current_context()
    (argument,) = [each for each in context.command.params if each.name == "bundle"]
    if bundle is None:
        raise click.MissingParameter(ctx=context, param=argument, param_hint="'BUNDLE'")
    return str(click.Path(file_okay=False).convert(bundle, argument, context))


def _without_bundle(first: str | None, second: str | None, *, computes: object) -> str:
    """The file of a command that asks a server, which names no bundle and no way of computing."""
    if second is not None:
        raise click.UsageError("with --server, give FILE alone: the server has the bundle.")
    if computes:
        raise click.UsageError("--backend, --precision and --deterministic are the server's, not those of --server.")
    context = click.get_current_context()
    return str(click.Path(dir_okay=False, allow_dash=True).convert(first or DASH, None, context))


def _check(bundle: str, file: str, form: str) -> None:
    """Raises DataError for a file of rows, with the command that answers them."""
    name, quoted = file.lower(), shlex.quote(file)
    ending = next((end for end in SCORED if name.endswith((end, f"{end}.gz"))), None)
    if name.endswith(".gz") and ending in (None, ".parquet"):
        do = f"unpack it first: gunzip {quoted}"
    elif ending is None:
        do = "name it as what it is, and answer its rows with `polyhead score`"
    else:
        words = shlex.join(["polyhead", "score", bundle, file, f"answered{SCORED[ending]}"])
        do = f"answer its rows: `{words}`, with --text COLUMN where the texts are not in column 'text'"
    check_lines(file, form, do=do)


@contextlib.contextmanager
def _source(file: str) -> Iterator[IO[bytes]]:
    if file != DASH:
        if not Path(file).exists():
            raise DataError(f"no file at {file}", do="give the path of a file that exists")
        with open(file, "rb") as opened:
            yield opened
        return
    if sys.stdin is None:
        raise DataError("standard input is closed", do="name a file, or pipe text into the command")
    if sys.stdin.isatty():
        note("reading texts from the keyboard, one a line; Ctrl-D ends")
    yield sys.stdin.buffer


@contextlib.contextmanager
def _target(output: str) -> Iterator[IO[bytes]]:
    if output != DASH:
        with writing(output) as file:
            yield file
        return
    if sys.stdout is None:
        raise ConfigError("standard output is closed", do="give --output a file")
    yield sys.stdout.buffer
