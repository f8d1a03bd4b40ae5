"""What stands inside a layer in a graph: deltas, of one owner or of several side by side, and texts beside prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyhead.engine.compile.encoder import Arrays, Inside, attend, dense, distinct, norm
from polyhead.engine.compile.ops import Ops, Tensor
from polyhead.plan import ADDED, Delta, Dense


class Function(Inside):
    """A delta in one layer; rows are as many equal groups as there are owners, whose deltas are alike but for arrays.

    `own` holds each group's arrays, `ends` those of the owners of encoders and decoders.
    """

    def __init__(
        self, node: Delta, index: int, own: Sequence[Arrays], ends: Sequence[Arrays], *, epsilon: float
    ) -> None:
        self._node, self._name, self._epsilon = node, f"delta.{index}", epsilon
        self._own, self._ends = distinct(own), distinct(ends)

    def mapped(self, ops: Ops, x: Tensor, target: Dense, out: Tensor) -> Tensor:
        """LoRA: `(alpha / size) V_D V_E x`, added to `W x + b` (Hu et al. 2022)."""
        if target not in self._node.targets:
            return out
        low = dense(ops, x, self._own, f"{self._name}.{target}.encoder")
        low = ops.multiply(low, ops.constant(np.array(self._node.alpha / self._node.size, np.float32)))
        return ops.add(out, dense(ops, low, self._own, f"{self._name}.{target}.decoder"))

    def prefixed(self, ops: Ops, key: Tensor, value: Tensor, added: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values (size, width) that every position sees before the others (P-Tuning v2)."""
        if self._node.kind != "prefix":
            return key, value, added
        free = ops.multiply(ops.slice(added, 3, 0, 1), ops.constant(np.zeros((1, 1, 1, self._node.size), np.float32)))
        return self._before(ops, key, "key"), self._before(ops, value, "value"), ops.concat([free, added], 3)

    def behind(self, ops: Ops, out: Tensor, half: str) -> Tensor:
        """Bottleneck: `x + V_D gelu(V_E x)` on what a half gives, before it is added (Houlsby et al. 2019)."""
        if self._node.kind != "bottleneck":
            return out
        inner = ops.gelu(dense(ops, out, self._own, f"{self._name}.{half}.encoder"))
        return ops.add(out, dense(ops, inner, self._own, f"{self._name}.{half}.decoder"))

    def beside(self, ops: Ops, hidden: Tensor, added: Tensor, half: Tensor) -> Tensor:
        """TS(h) beside the feed-forward half: `h' = LN2(a + FFN(a) + TS(h))`."""
        if self._node.kind not in ADDED or self._node.serial:
            return half
        return ops.add(half, self._task_function(ops, hidden, added))

    def after(self, ops: Ops, out: Tensor, added: Tensor) -> Tensor:
        """Serial: `LN3(h' + TS(h'))`. Scale: `2 sigmoid(r) h'` (LHUC)."""
        if self._node.serial:
            both = ops.add(out, self._task_function(ops, out, added))
            return norm(ops, both, self._own, f"{self._name}.norm", self._epsilon)
        return self._scaled(ops, out) if self._node.kind == "scale" else out

    def _scaled(self, ops: Ops, out: Tensor) -> Tensor:
        """`2 sigmoid(r) x`, each group by its own r."""
        scales = np.stack([arrays[f"{self._name}.scale"] for arrays in self._own])
        gain = (2.0 / (1.0 + np.exp(-scales))).astype(np.float32)[:, None]  # (groups, 1, width)
        flat = ops.reshape(out, (len(gain), -1, gain.shape[-1]))
        return ops.reshape(ops.multiply(flat, ops.constant(gain)), (-1, ops.size(out, 1), gain.shape[-1]))

    def _before(self, ops: Ops, flat: Tensor, leaf: str) -> Tensor:
        """Each group's rows put before the tokens of (rows, tokens, width)."""
        rows = np.stack([arrays[f"{self._name}.{leaf}"] for arrays in self._own])[:, None]
        groups, _, size, width = rows.shape
        # Zeros of the rows' number, to which the prefix is added: as many copies of it as there are rows.
        zeros = ops.multiply(ops.slice(flat, 1, 0, 1), ops.constant(np.zeros((1, 1, 1), np.float32)))
        copies = ops.add(ops.reshape(zeros, (groups, -1, 1, width)), ops.constant(rows))
        return ops.concat([ops.reshape(copies, (-1, size, width)), flat], 1)

    def _task_function(self, ops: Ops, hidden: Tensor, added: Tensor) -> Tensor:
        """`V_D g(V_E h)` (Stickland and Murray 2019); see `Delta` for g and the places of a GELU."""
        node, name = self._node, self._name
        tied = "delta" if node.tied else name
        inner = dense(ops, hidden, self._ends, f"{tied}.encoder")
        if node.kind == "projected_attention":
            query, key, value = (dense(ops, inner, self._own, f"{name}.{part}") for part in ("query", "key", "value"))
            inner = attend(ops, query, key, value, added, heads=node.heads, width=node.size)
        elif node.kind == "feed_forward":
            inner = ops.gelu(dense(ops, inner, self._own, f"{name}.inner"))
            inner = dense(ops, inner, self._own, f"{name}.outer")
        if node.gelu == "inside":
            inner = ops.gelu(inner)
        out = dense(ops, inner, self._ends, f"{tied}.decoder")
        out = ops.gelu(out) if node.gelu == "after" else out
        return self._scaled(ops, out) if node.scaled else out


class BesideText(Inside):
    """Rows that stand before a text and see it, in one layer; the text does not see them.

    `text` (rows, tokens, width) is the state that the layer reads of it; `added` covers the text, then the rows.
    """

    def __init__(self, text: Tensor, arrays: Arrays, index: int) -> None:
        self._text, self._arrays, self._name = text, arrays, f"layers.{index}.attention"

    def prefixed(self, ops: Ops, key: Tensor, value: Tensor, added: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values of the text before those of the rows."""
        keys, values = (dense(ops, self._text, [self._arrays], f"{self._name}.{leaf}") for leaf in ("key", "value"))
        return ops.concat([keys, key], 1), ops.concat([values, value], 1), added
