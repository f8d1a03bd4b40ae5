"""Labelled rows in memory in the form that a task reads, and the project entry for them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from itertools import repeat
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from polyhead.api.containers import Frame, every_input_of, frame_of, values_of_rows
from polyhead.data.guess_kind import check_named, is_blank, kind_of_labels, plain, separator_between, with_plain_numbers
from polyhead.data.tables.memory import ADDRESS, in_memory
from polyhead.data.tables.written import json_bytes
from polyhead.engine.inputs import IN_WORDS, InputType, Passage, input_type_of, reads_in_words, types_read
from polyhead.errors import BadValue, BundleError, ConfigError, PolyheadError, suggestion
from polyhead.project.declare import InitOptions, declare
from polyhead.project.tables import Project
from polyhead.tasks.kinds import KINDS
from polyhead.tasks.kinds.base import spelled
from polyhead.tasks.task import Kind, Task
from polyhead.text.question import Question

SPANS, TOKENS, TAGS = "spans", "tokens", "tags"  # columns of labelled words
PAIR, GROUP, WEIGHT = "text_b", "group", "weight"
SPLITS = ("train", "validation", "test")
Record = dict[str, Any]


class LabelledTexts(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs and the label of each."""

    inputs: list[Any]
    labels: list[Any]
    name: str = ""  # name of the labels' column
    of_training: dict[str, list[Any]] = {}  # groups and weights of the rows, if given

    @classmethod
    def of(
        cls,
        texts: object,
        labels: object,
        *,
        text: str | Sequence[str],
        text_b: str | None,
        subject: str,
        groups: object = None,
        weights: object = None,
    ) -> LabelledTexts:
        """From lists, or from a data frame and names of its columns. Raises BadValue if their numbers differ."""
        inputs, table = every_input_of(texts, text=text, text_b=text_b)
        if table is not None and isinstance(labels, str):
            rows = table.column(labels)
        elif labels is None or isinstance(labels, str):
            named = "the name of the column that holds them" if frame_of(texts) is not None else "a list of labels"
            do = "give (texts, labels), or (frame, 'COLUMN')"
            raise BadValue(f"{subject} has no labels", got=labels, allowed=named, do=do)
        else:
            rows = values_of_rows(labels, "labels")
        if len(rows) != len(inputs):
            raise BadValue(f"{subject} has not one label for each text", got=f"{len(inputs)} texts, {len(rows)} labels")
        name = labels if isinstance(labels, str) else getattr(labels, "name", None)
        of_training = {
            column: [None if value is None else convert(value) for value in _cells(source, table, len(inputs), column)]
            for column, source, convert in ((GROUP, groups, str), (WEIGHT, weights, plain))
            if source is not None
        }
        return cls(inputs=inputs, labels=rows, name=name if isinstance(name, str) else "", of_training=of_training)


def _cells(source: object, table: Frame | None, count: int, column: str) -> list[Any]:
    """The groups or weights of the rows, from a list or a column of their data frame."""
    is_column = table is not None and isinstance(source, str)
    values = table.column(source) if is_column else values_of_rows(source, f"{column}s")  # type: ignore[union-attr,arg-type]
    if len(values) != count:
        raise BadValue(f"there is not one of {column}s for each text", got=f"{count} texts, {len(values)} {column}s")
    return values


def kind_of_inputs(inputs: Sequence[Any]) -> tuple[str, str] | None:
    """The kind that alone reads inputs of this type, and the reason; None if labels must decide."""
    if not isinstance(inputs[0], Question | Passage):
        return None
    input_type = input_type_of(inputs[0])
    name = next(kind.name for kind in KINDS.values() if input_type in types_read(kind, over_pairs="pair" in kind.uses))
    return name, f"the first input is {IN_WORDS[input_type]}"


