"""The inputs of poolers from texts' states or stored values: every task's value once, coded on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from polyhead.deep.nn.runtime import to_device
from polyhead.deep.stacked.codecs import DeviceCodecs
from polyhead.deep.stacked.maps import VECTORS, StackMember
from polyhead.engine.backends.prefix import is_averaged, layers_read
from polyhead.engine.compile.encoder import HIDDEN
from polyhead.lazy import lazy
from polyhead.plan import PLACE_OF, Pool


class BatchPositions(msgspec.Struct, frozen=True, eq=False):
    """A batch's positions in the forms that poolers need, on the device."""

    keep: Tensor  # (rows, tokens, 1) float32: 0, or a low number for padding
    share: Tensor  # (rows, positions of `VECTORS`, tokens) float32: how much of each token is in these vectors
    starts: Tensor  # (rows, words, neighbours) int64: how many words stand before this one in `places`
    places: Tensor  # int64: the first token, among all rows' tokens laid end to end, of every neighbour that is a word

    @classmethod
    def of(cls, mask: np.ndarray, words: np.ndarray, *, edge: int, device: torch.device) -> BatchPositions:
        """From bool (rows, tokens) and int64 (rows, words), -1 for none; neighbours are `edge` words on each side."""
        rows, tokens = mask.shape
        around = np.pad(words, ((0, 0), (edge, edge)), constant_values=-1)
        near = around[:, np.arange(words.shape[1])[:, None] + np.arange(2 * edge + 1)]
        is_word = near >= 0
        places = (near + tokens * np.arange(rows)[:, None, None])[is_word]
        integers = np.concatenate([np.cumsum(is_word) - is_word.ravel(), places])
        lengths = mask.sum(axis=1, keepdims=True)
        shares = {"mean": mask / np.maximum(lengths, 1)}
        for name, place in PLACE_OF.items():
            shares[name] = mask & (np.arange(tokens) == np.minimum(lengths - 1, place))
        floats = np.concatenate([np.where(mask, 0.0, HIDDEN), *(shares[name] for name in VECTORS)], axis=1)
        keep, share = torch.split(to_device(floats.astype(np.float32), device), [tokens, len(VECTORS) * tokens], dim=1)
        starts, firsts = torch.split(to_device(integers.astype(np.int64), device), [near.size, len(places)])
        share = share.view(rows, len(VECTORS), tokens)
        return cls(keep=keep.unsqueeze(2), share=share, starts=starts.view(near.shape), places=firsts)


class ValueSpan(NamedTuple):
    """A stored value: its layers, counted from the last, and where it stands beside the vectors of others."""

    pool: Pool
    layers: int  # last layers that it reads
    kept: int  # layers that it holds: 1 where these are averaged
    start: int = 0  # its first column


def value_spans(members: Sequence[StackMember], width: int) -> dict[Pool, ValueSpan]:
    """Every stored value that some task reads; those of vectors side by side, equal positions and codecs together."""
    spans: dict[Pool, ValueSpan] = {}
    for member in members:
        stored = member.path.stored()
        layers = len(layers_read(stored))
        spans[stored.pool] = ValueSpan(stored.pool, layers, 1 if is_averaged(stored.pool) else layers)
    order = sorted(spans.values(), key=lambda value: (value.pool.positions, repr(value.pool.codec)))
    start = 0
    for value in order:
        spans[value.pool] = value._replace(start=start)
        start += value.kept * width * (value.pool.positions in VECTORS)
    return {value.pool: spans[value.pool] for value in order}


class HeadReads(Protocol):
    """The inputs of ends from a batch."""

    @property
    def vectors(self) -> Tensor:
        """(rows, columns): every value of one vector a text, side by side."""

    def tokens(self, pool: Pool) -> Tensor:
        """(rows, tokens, inputs): a pool's coded states, its layers averaged or side by side."""

    def keep(self) -> Tensor:
        """(rows, tokens, 1): as of `BatchPositions`."""

    def words(self, pool: Pool, window: int) -> Tensor:
        """(rows, words, neighbours * inputs): so many words on each side, side by side, zeros where there is none."""


