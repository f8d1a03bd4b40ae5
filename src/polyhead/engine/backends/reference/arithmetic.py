"""The few functions that encoders are made of, in float32."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

Array = np.ndarray
Arrays = Mapping[str, Array]
_erf = np.frompyfunc(math.erf, 1, 1)


def dense(values: Array, arrays: Arrays, name: str) -> Array:
    """`W x + b`; the bias where there is one."""
    out: Array = values @ arrays[f"{name}.weight"].T
    bias = arrays.get(f"{name}.bias")
    return out if bias is None else out + bias


def norm(values: Array, arrays: Arrays, name: str, epsilon: float) -> Array:
    """Layer norm over the width."""
    centred = values - values.mean(axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    out: Array = centred / np.sqrt(variance + epsilon) * arrays[f"{name}.weight"] + arrays[f"{name}.bias"]
    return out


def softmax(scores: Array) -> Array:
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
    weights = softmax(np.where(sees[:, None], scores, -np.inf))  # (rows, heads, queries, keys)
    mixed: Array = (weights @ split(value)).transpose(0, 2, 1, 3).reshape(rows, queries, width)
    return mixed
