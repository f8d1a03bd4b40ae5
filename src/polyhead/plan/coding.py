"""Encoding and decoding of feature vectors by a plan's `Codec` node (`codecs`)."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

import numpy as np

from polyhead.codecs.base import NO_TOKEN, TokenCodec
from polyhead.codecs.tables import keep_table
from polyhead.errors import StoreError
from polyhead.plan import PLACE_OF, Codec, Pool


def encode(values: np.ndarray, codec: Codec, tokens: np.ndarray | None = None) -> np.ndarray:
    """float32 (..., width) as uint8 (..., row_bytes).

    `tokens` are the vocabulary ids of the vectors' tokens, int64, of a shape that broadcasts to (...), -1 for a vector
    without a token; only a `TokenCodec` needs them. Values outside the codec's range are clipped; raises StoreError for
    NaN.
    """
    values = np.ascontiguousarray(values, dtype=np.float32)
    # The minimum of values with a NaN is NaN: half the time of np.isnan over all values.
    if values.size and np.isnan(values.min()):
        raise StoreError("features hold values that are not numbers", do="find out why the encoder's states overflow")
    if not values.size:
        return np.empty((*values.shape[:-1], codec.format.row_bytes(values.shape[-1])), np.uint8)
    if isinstance(codec.format, TokenCodec):
        return codec.format.encode_tokens(values, _tokens_of_shape(tokens, values.shape[:-1], codec), codec)
    return codec.format.encode(values, codec)


def decode(raw: np.ndarray, codec: Codec, width: int) -> np.ndarray:
    """uint8 (..., row_bytes) as float32 (..., width), a new array; raises StoreError for bytes of another shape."""
    raw, size = np.ascontiguousarray(raw), codec.format.row_bytes(width)
    if raw.dtype != np.uint8 or raw.shape[-1] != size:
        raise StoreError(
            f"these bytes are not {codec.name} vectors of width {width}",
            got=f"{raw.dtype} {raw.shape}",
            allowed=f"uint8 (..., {size})",
        )
    if not raw.size:
        return np.empty((*raw.shape[:-1], width), np.float32)
    return codec.format.decode(raw, width, codec)


def through(values: np.ndarray, codec: Codec, tokens: np.ndarray | None = None) -> np.ndarray:
    """The values float32 (..., width) as a reader of the store sees them; `tokens` as for `encode`."""
    return decode(encode(values, codec, tokens), codec, values.shape[-1])


def calibrate(
    values: np.ndarray,
    *,
    name: str,
    per: Literal["tensor", "dimension"] = "tensor",
    before_mean: bool = False,
    tokens: np.ndarray | None = None,
    words: np.ndarray | None = None,
) -> Codec:
    """The codec with constants computed from training features (..., width), from all values or per dimension.

    A `TokenCodec` needs `tokens` as `encode` does, and the trunk's word vectors, `words` (vocabulary, any). If the
    codec has a table, this process knows its arrays from then on (`codecs.tables`). Raises StoreError if there are no
    values, or values that are not finite.
    """
    codec = Codec(name=name, before_mean=before_mean)
    if not codec.format.is_fixed_from_data:
        return codec
    if not values.size:
        raise StoreError("a codec cannot be calibrated without values", do="give some training features")
    if not np.isfinite(values).all():
        raise StoreError("a codec cannot be calibrated on values that are not finite numbers")
    if codec.format.has_arrays:
        flat = values.reshape(-1, values.shape[-1])
        if isinstance(codec.format, TokenCodec):
            of = _tokens_of_shape(tokens, values.shape[:-1], codec).reshape(-1)
            known = np.zeros((0, 0), np.float32) if words is None else words
            if int(of.max()) >= len(known):
                raise StoreError(
                    f"codec '{name}' is fixed from features of tokens without a word vector",
                    got=f"token {int(of.max())}",
                    allowed=f"tokens below {len(known)}",
                    do="give the word vectors of the trunk that encoded them",
                )
            arrays = keep_table(codec.format.learn_tokens(flat, of, known))
        else:
            arrays = keep_table(codec.format.learn(flat))
        return Codec(name=name, before_mean=before_mean, arrays=arrays)
    scale, zero = codec.format.calibrate(values.reshape(-1, values.shape[-1] if per == "dimension" else 1))
    return Codec(name=name, scale=tuple(scale.tolist()), zero=tuple(zero.tolist()), before_mean=before_mean)


def tokens_of(pool: Pool, *, ids: np.ndarray, mask: np.ndarray, words: np.ndarray | None) -> np.ndarray:
    """The vocabulary id of each position that a stored pool reads from texts (rows, tokens): int64 (rows, positions).

    -1 for padding, for a mean over tokens, and for a word of `words` (rows, words) without a token.
    """
    if pool.positions == "all":
        return np.where(mask, ids, NO_TOKEN)
    if pool.positions in PLACE_OF:
        return np.take_along_axis(ids, token_places(pool, mask)[:, None], axis=1)
    if pool.positions == "tokens" and words is not None:
        return np.where(words >= 0, np.take_along_axis(ids, np.maximum(words, 0), axis=1), NO_TOKEN)
    return np.full((len(ids), 1), NO_TOKEN)


def token_places(pool: Pool, mask: np.ndarray) -> np.ndarray:
    """The place of the one token that the pool reads of each text, int64 (rows,), from `mask` (rows, tokens)."""
    return np.asarray(np.clip(mask.sum(axis=1) - 1, 0, PLACE_OF[pool.positions]))


def _tokens_of_shape(tokens: np.ndarray | None, shape: tuple[int, ...], codec: Codec) -> np.ndarray:
    """The tokens as int64 of this shape; raises StoreError if they are missing or have another shape."""
    if tokens is not None:
        with suppress(ValueError):
            return np.broadcast_to(tokens, shape).astype(np.int64, copy=False)
    raise StoreError(
        f"codec '{codec.name}' has to be told whose token each vector is",
        got="no tokens" if tokens is None else f"tokens of shape {tokens.shape} for vectors of shape {shape}",
        do="give the tokens with the values, -1 for a vector that is no token's",
    )
