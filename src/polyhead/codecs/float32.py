"""float32: features as they are, four bytes a dimension."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyhead.codecs.base import Constants, FeatureCodec


class Float32(FeatureCodec):
    """Little-endian float32."""

    name = "float32"
    is_exact = True

    def row_bytes(self, width: int) -> int:
        """Bytes of one encoded vector."""
        return 4 * width

    def encode(self, values: np.ndarray, constants: Constants) -> np.ndarray:
        """float32 (..., width) as uint8 (..., 4 width)."""
        return values.astype("<f4", copy=False).view(np.uint8)

    def decode(self, raw: np.ndarray, width: int, constants: Constants) -> np.ndarray:
        """uint8 (..., 4 width) as float32 (..., width)."""
        return raw.view("<f4").astype(np.float32)

    def graph(self, ops: Any, x: Any, constants: Constants) -> Any:
        """The tensor itself."""
        return x
