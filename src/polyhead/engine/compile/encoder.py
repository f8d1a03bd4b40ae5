"""The encoder as graphs: embeddings, layers `a = LN1(h + MH(h)); h' = LN2(a + W2 gelu(W1 a))` (Devlin 2019), deltas.

States are (rows, tokens, width). Rows may be several groups of equal size, one after another: layers with weights of
each group's own are computed by one product a map, over all groups.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from polyhead.encoder.shape import Architecture
from polyhead.engine.compile.ops import Build, Ops, Tensor
from polyhead.plan import ADDED, TRUNK, Delta, Dense, Layers

Arrays = Mapping[str, np.ndarray]
HIDDEN = -1e4  # added to the score of a position that is not read


class LayerSpan(msgspec.Struct, frozen=True):
    """Layers of one lane, or of several that are alike but for their arrays."""

    nodes: tuple[Layers, ...]  # a lane each
    inputs: tuple[int, ...]  # which input each lane begins with
    keep: tuple[int, ...]  # n: the state after n layers; -n: the mean of the last n
    begins: bool = False  # with the embedding

    @property
    def label(self) -> str:
        """For errors."""
        node = self.nodes[0]
        owners = {lane.weights if lane.delta is None else lane.delta.part for lane in self.nodes}
        return f"layers {node.start} to {node.stop - 1} of {', '.join(sorted(owners))}"


def span_graph(span: LayerSpan, shape: Architecture, arrays: Mapping[str, Arrays]) -> Build:
    """Outputs `state.n`, the lanes' rows one after another; inputs `hidden.0`, ... and `added`, or the embedding's.

    Lanes over weights of one owner run as one, so that what they share is one product; so do narrow ones. Lanes with
    whole layers of their own run one after the other: their products stacked are slower by far (decision 22).
    """

    def build(ops: Ops) -> dict[str, Tensor]:
        node, lanes = span.nodes[0], len(span.nodes)
        added = ops.input("added", "float", (-1, 1, -1, -1))
        if span.begins:
            hidden = embed(ops, arrays[TRUNK], shape)
        else:
            width = shape.width if node.enter or node.width is None else node.width
            inputs = [ops.input(f"hidden.{i}", "float", (-1, -1, width)) for i in span.inputs]
            if node.width is None and len({lane.weights for lane in span.nodes}) > 1:
                return _in_turn(ops, span, inputs, added, shape, arrays)
            hidden = inputs[0] if lanes == 1 else ops.concat(inputs, 0)
        if lanes > 1:
            added = ops.concat([added] * lanes, 0)
        states = LayerRun(span.nodes, shape, arrays).states(ops, hidden, added)
        return {f"state.{number}": _state(ops, states, number) for number in span.keep}

    return build


def _in_turn(
    ops: Ops,
    span: LayerSpan,
    inputs: Sequence[Tensor],
    added: Tensor,
    shape: Architecture,
    arrays: Mapping[str, Arrays],
) -> dict[str, Tensor]:
    """Each lane's layers by themselves; their states beside each other."""
    lanes = [
        LayerRun([node], shape, arrays).states(ops, hidden, added)
        for node, hidden in zip(span.nodes, inputs, strict=True)
    ]
    return {f"state.{number}": ops.concat([_state(ops, states, number) for states in lanes], 0) for number in span.keep}


def embed_graph(shape: Architecture, arrays: Arrays) -> Build:
    """The embedding of texts and prompt rows: output `state.0`."""

    def build(ops: Ops) -> dict[str, Tensor]:
        return {"state.0": embed(ops, arrays, shape, prompted=True)}

    return build


def beside_graph(node: Layers, shape: Architecture, arrays: Arrays) -> Build:
    """One layer for rows `hidden.0` beside the text `hidden.1`, which they see: output `state.1`."""

    def build(ops: Ops) -> dict[str, Tensor]:
        hidden, text = (ops.input(f"hidden.{i}", "float", (-1, -1, shape.width)) for i in range(2))
        added = ops.input("added", "float", (-1, 1, -1, -1))
        return {"state.1": LayerRun([node], shape, {TRUNK: arrays}, text=text).states(ops, hidden, added)[0]}

    return build


