"""All checks of some tasks' data, without training and without encoding texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from polyhead.check import column, duplicates, label, shift, text
from polyhead.check.part import TRAIN, Finding, SplitRows, by_task
from polyhead.data.guess_columns import table_of
from polyhead.data.read import read_each
from polyhead.errors import BadValue, DataError, MissingColumn
from polyhead.progress import Show
from polyhead.project.tables import DataFile, TaskEntry


def read_parts(
    entries: Sequence[TaskEntry], folder: Path, *, show: Show = lambda text: None
) -> tuple[list[SplitRows], list[Finding]]:
    """Every split of every task, and a finding for each file that its task cannot read.

    Raises ConfigError for a task whose columns give no input and label.
    """
    parts, findings = list[SplitRows](), list[Finding]()
    for entry in entries:
        task = entry.task()
        for split, file in ((TRAIN, entry.train), ("validation", entry.validation), ("test", entry.test)):
            if not isinstance(file, str | DataFile):
                continue
            source = entry.source(file, folder)
            show(f"reading {split} of task '{entry.name}'")
            try:
                parts.append(SplitRows(task, split, source, read_each(source, task)))
            except DataError as error:
                kind, message, do = "unreadable", error.what, error.do or "correct the file"
                if isinstance(error, MissingColumn):
                    allowed = error.allowed
                    has = ", ".join(map(str, allowed)) if isinstance(allowed, list | tuple) else str(allowed)
                    kind, message = "missing_column", f"{message} (it has {has})"
                findings.append(Finding(kind=kind, level="fault", what=message, do=do, task=entry.name, split=split))
    return parts, findings


def findings_in(parts: Sequence[SplitRows], *, limit: int, show: Show = lambda text: None) -> list[Finding]:
    """All findings about the rows, faults first; `limit` is the maximum number of tokens that the encoder reads."""
    findings = list[Finding]()
    for task in by_task(parts):
        show(f"checking task '{task[0].task.name}'")
        findings += _of_task(task, limit)
    findings += duplicates.of_tasks(by_task(parts))
    findings += _of_files(parts, show)
    return sorted(findings, key=lambda finding: finding.level != "fault")


def _of_task(parts: Sequence[SplitRows], limit: int) -> Iterator[Finding]:
    for part in parts:
        for of_text in text.CHECKS:
            yield from of_text(part, limit)
        for of_label in label.CHECKS:
            yield from of_label(part)
        yield from shift.small(part)
    for of_rows in duplicates.CHECKS:
        yield from of_rows(parts)
    train = next((part for part in parts if part.is_train), None)
    for part in parts:
        if train is not None and part is not train:
            yield from label.absent(train, part)
            yield from shift.groups(train, part)
            yield from shift.labels(train, part)
            yield from shift.texts(train, part)


def _of_files(parts: Sequence[SplitRows], show: Show) -> Iterator[Finding]:
    """Findings about columns of each file of training rows, with the declarations of all tasks that read it."""
    declared: dict[str, set[str]] = {}
    first: dict[str, SplitRows] = {}
    for part in parts:
        source = part.source
        names = {*(source.text_columns or (part.kind.text_column,)), source.text_b or part.kind.context_column}
        names |= {source.label, source.group, source.weight}
        names |= {source.tokens, source.tags, source.spans, source.choices, source.answers, *(source.where or {})}
        names |= {part.kind.label_key, *(source.soft if isinstance(source.soft, tuple) else (source.soft,))}
        names |= set(part.kind.column_keys)
        declared.setdefault(source.path, set()).update(name for name in names if name)
        if part.is_train and source.is_file:
            first.setdefault(source.path, part)
    for path, part in first.items():
        show(f"looking at the columns of {part.file}")
        if len(part.reading.columns) >= 3 or path.lower().endswith(".parquet"):
            with suppress(BadValue):  # a row that cannot be read is told already
                yield from column.columns(part, table_of(path), declared[path])
