"""Tasks, kinds and examples: a task is a named question about a text; its kind defines answers, labels and metrics."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from polyhead.arguments import check_fields
from polyhead.errors import BadName, ConfigError
from polyhead.registry import Registry
from polyhead.tasks.generation import GenerationRules
from polyhead.tasks.gold import TaggedSpan
from polyhead.tasks.judging import Judged
from polyhead.tasks.metrics import LabelScore
from polyhead.text.question import Question, TaskInput, texts_of
from polyhead.text.tokenize import repair
from polyhead.text.words import words_in
from polyhead.values import Value


class Example(Value, eq=False):
    """An input as its kind reads it, with lone surrogates replaced, and the place that errors about it name."""

    input: TaskInput = ("",)
    words: np.ndarray | None = None  # the example's own (words, 2), in characters; None: those of `words_in`
    source: str = ""  # the file of the row
    row: int | None = None  # its number in the file
    # For tagging, the labelled spans of the row; its words are cut where one begins or ends inside a word.
    gold: tuple[TaggedSpan, ...] | None = None

    @property
    def text(self) -> str:
        """The only or last text: the one with the words and answers."""
        return repair(texts_of(self.input)[-1])

    @property
    def places(self) -> np.ndarray:
        """The characters of each word of `text` that gets an output, int (words, 2)."""
        return words_in(texts_of(self.input)) if self.words is None else np.asarray(self.words)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a question; empty for any other input."""
        return tuple(map(repair, self.input.options)) if isinstance(self.input, Question) else ()