def _state(ops: Ops, states: Sequence[Tensor], number: int) -> Tensor:
    if number > 0:
        return states[number - 1]
    total = functools.reduce(ops.add, states[number:])
    return ops.multiply(total, ops.constant(np.array(-1.0 / number, np.float32)))


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
    out = norm_ops(ops, out, [arrays], "embeddings.norm", shape.norm_epsilon)
    if shape.embedding_width not in (None, shape.width):
        out = dense_ops(ops, out, [arrays], "embeddings.project")
    return out


class LayerRun:
    """Layers of several lanes that are alike but for whose arrays they read: rows are a group for each lane.

    Where all lanes read the same arrays, rows are one group. With `text` (rows, tokens, width), the state that the
    layer reads of it, the rows stand before a text and see it, which does not see them; `added` covers the text first.
    """

    def __init__(
        self, nodes: Sequence[Layers], shape: Architecture, arrays: Mapping[str, Arrays], *, text: Tensor | None = None
    ) -> None:
        self.node, self.shape, self.text = nodes[0], shape, text
        self.weights = distinct([arrays[node.weights] for node in nodes])
        deltas = [node.delta for node in nodes if node.delta is not None]
        self._own = distinct([arrays[delta.part] for delta in deltas])
        self._ends = distinct([arrays[delta.ends or delta.part] for delta in deltas])

    def states(self, ops: Ops, hidden: Tensor, added: Tensor) -> list[Tensor]:
        """The output of each layer; with `leave` the last is projected back."""
        out: list[Tensor] = []
        if self.node.enter:
            hidden = dense_ops(ops, hidden, self.weights, "enter")
        for index in range(self.node.start, self.node.stop):
            hidden = self._layer(ops, hidden, added, index)
            out.append(hidden)
        if self.node.leave:
            out[-1] = dense_ops(ops, hidden, self.weights, "leave")
        return out

    def _layer(self, ops: Ops, hidden: Tensor, added: Tensor, index: int) -> Tensor:
        inside, out = Inside(self.node.delta, index, self._own, self._ends, epsilon=self.shape.norm_epsilon), hidden
        if self.node.attention:
            half = inside.behind(ops, self._attention(ops, out, added, index, inside), "attention")
            out = self._added(ops, out, half, f"layers.{index}.attention.norm")
        if self.node.feed_forward != 0:
            inner = ops.gelu(self._dense(ops, out, index, "feed_forward.inner", inside))
            for number in range(self.node.hidden_layers - 1):
                name = f"layers.{index}.feed_forward.between.{number}"
                inner = ops.gelu(dense_ops(ops, inner, self.weights, name))
            half = self._dense(ops, inner, index, "feed_forward.outer", inside)
            half = inside.beside(ops, hidden, added, inside.behind(ops, half, "feed_forward"))
            out = self._added(ops, out, half, f"layers.{index}.feed_forward.norm")
        return inside.after(ops, out, added)

    def _added(self, ops: Ops, before: Tensor, half: Tensor, name: str) -> Tensor:
        if not self.node.residual:
            return half
        return norm_ops(ops, ops.add(before, half), self.weights, name, self.shape.norm_epsilon)

    def _attention(self, ops: Ops, hidden: Tensor, added: Tensor, index: int, inside: Inside) -> Tensor:
        query, key, value = (
            self._dense(ops, hidden, index, target, inside)
            for target in ("attention.query", "attention.key", "attention.value")
        )
        key, value, added = inside.prefixed(ops, key, value, added)
        if self.text is not None:
            names = (f"layers.{index}.attention.{leaf}" for leaf in ("key", "value"))
            keys, values = (dense_ops(ops, self.text, self.weights, name) for name in names)
            key, value = ops.concat([keys, key], 1), ops.concat([values, value], 1)
        width, heads = self.node.width or self.shape.width, self.node.heads or self.shape.heads
        mixed = attention_ops(ops, query, key, value, added, heads=heads, width=width)
        return self._dense(ops, mixed, index, "attention.output", inside)

    def _dense(self, ops: Ops, x: Tensor, index: int, target: Dense, inside: Inside) -> Tensor:
        return inside.mapped(ops, x, target, dense_ops(ops, x, self.weights, f"layers.{index}.{target}"))