def kind_of_rows(rows: LabelledTexts, *, say: Callable[[str], None], task: str) -> str:
    """The kind that fits inputs and labels, which is reported; raises ConfigError if several fit equally well."""
    known = kind_of_inputs(rows.inputs)
    if known is not None:
        say(f"{task}: kind {known[0]}, since {known[1]}")
        return known[0]
    weights = rows.of_training.get(WEIGHT, repeat(1))
    labels = [label for label, weight in zip(rows.labels, weights, strict=False) if weight != 0]
    guess = kind_of_labels(labels or rows.labels, name=rows.name)  # where none counts, training says so
    if guess.rivals:
        kinds = [guess.kind, *guess.rivals]
        raise ConfigError(
            f"the labels of task '{task}' can be read in {len(kinds)} ways: {guess.why}",
            allowed=" or ".join(f"kind='{kind}'" for kind in kinds),
            do="give one of them",
        )
    say(f"{task}: kind {guess.kind}, since {guess.why}; `kind=` says otherwise")
    return guess.kind


def with_lists(
    rows: LabelledTexts,
    kind: Kind,
    *,
    known: Collection[str] = (),
    separator: str | None = None,
    empty: str | None = None,
) -> LabelledTexts:
    """The rows with lists instead of strings of several labels, if the kind takes several labels or texts per row.

    With the task's labels `known`, the separator must leave only these. `empty` says what an empty string means. Raises
    BadValue for a string that cannot be split this way.
    """
    if kind.empty_is_none:
        check_named(label for label in map(plain, rows.labels) if label is not None)
    cells = [label for label in rows.labels if isinstance(label, str) and label.strip()]
    if not cells or not (kind.label_is_list or separator):
        return rows
    if not kind.label_is_list:
        parsed = [kind.parse(label, separator) if isinstance(label, str) else label for label in rows.labels]
        return msgspec.structs.replace(rows, labels=parsed)
    mark = separator or (separator_between(cells, known) if kind.empty_is_none else None)
    labels: list[Any] = []
    place = f"column '{rows.name}', row " if rows.name else "row "
    for number, label in enumerate(rows.labels):
        if kind.empty_is_none and isinstance(label, str) and not label.strip():
            labels.append(_of_empty(empty, number, where=f"{place}{number}"))
            continue
        parts: Any = kind.parse(label, mark) if isinstance(label, str) and label.strip() else label
        parts = [parts] if isinstance(parts, str) and parts in known else parts
        if isinstance(parts, str):
            raise BadValue(
                f"{place}{number}: kind '{kind.name}' takes a list of labels",
                got=label,
                allowed="a list, empty where no label applies, or None where nobody labelled the row",
                do="give lists, or say what stands between labels, such as separator='/'",
                row=number,
            )
        labels.append([part for part in parts if part] if isinstance(label, str) else label)
    return msgspec.structs.replace(rows, labels=labels)


def _of_empty(empty: str | None, row: int, *, where: str) -> list[str] | None:
    if empty is None:
        raise BadValue(
            f"{where}: an empty label may say two things",
            allowed="empty='none' (none of the labels applies) or empty='skip' (nobody labelled the row)",
            do="give one of them, or lists: [] where no label applies, None where nobody labelled the row",
            row=row,
        )
    return [] if empty == "none" else None


def entry_of(
    task: str,
    kind: Kind,
    rows: LabelledTexts,
    address: str,
    *,
    live: Task | None,
    classes: Sequence[str] | None,
    overlaps: Any = None,
) -> dict[str, Any]:
    """The `[[tasks]]` table for rows at this address: labels of the live version of this kind first, then new ones.

    `classes` are all labels in order, if given.
    """
    columns = columns_for(kind, rows.inputs)
    named: dict[str, Any] = {key: columns.get(key) for key in ("tokens", "spans", "text_b")} | {"overlaps": overlaps}
    options = InitOptions(data=address, kind=kind.name, name=task, label=columns.get("tags"), **named)
    entry = declare(options, FilePath()).entry
    entry.pop("pair", None)  # equal to a project file's default
    entry |= {column: column for column in rows.of_training}
    if classes is not None:
        entry["labels"] = [spelled(name) or name for name in values_of_rows(classes, "classes")]
    elif live is not None and live.labels and live.kind == kind.name:
        entry["labels"] = [*live.labels, *(label for label in entry["labels"] if label not in live.labels)]
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


