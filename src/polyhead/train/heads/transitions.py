"""Learned transitions of a tagger's labels: held-out rows choose how much they count, beginning with not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.tagged import log_transitions
from polyhead.tasks.task import Task
from polyhead.train.data.prepared import Split

WEIGHTS = (0.0, 0.15, 0.3, 0.45, 0.6)
"""Factors of the logarithms that are tried. On test texts of four sets, all gained with 0.3 and three lost with 1
(docs/project/log.md)."""


def with_transitions(task: Task, targets: Iterable[np.ndarray], weight: float) -> Task:
    """The task with the transitions in these labels, times a weight."""
    if not weight:
        return task
    learned = weight * log_transitions(targets, len(task.labels))
    return msgspec.structs.replace(task, transitions=tuple(map(tuple, learned.round(4).tolist())))


def choose_weight(task: Task, sides: Sequence[tuple[Split, Split]], outputs: Sequence[np.ndarray]) -> float:
    """The weight with the best score of held-out rows, the first among equals.

    `outputs` are those of the rows that each of `sides` holds out, side after side, answered with transitions of the
    rows that it learns from. Scores are averaged over rows. The weight is 0 for a task without a decoder.
    """
    best = (0.0, -np.inf)
    metric, counts = kind_of(task).default_metric(task), [len(held.examples.targets) for _, held in sides]
    bounds = np.cumsum([0, *counts]).tolist()
    for weight in WEIGHTS if task.decoder == "constrained" else (0.0,):
        side_scores = [
            held.examples.scores(with_transitions(task, train.examples.targets, weight), outputs[start:stop])[metric]
            for (train, held), start, stop in zip(sides, bounds, bounds[1:], strict=False)
        ]
        if (score := float(np.average(side_scores, weights=counts))) > best[1]:
            best = (weight, score)
    return best[0]
