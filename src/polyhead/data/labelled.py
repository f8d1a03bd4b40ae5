"""Finds the columns of tasks' labels in a file: named ones, those named after tasks, or those that look so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from polyhead.data.columns import RULES, Columns, Source, check_has_reader, no_column, unread_by
from polyhead.data.guess_columns import Table, layout_of, table_of
from polyhead.data.rows import first_columns
from polyhead.errors import ConfigError
from polyhead.tasks.kinds.base import other_spelling, spelled
from polyhead.tasks.task import Task, kind_of


def sources_of(
    tasks: Mapping[str, Task],
    names: Sequence[str],
    file: str,
    columns: Columns,
    labels: Mapping[str | None, str],
    *,
    say: Callable[[str], None],
) -> dict[str, Source]:
    """The source of each task's labels: of the tasks in `names`, by default of all whose column is named or present.

    `labels` maps tasks to columns; the key None holds the column that names no task. If a task's column has another
    name, it is guessed as `init` does, and reported. Raises ConfigError if no task has a column or two look alike,
    MissingColumn if no column looks like it.
    """
    present = first_columns(file)
    chosen = list(names) or [name for name in tasks if name in labels or name in present]
    if not chosen and len(tasks) == 1:
        chosen = list(tasks)
    if not chosen:
        raise ConfigError(
            f"it is not known which task's labels {file} holds",
            got=f"columns {', '.join(present) or '(none could be read)'}",
            allowed=[*tasks],
            do="name the task: --task NAME --label COLUMN",
        )
    check_has_reader(msgspec.structs.asdict(columns), [kind_of(tasks[name]) for name in chosen])
    if None in labels and len(chosen) > 1:
        raise ConfigError("several tasks are scored", do="say --label TASK=COLUMN", argument="labels")
    if len(chosen) == 1 and present:
        (name,) = chosen
        columns, label = _guessed(tasks[name], file, present, columns, labels.get(name, labels.get(None)), say)
        return {name: _source(tasks[name], file, present, columns, label)}
    return {name: _source(tasks[name], file, present, columns, labels.get(name, labels.get(None))) for name in chosen}


def _guessed(
    task: Task, file: str, present: Sequence[str], columns: Columns, label: str | None, say: Callable[[str], None]
) -> tuple[Columns, str | None]:
    """The columns of the text and of the label, if the file has neither the named nor the expected ones."""
    kind = kind_of(task)
    usual = {task.name, *(("tags", "spans") if kind.labels_words else (kind.label_key,))}
    has_label = label is not None or bool(usual.intersection(present))
    has_text = columns.text or columns.tokens or {kind.text_column, "text_a", "tokens"}.intersection(present)
    if has_label and has_text:
        return columns, label
    table = table_of(file)
    known = label or next((name for name in usual if name in present), None)
    if known is None and "labels" in kind.uses and not kind.per_word:
        known = _column_of_labels(task, table)
    named = msgspec.structs.replace(Columns(text=columns.text, text_b=columns.text_b), **{kind.label_key: known})
    layout = layout_of(table, named, task.kind)
    read = {key: getattr(columns, key) or getattr(layout, key) for key in ("text", "text_b", "tokens", "choices")}
    if not has_label:
        label = known or layout.spans or layout.answers or layout.label
    notes = [f"texts from '{read['text']}'"] * (read["text"] is not None and not has_text)
    notes += [f"labels from '{label}'"] * (label is not None and not has_label)
    if notes:
        say(f"{task.name}: {' and '.join(notes)}, a guess; --text and --label name others")
    return msgspec.structs.replace(columns, **read), label


def _column_of_labels(task: Task, table: Table) -> str:
    """The only column whose values are all labels of the task."""
    fitting = [name for name, values in table.values.items() if values and all(_are_labels(v, task) for v in values)]
    if not fitting:
        by = "name the column of its labels with --label: none holds labels of the task alone"
        raise no_column(table.path, task.name, list(table.values), by=by)
    if len(fitting) > 1:
        raise ConfigError(
            f"several columns of {table.path} hold labels of task '{task.name}'",
            got=fitting,
            do=f"choose with {' or '.join(f'--label {name}' for name in fitting)}",
        )
    return fitting[0]


def _are_labels(value: object, task: Task) -> bool:
    if _is_label(value, task) or value == []:
        return True
    parts = value if isinstance(value, list) else str(spelled(value)).replace("|", ";").replace(",", ";").split(";")
    names = [str(spelled(part)).strip() for part in parts]
    if kind_of(task).label_is_list and not isinstance(value, list):
        names = list(filter(None, names))
    return bool(names) and all(_is_label(name, task) for name in names)


def _is_label(value: object, task: Task) -> bool:
    name = spelled(value)
    return name in task.labels or (name is not None and other_spelling(name, task.labels) in task.labels)


def _source(task: Task, file: str, present: Sequence[str], columns: Columns, label: str | None) -> Source:
    kind, named = kind_of(task), label or (task.name if task.name in present else None)
    columns = msgspec.structs.replace(columns, **unread_by(kind))  # which other tasks read
    same = {name: getattr(columns, name) for name in ("text", *RULES)}
    source = Source(path=file, **same)
    if task.pair != "none" and kind.context_column is None:
        first = columns.text or ("text_a" if "text_a" in present and "text" not in present else None)
        source = msgspec.structs.replace(source, text=first, text_b=columns.text_b or "text_b")
    elif columns.text_b:
        source = msgspec.structs.replace(source, text_b=columns.text_b)
    if "tokens" in kind.column_keys:
        tokens = columns.tokens or ("tokens" if "tokens" in present and columns.text is None else None)
        if tokens:
            return msgspec.structs.replace(source, tokens=tokens, tags=named or "tags")
        return msgspec.structs.replace(source, spans=named or "spans")
    if kind.label_key == "answers":
        return msgspec.structs.replace(source, answers=named)
    return msgspec.structs.replace(source, choices=columns.choices, label=named)
