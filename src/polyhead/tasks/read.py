"""Rows of a file as inputs and targets of a task; what is unusable is refused, or skipped and counted."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from polyhead.config import Value
from polyhead.errors import BadValue, EmptyData
from polyhead.tasks.columns import Columns, Source, columns_of
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.base import bad_value, spelled
from polyhead.tasks.kinds.span import widened
from polyhead.tasks.kinds.tagging import TaggedSpan, tags_of
from polyhead.tasks.rows import Row, Rows, no_rows
from polyhead.tasks.task import Task
from polyhead.text.question import Given, Question, texts_of
from polyhead.text.tokenise import lone_surrogates, repair
from polyhead.text.words import places_of, words_of


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

    inputs: list[Given]
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

    def scores(self, task: Task, outputs: Sequence[np.ndarray]) -> dict[str, float]:
        """Every metric of the task's kind for these outputs, one for each example."""
        words = self.words or []
        texts = [texts_of(given)[-1] for given in self.inputs] if words else []
        return kind_of(task).evaluate(task, outputs, self.targets, texts=texts, words=words)


def read(source: Source, task: Task) -> Examples:
    """Every usable row of the source.

    Raises MissingColumn for a column that no row has, BadValue or UnknownLabel (with the row) for a row that
    is wrong, EmptyData when no row is left, DataError for a file that cannot be read.
    """
    reader = _Reader(source, task)
    rows = Rows(source.path, reader.columns.wanted)
    for row in rows:
        if source.limit is not None and reader.counts["rows"] >= source.limit:
            break
        if _matches(row, source.where or {}):
            reader.add(row, from_cells=rows.has_cells)
    if not rows.columns:
        raise no_rows(source.path)
    reader.columns.check(source.path, list(rows.columns))
    return reader.examples()


class _Example(Value, eq=False):
    """What one row is asked about: the input, and its words where the kind reads words."""

    given: Given
    words: np.ndarray | None = None


