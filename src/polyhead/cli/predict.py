"""`polyhead predict`."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Literal

import click
import msgspec

from polyhead.cli.answer_lines import answered_lines
from polyhead.cli.command import option, verb
from polyhead.cli.explain import ExplainOptions, check_explained, explain_lines
from polyhead.cli.options import FamiliarOptions, RequiredFile, SessionOptions, Tasks
from polyhead.cli.output import DASH, Printer, check_kept_files, counted, json_shown, note, shown_lines, writing_file
from polyhead.cli.remote import Remote, ServerOptions
from polyhead.cli.score import TableOptions, answer_rows, are_rows
from polyhead.cli.sources import TextInput, command_for, given_in, objects_as_inputs, rows_as_lines
from polyhead.data.rows import first_columns
from polyhead.data.tables.base import table_format, written_ending
from polyhead.engine.familiar import reported_keys
from polyhead.engine.inputs import task_input
from polyhead.engine.session import Session
from polyhead.errors import ConfigError, DataError, EmptyData
from polyhead.store.jobs.faults import all_columns
from polyhead.store.jobs.lines import (
    InputLine,
    LineChunk,
    check_input_lines,
    columns_of_header,
    columns_of_objects,
    lines_read,
    pieces,
)
from polyhead.text.question import texts_of
from polyhead.values import few_digits

Answering = Callable[[list[InputLine]], list[dict[str, Any]]]
"""The fields of each line's result."""
ShownAnswer = Callable[[Sequence[str], Mapping[str, Any]], bytes]
"""A line's texts and its result as they are written."""


@verb("predict")
def command(
    bundle: str | None = None,
    given: tuple[str, ...] = option(type=click.Path(allow_dash=True), metavar="[TEXT... | FILE]", default=()),
    *,
    tasks: Tasks = option("Answer these tasks only, with commas between them; by default all that fit an input."),
    table: TableOptions,
    known: FamiliarOptions,
    form: Literal["auto", "text", "json"] = option(
        "Format of a line. auto: JSON if it begins with { or is a JSON string, else text.", "auto", "--format"
    ),
    remote: ServerOptions,
    how: SessionOptions,
    output: RequiredFile = option(
        "Write to FILE, replacing it, instead of to standard output.", DASH, "--output", "-o", show_default=False
    ),
    why: ExplainOptions,
) -> Any:
    """Answer tasks of BUNDLE, or of a --server, for texts, for the lines of a file, or for the rows of a table.

    \b
    polyhead predict bundle "where is my parcel?"                    answers the text; there may be several
    polyhead predict bundle new.csv --text message -o answers.csv    answers each row, and writes the table
    polyhead predict bundle texts.txt                                answers each line; also of standard input
    polyhead predict bundle "where is my parcel?" --explain          which words moved each answer

    An argument that names a file is that file. Answers are lines for people on a terminal; in a pipe, in a file and
    with --json they are one JSON object a line. A line to answer is plain text, or JSON: a string, {"text": ...},
    {"text": ..., "text_b": ...} for a pair, {"tokens": [...]}, {"question": ..., "context": ...} for span tasks, or
    {"question": ..., "options": [...]} (with or without a "context") for multiple choice. An "id" is copied to the
    answers. Lines from a pipe are answered as they arrive.

    A table (.csv, .tsv, .jsonl, .json, each also .gz, .xlsx or .parquet) needs -o, which ends in .csv, .jsonl (each
    also .gz) or .parquet, and gets the rows with a column for each task, and "error"; of .jsonl to .jsonl, name a
    column too, such as --text. The file appears when it is complete; until then its pieces are in the hidden folder
    .OUT.pieces next to it. The same command continues an interrupted one, and writes the same bytes.

    Each JSON line holds the line number, "answers" by task, and the "receipt" of what they cost. "skipped" lists the
    tasks that do not fit the input, with the reason; "failed" those that could not be computed, "late" those that a
    --server had no time for. Blank lines are skipped and counted. A line that cannot be read, or that no task can
    answer, gets the reason instead. The command then ends with exit code 1, as when a task failed or is late; of a
    table, where no row is answered.
    """
    server, explain = remote.server, why.explain
    named = {name: value for name, value in msgspec.structs.asdict(table).items() if value}
    wanted = known.given()
    check_explained(explain, server=server, output=output != DASH, **dict.fromkeys(wanted, True), **named)
    bundle, given = _bundle_and_inputs(bundle, given, remote, how)
    inputs = given_in(given)
    if named or (server is None and form == "auto" and are_rows(inputs.file, output)):
        target, printer = _table_target(inputs, named, server, output, form=form), Printer(why.json_to)
        request = table.request(tasks, **wanted)
        return answer_rows(printer, how.open(bundle, tasks), inputs.file, target, request, fresh=table.fresh)
    if inputs.file != DASH:
        _check(bundle, inputs.file, form)
    if explain:
        return _explain(bundle, tasks, how, inputs, form, printer=Printer(why.json_to))
    output = _written(output, why.json_to)
    is_plain = output == DASH and why.json_to is None and sys.stdout is not None and sys.stdout.isatty()
    shown = _plain_line if is_plain else _json_line
    return _answer_lines(_answering(bundle, tasks, wanted, remote=remote, how=how), bundle, inputs, output, form, shown)


