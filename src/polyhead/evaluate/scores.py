"""Metrics of answers on whole splits, with bootstrap intervals, overall and for slices of the rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyhead.data.columns import Source, no_column
from polyhead.data.read import Examples, read
from polyhead.data.rows import Rows
from polyhead.engine.session import Session
from polyhead.errors import UnknownTask, suggestion
from polyhead.project.tables import DataFile, Project, TaskEntry
from polyhead.tasks.judging import Recount
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.base import spelled
from polyhead.tasks.kinds.regression import NUMBER
from polyhead.tasks.metrics import LabelScore
from polyhead.tasks.task import Answer, Example, Task
from polyhead.text.question import Question, TaskInput, texts_of
from polyhead.values import Value

RESAMPLES, LEVEL = 1000, 0.95
COUNTS_AT_ONCE = 2**22  # counts drawn at a time: 32 MB


class Interval(Value):
    """The middle 95 % of a number over resampled rows (percentile bootstrap, Efron 1979)."""

    low: float
    high: float


def ranged(interval: Interval | None) -> str:
    """An interval in words; `-` for one without width, of which resampled rows that are all alike say nothing."""
    if interval is None or interval.low == interval.high:
        return "-"
    return f"{interval.low:.4f} to {interval.high:.4f}"


def intervals(recount: Recount, rows: int, *, seed: int = 0, resamples: int = RESAMPLES) -> dict[str, Interval]:
    """The interval of each metric of a split with this many rows."""
    return {name: _middle(values) for name, values in _resampled(recount, rows, seed, resamples).items()}


def differences(recount: Recount, other: Recount, rows: int) -> dict[str, Interval]:
    """The interval of each metric minus that of other answers to the same rows (paired bootstrap)."""

    def less(counts: np.ndarray) -> dict[str, np.ndarray]:
        ours, theirs = recount(counts), other(counts)
        return {name: values - theirs[name] for name, values in ours.items() if name in theirs}

    return intervals(less, rows)


def mcnemar(first_only: int, second_only: int) -> float:
    """The two-sided exact p-value of McNemar's test (1947), 1 where both numbers are 0.

    The numbers count the rows that only the first side has right, and those that only the second has right. The value
    is the probability that so few of that many fair coins fall on one side.
    """
    flips, fewer = first_only + second_only, min(first_only, second_only)
    if not flips:
        return 1.0
    logs = [_log_choices(flips, heads) - flips * math.log(2) for heads in range(fewer + 1)]
    return min(1.0, 2.0 * math.fsum(map(math.exp, logs)))


def _log_choices(of: int, chosen: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(chosen + 1) - math.lgamma(of - chosen + 1)


def _resampled(recount: Recount, rows: int, seed: int, resamples: int) -> dict[str, np.ndarray]:
    parts = [recount(counts) for counts in _counts(rows, seed, resamples)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _counts(rows: int, seed: int, resamples: int) -> Iterator[np.ndarray]:
    """The count of each row in each resample, float64 (some, rows), chunk by chunk."""
    rng, size = np.random.default_rng(seed), max(1, COUNTS_AT_ONCE // max(rows, 1))
    for start in range(0, resamples, size):
        chunk = range(start, min(start + size, resamples))
        yield np.stack([np.bincount(rng.integers(rows, size=rows), minlength=rows) for _ in chunk]).astype(np.float64)


def _middle(values: np.ndarray) -> Interval:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Interval(low=low, high=high)


PIECE = 512  # inputs answered at a time: bounds memory


class SplitScore(Value):
    """One task on one whole split."""

    task: str
    split: str
    rows: int
    metric: str
    scores: dict[str, float]
    labels: tuple[LabelScore, ...] = ()  # for a kind with labels as answers
    wrong: int | None = None  # rows with a wrong answer; None for a kind that does not report them


class WrongRow(Value):
    """A row with a wrong answer."""

    task: str
    row: int  # its number in the file
    input: TaskInput
    truth: Any
    answer: Any
    score: float | None  # see `Mistake`

    def written(self) -> dict[str, Any]:
        """The row as it is written to a file: the input's parts under the names of their columns."""
        columns: dict[str, Any] = dict(zip(("text", "text_b"), texts_of(self.input), strict=False))
        if isinstance(question := self.input, Question):
            columns = {"question": question.text, "context": question.context, "options": list(question.options)}
        outcome = {"truth": self.truth, "answer": self.answer, "score": self.score}
        return {"task": self.task, "row": self.row, **columns, **outcome}


class SplitOutputs(Value, eq=False):
    """A task's outputs for all rows of a file."""

    task: Task
    source: Source
    examples: Examples
    outputs: list[np.ndarray]  # one per example


