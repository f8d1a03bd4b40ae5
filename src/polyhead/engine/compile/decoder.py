"""A decoder as graphs: keys and values of the states once for a text, then one token of each row at a time.

Keys and values of tokens that were read lie in arrays with room for more, so that runtimes see few shapes; a graph gets
them and gives those of the new token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from polyhead.encoder.decoder import EMBEDDING_NORM, OUTPUT_BIAS, POSITIONS, Decoder
from polyhead.encoder.shape import WORD_VECTORS
from polyhead.engine.compile.encoder import HIDDEN, activated_ops
from polyhead.engine.compile.maps import Arrays, dense_ops, joined_heads, norm_ops, split_heads
from polyhead.engine.compile.ops import Build, Ops, Tensor

ROOM = 16  # tokens that arrays of keys and values have room for at first; then twice as many each time
KEPT = ("key", "value")
Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


class KeptKeys(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Keys and values by their names in the step's graph."""

    given: dict[str, np.ndarray]  # of the states, (texts, heads, tokens, width of a head)
    added: np.ndarray  # (texts, 1, 1, tokens): HIDDEN where a position is not read, else 0
    own: dict[str, np.ndarray]  # of tokens that were read, (texts * beams, heads, room, width of a head)
    length: int = 0  # of the room, what is used

    def only(self, texts: np.ndarray, rows: np.ndarray) -> KeptKeys:
        """That of some texts and rows; where all stay as they are, the same."""
        kept = self
        if len(texts) < len(self.added):
            kept_given = {name: array[texts] for name, array in self.given.items()}
            kept = msgspec.structs.replace(kept, given=kept_given, added=self.added[texts])
        before = len(next(iter(self.own.values())))
        if len(rows) != before or (rows != np.arange(before)).any():
            kept = msgspec.structs.replace(kept, own={name: array[rows] for name, array in self.own.items()})
        return kept


class GraphDecoder:
    """Steps of a decoder by two graphs: `begin_graph`, and `step_graph` of the same decoder."""

    def __init__(self, decoder: Decoder, arrays: Arrays, trunk: Arrays, *, begin: Run, step: Run) -> None:
        self._decoder, self._begin, self._step = decoder, begin, step
        self._words, self._positions = trunk[WORD_VECTORS], arrays[POSITIONS]

    def begin(self, states: np.ndarray, mask: np.ndarray) -> KeptKeys:
        """See `DecoderStep`."""
        outputs = self._begin({"states": np.ascontiguousarray(states, np.float32)})
        added = np.where(mask, np.float32(0.0), np.float32(HIDDEN))[:, None, None]
        return KeptKeys(given={name: np.array(array) for name, array in outputs.items()}, added=added, own={})

    def step(self, ids: np.ndarray, cache: KeptKeys) -> tuple[np.ndarray, KeptKeys]:
        """See `DecoderStep`."""
        cache = self._with_room(cache, ids.size)
        at = cache.length
        read = self._words[ids] + self._positions[self._decoder.first_position + at]
        before = np.full((1, 1, 1, _room(cache) + 1), HIDDEN, np.float32)
        before[..., :at] = before[..., -1] = 0.0
        outputs = self._step({"read": read, "added": cache.added, "before": before, **cache.given, **cache.own})
        for name, array in cache.own.items():
            array[:, :, at] = outputs[f"new.{name}"][:, :, 0]
        return np.array(outputs["scores"], np.float32), msgspec.structs.replace(cache, length=at + 1)

    def _with_room(self, cache: KeptKeys, rows: int) -> KeptKeys:
        """The same with room for one more token of so many rows."""
        if cache.own and cache.length < _room(cache):
            return cache
        heads, width = self._decoder.heads, self._words.shape[1] // self._decoder.heads
        room = 2 * _room(cache) if cache.own else ROOM
        states = {}
        for index in range(self._decoder.layers):
            for name in (f"key.{index}", f"value.{index}"):
                states[name] = np.zeros((rows, heads, room, width), np.float32)
                if cache.own:
                    states[name][:, :, : cache.length] = cache.own[name]
        return msgspec.structs.replace(cache, own=states)


