"""Reads rows of a file as inputs and targets of a task; unusable rows are refused, or skipped and counted."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any, Literal

import msgspec
import numpy as np

from polyhead.data.columns import Source, columns_of, joined
from polyhead.data.read_gold import gold_of
from polyhead.data.read_report import ReadReport
from polyhead.data.rows import Rows, no_rows
from polyhead.data.shares import Stored, is_stored, most_of_one, row_group, shares_of, value_of, weight_of
from polyhead.data.tables import Row
from polyhead.errors import BadValue, EmptyData
from polyhead.tasks.gold import TaggedSpan, cut_words, tags_of, widened
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.base import bad_value, parts_of_cell, single
from polyhead.tasks.task import Example, Task
from polyhead.text.characters import has_visible
from polyhead.text.question import Question, TaskInput, by_mark, texts_of, unmarked
from polyhead.text.tokenize import lone_surrogates, repair
from polyhead.text.words import join_tokens, words_in
from polyhead.values import Value


class Examples(Value, eq=False):
    """Inputs with their targets, in the order of the file."""

    inputs: list[TaskInput]
    targets: list[np.ndarray]
    words: list[np.ndarray] | None  # of each row, character offsets int32 (words, 2); None unless the kind is per word
    rows: list[int]  # row numbers in the file
    report: ReadReport
    shares: list[np.ndarray] | None = None  # soft labels: the probability of each label, float32 (labels,)
    groups: list[str | None] | None = None  # of each row: rows of one group stay together; None is of no group
    weights: list[float] | None = None  # of each row, at most 1
    gold: list[tuple[TaggedSpan, ...]] | None = None  # of each row, the labelled spans in the file

    @property
    def taught(self) -> list[np.ndarray]:
        """The training targets of a task: for soft labels and weights probabilities times the weight, else targets."""
        if self.shares is None or not any(self.weights or ()):
            return self.targets if self.shares is None else self.shares
        return [np.float32(weight) * share for weight, share in zip(self.weights or (), self.shares, strict=True)]

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of inputs and targets in order."""
        total = hashlib.sha256()
        for value, target in zip(self.inputs, self.targets, strict=True):
            texts = [text.encode("utf-8", "surrogatepass").hex() for text in texts_of(value)]
            parts = [texts, len(value.options)] if isinstance(value, Question) else texts
            total.update(msgspec.json.encode(parts))
            total.update(np.ascontiguousarray(target).tobytes())
        for array in (*(self.shares or []), *(self.words or [])):
            total.update(np.ascontiguousarray(array).tobytes())
        for values in (self.groups, self.weights):
            total.update(b"" if values is None else msgspec.json.encode(values))
        return total.hexdigest()

    def take(self, indices: list[int]) -> Examples:
        """Some of the examples; the report still covers the whole file."""
        return Examples(
            inputs=[self.inputs[i] for i in indices],
            targets=[self.targets[i] for i in indices],
            words=None if self.words is None else [self.words[i] for i in indices],
            rows=[self.rows[i] for i in indices],
            report=self.report,
            shares=None if self.shares is None else [self.shares[i] for i in indices],
            gold=None if self.gold is None else [self.gold[i] for i in indices],
            groups=None if self.groups is None else [self.groups[i] for i in indices],
            weights=None if self.weights is None else [self.weights[i] for i in indices],
        )

    def scores(self, task: Task, outputs: Sequence[np.ndarray]) -> dict[str, float]:
        """All metrics of the task's kind for these outputs, one output per example."""
        return kind_of(task).evaluate(task, outputs, self.targets, self.each())

    def whole_words(self, index: int) -> np.ndarray | None:
        """The words of a row, int32 (words, 2), without the cuts at gold spans; None if it has no words."""
        if self.words is None or self.gold is None:
            return None if self.words is None else self.words[index]
        return words_in(texts_of(self.inputs[index]))

    def each(self) -> list[Example]:
        """The examples one by one, without their labels."""
        parts = zip(self.inputs, self.words or repeat(None), self.gold or repeat(None), strict=False)
        return [Example(input=example, words=words, gold=gold) for example, words, gold in parts]