class Evaluation(Value, eq=False):
    """A task's score, and the rows that it gets wrong: the most confident first, those without a score last."""

    score: SplitScore
    errors: tuple[WrongRow, ...]
    digest: str  # SHA-256 of the rows, as in a task's training record
    answered: SplitOutputs  # the basis of all results


def evaluations(
    session: Session,
    project: Project,
    *,
    folder: Path,
    split: str = "test",
    only: Sequence[str] = (),
    show: Callable[[str], None] | None = None,
) -> list[Evaluation]:
    """The evaluations of every declared task (or `only` these) in the bundle, on the file of the split.

    A task without a test file, or with a validation share instead of a file, is scored on the file that exists: the
    score names the split. A validation share was drawn from train in training, so its task has no file to read here.
    """
    known = {entry.name: entry for entry in project.tasks}
    names = only or [name for name in known if name in session.tasks]
    unknown = [name for name in names if name not in known or name not in session.tasks]
    if unknown:
        raise UnknownTask(
            "project and bundle do not both have such a task",
            got=unknown,
            allowed=sorted(set(known) & set(session.tasks)),
            do=suggestion(unknown[0], {*known} & {*session.tasks}) or "train the task first, or name another",
        )
    evaluated = []
    for name in names:
        chosen, used = file_of(known[name], split)
        evaluated.append(evaluation_of(session, name, known[name].source(chosen, folder), split=used, show=show))
    return evaluated


def evaluation_of(
    session: Session, name: str, source: Source, *, split: str = "data", show: Callable[[str], None] | None = None
) -> Evaluation:
    """The evaluation of the task on all rows of a file, by fresh answers; `split` is the name of the rows in scores."""
    return evaluation_from(outputs_of_split(session, name, source, show=show), split=split)


def evaluation_from(answered: SplitOutputs, *, split: str) -> Evaluation:
    """The evaluation of existing outputs."""
    task, examples, outputs = answered.task, answered.examples, answered.outputs
    kind = kind_of(task)
    errors = _errors(task, examples, outputs) if kind.tells_mistakes else ()
    score = SplitScore(
        task=task.name,
        split=split,
        rows=len(outputs),
        metric=kind.default_metric(task),
        scores=examples.scores(task, outputs),
        labels=kind.label_scores(task, outputs, examples.targets, examples.each()),
        wrong=len(errors) if kind.tells_mistakes else None,
    )
    return Evaluation(score=score, errors=errors, digest=examples.digest, answered=answered)


def outputs_of_split(
    session: Session, name: str, source: Source, *, show: Callable[[str], None] | None = None
) -> SplitOutputs:
    """The task's outputs for all rows of a file."""
    task, outputs = session.tasks[name], list[np.ndarray]()
    examples = read(source, task)
    for start in range(0, len(examples.inputs), PIECE):
        if show is not None:
            show(f"scoring {name}: {start:,} of {len(examples.inputs):,} texts")
        words = examples.words[start : start + PIECE] if examples.words is not None else None
        outputs += session.outputs(name, examples.inputs[start : start + PIECE], words=words)
    return SplitOutputs(task=task, source=source, examples=examples, outputs=outputs)


def decoded_answers(task: Task, outputs: Sequence[np.ndarray], examples: Sequence[Example]) -> Iterator[Answer]:
    """Every answer in order; few are in memory at a time."""
    for start in range(0, len(outputs), PIECE):
        piece = slice(start, start + PIECE)
        yield from kind_of(task).decode_all(task, outputs[piece], examples[piece])


def file_of(entry: TaskEntry, split: str) -> tuple[str | DataFile, str]:
    """The file of the split, or of the other one, and its name; raises UnknownTask if there is none."""
    validation = None if isinstance(entry.validation, float) else entry.validation
    first, second = (entry.test, validation) if split == "test" else (validation, entry.test)
    chosen = first or second
    if chosen is None:
        raise UnknownTask(
            f"task '{entry.name}' has no file to be scored on: its validation is a share of train, and it has no test",
            do="give the task a test file; `polyhead evaluate` scores the rows that training held out",
        )
    return chosen, "test" if chosen is entry.test else "validation"


def _errors(task: Task, examples: Examples, outputs: Sequence[np.ndarray]) -> tuple[WrongRow, ...]:
    kind, each = kind_of(task), examples.each()
    errors = []
    for place, answer in enumerate(decoded_answers(task, outputs, each)):
        mistake = kind.mistake(task, answer, examples.targets[place], each[place])
        if mistake is not None:
            errors.append(
                WrongRow(
                    task=task.name,
                    row=examples.rows[place],
                    input=each[place].input,
                    truth=mistake.truth,
                    answer=mistake.answer,
                    score=mistake.score,
                )
            )
    return tuple(sorted(errors, key=lambda error: -1.0 if error.score is None else error.score, reverse=True))


