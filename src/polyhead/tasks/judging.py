"""A kind's comparison of answers with the truth, as arrays: the basis of intervals, confusion and reliability."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from polyhead.tasks.metrics import matthews_of, ranks, ratio
from polyhead.values import Value

Recount = Callable[[np.ndarray], dict[str, np.ndarray]]
"""Every metric of a split in which each row stands so often: counts (resamples, rows) to values (resamples,)."""


class Confusion(Value, eq=False):
    """The number of rows for each true value and answer."""

    of: str  # what is counted, in the plural
    truths: tuple[str, ...]
    answers: tuple[str, ...]
    counts: np.ndarray  # int64 (truths, answers)
    # answers that are right for every truth; any other answer is right if its name is the truth's
    right: tuple[str, ...] = ()


class Decisions(Value, eq=False):
    """Every decision made with a probability: about a row, a label or a word."""

    of: str  # what is decided on, in the plural
    confidence: np.ndarray  # float64 (decisions,): the probability of the answer
    is_right: np.ndarray  # bool (decisions,)


class Judged(Value, eq=False):
    """Answers of a whole split compared with the truth; None for what the kind does not provide."""

    recount: Recount | None = None
    confusion: Confusion | None = None
    decisions: Decisions | None = None
    differences: np.ndarray | None = None  # float64 (rows,): answered numbers minus true numbers
    undefined: tuple[str, ...] = ()  # metrics without a value here, such as an F1 of no positive rows and answers


def confusion_of(
    truth: np.ndarray,
    answers: np.ndarray,
    *,
    of: str,
    truths: Sequence[str],
    outcomes: Sequence[str],
    right: tuple[str, ...] = (),
) -> Confusion:
    """The confusion from indices, each int64 (any,), the names of truths, and those of answers as `outcomes`."""
    counts = np.bincount(truth * len(outcomes) + answers, minlength=len(truths) * len(outcomes))
    counts = counts.reshape(len(truths), len(outcomes))
    return Confusion(of=of, truths=tuple(truths), answers=tuple(outcomes), counts=counts, right=right)


def from_sums(sums: np.ndarray, metrics: Callable[[np.ndarray], dict[str, np.ndarray]]) -> Recount:
    """For metrics that are functions of sums over rows: float64 (rows, sums) of each row, `metrics` of (..., sums)."""
    return lambda counts: metrics(counts @ sums)


def from_labels(
    truth: np.ndarray, answers: np.ndarray, row: np.ndarray, labels: int, metrics: Callable[..., dict[str, np.ndarray]]
) -> Recount:
    """For metrics that are functions of how often each label is right, answered and true, each (..., labels).

    `truth`, `answers` and `row` (items,) are indices; an answer of -1 means no label.
    """
    cells, inverse = np.unique(truth * (labels + 1) + answers + 1, return_inverse=True)
    true, answered = cells // (labels + 1), cells % (labels + 1) - 1
    sides = ((true, true == answered), (answered, answered >= 0), (true, true >= 0))  # right, answered, true

    def recounted(counts: np.ndarray) -> dict[str, np.ndarray]:
        cell_counts = [np.bincount(inverse, weights=each[row], minlength=len(cells)) for each in counts]
        return metrics(
            *(
                np.stack([np.bincount(label[kept], each[kept], minlength=labels) for each in cell_counts])
                for label, kept in sides
            )
        )

    return recounted


def label_metrics(right: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> dict[str, np.ndarray]:
    """Metrics for one label per row or word, as in `polyhead.tasks.metrics`, from counts (..., labels)."""
    occurs = predicted + true > 0
    return {
        "accuracy": ratio(right.sum(axis=-1), true.sum(axis=-1)),
        "macro_f1": _mean(ratio(2 * right, predicted + true), occurs),
        "macro_recall": _mean(ratio(right, true), occurs),
        "matthews": matthews_of(right, predicted, true),
    }


def _mean(values: np.ndarray, counted: np.ndarray) -> np.ndarray:
    return ratio((values * counted).sum(axis=-1), counted.sum(axis=-1))


def correlations(first: np.ndarray, second: np.ndarray) -> Recount:
    """`pearson` and `spearman` of two numbers per row, each (rows,)."""
    places = [np.unique(values, return_inverse=True)[1] for values in (first, second)]  # of each distinct number
    centred = [values - values.mean() for values in (np.asarray(first, np.float64), np.asarray(second, np.float64))]

    def recounted(counts: np.ndarray) -> dict[str, np.ndarray]:
        linear = np.array([_correlation(centred[0], centred[1], each) for each in counts])
        ranked = np.array([_correlation(ranks(places[0], each), ranks(places[1], each), each) for each in counts])
        return {"pearson": linear, "spearman": ranked}

    return recounted


def _correlation(first: np.ndarray, second: np.ndarray, counts: np.ndarray) -> float:
    """Pearson's correlation of rows with these multiplicities; 0 if either side is constant."""
    occurs = counts > 0
    first, second, counts = first[occurs], second[occurs], counts[occurs]
    if not len(first) or (first == first[0]).all() or (second == second[0]).all():
        return 0.0
    first, second = (values - np.average(values, weights=counts) for values in (first, second))
    spread = np.sqrt(np.sum(counts * first**2) * np.sum(counts * second**2))
    return float(np.clip(np.sum(counts * first * second) / spread, -1.0, 1.0))
