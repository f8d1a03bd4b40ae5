"""A decoder as the formulas stand: every step reads all tokens so far again, with nothing kept between steps."""

from __future__ import annotations

import msgspec
import numpy as np

from polyhead.encoder.decoder import EMBEDDING_NORM, OUTPUT_BIAS, POSITIONS, Decoder
from polyhead.encoder.shape import WORD_VECTORS
from polyhead.engine.backends.reference.layer import Array, Arrays, activated, attention, dense, layer_norm


class ReadTokens(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Texts' states, and the tokens that were read."""

    states: Array  # (texts, tokens, width)
    mask: Array  # (texts, tokens) bool
    ids: Array | None = None  # int64 (texts, beams, tokens read)

    def only(self, texts: Array, rows: Array) -> ReadTokens:
        assert self.ids is not None
        ids = self.ids.reshape(-1, self.ids.shape[-1])[rows].reshape(len(texts), -1, self.ids.shape[-1])
        return ReadTokens(states=self.states[texts], mask=self.mask[texts], ids=ids)


class ReferenceDecoder:
    """Steps of a decoder with a part's arrays over a trunk's word vectors."""

    def __init__(self, decoder: Decoder, arrays: Arrays, trunk: Arrays) -> None:
        self._decoder, self._arrays, self._words = decoder, arrays, trunk[WORD_VECTORS]

    def begin(self, states: Array, mask: Array) -> ReadTokens:
        return ReadTokens(states=states, mask=mask)

    def step(self, ids: Array, cache: ReadTokens) -> tuple[Array, ReadTokens]:
        read = ids[:, :, None] if cache.ids is None else np.concatenate([cache.ids, ids[:, :, None]], axis=2)
        texts, beams, tokens = read.shape
        states, mask = (np.repeat(array, beams, axis=0) for array in (cache.states, cache.mask))
        hidden = self._hidden(read.reshape(-1, tokens), states, mask)[:, -1]
        scores = hidden @ self._words.T + self._arrays[OUTPUT_BIAS]
        return scores.reshape(texts, beams, -1), msgspec.structs.replace(cache, ids=read)

    def _hidden(self, ids: Array, states: Array, mask: Array) -> Array:
        """The last layer's output for all tokens, (rows, tokens, width)."""
        form, arrays = self._decoder, self._arrays
        first, tokens = form.first_position, ids.shape[1]
        hidden = self._words[ids] + arrays[POSITIONS][first : first + tokens]
        hidden = layer_norm(hidden, arrays, EMBEDDING_NORM, form.norm_epsilon)
        before = np.broadcast_to(np.tri(tokens, dtype=bool), (len(ids), tokens, tokens))
        text_mask = np.broadcast_to(mask[:, None], (len(ids), tokens, mask.shape[1]))
        for index in range(form.layers):
            name = f"decoder.layers.{index}"
            for half, source, sees in ((f"{name}.attention", None, before), (f"{name}.cross", states, text_mask)):
                source = hidden if source is None else source
                query = dense(hidden, arrays, f"{half}.query")
                key, value = (dense(source, arrays, f"{half}.{part}") for part in ("key", "value"))
                mixed = attention(query, key, value, heads=form.heads, sees=sees)
                out = hidden + dense(mixed, arrays, f"{half}.output")
                hidden = layer_norm(out, arrays, f"{half}.norm", form.norm_epsilon)
            inner = activated(dense(hidden, arrays, f"{name}.feed_forward.inner"), form.activation)
            out = hidden + dense(inner, arrays, f"{name}.feed_forward.outer")
            hidden = layer_norm(out, arrays, f"{name}.feed_forward.norm", form.norm_epsilon)
        return hidden
