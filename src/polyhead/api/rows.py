"""Labelled rows in memory as the file of a task, and the entry that reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import Any

import msgspec

from polyhead.api.given import inputs_of, listed, table_of
from polyhead.engine.inputs import IN_WORDS, InputType, Passage, input_type_of, reads_in_words, types_read
from polyhead.errors import BadValue, ConfigError, PolyheadError, nearest
from polyhead.files import replace_file
from polyhead.project.tables import Project
from polyhead.tasks.guess import MULTI_LABEL, Guess, kind_of_labels, plain, separator_between
from polyhead.tasks.kinds import KINDS
from polyhead.tasks.task import Kind
from polyhead.text.question import Question

SPANS, TOKENS, TAGS = "spans", "tokens", "tags"  # columns of labelled words
PAIR = "text_b"
SPLITS = ("train", "validation", "test")


class Labelled(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs and the label of each."""

    inputs: list[Any]
    labels: list[Any]
    name: str = ""  # of the column of the labels
    separator: str | None = None  # between several labels in one string; None: as it looks

    @classmethod
    def of(cls, texts: object, labels: object, *, text: str, text_b: str | None, what: str) -> Labelled:
        """Of lists, or of a table, whose column of labels is then named. Raises BadValue where their numbers differ."""
        inputs, table = inputs_of(texts, text=text, text_b=text_b)
        if table is not None and isinstance(labels, str):
            rows = table.column(labels)
        elif labels is None or isinstance(labels, str):
            named = "the name of the column that holds them" if table_of(texts) is not None else "a list of labels"
            raise BadValue(f"{what} has no labels", got=labels, allowed=named)
        else:
            rows = listed(labels, "labels")
        if len(rows) != len(inputs):
            raise BadValue(f"{what} has not one label for each text", got=f"{len(inputs)} texts, {len(rows)} labels")
        name = labels if isinstance(labels, str) else getattr(labels, "name", None)
        return cls(inputs=inputs, labels=rows, name=name if isinstance(name, str) else "")


def kind_of_inputs(inputs: Sequence[Any]) -> tuple[str, str] | None:
    """The kind that alone reads inputs of this type, and the reason; None where labels tell it."""
    if not isinstance(inputs[0], Question | Passage):
        return None
    asked = input_type_of(inputs[0])
    name = next(kind.name for kind in KINDS.values() if asked in types_read(kind, over_pairs="pair" in kind.uses))
    return name, f"the first input is {IN_WORDS[asked]}"


def check_inputs(kind: Kind, inputs: Sequence[Any], reads: tuple[InputType, ...] | None = None) -> None:
    """Raises BadValue, with its row, for an input of no type that the task reads: by default the first one's."""
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


def guess_of(task: str, rows: Labelled) -> Guess:
    """The kind that the labels make; raises ConfigError where they make two, EmptyData where they are none."""
    if rows.separator is not None:
        return Guess(kind=MULTI_LABEL, why="their separator is given", separator=rows.separator)
    guess = kind_of_labels(rows.labels, name=rows.name)
    if guess.rivals:
        kinds = [f"kind='{name}'" for name in (guess.kind, *guess.rivals)]
        what = f"the labels of task '{task}' can be read in {len(kinds)} ways: {guess.why}"
        raise ConfigError(what, allowed=" or ".join(kinds), do="give one of them")
    return guess


def split_labels(kind: Kind, rows: Labelled, *, labels: Sequence[str] = ()) -> Labelled:
    """The rows with lists in the place of strings that hold several labels, as cells of a file do.

    Where `labels` are known, a separator is one that leaves none but these; blank strings stay as they are.
    """
    cells = [label for label in rows.labels if isinstance(label, str) and label.strip()]
    if not cells or not (kind.label_is_list and kind.empty_is_none):
        return rows
    mark = rows.separator or separator_between(cells, labels)
    several = [kind.parse(label, mark) if isinstance(label, str) and label.strip() else label for label in rows.labels]
    several = [[label] if isinstance(label, str) and label.strip() else label for label in several]
    return msgspec.structs.replace(rows, labels=several)


