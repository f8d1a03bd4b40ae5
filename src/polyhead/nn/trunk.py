"""The shared encoder: embeddings and post-norm layers, run over any range of layers from any state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from polyhead.architecture import Architecture, trunk_arrays
from polyhead.errors import PlanError, TrunkError
from polyhead.nn.deltas import LayerDelta
from polyhead.nn.layer import Dense, Layer, fill_normal
from polyhead.nn.states import States
from polyhead.trunk_data import TrunkData, check_arrays

Noise = Callable[[Tensor], Tensor]
"""Word vectors (rows, tokens, embedding width) to those that are read in their place."""


class Trunk(nn.Module):
    """An encoder of the given shape; its state dict has the names of `architecture.trunk_arrays`.

    With a `generator` matrices start as N(0, 0.02) (Devlin et al. 2019); without one at zero, to be filled.
    Dropout acts in training mode only, at the places where BERT has it.
    """

    def __init__(
        self, architecture: Architecture, *, dropout: float = 0.0, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.architecture = architecture
        self.checkpointing = (
            False  # in training, layers keep their input alone and are computed again backwards
        )
        self.embeddings = Embeddings(architecture, dropout=dropout)
        self.layers = nn.ModuleList(
            Layer(
                width=architecture.width,
                heads=architecture.heads,
                feed_forward=architecture.feed_forward,
                norm_epsilon=architecture.norm_epsilon,
                dropout=dropout,
            )
            for _ in range(architecture.layers)
        )
        if generator is not None:
            fill_normal(self, generator)

    @classmethod
    def from_data(cls, data: TrunkData, dtype: torch.dtype = torch.float32, *, dropout: float = 0.0) -> Trunk:
        """The trunk of these weights, in evaluation mode and wholly in `dtype`, states and layer norms too.

        Arrays are copied, so that training never writes into `data`.
        """
        with torch.device("meta"):
            trunk = cls(data.architecture, dropout=dropout)
        # torch.tensor copies, also what is memory-mapped or read-only, to torch's own aligned addresses.
        arrays = {name: torch.tensor(np.asarray(array), dtype=dtype) for name, array in data.arrays.items()}
        trunk.load_state_dict(arrays, assign=True)
        trunk.requires_grad_(True)
        return trunk.eval()

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Copies of all arrays as float32, by name; checked against the shape."""
        arrays = {
            name: value.detach().float().cpu().numpy().copy() for name, value in self.state_dict().items()
        }
        check_arrays(arrays, dict(trunk_arrays(self.architecture)), owner="this trunk")
        return arrays

    def embed(
        self,
        ids: Tensor,
        *,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        prompts: Tensor | None = None,
        noise: Noise | None = None,
    ) -> Tensor:
        """Layer 0's output (rows, prompt rows + tokens, width) for `ids` (rows, tokens); see `Embeddings`."""
        out: Tensor = self.embeddings(
            ids, segments=segments, positions=positions, prompts=prompts, noise=noise
        )
        return out

    def start(
        self,
        ids: Tensor,
        mask: Tensor,
        *,
        segments: Tensor | None = None,
        prompts: Tensor | None = None,
        noise: Noise | None = None,
    ) -> States:
        """The embedding's output as states of depth 0; prompt rows come first and are never padding."""
        hidden = self.embed(ids, segments=segments, prompts=prompts, noise=noise)
        added = hidden.shape[1] - ids.shape[1]
        return States(hidden=(hidden,), mask=functional.pad(mask, (added, 0), value=True) if added else mask)

    def run(
        self,
        hidden: Tensor,
        mask: Tensor,
        *,
        start: int,
        stop: int,
        deltas: Mapping[int, LayerDelta] | None = None,
    ) -> States:
        """States `start` (the given `hidden`) to `stop`; `deltas` by the index of the layer they sit in.

        The layer of index i turns state i into state i + 1. Raises PlanError when [start, stop) is no range
        of this trunk's layers or a delta sits outside it.
        """
        return self.go_on(States(hidden=(hidden,), mask=mask, first=start), stop=stop, deltas=deltas)

    def go_on(
        self,
        states: States,
        *,
        stop: int,
        deltas: Mapping[int, LayerDelta] | None = None,
        first: bool = False,
    ) -> States:
        """The same states, and those of the layers up to `stop`; `first`: of the last one the first position alone."""
        start, slots = states.depth, dict(deltas or {})
        if not start <= stop <= len(self.layers):
            raise PlanError(
                "no such layers", got=f"[{start}, {stop})", allowed=f"a range in [0, {len(self.layers)})"
            )
        if not all(start <= index < stop for index in slots):
            raise PlanError(
                "a delta sits outside the layers run", got=sorted(slots), allowed=f"{start} to {stop - 1}"
            )
        hidden = list(states.hidden)
        for index in range(start, stop):
            narrow = first and index == stop - 1
            layer, delta, again = self.layers[index], slots.get(index), self.checkpointing
            hidden.append(run_layer(layer, hidden[-1], states.mask, delta, first=narrow, again=again))
        return States(hidden=tuple(hidden), mask=states.mask, first=states.first)

    def forward(self, ids: Tensor, mask: Tensor, *, segments: Tensor | None = None) -> States:
        """Every layer's output for `ids` and `mask` (rows, tokens), mask True where a token is."""
        return self.go_on(self.start(ids, mask, segments=segments), stop=len(self.layers))


