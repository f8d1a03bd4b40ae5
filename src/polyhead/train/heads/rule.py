"""The rule for choosing a head: the simplest, unless another is better by more than chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    tasks = tasks or [task] * len(candidates)
    scores = [choosing_score(each, examples, outputs) for each, outputs in zip(tasks, candidates, strict=True)]
    best = 0
    for index in range(1, len(candidates)):
        gain = scores[index] - scores[best]
        error = paired_error(tasks[best], examples, candidates[best], candidates[index], second_task=tasks[index])
        least = errors(len(examples.targets)) * error
        if gain > 0 and gain > least:
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
    outputs, start = list[np.ndarray](), 0
    for size in sizes:
        fold_rows = range(start, start + size)
        others = [row for row in range(len(held.targets)) if row not in fold_rows]
        examples = held.take(others)
        scores = [choosing_score(task, examples, [after[row] for row in others]) for after in rounds]
        outputs += [rounds[int(np.argmax(scores))][row] for row in fold_rows]
        start += size
    return outputs


def paired_error(
    task: Task,
    examples: Examples,
    first: Sequence[np.ndarray],
    second: Sequence[np.ndarray],
    *,
    second_task: Task | None = None,
) -> float:
    """The standard error of the second outputs' score, by `second_task` if it is another, minus that of the first.

    Estimated by the jackknife that leaves out one of g groups at a time: `sqrt((g - 1) / g sum (d - mean d)^2)`.
    """
    rows = np.arange(len(examples.targets))
    groups = min(GROUPS, len(rows))
    if groups < 2:
        return 0.0
    gains = []
    for group in range(groups):
        kept = rows[rows % groups != group].tolist()
        resampled = examples.take(kept)
        sides = ((task, first), (second_task or task, second))
        pair = [choosing_score(side, resampled, [outputs[i] for i in kept]) for side, outputs in sides]
        gains.append(pair[1] - pair[0])
    spread = np.asarray(gains) - np.mean(gains)
    return float(np.sqrt((groups - 1) / groups * np.sum(spread**2)))
