"""The shared encoder: embeddings and layers, run over any range of layers from any state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from polyhead.deep.nn.attention import AttentionKeys
from polyhead.deep.nn.dropout import dropped
from polyhead.deep.nn.layer import Dense, Layer, LayerDelta, fill_normal
from polyhead.deep.nn.positions import RowPlaces, relative_table
from polyhead.encoder.data import TrunkData, check_arrays
from polyhead.encoder.shape import Architecture, trunk_arrays
from polyhead.errors import PlanError, TrunkError
from polyhead.values import Value

Noise = Callable[[Tensor], Tensor]
"""Word vectors (rows, tokens, embedding width) to those that are read in their place."""


class Trunk(nn.Module):
    """An encoder of the given shape; its state dict has the names of `architecture.trunk_arrays`.

    With a `generator` matrices start as N(0, 0.02) (Devlin et al. 2019); without one at zero, to be filled. Dropout is
    active in training mode only, at the same places as in BERT.
    """

    def __init__(
        self, architecture: Architecture, *, dropout: float = 0.0, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.architecture = architecture
        self.checkpointing = False  # in training, layers keep only their input and are recomputed in the backward pass
        self.embeddings = Embeddings(architecture, dropout=dropout)
        self.layers = nn.ModuleList(
            Layer(architecture.layer(index), dropout=dropout) for index in range(architecture.layers)
        )
        self.relative = relative_table(architecture.layer(0)) if architecture.layers else None
        if generator is not None:
            fill_normal(self, generator)

    @classmethod
    def from_data(cls, data: TrunkData, dtype: torch.dtype = torch.float32, *, dropout: float = 0.0) -> Trunk:
        """The trunk with these weights, in evaluation mode and entirely in `dtype`, states and layer norms too.

        Arrays are copied, so that training never writes into `data`.
        """
        with torch.device("meta"):
            trunk = cls(data.architecture, dropout=dropout)
        # torch.tensor copies, even memory-mapped or read-only arrays, to torch's own aligned addresses.
        arrays = {name: torch.tensor(np.asarray(array), dtype=dtype) for name, array in data.arrays.items()}
        trunk.load_state_dict(arrays, assign=True)
        trunk.requires_grad_(True)
        return trunk.eval()

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Copies of all arrays as float32, by name; checked against the shape."""
        arrays = {name: value.detach().float().cpu().numpy().copy() for name, value in self.state_dict().items()}
        check_arrays(arrays, dict(trunk_arrays(self.architecture)), owner="this trunk")
        return arrays

    def embed(
        self,
        ids: Tensor,
        *,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        prompts: Tensor | None = None,
        shift: bool = False,
        noise: Noise | None = None,
    ) -> Tensor:
        """Layer 0's output (rows, prompt rows + tokens, width) for `ids` (rows, tokens); see `Embeddings`."""
        out: Tensor = self.embeddings(
            ids, segments=segments, positions=positions, prompts=prompts, shift=shift, noise=noise
        )
        return out

    def start(
        self,
        ids: Tensor,
        mask: Tensor,
        *,
        segments: Tensor | None = None,
        prompts: Tensor | None = None,
        shift: bool = False,
        noise: Noise | None = None,
    ) -> States:
        """The embedding's output as states of depth 0; prompt rows come first and are never padding."""
        hidden = self.embed(ids, segments=segments, prompts=prompts, shift=shift, noise=noise)
        added = hidden.shape[1] - ids.shape[1]
        seen = functional.pad(mask, (added, 0), value=True) if added else mask
        return States(hidden=(hidden,), mask=seen, before=added)

    def run(
        self, hidden: Tensor, mask: Tensor, *, start: int, stop: int, deltas: Mapping[int, LayerDelta] | None = None
    ) -> States:
        """States `start` (the given `hidden`) to `stop`; `deltas` by the index of their layer.

        The layer of index i turns state i into state i + 1. Raises PlanError if [start, stop) is not a range of this
        trunk's layers or a delta is outside it.
        """
        return self.go_on(States(hidden=(hidden,), mask=mask, first=start), stop=stop, deltas=deltas)

    def go_on(
        self,
        states: States,
        *,
        stop: int,
        deltas: Mapping[int, LayerDelta] | None = None,
        first: int = 0,
        keep: bool = False,
    ) -> States:
        """The same states, and those of the layers up to `stop`; of the last one, only the `first` positions if given.

        `keep` keeps the keys and values of the layers without a delta too, for `beside`; no bit of the states changes.
        """
        start, slots = states.depth, dict(deltas or {})
        if not start <= stop <= len(self.layers):
            raise PlanError("no such layers", got=f"[{start}, {stop})", allowed=f"a range in [0, {len(self.layers)})")
        if not all(start <= index < stop for index in slots):
            raise PlanError("a delta sits outside the layers run", got=sorted(slots), allowed=f"{start} to {stop - 1}")
        hidden, kept, places = list(states.hidden), dict(states.keys), self._places(states)
        for index in range(start, stop):
            narrow = first if index == stop - 1 else 0
            layer, delta, again = self._layer(index), slots.get(index), self.checkpointing
            if keep and delta is None:
                kept[index] = layer.keys(hidden[-1], places)
            hidden.append(
                run_layer(
                    layer,
                    hidden[-1],
                    states.mask,
                    delta,
                    first=narrow,
                    again=again,
                    keys=kept.get(index),
                    places=places,
                )
            )
        return States(hidden=tuple(hidden), mask=states.mask, first=states.first, before=states.before, keys=kept)

    def keys(self, ids: Tensor, mask: Tensor, *, segments: Tensor | None = None) -> States:
        """Keys and values of every layer, without states: all that `beside` reads of a text."""
        last = len(self.layers) - 1
        states = self.go_on(self.start(ids, mask, segments=segments), stop=last, keep=True)
        kept = {**states.keys, last: self._layer(last).keys(states.last, self._places(states))}
        return States(hidden=(), mask=mask, keys=kept)

    def beside(
        self, states: States, prompts: Tensor, *, sizes: Sequence[int], start: int = 0, stop: int | None = None
    ) -> States:
        """States of isolated prompts, which see the text and themselves while the text sees none of them.

        `states` are the text's own, at least of layers `start` to `stop` - 1, from the plain pass: they are read and
        not computed again, and neither are keys and values that the pass kept, which replace a layer's state.
        `prompts`, (prompt rows, width) or one such matrix per row, is the prompts' state `start` (at 0
        `Embeddings.of_prompts`), prompts of `sizes` rows concatenated. `stop` None: as deep as the text. Returns the
        prompt rows' states `start` to `stop`, each (rows, prompt rows, width).

        A prompt's states are those of one input [prompt, text] in which the text's rows see only the text. With other
        `sizes` in the batch their last bits may differ; with equal ones no bit depends on the other prompts.
        """
        stop = max(states.depth, len(states.keys)) if stop is None else stop
        known = {*range(states.first, states.depth + 1), *states.keys}
        if not (0 <= start <= stop <= len(self.layers) and known.issuperset(range(start, stop))):
            raise PlanError(
                "prompts cannot stand beside these layers",
                got=f"[{start}, {stop})",
                allowed=f"layers {sorted(known & set(range(len(self.layers))))}",
            )
        if sum(sizes) != prompts.shape[-2]:
            raise PlanError("prompts of other sizes than their rows", got=list(sizes), allowed=prompts.shape[-2])
        seen = _seen_by_prompts(states.mask, sizes)
        hidden = [prompts.expand(len(states.mask), -1, -1)]
        for index in range(start, stop):
            layer = self._layer(index)
            keys = states.keys.get(index) or layer.keys(states.layer(index), self._places(states))
            hidden.append(layer.beside(hidden[-1], keys, seen))
        mask = states.mask.new_ones(hidden[0].shape[:2])
        return States(hidden=tuple(hidden), mask=mask, first=start)

    def forward(self, ids: Tensor, mask: Tensor, *, segments: Tensor | None = None) -> States:
        """Every layer's output for `ids` and `mask` (rows, tokens), mask True where a token is."""
        return self.go_on(self.start(ids, mask, segments=segments), stop=len(self.layers))

    def _places(self, states: States) -> RowPlaces:
        return RowPlaces(states.last.shape[1], before=states.before, table=self.relative)

    def _layer(self, index: int) -> Layer:
        layer = self.layers[index]
        assert isinstance(layer, Layer)
        return layer