PairMode = Literal["none", "joined", "separate"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Task(Value):
    """One question. Checked when made: BadName for its name, ConfigError for a field that it cannot use."""

    name: str
    kind: str  # the name of a registered kind
    labels: tuple[str, ...] = ()  # ordered: label i is output i of the head, for the life of the weights
    pair: PairMode = "none"  # joined: one input (A, separator, B), always so for span; separate: two, compared
    metric: str | None = None  # None: the kind's default
    threshold: float = 0.5  # multi_label: a label is given from this probability on
    none_below: float = 0.0  # familiarity of a text below which none of the labels fits; 0: never
    range: tuple[float, float] | None = None  # regression: lowest and highest value
    positive: str | None = None  # single_label: the label of metric 'f1'
    long_texts: Literal["cut", "windows"] = "cut"
    null_answers: bool = False  # span: whether a text may have no answer
    # span, imported: an answer's end is read at the last token of its word; unset: at the first, as its beginning
    ends: Literal["last"] | msgspec.UnsetType = msgspec.UNSET
    decoder: Literal["greedy", "constrained"] = "greedy"  # tagging: each word alone, or the best allowed BIO sequence
    generation: GenerationRules | msgspec.UnsetType = msgspec.UNSET  # of a kind that generates: how texts are written
    # tagging, learned: what the best sequence adds for each label that comes first, then for each that follows another
    transitions: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        check_name(self.name)
        kind = KINDS.named(self.kind)
        if self.pair == "none" and kind.pair is not None:
            msgspec.structs.force_setattr(self, "pair", kind.pair)
        for field, default in _DEFAULTS.items():
            if field not in kind.uses and getattr(self, field) != default:
                raise ConfigError(
                    f"task '{self.name}': kind '{self.kind}' has no use for '{field}'",
                    got=getattr(self, field),
                    do=f"remove '{field}' or choose kind {kinds_with('uses', field)}",
                    task=self.name,
                )
        kind.check(self)
        if not 0 <= self.none_below <= 1:
            raise ConfigError(
                f"task '{self.name}': 'none_below' is a share of rows",
                got=self.none_below,
                allowed="0 to 1",
                task=self.name,
            )
        if self.metric is not None and self.metric not in kind.metrics(self):
            raise ConfigError(
                f"task '{self.name}': no metric '{self.metric}' for kind '{self.kind}'",
                allowed=kind.metrics(self),
                task=self.name,
            )
        if self.long_texts == "windows" and self.pair == "separate":
            raise ConfigError(
                f"task '{self.name}': texts of a pair that are read separately are not read in windows",
                allowed="long_texts = 'cut', or pair = 'joined'",
            )


_DEFAULTS = {
    field.name: field.default
    for field in msgspec.structs.fields(Task)
    if field.default is not msgspec.NODEFAULT and field.name != "metric"
}
"""The fields of a task that kinds use or refuse, with their defaults."""


def owner_of(task: Task) -> str:
    """The owner of a task's own arrays."""
    return f"task:{task.name}"


LossName = Literal[
    "cross_entropy",
    "binary_cross_entropy",
    "squared_error",
    "word_cross_entropy",
    "ranking",
    "span_cross_entropy",
    "token_cross_entropy",
]
ScoresOf = Literal["softmax", "sigmoid", "range"]
CellForm = Literal["text", "number", "flag", "texts", "places", "shares", "numbers", "json"]
"""The form of a column that `polyhead predict` adds: `places` are indices, `shares` a number for each label."""
Arrays = Sequence[np.ndarray]
"""An array a row."""
Answer = dict[str, Any]
"""Plain values, as they are written to JSON."""


class Mistake(Value):
    """A wrong answer with the right one, in short form: a label, labels, a number, spans, a text."""

    truth: Any
    answer: Any
    score: float | None = None  # confidence of the wrong answer; for a number, the error as a fraction of the range


class Kind(ABC):
    """The form of a task's answers: targets, width of the head, loss, metrics and decoding.

    An output is the head's raw float32 answer for one row: (width,), (words, width) if `per_word`, or (options,) if
    `per_option`. Methods take the example too, since some labels and answers need it.
    """

    name: ClassVar[str]
    # names in other programs, in small letters with `_`; an error suggests ours
    other_names: ClassVar[tuple[str, ...]] = ()
    loss: ClassVar[LossName]
    uses: ClassVar[tuple[str, ...]]  # the fields of `Task` that it uses, in addition to name, kind and metric
    least_labels: ClassVar[int] = 2  # for a kind that uses `labels`
    per_word: ClassVar[bool] = False  # the head reads each word (in a pair, those of the second text)
    per_option: ClassVar[bool] = False  # the trunk reads one pair per option, the head returns a number for each
    generates: ClassVar[bool] = False  # its head writes a text with a decoder; an output is that text
    # if the trunk learns, its tasks share one head unless the recipe says otherwise
    shares_head: ClassVar[bool] = False
    # The function from a row's outputs to its answer's numbers; None if these depend on other rows or places too.
    scores: ClassVar[ScoresOf | None] = None
    problem_type: ClassVar[str | None] = None  # problem type in the `transformers` config of such a classifier
    model_class: ClassVar[str] = "SequenceClassification"  # the end of the name of its class in `transformers`

    pair: ClassVar[PairMode | None] = None  # the only way in which the kind reads a pair, if there is one
    # whether heads over frozen features read the texts of a pair separately by default
    separate_pairs: ClassVar[bool] = False

    # The columns of a file; a key of the task can override each name.
    text_column: ClassVar[str] = "text"
    context_column: ClassVar[str | None] = None  # column of a question's context; None: the kind answers no questions
    label_key: ClassVar[Literal["label", "answers"]] = "label"  # the key with the name of the label's column
    column_keys: ClassVar[tuple[str, ...]] = ()  # the ones that it reads of tokens, tags, spans, choices and answers
    empty_is_none: ClassVar[bool] = False  # an empty cell means that no label applies, instead of an unlabelled row
    label_is_list: ClassVar[bool] = False  # a row's label is a list of labels
    takes_shares: ClassVar[bool] = False  # a row may have a probability for each label: `shares`, `target_of` and back

    # The columns that `polyhead predict` adds: one for the answer, and one for its `scores`, if it has any.
    cell: ClassVar[CellForm] = "json"
    cell_key: ClassVar[str | None] = None  # the part of an answer in its cell; None: all of it
    score_cell: ClassVar[CellForm | None] = None

    @property
    def labels_words(self) -> bool:
        """Whether there is one label per word."""
        return self.per_word and "labels" in self.uses

    @property
    def takes_single(self) -> bool:
        """Whether a row has one label, which may be the only item of a list."""
        return not self.label_is_list and "labels" in self.uses

    def check(self, task: Task) -> None:  # noqa: B027
        """Raises ConfigError for a task whose fields do not fit the kind."""

    def width(self, task: Task) -> int:
        """Outputs of the head, per word if `per_word`, per option if `per_option`: one per label, or one."""
        return len(task.labels) if "labels" in self.uses else 1

    @abstractmethod
    def metrics(self, task: Task) -> tuple[str, ...]:
        """Names in the result of `evaluate`, the default first; higher is better for all of them."""

    @abstractmethod
    def encode(self, task: Task, label: object, example: Example) -> np.ndarray:
        """A label of the data as a target. Raises BadValue or UnknownLabel with the task and the example's place."""

    @abstractmethod
    def decode(self, task: Task, outputs: np.ndarray, example: Example) -> Answer:
        """One row's output as plain values."""

    def decode_all(self, task: Task, outputs: Arrays, examples: Sequence[Example]) -> list[Answer]:
        """The same for many rows; each answer is bit-equal to that of `decode`."""
        return [self.decode(task, row, example) for row, example in zip(outputs, examples, strict=True)]

    def cell_of(self, answer: Answer) -> object:
        """The cell that `polyhead predict` writes for an answer, in the form `cell`."""
        return answer if self.cell_key is None else answer[self.cell_key]

    @abstractmethod
    def evaluate(self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]) -> dict[str, float]:
        """Every metric of the kind on a whole split. Raises EmptyData without rows."""

    def label_scores(
        self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]
    ) -> tuple[LabelScore, ...]:
        """Precision, recall and F1 of each label on a whole split; empty for a kind without labels as answers."""
        return ()

    def judged(self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]) -> Judged:
        """The basis of intervals, confusion and reliability of a whole split."""
        return Judged()

    def support(self, task: Task, answer: Answer, other: Answer) -> dict[str, float]:
        """How far the answer to a changed input agrees with `answer`: a number for each part of `answer`, by its text.

        For `answer` itself it is the confidence of each part, or the value. Empty for kinds without comparison.
        """
        return {}

    def mistake(self, task: Task, answer: Answer, target: np.ndarray, example: Example) -> Mistake | None:
        """The wrong answer with the truth; None for a right answer."""
        return None

    @property
    def tells_mistakes(self) -> bool:
        """Whether the kind can distinguish wrong from right answers."""
        return type(self).mistake is not Kind.mistake

    def constant(self, task: Task, targets: Arrays, examples: Sequence[Example]) -> list[np.ndarray] | None:
        """Outputs that give all examples the best constant answer by `targets`; None for kinds without such answers."""
        return None

    def shares(self, task: Task, numbers: np.ndarray, example: Example) -> np.ndarray:
        """A probability for each label in the form of the loss, float32 (labels,), from numbers of 0 to 1.

        Raises BadValue for inconsistent numbers.
        """
        raise self._without_shares()

    def target_of(self, task: Task, shares: np.ndarray) -> np.ndarray:
        """The target that is closest to such probabilities."""
        raise self._without_shares()

    def shares_of(self, task: Task, target: np.ndarray) -> np.ndarray:
        """The probabilities of a certain target."""
        raise self._without_shares()

    def _without_shares(self) -> ConfigError:
        return ConfigError(
            f"kind '{self.name}' takes no probabilities", do="leave `takes_shares` False, or define them"
        )

    def fitting_metric(self, task: Task, targets: Arrays) -> str | None:
        """The metric for a task that names none, if the default would hide how rare its labels are; else None."""
        return None

    def offsets(self, task: Task, targets: Arrays) -> list[np.ndarray]:
        """Offsets to try on the outputs so that rare labels are answered more often, the smallest first."""
        return []

    def class_weights(self, task: Task, targets: Arrays) -> np.ndarray | None:
        """Weights float32 (labels,) that balance the loss; None for a kind without classes."""
        return None

    def default_metric(self, task: Task) -> str:
        """The metric for model selection: the task's, or the kind's first."""
        return task.metric or self.metrics(task)[0]

    def stratum(self, target: np.ndarray) -> int:
        """The target's stratum; a held-out split gets a share of each stratum."""
        return 0

    def widened(self, target: np.ndarray, example: Example) -> int:
        """The number of gold answers that begin or end inside a word and were widened to whole words."""
        return 0

    def parse(self, cell: str, separator: str | None) -> object:
        """A label from the text of a CSV or TSV cell."""
        return cell

    def in_window(self, target: np.ndarray, read: np.ndarray, whole: np.ndarray) -> np.ndarray:
        """The target of one window, for a kind that reads words: as for a text with only the window's words.

        `read` (read,) are the window's words, in order, `whole` (read,) whether it holds all of each.
        """
        return np.asarray(target[read])

    def merge_windows(self, task: Task, outputs: Arrays) -> np.ndarray:
        """One output from those of a row's windows: their mean."""
        return np.asarray(np.mean(np.stack(outputs), axis=0, dtype=np.float64), np.float32)

    def merge_words(self, task: Task, outputs: Arrays, read: Arrays, best: np.ndarray) -> np.ndarray:
        """One output (words, width) from windows that each return some words; NaN for words in none.

        `read` lists for each window the words of its rows, `best` (words,) the window to use for each word (see
        `text.words.best_windows`).
        """
        merged = np.full((len(best), outputs[0].shape[-1]), np.nan, np.float32)
        for index, (rows, words) in enumerate(zip(outputs, read, strict=True)):
            is_best = best[words] == index
            merged[words[is_best]] = rows[is_best]
        return merged


