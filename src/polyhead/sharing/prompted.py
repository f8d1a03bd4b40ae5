"""Trained prompt rows that stand before the text as word vectors."""

from __future__ import annotations

import torch
from torch import nn

from polyhead.trunk.shape import Architecture


class PromptRows(nn.Module):
    """Trained rows that stand before the text as word vectors: `weight` (rows, embedding width).

    Start as N(0, 0.02), drawn again beyond two standard deviations; without a generator at zero, to be filled.
    """

    def __init__(self, rows: int, shape: Architecture, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, shape.embedding_width or shape.width))
        if generator is not None:
            nn.init.trunc_normal_(self.weight, std=0.02, a=-0.04, b=0.04, generator=generator)
