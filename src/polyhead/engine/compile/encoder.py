"""The encoder as graphs: embeddings, layers of any form that `LayerForm` describes, deltas.

States are (rows, tokens, width). Rows may be several groups of equal size, one after another: layers with weights of
each group's own are computed by one product a map, over all groups.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from polyhead.encoder.shape import Architecture, LayerActivation, LayerForm, position_maps
from polyhead.engine.compile.deltas import DeltaGraph
from polyhead.engine.compile.maps import Arrays, dense_ops, distinct, joined_heads, norm_ops, split_heads
from polyhead.engine.compile.ops import Build, Ops, Tensor
from polyhead.engine.compile.positions import PlaceGraphs, place_inputs
from polyhead.plan import TRUNK, Dense, Layers
from polyhead.plan.cost.arrays import layer_form

HIDDEN = -1e4  # added to the score of a position that is not read


class LayerSpan(msgspec.Struct, frozen=True):
    """Layers of one lane, or of several that are alike but for their arrays."""

    nodes: tuple[Layers, ...]  # a lane each
    inputs: tuple[int, ...]  # which input each lane begins with
    keep: tuple[int, ...]  # n: the state after n layers; -n: the mean of the last n
    begins: bool = False  # with the embedding
    by_row: bool = False  # prompt rows stand among the tokens

    def reads(self, shape: Architecture) -> tuple[str, ...]:
        """What of places its layers read."""
        return place_inputs(forms_of(self.nodes[0], shape), by_row=self.by_row)

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
        states = LayerRun(span.nodes, shape, arrays, by_row=span.by_row).states(ops, hidden, added)
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
        LayerRun([node], shape, arrays, by_row=span.by_row).states(ops, hidden, added)
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

    Inputs: ids and, where the trunk has them, positions and segments (rows, tokens). With prompts also `text` (rows,
    tokens, 1), 1 at a text's tokens and 0 elsewhere; `prompts` (1 + prompt rows, embedding width), the first row zero;
    and `which` (rows, tokens), the row of these that is added.
    """
    out = ops.gather(ops.constant(arrays["embeddings.word.weight"]), ops.input("ids", "int", (-1, -1)))
    if shape.position_table:
        positions = ops.input("positions", "int", (-1, -1))
        out = ops.add(out, ops.gather(ops.constant(arrays["embeddings.position.weight"]), positions))
    if prompted:
        narrow = shape.embedding_width or shape.width
        rows = ops.gather(ops.input("prompts", "float", (-1, narrow)), ops.input("which", "int", (-1, -1)))
        out = ops.add(ops.multiply(out, ops.input("text", "float", (-1, -1, 1))), rows)
    if shape.segments:
        segments = ops.input("segments", "int", (-1, -1))
        out = ops.add(out, ops.gather(ops.constant(arrays["embeddings.segment.weight"]), segments))
    if shape.embedding_norm:
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
        self,
        nodes: Sequence[Layers],
        shape: Architecture,
        arrays: Mapping[str, Arrays],
        *,
        text: Tensor | None = None,
        by_row: bool = False,
    ) -> None:
        self.node, self.shape, self.text = nodes[0], shape, text
        self.forms = dict(zip(range(self.node.start, self.node.stop), forms_of(self.node, shape), strict=True))
        self.weights = distinct([arrays[node.weights] for node in nodes])
        deltas = [node.delta for node in nodes if node.delta is not None]
        self._arrays = distinct([arrays[delta.part] for delta in deltas])
        self._ends = distinct([arrays[delta.ends or delta.part] for delta in deltas])
        self._lanes, self._by_row = len(nodes), by_row

    def states(self, ops: Ops, hidden: Tensor, added: Tensor) -> list[Tensor]:
        """The output of each layer; with `leave` the last is projected back."""
        out: list[Tensor] = []
        places = PlaceGraphs(ops, added, self.shape, self.weights[0], lanes=self._lanes, by_row=self._by_row)
        if self.node.enter:
            hidden = dense_ops(ops, hidden, self.weights, "enter")
        for index in range(self.node.start, self.node.stop):
            hidden = self._layer(ops, hidden, added, index, places)
            out.append(hidden)
        if self.node.leave:
            out[-1] = dense_ops(ops, hidden, self.weights, "leave")
        return out

    def _layer(self, ops: Ops, hidden: Tensor, added: Tensor, index: int, places: PlaceGraphs) -> Tensor:
        form, out, entered = self.forms[index], hidden, hidden
        delta = DeltaGraph(self.node.delta, index, self._arrays, self._ends, shape=self.shape)
        if form.attention:
            entered = self._entered(ops, hidden, index)
            half = delta.behind(ops, self._attention(ops, entered, added, index, delta, places), "attention")
            out = self._added(ops, out, half, index, "attention")
        if form.feed_forward:
            read = self._norm(ops, out, index, "feed_forward.") if form.norm_first else out
            half = delta.behind(ops, self._feed_forward(ops, read, index, delta), "feed_forward")
            half = delta.beside(ops, entered, added, half)
            out = self._added(ops, out, half, index, "feed_forward")
        out = delta.after(ops, out, added)
        return self._norm(ops, out, index, "") if form.closing_norm else out

    def _entered(self, ops: Ops, hidden: Tensor, index: int) -> Tensor:
        """What queries, keys and values read of the layer's input."""
        form = self.forms[index]
        return self._norm(ops, hidden, index, "attention.") if form.norm_first and form.attention_norm else hidden

    def _feed_forward(self, ops: Ops, x: Tensor, index: int, delta: DeltaGraph) -> Tensor:
        form = self.forms[index]
        inner = activated_ops(ops, self._dense(ops, x, index, "feed_forward.inner", delta), form.activation)
        if form.gated:
            inner = ops.multiply(inner, self._dense(ops, x, index, "feed_forward.gate", delta))
        for number in range(form.hidden_layers - 1):
            inner = ops.gelu(dense_ops(ops, inner, self.weights, f"layers.{index}.feed_forward.between.{number}"))
        return self._dense(ops, inner, index, "feed_forward.outer", delta)

    def _added(self, ops: Ops, before: Tensor, half: Tensor, index: int, name: str) -> Tensor:
        form = self.forms[index]
        if not form.residual:
            return half
        total = ops.add(before, half)
        return total if form.norm_first else self._norm(ops, total, index, f"{name}.")

    def _norm(self, ops: Ops, x: Tensor, index: int, half: str) -> Tensor:
        form = self.forms[index]
        return norm_ops(
            ops, x, self.weights, f"layers.{index}.{half}norm", form.norm_epsilon, root_mean=form.norm == "rms"
        )

    def _attention(
        self, ops: Ops, entered: Tensor, added: Tensor, index: int, delta: DeltaGraph, places: PlaceGraphs
    ) -> Tensor:
        form = self.forms[index]
        heads, width = form.key_heads or form.heads, form.query_width // form.heads
        mixed = functools.partial(self._mixed, ops, form, delta)
        query, key, value = (
            self._dense(ops, entered, index, target, delta)
            for target in ("attention.query", "attention.key", "attention.value")
        )
        keys, values = (split_heads(ops, part, heads, width) for part in (key, value))
        if self.text is not None:  # prompt rows have no place
            text, name = self._entered(ops, self.text, index), f"layers.{index}.attention"
            seen, read = (
                split_heads(ops, dense_ops(ops, text, self.weights, f"{name}.{leaf}"), heads, width)
                for leaf in ("key", "value")
            )
            keys = ops.concat([places.turned(seen, form.rotary), keys], 2)
            values = ops.concat([read, values], 2)
            out = mixed(split_heads(ops, query, form.heads, width), keys, values, added)
        else:
            keys = places.turned(keys, form.rotary)
            if form.window is not None:
                out = places.near(form, query, keys, values, mixed)
            else:
                query = places.turned(split_heads(ops, query, form.heads, width), form.rotary)
                added = places.added(form)
                if form.relative is not None and form.relative.kind == "disentangled":
                    mapped = functools.partial(self._of_table, ops, index, delta)
                    added = ops.add(added, places.disentangled(form, query, keys, mapped, self._table_groups(delta)))
                out = mixed(query, keys, values, added)
        return self._dense(ops, out, index, "attention.output", delta)

    def _mixed(
        self, ops: Ops, form: LayerForm, delta: DeltaGraph, query: Tensor, key: Tensor, value: Tensor, added: Tensor
    ) -> Tensor:
        """The values that queries read by their scores, all heads side by side, (rows, queries, width)."""
        key, value, added = delta.prefixed(ops, key, value, added)
        key, value = (_by_query(ops, part, form) for part in (key, value))
        terms = 1 if form.relative is None else form.relative.terms
        scale = float((form.query_width // form.heads * terms) ** -0.5)
        return joined_heads(ops, ops.attention(query, key, value, added, scale), form.query_width)

    def _table_groups(self, delta: DeltaGraph) -> int:
        """In how many groups the table's vectors differ."""
        return len(self._arrays) if delta.maps("attention.key") or delta.maps("attention.query") else 1

    def _of_table(self, ops: Ops, index: int, delta: DeltaGraph, vectors: Tensor, name: str) -> Tensor:
        """The table's vectors (groups, buckets, width) as keys or queries."""
        if position_maps(self.forms[index]):
            return dense_ops(ops, vectors, self.weights, f"layers.{index}.attention.position_{name}")
        return self._dense(ops, vectors, index, "attention.key" if name == "key" else "attention.query", delta)

    def _dense(self, ops: Ops, x: Tensor, index: int, target: Dense, delta: DeltaGraph) -> Tensor:
        return delta.mapped(ops, x, target, dense_ops(ops, x, self.weights, f"layers.{index}.{target}"))


def forms_of(node: Layers, shape: Architecture) -> list[LayerForm]:
    """How each of the node's layers computes."""
    return [layer_form(node, index, shape) for index in range(node.start, node.stop)]


def activated_ops(ops: Ops, x: Tensor, name: LayerActivation) -> Tensor:
    """f of a feed-forward half."""
    return {"gelu": ops.gelu, "gelu_tanh": ops.gelu_tanh, "silu": ops.silu, "relu": ops.relu}[name](x)


def _by_query(ops: Ops, x: Tensor, form: LayerForm) -> Tensor:
    """Keys or values (rows, heads, tokens, width) of each query's head, where several read one."""
    heads = form.key_heads or form.heads
    if heads == form.heads:
        return x
    width = form.query_width // form.heads
    repeated = ops.concat([ops.reshape(x, (-1, heads, 1, ops.size(x, 2), width))] * (form.heads // heads), 2)
    return ops.reshape(repeated, (-1, form.heads, ops.size(x, 2), width))