@contextmanager
def in_words_of_python(task: str) -> Iterator[None]:
    """Errors speak of arguments and of rows counted from 0, in place of options and of files that nobody gave."""

    def change(words: str) -> str:
        file = rf"(?:[^\s:]*/)?{re.escape(task)}(-validation|-test)?\.jsonl"
        words = re.sub(rf"(?:task '{re.escape(task)}', )?{file}(?: row (\d+))?", place, words)
        words = re.sub(r"--([a-z][a-z-]*) (none|skip|[a-z]+_[a-z]+|regression|tagging|span)\b", argument, words)
        return re.sub(r"--([a-z][a-z-]*)", argument, words)

    def place(match: re.Match[str]) -> str:
        split = f"the {match[1][1:]} of " if match[1] else ""
        return f"{split}task '{task}'" + (f", row {int(match[2]) - 1}" if match[2] else "")

    def argument(match: re.Match[str]) -> str:
        name = {"label": "labels"}.get(match[1], match[1].replace("-", "_"))
        return f"{name}='{match[2]}'" if match.re.groups > 1 else f"{name}="

    try:
        yield
    except PolyheadError as error:
        raise error.reworded(change) from None


def check_labels(kind: Kind, labels: Sequence[Any], *, what: str) -> None:
    """Raises BadValue where a task of one label a row has fewer different ones than its kind needs."""
    different = {str(label) for label in map(plain, labels) if label is not None}
    if "labels" in kind.uses and not kind.label_is_list and len(different) < kind.least_labels:
        raise BadValue(
            f"{what} has too few different labels to learn from",
            got=sorted(different),
            allowed=f"{kind.least_labels} or more",
            do="give rows of other labels too",
        )


def columns_for(kind: Kind, inputs: Sequence[Any]) -> dict[str, str]:
    """The columns that an entry names, where rows of this kind look so."""
    columns: dict[str, str] = {}
    if isinstance(inputs[0], list):
        columns |= {"tokens": TOKENS, "tags": TAGS}
    elif SPANS in kind.column_keys:
        columns |= {"spans": SPANS}
    if isinstance(inputs[0], tuple) and kind.context_column is None:
        columns |= {"text_b": PAIR}
    return columns


def write_rows(file: FilePath, kind: Kind, rows: Labelled) -> None:
    """Writes them as JSON lines."""
    columns, encoder = columns_for(kind, rows.inputs), msgspec.json.Encoder()
    label = columns.get("tags") or columns.get("spans") or kind.label_key
    lines = []
    for number, (given, answer) in enumerate(zip(rows.inputs, rows.labels, strict=True)):
        cells = {**cells_of(kind, given), label: answer}
        try:
            lines.append(encoder.encode(cells) + b"\n")
        except (TypeError, ValueError) as error:
            raise BadValue(f"the label of row {number} is no plain value", got=str(error), row=number) from None
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, b"".join(lines))


def cells_of(kind: Kind, given: Any) -> dict[str, Any]:
    """The cells of one input."""
    if isinstance(given, Question):
        context = {kind.context_column or PAIR: given.context} if given.context else {}
        return {kind.text_column: given.text, "choices": list(given.options), **context}
    if isinstance(given, Passage):
        given = (given.question, given.context)
    if isinstance(given, tuple):
        first, second = given
        return {kind.text_column: first, kind.context_column or PAIR: second}
    if isinstance(given, list):
        return {TOKENS: given}
    return {kind.text_column: given}


def with_data(project: Project, data: Mapping[str, Mapping[str, Any]], folder: FilePath) -> Project:
    """The project whose tasks read these tables, written into `folder`: task -> split -> rows.

    Rows are a list of dicts, or a frame; their columns are those that the task's keys name. Raises ConfigError for a
    task or split that there is none of, BadValue for rows that are no table.
    """
    names = [entry.name for entry in project.tasks]
    if unknown := sorted(set(data) - set(names)):
        raise ConfigError("the project has no such task", got=unknown, allowed=names, do=nearest(unknown[0], names))
    entries = []
    for entry in project.tasks:
        files = {}
        for split, rows in data.get(entry.name, {}).items():
            if split not in SPLITS:
                raise ConfigError(f"task '{entry.name}' has no such split", got=split, allowed=SPLITS)
            files[split] = str(folder / f"{entry.name}-{split}.jsonl")
            _write_table(FilePath(files[split]), rows, f"{split} of task '{entry.name}'")
        entries.append(msgspec.structs.replace(entry, **files))
    return msgspec.structs.replace(project, tasks=tuple(entries))


def _write_table(file: FilePath, rows: Any, what: str) -> None:
    table, encoder = table_of(rows), msgspec.json.Encoder()
    if table is not None:
        columns = [table.column(name) for name in table.names]
        rows = [dict(zip(table.names, cells, strict=True)) for cells in zip(*columns, strict=True)]
    if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
        raise BadValue(f"{what} is no table", got=type(rows).__name__, allowed="a list of dicts, or a frame")
    replace_file(
        file, b"".join(encoder.encode({key: plain(cell) for key, cell in row.items()}) + b"\n" for row in rows)
    )