def attention_ops(
    ops: Ops, query: Tensor, key: Tensor, value: Tensor, added: Tensor, *, heads: int, width: int
) -> Tensor:
    """`softmax(Q K^T / sqrt(width / heads) + added) V` of each head, side by side; (rows, tokens, width) each."""
    inner = width // heads

    def split(x: Tensor) -> Tensor:
        return ops.transpose(ops.reshape(x, (-1, ops.size(x, 1), heads, inner)), (0, 2, 1, 3))

    mixed = ops.attention(split(query), split(key), split(value), added, float(inner**-0.5))
    joined = ops.transpose(mixed, (0, 2, 1, 3))
    return ops.reshape(joined, (-1, ops.size(joined, 1), width))


def dense_ops(ops: Ops, x: Tensor, maps: Sequence[Arrays], name: str) -> Tensor:
    """`W x + b` with one owner's arrays for all rows, or with each group's own; the bias where there is one."""
    weights = [arrays[f"{name}.weight"] for arrays in maps]
    biases = [arrays[f"{name}.bias"] for arrays in maps if f"{name}.bias" in arrays]
    if len(maps) == 1:
        out = ops.matmul(x, ops.constant(weights[0]), transposed=True)
        return ops.add(out, ops.constant(biases[0])) if biases else out
    stacked = np.stack(weights)
    groups, outputs, inputs = stacked.shape
    flat = ops.matmul(ops.reshape(x, (groups, -1, inputs)), ops.constant(stacked), transposed=True)
    if biases:
        flat = ops.add(flat, ops.constant(np.stack(biases)[:, None]))
    return ops.reshape(flat, (-1, ops.size(x, 1), outputs))


def distinct(arrays: Sequence[Arrays]) -> Sequence[Arrays]:
    """One for all groups, where all have the same."""
    return arrays[:1] if all(group is arrays[0] for group in arrays) else arrays


def norm_ops(ops: Ops, x: Tensor, norms: Sequence[Arrays], name: str, epsilon: float) -> Tensor:
    """Layer norm over the width, with one gain and bias or each group's own."""
    gains, biases = ([arrays[f"{name}.{leaf}"] for arrays in norms] for leaf in ("weight", "bias"))
    if len(norms) == 1:
        return ops.norm(x, gains[0], biases[0], epsilon)
    groups, width = len(norms), len(gains[0])
    flat = ops.reshape(x, (groups, -1, width))
    out = ops.norm(flat, np.stack(gains)[:, None], np.stack(biases)[:, None], epsilon)
    return ops.reshape(out, (-1, ops.size(x, 1), width))