def _room(cache: KeptKeys) -> int:
    return int(cache.own["key.0"].shape[2])


def begin_graph(decoder: Decoder, arrays: Arrays) -> Build:
    """From `states` (texts, tokens, width) each layer's `given_key.i` and `given_value.i`, by head."""

    def build(ops: Ops) -> dict[str, Tensor]:
        width = len(arrays[f"{EMBEDDING_NORM}.weight"])
        states = ops.input("states", "float", (-1, -1, width))
        outputs = {}
        for index in range(decoder.layers):
            for part in KEPT:
                x = dense_ops(ops, states, [arrays], f"decoder.layers.{index}.cross.{part}")
                outputs[f"given_{part}.{index}"] = split_heads(ops, x, decoder.heads, width // decoder.heads)
        return outputs

    return build


def step_graph(decoder: Decoder, arrays: Arrays, words: np.ndarray) -> Build:
    """From `read` (texts, beams, width), the tokens' vectors before their norm, `scores` (texts, beams, vocabulary).

    Beside them `new.key.i` and `new.value.i`, of the tokens that are read (texts * beams, heads, 1, width of a head).
    """
    heads, width = decoder.heads, words.shape[1]
    inner = width // heads

    def build(ops: Ops) -> dict[str, Tensor]:
        read = ops.input("read", "float", (-1, -1, width))
        text_added, before = ops.input("added", "float", (-1, 1, 1, -1)), ops.input("before", "float", (1, 1, 1, -1))
        hidden, outputs = norm_ops(ops, read, [arrays], EMBEDDING_NORM, decoder.norm_epsilon), dict[str, Tensor]()

        def behind(x: Tensor, half: Tensor, name: str) -> Tensor:
            return norm_ops(ops, ops.add(x, half), [arrays], f"{name}.norm", decoder.norm_epsilon)

        for index in range(decoder.layers):
            name = f"decoder.layers.{index}"
            parts, scale = {}, float(inner**-0.5)
            for part in ("query", "key", "value"):
                token = ops.reshape(dense_ops(ops, hidden, [arrays], f"{name}.attention.{part}"), (-1, 1, width))
                parts[part] = split_heads(ops, token, heads, inner)
            for part in KEPT:
                outputs[f"new.{part}.{index}"] = parts[part]
                kept = ops.input(f"{part}.{index}", "float", (-1, heads, -1, inner))
                parts[part] = ops.concat([kept, parts[part]], 2)
            mixed = ops.attention(parts["query"], parts["key"], parts["value"], before, scale)
            mixed = ops.reshape(mixed, (-1, ops.size(read, 1), width))
            half = dense_ops(ops, mixed, [arrays], f"{name}.attention.output")
            hidden = behind(hidden, half, f"{name}.attention")
            query = split_heads(ops, dense_ops(ops, hidden, [arrays], f"{name}.cross.query"), heads, inner)
            key, value = (ops.input(f"given_{part}.{index}", "float", (-1, heads, -1, inner)) for part in KEPT)
            mixed = joined_heads(ops, ops.attention(query, key, value, text_added, scale), width)
            hidden = behind(hidden, dense_ops(ops, mixed, [arrays], f"{name}.cross.output"), f"{name}.cross")
            wide = dense_ops(ops, hidden, [arrays], f"{name}.feed_forward.inner")
            half = dense_ops(ops, activated_ops(ops, wide, decoder.activation), [arrays], f"{name}.feed_forward.outer")
            hidden = behind(hidden, half, f"{name}.feed_forward")
        scores = ops.matmul(hidden, ops.constant(words), transposed=True)
        return {"scores": ops.add(scores, ops.constant(arrays[OUTPUT_BIAS])), **outputs}

    return build
