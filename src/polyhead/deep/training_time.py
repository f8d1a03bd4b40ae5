"""Estimates of the seconds that training over a frozen trunk takes, from rates measured first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import torch

from polyhead.deep.nn.runtime import precision_of
from polyhead.deep.nn.trunk import Trunk
from polyhead.encoder.data import TrunkData
from polyhead.encoder.shape import Architecture as Shape
from polyhead.machine import Clock
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
TRIED = 64  # texts of a measurement


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


class Rates(Value):
    """Seconds that one layer takes for one token."""

    encode: float  # forward, in evaluation
    learn: float  # forward and backward, of trained layers


def rates_of(data: TrunkData, prepared: Sequence[Prepared]) -> Rates:
    """Rates on texts of these tasks, measured for a few seconds."""
    texts = [text for p in prepared for text in read_alone(p.train.examples.inputs[:TRIED])][:TRIED]
    tokenizer = Tokenizer(data.tokenizer, data.settings)
    encoded = sorted((list(entry.ids) for entry in tokenizer.encode(texts)), key=len)
    precision = precision_of(prepared[0].training)
    batches = [_padded(encoded[at : at + 16], tokenizer.pad_id) for at in range(0, len(encoded), 16)]
    tokens = sum(len(ids) for ids in encoded) * max(1, data.architecture.layers)  # a table of words has none
    trunk = Trunk.from_data(data, dtype=getattr(torch, precision)).eval()
    with torch.inference_mode():
        encode = _best(lambda: [trunk(ids, mask).last for ids, mask in batches])
    learner = Trunk.from_data(data, dropout=0.1).train()

    def learn() -> None:
        for ids, mask in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16"):
                loss = learner(ids, mask).last.float().square().mean()
            loss.backward()
        learner.zero_grad()

    return Rates(encode=encode / tokens, learn=_best(learn) / tokens)


def _padded(texts: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, texts))
    ids = np.full((len(texts), longest), pad)
    for row, tokens in enumerate(texts):
        ids[row, : len(tokens)] = tokens
    mask = np.arange(longest)[None] < np.array([len(tokens) for tokens in texts])[:, None]
    return torch.from_numpy(ids), torch.from_numpy(mask)


def _best(run: Callable[[], object]) -> float:
    run()
    took = []
    for _ in range(2):
        clock = Clock()
        run()
        took.append(clock.seconds)
    return min(took)
