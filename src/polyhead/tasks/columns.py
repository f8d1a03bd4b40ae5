"""Which columns of which file a task reads, by the names that were given or those that its kind goes by."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

from polyhead.config import Value
from polyhead.errors import ConfigError, MissingColumn, near_name, nearest
from polyhead.tasks.rows import DATASETS
from polyhead.tasks.task import Task

SEPARATORS = {".csv": (",", "commas"), ".tsv": ("\t", "tabs")}  # between columns, by the ending of a file's name


class Source(Value):
    """A file and the columns that a task reads.

    `path` ends in .jsonl, .csv, .tsv (each also .gz) or .parquet, or is
    `datasets:owner/name[/config][:split]`. A tagging task reads `tokens` and `tags` (lists), or `text` and
    `spans` (a list of {start, end, label}). A multiple-choice task reads a question from `text`, its `choices` (a
    list) and, where there is one, the context that it is about from `text_b`. A span task reads a question, the
    context and its `answers` (a list of {text, start}).
    """

    path: str
    text: str | None = None  # None: "text"; "question" for multiple_choice and span
    text_b: str | None = None  # None: "context" for span, and for multiple_choice where the file has it
    label: str = "label"
    tokens: str | None = None
    tags: str | None = None
    spans: str | None = None
    choices: str | None = None  # None: "choices"
    answers: str | None = None  # None: "answers"
    separator: str | None = None  # between several labels (or tokens, or choices) in one string
    where: dict[str, str | int | bool] | None = None  # only rows whose columns equal these values
    limit: int | None = None  # at most so many of them
    empty: Literal["none", "skip"] | None = None  # an empty cell; None: "none" for multi_label, else "skip"

    @property
    def is_file(self) -> bool:
        """Whether the rows are in a file here."""
        return not self.path.startswith(DATASETS)


class Columns(Value):
    """The names of the columns to read."""

    texts: tuple[str, ...]  # one, or two; none where tokens are read
    label: str
    tokens: str | None = None
    choices: str | None = None
    context: str | None = None  # of a question with choices, read where a row has it
    optional: bool = False  # whether the file may be without the context
    others: tuple[str, ...] = ()  # that choose rows

    @property
    def wanted(self) -> list[str]:
        """Every column to read."""
        names = [self.tokens, *self.texts, self.choices, self.context, self.label, *self.others]
        return [name for name in dict.fromkeys(names) if name]

    def check(self, source: str, there: Sequence[str]) -> None:
        """Raises MissingColumn for a column that no row of the file has."""
        for column in self.wanted:
            if column in there or (self.optional and column == self.context):
                continue
            raise no_column(source, column, there)


def columns_of(source: Source, task: Task) -> Columns:
    """The columns that the task reads; raises ConfigError when they do not make an input and a label."""
    wrong = _wrong(source, task)
    if wrong:
        raise ConfigError(f"task '{task.name}': {wrong}", got=source, do="name the columns of the task")
    if source.empty == "none" and task.kind != "multi_label":
        raise ConfigError(
            f"task '{task.name}': an empty cell can say that no label applies for kind 'multi_label' alone",
            got=f"empty = 'none' with kind '{task.kind}'",
            allowed="empty = 'skip': the row is not labelled",
            do="leave 'empty' out, or give 'none' a label of its own and write it into the cells",
        )
    others = tuple(source.where or {})
    if task.kind == "multiple_choice":
        return Columns(
            texts=(source.text or "question",),
            label=source.label,
            choices=source.choices or "choices",
            context=source.text_b or "context",
            optional=source.text_b is None,
            others=others,
        )
    if task.kind == "span":
        texts = (source.text or "question", source.text_b or "context")
        return Columns(texts=texts, label=source.answers or "answers", others=others)
    if source.tokens:
        return Columns(texts=(), label=source.tags or "", tokens=source.tokens, others=others)
    second = (source.text_b,) if source.text_b else ()
    return Columns(texts=(source.text or "text", *second), label=source.spans or source.label, others=others)


def _wrong(source: Source, task: Task) -> str | None:
    """What is wrong with the columns that were named."""
    questions = task.kind in ("multiple_choice", "span")
    if source.limit is not None and source.limit < 1:
        return "'limit' must be positive"
    if not questions and (task.pair != "none") != (source.text_b is not None):
        return "a task over pairs, and no other, needs 'text_b', the column of the second text"
    if task.kind == "tagging":
        by_tokens = source.tokens and source.tags and not source.spans
        if not by_tokens and not (source.spans and not source.tokens and not source.tags):
            return "a tagging task reads 'tokens' and 'tags', or 'text' and 'spans'"
    elif source.tokens or source.tags or source.spans:
        return "'tokens', 'tags' and 'spans' are for tagging tasks"
    if source.choices and task.kind != "multiple_choice":
        return "'choices' is for multiple-choice tasks"
    if source.answers and task.kind != "span":
        return "'answers' is for span tasks"
    if task.kind == "span" and source.label != "label":
        return "a span task reads 'answers', and no 'label'"
    return None


def no_column(source: str, column: str, there: Collection[str], *, by: str = "") -> MissingColumn:
    """The error for a column that the file has not; `by` says how to name another one."""
    do = nearest(column, there) or "name one of its columns"
    header = next(iter(there), "") if len(there) == 1 else ""
    own, name = SEPARATORS.get(Path(source.lower().removesuffix(".gz")).suffix, ("", ""))
    other = next((mark for mark in (";", "\t", "|", ",") if mark in header and mark != own), None)
    if own and other:
        do = f"the header looks as if {other!r} separated its columns: save the file with {name} between them"
    elif by:
        do = f"{do} {by}" if nearest(column, there) else by
    return MissingColumn(
        f"{Path(source).name} has no column '{column}'",
        allowed=list(there),
        do=do,
        source=source,
        column=column,
        nearest=near_name(column, there),
    )