@contextmanager
def in_python(before: Mapping[str, int] = MappingProxyType({})) -> Iterator[None]:
    """A context in which errors name the call's arguments and rows, numbered from 0 after earlier ones.

    `before` are the numbers of these, by the address of the rows.
    """

    def named(match: re.Match[str]) -> str:
        number = int(match[2])
        return f"row {number}" if number >= 0 else f"row {number + before[match[1]]} of those before"

    try:
        yield
    except PolyheadError as error:
        if "lost" in error.facts:
            do = "learn from the earlier rows too (add=True), or let the labels go (allow_lost_labels=True)"
            raise BundleError(error.what, got=error.got, do=do, **error.facts) from None
        if ADDRESS not in error.what:
            raise
        problem = re.sub(rf"({ADDRESS}\d+) row (-?\d+)", named, error.what)
        problem = re.sub(rf"{ADDRESS}\d+", "these rows", problem)
        allowed, do = map(_in_arguments, (error.allowed, error.do))
        facts = {name: value for name, value in error.facts.items() if name != "source"}
        raised = type(error).__new__(type(error))
        PolyheadError.__init__(raised, problem, got=error.got, allowed=allowed, do=do, **facts)
        raise raised from None


def _in_arguments(words: Any) -> Any:
    """A sentence with arguments instead of command-line options: `--empty none` is `empty='none'`."""
    if not isinstance(words, str):
        return words
    values = "|".join((*KINDS, "none", "skip"))
    return re.sub(r"--([a-z]+)", r"\1=", re.sub(rf"--([a-z]+) ({values})\b", r"\1='\2'", words))


def check_inputs(kind: Kind, inputs: Sequence[Any], reads: tuple[InputType, ...] | None = None) -> None:
    """Raises BadValue, with its row, for an input of a type that the task does not read (default: the first one's)."""
    is_pair, in_words = isinstance(inputs[0], tuple), isinstance(inputs[0], list) and kind.labels_words
    types = reads or types_read(kind, over_pairs="pair" in kind.uses and (is_pair or kind.pair is not None))
    for number, entry in enumerate(inputs):
        is_list = isinstance(entry, list)
        named = None if is_list else input_type_of((entry,) if isinstance(entry, str) else entry)
        if is_list != in_words or (named is not None and named not in types):
            raise BadValue(
                f"row {number} is not what this task of kind '{kind.name}' reads",
                got="a list of words" if named is None else IN_WORDS[named],
                allowed="a list of words" if in_words else reads_in_words(types),
                do="give all rows of a task in one form" if number else "give such rows, or another kind",
                row=number,
            )


def check_different_labels(kind: Kind, labels: Sequence[Any], *, subject: str) -> None:
    """Raises BadValue if a task with one label per row has fewer different ones than its kind needs."""
    different = {str(label) for label in map(plain, labels) if label is not None}
    if "labels" in kind.uses and not kind.label_is_list and len(different) < kind.least_labels:
        raise BadValue(
            f"{subject} has too few different labels to learn from",
            got=sorted(different),
            allowed=f"{kind.least_labels} or more",
            do="give rows of other labels too",
        )


def check_one_type(kind: Kind, labels: Iterable[Any], *, subject: str) -> None:
    """Raises BadValue if a task with one label per row has numbers and strings as labels: 1 and '1' would be one."""
    if "labels" not in kind.uses or kind.label_is_list:
        return
    rows = [(number, label) for number, label in enumerate(map(plain, labels)) if not is_blank(label)]
    number = next((place for place, label in rows if type(label) in (int, float)), None)
    string = next((place for place, label in rows if isinstance(label, str)), None)
    if number is None or string is None:
        return
    shown = dict(rows)
    raise BadValue(
        f"{subject} has labels that are numbers and labels that are strings",
        got=f"row {number}: {shown[number]!r}, row {string}: {shown[string]!r}",
        allowed="labels of one type, as the number 1 and the string '1' would be one label",
        do="write all of them as strings, or all as numbers",
        row=max(number, string),
    )


def columns_for(kind: Kind, inputs: Sequence[Any]) -> dict[str, str]:
    """The columns that an entry names for rows of this kind."""
    columns: dict[str, str] = {}
    if isinstance(inputs[0], list):
        columns |= {"tokens": TOKENS, "tags": TAGS}
    elif SPANS in kind.column_keys:
        columns |= {"spans": SPANS}
    if isinstance(inputs[0], tuple) and kind.context_column is None:
        columns |= {"text_b": PAIR}
    return columns


