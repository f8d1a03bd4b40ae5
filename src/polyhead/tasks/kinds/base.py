"""What every kind of task can do, and the checks that several kinds share."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, ClassVar, Literal

import numpy as np

from polyhead.config import Value
from polyhead.errors import BadValue, ConfigError, DataError, EmptyData, UnknownLabel
from polyhead.tasks.example import Example
from polyhead.tasks.task import PairMode, Task
from polyhead.text.tokenise import lone_surrogates

LossName = Literal[
    "cross_entropy",
    "binary_cross_entropy",
    "squared_error",
    "word_cross_entropy",
    "ranking",
    "span",
    "token_cross_entropy",
]
ScoresOf = Literal["softmax", "sigmoid", "range"]
Answer = dict[str, Any]
"""Plain values, as they are written to JSON."""


class Kind(ABC):
    """What an answer looks like: its targets, its head's width, its loss, metrics and decoding.

    An output is the head's raw float32 answer for one row: (width,), (words, width) when `per_word`, or (options,)
    when `per_option`. Methods take the example too, as some labels and answers mean something only beside it.
    """

    name: ClassVar[str]
    loss: ClassVar[LossName]
    per_word: ClassVar[bool] = False  # the head reads each word (of a pair, those of the second text)
    per_option: ClassVar[bool] = False  # the trunk reads a pair an option, the head gives each a number
    pair: ClassVar[PairMode | None] = None  # the one way in which the kind reads a pair, if there is only one
    # What makes a row's outputs the numbers of its answer; None where these depend on other rows or places too.
    scores: ClassVar[ScoresOf | None] = None

    @abstractmethod
    def check(self, task: Task) -> None:
        """Raises ConfigError for a task that does not say what the kind needs, or says what it cannot use."""

    @abstractmethod
    def width(self, task: Task) -> int:
        """Outputs of the head, of each word when `per_word`, of each option when `per_option`."""

    @abstractmethod
    def metrics(self, task: Task) -> tuple[str, ...]:
        """Names that `evaluate` gives, the default first; higher is better for all of them."""

    @abstractmethod
    def encode(self, task: Task, label: object, example: Example) -> np.ndarray:
        """A label of the data as a target. Raises BadValue or UnknownLabel with the task and the example's place."""

    @abstractmethod
    def decode(self, task: Task, outputs: np.ndarray, example: Example) -> Answer:
        """One row's output as plain values."""

    def decode_all(
        self, task: Task, outputs: Sequence[np.ndarray], examples: Sequence[Example]
    ) -> list[Answer]:
        """The same of many rows; each answer is, to the bit, what `decode` gives of it alone."""
        return [self.decode(task, row, one) for row, one in zip(outputs, examples, strict=True)]

    @abstractmethod
    def evaluate(
        self,
        task: Task,
        outputs: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
        examples: Sequence[Example],
    ) -> dict[str, float]:
        """Every metric of the kind on a whole split. Raises EmptyData when there is no row."""

    def constant(
        self, task: Task, targets: Sequence[np.ndarray], examples: Sequence[Example]
    ) -> list[np.ndarray] | None:
        """Outputs that give all examples one answer, the best by `targets`; None for a kind without such answers."""
        return None

    def fitting_metric(self, task: Task, targets: Sequence[np.ndarray]) -> str | None:
        """The metric for a task that names none, where the default would hide how rare its labels are; else None."""
        return None

    def offsets(self, task: Task, targets: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What may be added to the outputs so that rare labels are answered more often, the smallest first."""
        return []

    @abstractmethod
    def class_weights(self, task: Task, targets: Sequence[np.ndarray]) -> np.ndarray | None:
        """Weights float32 (labels,) that balance the loss; None for a kind without classes."""

    def default_metric(self, task: Task) -> str:
        """The metric that chooses between models: the task's, or the kind's first."""
        return task.metric or self.metrics(task)[0]

    def parse(self, cell: str, separator: str | None) -> object:
        """A label from the text of a CSV or TSV cell."""
        return cell

    def in_window(self, target: np.ndarray, read: np.ndarray, whole: np.ndarray) -> np.ndarray:
        """What one window teaches, of a kind that reads words: the target of a text that has the window's words alone.

        `read` (read,) are the words that the window reads, in order, `whole` (read,) whether it holds all of each.
        """
        return np.asarray(target[read])

    def merge_windows(self, task: Task, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """One output from those of a row's windows: their mean."""
        return np.asarray(np.mean(np.stack(outputs), axis=0, dtype=np.float64), np.float32)

    def merge_words(
        self, task: Task, outputs: Sequence[np.ndarray], read: Sequence[np.ndarray], best: np.ndarray
    ) -> np.ndarray:
        """One output (words, width) from windows that give some words each, NaN for words that none gives.

        `read` says for each window which words its rows are, `best` (words,) which window should give a word (see
        `text.words.best_windows`).
        """
        merged = np.full((len(best), outputs[0].shape[-1]), np.nan, np.float32)
        for index, (rows, which) in enumerate(zip(outputs, read, strict=True)):
            mine = best[which] == index
            merged[which[mine]] = rows[mine]
        return merged


class Decoded(Value, eq=False):
    """Answers to many rows as arrays; what a kind does not answer is None."""

    label: np.ndarray | None = None  # int64 (rows,): index of the answered label
    labels: np.ndarray | None = None  # bool (rows, labels): those that are answered
    scores: np.ndarray | None = None  # float64 (rows, labels): probabilities
    value: np.ndarray | None = None  # float64 (rows,)


class RowKind(Kind):
    """A kind with one output of fixed width for an input, whose answers to many are a few arrays."""

    @abstractmethod
    def decode_rows(self, task: Task, outputs: np.ndarray) -> Decoded:
        """The answers to rows with these outputs, (rows, width)."""

    @abstractmethod
    def answers(self, task: Task, decoded: Decoded) -> list[Answer]:
        """The same as plain values, row by row."""

    def decode(self, task: Task, outputs: np.ndarray, example: Example) -> Answer:
        """One row's output as plain values: `answers` of it alone."""
        return self.answers(task, self.decode_rows(task, np.reshape(outputs, (1, -1))))[0]


def listed(cell: str, otherwise: object) -> object:
    """The JSON list that a cell spells, the cell where it only begins like one, and `otherwise` for any other."""
    if not cell.lstrip().startswith("["):
        return otherwise
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):  # a thousand brackets are no list of labels either
        return cell


