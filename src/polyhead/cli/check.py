"""`polyhead check`."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from polyhead.check.run import findings_in, read_splits
from polyhead.check.split_rows import Finding, SplitRows
from polyhead.check.tasks import CheckedTasks
from polyhead.cli.command import OutputFile, option, verb
from polyhead.cli.options import Column, OptionalFolder, Output, Store, Tasks
from polyhead.cli.output import Printer, counted, note, section, text_table, write_rows
from polyhead.progress import duration
from polyhead.project.tables import Project
from polyhead.tasks.kinds import KINDS

PROJECT = "polyhead.toml"
IN_JSON = 20  # rows of a finding
COLUMNS = ("task", "kind", "level", "split", "file", "row", "label", "other", "text")  # of a file of rows


@verb("check")
def command(
    data: tuple[str, ...] = option(type=click.Path(), metavar="[PROJECT | DATA...]", default=()),
    *,
    tasks: Tasks = option("Check these tasks of PROJECT only, with commas between them."),
    kind: str | None = option("DATA: kind of answer [default: what the labels show].", type=click.Choice(list(KINDS))),
    text: Column = option("DATA: column of the text, or of the question."),
    text_b: Column = option("DATA: column of the second text, or of the context."),
    label: Column = option("DATA: column of the label."),
    separator: str | None = option("DATA: text between several labels in one cell.", metavar="TEXT"),
    encode: bool = option(
        "Also encode the texts, unless training did, and tell labels that held-out heads or neighbours doubt."
    ),
    features: Store | None = option("The same with features of this store; no text is encoded.", metavar="STORE"),
    cache: OptionalFolder = option("Folder for features [default: that of `polyhead train`; for DATA none is kept]."),
    shown: int = option("Rows to print of each.", 3, "--rows", ge=0),
    output: Output = option(
        "Write every row that was found to FILE (.csv or .jsonl).", "--output", "-o", type=OutputFile(".csv", ".jsonl")
    ),
    strict: bool = option("End with exit code 1 for hints too."),
    printer: Printer,
) -> Any:
    """Find what is wrong with the data of PROJECT (polyhead.toml), or of DATA, before anything is trained.

    \b
    polyhead check                                 the tasks of polyhead.toml
    polyhead check train.csv test.csv              files, with columns guessed as by `polyhead init`

    Faults make scores wrong or stop training: rows that cannot be read, unknown labels, one text with two labels, texts
    of test that train has too. Hints are worth a look: near-duplicates, rare labels, cut texts, splits that differ.

    Exit codes: 0 no fault, 1 a fault (with --strict a hint), 2 wrong command line.
    """
    began = time.monotonic()
    if cache is not None and (features or not encode):
        raise click.UsageError("--cache goes with --encode: nothing else makes features that are kept.")
    columns = {"kind": kind, "text": text, "text_b": text_b, "label": label, "separator": separator}
    with tempfile.TemporaryDirectory() as scratch:
        checked = _checked(data or (PROJECT,), tasks, columns)
        splits, unread = read_splits(checked.entries, checked.folder, show=printer.show)
        findings = [*checked.findings, *unread, *findings_in(splits, limit=checked.limit, show=printer.show)]
        if (encode or features) and splits:
            from polyhead.train.heads.doubted_labels import doubts_in

            place = cache or (None if checked.project else scratch)
            kept, project = Path(place).resolve() if place else None, checked.project or Project(tasks=checked.entries)
            how: dict[str, Any] = {"store": features, "cache": kept, "say": note, "show": printer.show}
            findings += doubts_in(splits, project, checked.folder, **how)
    printer.lines(_lines(findings, shown))
    rows = sum(split.reading.rows for split in splits)
    faults = sum(finding.level == "fault" for finding in findings)
    seconds = time.monotonic() - began
    printer.line(_total(splits, rows, faults, len(findings) - faults, seconds))
    if output is not None:
        printer.line(f"{counted(_written(output, findings), 'row')} in {output}")
    cut = [msgspec.structs.replace(finding, places=finding.places[:IN_JSON]) for finding in findings]
    printer.json({"findings": cut, "faults": faults, "hints": len(findings) - faults, "rows": rows, "seconds": seconds})
    if faults or (strict and findings):
        sys.exit(1)


def _written(path: str, findings: Sequence[Finding]) -> int:
    rows = [
        {"task": finding.task, "kind": finding.kind, "level": finding.level} | msgspec.structs.asdict(place)
        for finding in findings
        for place in finding.places
    ]
    write_rows(path, COLUMNS, rows)
    return len(rows)


def _checked(data: Sequence[str], only: Sequence[str], columns: dict[str, str | None]) -> CheckedTasks:
    projects = [name for name in data if name.lower().endswith(".toml")]
    if not projects:
        if only:
            raise click.UsageError("--tasks is for the tasks of PROJECT; of DATA every file, or set of splits, is one.")
        return CheckedTasks.of_files(data, columns)
    options = [f"--{name.replace('_', '-')}" for name, value in columns.items() if value is not None]
    if len(data) > 1 or options:
        raise click.UsageError(f"{projects[0]} names its files and columns; give it alone, or data files without it.")
    return CheckedTasks.of_project(projects[0], only)


def _lines(findings: Sequence[Finding], shown: int) -> list[str]:
    """A table of the findings, then each with what to do and its first rows."""
    if not findings:
        return []
    rows: list[list[object]] = [["", "kind", "task", "split", "rows", "of"]]
    for each in findings:
        rows.append([each.level, each.kind, each.task, each.split, each.rows or "-", each.of or "-"])
    lines = text_table(rows, left=4)
    for each in findings:
        where = " ".join(name for name in (each.task, each.split) if name)
        body = [f"{each.what}.", f"Do: {each.do}."]
        for place in each.places[:shown]:
            label = f" [{place.label}]" if place.label else ""
            other = f" <- {place.other}" if place.other else ""
            body.append(f"{place.split} row {place.row}:{label} {place.text}{other}".replace("  ", " "))
        if len(each.places) > shown > 0:
            body.append(f"and {len(each.places) - shown:,} more")
        lines += section(f"{each.level}: {each.kind}" + (f" ({where})" if where else ""), body)
    return [*lines, ""]


def _total(splits: Sequence[SplitRows], rows: int, faults: int, hints: int, seconds: float) -> str:
    names = {split.task.name for split in splits}
    looked = f"{counted(rows, 'row')} of {counted(len(names), 'task')} in {duration(seconds)}"
    if not faults and not hints:
        return f"nothing found in {looked}"
    return f"{counted(faults, 'fault')} and {counted(hints, 'hint')} in {looked}"
