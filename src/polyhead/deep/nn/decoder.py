"""The decoder of a generating head: logits of a whole text at once, for training, and step by step, for writing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from polyhead.deep.nn.attention import AttentionKeys, behind, visible
from polyhead.deep.nn.dropout import fast_dropout
from polyhead.deep.nn.layer import FeedForward, SelfAttention, fill_normal
from polyhead.deep.nn.trunk import VectorTable
from polyhead.encoder.decoder import Decoder
from polyhead.encoder.shape import LayerForm
from polyhead.errors import PlanError


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
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            hidden = layer(hidden, layer.attention.keys(hidden, None, None), before, layer.read(states), seen)
        return self._logits(hidden, words)

    def begin(self, states: Tensor, mask: Tensor) -> Written:
        """The beginning of texts over these states, before any token."""
        read = [layer.read(states) for layer in self.layers if isinstance(layer, DecoderLayer)]
        return Written(read, visible(mask))

    def step(self, ids: Tensor, written: Written, words: Tensor) -> Tensor:
        """Logits (rows, vocabulary) of the next token after `ids` (rows,), which it appends to what is written."""
        hidden = self._embedded(ids[:, None], words, written.steps)
        seen = torch.ones(1, 1, 1, written.steps + 1, dtype=torch.bool, device=ids.device)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            own = written.appended(index, layer.attention.keys(hidden, None, None))
            hidden = layer(hidden, own, seen, written.read[index], written.seen)
        written.steps += 1
        return self._logits(hidden, words)[:, 0]

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
        return fast_dropout(hidden, self.dropout, self.training)

    def _logits(self, hidden: Tensor, words: Tensor) -> Tensor:
        return functional.linear(hidden, words, self.output.bias).float()


class OutputBias(nn.Module):
    """What each token's logit gains, `bias` (vocabulary,); the matrix before it is that of the word vectors."""

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

    def forward(self, hidden: Tensor, own: AttentionKeys, before: Tensor, read: AttentionKeys, seen: Tensor) -> Tensor:
        """(rows, steps, width) to the same shape; `own` are keys of the text, `read` of the states.

        `before` and `seen` (rows or 1, 1, steps or 1, keys) say which of them each step sees.
        """
        attended = self.attention.attended(hidden, own, before, None, None)
        crossed = self.cross.attended(attended, read, seen, None, None)
        out: Tensor = self.feed_forward(crossed)
        return out

    def read(self, states: Tensor) -> AttentionKeys:
        """Keys and values of the pooled states."""
        return self.cross.keys(states, None, None)


class Written:
    """Texts in writing: keys and values of each layer, of the pooled states and of the tokens so far."""

    def __init__(self, read: list[AttentionKeys], seen: Tensor) -> None:
        self.read, self.seen, self.steps = read, seen, 0
        self._own: list[AttentionKeys | None] = [None] * len(read)

    def appended(self, index: int, keys: AttentionKeys) -> AttentionKeys:
        """The keys of the layer's tokens so far, with those of a further one."""
        before = self._own[index]
        own = keys if before is None else behind(before, keys)
        self._own[index] = own
        return own

    def take(self, rows: Tensor) -> None:
        """Goes on with the texts of these rows, int64 (rows,), in this order; one may be there several times."""
        self.read = [_rows(keys, rows) for keys in self.read]
        self._own = [None if keys is None else _rows(keys, rows) for keys in self._own]
        self.seen = self.seen[rows]


def _rows(keys: AttentionKeys, rows: Tensor) -> AttentionKeys:
    return AttentionKeys(key=keys.key[rows], value=keys.value[rows])
