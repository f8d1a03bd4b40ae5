"""The speed of layers here, in evaluation and training, measured for a few seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from polyhead.deep.nn.runtime import precision_of
from polyhead.deep.nn.trunk import Trunk
from polyhead.encoder.data import TrunkData
from polyhead.machine import Clock
from polyhead.text.question import read_alone
from polyhead.text.tokenize import Tokenizer
from polyhead.train.data.prepared import Prepared
from polyhead.values import Value

TRIED = 64  # texts of a measurement


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
