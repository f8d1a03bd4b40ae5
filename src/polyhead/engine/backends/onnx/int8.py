"""Graphs whose products with weights are computed in 8 bits: ONNX's own quantized form, which runtimes fuse."""

from __future__ import annotations

import numpy as np

from polyhead.engine.backends.onnx.ops import OnnxOps
from polyhead.engine.compile.ops import Tensor
from polyhead.engine.quantize.scales import Scale, Scales


class Int8Ops(OnnxOps):
    """Multiplies in 8 bits where a scale is known for the weights, and else as any graph does."""

    def __init__(self, scales: Scales, *, bits: int) -> None:
        """`bits` of the weights, as the processor sums products."""
        super().__init__()
        self._scales, self._bits = scales, bits
        # What several products read is brought to 8 bits once.
        self._kept: dict[tuple[Tensor, bytes, float, int], Tensor] = {}
        # Of sums of a product and its shift: both.
        self._shifted: dict[Tensor, tuple[Tensor, np.ndarray]] = {}

    def matmul(self, a: Tensor, b: Tensor, *, transposed: bool = False) -> Tensor:
        """In 8 bits where `b` are weights with scales."""
        weight = self.arrays.get(b) if transposed else None
        if weight is not None and weight.ndim == 2:
            scale = self._scales.of(weight)
            if scale is not None:
                return self._product(a, weight, scale)
        if weight is not None and weight.ndim == 3:
            each = self._scales.of_each(weight)
            if each is not None:  # one product has one step for what it reads, so each group is one of its own
                parts = [self.slice(a, 0, i, i + 1) for i in range(len(weight))]
                return self.concat(list(map(self._product, parts, weight, each)), 0)
        return super().matmul(a, b, transposed=transposed)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """`a + b`; a bias and the shift of the product before it are one sum, where two took a tenth of all time."""
        product, shift = self._shifted.get(a, (a, None))
        bias = self.arrays.get(b)
        if shift is None or bias is None or bias.ndim != 1:
            return super().add(a, b)
        return super().add(product, self.constant(bias + shift))

    def _product(self, x: Tensor, weight: np.ndarray, scale: Scale) -> Tensor:
        eight = scale.weights(weight, bits=self._bits)
        turned, each = self.constant(np.ascontiguousarray(eight.whole.T)), self.constant(eight.steps[:, 0])
        weights = self.node("DequantizeLinear", turned, each, axis=1)
        product = self.node("MatMul", self._eight(x, scale), weights)
        if eight.shift is None:
            return product
        total = super().add(product, self.constant(eight.shift))
        self._shifted[total] = (product, eight.shift)
        return total

    def _eight(self, x: Tensor, scale: Scale) -> Tensor:
        key = (x, scale.smooth.tobytes(), scale.step, scale.zero)
        if key not in self._kept:
            step, zero = (
                self.constant(np.array(scale.step, np.float32)),
                self.constant(np.array(scale.zero, np.uint8)),
            )
            divided = self.multiply(x, self.constant(np.asarray(1 / scale.smooth, np.float32)))
            whole = self.node("QuantizeLinear", divided, step, zero)
            self._kept[key] = self.node("DequantizeLinear", whole, step, zero)
        return self._kept[key]