class Decoded(Value, eq=False):
    """Answers to many rows as arrays; None for arrays that a kind does not have."""

    label: np.ndarray | None = None  # int64 (rows,): index of the answered label
    labels: np.ndarray | None = None  # bool (rows, labels): the answered labels
    scores: np.ndarray | None = None  # float64 (rows, labels): probabilities
    value: np.ndarray | None = None  # float64 (rows,)


class RowKind(Kind):
    """A kind with one fixed-width output per input, whose answers to many rows are a few arrays."""

    separate_pairs = True

    @abstractmethod
    def decode_rows(self, task: Task, outputs: np.ndarray) -> Decoded:
        """The answers to rows with these outputs, (rows, width)."""

    def decode_tasks(self, tasks: Sequence[Task], outputs: Arrays) -> list[Decoded]:
        """`decode_rows` of several tasks, bit-equal; for few rows it is faster to decode all tasks at once."""
        return [self.decode_rows(task, rows) for task, rows in zip(tasks, outputs, strict=True)]

    @abstractmethod
    def answers(self, task: Task, decoded: Decoded) -> list[Answer]:
        """The same as plain values, row by row."""

    def answers_of_tasks(self, tasks: Sequence[Task], decoded: Sequence[Decoded]) -> list[list[Answer]]:
        """`answers` of several tasks; for few rows it is faster to make all of them at once."""
        return [self.answers(task, rows) for task, rows in zip(tasks, decoded, strict=True)]

    def decode(self, task: Task, outputs: np.ndarray, example: Example) -> Answer:
        """One row's output as plain values: `answers` of that row."""
        return self.answers(task, self.decode_rows(task, np.reshape(outputs, (1, -1))))[0]

    def decode_all(self, task: Task, outputs: Arrays, examples: Sequence[Example]) -> list[Answer]:
        """All rows at once."""
        return self.answers(task, self.decode_rows(task, np.reshape(outputs, (len(outputs), self.width(task)))))


KINDS: Registry[Kind] = Registry("kind", other_names_of=lambda kind: kind.other_names)
"""The kinds that are registered, by name."""
register_kind = KINDS.register


def kinds_with(attribute: str, member: str | None = None) -> str:
    """The names of the kinds with this attribute, or this member in it, for messages: `'span' or 'tagging'`."""
    values = {kind.name: getattr(kind, attribute) for kind in KINDS.values()}
    return " or ".join(f"'{name}'" for name, value in values.items() if (member in value if member else value))


def kind_of(task: Task) -> Kind:
    """The kind of a task."""
    return KINDS[task.kind]


def check_name(name: str, subject: str = "task") -> None:
    """Raises BadName unless `name` is safe as the name of a folder and of a metric on every system."""
    if not _NAME.fullmatch(name) or ".." in name or name.endswith("."):
        raise BadName(
            f"a {subject} cannot have this name",
            got=name,
            allowed="1 to 64 letters, digits, '.', '_', '-'; a letter or digit first; no '..' or final '.'",
        )
