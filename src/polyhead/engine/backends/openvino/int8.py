"""Graphs whose products with weights are computed in 8 bits."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset13 as op

from polyhead.engine.backends.openvino.ops import OpenVINOOps
from polyhead.engine.compile.ops import Tensor
from polyhead.engine.quantize.scales import Scale, Scales

LEVELS = 256


class Int8Ops(OpenVINOOps):
    """Multiplies in 8 bits where a scale is known for the weights, and else as any graph does."""

    def __init__(self, scales: Scales, *, bits: int) -> None:
        """`bits` of the weights, as the processor sums products."""
        super().__init__()
        self._scales, self._bits = scales, bits
        self._weights: dict[int, tuple[ov.Node, np.ndarray]] = {}
        # What several products read is brought to 8 bits once.
        self._kept: dict[tuple[int, bytes, float, int], tuple[Tensor, ov.Node]] = {}

    def constant(self, array: np.ndarray) -> Tensor:
        """As ever; weights are remembered."""
        node = super().constant(array)
        self._weights[id(node)] = (node, array)
        return node

    def matmul(self, a: Tensor, b: Tensor, *, transposed: bool = False) -> Tensor:
        """In 8 bits where `b` are weights with scales."""
        _, weight = self._weights.get(id(b), (None, None))
        if transposed and weight is not None and weight.ndim == 2:
            scale = self._scales.of(weight)
            if scale is not None:
                return self._product(a, weight, scale)
        if transposed and weight is not None and weight.ndim == 3:
            each = self._scales.of_each(weight)
            if each is not None:  # one product has one step for what it reads, so each group is one of its own
                parts = [self.slice(a, 0, i, i + 1) for i in range(len(weight))]
                products = map(self._product, parts, weight, each)
                return self.concat(list(products), 0)
        return super().matmul(a, b, transposed=transposed)

    def _product(self, x: Tensor, weight: np.ndarray, scale: Scale) -> ov.Node:
        eight = scale.weights(weight, bits=self._bits)
        weights = op.multiply(op.convert(op.constant(eight.whole), "f32"), op.constant(eight.steps))
        product = op.matmul(self._eight(x, scale), weights, False, True)
        return product if eight.shift is None else op.add(product, op.constant(eight.shift))

    def _eight(self, x: Tensor, scale: Scale) -> ov.Node:
        key = (id(x), scale.smooth.tobytes(), scale.step, scale.zero)
        if key not in self._kept:
            low, high = (op.constant(np.float32(edge)) for edge in (scale.low, scale.high))
            divided = op.multiply(x, op.constant(np.asarray(1 / scale.smooth, np.float32)))
            self._kept[key] = (x, op.fake_quantize(divided, low, high, low, high, LEVELS))
        return self._kept[key][1]
