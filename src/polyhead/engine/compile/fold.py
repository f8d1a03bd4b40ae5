"""A task's pooler and head as few products as possible: exact, since the pooler's query does not depend on the text.

With K = X Wk^T + bk, u_h = Wk_h^T q_h / sqrt(d / H): scores are X u_h (bk cancels in the softmax), pooled_h is
sum a_t X_t, o_h = Wv_h pooled_h + bv_h; the output projection and the values' bias go into the next dense map. A
learned mix over layers, w_l X_l, is folded into u and Wv as well: both then read all layers side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from polyhead.config import Value
from polyhead.plan import Path

Arrays = Mapping[str, np.ndarray]


class Slot(Value, eq=False):
    """One task's arrays, folded; float32. L layers are read side by side, d wide each."""

    scores: np.ndarray | None  # (L d, H): of an attention pooler
    values: np.ndarray | None  # (H, L d, d / H)
    first: np.ndarray  # (inputs, hidden), or the whole head where it has no hidden layer
    first_bias: np.ndarray
    second: np.ndarray | None  # (hidden, labels)
    second_bias: np.ndarray | None

    @property
    def width(self) -> int:
        """How many outputs it has."""
        return len(self.first_bias if self.second_bias is None else self.second_bias)

    def emptied(self) -> Slot:
        """A slot of zeros of the same shapes."""
        arrays = msgspec.structs.asdict(self)
        zeros: dict[str, Any] = {name: None if one is None else np.zeros_like(one) for name, one in arrays.items()}
        return Slot(**zeros)


def folded(path: Path, own: Arrays, hidden: Arrays, pooler: Arrays, *, width: int) -> Slot:
    """The slot of a path whose states are `width` wide, from the arrays of its head, its hidden layer and its pooler.

    A task over pairs read separately has only its features folded: `first` gives these, (d, d).
    """
    pool, head = path.pool, path.head
    mix = _mix(pooler) if pool.layers == "learned" else np.ones(1)
    scores = values = second = second_bias = None
    matrix, bias = np.eye(width), np.zeros(width)
    if not head.separate:
        matrix, bias = _of(hidden, "head.hidden") if head.hidden else _of(own, "head.output")
    if pool.positions == "attention":
        scores, values = _attention(pooler, pool.heads, mix)
        output, added = _of(pooler, "pool.output")
        bias = bias + matrix @ (added + output @ pooler["pool.value.bias"])
        matrix = matrix @ output
    elif pool.layers == "learned":
        matrix = np.concatenate([matrix * one for one in mix], axis=1)
    if head.hidden and not head.separate:
        top, second_bias = _of(own, "head.output")
        second = np.ascontiguousarray(top.T, np.float32)
        second_bias = second_bias.astype(np.float32)
    return Slot(
        scores=scores,
        values=values,
        first=np.ascontiguousarray(matrix.T, np.float32),
        first_bias=bias.astype(np.float32),
        second=second,
        second_bias=second_bias,
    )


def _attention(own: Arrays, heads: int, mix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    width = len(own["pool.query"])
    inner = width // heads
    matrix, bias = _of(own, "pool.inner_query")
    query = (matrix @ own["pool.query"] + bias).reshape(heads, inner) / np.sqrt(inner)
    keys = np.asarray(own["pool.key.weight"], np.float64).reshape(heads, inner, width)
    values = np.asarray(own["pool.value.weight"], np.float64).reshape(heads, inner, width)
    scores = np.einsum("hk,hkd->dh", query, keys)
    values = values.transpose(0, 2, 1)
    scores = np.concatenate([scores * one for one in mix], axis=0)
    values = np.concatenate([values * one for one in mix], axis=1)
    return np.ascontiguousarray(scores, np.float32), np.ascontiguousarray(values, np.float32)


def _mix(own: Arrays) -> np.ndarray:
    weights = np.exp(np.asarray(own["mix.weights"], np.float64) - np.max(own["mix.weights"]))
    return np.asarray(weights / weights.sum() * float(own["mix.scale"]))


def _of(arrays: Arrays, name: str) -> tuple[np.ndarray, np.ndarray]:
    matrix = np.asarray(arrays[f"{name}.weight"], np.float64)
    bias = np.asarray(arrays.get(f"{name}.bias", np.zeros(len(matrix))), np.float64)
    return matrix, bias
