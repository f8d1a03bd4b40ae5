"""Where few rows are labelled, what the labels are called says where a linear head may start.

The trunk reads a sentence with each label's words. A head whose weights are these vectors answers the label whose
sentence is nearest; weights that learn are then drawn to them in place of zero, and held-out rows say how strongly, or
that they are not (a prior mean, as in Chelba and Acero 2004, of label embeddings).
"""

from __future__ import annotations

import re

import numpy as np
import torch
from torch import Tensor

from polyhead.deep.examples import FeatureExamples
from polyhead.deep.heads.linear import inputs_of
from polyhead.deep.sharing.part import PooledPart
from polyhead.plan import Path
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.tokenize import Input
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.source import FeatureRequest, FeatureSource

SENTENCE = "This text is about {}."  # of five sentences the best, or near it, on six sets (docs/project/log.md)
STRENGTHS = (3.0, 6.0, 12.0)  # of the prior's weights, for inputs of mean square 1 a row


def applies(prepared: Prepared, source: FeatureSource) -> bool:
    """Whether the head's weights may start at the labels' words: few rows, and a trunk that reads them."""
    return source.encodes and prepared.reads_label_words


def request(task: Task, path: Path) -> FeatureRequest:
    """The sentences of the task's labels, to be read by the path."""
    return FeatureRequest(path=path, inputs=sentences(task), origin=f"labels of task '{task.name}'")


def sentences(task: Task) -> list[Input]:
    """A sentence for each label."""
    return [(SENTENCE.format(_in_words(label)),) for label in task.labels]


def _in_words(label: str) -> str:
    """`card_arrival` as `card arrival`, `CardArrival` as `Card Arrival`."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", re.sub(r"[\s_/\-]+", " ", label))
    return apart.strip()


def prior_of(module: PooledPart, task: Task, source: FeatureSource) -> Tensor | None:
    """Weights (labels, inputs) of mean length 1 whose head answers the nearest sentence; None where all are alike.

    Sentences that are not kept yet are encoded apart, so that texts stand in the batches that they would without.
    """
    read = request(task, module.path)
    source.fill([read])
    features = source.store(module.path).features(read.keys())
    examples = FeatureExamples(features, [np.zeros((), np.int64)] * len(task.labels))
    values = inputs_of(module, examples, loss=kind_of(task).loss, outputs=len(task.labels)).values
    return centred(values)


def centred(values: Tensor) -> Tensor | None:
    """Rows of length 1, less their mean, of mean length 1; None where they are alike."""
    values = torch.nn.functional.normalize(values, dim=1)
    apart = values - values.mean(dim=0)
    length = float(apart.norm(dim=1).mean())
    return apart / length if length > 1e-3 else None