def read(source: Source, task: Task, *, stored: Stored | None = None) -> Examples:
    """Every usable row of the source.

    With `soft`, a row is learned from its probabilities, or from its label with probability 1; its target is its label,
    else the most probable one. `stored` holds the scores for soft labels of a store; without it only labels count.

    Raises MissingColumn for a column that no row has, BadValue or UnknownLabel (with the row) for a wrong row,
    EmptyData if no row is left, DataError for a file that cannot be read.
    """
    reader = _Reader(source, task, stored)
    for wrong in reader.faults():
        raise wrong
    return reader.examples()


class Reading(Value, eq=False):
    """The usable rows of a source, the errors of the wrong ones, and the numbers of the skipped ones."""

    examples: Examples | None  # None: there is none
    wrong: tuple[BadValue, ...]
    empty: tuple[int, ...]
    unlabelled: tuple[int, ...]
    overlapping: tuple[int, ...]  # rows with overlapping labelled spans: skipped, or without the shorter spans
    columns: tuple[str, ...]  # numbers in the file, in its order
    rows: int


def read_each(source: Source, task: Task) -> Reading:
    """Every usable row, and the error of each unusable one; soft labels of a store are ignored.

    Raises ConfigError for columns that give no input and label, DataError for a file that cannot be read, with
    MissingColumn and EmptyData as in `read` if it has no rows at all.
    """
    reader = _Reader(source, task, None)
    wrong = tuple(reader.faults())
    return Reading(
        examples=reader.examples() if reader.used else None,
        wrong=wrong,
        empty=tuple(reader.places["empty"]),
        unlabelled=tuple(reader.places["unlabelled"]),
        overlapping=(*reader.places["overlapping"], *reader.places["shorter"]),
        columns=tuple(reader.table.columns),
        rows=reader.counts["rows"],
    )


def every_input(source: Source, task: Task) -> list[Example]:
    """The input of every readable row, labelled or not; raises ConfigError and DataError as `read_each`."""
    return list(_Reader(source, task, None).inputs())


