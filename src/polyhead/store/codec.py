"""Feature vectors encoded and decoded as a plan's `Codec` node says (`store.codecs`)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from polyhead.errors import StoreError
from polyhead.plan import Codec
from polyhead.store.codecs.tables import keep_table


def encode(values: np.ndarray, codec: Codec) -> np.ndarray:
    """float32 (..., width) as uint8 (..., row_bytes).

    Values out of the codec's range are clipped; raises StoreError for NaN.
    """
    values = np.ascontiguousarray(values, dtype=np.float32)
    # The minimum of values with a NaN is NaN: half the time of np.isnan over all of them.
    if values.size and np.isnan(values.min()):
        raise StoreError("features hold values that are not numbers", do="find out why the encoder's states overflow")
    if not values.size:
        return np.empty((*values.shape[:-1], codec.format.row_bytes(values.shape[-1])), np.uint8)
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


def through(values: np.ndarray, codec: Codec) -> np.ndarray:
    """float32 (..., width) as a reader of the store sees these values."""
    return decode(encode(values, codec), codec, values.shape[-1])


def calibrate(
    values: np.ndarray, *, name: str, per: Literal["tensor", "dimension"] = "tensor", before_mean: bool = False
) -> Codec:
    """The codec with its constants fixed from training features (..., width), of all values or of each dimension.

    Arrays of a codec that has some are known to this process from then on (`store.codecs.tables`).
    Raises StoreError where there are no values, or values that are not finite.
    """
    codec = Codec(name=name, before_mean=before_mean)
    if not codec.format.is_fixed_from_data:
        return codec
    if not values.size:
        raise StoreError("a codec cannot be calibrated without values", do="give some training features")
    if not np.isfinite(values).all():
        raise StoreError("a codec cannot be calibrated on values that are not finite numbers")
    if codec.format.has_arrays:
        arrays = keep_table(codec.format.learn(values.reshape(-1, values.shape[-1])))
        return Codec(name=name, before_mean=before_mean, arrays=arrays)
    scale, zero = codec.format.calibrate(values.reshape(-1, values.shape[-1] if per == "dimension" else 1))
    return Codec(name=name, scale=tuple(scale.tolist()), zero=tuple(zero.tolist()), before_mean=before_mean)
