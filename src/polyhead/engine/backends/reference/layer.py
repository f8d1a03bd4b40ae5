"""A layer of any form that `LayerForm` describes, with what a delta does inside it, as the formulas stand.

With norms behind the halves `a = LN1(h + MH(h)); h' = LN2(a + FF(a))` (Devlin et al. 2019), with norms before them
`a = h + MH(LN1 h); h' = a + FF(LN2 a)`. Each function of a delta gives its paper's formula for the kinds that it
knows. h is the layer's input, h' its output, V_E and V_D an encoder and a decoder (dense maps with biases).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from polyhead.encoder.relative import buckets_of, frequencies
from polyhead.encoder.shape import RELATIVE, Architecture, LayerActivation, LayerForm, Relative, Rotary
from polyhead.plan import ADDED, Delta, Dense, Layers
from polyhead.plan.cost.arrays import layer_form

Array = np.ndarray
Arrays = Mapping[str, Array]
Owned = Callable[[str], Arrays]  # the arrays of an owner
_erf = np.frompyfunc(math.erf, 1, 1)


def run_layers(
    node: Layers, hidden: Array, sees: Array, *, shape: Architecture, owned: Owned, before: int = 0
) -> list[Array]:
    """The outputs of the node's layers for their input (rows, tokens, width).

    With `enter` the input is projected first; with `leave` the last output is projected back, and only that stands
    in the list. `sees` (rows, tokens, tokens) bool: which positions a position reads. The first `before` positions are
    prompt rows, which have no place: they are not turned, gain nothing by distance and lie in every window.
    """
    arrays = owned(node.weights)
    out: list[Array] = []
    if node.enter:
        hidden = dense(hidden, arrays, "enter")
    for index in range(node.start, node.stop):
        delta = DeltaArrays(node.delta, index, owned, shape.norm_epsilon, shape.norm_first)
        layer = _Layer(layer_form(node, index, shape), arrays, f"layers.{index}", delta, before)
        hidden = layer.run(hidden, sees)
        out.append(hidden)
    if node.leave:
        out[-1] = dense(hidden, arrays, "leave")
    return out


class _Layer(msgspec.Struct, frozen=True):
    form: LayerForm
    arrays: Arrays
    name: str
    delta: DeltaArrays
    before: int  # prompt rows

    def run(self, hidden: Array, sees: Array) -> Array:
        form, out, entered = self.form, hidden, hidden
        if form.attention:
            entered = self._normed(hidden, "attention") if form.norm_first and form.attention_norm else hidden
            half = self.delta.behind(self._attention(entered, sees), "attention")
            out = self._added(out, half, "attention")
        if form.feed_forward:
            inner = self._normed(out, "feed_forward") if form.norm_first else out
            half = self.delta.behind(self._feed_forward(inner), "feed_forward")
            out = self._added(out, half + self.delta.beside(entered, sees), "feed_forward")
        out = self.delta.after(out, sees)
        return norm(out, self.arrays, f"{self.name}.norm", form) if form.closing_norm else out

    def _normed(self, values: Array, half: str) -> Array:
        return norm(values, self.arrays, f"{self.name}.{half}.norm", self.form)

    def _added(self, before: Array, half: Array, name: str) -> Array:
        """`LN(x + half(x))`, or with norms first `x + half(LN x)`; without `residual` the half alone."""
        if not self.form.residual:
            return half
        return before + half if self.form.norm_first else self._normed(before + half, name)

    def _attention(self, entered: Array, sees: Array) -> Array:
        form = self.form
        query = self._turned(self._by_head(self._dense(entered, "attention.query"), form.heads))
        key, value = self._dense(entered, "attention.key"), self._dense(entered, "attention.value")
        heads = form.key_heads or form.heads
        keys, values = self._turned(self._by_head(key, heads)), self._by_head(value, heads)
        bias = self._relative(query, keys)
        if form.window is not None:
            sees = sees & near(sees.shape[-1], form.window, self.before)
            sees = sees | ~sees.any(axis=-1, keepdims=True)  # padding, which nothing reads
        prefix = self.delta.prefix()
        if prefix is not None:
            size = len(prefix[0])
            first = (self._by_head(np.broadcast_to(rows, (len(key), *rows.shape)), heads) for rows in prefix)
            keys, values = (np.concatenate(pair, axis=2) for pair in zip(first, (keys, values), strict=True))
            sees = np.pad(sees, ((0, 0), (0, 0), (size, 0)), constant_values=True)
            bias = np.pad(bias, ((0, 0), (0, 0), (0, 0), (size, 0)))
        terms = 1 if form.relative is None else form.relative.terms
        repeats = form.heads // heads
        mixed = mixed_values(
            query, keys.repeat(repeats, 1), values.repeat(repeats, 1), sees=sees, bias=bias, scale=self._scale(terms)
        )
        return self._dense(mixed, "attention.output")

    def _scale(self, terms: int) -> float:
        return 1.0 / math.sqrt(self.form.query_width // self.form.heads * terms)

    def _by_head(self, flat: Array, heads: int) -> Array:
        width = self.form.query_width // self.form.heads
        return flat.reshape(*flat.shape[:2], heads, width).transpose(0, 2, 1, 3)

    def _turned(self, values: Array) -> Array:
        rotary = self.form.rotary
        return values if rotary is None else turned(values, rotary, self.before)

    def _relative(self, query: Array, key: Array) -> Array:
        """The amounts that distances add to the scores of query i and key j, (rows or 1, heads, i, j)."""
        relative, tokens = self.form.relative, query.shape[2]
        if relative is None:
            return np.zeros((1, 1, tokens, tokens), np.float32)
        at = np.arange(tokens)
        buckets = buckets_of(relative, at[:, None] - at)
        table = self.arrays[f"{RELATIVE}.weight"]
        if relative.norm:
            table = layer_norm(table, self.arrays, f"{RELATIVE}.norm", self.form.norm_epsilon)
        if relative.kind == "bias":
            total = table[buckets].transpose(2, 0, 1)[None]
        else:
            total = self._disentangled(relative, query, key, buckets, table)
        has_place = at >= self.before
        return np.asarray(total * (has_place[:, None] & has_place), np.float32)

    def _disentangled(self, relative: Relative, query: Array, key: Array, buckets: Array, table: Array) -> Array:
        """`(Q_i K_r(i, j) + K_j Q_r(i, j)) / sqrt(head width terms)` (He et al. 2021)."""
        total = np.zeros((1,), np.float32)
        if relative.content_to_position:
            vectors = self._of_table(table, relative, "key")[buckets]  # (i, j, heads, head width)
            total = total + np.einsum("rhid,ijhd->rhij", query, vectors)
        if relative.position_to_content:
            vectors = self._of_table(table, relative, "query")[buckets]
            total = total + np.einsum("rhjd,ijhd->rhij", key, vectors)
        return np.asarray(total * self._scale(relative.terms))

    def _of_table(self, table: Array, relative: Relative, name: str) -> Array:
        """The table's vectors as keys or queries, (buckets, heads, head width)."""
        if relative.shared:
            vectors = self._dense(table, "attention.key" if name == "key" else "attention.query")
        else:
            vectors = dense(table, self.arrays, f"{self.name}.attention.position_{name}")
        return vectors.reshape(len(vectors), self.form.heads, -1)

    def _feed_forward(self, entered: Array) -> Array:
        inner = activated(self._dense(entered, "feed_forward.inner"), self.form.activation)
        if self.form.gated:
            inner = inner * self._dense(entered, "feed_forward.gate")
        for number in range(self.form.hidden_layers - 1):
            inner = gelu(dense(inner, self.arrays, f"{self.name}.feed_forward.between.{number}"))
        return self._dense(inner, "feed_forward.outer")

    def _dense(self, values: Array, target: Dense) -> Array:
        return dense(values, self.arrays, f"{self.name}.{target}") + self.delta.mapped(values, target)


