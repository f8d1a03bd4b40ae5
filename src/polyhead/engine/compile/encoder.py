"""The encoder as a graph: embeddings, and layers `a = LN1(h + MH(h)); h' = LN2(a + W2 gelu(W1 a))` (Devlin 2019).

States are (rows, tokens, width). Rows may be several groups of equal size, one after another: layers with weights of
each group's own are computed by one product a map, over all groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from polyhead.engine.compile.ops import Ops, Tensor
from polyhead.plan import Dense, Layers
from polyhead.trunk.shape import Architecture

Arrays = Mapping[str, np.ndarray]
HIDDEN = -1e4  # added to the score of a position that is not read


def embed(ops: Ops, arrays: Arrays, shape: Architecture, *, prompted: bool = False) -> Tensor:
    """`LN([P; word(ids) + position] + segment)`, (rows, tokens, width); prompt rows stand anywhere among the tokens.

    Inputs: ids, positions and, where the trunk has them, segments (rows, tokens). With prompts also `text` (rows,
    tokens, 1), 1 at a text's tokens and 0 elsewhere; `prompts` (1 + prompt rows, embedding width), the first row zero;
    and `which` (rows, tokens), the row of these that is added.
    """
    out = ops.gather(ops.constant(arrays["embeddings.word.weight"]), ops.input("ids", "int", (-1, -1)))
    positions = ops.input("positions", "int", (-1, -1))
    out = ops.add(out, ops.gather(ops.constant(arrays["embeddings.position.weight"]), positions))
    if prompted:
        narrow = shape.embedding_width or shape.width
        rows = ops.gather(ops.input("prompts", "float", (-1, narrow)), ops.input("which", "int", (-1, -1)))
        out = ops.add(ops.multiply(out, ops.input("text", "float", (-1, -1, 1))), rows)
    if shape.segments:
        segments = ops.input("segments", "int", (-1, -1))
        out = ops.add(out, ops.gather(ops.constant(arrays["embeddings.segment.weight"]), segments))
    out = norm(ops, out, [arrays], "embeddings.norm", shape.norm_epsilon)
    if shape.embedding_width not in (None, shape.width):
        out = dense(ops, out, [arrays], "embeddings.project")
    return out


class Inside:
    """What a delta adds inside one layer; this one adds nothing. `engine.graph.deltas` has those that do."""

    def mapped(self, ops: Ops, x: Tensor, target: Dense, out: Tensor) -> Tensor:
        """A dense map's output with what is added to it."""
        return out

    def prefixed(self, ops: Ops, key: Tensor, value: Tensor, added: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values (rows, tokens, width) and what is added to scores, with the rows that stand before."""
        return key, value, added

    def behind(self, ops: Ops, out: Tensor, half: str) -> Tensor:
        """What a half gives, before it is added."""
        return out

    def beside(self, ops: Ops, hidden: Tensor, added: Tensor, half: Tensor) -> Tensor:
        """The feed-forward half with what stands beside it; `hidden` is the layer's input."""
        return half

    def after(self, ops: Ops, out: Tensor, added: Tensor) -> Tensor:
        """The layer's output."""
        return out


class Run(msgspec.Struct, frozen=True):
    """Layers of one shape over groups of rows: with weights of one owner, or of one for each group."""

    node: Layers  # of the first group
    shape: Architecture
    weights: Sequence[Arrays]
    inside: Mapping[int, Inside] = {}  # by layer; of all groups

    def states(self, ops: Ops, hidden: Tensor, added: Tensor) -> list[Tensor]:
        """The output of each layer; with `leave` the last is projected back."""
        out: list[Tensor] = []
        if self.node.enter:
            hidden = dense(ops, hidden, self.weights, "enter")
        for index in range(self.node.start, self.node.stop):
            hidden = self._layer(ops, hidden, added, index)
            out.append(hidden)
        if self.node.leave:
            out[-1] = dense(ops, hidden, self.weights, "leave")
        return out

    def _layer(self, ops: Ops, hidden: Tensor, added: Tensor, index: int) -> Tensor:
        inside, out = self.inside.get(index, Inside()), hidden
        if self.node.attention:
            half = inside.behind(ops, self._attention(ops, out, added, index, inside), "attention")
            out = self._added(ops, out, half, f"layers.{index}.attention.norm")
        if self.node.feed_forward != 0:
            inner = ops.gelu(self._dense(ops, out, index, "feed_forward.inner", inside))
            for number in range(self.node.hidden_layers - 1):
                name = f"layers.{index}.feed_forward.between.{number}"
                inner = ops.gelu(dense(ops, inner, self.weights, name))
            half = self._dense(ops, inner, index, "feed_forward.outer", inside)
            half = inside.beside(ops, hidden, added, inside.behind(ops, half, "feed_forward"))
            out = self._added(ops, out, half, f"layers.{index}.feed_forward.norm")
        return inside.after(ops, out, added)

    def _added(self, ops: Ops, before: Tensor, half: Tensor, name: str) -> Tensor:
        if not self.node.residual:
            return half
        return norm(ops, ops.add(before, half), self.weights, name, self.shape.norm_epsilon)

    def _attention(self, ops: Ops, hidden: Tensor, added: Tensor, index: int, inside: Inside) -> Tensor:
        query, key, value = (
            self._dense(ops, hidden, index, target, inside)
            for target in ("attention.query", "attention.key", "attention.value")
        )
        key, value, added = inside.prefixed(ops, key, value, added)
        width, heads = self.node.width or self.shape.width, self.node.heads or self.shape.heads
        mixed = attend(ops, query, key, value, added, heads=heads, width=width)
        return self._dense(ops, mixed, index, "attention.output", inside)

    def _dense(self, ops: Ops, x: Tensor, index: int, target: Dense, inside: Inside) -> Tensor:
        return inside.mapped(ops, x, target, dense(ops, x, self.weights, f"layers.{index}.{target}"))


def attend(ops: Ops, query: Tensor, key: Tensor, value: Tensor, added: Tensor, *, heads: int, width: int) -> Tensor:
    """`softmax(Q K^T / sqrt(width / heads) + added) V` of each head, side by side; (rows, tokens, width) each."""
    inner = width // heads

    def split(x: Tensor) -> Tensor:
        return ops.transpose(ops.reshape(x, (-1, ops.size(x, 1), heads, inner)), (0, 2, 1, 3))

    mixed = ops.attention(split(query), split(key), split(value), added, float(inner**-0.5))
    joined = ops.transpose(mixed, (0, 2, 1, 3))
    return ops.reshape(joined, (-1, ops.size(joined, 1), width))


def dense(ops: Ops, x: Tensor, maps: Sequence[Arrays], name: str) -> Tensor:
    """`W x + b` with one owner's arrays for all rows, or with each group's own; the bias where there is one."""
    weights = [arrays[f"{name}.weight"] for arrays in maps]
    biases = [arrays[f"{name}.bias"] for arrays in maps if f"{name}.bias" in arrays]
    if len(maps) == 1:
        out = ops.matmul(x, ops.constant(weights[0]), transposed=True)
        return ops.add(out, ops.constant(biases[0])) if biases else out
    return grouped(ops, x, np.stack(weights), np.stack(biases) if biases else None)


def grouped(ops: Ops, x: Tensor, weights: np.ndarray, biases: np.ndarray | None) -> Tensor:
    """Each group's own `W x + b`: weights (groups, outputs, inputs) over (groups * rows, tokens, inputs)."""
    groups, outputs, inputs = weights.shape
    flat = ops.matmul(ops.reshape(x, (groups, -1, inputs)), ops.constant(weights), transposed=True)
    if biases is not None:
        flat = ops.add(flat, ops.constant(biases[:, None]))
    return ops.reshape(flat, (-1, ops.size(x, 1), outputs))


def distinct(arrays: Sequence[Arrays]) -> Sequence[Arrays]:
    """One for all groups, where all have the same."""
    return arrays[:1] if all(one is arrays[0] for one in arrays) else arrays


def norm(ops: Ops, x: Tensor, norms: Sequence[Arrays], name: str, epsilon: float) -> Tensor:
    """Layer norm over the width, with one gain and bias or each group's own."""
    gains, biases = ([arrays[f"{name}.{leaf}"] for arrays in norms] for leaf in ("weight", "bias"))
    if len(norms) == 1:
        return ops.norm(x, gains[0], biases[0], epsilon)
    groups, width = len(norms), len(gains[0])
    flat = ops.reshape(x, (groups, -1, width))
    out = ops.norm(flat, np.stack(gains)[:, None], np.stack(biases)[:, None], epsilon)
    return ops.reshape(out, (-1, ops.size(x, 1), width))