MOST_VALUES = 20  # values of a column, the most frequent ones
PARTS = 4  # ranges of numbers, with as many rows in each
FEW_NUMBERS = 12  # different numbers up to which each is a separate value
EMPTY, OTHERS = "(empty)", "(other values)"
LONGEST_VALUE = 200  # characters shown of a value


class Slice(Value):
    """The rows with one value, or in one range of numbers."""

    value: str
    rows: int
    score: float | None  # None where its rows do not define the metric
    interval: Interval | None

    @property
    def shown_score(self) -> str:
        """The score in words; `-` for none."""
        return "-" if self.score is None else f"{self.score:.4f}"


class Sliced(Value):
    """A column's slices, scored by the task's metric."""

    column: str
    metric: str
    slices: tuple[Slice, ...]


def columns_read(path: str, columns: Sequence[str], rows: Sequence[int]) -> dict[str, list[object]]:
    """The values of columns in some rows of a file; raises MissingColumn for a column that it does not have."""
    wanted, read, values = set(rows), Rows(path, columns), dict[int, list[object]]()
    for row in read:
        if row.number in wanted:
            values[row.number] = [row.values.get(column) for column in columns]
    for column in columns:
        if column not in read.columns:
            raise no_column(path, column, list(read.columns))
    return {column: [values[row][place] for row in rows] for place, column in enumerate(columns)}


def sliced(answered: SplitOutputs, column: str, values: Sequence[object]) -> Sliced:
    """The task's score per value of a column, the most frequent first; numbers in ascending ranges."""
    task, examples = answered.task, answered.examples
    kind, each, slices = kind_of(task), examples.each(), []
    metric = kind.default_metric(task)
    for name, rows in grouped(values).items():
        members = rows.tolist()
        outputs, targets, chosen = ([of[row] for row in members] for of in (answered.outputs, examples.targets, each))
        judged = kind.judged(task, outputs, targets, chosen)
        has_score, recount = metric not in judged.undefined, judged.recount
        slices.append(
            Slice(
                value=name,
                rows=len(rows),
                score=kind.evaluate(task, outputs, targets, chosen)[metric] if has_score else None,
                interval=None if recount is None or not has_score else intervals(recount, len(rows))[metric],
            )
        )
    return Sliced(column=column, metric=metric, slices=tuple(slices))


def grouped(values: Sequence[object]) -> dict[str, np.ndarray]:
    """The indices of the rows with each value, int64 (rows,): by name, or in PARTS ranges for many numbers."""
    names = [_name(value) for value in values]
    numbers = np.array([_number(name) for name in names])
    is_number = np.isfinite(numbers)
    if (is_number | (np.array(names) == EMPTY)).all() and len(np.unique(numbers[is_number])) > FEW_NUMBERS:
        return _parts(numbers, is_number)
    frequent = [name for name, _ in Counter(names).most_common(MOST_VALUES)]
    places: dict[str, list[int]] = {name: [] for name in (*frequent, OTHERS)}
    for place, name in enumerate(names):
        places[name if name in places else OTHERS].append(place)
    return {name: np.array(rows, np.int64) for name, rows in places.items() if rows}


def _parts(numbers: np.ndarray, is_number: np.ndarray) -> dict[str, np.ndarray]:
    edges = np.unique(np.quantile(numbers[is_number], np.linspace(0, 1, PARTS + 1)))
    part = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, max(len(edges) - 2, 0))
    groups, shown = {}, _apart(edges)
    for number, (low, high) in enumerate(zip(shown[:-1], shown[1:], strict=True)):
        groups[f"{low} to {high}"] = np.flatnonzero((part == number) & is_number)
    groups[EMPTY] = np.flatnonzero(~is_number)
    return {name: places for name, places in groups.items() if len(places)}


def _apart(numbers: np.ndarray) -> list[str]:
    """Different numbers, written with as few digits as tell them apart, and at least six."""
    for digits in range(6, 17):
        shown = [f"{number:.{digits}g}" for number in numbers.tolist()]
        if len(set(shown)) == len(shown):
            return shown
    return [repr(number) for number in numbers.tolist()]


def _name(value: object) -> str:
    if value is None or (isinstance(value, str) and not value.strip()) or value != value:  # NaN, as frames hold None
        return EMPTY
    name = spelled(value)
    name = str(value) if name is None else name
    return name if len(name) <= LONGEST_VALUE else f"{name[:LONGEST_VALUE]}…"


def _number(name: str) -> float:
    return float(name) if NUMBER.fullmatch(name.strip()) else math.nan
