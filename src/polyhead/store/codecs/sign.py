"""sign: one bit a dimension."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyhead.store.codecs.base import Constants, FeatureCodec

BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1) * np.float32(2) - np.float32(1)  # (256, 8)


class Sign(FeatureCodec):
    """1 for x >= 0, so that sign(0) = +1; the first dimension is the highest bit of its byte."""

    name = "sign"

    def row_bytes(self, width: int) -> int:
        """Bytes of one encoded vector."""
        return -(-width // 8)

    def encode(self, values: np.ndarray, constants: Constants) -> np.ndarray:
        """float32 (..., width) as uint8 (..., ceil(width / 8))."""
        return np.packbits(values >= 0, axis=-1)

    def decode(self, raw: np.ndarray, width: int, constants: Constants) -> np.ndarray:
        """uint8 (..., ceil(width / 8)) as -1 and +1, float32 (..., width)."""
        return np.ascontiguousarray(BITS.take(raw, axis=0).reshape(*raw.shape[:-1], -1)[..., :width])

    def graph(self, ops: Any, x: Any, constants: Constants) -> Any:
        """1 for x >= 0, else -1."""
        return ops.signed(x)
