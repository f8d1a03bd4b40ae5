"""How long the runs of leaving out will take, from the tokens of their rows, before any of them starts."""

from __future__ import annotations

import numpy as np

from polyhead.text.question import read_alone
from polyhead.text.tokenize import Tokenizer
from polyhead.values import Value
from studies.du2020.leave_out import OF_GROUP, OF_PLAIN, POOLERS, STAGE1, LeaveOut

# Seconds of one thread of a core with bfloat16 arithmetic, a trunk of six layers 384 wide (rows of branches_quality)
LEARNED, STEP, READ = 0.46e-3, 0.08, 1 / 7000  # a token trained, an update, a token read
HEAD, HEAD_READ = 12.0, 0.4e-3  # a head trained to the end, an example that it answers


class Effort(Value):
    """Some runs of one sort."""

    what: str
    runs: int
    minutes: float  # of one thread


def effort(runs: LeaveOut) -> tuple[Effort, ...]:
    """The effort of all runs together; finished ones count too."""
    settings, tokenizer = runs.settings, Tokenizer(runs.plain.tokenizer, runs.plain.settings)
    train, evaluated, examples = {}, {}, {}
    for dataset in settings.sets:
        prepared = runs.prepared(dataset, STAGE1, settings.learning)
        tokens = [sum(len(e.ids) for e in tokenizer.encode(read_alone(s.examples.inputs))) for s in prepared.splits]
        train[dataset.task], evaluated[dataset.task] = tokens[0], sum(tokens[1:])
        examples[dataset.task] = [len(split.examples.targets) for split in prepared.splits]
    steps = int(np.ceil(settings.rows / settings.learning.batch))
    learning = 0.0
    trunks = runs.trunks()
    for without in trunks:
        learned_from = sum(train[dataset.task] for dataset in runs.trained_on(without))
        learning += settings.learning.most_epochs * (learned_from * LEARNED + steps * STEP * 2)
    learned = sum(train.values()) * LEARNED + len(train) * np.ceil(settings.rows / settings.full.batch) * STEP
    full = 2 * (settings.full.most_epochs * learned + sum(evaluated.values()) * READ)
    read = 3 * (sum(train.values()) + sum(evaluated.values())) * READ
    heads = len(OF_PLAIN) + len(POOLERS) + len(OF_GROUP)
    answered = heads * sum(count[-1] for count in examples.values()) * HEAD_READ
    parts = (
        ("trunks that learn", len(trunks), learning),
        ("full fine-tunings", 2 * len(train), full),
        ("texts read by frozen trunks", 3 * len(train), read),
        ("poolers and heads", heads * len(train), heads * len(train) * HEAD + answered),
    )
    return tuple(Effort(what=what, runs=count, minutes=float(seconds) / 60) for what, count, seconds in parts)
