"""`polyhead predict`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO, Any

import click

from polyhead.cli.output import Printer

PIECE = 256  # inputs answered at a time


@click.command("predict")
@click.argument("bundle", type=click.Path(file_okay=False))
@click.argument("file", default="-")
@click.option("--tasks", help="Comma-separated tasks to answer; all that fit by default.")
@click.option("--backend", default="torch", show_default=True, help="torch or reference.")
@click.option("--precision", help="float32 or bfloat16; by default what the tasks were trained with.")
@click.option("--deterministic", is_flag=True, help="Fixed batch shapes: equal bits whatever the batch mates.")
@click.option("--output", "-o", default="-", help="Write here instead of standard output.")
def command(
    bundle: str, file: str, tasks: str | None, backend: str, precision: str | None, deterministic: bool, output: str
) -> None:
    """Answer tasks of BUNDLE for every line of FILE (or standard input), as one JSON object a line.

    A line is plain text, or JSON: a string, {"text": ...}, {"text": ..., "text_b": ...} for a pair, or
    {"tokens": [...]}. Lines that cannot be read get {"error": ...} in their place, are counted, and end the command
    with exit code 1 after all others are answered.
    """
    from polyhead.engine.session import Session

    names = [name.strip() for name in tasks.split(",") if name.strip()] if tasks is not None else None
    session = Session(bundle, backend=backend, precision=precision, deterministic=deterministic)
    session.plan(session._asked(names))
    printer = Printer(None)
    failed = done = 0
    with click.open_file(file, "rb") as source, click.open_file(output, "w", encoding="utf-8") as target:
        for piece in _pieces(source):
            failed += _answer(session, piece, names, target)
            done += len(piece)
            printer.show(f"{done:,} answered")
    printer.show("")
    if not done:
        raise click.ClickException(f"{file} holds no line to answer")
    if failed:
        click.echo(f"polyhead: {failed} of {done} lines could not be read; their place holds the reason", err=True)
        sys.exit(1)


def _answer(session: Any, lines: list[tuple[int, bytes]], names: list[str] | None, target: IO[str]) -> int:
    import msgspec

    from polyhead.errors import DataError

    rows: list[dict[str, object] | None] = []
    inputs, words, places = [], [], []
    for number, line in lines:
        try:
            given, own = _input(number, line)
        except DataError as error:
            rows.append({"line": number, "error": str(error)})
            continue
        inputs.append(given)
        words.append(own)
        places.append(len(rows))
        rows.append(None)
    for place, result in zip(places, session.predict(inputs, tasks=names, words=words), strict=True):
        rows[place] = msgspec.to_builtins(result)
    for row in rows:
        target.write(msgspec.json.encode(row).decode() + "\n")
    target.flush()
    return len(rows) - len(places)


def _input(number: int, line: bytes) -> tuple[Any, Any]:
    import json

    from polyhead.engine.session import input_of
    from polyhead.errors import BadValue

    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadValue(f"line {number} is not UTF-8", got=error.reason, do="save the file as UTF-8") from None
    if text[:1] not in ("{", '"'):
        return (text,), None
    try:
        row = json.loads(text)  # the standard library keeps lone surrogates, which are then repaired and counted
    except ValueError as error:
        if text[0] == '"':
            return (text,), None
        raise BadValue(f"line {number} is not JSON", got=error, do="fix the line, or give plain text") from None
    return input_of(row, where=f"line {number}")


def _pieces(source: IO[bytes]) -> Iterator[list[tuple[int, bytes]]]:
    piece: list[tuple[int, bytes]] = []
    for number, raw in enumerate(source, 1):
        line = raw.rstrip(b"\r\n")
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip():
            piece.append((number, line))
        if len(piece) == PIECE:
            yield piece
            piece = []
    if piece:
        yield piece