def _seen_by_prompts(mask: Tensor, sizes: Sequence[int]) -> Tensor:
    """What each isolated prompt row sees of [text, prompt rows]: (rows, 1, prompt rows, tokens + prompt rows).

    The text's real tokens, `mask` (rows, tokens), and the rows of its own prompt; prompts of `sizes` rows are
    concatenated.
    """
    prompt = torch.repeat_interleave(torch.tensor(list(sizes))).to(mask.device)
    same_prompt = (prompt[:, None] == prompt).expand(len(mask), -1, -1)
    text = mask[:, None].expand(-1, len(prompt), -1)
    return torch.cat([text, same_prompt], dim=-1)[:, None]


def run_layer(
    layer: nn.Module,
    hidden: Tensor,
    mask: Tensor,
    delta: LayerDelta | None = None,
    *,
    first: int = 0,
    again: bool = False,
    keys: AttentionKeys | None = None,
    places: RowPlaces | None = None,
) -> Tensor:
    """The layer's output; `again`: in training mode it keeps only its input and is recomputed in the backward pass.

    The second computation has the dropout of the first, so gradients are the same to the bit.
    """
    learns = layer.training or (delta is not None and delta.training)
    if again and learns and torch.is_grad_enabled():
        if places is not None:
            places.read_table()
        return checkpoint(  # type: ignore[no-any-return]
            layer, hidden, mask, delta, first=first, keys=keys, places=places, use_reentrant=False
        )
    out: Tensor = layer(hidden, mask, delta, first=first, keys=keys, places=places)
    return out