def columns_of_training(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The group and weight columns that these records have, as a task entry names them."""
    names = {name for record in records for name in record}
    return {column: column for column in (GROUP, WEIGHT) if column in names}


def records_of(kind: Kind, rows: LabelledTexts) -> list[Record]:
    """The rows under the column names of `columns_for`, with labels as JSON values."""
    columns = columns_for(kind, rows.inputs)
    label = columns.get("tags") or columns.get("spans") or kind.label_key
    examples = enumerate(zip(rows.inputs, rows.labels, strict=True))
    records = [cells_of(kind, entry) | {label: _plain_label(answer, number)} for number, (entry, answer) in examples]
    for column, values in rows.of_training.items():
        records = [record | {column: value} for record, value in zip(records, values, strict=True)]
    return records


def _plain_label(answer: Any, number: int) -> Any:
    label = plain(answer)
    label = list(map(plain, label)) if isinstance(label, list) else label
    if wrong := [each for each in (label if isinstance(label, list) else [label]) if _is_no_label(each)]:
        raise BadValue(f"row {number} has bytes or infinity as a label", got=wrong, do="correct it", row=number)
    try:
        return msgspec.json.decode(msgspec.json.encode(label, enc_hook=_listed))
    except UnicodeEncodeError:
        problem = f"the label of row {number} holds half of a character (a lone surrogate)"
        raise BadValue(problem, got=repr(answer), allowed="characters", do="correct the label", row=number) from None
    except (TypeError, ValueError) as error:
        raise BadValue(f"the label of row {number} is no plain value", got=str(error), row=number) from None


def _is_no_label(value: object) -> bool:
    """Whether JSON would change the value: bytes become letters, infinity becomes null."""
    return isinstance(value, bytes | bytearray) or (isinstance(value, float | Decimal) and math.isinf(value))


def _listed(value: Any) -> Any:
    """An array of numpy as JSON values; raises TypeError for any other type."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"it is of type {type(value).__name__}")


def cells_of(kind: Kind, entry: Any) -> dict[str, Any]:
    """The cells of one input."""
    if isinstance(entry, Question):
        context = {kind.context_column or PAIR: entry.context} if entry.context else {}
        return {kind.text_column: entry.text, "choices": list(entry.options), **context}
    if isinstance(entry, Passage):
        entry = (entry.question, entry.context)
    if isinstance(entry, tuple):
        first, second = entry
        return {kind.text_column: first, kind.context_column or PAIR: second}
    if isinstance(entry, list):
        return {TOKENS: entry}
    return {kind.text_column: entry}


@contextmanager
def with_data(project: Project, data: Mapping[str, Mapping[str, Any]]) -> Iterator[Project]:
    """A context with the project whose tasks read these tables, task -> split -> rows, held in memory.

    Rows are a list of dicts, or a data frame; their columns are those that the task's keys name. Raises ConfigError for
    an unknown task or split, BadValue for rows that are not a table.
    """
    names = [entry.name for entry in project.tasks]
    if unknown := sorted(set(data) - set(names)):
        raise ConfigError("the project has no such task", got=unknown, allowed=names, do=suggestion(unknown[0], names))
    entries = []
    with ExitStack() as held:
        for entry in project.tasks:
            addresses = {}
            for split, rows in data.get(entry.name, {}).items():
                if split not in SPLITS:
                    raise ConfigError(f"task '{entry.name}' has no such split", got=split, allowed=SPLITS)
                records = _table(rows, f"{split} of task '{entry.name}'")
                addresses[split] = held.enter_context(in_memory(records))
            entries.append(msgspec.structs.replace(entry, **addresses))
        yield msgspec.structs.replace(project, tasks=tuple(entries))


def _table(rows: Any, subject: str) -> list[Record]:
    frame = frame_of(rows)
    if frame is not None:
        columns = [frame.column(name) for name in frame.names]
        rows = [dict(zip(frame.names, cells, strict=True)) for cells in zip(*columns, strict=True)]
    if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
        raise BadValue(f"{subject} is no table", got=type(rows).__name__, allowed="a list of dicts, or a frame")
    plain_rows = ({key: with_plain_numbers(plain(cell)) for key, cell in row.items()} for row in rows)
    return [msgspec.json.decode(json_bytes(row)) for row in plain_rows]
