"""The columns that a task reads from a file: those that it names, or the default ones of its kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from polyhead.data.shares import STORED, columns_in
from polyhead.data.tables import is_address
from polyhead.errors import ConfigError, MissingColumn, near_name, suggestion
from polyhead.tasks.kinds.base import other_spelling, spelled
from polyhead.tasks.task import KINDS, Kind, Task, kind_of, kinds_with
from polyhead.text.characters import has_visible
from polyhead.values import Value

SEPARATORS = {".csv": (",", "commas"), ".tsv": ("\t", "tabs")}  # between columns, by the ending of a file's name


class Columns(Value, kw_only=True):
    """Names of the columns that a task reads; None: the default name of its kind.

    Labelled words are read from `tokens` and `tags` (lists), or from `text` and `spans` (a list of {start, end,
    label}). A question is read from `text`, its `choices` (a list) or `answers` (a list of {text, start}), and its
    context from `text_b`.
    """

    # None: "text"; "question" for multiple_choice and span. Several columns, such as a title and a body, are joined.
    text: str | tuple[str, ...] | None = None
    text_b: str | None = None  # None: "context" for span, and for multiple_choice where a file has it
    label: str | None = None  # None: "label"
    tokens: str | None = None
    tags: str | None = None
    spans: str | None = None
    choices: str | None = None  # None: "choices"
    answers: str | None = None  # None: "answers"
    # One column per label with its probability, in the order of the labels, or "store:" and a column of a store.
    soft: str | tuple[str, ...] | None = None
    # Rows with one value in this column, such as a person, are all trained on or all held out.
    group: str | None = None
    weight: str | None = None  # single_label: numbers in proportion to which rows count
    separator: str | None = None  # separates several labels (or tokens, or choices) in one string
    empty: Literal["none", "skip"] | None = None  # meaning of an empty cell; None: "none" for multi_label, else "skip"
    # what to do with overlapping spans: keep the longest, or skip the row
    overlaps: Literal["longest", "skip"] | None = None

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The named columns of the text, or of the first text of a pair."""
        return (self.text,) if isinstance(self.text, str) else self.text or ()

    @property
    def one_hot(self) -> tuple[str, ...]:
        """The columns of numbers, one for each label."""
        return self.soft if isinstance(self.soft, tuple) else ()

    def names(self) -> dict[str, object]:
        """The names of the columns, by what they hold."""
        values = msgspec.structs.asdict(self)
        return {name: values[name] for name in Columns.__struct_fields__ if values[name] and name not in RULES}


RULES = ("separator", "empty", "overlaps")  # fields that set how cells are read


_READ_BY: Mapping[str, Callable[[Kind], bool]] = {
    # A cell with one label, one number or a list of answers as JSON holds no parts.
    "separator": lambda kind: not (kind.takes_single or "range" in kind.uses or kind.label_key == "answers"),
    "empty": lambda kind: kind.empty_is_none,
    "overlaps": lambda kind: "spans" in kind.column_keys,
    "tokens": lambda kind: "tokens" in kind.column_keys,
    "choices": lambda kind: "choices" in kind.column_keys,
}


def check_has_reader(said: Mapping[str, object], kinds: Iterable[Kind]) -> None:
    """Raises ConfigError for something `said` of columns that no task of these kinds reads."""
    kinds = list(kinds)
    for name, value in said.items():
        if value is not None and name in _READ_BY and not any(map(_READ_BY[name], kinds)):
            readers = " or ".join(f"'{kind.name}'" for kind in KINDS.values() if _READ_BY[name](kind))
            raise ConfigError(
                f"'{name}' would change nothing: it is for tasks of kind {readers}",
                got=f"{value!r} with kind {' and '.join(sorted({repr(kind.name) for kind in kinds}))}",
                do="leave it out, or name another kind",
            )


def unread_by(kind: Kind) -> dict[str, None]:
    """The settings of columns that a task of this kind does not read, each with None."""
    return {name: None for name, is_reader in _READ_BY.items() if not is_reader(kind)}


class Source(Columns, kw_only=True):
    """A table (a file, a folder, or an address such as `datasets:owner/name`) and the columns that a task reads."""

    path: str
    where: dict[str, str | int | bool] | None = None  # only rows whose columns equal these values
    limit: int | None = None  # at most this many of them

    @property
    def is_file(self) -> bool:
        """True if the rows are in a local file."""
        return not is_address(self.path)

    def selects(self, values: Mapping[str, object]) -> bool:
        """Whether `where` selects a row with these values; True and 1 also match the cells `TRUE` and `1.0`."""
        return all(_holds(values.get(column), value) for column, value in (self.where or {}).items())


class TaskColumns(Value):
    """The columns to read for one task."""

    texts: tuple[str | tuple[str, ...], ...]  # one, or two; empty if tokens are read
    label: str
    tokens: str | None = None
    choices: str | None = None
    context: str | None = None  # the choices of a question, read where a row has them
    optional: bool = False  # whether the file may lack the context
    others: tuple[str, ...] = ()  # columns that select rows
    soft: tuple[str, ...] = ()  # columns with the probabilities of labels
    unlabelled: bool = False  # whether the file may lack the label
    of_training: tuple[str, ...] = ()  # the columns of groups and weights, which a file of other splits may lack

    @property
    def wanted(self) -> list[str]:
        """Every column to read."""
        texts = [name for text in self.texts for name in ((text,) if isinstance(text, str) else text)]
        names = [self.tokens, *texts, self.choices, self.context, self.label, *self.soft, *self.others]
        names += self.of_training
        return [name for name in dict.fromkeys(names) if name]

    def check(self, source: str, columns: Sequence[str]) -> None:
        """Raises MissingColumn for a column that the file does not have; `columns` are the file's."""
        for column in self.wanted:
            left_out = (self.optional and column == self.context) or (self.unlabelled and column == self.label)
            if column not in columns and not left_out and column not in self.of_training:
                raise no_column(source, column, columns)


