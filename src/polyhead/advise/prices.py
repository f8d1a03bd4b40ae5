"""What training a way takes, said before it begins: seconds from rates that are tried first, and from runs before."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from polyhead.advise.ways import Way
from polyhead.config import Value
from polyhead.nn.trunk import Trunk
from polyhead.project.recipes import FineTune, Frozen, Joint
from polyhead.strategies import Branch, OnTop, Pooled, Prompted
from polyhead.text.question import read_alone
from polyhead.text.tokenize import Tokenizer
from polyhead.train.data.prepared import Prepared
from polyhead.train.loop.numerics import precision_of
from polyhead.trunk.data import TrunkData

TRIED = 64  # texts of a trial
HEAD_UPDATE = 0.004  # seconds of an update of a pooler and head over kept features
UPDATE = 0.012  # seconds of an update beside its products: optimizer, feeding
STOPPED = 0.7  # share of the passes after which early stopping ends a run on average
FROZEN_SHARE = 0.75  # gradients through layers that do not learn, over those through layers that do


class Rates(Value):
    """Seconds that one layer takes for one token."""

    encode: float  # forward, in evaluation
    learn: float  # forward and backward, of layers that learn


class Sizes(Value):
    """Tokens that a task's splits hold, and rows that it learns from."""

    rows: int
    train: int
    held: int  # of validation
    test: int


def rates_of(data: TrunkData, prepared: Sequence[Prepared]) -> Rates:
    """Rates on texts of these tasks, tried for a few seconds."""
    texts = [text for p in prepared for text in read_alone(p.train.examples.inputs[:TRIED])][:TRIED]
    tokenizer = Tokenizer(data.tokenizer, data.settings)
    encoded = sorted((list(entry.ids) for entry in tokenizer.encode(texts)), key=len)
    precision = precision_of(prepared[0].training)
    batches = [_padded(encoded[at : at + 16], tokenizer.pad_id) for at in range(0, len(encoded), 16)]
    tokens = sum(len(ids) for ids in encoded) * data.architecture.layers
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


def sizes_of(data: TrunkData, prepared: Prepared) -> Sizes:
    """Counted on up to 256 inputs of each split."""
    tokenizer = Tokenizer(data.tokenizer, data.settings)

    def tokens(inputs: Sequence) -> int:
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


def seconds_of(way: Way, prepared: Sequence[Prepared], sizes: Mapping[str, Sizes], rates: Rates, layers: int) -> float:
    """Seconds that the way trains, its evaluation included; kept states are counted as encoded once."""
    return sum(_of_task(way, p, sizes[p.task.name], rates, layers, len(prepared)) for p in prepared)


def _of_task(way: Way, p: Prepared, size: Sizes, rates: Rates, layers: int, tasks: int) -> float:
    training, strategy = p.training, p.strategy
    steps = max(1, math.ceil(size.rows / training.batch))
    schedule = training.schedule(steps)
    passes = schedule.passes * schedule.rounds
    stopped = passes * (1.0 if isinstance(way.recipe, Joint) else STOPPED)
    whole = size.train + size.held + size.test
    every, ended = size.held * rates.encode, (size.held + size.test) * rates.encode * layers
    own = _own_layers(strategy, layers)
    if isinstance(way.recipe, Joint | FineTune):
        learned = stopped * (size.train * rates.learn * (layers + own) + every * (layers + own) + steps * 4 * UPDATE)
        return learned + ended * 2
    if isinstance(strategy, Pooled):
        updates = min(1500, passes * steps) * (1 + (strategy.positions == "auto"))
        return 0.3 * whole * rates.encode * layers + updates * HEAD_UPDATE + 2
    if isinstance(strategy, Branch):
        several = [strategy.layers or layers, *strategy.students]
        each = sum(stopped * (size.train * rates.learn * n + every * n + steps * UPDATE) for n in several)
        return 0.3 * whole * rates.encode * layers + each + ended / layers * (strategy.layers or layers)
    if isinstance(strategy, Prompted) and strategy.isolated:
        rows = strategy.rows * size.rows * 4  # keys of the text are read, not computed
        return whole * rates.encode * layers + stopped * (rows * rates.learn * layers + 2 * steps * UPDATE) + ended
    trunk = rates.encode if isinstance(strategy, OnTop) else rates.learn * FROZEN_SHARE
    each = size.train * (trunk * layers + rates.learn * own) + every * (layers + own) + steps * 2 * UPDATE
    return stopped * each + ended


def _own_layers(strategy: object, layers: int) -> float:
    """Layers of the task's own, in layers of the trunk."""
    return 0.5 if isinstance(strategy, OnTop) else 0.0


class Corrections:
    """How much longer runs took than was estimated, by way, and of those that never ran by all."""

    def __init__(self, done: Iterable[tuple[str, float, float]] = ()) -> None:
        self._done: dict[str, list[tuple[float, float]]] = {}
        for way, estimated, seconds in done:
            self.add(way, estimated, seconds)

    def add(self, way: str, estimated: float, seconds: float) -> None:
        """A run has ended; `estimated` is without corrections."""
        self._done.setdefault(way, []).append((estimated, seconds))

    def corrected(self, way: str, estimated: float) -> float:
        """The estimate, times what runs of this way took over theirs, else what all did."""
        several = self._done.get(way) or [pair for pairs in self._done.values() for pair in pairs]
        if not several:
            return estimated
        return estimated * sum(taken for _, taken in several) / max(1e-9, sum(said for said, _ in several))


def _padded(several: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, several))
    ids = np.full((len(several), longest), pad)
    for row, tokens in enumerate(several):
        ids[row, : len(tokens)] = tokens
    mask = np.arange(longest)[None] < np.array([len(tokens) for tokens in several])[:, None]
    return torch.from_numpy(ids), torch.from_numpy(mask)


def _best(run) -> float:  # noqa
    run()
    took = []
    for _ in range(2):
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    return min(took)


__all__ = ["Corrections", "Frozen", "Rates", "Sizes", "rates_of", "seconds_of", "sizes_of"]
