"""The slot for functions added inside a layer (Stickland and Murray 2019; `h' = LN2(a + FFN(a) + TS(h))`)."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class LayerDelta(Protocol):
    """What a layer adds before its second layer norm, computed from the layer's input."""

    def __call__(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The term to add, (rows, tokens, width), from the layer's input of that shape and its mask."""