def run_layer(
    layer: nn.Module,
    hidden: Tensor,
    mask: Tensor,
    delta: LayerDelta | None = None,
    *,
    first: bool = False,
    again: bool = False,
) -> Tensor:
    """The layer's output; `again`: in training mode it keeps its input alone and is computed again backwards.

    The second computation has the dropout of the first, so gradients are the same to the bit.
    """
    if again and layer.training and torch.is_grad_enabled():
        return checkpoint(layer, hidden, mask, delta, first=first, use_reentrant=False)  # type: ignore[no-any-return]
    out: Tensor = layer(hidden, mask, delta, first=first)
    return out


class Embeddings(nn.Module):
    """`LN(word + position + segment)`, then a dense map where the table is narrower than the trunk."""

    def __init__(self, shape: Architecture, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape, self.dropout = shape, dropout
        narrow = shape.embedding_width or shape.width
        self.word = _Table(shape.vocabulary, narrow)
        self.position = _Table(shape.positions, narrow)
        self.segment = _Table(shape.segments, narrow) if shape.segments else None
        self.norm = nn.LayerNorm(narrow, eps=shape.norm_epsilon)
        self.project = Dense(narrow, shape.width) if narrow != shape.width else None

    def forward(
        self,
        ids: Tensor,
        *,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        prompts: Tensor | None = None,
        noise: Noise | None = None,
    ) -> Tensor:
        """(rows, prompt rows + tokens, width).

        `positions` (rows, tokens) count from 0, the family's own offset is added here; left out, they are
        0, 1, ... `prompts`, (prompt rows, embedding width) or one such matrix a row, stand before the text as
        word vectors (Lester et al. 2021): segment 0, no position term, through the layer
        norm once. The text keeps its positions. `noise` changes the text's word vectors before anything is added
        to them (Aghajanyan et al. 2020). Raises TrunkError when it is longer than the position table.
        """
        if ids.shape[1] > self.shape.max_tokens:
            raise TrunkError(
                "inputs are longer than the trunk", got=ids.shape[1], allowed=self.shape.max_tokens
            )
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)
        hidden = self.word(ids) if noise is None else noise(self.word(ids))
        if self.segment is not None:
            hidden = hidden + self._segments(segments)
        hidden = hidden + self.position(positions + self.shape.first_position)
        if prompts is not None:
            rows = prompts.to(hidden.dtype).expand(len(ids), *prompts.shape[-2:])
            rows = rows + self.segment.weight[0] if self.segment is not None else rows
            hidden = torch.cat([rows, hidden], dim=1)
        hidden = functional.dropout(self.norm(hidden), self.dropout, self.training)
        return hidden if self.project is None else self.project(hidden)

    def _segments(self, segments: Tensor | None) -> Tensor:
        assert self.segment is not None
        if segments is None:
            return self.segment.weight[0]
        # RoBERTa has one segment only, while its tokenizer file may number two.
        out: Tensor = self.segment(segments.clamp(max=self.shape.segments - 1))
        return out


class _Table(nn.Embedding):
    """Vectors that start at zero, so that making them touches no random state."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
