"""The details of one task's score on one split, as plain values for reports and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from polyhead.evaluate.explain import Explanation
from polyhead.evaluate.scores import Evaluation, Interval, Sliced, SplitScore, WrongRow, intervals, sliced
from polyhead.tasks.judging import Confusion, Decisions
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.metrics import BINS, bins_of, calibration_error
from polyhead.text.question import Question, TaskInput, texts_of
from polyhead.values import Value

STEPS = 20  # shares of the most confident decisions


class Bin(Value):
    """Decisions with a confidence in (low, high]."""

    low: float
    high: float
    decisions: int
    confidence: float | None  # its mean; None without decisions
    accuracy: float | None


class Surest(Value):
    """The most confident decisions."""

    share: float
    least: float  # the lowest confidence among them
    accuracy: float


class Reliability(Value):
    """The relation of confidence and accuracy."""

    of: str  # what is decided on, in the plural
    decisions: int
    confidence: float  # mean
    accuracy: float
    calibration_error: float  # expected: mean over decisions of |accuracy - confidence| of their bin (Guo et al. 2017)
    bins: tuple[Bin, ...]
    surest: tuple[Surest, ...]


def reliability_of(decisions: Decisions) -> Reliability | None:
    """The reliability of these decisions; None if there are none."""
    confidence, is_right = decisions.confidence, decisions.is_right
    count = len(confidence)
    if not count:
        return None
    place = bins_of(confidence)
    counts = np.bincount(place, minlength=BINS)
    sums = [np.bincount(place, weights=values, minlength=BINS) for values in (confidence, is_right)]
    return Reliability(
        of=decisions.of,
        decisions=count,
        confidence=float(confidence.mean()),
        accuracy=float(is_right.mean()),
        calibration_error=calibration_error(confidence, is_right),
        bins=tuple(
            Bin(
                low=number / BINS,
                high=(number + 1) / BINS,
                decisions=int(counts[number]),
                confidence=float(sums[0][number] / counts[number]) if counts[number] else None,
                accuracy=float(sums[1][number] / counts[number]) if counts[number] else None,
            )
            for number in range(BINS)
        ),
        surest=_surest(confidence, is_right),
    )


def _surest(confidence: np.ndarray, is_right: np.ndarray) -> tuple[Surest, ...]:
    """The most confident twentieth, two twentieths and so on; decisions tied with the last of them count too."""
    order = np.argsort(-confidence, kind="stable")
    ordered, right = confidence[order], np.cumsum(is_right[order])
    surest = []
    for step in range(1, STEPS + 1):
        least = ordered[max(1, round(len(ordered) * step / STEPS)) - 1]
        size = int(np.searchsorted(-ordered, -least, side="right"))
        surest.append(Surest(share=size / len(ordered), least=float(least), accuracy=float(right[size - 1] / size)))
    return tuple(dict.fromkeys(surest))


MISTAKES = 20  # mistakes shown, the most confident ones
LONGEST = 600  # characters shown of a text
MOST_CELLS = 10_000  # labels of a confusion table, the most frequent ones
ERROR_BINS = 21  # bins of differences of numbers


class Cell(Value):
    """The number of times a truth got an answer."""

    truth: str
    answer: str
    count: int
    is_right: bool


class ConfusionTable(Value):
    """Every non-empty cell, the most frequent first."""

    of: str  # what is counted, in the plural
    truths: tuple[str, ...]
    answers: tuple[str, ...]
    cells: tuple[Cell, ...]


class ErrorBin(Value):
    """Answers that differ from the true number by (low, high]."""

    low: float
    high: float
    rows: int


class Differences(Value):
    """The errors of answered numbers, in the task's units: answer minus truth."""

    mean_absolute: float
    mean: float
    root_mean_square: float
    quantiles: dict[str, float]  # of the absolute difference: 50 %, 90 %, 99 %
    bins: tuple[ErrorBin, ...]


class ShownMistake(Value):
    """A wrong row, its texts cut to LONGEST characters."""

    row: int
    texts: tuple[str, ...]
    truth: Any
    answer: Any
    score: float | None
    explanation: Explanation | None = None


