"""A codec in one file: bfloat16, the upper half of a float32, rounded to the nearest with ties to even."""

import numpy as np

from polyhead.codecs import FeatureCodec, register_codec

LARGEST = np.uint32(0x7F7F0000).view(np.float32)


class BFloat16(FeatureCodec):
    name = "upper-half"

    def row_bytes(self, width):
        return 2 * width

    def encode(self, values, constants):
        bits = np.clip(values, -LARGEST, LARGEST).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").view(np.uint8)

    def decode(self, raw, width, constants):
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)

    def graph(self, ops, x, constants):
        """Through `(1 + 2^16) x - 2^16 x`, which leaves the eight highest binary digits (Dekker 1971)."""
        far = ops.multiply(x, ops.constant(np.array([1.0 + 2.0**16], np.float32)))
        return ops.subtract(far, ops.subtract(far, x))


register_codec(BFloat16())