def _bundle_and_inputs(
    bundle: str | None, arguments: tuple[str, ...], remote: ServerOptions, how: SessionOptions
) -> tuple[str, tuple[str, ...]]:
    """The bundle, or the word for it where a server answers, and what is to be answered."""
    if remote.server is not None:
        return "BUNDLE", _without_bundle(bundle, arguments, computes=how != SessionOptions())
    if remote.key_file is not None:
        raise click.UsageError("--key-file goes with --server.")
    return _folder(bundle), arguments


def _written(output: str, json_to: str | None) -> str:
    """Where the answers go, as --output or --json says it; click's error for a file that is named as a table."""
    if json_to is not None and output != DASH:
        raise click.UsageError("--output and --json both say where the answers go: give one of them.")
    written = output if json_to in (None, DASH) else str(json_to)
    if written != DASH and table_format(written) is not None and not written.lower().endswith((".jsonl", ".json")):
        raise click.UsageError(f"answers of texts and lines are JSON Lines, not packed: name them so, not {written}.")
    return written


def _json_line(texts: Sequence[str], row: Mapping[str, Any]) -> bytes:
    return json_shown(msgspec.json.encode(few_digits(msgspec.to_builtins(row)))) + b"\n"


def _plain_line(texts: Sequence[str], row: Mapping[str, Any]) -> bytes:
    return shown_lines("\n".join([*answered_lines(texts or [f"line {row['line']}"], row), "", ""])).encode(
        sys.stdout.encoding, "backslashreplace"
    )


def _answer_lines(
    answering: contextlib.AbstractContextManager[Answering],
    bundle: str,
    inputs: TextInput,
    output: str,
    form: str,
    shown: ShownAnswer,
) -> None:
    with _source(inputs) as source, _target(output) as sink, answering as answer:
        lines = _without_table(source, bundle, inputs) if form == "auto" else source
        count = _answered(answer, lines, sink, form, shown)
        if not count.lines:
            raise EmptyData(f"{inputs.place} holds no line to answer", do="give text, one input a line")
    _note_counts(count)


def _explain(
    bundle: str, names: tuple[str, ...], how: SessionOptions, inputs: TextInput, form: str, *, printer: Printer
) -> None:
    session = how.open(bundle, names)
    with _source(inputs) as source:
        explain_lines(session, names, source, printer, form=form)


def _note_counts(count: _Count) -> None:
    """Says what was not answered, and ends with 1 where something was not."""
    if count.blank:
        note(f"{counted(count.blank, 'blank line')} skipped")
    if count.failed:
        note(f"tasks failed on {counted(count.failed, 'line')}; their place holds the reason")
    if count.late:
        note(f"the server was late for tasks on {counted(count.late, 'line')}, which name them: ask again later")
    if count.unread or count.unanswered:
        note(
            f"of {counted(count.lines, 'line')}, {count.unread:,} could not be read and {count.unanswered:,} "
            "fit no task; their place holds the reason"
        )
    if count.failed or count.late or count.unread or count.unanswered:
        sys.exit(1)


def _table_target(inputs: TextInput, named: Mapping[str, Any], server: str | None, output: str, *, form: str) -> str:
    """Where the rows of a table go; click's errors where there is no table, or no place."""
    option = f"--{next(iter(named), '').replace('_', '-')}"
    if inputs.texts or inputs.file == DASH:
        raise click.UsageError(f"{option} is for the rows of a table: give its FILE.")
    if form != "auto":
        raise click.UsageError(f"--format is for lines, {option} for the rows of a table: give one of them.")
    if server is not None:
        raise click.UsageError(f"{option} is for a table that BUNDLE answers; a --server answers texts and lines.")
    if output == DASH:
        ending = written_ending(inputs.file)
        raise click.UsageError(f"the rows of a table are written to a file: add -o answered{ending}.")
    check_kept_files(output)
    return output


def _without_table(source: Iterable[LineChunk], bundle: str, inputs: TextInput) -> Iterator[LineChunk]:
    """The pieces; DataError where the first one begins as a table does, with the command that answers its rows."""
    for number, piece in enumerate(source):
        if number == 0 and not inputs.texts:
            lines = [line for _, line in piece.lines]
            if (columns := columns_of_header(lines)) is not None:
                raise rows_as_lines(bundle, columns, inputs.place)
            if (columns := columns_of_objects(lines)) is not None:
                raise objects_as_inputs(bundle, columns, inputs.place)
        yield piece


@contextlib.contextmanager
def _answering(
    bundle: str, names: tuple[str, ...], wanted: Mapping[str, Any], *, remote: ServerOptions, how: SessionOptions
) -> Iterator[Answering]:
    if remote.server is None:
        session = how.open(bundle, names)
        if wanted:
            told = {name: session.tasks[name] for name in session.task_names(names or None)}
            familiar, limit = wanted.get("familiar", False), wanted.get("none_below")
            reported_keys(session.loaded.known, told, familiar=familiar, asked=limit)  # raises where none can
        yield partial(_by_session, session, names or None, wanted)
        return
    with contextlib.closing(Remote(remote.server, key_file=remote.key_file, tasks=names or None, **wanted)) as server:
        yield server.answers


