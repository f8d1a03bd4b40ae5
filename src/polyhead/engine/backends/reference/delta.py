"""What a delta does inside one layer. Each function gives its paper's formula for the kinds that it knows.

h is the layer's input, h' its output, V_E and V_D an encoder and a decoder (dense maps with biases).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from polyhead.engine.backends.reference.arithmetic import Array, Arrays, attention, dense, gelu, norm
from polyhead.plan import ADDED, Delta, Dense

Owned = Callable[[str], Arrays]  # the arrays of an owner


class LayerDelta(msgspec.Struct, frozen=True):
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
            return norm(added, self.owned(node.part), f"delta.{self.index}.norm", self.epsilon)
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
