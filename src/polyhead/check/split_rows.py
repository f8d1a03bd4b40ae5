"""The rows of one split of a task, and findings about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from polyhead.data.columns import Source
from polyhead.data.read import Reading
from polyhead.progress import counted as counted
from polyhead.progress import short as short
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.normalize import normalized_text
from polyhead.text.question import TaskInput, texts_of
from polyhead.values import Value

Level = Literal["fault", "hint"]
"""A fault makes scores wrong, or stops training; a hint is worth a look."""


class RowRef(Value):
    """One row that shows a finding."""

    split: str
    file: str
    row: int
    text: str = ""
    label: str = ""
    other: str = ""  # the row, label or text it is compared with


class Finding(Value):
    """One kind of fault in one task or file."""

    kind: str
    level: Level
    what: str  # a sentence about the data
    do: str
    task: str = ""
    split: str = ""
    rows: int = 0  # rows that show it
    of: int = 0  # number of rows examined
    places: tuple[RowRef, ...] = ()


WORD = re.compile(r"\w+")
TRAIN = "train"


class SplitRows:
    """One split (`name`) of a task. Examples are numbered from 0; `rows` holds their row numbers in the file."""

    def __init__(self, task: Task, name: str, source: Source, reading: Reading) -> None:
        self.task, self.name, self.source, self.reading = task, name, source, reading
        self.kind = kind_of(task)
        examples = reading.examples
        self.inputs: list[TaskInput] = [] if examples is None else examples.inputs
        self.targets: list[np.ndarray] = [] if examples is None else examples.targets
        self.rows: list[int] = [] if examples is None else examples.rows
        none: list[str | None] = [None] * len(self.rows)
        self.groups = none if examples is None or examples.groups is None else examples.groups

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def is_train(self) -> bool:
        """Whether the task is trained on these rows."""
        return self.name == TRAIN

    @property
    def has_labels(self) -> bool:
        """Whether a row's answer is labels from a list."""
        return "labels" in self.kind.uses

    @property
    def has_classes(self) -> bool:
        """Whether a whole row has labels from a list."""
        return self.has_labels and not self.kind.per_word

    @property
    def has_numbers(self) -> bool:
        """Whether a row's answer is a number in a range."""
        return "range" in self.kind.uses

    @cached_property
    def texts(self) -> list[str]:
        """All texts of each input, input after input."""
        return [" ".join(texts_of(value)) for value in self.inputs]

    @cached_property
    def lines(self) -> list[str]:
        """Each input without case and extra spaces, with its texts kept separate."""
        return ["\n".join(" ".join(text.casefold().split()) for text in texts_of(value)) for value in self.inputs]

    @cached_property
    def keys(self) -> list[str]:
        """Each input without case, spaces and punctuation; if nothing is left, as in `lines`."""
        lists = (("\n".join(map(normalized_text, texts_of(value)))) for value in self.inputs)
        return [letters if letters.strip() else line for letters, line in zip(lists, self.lines, strict=True)]

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of characters of each input, int64 (rows,)."""
        return np.array(list(map(len, self.texts)), np.int64)

    @cached_property
    def labels(self) -> list[tuple[int, ...]]:
        """The indices of each row's labels; for labels of words, those that occur; () for tasks without labels."""
        if not self.has_labels:
            return [()] * len(self)
        if self.kind.per_word:
            return [tuple(np.unique(target).tolist()) for target in self.targets]
        if self.kind.label_is_list:
            return [tuple(np.flatnonzero(target >= 0.5).tolist()) for target in self.targets]
        return [(int(target),) for target in self.targets]

    @cached_property
    def counts(self) -> np.ndarray:
        """Number of rows with each label, int64 (labels,)."""
        lists = [label for labels in self.labels for label in labels]
        return np.bincount(np.array(lists, np.int64), minlength=len(self.task.labels))

    @cached_property
    def answers(self) -> list[object]:
        """The values by which two rows' labels are compared: indices, a number, tags; None if labels do not apply."""
        if self.has_labels and not self.kind.per_word:
            return list(self.labels)
        if self.has_numbers:
            low, high = self.task.range or (0.0, 1.0)
            return [low + (high - low) * float(target) for target in self.targets]
        if self.has_labels or self.kind.per_option:
            return [np.asarray(target).tobytes() for target in self.targets]
        return [None] * len(self)

    @cached_property
    def spread(self) -> float:
        """The distance from the 5th to the 95th percentile of the numbers, which no single wrong cell widens.

        If it is 0, the task's range.
        """
        low, high = self.task.range or (0.0, 1.0)
        numbers = low + (high - low) * np.array(self.targets, np.float64)
        first, last = np.percentile(numbers, 5, method="higher"), np.percentile(numbers, 95, method="lower")
        return float(last - first) if first < last else high - low

    def label_of(self, index: int) -> str:
        """A row's label as readable text."""
        if self.has_numbers:
            return self._number(index)
        if self.has_classes:
            return ", ".join(self.task.labels[label] for label in self.labels[index])
        return ""

    def _number(self, index: int) -> str:
        """The shortest number with the row's target, which is rounded: the file's own digits."""
        low, high = self.task.range or (0.0, 1.0)
        target, number = self.targets[index], low + (high - low) * float(self.targets[index])
        shorter = (float(f"{number:.{digits}g}") for digits in range(1, 17))
        same = (each for each in shorter if np.float32((each - low) / (high - low)) == target)
        return f"{next(same, number):.15g}"

    def place(self, index: int, *, other: str = "") -> RowRef:
        """The place of an example, with its text and label."""
        text = short(" | ".join(texts_of(self.inputs[index])))
        (place,) = self.at([self.rows[index]], label=self.label_of(index), other=other)
        return msgspec.structs.replace(place, text=text)

    def at(self, rows: Iterable[int], *, label: str = "", other: str = "") -> tuple[RowRef, ...]:
        """Places of rows, by their number in the file."""
        return tuple(RowRef(split=self.name, file=self.source.path, row=r, label=label, other=other) for r in rows)

    def found(
        self,
        kind: str,
        level: Level,
        message: str,
        *,
        do: str,
        indices: Sequence[int] = (),
        places: Sequence[RowRef] | None = None,
    ) -> Finding:
        """A finding about these rows; `indices` are those of examples, unless `places` are given."""
        shown = tuple(map(self.place, indices)) if places is None else tuple(places)
        return Finding(
            kind=kind,
            level=level,
            what=message,
            do=do,
            task=self.task.name,
            split=self.name,
            rows=len(shown),
            of=self.reading.rows,
            places=shown,
        )

    @property
    def file(self) -> str:
        """The file's name without its folder."""
        return Path(self.source.path).name


def by_task(splits: Sequence[SplitRows]) -> list[list[SplitRows]]:
    """The splits, grouped by task."""
    splits_of_tasks: dict[str, list[SplitRows]] = {}
    for split in splits:
        splits_of_tasks.setdefault(split.task.name, []).append(split)
    return list(splits_of_tasks.values())


def names_text(names: Sequence[str], most: int = 8) -> str:
    """Names with commas, and the number of omitted ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"'{short(name, 40)}'" for name in names[:most]) + more
