"""Compiles graphs with ONNX Runtime, in float32 or in 8 bits, and runs them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from polyhead.bundle.files import map_of
from polyhead.engine.backends.onnx.ops import INLINE, OnnxOps
from polyhead.engine.compile.ops import Build, Tensor
from polyhead.engine.scales import Scale, Scales
from polyhead.errors import BackendError
from polyhead.machine import processor, processors


class OnnxInt8Ops(OnnxOps):
    """Multiplies in 8 bits where a scale is known for the weights, and else as any graph does."""

    def __init__(self, scales: Scales, *, bits: int) -> None:
        super().__init__()
        self._scales, self._bits = scales, bits
        # What several products read is brought to 8 bits once.
        self._kept: dict[tuple[Tensor, bytes, float, int], Tensor] = {}
        # Of sums of a product and its shift: both.
        self._shifted: dict[Tensor, tuple[Tensor, np.ndarray]] = {}

    def matmul(self, a: Tensor, b: Tensor, *, transposed: bool = False) -> Tensor:
        weights = self.arrays.get(b) if transposed else None
        product = None if weights is None else self._scales.product(self, a, weights, self._product)
        return super().matmul(a, b, transposed=transposed) if product is None else product

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """`a + b`; a bias and the shift of the product before it are one sum, where two took a tenth of all time."""
        product, shift = self._shifted.get(a, (a, None))
        bias = self.arrays.get(b)
        if shift is None or bias is None or bias.ndim != 1:
            return super().add(a, b)
        return super().add(product, self.constant(bias + shift))

    def _product(self, x: Tensor, weight: np.ndarray, scale: Scale) -> Tensor:
        eight = scale.weights(weight, bits=self._bits)
        turned, steps = self.constant(np.ascontiguousarray(eight.whole.T)), self.constant(eight.steps[:, 0])
        weights = self.node("DequantizeLinear", turned, steps, axis=1)
        product = self.node("MatMul", self._eight(x, scale), weights)
        if eight.shift is None:
            return product
        total = super().add(product, self.constant(eight.shift))
        self._shifted[total] = (product, eight.shift)
        return total

    def _eight(self, x: Tensor, scale: Scale) -> Tensor:
        key = (x, scale.smooth.tobytes(), scale.step, scale.zero)
        if key not in self._kept:
            step = self.constant(np.array(scale.step, np.float32))
            zero = self.constant(np.array(scale.zero, np.uint8))
            divided = self.multiply(x, self.constant(np.asarray(1 / scale.smooth, np.float32)))
            whole = self.node("QuantizeLinear", divided, step, zero)
            self._kept[key] = self.node("DequantizeLinear", whole, step, zero)
        return self._kept[key]


TOLERANCES = {"float32": 1e-4, "int8": 1.0}


class OnnxRuntime:
    """Compiles for the processor, in float32; with int8 the products of layers run in 8 bits by `scales`.

    Weights are not copied into the model, so that no limit on its bytes is met. `threads` None is as many as the
    processor has cores.
    """

    name, version = "onnxruntime", str(ort.__version__)  # of the module: several packages bring it
    fills = True

    def __init__(
        self, *, precision: str | None = None, threads: int | None = None, scales: Scales | None = None
    ) -> None:
        self.precision = precision or "float32"
        if self.precision not in TOLERANCES or (self.precision == "int8") != (scales is not None):
            raise BackendError(
                "ONNX Runtime runs layers in float32, or in 8 bits by scales that were found on texts",
                got=f"precision {self.precision} {'without' if scales is None else 'with'} scales",
                do="find scales with `polyhead tasks quantize`, or choose float32",
            )
        self.tolerance = TOLERANCES[self.precision]
        self.calibration = "" if scales is None else scales.digest
        self.weight_bits = processor().weight_bits if scales is not None else None
        self._threads, self._scales = threads or processors(), scales

    def compile(self, build: Build, *, label: str, layers: bool, exact: bool = False) -> _Compiled:
        """The graph that `build` makes, compiled for the processor."""
        ops = OnnxOps()
        if layers and self._scales is not None and self.weight_bits is not None:
            ops = OnnxInt8Ops(self._scales, bits=self.weight_bits)
        model = ops.graph(build(ops), label=label)
        large = {name: array for name, array in ops.arrays.items() if array.nbytes > INLINE}
        # Arrays of a mapped file are only read, so the graph reads them there; others are copied.
        lent = {name: array if map_of(array) is not None else array.copy() for name, array in large.items()}
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in lent.items()}
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = self._threads
        # A plan runs several graphs, one after another: threads of one that rests must not spin beside the next.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.add_external_initializers(list(values), list(values.values()))
        for name, value in values.items():  # read where they are: without this the session copies them (1.31)
            options.add_initializer(name, value)
        return _Compiled(model.SerializeToString(), options, list(values.values()))


class _Compiled:
    """A compiled graph; its session may run in several threads at once, and returns new arrays."""

    def __init__(self, model: bytes, options: ort.SessionOptions, values: list[ort.OrtValue]) -> None:
        self._values = values  # the session reads them where they are
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._inputs = [port.name for port in self._session.get_inputs()]
        self._outputs = [port.name for port in self._session.get_outputs()]

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = self._session.run(self._outputs, {name: inputs[name] for name in self._inputs})
        return dict(zip(self._outputs, outputs, strict=True))