class ReadStates:
    """States of texts: `stack` (rows, tokens, layers, width) float32, the last ones that any task reads."""

    def __init__(
        self, stack: Tensor, positions: BatchPositions, spans: Mapping[Pool, ValueSpan], codecs: DeviceCodecs
    ) -> None:
        self._stack, self._positions, self._spans, self._codecs = stack, positions, spans, codecs
        self._tokens: dict[Pool, Tensor] = {}
        self._words: dict[Pool, Tensor] = {}

    def keep(self) -> Tensor:
        """As of `HeadReads`."""
        return self._positions.keep

    @lazy
    def vectors(self) -> Tensor:
        """As of `HeadReads`."""
        values = [value for value in self._spans.values() if value.pool.positions in VECTORS]
        places = [VECTORS.index(value.pool.positions) for value in values]
        least, most = min(places), max(places) + 1
        each = self._stack[:, 0]
        if (least, most) != (0, 1):  # of more than the first tokens
            each = torch.bmm(self._positions.share[:, least:most], self._stack.flatten(2))
            each = each.view(len(each), (most - least) * self._stack.shape[2], self._stack.shape[3])
        mixes = self._mixes(values, [place - least for place in places], of=most - least)
        mixed = torch.bmm(mixes.expand(len(each), -1, -1), each)
        codecs = {msgspec.structs.replace(value.pool.codec, before_mean=False) for value in values}
        groups = [values] if len(codecs) == 1 else [[value] for value in values]
        split = torch.split(mixed, [sum(value.kept for value in group) for group in groups], dim=1)
        parts = [self._codecs.coded(part, group[0].pool.codec) for part, group in zip(split, groups, strict=True)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).flatten(1)

    def _mixes(self, values: Sequence[ValueSpan], places: Sequence[int], *, of: int) -> Tensor:
        """(vectors of all values, places * layers): how much of each layer, at the value's place, is in them."""
        layers, rows = self._stack.shape[2], []
        for value, place in zip(values, places, strict=True):
            shares = np.eye(of * layers, dtype=np.float32)[(place + 1) * layers - value.layers : (place + 1) * layers]
            rows.append(shares if value.kept > 1 else shares.mean(axis=0, keepdims=True))
        return self._codecs.constant(np.concatenate(rows))

    def tokens(self, pool: Pool) -> Tensor:
        """As of `HeadReads`."""
        everywhere = msgspec.structs.replace(pool, positions="all")  # words are some of all tokens
        if everywhere not in self._tokens:
            span = self._spans[pool]
            layers = self._stack[:, :, self._stack.shape[2] - span.layers :]
            if is_averaged(pool) and span.layers > 1:
                layers = layers.mean(dim=2, keepdim=True)
            self._tokens[everywhere] = _side_by_side(self._codecs.coded(layers, pool.codec), pool)
        return self._tokens[everywhere]

    def words(self, pool: Pool, window: int) -> Tensor:
        """As of `HeadReads`."""
        starts, tokens = self._positions.starts, self.tokens(pool).flatten(0, 1)
        if pool not in self._words:  # a bag of one token for each neighbour, empty where there is none
            words = functional.embedding_bag(self._positions.places, tokens, starts.flatten(), mode="sum")
            self._words[pool] = words.view(*starts.shape[:2], starts.shape[2] * tokens.shape[1])
        most = starts.shape[2] // 2
        return self._words[pool][..., (most - window) * tokens.shape[1] : (most + window + 1) * tokens.shape[1]]


class ReadKept:
    """A stored value, decoded, and its mask (rows, positions)."""

    def __init__(self, values: Tensor, mask: Tensor) -> None:
        self._values, self._mask = values, mask

    def keep(self) -> Tensor:
        """As of `HeadReads`."""
        return torch.where(self._mask, 0.0, HIDDEN).unsqueeze(2)

    @property
    def vectors(self) -> Tensor:
        """As of `HeadReads`."""
        return self._values[:, 0].flatten(1)

    def tokens(self, pool: Pool) -> Tensor:
        """As of `HeadReads`."""
        return _side_by_side(self._values, pool)

    def words(self, pool: Pool, window: int) -> Tensor:
        """As of `HeadReads`."""
        words = self.tokens(pool) * self._mask.unsqueeze(2)
        if not window:
            return words
        around = functional.pad(words, (0, 0, window, window))
        return torch.cat([around[:, start : start + words.shape[1]] for start in range(2 * window + 1)], dim=2)


def _side_by_side(values: Tensor, pool: Pool) -> Tensor:
    """(rows, tokens, layers, width) as what poolers read: layers that a codec keeps apart are averaged after it."""
    if pool.layers == "mean" and values.shape[2] > 1:
        return values.mean(dim=2)
    return values.flatten(2)
