"""Estimates of the seconds that training over a frozen trunk takes, from rates measured first."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from polyhead.deep.rates import Rates
from polyhead.encoder.data import TrunkData
from polyhead.encoder.shape import Architecture as Shape
from polyhead.plan import TRUNK
from polyhead.text.question import TaskInput, read_alone
from polyhead.text.tokenize import Tokenizer
from polyhead.train.data.prepared import Prepared
from polyhead.values import Value

HEAD_UPDATE = 0.004  # seconds per update of a pooler and head over kept features
UPDATE = 0.012  # seconds per update in addition to its products: optimizer, feeding
STOPPED = 0.7  # average share of the passes after which early stopping ends a run
KEPT = 0.3  # share of encoding all texts that is charged to a way, since several read the same features
TEXT_READ = 4  # cost of an isolated prompt's row, which reads a text, relative to a token
FROZEN_SHARE = 0.75  # cost of gradients through frozen layers relative to trained ones
# of the work of training every depth to the end: the part that successive halving needs in addition to the last depth
THIRD = 1 / 3


class Sizes(Value):
    """Tokens in a task's splits, and its number of training rows."""

    rows: int
    train: int
    held: int  # of validation
    test: int


def sizes_of(data: TrunkData, prepared: Prepared) -> Sizes:
    """Counted on up to 256 inputs of each split."""
    tokenizer = Tokenizer(data.tokenizer, data.settings)

    def tokens(inputs: Sequence[TaskInput]) -> int:
        sample = read_alone(list(inputs[:256]))
        mean = sum(len(entry.ids) for entry in tokenizer.encode(sample)) / max(1, min(256, len(inputs)))
        return round(mean * len(inputs))

    test = prepared.test.examples.inputs if prepared.test else ()
    return Sizes(
        rows=len(prepared.train.examples.inputs),
        train=tokens(prepared.train.examples.inputs),
        held=tokens(prepared.validation.examples.inputs),
        test=tokens(test),
    )


def frozen_seconds(p: Prepared, size: Sizes, rates: Rates, shape: Shape) -> float:
    """Seconds of training a task over the frozen trunk, evaluation included; kept states are charged in part.

    For a search of depths by halving: every depth for a while, the last one to the end.
    """
    training, strategy = p.training, p.strategy
    if searched := strategy.searched(shape.layers):
        seconds = [frozen_seconds(msgspec.structs.replace(p, strategy=depth), size, rates, shape) for depth in searched]
        return THIRD * sum(seconds) + max(seconds)
    work, steps = work_on_path(p, shape), max(1, math.ceil(size.rows / training.batch))
    passes = training.schedule(steps).most_updates / steps
    encoded = (size.train + size.held + size.test) * rates.encode * shape.layers
    ended = (size.held + size.test) * rates.encode * work.run
    if strategy.reads_kept_features:
        heads = len(strategy.candidates(p.task, shape.layers, training.effort))
        return KEPT * encoded + min(1500, passes * steps) * HEAD_UPDATE + 2 * heads
    stopped = passes * STOPPED
    if strategy.isolated:  # the text's keys and values, which rows of prompts read, are kept
        rows = work.prompts * size.rows * TEXT_READ
        return encoded + stopped * (rows * rates.learn * shape.layers + 2 * steps * UPDATE) + ended
    passed = size.train * (rates.learn * (work.own + FROZEN_SHARE * work.through)) + size.held * rates.encode * work.run
    if not strategy.is_live:
        return KEPT * encoded + stopped * (size.train * rates.learn * work.own + steps * UPDATE) + ended
    passed += size.train * rates.encode * (work.run - work.own - work.through)
    return stopped * (passed + steps * 2 * UPDATE) + ended


class PathWork(Value):
    """Layers on a path, with narrow ones as fractions of the trunk's."""

    run: float  # all
    own: float  # trained layers, over a frozen trunk
    through: float  # layers of the trunk with gradients passing through
    prompts: int  # rows


def work_on_path(p: Prepared, shape: Shape) -> PathWork:
    """The layers of the path of a task's strategy."""
    path = p.strategy.path(p.task, trunk="priced", shape=shape)
    prompts, private, through, run = sum(prompt.rows for prompt in path.embed.prompts), 0.0, 0.0, 0.0
    passed = bool(prompts)
    for node in path.layers:
        count = (node.stop - node.start) * ((node.width or shape.width) / shape.width) ** 2
        passed = passed or node.delta is not None
        run += count
        if node.weights != TRUNK:
            private += count
        elif passed:
            through += count
    return PathWork(run=run, own=private, through=through, prompts=prompts)