class Embeddings(nn.Module):
    """`LN(word + position + segment)`, then a dense map if the table is narrower than the trunk.

    A family may have no positions, segments or norm here.
    """

    def __init__(self, shape: Architecture, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape, self.dropout = shape, dropout
        narrow = shape.embedding_width or shape.width
        self.word = VectorTable(shape.vocabulary, narrow)
        self.position = VectorTable(shape.positions, narrow) if shape.position_table else None
        self.segment = VectorTable(shape.segments, narrow) if shape.segments else None
        self.norm = nn.LayerNorm(narrow, eps=shape.norm_epsilon, bias=shape.norm_bias) if shape.embedding_norm else None
        self.project = Dense(narrow, shape.width) if narrow != shape.width else None

    def forward(
        self,
        ids: Tensor,
        *,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        prompts: Tensor | None = None,
        shift: bool = False,
        noise: Noise | None = None,
    ) -> Tensor:
        """(rows, prompt rows + tokens, width).

        `positions` (rows, tokens) count from 0, and the family's offset is added here; by default they are 0, 1, ...
        `prompts`, (prompt rows, embedding width) or one such matrix per row, precede the text as word vectors (Lester
        et al. 2021): segment 0, no position term, through the layer norm once. The text keeps its positions, or with
        `shift` they count the prompt rows too. `noise` changes the text's word vectors before anything is added to them
        (Aghajanyan et al. 2020). Raises TrunkError if the text is longer than the position table.
        """
        before = prompts.shape[-2] if shift and prompts is not None else 0
        if before + ids.shape[1] > self.shape.max_tokens:
            raise TrunkError(
                "inputs are longer than the trunk", got=before + ids.shape[1], allowed=self.shape.max_tokens
            )
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)
        positions = positions + before if before else positions
        hidden = self.word(ids) if noise is None else noise(self.word(ids))
        if self.segment is not None:
            hidden = hidden + self._segments(segments)
        if self.position is not None:
            hidden = hidden + self.position(positions + self.shape.first_position)
        if prompts is not None:
            rows = self._typed(prompts.to(hidden.dtype))
            hidden = torch.cat([rows.expand(len(ids), -1, -1), hidden], dim=1)
        return self._ended(hidden)

    def of_prompts(self, prompts: Tensor) -> Tensor:
        """Prompts alone, as before a text: (..., prompt rows, embedding width) to the trunk's width."""
        return self._ended(self._typed(prompts.to(self.word.weight.dtype)))

    def _typed(self, prompts: Tensor) -> Tensor:
        return prompts if self.segment is None else prompts + self.segment.weight[0]

    def _ended(self, hidden: Tensor) -> Tensor:
        hidden = hidden if self.norm is None else self.norm(hidden)
        hidden = dropped(hidden, self.dropout, self.training)
        return hidden if self.project is None else self.project(hidden)

    def _segments(self, segments: Tensor | None) -> Tensor:
        assert self.segment is not None
        if segments is None:
            return self.segment.weight[0]
        # RoBERTa has one segment only, while its tokenizer file may number two.
        out: Tensor = self.segment(segments.clamp(max=self.shape.segments - 1))
        return out


class VectorTable(nn.Embedding):
    """Vectors that start at zero, so that making them changes no random state."""

    def reset_parameters(self) -> None:
        """All zeros."""
        nn.init.zeros_(self.weight)


class States(Value, eq=False):
    """Outputs of layers `first` to `depth`; 0 is the embedding's output, l that of the l-th layer.

    There may be only `keys`, without outputs, if only isolated prompts read the text.
    """

    hidden: tuple[Tensor, ...]  # of (rows, tokens, width)
    mask: Tensor  # (rows, tokens), True where a token is
    first: int = 0
    before: int = 0  # prompt rows before the text, which have no place
    keys: Mapping[int, AttentionKeys] = {}  # of layers with kept ones, by index

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
        hidden = self.hidden[: depth - self.first + 1]
        return States(hidden=hidden, mask=self.mask, first=self.first, before=self.before, keys=kept)

    def rows(self, index: Sequence[int]) -> States:
        """The same layers for the rows of these indices."""
        chosen = list(index)
        return States(
            hidden=tuple(h[chosen] for h in self.hidden),
            mask=self.mask[chosen],
            first=self.first,
            before=self.before,
            keys={i: AttentionKeys(key=k.key[chosen], value=k.value[chosen]) for i, k in self.keys.items()},
        )
