"""A layer: `a = LN1(h + MH(h)); h' = LN2(a + W2 gelu(W1 a))` (Devlin et al. 2019), with a delta's additions."""

from __future__ import annotations

import msgspec
import numpy as np

from polyhead.engine.backends.reference.arithmetic import Array, Arrays, attention, dense, gelu, norm
from polyhead.engine.backends.reference.delta import LayerDelta, Owned
from polyhead.plan import Dense, Layers
from polyhead.trunk.shape import Architecture


def run_layers(node: Layers, hidden: Array, sees: Array, *, shape: Architecture, owned: Owned) -> list[Array]:
    """The outputs of the node's layers for their input (rows, tokens, width).

    With `enter` the input is projected first; with `leave` the last output is projected back, and only that stands
    in the list. `sees` (rows, tokens, tokens) bool: which positions a position reads.
    """
    arrays = owned(node.weights)
    out: list[Array] = []
    if node.enter:
        hidden = dense(hidden, arrays, "enter")
    for index in range(node.start, node.stop):
        delta = LayerDelta(node.delta, index, owned, shape.norm_epsilon)
        layer = _Layer(node, arrays, f"layers.{index}", node.heads or shape.heads, shape.norm_epsilon, delta)
        hidden = layer.run(hidden, sees)
        out.append(hidden)
    if node.leave:
        out[-1] = dense(hidden, arrays, "leave")
    return out


class _Layer(msgspec.Struct, frozen=True):
    node: Layers
    arrays: Arrays
    name: str
    heads: int
    epsilon: float
    delta: LayerDelta

    def run(self, hidden: Array, sees: Array) -> Array:
        out = hidden
        if self.node.attention:
            half = self.delta.behind(self._attention(out, sees), "attention")
            out = self._added(out, half, "attention")
        if self.node.feed_forward != 0:
            half = self.delta.behind(self._feed_forward(out), "feed_forward")
            out = self._added(out, half + self.delta.beside(hidden, sees), "feed_forward")
        return self.delta.after(out, sees)

    def _added(self, before: Array, half: Array, name: str) -> Array:
        """`LN(x + half(x))`; without `residual` the half alone."""
        if not self.node.residual:
            return half
        return norm(before + half, self.arrays, f"{self.name}.{name}.norm", self.epsilon)

    def _attention(self, hidden: Array, sees: Array) -> Array:
        query = self._dense(hidden, "attention.query")
        key, value = self._dense(hidden, "attention.key"), self._dense(hidden, "attention.value")
        prefix = self.delta.prefix()
        if prefix is not None:
            key, value = (_before(rows, flat) for rows, flat in zip(prefix, (key, value), strict=True))
            sees = np.pad(sees, ((0, 0), (0, 0), (len(prefix[0]), 0)), constant_values=True)
        mixed = attention(query, key, value, heads=self.heads, sees=sees)
        return self._dense(mixed, "attention.output")

    def _feed_forward(self, hidden: Array) -> Array:
        inner = gelu(self._dense(hidden, "feed_forward.inner"))
        for number in range(self.node.hidden_layers - 1):
            inner = gelu(dense(inner, self.arrays, f"{self.name}.feed_forward.between.{number}"))
        return self._dense(inner, "feed_forward.outer")

    def _dense(self, values: Array, target: Dense) -> Array:
        return dense(values, self.arrays, f"{self.name}.{target}") + self.delta.mapped(values, target)


def _before(rows: Array, flat: Array) -> Array:
    """(size, width) put before the tokens of (rows, tokens, width)."""
    return np.concatenate([np.broadcast_to(rows, (len(flat), *rows.shape)), flat], axis=1)
