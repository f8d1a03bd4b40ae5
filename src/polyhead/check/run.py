"""All checks of some tasks' data, without training and without encoding texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from polyhead.check import column, duplicates, label, shift, text
from polyhead.check.split_rows import TRAIN, Finding, SplitRows, by_task
from polyhead.data.guess_columns import table_of
from polyhead.data.read import read_each
from polyhead.errors import BadValue, DataError, MissingColumn
from polyhead.progress import Show
from polyhead.project.tables import DataFile, TaskEntry


def read_splits(
    entries: Sequence[TaskEntry], folder: Path, *, show: Show = lambda text: None
) -> tuple[list[SplitRows], list[Finding]]:
    """Every split of every task, and a finding for each file that its task cannot read.

    Raises ConfigError for a task whose columns give no input and label.
    """
    splits, findings = list[SplitRows](), list[Finding]()
    for entry in entries:
        task = entry.task()
        for name, file in ((TRAIN, entry.train), ("validation", entry.validation), ("test", entry.test)):
            if not isinstance(file, str | DataFile):
                continue
            source = entry.source(file, folder)
            show(f"reading {name} of task '{entry.name}'")
            try:
                splits.append(SplitRows(task, name, source, read_each(source, task)))
            except DataError as error:
                kind, message, do = "unreadable", error.what, error.do or "correct the file"
                if isinstance(error, MissingColumn):
                    allowed = error.allowed
                    has = ", ".join(map(str, allowed)) if isinstance(allowed, list | tuple) else str(allowed)
                    kind, message = "missing_column", f"{message} (it has {has})"
                findings.append(Finding(kind=kind, level="fault", what=message, do=do, task=entry.name, split=name))
    return splits, findings


def findings_in(splits: Sequence[SplitRows], *, limit: int, show: Show = lambda text: None) -> list[Finding]:
    """All findings about the rows, faults first; `limit` is the maximum number of tokens that the encoder reads."""
    findings = list[Finding]()
    for task in by_task(splits):
        show(f"checking task '{task[0].task.name}'")
        findings += _of_task(task, limit)
    findings += duplicates.of_tasks(by_task(splits))
    findings += _of_files(splits, show)
    return sorted(findings, key=lambda finding: finding.level != "fault")


def _of_task(splits: Sequence[SplitRows], limit: int) -> Iterator[Finding]:
    for split in splits:
        for of_text in text.CHECKS:
            yield from of_text(split, limit)
        for of_label in label.CHECKS:
            yield from of_label(split)
        yield from shift.small(split)
    for of_rows in duplicates.CHECKS:
        yield from of_rows(splits)
    train = next((split for split in splits if split.is_train), None)
    for split in splits:
        if train is not None and split is not train:
            yield from label.absent(train, split)
            yield from shift.groups(train, split)
            yield from shift.labels(train, split)
            yield from shift.texts(train, split)


def _of_files(splits: Sequence[SplitRows], show: Show) -> Iterator[Finding]:
    """Findings about columns of each file of training rows, with the declarations of all tasks that read it."""
    declared: dict[str, set[str]] = {}
    first: dict[str, SplitRows] = {}
    for split in splits:
        source = split.source
        names = {*(source.text_columns or (split.kind.text_column,)), source.text_b or split.kind.context_column}
        names |= {source.label, source.group, source.weight}
        names |= {source.tokens, source.tags, source.spans, source.choices, source.answers, *(source.where or {})}
        names |= {split.kind.label_key, *(source.soft if isinstance(source.soft, tuple) else (source.soft,))}
        names |= set(split.kind.column_keys)
        declared.setdefault(source.path, set()).update(name for name in names if name)
        if split.is_train and source.is_file:
            first.setdefault(source.path, split)
    for path, split in first.items():
        show(f"looking at the columns of {split.file}")
        if len(split.reading.columns) >= 3 or path.lower().endswith(".parquet"):
            with suppress(BadValue):  # a row that cannot be read is told already
                yield from column.columns(split, table_of(path), declared[path])
