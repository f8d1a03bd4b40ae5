"""Parts over kept features: a layer mix and an attention pooler where the path asks for them, and a head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from polyhead.errors import PlanError
from polyhead.nn.heads import Head as HeadModule
from polyhead.nn.layer import Dense
from polyhead.nn.poolers import Attention, Learned
from polyhead.plan import Path


class PooledPart(nn.Module):
    """What a pooled task owns: a learned layer mix and an attention pooler where its path asks for them, and a head.

    Reads the stored value (rows, tokens, layers, width), decoded, and its mask (rows, tokens). `hidden` is the head's
    hidden layer where a family owns it.
    """

    def __init__(
        self,
        path: Path,
        width: int,
        *,
        hidden: Dense | None = None,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        node, head = path.pool, path.head
        self.path = path
        depth = path.layers[-1].stop if path.layers else 0
        if head.hidden_part is not None and hidden is None:
            raise PlanError("the hidden layer that tasks share is missing", got=head.hidden_part)
        self.owner, self.positions, self.separate = head.part, node.positions, head.separate
        self._rows = own_rows(path) if node.positions == "prompt" else slice(0, 1)
        self.mix = Learned(depth) if node.layers == "learned" else None
        self.pool = Attention(width, node.heads, generator=generator) if node.positions == "attention" else None
        self.dropout = nn.Dropout(dropout)
        inputs = 4 * width if head.separate else width
        self.head = HeadModule(
            inputs,
            head.width,
            hidden=head.hidden,
            bias=head.bias,
            activation=head.activation,
            shared=hidden,
            dropout=dropout,
            generator=generator,
        )

    def features(self, stored: Tensor, mask: Tensor) -> Tensor:
        """(rows, width), or (rows, words, width) for a path that reads words."""
        mixed = self.mix(stored) if self.mix is not None else stored.mean(dim=2)
        if self.positions == "tokens":
            return mixed
        if self.positions == "prompt":
            return mixed[:, self._rows].mean(dim=1)
        return self.pool(mixed, mask) if self.pool is not None else mixed[:, 0]

    def inputs(self, stored: Tensor, mask: Tensor, second: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """What the head reads: features, or both texts' features compared; `second` is the other text of a pair."""
        features = self.features(stored, mask)
        if self.separate:
            assert second is not None
            features = compared(features, self.features(*second))
        return features

    def forward(self, stored: Tensor, mask: Tensor, second: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Outputs (rows, labels), or (rows, words, labels); `second` is the other text of a pair read separately."""
        outputs: Tensor = self.head(self.dropout(self.inputs(stored, mask, second)))
        return outputs


def own_rows(path: Path) -> slice:
    """Which of the path's rows, counted from the first, are the prompt that its pool reads."""
    before = 0
    for prompt in path.embed.prompts:
        if prompt.part == path.pool.part:
            return slice(before, before + prompt.rows)
        before += prompt.rows
    raise PlanError("a path pools a prompt that does not stand in its input", got=path.pool.part)


def compared(first: Tensor, second: Tensor) -> Tensor:
    """[u, v, |u - v|, u * v] (rows, 4 width), of two texts' features, each scaled to the length sqrt(width).

    At that length the mean of u * v is the cosine, and single values stay near one (decision 0010).
    """
    size = first.shape[-1] ** 0.5
    u, v = (size * functional.normalize(features, dim=-1) for features in (first, second))
    return torch.cat([u, v, (u - v).abs(), u * v], dim=-1)
