"""With few labelled rows, the words of label names give a prior for a linear head.

The trunk reads a sentence with each label's words. A head with these vectors as weights answers the label with the
nearest sentence; trained weights are then pulled towards them instead of zero (a prior mean, as in Chelba and Acero
2004, of label embeddings). Held-out rows may decide for another strength, or for none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from polyhead.plan import Path
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.tokenize import Input
from polyhead.train.data.kept_examples import KeptExamples
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.source import FeatureRequest, FeatureSource
from polyhead.train.heads.inputs import inputs_of

SENTENCE = "This text is about {}."  # the best of five sentences, or near it, on six sets (docs/project/log.md)
STRENGTHS = (6.0, 0.0, 3.0, 12.0)
"""Strengths of the prior, for inputs with mean square 1 per row. Held-out rows are few where there is one, so the first
stays unless another's loss is lower by more than a standard error (docs/project/log.md)."""

MOST_PENALTY = 0.01
"""The strongest penalty on the distance to a prior: of few rows a left out one is often the only one of its label, and
would decide for penalties that learn nothing."""


def settings_to_try(prior: np.ndarray | None, penalties: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """The strengths of the prior to try, and which of the penalties; 0 and all where there is no prior."""
    if prior is None:
        return (0.0,), penalties
    return STRENGTHS, [penalty for penalty in penalties if penalty <= MOST_PENALTY]


def applies(prepared: Prepared, source: FeatureSource) -> bool:
    """Whether the head's weights may start from the labels' words: few rows, and a trunk that reads them."""
    return source.encodes and prepared.reads_label_words


def request(task: Task, path: Path) -> FeatureRequest:
    """The request for the sentences of the task's labels, read by the path."""
    return FeatureRequest(path=path, inputs=sentences(task), origin=f"labels of task '{task.name}'")


def sentences(task: Task) -> list[Input]:
    """A sentence for each label."""
    return [(SENTENCE.format(_in_words(label)),) for label in task.labels]


def _in_words(label: str) -> str:
    """`card_arrival` as `card arrival`, `CardArrival` as `Card Arrival`."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", re.sub(r"[\s_/\-]+", " ", label))
    return apart.strip()


def prior_of(path: Path, task: Task, source: FeatureSource) -> np.ndarray | None:
    """Weights (labels, inputs) of mean length 1, whose head answers the nearest sentence; None if all are equal.

    Missing sentences are encoded separately, so that the texts' batches do not change.
    """
    read = request(task, path)
    source.fill([read])
    features = source.store(path).features(read.keys())
    examples = KeptExamples(features, [np.zeros((), np.int64)] * len(task.labels))
    values = inputs_of(path, examples, loss=kind_of(task).loss, outputs=len(task.labels)).values
    return centred(values)


def centred(values: np.ndarray) -> np.ndarray | None:
    """Rows of length 1, minus their mean, of mean length 1; None if they are equal."""
    values = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    apart = values - values.mean(axis=0)
    length = float(np.linalg.norm(apart, axis=1).mean())
    return apart / length if length > 1e-3 else None
