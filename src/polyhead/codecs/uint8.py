"""uint8: one byte per dimension, with a scale and a zero point computed from training features."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyhead.codecs.base import Affine, Constants, FeatureCodec
from polyhead.errors import StoreError

# float32 division by the scale is accurate enough while |x / scale| stays below this: error under 2^-8 of a scale.
LARGEST_ZERO = 2.0**16


class UInt8(FeatureCodec):
    """`q = clip(round(x / s) + z, 0, 255)` and `x = s (q - z)`: inside the range the error is at most s / 2."""

    name = "uint8"
    has_constants = True

    def row_bytes(self, width: int) -> int:
        """Bytes of one encoded vector."""
        return width

    def encode(self, values: np.ndarray, constants: Constants) -> np.ndarray:
        """float32 (..., width) as uint8 (..., width)."""
        scale, zero = self._arrays(constants, values.shape[-1])
        levels: np.ndarray = np.clip(np.rint(values / scale) + zero, 0, 255)
        return levels.astype(np.uint8)

    def decode(self, raw: np.ndarray, width: int, constants: Constants) -> np.ndarray:
        """uint8 (..., width) as float32 (..., width)."""
        scale, zero = self._arrays(constants, width)
        values = raw.astype(np.float32)
        values -= zero
        values *= scale
        return values

    def affine(self, constants: Constants) -> Affine:
        """s q - s z for levels q."""
        scale = np.array(constants.scale, np.float64)
        return Affine(matrix=scale, shift=-scale * np.array(constants.zero, np.float64), highest=255.0)

    def numbers(self, raw: np.ndarray, constants: Constants, out: np.ndarray) -> None:
        """The levels, 0 to 255."""
        self._arrays(constants, out.shape[-1])
        out[...] = raw

    def calibrate(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`s = (max - min) / 255` and `z = round(-min / s)` of each column, float64 (columns,).

        A range far from zero, or of a single value, gets a scale that float32 can still divide by.
        """
        low, high = values.min(axis=0).astype(np.float64), values.max(axis=0).astype(np.float64)
        scale = np.maximum((high - low) / 255, np.maximum(abs(low), abs(high)) / LARGEST_ZERO)
        # Constants are float32 numbers, the same for every backend. Subnormal scales divide badly.
        scale = np.where(scale < np.finfo(np.float32).tiny, 1.0, scale).astype(np.float32).astype(np.float64)
        return scale, np.rint(-low / scale)

    def graph(self, ops: Any, x: Any, constants: Constants) -> Any:
        """Levels clipped to [-z, 255 - z], without the shift by z, which would lose precision; times s."""
        scale, zero = np.array(constants.scale, np.float32), np.array(constants.zero, np.float32)
        levels = ops.round(ops.divide(x, ops.constant(scale)))
        clipped = ops.minimum(ops.maximum(levels, ops.constant(-zero)), ops.constant(255 - zero))
        return ops.multiply(clipped, ops.constant(scale))

    def _arrays(self, constants: Constants, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Scale and zero point, float32 (1,) or (width,)."""
        if len(constants.scale) not in (1, width):
            raise StoreError(
                f"codec '{self.name}' has no constants for width {width}",
                got=f"{len(constants.scale)} scales",
                allowed=f"1 or {width}",
                do="fix them from training features with `calibrate`",
            )
        return np.array(constants.scale, np.float32), np.array(constants.zero, np.float32)