def near(size: int, window: int, before: int) -> Array:
    """(positions, positions) bool: which are in each other's window; prompt rows are in all."""
    at = np.arange(size)
    return np.asarray((np.abs(at[:, None] - at) <= window) | (at < before) | (at < before)[:, None])


def turned(values: Array, rotary: Rotary, before: int) -> Array:
    """(rows, heads, positions, width): pairs i, i + width / 2 turned by position times frequency, and scaled."""
    half = values.shape[-1] // 2
    position = np.maximum(np.arange(values.shape[2]) - before, 0)
    angles = position[:, None] * frequencies(rotary, half)
    cosine, sine = rotary.scale * np.cos(angles), rotary.scale * np.sin(angles)
    first, second = values[..., :half], values[..., half:]
    pairs = (first * cosine - second * sine, second * cosine + first * sine)
    return np.concatenate(pairs, axis=-1).astype(np.float32)


class DeltaArrays(msgspec.Struct, frozen=True):
    """A delta's arrays in one layer; without a node it adds nothing."""

    node: Delta | None
    index: int
    owned: Owned
    epsilon: float
    norm_first: bool = False

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
        """TS(h), a branch parallel to the feed-forward half: `h' = LN2(a + FFN(a) + TS(h))`."""
        if self.node is None or self.node.kind not in ADDED or self.node.serial:
            return 0.0
        return self._task_function(self.node, hidden, sees)

    def after(self, out: Array, sees: Array) -> Array:
        """Serial: `LN3(h' + TS(h'))`, with norms first `h' + TS(LN3 h')`. Scale: `2 sigmoid(r) h'` (LHUC)."""
        node = self.node
        if node is not None and node.serial and self.norm_first:
            entered = layer_norm(out, self.owned(node.part), f"delta.{self.index}.norm", self.epsilon)
            return np.asarray(out + self._task_function(node, entered, sees))
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
        arrays, name = self.owned(node.part), f"delta.{self.index}"
        ends, tied = self.owned(node.ends or node.part), "delta" if node.tied else name
        inner = dense(hidden, ends, f"{tied}.encoder")
        if node.kind == "projected_attention":
            query, key, value = (dense(inner, arrays, f"{name}.{part}") for part in ("query", "key", "value"))
            inner = attention(query, key, value, heads=node.heads, sees=sees)
        elif node.kind == "feed_forward":
            inner = dense(gelu(dense(inner, arrays, f"{name}.inner")), arrays, f"{name}.outer")
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