@dataclass
class _Count:
    """Counts of the lines so far."""

    lines: int = 0  # not blank
    blank: int = 0
    unread: int = 0
    unanswered: int = 0
    failed: int = 0  # in some task
    late: int = 0  # the same: not answered in time by a server


def _answered(
    answer: Answering, source: Iterable[LineChunk], target: IO[bytes], form: str, shown: ShownAnswer
) -> _Count:
    printer, count = Printer(), _Count()
    for piece in source:
        rows, texts = _rows(answer, piece.lines, form)
        target.writelines(shown(texts.get(row["line"], ()), row) for row in rows)
        target.flush()
        count.lines += len(rows)
        count.blank += piece.blank
        count.unread += sum("error" in row for row in rows)
        count.unanswered += sum(row.get("answers") == {} and not row.keys() & {"failed", "late"} for row in rows)
        count.failed += sum("failed" in row for row in rows)
        count.late += sum("late" in row for row in rows)
        if sys.stdout is None or not sys.stdout.isatty():  # the answers themselves are progress enough
            printer.show(f"{count.lines:,} answered")
    return count


def _rows(
    answer: Answering, lines: list[tuple[int, bytes]], form: str
) -> tuple[list[dict[str, Any]], dict[int, tuple[str, ...]]]:
    """One plain object a line, in order, and the texts of those that could be read, by their number."""
    rows, read = lines_read(lines, form)
    waiting = [row for row in rows if "error" not in row]
    for row, fields in zip(waiting, answer(read), strict=True):
        fields.pop("versions", None)  # those of the bundle, the same in each line
        row |= {name: fields[name] for name in fields if fields[name] or name in ("answers", "receipt", "skipped")}
    return rows, {row["line"]: texts_of(task_input(line.input)) for row, line in zip(waiting, read, strict=True)}


def _by_session(
    session: Session, names: tuple[str, ...] | None, wanted: Mapping[str, Any], lines: list[InputLine]
) -> list[dict[str, Any]]:
    inputs, words = [line.input for line in lines], [line.words for line in lines]
    reads_vectors = session.tells_familiar(names, **wanted)
    columns = all_columns(session, inputs, words, tasks=names, familiar=reads_vectors)
    return [msgspec.to_builtins(result) for result in columns.results(**{"familiar": False, **wanted})]


def _folder(bundle: str | None) -> str:
    """The bundle's folder; click's own errors where there is none, or a file."""
    context = click.get_current_context()
    (argument,) = [each for each in context.command.params if each.name == "bundle"]
    if bundle is None:
        raise click.MissingParameter(ctx=context, param=argument, param_hint="'BUNDLE'")
    return str(click.Path(file_okay=False).convert(bundle, argument, context))


def _without_bundle(first: str | None, others: tuple[str, ...], *, computes: object) -> tuple[str, ...]:
    """The inputs of a command that asks a server, which names no bundle and no way of computing."""
    if first is not None and os.path.isdir(first):
        raise click.UsageError(f"with --server, leave {first} out: the server has the bundle.")
    if computes:
        raise click.UsageError("--backend, --precision and --deterministic are the server's, not those of --server.")
    return () if first is None else (first, *others)


def _check(bundle: str, file: str, form: str) -> None:
    """Raises DataError for a file of rows, with the command that answers them."""
    is_table = table_format(file) is not None
    if file.lower().endswith(".gz") and not is_table:
        do = f"unpack it first: gunzip {shlex.quote(file)}"
    elif not is_table:
        do = "name it as what it is, and answer its rows with `polyhead predict` and --text COLUMN"
    else:
        row_command = command_for(bundle, file, first_columns(file))
        do = f"answer its rows: `{row_command}`; --text names the column of the texts"
    check_input_lines(file, form, do=do)


@contextlib.contextmanager
def _source(inputs: TextInput) -> Iterator[Iterable[LineChunk]]:
    """The lines to answer; texts of the command line are lines by their number."""
    if inputs.texts:
        lines = [(number, os.fsencode(text)) for number, text in enumerate(inputs.texts, 1) if text.strip()]
        yield [LineChunk(lines=lines, blank=len(inputs.texts) - len(lines))]
        return
    if inputs.file != DASH:
        with open(inputs.file, "rb") as file:
            yield pieces(file)
        return
    if sys.stdin is None:
        raise DataError("standard input is closed", do="name a file, or pipe text into the command")
    if sys.stdin.isatty():
        note("reading texts from the keyboard, one a line; Ctrl-D ends")
    yield pieces(sys.stdin.buffer)


@contextlib.contextmanager
def _target(output: str) -> Iterator[IO[bytes]]:
    if output != DASH:
        with writing_file(output) as file:
            yield file
        return
    if sys.stdout is None:
        raise ConfigError("standard output is closed", do="give --output a file")
    yield sys.stdout.buffer
