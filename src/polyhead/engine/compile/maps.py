"""Dense maps, norms and attention as graphs, with one owner's arrays for all rows or each group of rows its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from polyhead.engine.compile.ops import Ops, Tensor

Arrays = Mapping[str, np.ndarray]


def split_heads(ops: Ops, x: Tensor, heads: int, width: int) -> Tensor:
    """(rows, tokens, heads * width) to (rows, heads, tokens, width)."""
    return ops.transpose(ops.reshape(x, (-1, ops.size(x, 1), heads, width)), (0, 2, 1, 3))


def joined_heads(ops: Ops, x: Tensor, width: int) -> Tensor:
    """(rows, heads, tokens, ...) to (rows, tokens, width)."""
    joined = ops.transpose(x, (0, 2, 1, 3))
    return ops.reshape(joined, (-1, ops.size(joined, 1), width))


def attention_ops(
    ops: Ops, query: Tensor, key: Tensor, value: Tensor, added: Tensor, *, heads: int, width: int
) -> Tensor:
    """`softmax(Q K^T / sqrt(width / heads) + added) V` of each head, side by side; (rows, tokens, width) each."""
    inner = width // heads
    queries, keys, values = (split_heads(ops, x, heads, inner) for x in (query, key, value))
    return joined_heads(ops, ops.attention(queries, keys, values, added, float(inner**-0.5)), width)


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


def norm_ops(
    ops: Ops, x: Tensor, norms: Sequence[Arrays], name: str, epsilon: float, *, root_mean: bool = False
) -> Tensor:
    """Layer norm over the width, with one gain and bias or each group's own; `root_mean`: by its root mean square."""
    gains = [arrays[f"{name}.weight"] for arrays in norms]
    biases = [arrays.get(f"{name}.bias", np.zeros_like(gain)) for arrays, gain in zip(norms, gains, strict=True)]
    if root_mean:
        return _root_mean_norm(ops, x, gains[0], epsilon)
    if len(norms) == 1:
        return ops.norm(x, gains[0], biases[0], epsilon)
    groups, width = len(norms), len(gains[0])
    flat = ops.reshape(x, (groups, -1, width))
    out = ops.norm(flat, np.stack(gains)[:, None], np.stack(biases)[:, None], epsilon)
    return ops.reshape(out, (-1, ops.size(x, 1), width))


def _root_mean_norm(ops: Ops, x: Tensor, gain: np.ndarray, epsilon: float) -> Tensor:
    """`x / sqrt(mean(x^2) + epsilon) gain` (Zhang and Sennrich 2019)."""
    share, least = (ops.constant(np.array(number, np.float32)) for number in (1 / len(gain), epsilon))
    square = ops.multiply(ops.total(ops.multiply(x, x), -1), share)
    return ops.multiply(ops.divide(x, ops.root(ops.add(square, least))), ops.constant(gain))