def norm(values: Array, arrays: Arrays, name: str, form: LayerForm) -> Array:
    """The norm of the form, over the width."""
    if form.norm == "layer":
        return layer_norm(values, arrays, name, form.norm_epsilon)
    scale = np.sqrt(np.mean(values * values, axis=-1, keepdims=True) + form.norm_epsilon)
    return np.asarray(values / scale * arrays[f"{name}.weight"])


def layer_norm(values: Array, arrays: Arrays, name: str, epsilon: float) -> Array:
    """Layer norm over the width; the bias where there is one."""
    centred = values - values.mean(axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    out: Array = centred / np.sqrt(variance + epsilon) * arrays[f"{name}.weight"]
    bias = arrays.get(f"{name}.bias")
    return out if bias is None else out + bias


def masked_softmax(scores: Array) -> Array:
    """Over the last axis; -inf gets weight 0."""
    exp = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out: Array = (exp / exp.sum(axis=-1, keepdims=True)).astype(np.float32)
    return out


def normalized(values: Array) -> Array:
    """Vectors (..., width) at the length sqrt(width), as pairs read separately and layers side by side are read."""
    length = np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), np.float32(1e-12))
    return np.asarray(values / length * math.sqrt(values.shape[-1]), np.float32)


def gelu(values: Array) -> Array:
    """`x (1 + erf(x / sqrt 2)) / 2`."""
    out: Array = (values * 0.5 * (1.0 + np.asarray(_erf(values / math.sqrt(2.0)), np.float32))).astype(np.float32)
    return out


def activated(values: Array, name: LayerActivation) -> Array:
    """f of a feed-forward half."""
    match name:
        case "gelu":
            return gelu(values)
        case "gelu_tanh":
            inner = math.sqrt(2.0 / math.pi) * (values + 0.044715 * values**3)
            return np.asarray(values * 0.5 * (1.0 + np.tanh(inner)))
        case "silu":
            return np.asarray(values / (1.0 + np.exp(-values)))
        case "relu":
            return np.asarray(np.maximum(values, 0.0))


def attention(query: Array, key: Array, value: Array, *, heads: int, sees: Array) -> Array:
    """`softmax(Q K^T / sqrt(width / heads)) V` of each head, side by side: (rows, queries, width).

    `sees` (rows, queries, keys) bool: which keys a query may read, at least one.
    """
    width = query.shape[-1]
    parts = (flat.reshape(*flat.shape[:2], heads, width // heads).transpose(0, 2, 1, 3) for flat in (query, key, value))
    return mixed_values(*parts, sees=sees, scale=1.0 / math.sqrt(width // heads))


def mixed_values(
    query: Array, key: Array, value: Array, *, sees: Array, scale: float, bias: Array | float = 0.0
) -> Array:
    """`softmax(scale Q K^T + bias) V`, heads side by side, from (rows, heads, positions, head width) each."""
    scores = query @ key.swapaxes(-1, -2) * np.float32(scale) + bias
    weights = masked_softmax(np.where(sees[:, None], scores, -np.inf))  # (rows, heads, queries, keys)
    mixed = (weights @ value).transpose(0, 2, 1, 3)
    return np.asarray(mixed.reshape(*mixed.shape[:2], mixed.shape[2] * mixed.shape[3]))
