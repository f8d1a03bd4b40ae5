"""What every trained part is compared with: the best answer that reads no text, and a linear head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyhead.plan import Path
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.read import Examples
from polyhead.tasks.task import Task
from polyhead.train.candidates import Candidate
from polyhead.train.examples import outputs_of
from polyhead.train.extract import Extractor
from polyhead.train.heads import Trial, Trials
from polyhead.train.inputs import examples_of
from polyhead.train.prepare import Prepared

Baselines = dict[str, dict[str, dict[str, float]]]
"""`constant` and `linear`: split -> metric -> value."""


def constant_scores(prepared: Prepared, held: Examples) -> dict[str, dict[str, float]]:
    """The scores of one answer for every row, the best by the training rows."""
    task, targets = prepared.task, prepared.train.examples.targets
    splits = {"validation": held} | ({"test": prepared.test.examples} if prepared.test else {})
    scores = {}
    for name, examples in splits.items():
        outputs = kind_of(task).constant(task, targets, examples.each())
        if outputs is not None:
            scores[name] = examples.scores(task, outputs)
    return scores


def baselines_of(
    prepared: Prepared,
    trials: Trials,
    several: Sequence[Trial],
    extractor: Extractor,
    other: tuple[Candidate, Path] | None = None,
) -> Baselines:
    """Scores of simple answers on the rows that choose, and on test.

    The linear one is the best of the linear heads that were tried, else `other`, which is tried here.
    """
    baselines: Baselines = {"constant": constant_scores(prepared, trials.held)}
    linear = [trial for trial in several if trial.candidate.solver == "linear"]
    if not linear and other is not None:
        linear = [trials.tried(*other)]
    if linear:
        best = trials.best(linear)
        baselines["linear"] = {"validation": trials.held.scores(prepared.task, best.outputs)}
        if prepared.test is not None:
            module, _ = trials.kept(best)
            outputs = outputs_of(module, examples_of(prepared, prepared.test, best.path, extractor))
            baselines["linear"]["test"] = prepared.test.examples.scores(prepared.task, outputs)
    return baselines


def alike(task: Task, outputs: Sequence[np.ndarray]) -> str | None:
    """The one label that all of these outputs answer, where there is one and the task has several."""
    return kind_of(task).alike(task, outputs)