class Inside:
    """The work of a delta in one layer, on rows in a group for each of its owners; without a delta it does nothing.

    `own` holds each group's arrays, `ends` those of the owners of encoders and decoders.
    """

    def __init__(
        self, node: Delta | None, index: int, own: Sequence[Arrays], ends: Sequence[Arrays], *, epsilon: float
    ) -> None:
        self._node, self._name, self._own, self._ends, self._epsilon = node, f"delta.{index}", own, ends, epsilon
        self._kind = None if node is None else node.kind

    def mapped(self, ops: Ops, x: Tensor, target: Dense, out: Tensor) -> Tensor:
        """LoRA: `(alpha / size) V_D V_E x`, added to `W x + b` (Hu et al. 2022)."""
        if self._node is None or target not in self._node.targets:
            return out
        low = dense_ops(ops, x, self._own, f"{self._name}.{target}.encoder")
        low = ops.multiply(low, ops.constant(np.array(self._node.alpha / self._node.size, np.float32)))
        return ops.add(out, dense_ops(ops, low, self._own, f"{self._name}.{target}.decoder"))

    def prefixed(self, ops: Ops, key: Tensor, value: Tensor, added: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values (size, width) that every position sees before the others (P-Tuning v2)."""
        if self._node is None or self._kind != "prefix":
            return key, value, added
        free = ops.multiply(ops.slice(added, 3, 0, 1), ops.constant(np.zeros((1, 1, 1, self._node.size), np.float32)))
        return self._before(ops, key, "key"), self._before(ops, value, "value"), ops.concat([free, added], 3)

    def behind(self, ops: Ops, out: Tensor, half: str) -> Tensor:
        """Bottleneck: `x + V_D gelu(V_E x)` on what a half gives, before it is added (Houlsby et al. 2019)."""
        if self._kind != "bottleneck":
            return out
        inner = ops.gelu(dense_ops(ops, out, self._own, f"{self._name}.{half}.encoder"))
        return ops.add(out, dense_ops(ops, inner, self._own, f"{self._name}.{half}.decoder"))

    def beside(self, ops: Ops, hidden: Tensor, added: Tensor, half: Tensor) -> Tensor:
        """TS(h) beside the feed-forward half: `h' = LN2(a + FFN(a) + TS(h))`."""
        node = self._node
        if node is None or node.kind not in ADDED or node.serial:
            return half
        return ops.add(half, self._task_function(ops, node, hidden, added))

    def after(self, ops: Ops, out: Tensor, added: Tensor) -> Tensor:
        """Serial: `LN3(h' + TS(h'))`. Scale: `2 sigmoid(r) h'` (LHUC)."""
        if self._node is not None and self._node.serial:
            both = ops.add(out, self._task_function(ops, self._node, out, added))
            return norm_ops(ops, both, self._own, f"{self._name}.norm", self._epsilon)
        return self._scaled(ops, out) if self._kind == "scale" else out

    def _scaled(self, ops: Ops, out: Tensor) -> Tensor:
        """`2 sigmoid(r) x`, each group by its own r."""
        scales = np.stack([arrays[f"{self._name}.scale"] for arrays in self._own])
        gain = (2.0 / (1.0 + np.exp(-scales))).astype(np.float32)[:, None]  # (groups, 1, width)
        flat = ops.reshape(out, (len(gain), -1, gain.shape[-1]))
        return ops.reshape(ops.multiply(flat, ops.constant(gain)), (-1, ops.size(out, 1), gain.shape[-1]))

    def _before(self, ops: Ops, flat: Tensor, leaf: str) -> Tensor:
        rows = np.stack([arrays[f"{self._name}.{leaf}"] for arrays in self._own])[:, None]
        groups, _, size, width = rows.shape
        # Zeros of the rows' number, to which the prefix is added: as many copies of it as there are rows.
        zeros = ops.multiply(ops.slice(flat, 1, 0, 1), ops.constant(np.zeros((1, 1, 1), np.float32)))
        copies = ops.add(ops.reshape(zeros, (groups, -1, 1, width)), ops.constant(rows))
        return ops.concat([ops.reshape(copies, (-1, size, width)), flat], 1)

    def _task_function(self, ops: Ops, node: Delta, hidden: Tensor, added: Tensor) -> Tensor:
        """`V_D g(V_E h)` (Stickland and Murray 2019); see `Delta` for g and the places of a GELU."""
        name, tied = self._name, "delta" if node.tied else self._name
        inner = dense_ops(ops, hidden, self._ends, f"{tied}.encoder")
        if node.kind == "projected_attention":
            query, key, value = (
                dense_ops(ops, inner, self._own, f"{name}.{part}") for part in ("query", "key", "value")
            )
            inner = attention_ops(ops, query, key, value, added, heads=node.heads, width=node.size)
        elif node.kind == "feed_forward":
            inner = ops.gelu(dense_ops(ops, inner, self._own, f"{name}.inner"))
            inner = dense_ops(ops, inner, self._own, f"{name}.outer")
        if node.gelu == "inside":
            inner = ops.gelu(inner)
        out = dense_ops(ops, inner, self._ends, f"{tied}.decoder")
        out = ops.gelu(out) if node.gelu == "after" else out
        return self._scaled(ops, out) if node.scaled else out
