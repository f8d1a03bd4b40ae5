"""The decoder of a generating head: logits of a whole text at once, for training, and step by step, for writing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from polyhead.deep.nn.attention import AttentionKeys, behind, visible
from polyhead.deep.nn.dropout import dropped
from polyhead.deep.nn.layer import FeedForward, SelfAttention, fill_normal
from polyhead.deep.nn.trunk import VectorTable
from polyhead.encoder.decoder import Decoder
from polyhead.encoder.shape import LayerForm
from polyhead.errors import PlanError
from polyhead.values import Value


class TextDecoder(nn.Module):
    """A decoder over states of this width; its state dict has the names of `encoder.decoder.decoder_arrays`.

    Word vectors (vocabulary, width) are the trunk's and are given with each call. With a generator matrices start as
    N(0, 0.02), as in BART (Lewis et al. 2020); without one at zero, to be filled. Dropout is where the trunk has it.
    """

    def __init__(
        self,
        shape: Decoder,
        width: int,
        vocabulary: int,
        *,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.dropout, form = shape, dropout, shape.form(width)
        self.position = VectorTable(shape.positions, width)
        self.norm = nn.LayerNorm(width, eps=shape.norm_epsilon)
        self.layers = nn.ModuleList(DecoderLayer(form, dropout=dropout) for _ in range(shape.layers))
        self.output = OutputBias(vocabulary)
        if generator is not None:
            fill_normal(self, generator)

    def forward(self, ids: Tensor, states: Tensor, mask: Tensor, words: Tensor) -> Tensor:
        """Logits (rows, steps, vocabulary) of the token after each of `ids` (rows, steps), from those up to it.

        `states` (rows, tokens, width), `mask` (rows, tokens), True where a token is. Ids behind a text's end change no
        logits before it, so they need no mask.
        """
        steps = ids.shape[1]
        hidden, seen = self._embedded(ids, words, 0), visible(mask)
        before = torch.ones(steps, steps, dtype=torch.bool, device=ids.device).tril()[None, None]
        for layer in self._layers():
            keys = layer.attention.keys(hidden, None, None)
            hidden = layer.crossed(layer.attention.attended(hidden, keys, before, None, None), layer.read(states), seen)
        return self._logits(hidden, words)

    def begin(self, states: Tensor, mask: Tensor) -> TorchCache:
        """The beginning of texts over these states, before any token."""
        read = [layer.read(states) for layer in self._layers()]
        return TorchCache(read=tuple(read), seen=visible(mask))

    def step(self, ids: Tensor, cache: TorchCache, words: Tensor) -> tuple[Tensor, TorchCache]:
        """Logits (texts, beams, vocabulary) of each next token after `ids` (texts, beams), and the cache with these."""
        texts, beams = ids.shape
        hidden, kept = self._embedded(ids.reshape(-1, 1), words, cache.steps), list[AttentionKeys]()
        seen = torch.ones(1, 1, 1, cache.steps + 1, dtype=torch.bool, device=ids.device)
        for index, layer in enumerate(self._layers()):
            keys = layer.attention.keys(hidden, None, None)
            kept.append(behind(cache.written[index], keys) if cache.written else keys)
            attended = layer.attention.attended(hidden, kept[-1], seen, None, None)
            # to the pooled states the beams of a text are positions of one row
            crossed = layer.crossed(attended.view(texts, beams, -1), cache.read[index], cache.seen)
            hidden = crossed.view(texts * beams, 1, -1)
        logits = self._logits(hidden, words).view(texts, beams, -1)
        return logits, msgspec.structs.replace(cache, written=tuple(kept), steps=cache.steps + 1)

    def _layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]

    def _embedded(self, ids: Tensor, words: Tensor, start: int) -> Tensor:
        """The tokens from place `start` on as the first layer reads them, (rows, steps, width)."""
        if start + ids.shape[1] > self.shape.most_tokens:
            raise PlanError(
                "a decoder has no positions for so many tokens",
                got=start + ids.shape[1],
                allowed=f"at most {self.shape.most_tokens}",
            )
        places = torch.arange(ids.shape[1], device=ids.device) + (self.shape.first_position + start)
        hidden: Tensor = self.norm(functional.embedding(ids, words) + self.position(places))
        return dropped(hidden, self.dropout, self.training)

    def _logits(self, hidden: Tensor, words: Tensor) -> Tensor:
        return functional.linear(hidden, words, self.output.bias).float()


class OutputBias(nn.Module):
    """The bias of the logits, (vocabulary,); their matrix is that of the word vectors."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocabulary))


class DecoderLayer(nn.Module):
    """`a = LN1(h + MH(h, h)); c = LN2(a + MH(a, states)); h' = LN3(c + FF(c))` (Vaswani et al. 2017)."""

    def __init__(self, form: LayerForm, *, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(form, dropout=dropout)
        self.cross = SelfAttention(form, dropout=dropout)
        self.feed_forward = FeedForward(form, dropout=dropout)

    def crossed(self, attended: Tensor, read: AttentionKeys, seen: Tensor) -> Tensor:
        """The output (rows, steps, width), from that of the first half; `seen` (rows, 1, 1, keys) of the states."""
        out: Tensor = self.feed_forward(self.cross.attended(attended, read, seen, None, None))
        return out

    def read(self, states: Tensor) -> AttentionKeys:
        """Keys and values of the pooled states."""
        return self.cross.keys(states, None, None)


class TorchCache(Value, eq=False):
    """Keys and values of each layer, of the states of texts and of the tokens so far of their beams."""

    read: tuple[AttentionKeys, ...]  # (texts, ...)
    seen: Tensor  # (texts, 1, 1, tokens): which states are there
    written: tuple[AttentionKeys, ...] = ()  # (texts * beams, ...); () before the first step
    steps: int = 0

    def only(self, texts: np.ndarray, rows: np.ndarray) -> TorchCache:
        """As `engine.generate.step` asks."""
        chosen, beams = (torch.from_numpy(index).to(self.seen.device) for index in (texts, rows))
        read = self.read if len(chosen) == len(self.seen) else tuple(_rows(keys, chosen) for keys in self.read)
        written = tuple(_rows(keys, beams) for keys in self.written)
        return TorchCache(read=read, seen=self.seen[chosen], written=written, steps=self.steps)


class TorchSteps:
    """A decoder, with word vectors (vocabulary, width), as the steps of a search (`engine.generate.step`).

    Each is computed inside a context that `guard` makes.
    """

    def __init__(
        self, decoder: TextDecoder, words: Tensor, guard: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        self._decoder, self._words, self._guard = decoder, words, guard

    @torch.inference_mode()
    def begin(self, states: np.ndarray, mask: np.ndarray) -> TorchCache:
        """The cache of texts with these states."""
        device = self._words.device
        with self._guard():
            return self._decoder.begin(torch.from_numpy(states).to(device), torch.from_numpy(mask).to(device))

    @torch.inference_mode()
    def step(self, ids: np.ndarray, cache: TorchCache) -> tuple[np.ndarray, TorchCache]:
        """Scores of each next token."""
        with self._guard():
            scores, cache = self._decoder.step(torch.from_numpy(ids).to(self._words.device), cache, self._words)
            return scores.cpu().numpy(), cache


def _rows(keys: AttentionKeys, rows: Tensor) -> AttentionKeys:
    return AttentionKeys(key=keys.key[rows], value=keys.value[rows])
