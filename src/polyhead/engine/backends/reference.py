"""The yardstick: every step in plain numpy, float32, as the papers write it. Slow on purpose, and needs no torch.

The attention pooler runs unfolded here (keys and values over all positions), so that it checks the folded form that
training and the fast backends use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from polyhead.engine.backends.base import LoadedTask, TokenBatch
from polyhead.errors import BackendError, PlanError
from polyhead.plan import TRUNK, Activation, Embed, Layers, Plan, Pool
from polyhead.store.codec import through
from polyhead.trunk_data import TrunkData

Array = np.ndarray
_erf = np.frompyfunc(math.erf, 1, 1)


class ReferenceBackend:
    """Runs plans in numpy."""

    name, precision, tolerance = "reference", "float32", 0.0

    def __init__(self, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
        self.trunk, self.tasks = trunk, dict(tasks)
        self.layers_run = 0

    def features(self, plan: Plan, batch: TokenBatch) -> dict[str, Array]:
        """Walks the plan once; `states` keeps the layers' outputs of each step's own path."""
        states: dict[int, list[Array]] = {}
        found: dict[str, Array] = {}
        for index, step in enumerate(plan.steps):
            match step.node:
                case Embed():
                    states[index] = [self._embed(batch)]
                case Layers() as node:
                    states[index] = self._layers(node, step.tasks[0], states[step.parent], batch.mask)
                case Pool() as node:
                    value, mask = _stored(states[step.parent], node, batch)
                    for task in step.tasks:
                        found[task] = self._pooled(task, node, value, mask)
        return found

    def outputs(self, task: str, features: Array, second: Array | None = None) -> Array:
        """`U f(W z + b) + u`, f the head's activation; a pair read separately has z = [u, v, |u - v|, u * v]."""
        arrays, head = self.tasks[task].arrays, self.tasks[task].path.head
        if second is not None:
            u, v = _scaled(features), _scaled(second)
            features = np.concatenate([u, v, np.abs(u - v), u * v], axis=-1)
        if head.hidden:
            features = _activated(_dense(features, arrays, "head.hidden"), head.activation)
        return _dense(features, arrays, "head.output")

    def _embed(self, batch: TokenBatch) -> Array:
        arrays, shape = self.trunk.arrays, self.trunk.architecture
        positions = np.arange(batch.ids.shape[1]) + shape.first_position
        out: Array = (
            arrays["embeddings.word.weight"][batch.ids] + arrays["embeddings.position.weight"][positions]
        )
        if shape.segments:
            out = out + arrays["embeddings.segment.weight"][np.minimum(batch.segments, shape.segments - 1)]
        out = _norm(out, arrays, "embeddings.norm", shape.norm_epsilon)
        if shape.embedding_width not in (None, shape.width):
            out = _dense(out, arrays, "embeddings.project")
        return out

    def _layers(self, node: Layers, task: str, states: list[Array], mask: Array) -> list[Array]:
        if node.delta is not None or not node.is_plain or node.width is not None:
            raise BackendError(
                "the reference backend runs whole layers of the trunk or of a branch only", got=node
            )
        known = {TRUNK: self.trunk.arrays, self.tasks[task].path.head.part: self.tasks[task].arrays}
        if node.weights not in known:
            raise BackendError("no part here owns these layers", got=node, allowed=list(known))
        arrays = known[node.weights]
        out = list(states)
        for index in range(node.start, node.stop):
            out.append(self._layer(arrays, f"layers.{index}", out[-1], mask))
            self.layers_run += 1
        return out

    def _layer(self, arrays: Mapping[str, Array], name: str, hidden: Array, mask: Array) -> Array:
        shape = self.trunk.architecture
        rows, tokens, width = hidden.shape

        def heads(part: str) -> Array:
            flat = _dense(hidden, arrays, f"{name}.attention.{part}")
            return flat.reshape(rows, tokens, shape.heads, width // shape.heads).transpose(0, 2, 1, 3)

        scores = heads("query") @ heads("key").swapaxes(-1, -2) / math.sqrt(width // shape.heads)
        weights = _softmax(np.where(mask[:, None, None, :], scores, -np.inf))  # (rows, heads, tokens, tokens)
        mixed = (weights @ heads("value")).transpose(0, 2, 1, 3).reshape(rows, tokens, width)
        attended = hidden + _dense(mixed, arrays, f"{name}.attention.output")
        attended = _norm(attended, arrays, f"{name}.attention.norm", shape.norm_epsilon)
        inner = _gelu(_dense(attended, arrays, f"{name}.feed_forward.inner"))
        out = attended + _dense(inner, arrays, f"{name}.feed_forward.outer")
        return _norm(out, arrays, f"{name}.feed_forward.norm", shape.norm_epsilon)

    def _pooled(self, task: str, node: Pool, value: Array, mask: Array) -> Array:
        arrays = self.tasks[task].arrays
        if node.layers == "learned":
            weights = _softmax(arrays["mix.weights"])
            mixed = arrays["mix.scale"] * np.einsum("l,rtlw->rtw", weights, value)
        else:
            mixed = np.mean(value, axis=2)
        if node.positions == "tokens":
            return np.asarray(mixed)
        if node.positions == "attention":
            return _attention(mixed, mask, arrays, node.heads)
        return np.asarray(mixed[:, 0])


def _stored(states: list[Array], node: Pool, batch: TokenBatch) -> tuple[Array, Array]:
    """The stored form of a pool, through its codec: (rows, positions, layers, width) and its mask."""
    pool = node.stored()
    if pool.layers == "mean" and pool.of >= len(states):
        raise PlanError(
            "a pool averages more layers than its path runs", got=pool.of, allowed=len(states) - 1
        )
    first = {"last": len(states) - 1, "mean": len(states) - pool.of, "all": 1}[pool.layers]
    value, mask = np.stack(states[first:], axis=2), batch.mask
    if pool.positions == "first":
        value, mask = value[:, :1], mask[:, :1]
    elif pool.positions == "mean":
        weights = mask / mask.sum(axis=1, keepdims=True)
        value = np.einsum("rt,rtlw->rlw", weights.astype(np.float32), value)[:, None]
        mask = np.ones((len(mask), 1), bool)
    elif pool.positions == "tokens":
        mask = batch.words >= 0
        value = (
            np.take_along_axis(value, np.maximum(batch.words, 0)[:, :, None, None], axis=1)
            * mask[..., None, None]
        )
    if pool.layers == "mean" and not pool.codec.before_mean:
        value = value.mean(axis=2, keepdims=True)
    return through(np.ascontiguousarray(value, np.float32), pool.codec), mask


def _attention(features: Array, mask: Array, arrays: Mapping[str, Array], heads: int) -> Array:
    """One learned query over keys and values of all positions (Du et al. 2020), unfolded."""
    rows, tokens, width = features.shape
    query = _dense(arrays["pool.query"], arrays, "pool.inner_query").reshape(heads, -1)
    keys = _dense(features, arrays, "pool.key").reshape(rows, tokens, heads, width // heads)
    values = _dense(features, arrays, "pool.value").reshape(rows, tokens, heads, width // heads)
    scores = np.einsum("hk,rthk->rht", query, keys) / math.sqrt(width // heads)
    weights = _softmax(np.where(mask[:, None, :], scores, -np.inf))
    mixed = np.einsum("rht,rthk->rhk", weights, values).reshape(rows, width)
    return _dense(mixed, arrays, "pool.output")


def _scaled(features: Array) -> Array:
    """The features at the length sqrt(width), as a pair read separately compares them."""
    length = np.maximum(np.linalg.norm(features, axis=-1, keepdims=True), 1e-12)
    return np.asarray(features / length * math.sqrt(features.shape[-1]), np.float32)


def _dense(values: Array, arrays: Mapping[str, Array], name: str) -> Array:
    out: Array = values @ arrays[f"{name}.weight"].T
    bias = arrays.get(f"{name}.bias")
    return out if bias is None else out + bias


def _activated(values: Array, activation: Activation) -> Array:
    if activation == "relu":
        return np.asarray(np.maximum(values, 0.0))
    return _gelu(values) if activation == "gelu" else np.asarray(np.tanh(values))


def _norm(values: Array, arrays: Mapping[str, Array], name: str, epsilon: float) -> Array:
    centred = values - values.mean(axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    out: Array = centred / np.sqrt(variance + epsilon) * arrays[f"{name}.weight"] + arrays[f"{name}.bias"]
    return out


def _softmax(scores: Array) -> Array:
    exp = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out: Array = (exp / exp.sum(axis=-1, keepdims=True)).astype(np.float32)
    return out


def _gelu(values: Array) -> Array:
    out: Array = (values * 0.5 * (1.0 + np.asarray(_erf(values / math.sqrt(2.0)), np.float32))).astype(
        np.float32
    )
    return out