def _holds(cell: object, value: str | int | bool) -> bool:
    name, wanted = spelled(cell), spelled(value)
    if isinstance(value, str) or name is None or wanted is None or name == wanted:
        return name == wanted
    return name.lower() == wanted if isinstance(value, bool) else other_spelling(name, (wanted,)) == wanted


def columns_of(source: Source, task: Task) -> TaskColumns:
    """The columns that the task reads; raises ConfigError if they do not give an input and a label."""
    kind = kind_of(task)
    wrong = _wrong(source, task, kind)
    if wrong:
        named = source.names() | ({"limit": source.limit} if source.limit is not None else {})
        got = ", ".join(f"{key} = {value!r}" for key, value in named.items())
        raise ConfigError(f"task '{task.name}': {wrong}", got=got, do="name the columns of the task")
    if source.empty == "none" and not kind.empty_is_none:
        names = kinds_with("empty_is_none")
        raise ConfigError(
            f"task '{task.name}': an empty cell can say that no label applies for kind {names} alone",
            got=f"empty = 'none' with kind '{task.kind}'",
            allowed="empty = 'skip': the row is not labelled",
            do="leave 'empty' out, or give 'none' a label of its own and write it into the cells",
        )
    try:
        check_has_reader({"separator": source.separator}, [kind])
    except ConfigError as error:
        raise error.at(f"task '{task.name}'") from None
    others, of_training = tuple(source.where or {}), tuple(filter(None, (source.group, source.weight)))
    if source.tokens:
        return TaskColumns(
            texts=(), label=source.tags or "", tokens=source.tokens, others=others, of_training=of_training
        )
    text, second = source.text or kind.text_column, source.text_b or kind.context_column
    label = source.spans or getattr(source, kind.label_key) or kind.label_key
    if kind.per_option:
        return TaskColumns(
            texts=(text,),
            label=label,
            choices=source.choices or "choices",
            context=second,
            optional=source.text_b is None,
            others=others,
            of_training=of_training,
        )
    return TaskColumns(
        texts=(text, second) if second else (text,),
        label=label,
        others=others,
        of_training=of_training,
        soft=columns_in(source.soft),
        unlabelled=source.soft is not None and source.label in (None, "label"),
    )


def _wrong(source: Source, task: Task, kind: Kind) -> str | None:
    """The error for wrong column names."""
    if source.limit is not None and source.limit < 1:
        return "'limit' must be positive"
    if kind.context_column is None and (task.pair != "none") != (source.text_b is not None):
        return "a task over pairs, and no other, needs 'text_b', the column of the second text"
    if source.text_b is not None and source.text_b in source.text_columns:
        return "'text' and 'text_b' name one column, and a pair has two texts"
    for key in ("tokens", "tags", "spans", "choices", "answers"):
        if getattr(source, key) and key not in kind.column_keys:
            return f"'{key}' is for tasks of kind {kinds_with('column_keys', key)}"
    if "tokens" in kind.column_keys:
        by_tokens = source.tokens and source.tags and not source.spans
        if not by_tokens and not (source.spans and not source.tokens and not source.tags):
            return f"a task of kind '{kind.name}' reads 'tokens' and 'tags', or 'text' and 'spans'"
    if source.overlaps is not None and not source.spans:
        return "'overlaps' is for labelled spans: it needs 'spans', their column"
    if source.soft is not None and not kind.takes_shares:
        return f"'soft' is for tasks of kind {kinds_with('takes_shares')}"
    if source.weight is not None and kind.loss != "cross_entropy":
        kinds = " or ".join(f"'{name}'" for name, other in KINDS.items() if other.loss == "cross_entropy")
        return f"'weight' is for tasks of kind {kinds}"
    if isinstance(source.soft, tuple) and len(source.soft) != len(task.labels):
        return "'soft' names a column for each label, in the order of the labels"
    if source.text == ():
        return "'text' names no column"
    if source.soft in ("", STORED):
        return "'soft' names no column"
    if kind.label_key != "label" and source.label is not None:
        return f"a task of kind '{kind.name}' reads '{kind.label_key}', and no 'label'"
    return None


def joined(texts: Sequence[str | None]) -> str | None:
    """The texts of several columns as one, a line each; those without visible text are left out, None if all are."""
    return "\n".join(text for text in texts if text is not None and has_visible(text)) or None


def no_column(source: str, column: str, columns: Collection[str], *, by: str = "") -> MissingColumn:
    """The error for a column that the file does not have; `by` says how to name another column."""
    do = suggestion(column, columns) or "name one of its columns"
    header = next(iter(columns), "") if len(columns) == 1 else ""
    separator, name = SEPARATORS.get(Path(source.lower().removesuffix(".gz")).suffix, ("", ""))
    other = next((mark for mark in (";", "\t", "|", ",") if mark in header and mark != separator), None)
    if separator and other:
        do = f"the header looks as if {other!r} separated its columns: save the file with {name} between them"
    elif by:
        do = f"{do} {by[0].upper()}{by[1:]}" if suggestion(column, columns) else by
    return MissingColumn(
        f"{Path(source).name} has no column '{column}'",
        allowed=list(columns),
        do=do,
        source=source,
        column=column,
        nearest=near_name(column, columns),
    )
