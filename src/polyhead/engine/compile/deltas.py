"""Deltas inside layers (adapters, LoRA, prefixes, scales) as graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyhead.encoder.shape import Architecture
from polyhead.engine.compile.maps import Arrays, attention_ops, dense_ops, norm_ops
from polyhead.engine.compile.ops import Ops, Tensor
from polyhead.plan import ADDED, Delta, Dense


class DeltaGraph:
    """The addition of a delta to one layer, zero without one; rows are in groups, one for each owner.

    `arrays` are those of each group's owner, `ends` those of the owners of tied encoders and decoders.
    """

    def __init__(
        self, node: Delta | None, index: int, arrays: Sequence[Arrays], ends: Sequence[Arrays], *, shape: Architecture
    ) -> None:
        self._node, self._name, self._arrays, self._ends, self._shape = node, f"delta.{index}", arrays, ends, shape
        self._kind = None if node is None else node.kind

    def maps(self, target: Dense) -> bool:
        """Whether it adds to this map."""
        return self._node is not None and target in self._node.targets

    def mapped(self, ops: Ops, x: Tensor, target: Dense, out: Tensor) -> Tensor:
        """LoRA: `(alpha / size) V_D V_E x`, added to `W x + b` (Hu et al. 2022)."""
        if self._node is None or not self.maps(target):
            return out
        low = dense_ops(ops, x, self._arrays, f"{self._name}.{target}.encoder")
        low = ops.multiply(low, ops.constant(np.array(self._node.alpha / self._node.size, np.float32)))
        return ops.add(out, dense_ops(ops, low, self._arrays, f"{self._name}.{target}.decoder"))

    def prefixed(self, ops: Ops, key: Tensor, value: Tensor, added: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values by head, before them those (size, width) that every position sees (P-Tuning v2)."""
        if self._node is None or self._kind != "prefix":
            return key, value, added
        free = ops.multiply(ops.slice(added, 3, 0, 1), ops.constant(np.zeros((1, 1, 1, self._node.size), np.float32)))
        return self._before(ops, key, "key"), self._before(ops, value, "value"), ops.concat([free, added], 3)

    def behind(self, ops: Ops, out: Tensor, half: str) -> Tensor:
        """Bottleneck: `x + V_D gelu(V_E x)` on what a half gives, before it is added (Houlsby et al. 2019)."""
        if self._kind != "bottleneck":
            return out
        inner = ops.gelu(dense_ops(ops, out, self._arrays, f"{self._name}.{half}.encoder"))
        return ops.add(out, dense_ops(ops, inner, self._arrays, f"{self._name}.{half}.decoder"))

    def beside(self, ops: Ops, hidden: Tensor, added: Tensor, half: Tensor) -> Tensor:
        """TS(h) beside the feed-forward half: `h' = LN2(a + FFN(a) + TS(h))`."""
        node = self._node
        if node is None or node.kind not in ADDED or node.serial:
            return half
        return ops.add(half, self._task_function(ops, node, hidden, added))

    def after(self, ops: Ops, out: Tensor, added: Tensor) -> Tensor:
        """Serial: `LN3(h' + TS(h'))`, with norms first `h' + TS(LN3 h')`. Scale: `2 sigmoid(r) h'` (LHUC)."""
        name, epsilon = f"{self._name}.norm", self._shape.norm_epsilon
        if self._node is not None and self._node.serial and self._shape.norm_first:
            entered = norm_ops(ops, out, self._arrays, name, epsilon)
            return ops.add(out, self._task_function(ops, self._node, entered, added))
        if self._node is not None and self._node.serial:
            total = ops.add(out, self._task_function(ops, self._node, out, added))
            return norm_ops(ops, total, self._arrays, name, epsilon)
        return self._scaled(ops, out) if self._kind == "scale" else out

    def _scaled(self, ops: Ops, out: Tensor) -> Tensor:
        """`2 sigmoid(r) x`, each group by its own r."""
        scales = np.stack([arrays[f"{self._name}.scale"] for arrays in self._arrays])
        gain = (2.0 / (1.0 + np.exp(-scales))).astype(np.float32)[:, None]  # (groups, 1, width)
        flat = ops.reshape(out, (len(gain), -1, gain.shape[-1]))
        return ops.reshape(ops.multiply(flat, ops.constant(gain)), (-1, ops.size(out, 1), gain.shape[-1]))

    def _before(self, ops: Ops, x: Tensor, leaf: str) -> Tensor:
        heads = self._shape.key_heads or self._shape.heads
        rows = [arrays[f"{self._name}.{leaf}"] for arrays in self._arrays]
        groups, size, width = len(rows), len(rows[0]), rows[0].shape[1] // heads
        prefix = np.stack(rows).reshape(groups, 1, size, heads, width).transpose(0, 1, 3, 2, 4)
        # Zeros of the rows' number, to which the prefix is added: as many copies of it as there are rows.
        zeros = ops.multiply(ops.slice(x, 2, 0, 1), ops.constant(np.zeros((1, 1, 1, 1), np.float32)))
        copies = ops.add(ops.reshape(zeros, (groups, -1, heads, 1, width)), ops.constant(prefix))
        return ops.concat([ops.reshape(copies, (-1, heads, size, width)), x], 2)

    def _task_function(self, ops: Ops, node: Delta, hidden: Tensor, added: Tensor) -> Tensor:
        """`V_D g(V_E h)` (Stickland and Murray 2019); see `Delta` for g and the places of a GELU."""
        name, tied = self._name, "delta" if node.tied else self._name
        inner = dense_ops(ops, hidden, self._ends, f"{tied}.encoder")
        if node.kind == "projected_attention":
            query, key, value = (
                dense_ops(ops, inner, self._arrays, f"{name}.{part}") for part in ("query", "key", "value")
            )
            inner = attention_ops(ops, query, key, value, added, heads=node.heads, width=node.size)
        elif node.kind == "feed_forward":
            inner = ops.gelu(dense_ops(ops, inner, self._arrays, f"{name}.inner"))
            inner = dense_ops(ops, inner, self._arrays, f"{name}.outer")
        if node.gelu == "inside":
            inner = ops.gelu(inner)
        out = dense_ops(ops, inner, self._ends, f"{tied}.decoder")
        out = ops.gelu(out) if node.gelu == "after" else out
        return self._scaled(ops, out) if node.scaled else out
