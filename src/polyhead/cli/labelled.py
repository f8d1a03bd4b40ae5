"""A labelled file given on the command line: which column is whose label, and what is written of wrong rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from polyhead.cli.output import check_writable, note, writing_file
from polyhead.cli.tables import columns_in_table
from polyhead.data.columns import Source, no_column
from polyhead.data.guess_table import Given, Table, layout_of, table_of
from polyhead.errors import ConfigError
from polyhead.tasks.kinds.base import other_spelling, spelled
from polyhead.tasks.task import Task, kind_of
from polyhead.text.question import Question, texts_of
from polyhead.values import Value

if TYPE_CHECKING:
    from polyhead.evaluate.scores import WrongRow

WRITTEN = (".csv", ".jsonl")
OPTIONS = {
    "--text": "Column of the text, or of the question [default: text, or question].",
    "--text-b": "Column of the second text of a pair, or of the context [default: text_b, or context].",
    "--tokens": "Column of the list of tokens, for tagging with a label for each [default: tokens, if there is one].",
    "--choices": "Column of the list of options, for multiple_choice [default: choices].",
    "--separator": "Text between several labels, tokens or options in one cell.",
}


class LabelledColumns(Value):
    """The columns that are named; None: those of the task's kind."""

    labels: tuple[str, ...] = ()  # COLUMN, or TASK=COLUMN
    text: str | None = None
    text_b: str | None = None
    tokens: str | None = None
    choices: str | None = None
    separator: str | None = None
    empty: Literal["none", "skip"] | None = None
    overlaps: Literal["longest", "skip"] | None = None

    @property
    def is_named(self) -> bool:
        """Whether anything is said of columns."""
        return self != LabelledColumns()


def labelled_options(command: click.decorators.FC) -> click.decorators.FC:
    """Adds the options that name columns; they come as fields of `LabelledColumns`."""
    command = click.option(
        "--empty",
        type=click.Choice(["none", "skip"]),
        help="What an empty label cell says: none of the labels, or that the row is not labelled. [default: none for "
        "multi_label, else skip]",
    )(command)
    command = click.option(
        "--overlaps",
        type=click.Choice(["longest", "skip"]),
        help="Labelled spans that overlap: keep the longest, or leave the row out.",
    )(command)
    for name, help_text in reversed(OPTIONS.items()):
        metavar = "TEXT" if name == "--separator" else "COLUMN"
        command = click.option(name, metavar=metavar, help=help_text)(command)
    return label_option(command)


def label_option(command: click.decorators.FC) -> click.decorators.FC:
    """Adds `--label`, which comes as `labels`."""
    return click.option(
        "--label",
        "labels",
        multiple=True,
        metavar="[TASK=]COLUMN",
        help="Column of a task's labels, tags, spans or answers. TASK may be left out if one task is scored. "
        "[default: the column of the task's name; of one task label, tags, spans or answers]",
    )(command)


def sources_of(
    tasks: Mapping[str, Task], names: Sequence[str], file: str, columns: LabelledColumns
) -> dict[str, Source]:
    """Where each task's labels are: of those in `names`, by default of all whose column is named or there.

    Columns of one task that are called otherwise are guessed as `init` does, and said. Raises ConfigError where no task
    has a column or two look alike, MissingColumn where none looks like it, click.BadParameter for a column of no task.
    """
    there = columns_in_table(file)
    labels = _labels(columns.labels, tasks, names)
    chosen = list(names) or [name for name in tasks if name in labels or name in there]
    if not chosen and len(tasks) == 1:
        chosen = list(tasks)
    if not chosen:
        raise ConfigError(
            f"it is not known which task's labels {file} holds",
            got=f"columns {', '.join(there) or '(none could be read)'}",
            allowed=[*tasks],
            do="name the task: --task NAME --label COLUMN",
        )
    if None in labels and len(chosen) > 1:
        raise click.BadParameter("several tasks are scored: say --label TASK=COLUMN", param_hint="'--label'")
    if len(chosen) == 1 and there:
        (name,) = chosen
        columns, label = _guessed(tasks[name], file, there, columns, labels.get(name, labels.get(None)))
        return {name: _source(tasks[name], file, there, columns, label)}
    return {name: _source(tasks[name], file, there, columns, labels.get(name, labels.get(None))) for name in chosen}