class _Reader:
    """Collects the examples of one source."""

    def __init__(self, source: Source, task: Task, stored: Stored | None) -> None:
        self.columns = columns_of(source, task)
        if is_stored(source.soft) and stored is None:
            source = msgspec.structs.replace(source, soft=None)
            self.columns = columns_of(source, task)
        self.source, self.task, self.kind = source, task, kind_of(task)
        self.stored = stored if is_stored(source.soft) else None
        self.is_soft = source.soft is not None or source.weight is not None
        self.table = Rows(source.path, self.columns.wanted)
        self.blank_is_none = self.kind.empty_is_none and source.empty != "skip"
        self.counts, self.places = Counter[str](), defaultdict[str, list[int]](list)  # counts of rows, by reason
        self.used: list[Example] = []
        self.targets: list[np.ndarray | None] = []  # None if there are only soft labels
        self.shares: list[np.ndarray | None] = []
        self.of_training: dict[int, dict[str, Any]] = {}  # group and weight, by the row's number

    def faults(self) -> Iterator[BadValue]:
        """Adds all rows, and yields the errors of the wrong ones."""
        is_wrong = False
        for row in self._selected():
            try:
                if isinstance(row, BadValue):
                    raise row
                self._note(self._add(row), row.number)
            except BadValue as error:
                is_wrong = True
                yield error
        if self.table.columns:
            self.columns.check(self.source.path, list(self.table.columns))
        elif not is_wrong:
            raise no_rows(self.source.path)

    def inputs(self) -> Iterator[Example]:
        """The input of each readable row, labelled or not."""
        for row in self._selected():
            with suppress(BadValue):
                if isinstance(row, Row) and (parts := self._parts(row)) is not None:
                    yield self._example(*parts, row.number)

    def _selected(self) -> Iterator[Row | BadValue]:
        """The rows that `where` and `limit` select, and the errors of those that cannot be read."""
        for row in self.table.each():
            if self.source.limit is not None and self.counts["rows"] >= self.source.limit:
                break
            if isinstance(row, BadValue):
                yield row
            elif self.source.selects(row.values):
                self.counts["rows"] += 1
                yield row

    def _note(self, note: str, row: int, count: int = 1) -> None:
        if count:
            self.counts[note] += count
            self.places[note].append(row)

    def examples(self) -> Examples:
        used, targets, shares = self._taught() if self.is_soft else (self.used, self.targets, None)
        report = ReadReport(**{name: self.counts[name] for name in ReadReport.__struct_fields__})
        if not used:
            raise EmptyData(
                f"task '{self.task.name}': no row of {self.source.path} can be used",
                got=f"{report.rows} rows, {report.unlabelled} without a label, {report.empty} without a text",
                do="give rows that have both" if report.rows else "check 'where' and 'limit'",
                report=report,
            )
        return Examples(
            inputs=[example.input for example in used],
            targets=[target for target in targets if target is not None],
            words=[example.places for example in used] if self.kind.per_word else None,
            rows=[example.row or 0 for example in used],
            report=report,
            shares=shares,
            gold=[example.gold or () for example in used] if self.source.spans else None,
            groups=self._each("group", used),
            weights=None if (weights := self._each("weight", used)) is None else most_of_one(weights),
        )

    def _each(self, role: Literal["group", "weight"], used: Sequence[Example]) -> list[Any] | None:
        """The group or the weight of each of these rows; None if the file has no such column."""
        has_column = getattr(self.source, role) in self.table.columns
        return [self.of_training[example.row or 0][role] for example in used] if has_column else None

    def _taught(self) -> tuple[list[Example], list[np.ndarray | None], list[np.ndarray]]:
        """The examples with a label, soft or not, with their targets and probabilities."""
        all_shares = self.shares if self.stored is None else self._from_store(self.stored)
        used, targets, shares = list[Example](), list[np.ndarray | None](), list[np.ndarray]()
        for example, target, soft in zip(self.used, self.targets, all_shares, strict=True):
            if target is None and soft is None:
                self.counts["used"] -= 1
                self.counts["unlabelled"] += 1
                continue
            if soft is None:
                assert target is not None
                soft = self.kind.shares_of(self.task, target)
            used.append(example)
            targets.append(self.kind.target_of(self.task, soft) if target is None else target)
            shares.append(soft)
        return used, targets, shares

    def _from_store(self, stored: Stored) -> list[np.ndarray | None]:
        pairs = zip(stored(self.used), self.used, strict=True)
        return [None if scores is None else shares_of(self.task, scores, example) for scores, example in pairs]

    def _add(self, row: Row) -> str:
        """Adds a row; returns the reason why it is skipped, or "used"."""
        parts = self._parts(row)
        if parts is None:
            return "empty"
        label, soft = self._label(row), self._soft(row)
        if label is None and soft is None and self.stored is None:
            return "unlabelled"
        texts, options, context = parts
        example = self._example(*parts, row.number)
        if self.source.spans:
            spans, left_out = gold_of(label, self.source, self.task, example)
            self._note("shorter", row.number, left_out)
            if spans is None:
                return "overlapping"
            words = cut_words(example.places, spans)
            self.counts["lost"] += sum(widened(span, example.places) != span for span in spans)
            example = msgspec.structs.replace(example, words=words, gold=tuple(spans))
        target = None if label is None else self._target(label, example)
        shares = None if soft is None else shares_of(self.task, soft, example)
        group = row_group(row.values.get(self.source.group or ""))
        self.of_training[row.number] = {"group": group, "weight": self._weight(row)}
        self.targets.append(target)  # only now is it sure that the row can be used
        self.shares.append(shares)
        self.used.append(example)
        self.counts["repaired"] += sum(map(lone_surrogates, (*texts, *options, context)))
        return "used"

    def _parts(self, row: Row) -> tuple[list[str], tuple[str, ...], str] | None:
        """The row's texts or tokens, its options and its context; None if texts or options are missing or blank."""
        texts = self._tokens(row) if self.columns.tokens else self._texts(row)
        options = self._options(row) if self.columns.choices else ()
        if texts is None or options is None:
            return None
        return texts, options, self._text(row, self.columns.context) or ""

    def _example(self, texts: list[str], options: tuple[str, ...], context: str, row: int) -> Example:
        example: TaskInput
        first, *second = map(repair, texts)
        if options:
            example = Question(text=first, options=tuple(map(repair, options)), context=repair(context))
            words = None
        elif self.columns.tokens:
            text, words = join_tokens([first, *second])
            example = (text,)
        else:
            example = (first, second[0]) if second else (first,)
            words = words_in(example) if self.kind.per_word else None
        return Example(input=example, words=words, source=self.source.path, row=row)

    def _target(self, label: object, example: Example) -> np.ndarray:
        if example.gold is not None:
            label = self._tags(example.gold, example)
        if example.options and self.table.has_cells:
            label = self._of_cell(label, example)
        target = self.kind.encode(self.task, label, example)
        if self.kind.labels_words and len(target) != len(example.places):
            tags, allowed = f"{len(target)} tags", f"{len(example.places)}"
            raise self._bad("tags and tokens differ in number", tags, allowed, example.row)
        self.counts["widened"] += self.kind.widened(target, example)
        return target

    def _of_cell(self, label: object, example: Example) -> object:
        """The label in a cell: digits may be an index or an option's text, but must not match different options."""
        options = example.options
        named = [index for index, option in enumerate(options) if option.strip() == str(label)]
        if not isinstance(label, int) or not named or named == [label]:
            return label
        if label >= len(options) and len(named) == 1:
            return named[0]
        problem, allowed = "the label is an index and an option's text too", "labels that can be told apart"
        raise self._bad(problem, label, allowed, example.row)

    def _texts(self, row: Row) -> list[str] | None:
        """The row's text or texts; None if one is missing or blank."""
        texts = [self._text(row, column) for column in self.columns.texts]
        filled = [text for text in texts if text is not None and has_visible(text)]
        return filled if len(filled) == len(texts) else None

    def _text(self, row: Row, column: str | tuple[str, ...] | None) -> str | None:
        if isinstance(column, tuple):
            return joined([self._text(row, each) for each in column])
        text = row.values.get(column) if column else None
        if text is not None and not isinstance(text, str):
            raise self._bad(f"column '{column}' must hold a string", text, "a string", row.number)
        return text

    def _tokens(self, row: Row) -> list[str] | None:
        tokens = self._strings(row, self.columns.tokens or "", "tokens")
        return tokens if any(map(has_visible, tokens)) else None

    def _options(self, row: Row) -> tuple[str, ...] | None:
        """The options to choose from; None if there are none, or one is blank."""
        options = [option.strip() for option in self._strings(row, self.columns.choices or "", "choices")]
        if len(options) == 1:
            raise self._bad("there is one choice only", options, "two or more", row.number)
        return tuple(options) if options and all(options) else None

    def _strings(self, row: Row, column: str, content: str) -> list[str]:
        """The strings in a column; empty if it is missing or blank."""
        value = row.values.get(column)
        value = unmarked(value) if column == self.columns.choices else value
        items = parts_of_cell(value, self.source.separator) if isinstance(value, str) else value
        if items is None or items == [] or items == "":
            return []
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise self._bad(f"column '{column}' must hold {content}", value, "a list of strings", row.number)
        return items

    def _label(self, row: Row) -> object:
        """The label in the form of `Kind.encode`; None if the row has none."""
        value = by_mark(row.values.get(self.columns.label), row.values.get(self.columns.choices or ""))
        if self.kind.takes_single:
            value = single(value)
        if self.blank_is_none and not self.is_soft and isinstance(value, str) and not value.strip():
            self.counts["none"] += 1
            return []
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        separated = self.source.separator and not self.columns.choices
        if not isinstance(value, str) or not (self.table.has_cells or separated):
            return value
        return (parts_of_cell if self.source.spans else self.kind.parse)(value, self.source.separator)

    def _soft(self, row: Row) -> object:
        """The value of the row's columns of soft labels; None if they are empty."""
        cells = [row.values.get(column) for column in self.columns.soft]
        return value_of(cells, is_list=bool(self.source.one_hot)) if cells else None

    def _weight(self, row: Row) -> float:
        weight = weight_of(value := row.values.get(self.source.weight, 1.0) if self.source.weight else 1.0)
        if weight is None:
            raise self._bad(f"'{self.source.weight}' is no weight", value, "a finite number, 0 or more", row.number)
        return weight

    def _tags(self, spans: Sequence[TaggedSpan], example: Example) -> list[str]:
        try:
            return tags_of(spans, example.places)
        except ValueError as error:
            raise self._bad(str(error), list(spans), "spans that hold words", example.row) from None

    def _bad(self, problem: str, got: object, allowed: object, row: int | None) -> BadValue:
        return bad_value(self.task, Example(source=self.source.path, row=row), problem, got=got, allowed=allowed)
