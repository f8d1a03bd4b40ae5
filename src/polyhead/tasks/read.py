"""Rows of a file as inputs and targets of a task; what is unusable is refused, or skipped and counted."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import numpy as np

from polyhead.config import Value
from polyhead.errors import BadValue, ConfigError, EmptyData, MissingColumn
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.base import bad_value, spelled
from polyhead.tasks.kinds.tagging import TaggedSpan, tags_of
from polyhead.tasks.rows import Row, Rows, no_rows
from polyhead.tasks.task import Task
from polyhead.text.tokenise import Input, lone_surrogates, repair
from polyhead.text.words import words_of


class Source(Value):
    """A file and the columns that a task reads.

    `path` ends in .jsonl, .csv, .tsv (each also .gz) or .parquet, or is
    `datasets:owner/name[/config][:split]`. A tagging task reads `tokens` and `tags` (lists), or `text` and
    `spans` (a list of {start, end, label}).
    """

    path: str
    text: str = "text"
    text_b: str | None = None
    label: str = "label"
    tokens: str | None = None
    tags: str | None = None
    spans: str | None = None
    separator: str | None = None  # between several labels (or tokens) in one string
    where: dict[str, str | int | bool] | None = None  # only rows whose columns equal these values
    limit: int | None = None  # at most so many of them


class ReadReport(Value):
    """What became of the rows: `used + unlabelled + empty == rows`."""

    rows: int = 0  # that `where` and `limit` let through
    used: int = 0
    unlabelled: int = 0  # skipped: the label is missing, null or an empty cell
    empty: int = 0  # skipped: a text is missing or blank
    repaired: int = 0  # lone surrogates replaced by U+FFFD in rows used
    widened: int = 0  # spans of characters that begin or end inside a word, and took the whole word


class Examples(Value, eq=False):
    """Inputs with their targets, in the order of the file."""

    inputs: list[Input]
    targets: list[np.ndarray]
    words: list[np.ndarray] | None  # of each row, character offsets int32 (words, 2); None unless per word
    rows: list[int]  # row numbers in the file
    report: ReadReport

    def take(self, indices: list[int]) -> Examples:
        """Some of the examples; the report stays that of the whole file."""
        return Examples(
            inputs=[self.inputs[i] for i in indices],
            targets=[self.targets[i] for i in indices],
            words=None if self.words is None else [self.words[i] for i in indices],
            rows=[self.rows[i] for i in indices],
            report=self.report,
        )


def read(source: Source, task: Task) -> Examples:
    """Every usable row of the source.

    Raises MissingColumn for a column that no row has, BadValue or UnknownLabel (with the row) for a row that
    is wrong, EmptyData when no row is left, DataError for a file that cannot be read.
    """
    reader = _Reader(source, task)
    rows = Rows(source.path, reader.columns)
    for row in rows:
        if source.limit is not None and reader.counts["rows"] >= source.limit:
            break
        if _matches(row, source.where or {}):
            reader.add(row, from_cells=rows.has_cells)
    if not rows.columns:
        raise no_rows(source.path)
    _check_columns(source, reader.columns, list(rows.columns))
    return reader.examples()


class _Reader:
    """Collects the examples of one source."""

    def __init__(self, source: Source, task: Task) -> None:
        self.source, self.task, self.kind = source, task, kind_of(task)
        self.columns = _columns(source, task)
        self.counts = dict.fromkeys(ReadReport.__struct_fields__, 0)
        self.inputs: list[Input] = []
        self.targets: list[np.ndarray] = []
        self.words: list[np.ndarray] = []
        self.rows: list[int] = []

    def examples(self) -> Examples:
        report = ReadReport(**self.counts)
        if not self.inputs:
            raise EmptyData(
                f"task '{self.task.name}': no row of {self.source.path} can be used",
                got=f"{report.rows} rows, {report.unlabelled} without a label, {report.empty} without a text",
                do="give rows that have both" if report.rows else "check 'where' and 'limit'",
                report=report,
            )
        words = self.words if self.kind.per_word else None
        return Examples(inputs=self.inputs, targets=self.targets, words=words, rows=self.rows, report=report)

    def add(self, row: Row, *, from_cells: bool) -> None:
        self.counts["rows"] += 1
        given = self._tokens(row) if self.source.tokens else self._texts(row)
        if given is None:
            self.counts["empty"] += 1
            return
        label = self._label(row, from_cells=from_cells)
        if label is None:
            self.counts["unlabelled"] += 1
            return
        if self.kind.per_word:
            words = _token_words(given) if self.source.tokens else words_of(given[0])
            target = self._tags(label, words, " ".join(given), row.number)
            self.words.append(words)
            self.inputs.append((repair(" ".join(given)),))
        else:
            target = self.kind.encode(self.task, label, row=row.number, source=self.source.path)
            first, *second = map(repair, given)
            self.inputs.append((first, second[0]) if second else (first,))
        self.targets.append(target)
        self.rows.append(row.number)
        self.counts["used"] += 1
        self.counts["repaired"] += sum(map(lone_surrogates, given))

    def _texts(self, row: Row) -> list[str] | None:
        """The row's text or texts; None when one is missing or blank."""
        columns = [self.source.text] + ([self.source.text_b] if self.source.text_b else [])
        texts = [row.values.get(column) for column in columns]
        for column, text in zip(columns, texts, strict=True):
            if text is not None and not isinstance(text, str):
                raise self._bad(f"column '{column}' must hold a string", text, "a string", row.number)
        found = [text for text in texts if isinstance(text, str) and text.strip()]
        return found if len(found) == len(texts) else None

    def _tokens(self, row: Row) -> list[str] | None:
        assert self.source.tokens is not None
        value = row.values.get(self.source.tokens)
        tokens = self._list(value) if isinstance(value, str) else value
        if tokens is None or tokens == [] or tokens == "":
            return None
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise self._bad(
                f"column '{self.source.tokens}' must hold tokens", value, "a list of strings", row.number
            )
        return tokens if any(token.strip() for token in tokens) else None

    def _label(self, row: Row, *, from_cells: bool) -> object:
        """The label as `Kind.encode` takes it; None when the row has none."""
        column = self.source.tags if self.source.tokens else self.source.spans or self.source.label
        value = row.values.get(column or "")
        if value is None or value == "":
            return None
        if not isinstance(value, str) or not (from_cells or self.source.separator):
            return value
        return self._list(value) if self.source.spans else self.kind.parse(value, self.source.separator)

    def _list(self, cell: str) -> object:
        """The list that a cell spells, as JSON or between separators."""
        if cell.lstrip().startswith("["):
            try:
                return json.loads(cell)
            except ValueError:
                return cell
        return cell.split(self.source.separator) if self.source.separator else cell

    def _tags(self, label: object, words: np.ndarray, text: str, row: int) -> np.ndarray:
        if self.source.spans:
            label = self._tags_of_spans(label, words, text, row)
        target = self.kind.encode(self.task, label, row=row, source=self.source.path)
        if len(target) != len(words):
            raise self._bad("tags and tokens differ in number", f"{len(target)} tags", f"{len(words)}", row)
        return target

    def _tags_of_spans(self, value: object, words: np.ndarray, text: str, row: int) -> list[str]:
        shape = "a list of {start, end, label}"
        if not isinstance(value, list):
            raise self._bad(f"column '{self.source.spans}' must hold spans", value, shape, row)
        spans = []
        for one in value:
            fields = one if isinstance(one, dict) else {}
            start, end, label = fields.get("start"), fields.get("end"), spelled(fields.get("label"))
            if type(start) is not int or type(end) is not int or label is None:
                raise self._bad("a span cannot be read", one, shape, row)
            if not 0 <= start < end <= len(text):
                raise self._bad("a span lies outside the text", one, f"0 <= start < end <= {len(text)}", row)
            self.counts["widened"] += bool(np.any((words[:, 0] < start) & (words[:, 1] > start))) or bool(
                np.any((words[:, 0] < end) & (words[:, 1] > end))
            )
            spans.append(TaggedSpan(start=start, end=end, label=label))
        try:
            return tags_of(spans, words)
        except ValueError as error:
            raise self._bad(str(error), value, "spans that hold words, none of them twice", row) from None

    def _bad(self, what: str, got: object, allowed: object, row: int) -> BadValue:
        return bad_value(self.task, what, got=got, allowed=allowed, row=row, source=self.source.path)


