"""The rule for choosing a head: the simplest, unless another is better by more than chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite

import msgspec
import numpy as np

from polyhead.data.read import Examples
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.train.data.prepared import Prepared

GROUPS = 10  # of rows that are left out in turn
THRESHOLDS = tuple(share / 20 for share in range(1, 20))  # for all labels of a row that may have several
# Validation rows. Of 5, a branch had all right and was kept; of 500 test rows it had 40 % right, the head 52 %.
LEAST_ROWS = 30
FEW = 100  # rows: with fewer, a standard error is itself little more than a guess


def choosing_score(task: Task, examples: Examples, outputs: Sequence[np.ndarray]) -> float:
    """The model selection metric of these outputs."""
    return selection_score(task, examples.scores(task, outputs))


def selection_score(task: Task, scores: Mapping[str, float]) -> float:
    """The model selection metric among these scores; 0 where a kind's own metric is no finite number."""
    score = scores[kind_of(task).default_metric(task)]
    return score if isfinite(score) else 0.0


def best_of(
    task: Task, examples: Examples, candidates: Sequence[Sequence[np.ndarray]], *, tasks: Sequence[Task] = ()
) -> int:
    """The index of the outputs to keep; `candidates` go from the simplest model to the most complex.

    A later one replaces the best so far if its score is higher by more than one standard error of the difference (the
    rule of Breiman et al. 1984), two below 100 rows, estimated by a jackknife over groups of rows. `tasks` are the task
    as each candidate answers it, where their thresholds or transitions differ.
    """
    tasks, rows = tasks or [task] * len(candidates), len(examples.targets)
    scored = [_selection_scores(each, examples, outputs) for each, outputs in zip(tasks, candidates, strict=True)]
    best = 0
    for index in range(1, len(candidates)):
        before, after = scored[best], scored[index]
        (gain,) = after(np.ones((1, rows))) - before(np.ones((1, rows)))
        if gain > 0 and gain > errors(rows) * _jackknife(before, after, rows):
            best = index
    return best


def compares_penalties(task: Task) -> bool:
    """True if scores of held-out rows may choose another penalty than the least loss: spans, several labels a text."""
    kind = kind_of(task)
    return kind.default_metric(task) == "span_f1" or kind.scores == "sigmoid"


def best_penalty(task: Task, examples: Examples, candidates: Sequence[Sequence[np.ndarray]]) -> int:
    """The index of the penalty to keep; the first of the candidates has the smallest loss.

    `candidates` hold for each penalty an array of outputs per row of `examples`. Nearly all of a loss is of words in no
    span, or of labels that are not given; a weaker penalty may find more spans, or labels, though its loss is higher.
    For spans the penalty with the best score is kept, the first among equals; for several labels a text a later one
    that is clearly better.
    """
    if kind_of(task).default_metric(task) == "span_f1":
        return int(np.argmax([choosing_score(task, examples, outputs) for outputs in candidates]))
    return best_of(task, examples, candidates) if compares_penalties(task) else 0


def with_threshold(task: Task, examples: Examples, outputs: Sequence[np.ndarray]) -> Task:
    """The task with the threshold of probabilities at which these held-out outputs score best, if clearly better.

    One threshold for all labels: rare labels alone have too few rows (`polyhead calibrate --goal` fits each label's).
    """
    tried = [msgspec.structs.replace(task, threshold=threshold) for threshold in THRESHOLDS]
    best = tried[int(np.argmax([choosing_score(candidate, examples, outputs) for candidate in tried]))]
    return (task, best)[best_of(task, examples, [outputs, outputs], tasks=[task, best])]


def deciding(prepared: Prepared, outputs: Sequence[np.ndarray]) -> Prepared:
    """The task with the threshold that these outputs of its validation rows choose, where they may."""
    if not prepared.finds_threshold:
        return prepared
    task = with_threshold(prepared.task, prepared.validation.examples, outputs)
    return msgspec.structs.replace(prepared, task=task)


def errors(rows: int) -> float:
    """Standard errors by which a difference must exceed zero to be more than chance."""
    return 2.0 if rows < FEW else 1.0


def clearly_less(losses: np.ndarray, before: np.ndarray, *, least_errors: float | None = None) -> bool:
    """True if the mean of `losses` (rows,) is below that of `before` by more than `least_errors` standard errors.

    The default is the number of standard errors beyond which a difference is more than chance.
    """
    gains = before - losses
    least_errors = errors(len(gains)) if least_errors is None else least_errors
    return bool(gains.mean() > least_errors * gains.std() / np.sqrt(len(gains)))


def of_best_rounds(
    task: Task, held: Examples, rounds: Sequence[Sequence[np.ndarray]], sizes: Sequence[int]
) -> list[np.ndarray]:
    """Outputs of folds, each from the round that is the best for the other folds.

    `rounds` are the outputs of all held-out rows after each round of training, fold after fold; `sizes` their rows.
    """
    stops = np.cumsum(sizes)
    fold = np.repeat(np.arange(len(sizes)), sizes)
    others = (fold != np.arange(len(sizes))[:, None]).astype(np.float64)  # of each fold
    best = np.argmax([_selection_scores(task, held, after)(others) for after in rounds], axis=0).tolist()
    return [row for at, start, stop in zip(best, stops - sizes, stops, strict=True) for row in rounds[at][start:stop]]


def paired_error(task: Task, examples: Examples, first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> float:
    """The standard error of the second outputs' score minus that of the first.

    Estimated by the jackknife that leaves out one of g groups at a time: `sqrt((g - 1) / g sum (d - mean d)^2)`.
    """
    before, after = (_selection_scores(task, examples, outputs) for outputs in (first, second))
    return _jackknife(before, after, len(examples.targets))


_Resampled = Callable[[np.ndarray], np.ndarray]
"""The model selection metric of rows that stand so often: counts (resamples, rows) to values (resamples,)."""


def _selection_scores(task: Task, examples: Examples, outputs: Sequence[np.ndarray]) -> _Resampled:
    """The function for these outputs, which are decoded once."""
    metric = kind_of(task).default_metric(task)
    recount = kind_of(task).judged(task, outputs, examples.targets, examples.each()).recount

    def scores(counts: np.ndarray) -> np.ndarray:
        if recount is not None:
            values = np.asarray(recount(counts)[metric])
            return np.where(np.isfinite(values), values, 0.0)
        kept = [np.repeat(np.arange(len(each)), each.astype(int)).tolist() for each in counts]
        return np.array([choosing_score(task, examples.take(rows), [outputs[row] for row in rows]) for rows in kept])

    return scores


def _jackknife(before: _Resampled, after: _Resampled, rows: int) -> float:
    """The standard error of the second scores minus the first; 0 of a single row."""
    groups = min(GROUPS, rows)
    if groups < 2:
        return 0.0
    left_out = (np.arange(rows) % groups != np.arange(groups)[:, None]).astype(np.float64)
    gains = after(left_out) - before(left_out)
    return float(np.sqrt((groups - 1) / groups * np.sum((gains - gains.mean()) ** 2)))
