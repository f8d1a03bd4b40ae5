"""The inputs of a model, and the values that it gives at a pool in their stored form."""

from __future__ import annotations

import msgspec
import numpy as np
import torch
from torch import Tensor

from polyhead.errors import PlanError
from polyhead.nn.states import States
from polyhead.plan import Codec, Pool
from polyhead.store.codec import through


class TextBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids ready for the trunk; `words` holds each word's first sub-token, -1 where there is none."""

    ids: Tensor  # (rows, tokens)
    mask: Tensor  # (rows, tokens), True where a token is
    segments: Tensor  # (rows, tokens)
    words: Tensor | None = None  # (rows, words)
    states: States | None = None  # known keys and values, where only isolated prompts read the text


class Pooled(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a pool in stored form: a store keeps it, a part reads it."""

    values: Tensor  # (rows, positions, layers, width) float32
    mask: Tensor  # (rows, positions)


def read_rows(states: States, pool: Pool, prompts: int) -> States:
    """The rows that the pool reads: the `prompts` first ones, or those of the text after them."""
    chosen = slice(0, prompts) if pool.positions == "prompt" else slice(prompts, None)
    if not prompts:
        return states
    hidden = tuple(h[:, chosen] for h in states.hidden)
    return States(hidden=hidden, mask=states.mask[:, chosen], first=states.first)


def stored_value(states: States, pool: Pool, words: Tensor | None) -> Pooled:
    """The value of a pool in stored form before its codec: (rows, positions, layers, width) in float32.

    With layers 'mean' and a codec applied after the mean there is one layer; with a codec before the mean the
    averaged layers stay apart, since each is encoded alone (Du et al. 2020). A word without a sub-token of its own
    (cut away, or normalised to nothing) is a row of zeros.
    """
    depth = states.depth
    if pool.layers == "mean" and pool.of > depth:
        raise PlanError("a pool averages more layers than its path runs", got=pool.of, allowed=depth)
    chosen = {"last": [depth], "mean": list(range(depth - pool.of + 1, depth + 1)), "all": list(range(1, depth + 1))}
    layers = [states.layer(i) for i in chosen[pool.layers]]
    mask = states.mask
    if pool.positions == "first":
        layers, mask = [h[:, :1] for h in layers], mask[:, :1]
    elif pool.positions == "mean":
        weights = (mask / mask.sum(dim=1, keepdim=True)).unsqueeze(-1)
        layers = [(h.float() * weights).sum(dim=1, keepdim=True) for h in layers]
        mask = mask.new_ones(len(mask), 1)
    elif pool.positions == "tokens":
        if words is None:
            raise PlanError("a path that reads words needs each word's first sub-token", do="give the batch its words")
        mask = words >= 0
        index = words.clamp(min=0).long().unsqueeze(-1)
        layers = [h.gather(1, index.expand(-1, -1, h.shape[-1])) * mask.unsqueeze(-1) for h in layers]
    if pool.layers == "mean" and not pool.codec.before_mean:
        total = layers[0].float()
        for layer in layers[1:]:
            total = total + layer
        return Pooled(values=(total / len(layers)).unsqueeze(2), mask=mask)
    return Pooled(values=torch.stack([h.float() for h in layers], dim=2), mask=mask)


def coded(value: Pooled, codec: Codec) -> Pooled:
    """The value as a reader of the store would see it: encoded and decoded."""
    if codec.format.is_exact:
        return value
    decoded = through(value.values.detach().cpu().numpy().astype(np.float32), codec)
    return Pooled(values=torch.from_numpy(decoded).to(value.values.device), mask=value.mask)