def _columns(source: Source, task: Task) -> list[str]:
    """The columns that the task reads; raises ConfigError when they do not make an input and a label."""
    wrong = None
    if kind_of(task).per_word:
        by_tokens = source.tokens and source.tags and not source.spans
        if not by_tokens and not (source.spans and not source.tokens and not source.tags):
            wrong = "a tagging task reads 'tokens' and 'tags', or 'text' and 'spans'"
    elif source.tokens or source.tags or source.spans:
        wrong = "'tokens', 'tags' and 'spans' are for tagging tasks"
    if (task.pair != "none") != (source.text_b is not None):
        wrong = "a task over pairs, and no other, needs 'text_b', the column of the second text"
    if source.limit is not None and source.limit < 1:
        wrong = "'limit' must be positive"
    if wrong:
        raise ConfigError(f"task '{task.name}': {wrong}", got=source, do="name the columns of the task")
    texts = [source.tokens] if source.tokens else [source.text, source.text_b]
    label = source.tags if source.tokens else source.spans or source.label
    return [name for name in dict.fromkeys([*texts, label, *(source.where or {})]) if name]


def _check_columns(source: Source, wanted: list[str], there: list[str]) -> None:
    for column in wanted:
        if column not in there:
            near = difflib.get_close_matches(column, there, n=1, cutoff=0.5)
            raise MissingColumn(
                f"{Path(source.path).name} has no column '{column}'",
                allowed=there,
                do=f"did you mean '{near[0]}'?" if near else "name one of its columns",
                source=source.path,
                column=column,
                nearest=near[0] if near else None,
            )


def _matches(row: Row, where: dict[str, str | int | bool]) -> bool:
    """Whether every named column is written as the wanted value is (1 matches "1", true matches "true")."""
    return all(spelled(row.values.get(column)) == spelled(value) for column, value in where.items())


def _token_words(tokens: list[str]) -> np.ndarray:
    """Where tokens joined by single spaces lie, int32 (words, 2)."""
    sizes = np.array([len(token) for token in tokens], np.int64)
    stops = np.cumsum(sizes + 1) - 1
    return np.stack([stops - sizes, stops], axis=1).astype(np.int32)