class _Reader:
    """Collects the examples of one source."""

    def __init__(self, source: Source, task: Task) -> None:
        self.source, self.task, self.kind = source, task, kind_of(task)
        self.columns: Columns = columns_of(source, task)
        self.counts = dict.fromkeys(ReadReport.__struct_fields__, 0)
        self.found: list[_Example] = []
        self.targets: list[np.ndarray] = []
        self.rows: list[int] = []

    def examples(self) -> Examples:
        report = ReadReport(**self.counts)
        if not self.found:
            raise EmptyData(
                f"task '{self.task.name}': no row of {self.source.path} can be used",
                got=f"{report.rows} rows, {report.unlabelled} without a label, {report.empty} without a text",
                do="give rows that have both" if report.rows else "check 'where' and 'limit'",
                report=report,
            )
        words = [one.words for one in self.found if one.words is not None]
        return Examples(
            inputs=[one.given for one in self.found],
            targets=self.targets,
            words=words if self.kind.per_word else None,
            rows=self.rows,
            report=report,
        )

    def add(self, row: Row, *, from_cells: bool) -> None:
        self.counts["rows"] += 1
        texts = self._tokens(row) if self.columns.tokens else self._texts(row)
        options = self._options(row) if self.columns.choices else ()
        if texts is None or options is None:
            self.counts["empty"] += 1
            return
        label = self._label(row, from_cells=from_cells)
        if label is None:
            self.counts["unlabelled"] += 1
            return
        context = self._text(row, self.columns.context) or ""
        example = self._example(texts, options, context)
        self.targets.append(self._target(label, example, row, from_cells=from_cells))
        self.found.append(example)
        self.rows.append(row.number)
        self.counts["used"] += 1
        self.counts["repaired"] += sum(map(lone_surrogates, (*texts, *options, context)))

    def _example(self, texts: list[str], options: tuple[str, ...], context: str) -> _Example:
        if self.columns.tokens:
            return _Example(given=(repair(" ".join(texts)),), words=_token_words(texts))
        first, *second = map(repair, texts)
        if options:
            given = Question(text=first, options=tuple(map(repair, options)), context=repair(context))
            return _Example(given=given)
        if self.task.kind == "span":
            return _Example(given=(first, second[0]), words=places_of(second[0]))
        words = words_of(first) if self.kind.per_word else None
        return _Example(given=(first, second[0]) if second else (first,), words=words)

    def _target(self, label: object, example: _Example, row: Row, *, from_cells: bool) -> np.ndarray:
        given, words = example.given, example.words
        if self.source.spans and words is not None:
            label = self._tags_of_spans(label, words, texts_of(given)[0], row.number)
        options = given.options if isinstance(given, Question) else ()
        if options and from_cells:
            label = self._of_cell(label, options, row.number)
        target = self.kind.encode(
            self.task,
            label,
            text=texts_of(given)[-1],
            words=words,
            options=options,
            row=row.number,
            source=self.source.path,
        )
        if self.task.kind == "span" and words is not None:
            self.counts["widened"] += widened(target, words)
        elif words is not None and len(target) != len(words):
            raise self._bad(
                "tags and tokens differ in number", f"{len(target)} tags", f"{len(words)}", row.number
            )
        return target

    def _of_cell(self, label: object, options: tuple[str, ...], row: int) -> object:
        """The label of a cell: digits may be an index or an option's text, but not of different options."""
        named = [index for index, option in enumerate(options) if option.strip() == str(label)]
        if not isinstance(label, int) or not named or named == [label]:
            return label
        if label >= len(options) and len(named) == 1:
            return named[0]
        raise self._bad(
            "the label is an index and an option's text too", label, "labels that can be told apart", row
        )

    def _texts(self, row: Row) -> list[str] | None:
        """The row's text or texts; None when one is missing or blank."""
        texts = [self._text(row, column) for column in self.columns.texts]
        found = [text for text in texts if text is not None and text.strip()]
        return found if len(found) == len(texts) else None

    def _text(self, row: Row, column: str | None) -> str | None:
        text = row.values.get(column) if column else None
        if text is not None and not isinstance(text, str):
            raise self._bad(f"column '{column}' must hold a string", text, "a string", row.number)
        return text

    def _tokens(self, row: Row) -> list[str] | None:
        tokens = self._strings(row, self.columns.tokens or "", "tokens")
        return tokens if any(token.strip() for token in tokens) else None

    def _options(self, row: Row) -> tuple[str, ...] | None:
        """The options to choose from; None when there is none, or one is blank."""
        options = [option.strip() for option in self._strings(row, self.columns.choices or "", "choices")]
        if len(options) == 1:
            raise self._bad("there is one choice only", options, "two or more", row.number)
        return tuple(options) if options and all(options) else None

    def _strings(self, row: Row, column: str, what: str) -> list[str]:
        """The strings that a column holds; none where it is missing or empty."""
        value = row.values.get(column)
        found = self._list(value) if isinstance(value, str) else value
        if found is None or found == [] or found == "":
            return []
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise self._bad(f"column '{column}' must hold {what}", value, "a list of strings", row.number)
        return found

    def _label(self, row: Row, *, from_cells: bool) -> object:
        """The label as `Kind.encode` takes it; None when the row has none."""
        value = row.values.get(self.columns.label)
        if value is None or value == "":
            return None
        separated = self.source.separator and not self.columns.choices
        if not isinstance(value, str) or not (from_cells or separated):
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


def _matches(row: Row, where: dict[str, str | int | bool]) -> bool:
    """Whether every named column is written as the wanted value is (1 matches "1", true matches "true")."""
    return all(spelled(row.values.get(column)) == spelled(value) for column, value in where.items())


def _token_words(tokens: list[str]) -> np.ndarray:
    """Where tokens joined by single spaces lie, int32 (words, 2)."""
    sizes = np.array([len(token) for token in tokens], np.int64)
    stops = np.cumsum(sizes + 1) - 1
    return np.stack([stops - sizes, stops], axis=1).astype(np.int32)