def as_float(number: float) -> float:
    """The number; infinity for a whole one of more than 308 digits."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def spelled(label: object) -> str | None:
    """How a label is written in a task's list; None for what cannot be a label (floats, lists)."""
    if isinstance(label, bool):
        return "true" if label else "false"
    return str(label) if isinstance(label, (str, int)) else None


def label_index(task: Task, label: object, example: Example) -> int:
    """The index of a label in the task's list."""
    name = spelled(label)
    if name is None:
        raise bad_value(
            task,
            example,
            f"a label cannot be {_type(label)}",
            got=label,
            allowed=task.labels,
            do="write it as a string",
        )
    try:
        return task.labels.index(name)
    except ValueError:
        raise UnknownLabel(
            f"{where(task, example)}: label '{name}' is not one of the task's",
            allowed=task.labels,
            do="add it to the task's labels or fix the row",
            task=task.name,
            source=example.source,
            row=example.row,
            label=name,
        ) from None


def bad_value(
    task: Task, example: Example, what: str, *, got: object, allowed: object, do: str = "fix the row"
) -> BadValue:
    """The error of one row, with the facts that every such error carries."""
    what, source, row = f"{where(task, example)}: {what}", example.source, example.row
    return BadValue(what, got=got, allowed=allowed, do=do, task=task.name, source=source, row=row)


def where(task: Task, example: Example) -> str:
    """`task 'cola', train.jsonl row 17`, or as much of it as is known."""
    file, row = PurePath(example.source).name, example.row
    place = " ".join(part for part in (file, "" if row is None else f"row {row}") if part)
    return f"task '{task.name}'" + (f", {place}" if place else "")


def check_labels(task: Task, *, least: int) -> None:
    """Raises ConfigError unless the task declares at least `least` distinct, writable labels."""
    labels = task.labels
    twice = [label for label in dict.fromkeys(labels) if labels.count(label) > 1]
    unwritable = [label for label in labels if not label.strip() or lone_surrogates(label)]
    if len(labels) < least or twice or unwritable:
        raise ConfigError(
            f"task '{task.name}': kind '{task.kind}' needs an ordered list of labels",
            got=(f"twice: {twice}" if twice else f"unwritable: {unwritable}" if unwritable else list(labels)),
            allowed=f"at least {least} different labels",
            do="declare them all in the order of the outputs; they are never guessed from the data",
            task=task.name,
        )


def check_unused(task: Task, *fields: str) -> None:
    """Raises ConfigError when the task sets a field that its kind does not use."""
    defaults = {"labels": (), "threshold": 0.5, "range": None, "positive": None, "pair": "none"}
    defaults |= {"null_answers": False, "long_texts": "cut"}
    for field in fields:
        if getattr(task, field) != defaults[field]:
            raise ConfigError(
                f"task '{task.name}': kind '{task.kind}' has no use for '{field}'",
                got=getattr(task, field),
                do=f"remove '{field}' or choose another kind",
                task=task.name,
            )


def check_metric(task: Task, names: tuple[str, ...]) -> None:
    """Raises ConfigError when the task's metric is none of `names`."""
    if task.metric is not None and task.metric not in names:
        raise ConfigError(
            f"task '{task.name}': no metric '{task.metric}' for kind '{task.kind}'",
            allowed=names,
            task=task.name,
        )


def check_split(task: Task, outputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> None:
    """Raises EmptyData for a split without rows, DataError when outputs and targets do not match."""
    if len(outputs) != len(targets):
        raise DataError(
            f"task '{task.name}': as many outputs as targets are needed",
            got=f"{len(outputs)} outputs, {len(targets)} targets",
        )
    if not len(targets):
        raise EmptyData(
            f"task '{task.name}': a split without rows has no score", do="give a split that has rows"
        )


def balanced(targets: np.ndarray, labels: int) -> np.ndarray:
    """`n / (k n_c)` for each of the k labels c that occur, scikit-learn's 'balanced'; 1 for the others."""
    counts = np.bincount(np.asarray(targets, np.int64).reshape(-1), minlength=labels)
    weights = counts.sum() / (max(1, np.count_nonzero(counts)) * np.maximum(counts, 1))
    return np.where(counts > 0, weights, 1.0).astype(np.float32)


def softmax(outputs: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis, in float64."""
    shifted = np.asarray(outputs, np.float64)
    shifted = np.exp(shifted - shifted.max(axis=-1, keepdims=True, initial=-math.inf))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def _type(value: object) -> str:
    names = {float: "a number with a fraction", list: "a list", dict: "an object", type(None): "missing"}
    return names.get(type(value), type(value).__name__)
