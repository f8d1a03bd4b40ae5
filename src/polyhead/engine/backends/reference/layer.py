"""A layer: `a = LN1(h + MH(h)); h' = LN2(a + W2 gelu(W1 a))` (Devlin et al. 2019), with what a delta does inside it.

Each function of a delta gives its paper's formula for the kinds that it knows. h is the layer's input, h' its output,
V_E and V_D an encoder and a decoder (dense maps with biases).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from polyhead.encoder.shape import Architecture
from polyhead.plan import ADDED, Delta, Dense, Layers

Array = np.ndarray
Arrays = Mapping[str, Array]
Owned = Callable[[str], Arrays]  # the arrays of an owner
_erf = np.frompyfunc(math.erf, 1, 1)


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
        delta = DeltaArrays(node.delta, index, owned, shape.norm_epsilon)
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
    delta: DeltaArrays

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
        return layer_norm(before + half, self.arrays, f"{self.name}.{name}.norm", self.epsilon)

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


class DeltaArrays(msgspec.Struct, frozen=True):
    """A delta's arrays in one layer; without a node it adds nothing."""

    node: Delta | None
    index: int
    owned: Owned
    epsilon: float

    def mapped(self, values: Array, target: Dense) -> Array | float:
        """LoRA: `(alpha / size) V_D V_E x`, added to `W x + b` (Hu et al. 2022)."""
        node = self.node
        if node is None or target not in node.targets:
            return 0.0
        arrays, name = self.owned(node.part), f"delta.{self.index}.{target}"
        low = dense(dense(values, arrays, f"{name}.encoder"), arrays, f"{name}.decoder")
        return np.asarray(low * np.float32(node.alpha / node.size))

    def prefix(self) -> tuple[Array, Array] | None:
        """Keys and values (size, width) that every position sees before the others (P-Tuning v2)."""
        if self.node is None or self.node.kind != "prefix":
            return None
        arrays, name = self.owned(self.node.part), f"delta.{self.index}"
        return arrays[f"{name}.key"], arrays[f"{name}.value"]

    def behind(self, out: Array, half: str) -> Array:
        """Bottleneck: `x + V_D gelu(V_E x)` on what a half gives, before it is added (Houlsby et al. 2019)."""
        if self.node is None or self.node.kind != "bottleneck":
            return out
        arrays, name = self.owned(self.node.part), f"delta.{self.index}.{half}"
        added = dense(gelu(dense(out, arrays, f"{name}.encoder")), arrays, f"{name}.decoder")
        return np.asarray(out + added)

    def beside(self, hidden: Array, sees: Array) -> Array | float:
        """TS(h), which stands beside the feed-forward half: `h' = LN2(a + FFN(a) + TS(h))`."""
        if self.node is None or self.node.kind not in ADDED or self.node.serial:
            return 0.0
        return self._task_function(self.node, hidden, sees)

    def after(self, out: Array, sees: Array) -> Array:
        """Serial: `LN3(h' + TS(h'))`. Scale: `2 sigmoid(r) h'` (LHUC)."""
        node = self.node
        if node is not None and node.serial:
            added = out + self._task_function(node, out, sees)
            return layer_norm(added, self.owned(node.part), f"delta.{self.index}.norm", self.epsilon)
        if node is not None and node.kind == "scale":
            return self._scaled(node, out)
        return out

    def _scaled(self, node: Delta, values: Array) -> Array:
        gain: Array = 2.0 / (1.0 + np.exp(-self.owned(node.part)[f"delta.{self.index}.scale"]))
        return np.asarray(values * gain, np.float32)

    def _task_function(self, node: Delta, hidden: Array, sees: Array) -> Array:
        """`V_D g(V_E h)` (Stickland and Murray 2019).

        g is attention without an output map, the identity, or one hidden layer with a GELU; `Delta.gelu` puts another
        GELU after g or after V_D, `scaled` multiplies all by `2 sigmoid(r)`.
        """
        own, name = self.owned(node.part), f"delta.{self.index}"
        ends, tied = self.owned(node.ends or node.part), "delta" if node.tied else name
        inner = dense(hidden, ends, f"{tied}.encoder")
        if node.kind == "projected_attention":
            query, key, value = (dense(inner, own, f"{name}.{part}") for part in ("query", "key", "value"))
            inner = attention(query, key, value, heads=node.heads, sees=sees)
        elif node.kind == "feed_forward":
            inner = dense(gelu(dense(inner, own, f"{name}.inner")), own, f"{name}.outer")
        if node.gelu == "inside":
            inner = gelu(inner)
        out = dense(inner, ends, f"{tied}.decoder")
        out = gelu(out) if node.gelu == "after" else out
        return self._scaled(node, out) if node.scaled else out


def dense(values: Array, arrays: Arrays, name: str) -> Array:
    """`W x + b`; the bias where there is one."""
    out: Array = values @ arrays[f"{name}.weight"].T
    bias = arrays.get(f"{name}.bias")
    return out if bias is None else out + bias


def layer_norm(values: Array, arrays: Arrays, name: str, epsilon: float) -> Array:
    """Layer norm over the width."""
    centred = values - values.mean(axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    out: Array = centred / np.sqrt(variance + epsilon) * arrays[f"{name}.weight"] + arrays[f"{name}.bias"]
    return out


def masked_softmax(scores: Array) -> Array:
    """Over the last axis; -inf gets weight 0."""
    exp = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out: Array = (exp / exp.sum(axis=-1, keepdims=True)).astype(np.float32)
    return out


def gelu(values: Array) -> Array:
    """`x (1 + erf(x / sqrt 2)) / 2`."""
    out: Array = (values * 0.5 * (1.0 + np.asarray(_erf(values / math.sqrt(2.0)), np.float32))).astype(np.float32)
    return out


def attention(query: Array, key: Array, value: Array, *, heads: int, sees: Array) -> Array:
    """`softmax(Q K^T / sqrt(width / heads)) V` of each head, side by side: (rows, queries, width).

    `sees` (rows, queries, keys) bool: which keys a query may read, at least one.
    """
    rows, queries, width = query.shape

    def split(flat: Array) -> Array:
        return flat.reshape(rows, flat.shape[1], heads, width // heads).transpose(0, 2, 1, 3)

    scores = split(query) @ split(key).swapaxes(-1, -2) / math.sqrt(width // heads)
    weights = masked_softmax(np.where(sees[:, None], scores, -np.inf))  # (rows, heads, queries, keys)
    mixed: Array = (weights @ split(value)).transpose(0, 2, 1, 3).reshape(rows, queries, width)
    return mixed
