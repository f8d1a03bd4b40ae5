"""Full fine-tuning of a trunk for one task: the baseline that frozen features are compared with.

The trunk becomes the task's own, so nothing is shared and it cannot be merged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.model import TextBatch, stored_value
from polyhead.nn.trunk import Trunk
from polyhead.plan import Path
from polyhead.sharing.pooled import PooledPart
from polyhead.text.batch import batches
from polyhead.text.question import Given, read_alone
from polyhead.text.tokenise import Tokeniser
from polyhead.text.words import first_subtokens
from polyhead.train.examples import (
    batch_targets,
    longest_option,
    option_rows,
    options_in,
    padded_words,
    soft_targets,
)
from polyhead.train.fit import Batch
from polyhead.train.order import LengthSorted
from polyhead.trunk_data import TrunkData


class FineTuned(nn.Module):
    """A trunk of its own and a part on top, trained together; the trunk computes under bf16 autocast where asked.

    `path` may end below the trunk's depth: then the layers above are left out.
    """

    def __init__(
        self,
        data: TrunkData,
        path: Path,
        *,
        dropout: float,
        bfloat16: bool,
        generator: torch.Generator,
        layer_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.trunk = Trunk.from_data(data, dropout=layer_dropout)
        self.trunk.layers = self.trunk.layers[: path.layers[-1].stop]
        self.part = PooledPart(path, data.architecture.width, dropout=dropout, generator=generator)
        self._pool, self._bfloat16 = path.stored().pool, bfloat16

    def forward(self, batch: TextBatch) -> Tensor:
        """Outputs (rows, labels) or (rows, words, labels)."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._bfloat16):
            states = self.trunk.start(batch.ids, batch.mask, segments=batch.segments)
            narrow = self._pool.layers == "last" and self._pool.positions == "first"
            states = self.trunk.go_on(states, stop=len(self.trunk.layers), first=narrow)
        value = stored_value(states, self._pool, batch.words)
        outputs: Tensor = self.part(value.values, value.mask)
        return outputs


class TextExamples(LengthSorted):
    """Labelled texts, tokenised once; batches like those of `FeatureExamples`, with a row for each option."""

    def __init__(
        self,
        tokeniser: Tokeniser,
        inputs: Sequence[Given],
        targets: Sequence[np.ndarray],
        words: Sequence[np.ndarray] | None = None,
        soft: Sequence[np.ndarray] | None = None,
    ) -> None:
        """`soft` are a teacher's outputs, (labels,) or (options,), one array an example."""
        self._soft, self.options = soft, options_in(inputs)
        self._encoded, self._targets = tokeniser.encode(read_alone(inputs)), targets
        self._pad_id = tokeniser.pad_id
        lengths = np.array([len(e.ids) for e in self._encoded])
        super().__init__(lengths if self.options is None else longest_option(lengths, self.options))
        self._words = (
            [first_subtokens(e, w) for e, w in zip(self._encoded, words, strict=True)]
            if words is not None
            else None
        )

    def unread(self, member: int) -> np.ndarray | None:
        """For each word of an example whether no token stands for it; None for tasks that do not read words."""
        return None if self._words is None else self._words[member] < 0

    def batch(self, members: np.ndarray) -> Batch:
        """These texts as ids, padded to the longest of them."""
        rows = members if self.options is None else option_rows(members, self.options)
        encoded = [self._encoded[i] for i in rows]
        piece = next(batches(encoded, token_budget=1, pad_id=self._pad_id, fixed_rows=len(encoded)))
        order = np.arange(len(rows))
        if self.options is None:
            members = members[piece.members]
        else:
            order = np.argsort(piece.members)  # an example's options stay together
        words = None if self._words is None else padded_words([self._words[i] for i in members])
        texts = TextBatch(
            ids=torch.from_numpy(piece.ids[order]),
            mask=torch.from_numpy(piece.mask[order]),
            segments=torch.from_numpy(piece.segments[order]),
            words=words,
        )
        targets = batch_targets(self._targets, members, self.unread, self.options)
        soft = None if self._soft is None else soft_targets([self._soft[i] for i in members], self.options)
        tokens = int(piece.mask.sum())
        return Batch(arguments=(texts,), targets=targets, members=members, soft=soft, tokens=tokens)
