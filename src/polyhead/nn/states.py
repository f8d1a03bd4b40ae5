"""The outputs of the layers of one pass, by absolute layer index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from polyhead.config import Value
from polyhead.errors import PlanError
from polyhead.nn.layer import Keys


class States(Value, eq=False):
    """Outputs of layers `first` to `depth`; 0 is the embedding's output, l that of the l-th layer.

    There may be `keys` alone, without outputs, where only isolated prompts read the text.
    """

    hidden: tuple[Tensor, ...]  # of (rows, tokens, width)
    mask: Tensor  # (rows, tokens), True where a token is
    first: int = 0
    keys: Mapping[int, Keys] = {}  # of layers that were asked to keep them, by index

    def __post_init__(self) -> None:
        if not (self.hidden or self.keys) or self.first < 0:
            raise PlanError("states need at least one layer's output", got=f"{len(self.hidden)} from {self.first}")

    @property
    def depth(self) -> int:
        """Index of the last layer."""
        return self.first + len(self.hidden) - 1

    @property
    def last(self) -> Tensor:
        """Output of the last layer, (rows, tokens, width)."""
        return self.hidden[-1]

    def layer(self, index: int) -> Tensor:
        """Output of layer `index`, (rows, tokens, width); raises PlanError outside `first` to `depth`."""
        if not self.first <= index <= self.depth:
            raise PlanError("no state of that layer", got=index, allowed=f"{self.first} to {self.depth}")
        return self.hidden[index - self.first]

    def upto(self, depth: int) -> States:
        """The states up to layer `depth`; raises PlanError outside `first` to `depth`."""
        self.layer(depth)
        kept = {index: keys for index, keys in self.keys.items() if index < depth}
        return States(hidden=self.hidden[: depth - self.first + 1], mask=self.mask, first=self.first, keys=kept)

    def rows(self, index: Sequence[int]) -> States:
        """The same layers for the rows of these indices."""
        chosen = list(index)
        return States(
            hidden=tuple(h[chosen] for h in self.hidden),
            mask=self.mask[chosen],
            first=self.first,
            keys={i: Keys(key=k.key[chosen], value=k.value[chosen]) for i, k in self.keys.items()},
        )
