"""Texts that isolated prompts read over a frozen trunk: they see no prompt, so they are encoded once for all epochs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from polyhead.model import TextBatch
from polyhead.nn.layer import Keys, by_head
from polyhead.nn.states import States
from polyhead.train.data.examples import TextExamples, option_rows
from polyhead.train.loop.events import Events
from polyhead.train.recipes.together import JointModel

MOST = 2 << 30  # bytes of memory that the texts of one course may take
BATCH = 64


class KeptTexts:
    """Keys and values of every layer for some texts, on the processor; `keys` computes those of a batch."""

    def __init__(self, keys: Callable[[TextBatch], States], examples: TextExamples) -> None:
        self._found: dict[int, Tensor] = {}  # (tokens, 2 * layers, width) a text
        for piece in examples.in_order(BATCH):
            (texts,) = piece.arguments
            assert isinstance(texts, TextBatch)
            states = keys(texts)
            both = [part for layer in states.keys.values() for part in (layer.key, layer.value)]
            self._heads = both[0].shape[1]
            flat = torch.stack([part.transpose(1, 2).flatten(2) for part in both], dim=2).cpu()
            rows = piece.members if examples.options is None else option_rows(piece.members, examples.options)
            for row, values, seen in zip(rows.tolist(), flat, texts.mask, strict=True):
                self._found[row] = values[seen]

    def __call__(self, rows: np.ndarray) -> States:
        """Those of these texts, padded to the longest."""
        several = [self._found[row] for row in rows.tolist()]
        lengths = torch.tensor([len(piece) for piece in several])
        padded = pad_sequence(several, batch_first=True)  # (rows, tokens, 2 * layers, width)
        parts = [by_head(part, self._heads) for part in padded.unbind(2)]
        both = zip(parts[::2], parts[1::2], strict=True)
        keys = {index: Keys(key=key, value=value) for index, (key, value) in enumerate(both)}
        return States(hidden=(), mask=torch.arange(padded.shape[1]) < lengths[:, None], keys=keys)


def keep_texts(module: JointModel, several: Sequence[TextExamples], events: Events) -> None:
    """Gives the examples what isolated prompts read of them, unless it would take more than `MOST` bytes."""
    taken = sum(examples.tokens for examples in several) * module.key_bytes
    if taken > MOST:
        events.line(
            f"texts are encoded anew in every epoch: what prompts read of them would take {taken / 2**30:.1f} GiB, "
            f"more than {MOST / 2**30:.0f}"
        )
        return
    module.eval()
    for examples in several:
        examples.kept = KeptTexts(module.keys, examples)