class Details(Value):
    """The details of a score."""

    score: SplitScore
    intervals: dict[str, Interval]
    confusion: ConfusionTable | None
    reliability: Reliability | None
    differences: Differences | None
    slices: tuple[Sliced, ...]
    mistakes: tuple[ShownMistake, ...]


def details_of(
    evaluation: Evaluation,
    *,
    columns: Mapping[str, Sequence[object]] | None = None,
    explanations: Sequence[Explanation | None] = (),
) -> Details:
    """All details of an evaluation; `columns` hold each row's values by column, `explanations` belong to mistakes."""
    answered, score = evaluation.answered, evaluation.score
    examples = answered.examples
    judged = kind_of(answered.task).judged(answered.task, answered.outputs, examples.targets, examples.each())
    explained = [*explanations, *[None] * MISTAKES]
    return Details(
        score=score,
        intervals={} if judged.recount is None else intervals(judged.recount, score.rows),
        confusion=None if judged.confusion is None else confusion_cells(judged.confusion),
        reliability=None if judged.decisions is None else reliability_of(judged.decisions),
        differences=None if judged.differences is None else _differences(judged.differences),
        slices=tuple(sliced(answered, name, values) for name, values in (columns or {}).items()),
        mistakes=tuple(_shown(error, explained[place]) for place, error in enumerate(evaluation.errors[:MISTAKES])),
    )


def cut(text: str) -> str:
    """The text, or its beginning if it is longer than LONGEST."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def texts_shown(entry: TaskInput) -> tuple[str, ...]:
    """The texts of an input, each cut: for a question its context if it has one, the question, and its options."""
    if isinstance(entry, Question):
        texts = (*((entry.context,) if entry.context.strip() else ()), entry.text, *entry.options)
    else:
        texts = texts_of(entry)
    return tuple(map(cut, texts))


def confusion_cells(confusion: Confusion) -> ConfusionTable:
    """The confusion as cells."""
    truths, answers = np.nonzero(confusion.counts)
    counts, is_right = confusion.counts[truths, answers], [name in confusion.right for name in confusion.answers]
    order = np.argsort(-counts, kind="stable")[:MOST_CELLS].tolist()
    return ConfusionTable(
        of=confusion.of,
        truths=confusion.truths,
        answers=confusion.answers,
        cells=tuple(
            Cell(
                truth=confusion.truths[truths[place]],
                answer=confusion.answers[answers[place]],
                count=int(counts[place]),
                is_right=is_right[answers[place]]
                or confusion.truths[truths[place]] == confusion.answers[answers[place]],
            )
            for place in order
        ),
    )


def _differences(values: np.ndarray) -> Differences:
    sizes = np.abs(values)
    most = float(sizes.max()) or 1.0
    counts, edges = np.histogram(values, ERROR_BINS, (-most, most))
    return Differences(
        mean_absolute=float(sizes.mean()),
        mean=float(values.mean()),
        root_mean_square=float(np.sqrt(np.mean(values**2))),
        quantiles={f"{share:.0%}": float(np.quantile(sizes, share)) for share in (0.5, 0.9, 0.99)},
        bins=tuple(
            ErrorBin(low=low, high=high, rows=count)
            for low, high, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
        ),
    )


def _shown(error: WrongRow, explanation: Explanation | None) -> ShownMistake:
    return ShownMistake(
        row=error.row,
        texts=texts_shown(error.input),
        truth=shortened(error.truth),
        answer=shortened(error.answer),
        score=error.score,
        explanation=explanation,
    )


def shortened(value: Any) -> Any:
    """A truth or an answer with its texts cut and its lists limited to MISTAKES items."""
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, list):
        return [shortened(item) for item in value[:MISTAKES]]
    return {key: shortened(item) for key, item in value.items()} if isinstance(value, dict) else value


def answer_text(value: Any) -> str:
    """A truth or an answer as readable text: labels with commas, spans as `label 'text'`."""
    if isinstance(value, str):
        return value
    if value is None:
        return "no answer"
    if isinstance(value, list):
        return ", ".join(map(_item, value)) or "(none)"
    return f"{value:.6g}" if isinstance(value, float) else msgspec.json.encode(value).decode()


def _item(value: Any) -> str:
    if isinstance(value, dict) and "label" in value:
        return f"{value['label']} '{value['text']}'" if "text" in value else str(value["label"])
    return answer_text(value)
