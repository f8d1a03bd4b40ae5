"""`polyhead predict --explain`: which words moved each answer, and what an attention pooler read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import click

from polyhead.cli.command import option
from polyhead.cli.options import File
from polyhead.cli.output import DASH, Printer, counted, note
from polyhead.engine.session import Session
from polyhead.errors import EmptyData
from polyhead.evaluate.explain import Explanation, Said, explained
from polyhead.store.jobs.lines import LineChunk, lines_read
from polyhead.values import Value

TOGETHER = 16  # inputs that are explained in one call: each with one more for every word
STRONGEST = 6  # words that are printed either way


class ExplainOptions(Value):
    """Whether and where answers are explained."""

    explain: Annotated[
        bool,
        option(
            "Print why, in place of the answers' JSON: the words without which an answer would be less sure, by "
            "log-odds, or another one, and what a task's attention pooler read. A text of n words is answered n + 1 "
            "times."
        ),
    ] = False
    json_to: Annotated[
        File,
        option(
            "Write JSON where lines for people would stand: the answers on a terminal, what --explain says, or what a "
            "table took. With FILE, write it to FILE.",
            "--json",
            metavar="[FILE]",
            is_flag=False,
            flag_value=DASH,
        ),
    ] = None


def check_explained(explain: bool, **others: object) -> None:
    """click's errors for options that do not go together; `others` are values of those that stop an explanation."""
    named = [f"--{name.replace('_', '-')}" for name, value in others.items() if value]
    if explain and named:
        raise click.UsageError(f"--explain is for texts and lines that BUNDLE answers, without {', '.join(named)}.")


def explain_lines(
    session: Session, names: Sequence[str], source: Iterable[LineChunk], printer: Printer, *, form: str
) -> None:
    """Prints the explanation of every line, and writes all as JSON if requested.

    Ends the process with 1 if a line could not be read or no task answers it; raises EmptyData without any line.
    """
    tasks = [name for name in session.task_names(names or None) if name in session.records]
    rows: list[dict[str, Any]] = []
    for piece in source:
        for start in range(0, len(piece.lines), TOGETHER):
            explained_rows = _explained(session, tasks, piece.lines[start : start + TOGETHER], form)
            for row in explained_rows:
                printer.lines(_lines(row))
            rows += explained_rows
            printer.show(f"{len(rows):,} explained")
    printer.show("")
    if not rows:
        raise EmptyData("there is no line to explain", do="give text, one input a line")
    printer.json(rows)
    if failed := sum(not row.get("explained") for row in rows):
        note(f"{counted(failed, 'line')} could not be read, or no task answers it")
        sys.exit(1)


def _explained(
    session: Session, tasks: Sequence[str], lines: Sequence[tuple[int, bytes]], form: str
) -> list[dict[str, Any]]:
    rows, read = lines_read(lines, form)
    results = explained(session, [line.input for line in read], tasks, words=[line.words for line in read])
    for row, explanations in zip((row for row in rows if "error" not in row), results, strict=True):
        row["explained"] = explanations
    return rows


def _lines(row: dict[str, Any]) -> list[str]:
    explanations: dict[str, Explanation] = row.get("explained", {})
    if not explanations:
        return [f"line {row['line']}: {row.get('error', 'no task answers it')}"]
    first = next(iter(explanations.values()))
    lines = [" | ".join(first.texts)]
    for name, explanation in explanations.items():
        if not explanation.said:
            lines.append(f"  {name}: nothing that words could move")
        for statement in explanation.said:
            lines += [f"  {name}: {statement.says} {statement.support:.4f}", *_moved(statement)]
        if explanation.attention is not None:
            words = sorted(explanation.attention.words, key=lambda word: -word.weight)[:STRONGEST]
            lines.append("    read: " + ", ".join(f"{word.text} {word.weight:.3f}" for word in words))
    return [*lines, ""]


def _moved(statement: Said) -> list[str]:
    """The strongest words for what is said, and against it."""
    lines = []
    for side, sign in (("for", 1), ("against", -1)):
        parts = [part for part in statement.strongest(len(statement.parts)) if part.effect * sign > 0][:STRONGEST]
        shown = [
            f"{part.text} {part.effect:+.3g}" + (f" (without it: {part.becomes})" if part.becomes else "")
            for part in parts
        ]
        if shown:
            lines.append(f"    {side}: {', '.join(shown)}")
    return lines