def _guessed(
    task: Task, file: str, there: Sequence[str], columns: LabelledColumns, label: str | None
) -> tuple[LabelledColumns, str | None]:
    """The columns of the text and of the label, where the file has none that is named or called as expected."""
    kind = kind_of(task)
    usual = {task.name, *(("tags", "spans") if kind.labels_words else (kind.label_key,))}
    has_label = label is not None or bool(usual.intersection(there))
    has_text = columns.text or columns.tokens or {kind.text_column, "text_a", "tokens"}.intersection(there)
    if has_label and has_text:
        return columns, label
    table = table_of(file)
    known = label or next((name for name in usual if name in there), None)
    if known is None and "labels" in kind.uses and not kind.per_word:
        known = _column_of_labels(task, table)
    given = Given(kind=task.kind, text=columns.text, text_b=columns.text_b)
    layout = layout_of(table, msgspec.structs.replace(given, **({kind.label_key: known} if known else {})))
    own = {key: getattr(columns, key) or getattr(layout, key) for key in ("text", "text_b", "tokens", "choices")}
    if not has_label:
        label = known or layout.spans or layout.answers or layout.label
    said = [f"texts from '{own['text']}'"] * (own["text"] is not None and not has_text)
    said += [f"labels from '{label}'"] * (label is not None and not has_label)
    if said:
        note(f"{task.name}: {' and '.join(said)}, as it looks")
    return msgspec.structs.replace(columns, **own), label


def _column_of_labels(task: Task, table: Table) -> str:
    """The one column that holds labels of the task and nothing else."""
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
    several = value if isinstance(value, list) else str(spelled(value)).replace("|", ";").replace(",", ";").split(";")
    return _is_label(value, task) or all(_is_label(str(spelled(part)).strip(), task) for part in several)


def _is_label(value: object, task: Task) -> bool:
    name = spelled(value)
    return name in task.labels or (name is not None and other_spelling(name) in task.labels)


def _labels(given: Sequence[str], tasks: Mapping[str, Task], names: Sequence[str]) -> dict[str | None, str]:
    """Columns by task; by None the one that names no task."""
    labels: dict[str | None, str] = {}
    for value in given:
        task, mark, column = value.partition("=")
        is_named = bool(mark) and task in (names or tasks)
        labels[task if is_named else None] = column if is_named else value
    return labels


def _source(task: Task, file: str, there: Sequence[str], columns: LabelledColumns, label: str | None) -> Source:
    kind, named = kind_of(task), label or (task.name if task.name in there else None)
    source = Source(path=file, separator=columns.separator, empty=columns.empty, text=columns.text)
    if task.pair != "none" and kind.context_column is None:
        first = columns.text or ("text_a" if "text_a" in there and "text" not in there else None)
        source = msgspec.structs.replace(source, text=first, text_b=columns.text_b or "text_b")
    elif columns.text_b:
        source = msgspec.structs.replace(source, text_b=columns.text_b)
    if "tokens" in kind.column_keys:
        tokens = columns.tokens or ("tokens" if "tokens" in there and columns.text is None else None)
        if tokens:
            return msgspec.structs.replace(source, tokens=tokens, tags=named or "tags")
        return msgspec.structs.replace(source, spans=named or "spans", overlaps=columns.overlaps)
    if kind.label_key == "answers":
        return msgspec.structs.replace(source, answers=named)
    return msgspec.structs.replace(source, choices=columns.choices, label=named or "label")


def check_errors_file(path: str | None) -> None:
    """Raises, before any work, for a file that wrong rows cannot be written to."""
    if path is None:
        return
    if not path.lower().endswith(WRITTEN):
        raise click.BadParameter(f"it ends in {' or '.join(WRITTEN)}", param_hint="'--errors'")
    check_writable(path)


def write_errors(path: str, errors: Iterable[WrongRow]) -> None:
    """Writes wrong rows as CSV or JSON Lines, as the file's name says."""
    rows = [_row(error) for error in errors]
    with writing_file(path) as file:
        if path.lower().endswith(".jsonl"):
            file.writelines(msgspec.json.encode(row) + b"\n" for row in rows)
            return
        names = ["task", "row", *dict.fromkeys(key for row in rows for key in row if key not in _FACTS), *_FACTS[2:]]
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
        file.write(text.getvalue().encode())


_FACTS = ("task", "row", "truth", "answer", "score")


def _row(error: WrongRow) -> dict[str, Any]:
    given: dict[str, Any]
    if isinstance(error.input, Question):
        given = {"question": error.input.text, "context": error.input.context, "options": list(error.input.options)}
    else:
        given = dict(zip(("text", "text_b"), texts_of(error.input), strict=False))
    return {
        "task": error.task,
        "row": error.row,
        **given,
        "truth": error.truth,
        "answer": error.answer,
        "score": error.score,
    }


def _cell(value: object) -> object:
    """Nothing for null, JSON for lists; other values as they are."""
    if value is None:
        return ""
    return msgspec.json.encode(value).decode() if isinstance(value, list | dict) else value
