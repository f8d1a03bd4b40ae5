"""Compiles graphs with OpenVINO, in floats or in 8 bits, and runs them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence

import numpy as np
import openvino as ov
import openvino.opset13 as op

from polyhead.engine.backends.openvino.ops import OpenVINOOps
from polyhead.engine.compile.ops import Build, Compiled, Tensor
from polyhead.engine.scales import Scale, Scales
from polyhead.errors import BackendError
from polyhead.machine import processor, processors, trim

LEVELS = 256
LONGEST_NAMES = 2**20  # bytes of the names of a graph's inputs and outputs
# OpenVINO keeps kernels of the input shapes that it has seen, 5,000 by default: a server's memory grows with them.
KEPT_KERNELS = ("CPU_RUNTIME_CACHE_CAPACITY", 1024)


class OpenVINOInt8Ops(OpenVINOOps):
    """Multiplies in 8 bits where a scale is known for the weights, and else as any graph does."""

    def __init__(self, scales: Scales, *, bits: int) -> None:
        super().__init__()
        self._scales, self._bits = scales, bits
        # What several products read is brought to 8 bits once.
        self._kept: dict[tuple[int, bytes, float, int], tuple[Tensor, ov.Node]] = {}

    def matmul(self, a: Tensor, b: Tensor, *, transposed: bool = False) -> Tensor:
        weights = self.arrays.get(id(b)) if transposed else None
        product = None if weights is None else self._scales.product(self, a, weights, self._product)
        return super().matmul(a, b, transposed=transposed) if product is None else product

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


PRECISIONS = ("float32", "bfloat16", "int8")
TOLERANCES = {"float32": 1e-4, "bfloat16": 0.5, "int8": 1.0}


class OpenVINORuntime:
    """Compiles for the processor.

    `precision` None is bfloat16 if the processor has it, else float32. It applies to layers, poolers and heads, except
    operations that OpenVINO always runs in float32. With int8 the products of layers run in 8 bits by `scales`, and the
    rest as with None.
    `threads` None is as many as the processor has cores. `streams` share them, each for one call at a time: calls
    of several threads run at once, and no core waits for another.
    """

    name = "openvino"
    # The version of the module, whichever package installed it, without its build number.
    version = str(ov.__version__).partition("-")[0]
    fills = True

    def __init__(
        self,
        *,
        precision: str | None = None,
        threads: int | None = None,
        streams: int = 1,
        scales: Scales | None = None,
    ) -> None:
        self._core = ov.Core()
        rest = "bfloat16" if self.has_bfloat16 else "float32"
        self.precision = rest if precision is None else precision
        self._check(scales)
        self.tolerance = TOLERANCES[self.precision]
        self.calibration = "" if scales is None else scales.digest
        self.weight_bits = processor().weight_bits if scales is not None else None
        self._scales = scales
        self._float = rest if self.precision == "int8" else self.precision
        self._settings: dict[str, object] = {
            "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[self._float]
        }
        self.streams = streams
        self._settings |= {"PERFORMANCE_HINT": "LATENCY"} if streams == 1 else {"NUM_STREAMS": streams}
        if threads is None and processors() < (os.cpu_count() or 1):
            threads = processors()  # OpenVINO counts the machine's, whatever the container allows
        if threads is not None:
            self._settings["INFERENCE_NUM_THREADS"] = threads
        self._settings |= dict([KEPT_KERNELS])

    @property
    def has_bfloat16(self) -> bool:
        """Whether the processor has bfloat16 arithmetic of its own, which OpenVINO uses."""
        # OpenVINO tells of the processor also where its oneDNN is capped, and then has no such product.
        capabilities = self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return "BF16" in capabilities and processor().may_have_bfloat16

    def compile(self, build: Build, *, label: str, layers: bool) -> _Compiled:
        """The graph that `build` makes, compiled for the processor."""
        bfloat16 = self._float == "bfloat16"
        ops = OpenVINOOps(bfloat16=bfloat16, halved=bfloat16 and not layers)
        if layers and self._scales is not None and self.weight_bits is not None:
            ops = OpenVINOInt8Ops(self._scales, bits=self.weight_bits)
        outputs = build(ops)
        results = [ov.opset13.result(tensor) for tensor in outputs.values()]
        model = ov.Model(results, list(ops.inputs.values()), label)
        try:
            compiled = self._core.compile_model(model, "CPU", self._settings)
        except RuntimeError as error:
            name, _ = KEPT_KERNELS  # no documented setting: another version may not have it
            if name not in str(error) or self._settings.pop(name, None) is None:
                raise
            compiled = self._core.compile_model(model, "CPU", self._settings)
        trim()  # what compiling needed for a moment
        return _Compiled(compiled, list(ops.inputs), list(outputs))

    @property
    def facts(self) -> str:
        """As `engine.compile.compiled` has it."""
        names = ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES")
        device = [self._core.get_property("CPU", name) for name in names]
        own = (self.precision, self.calibration, self.weight_bits, sorted(self._settings.items()))
        here = processor()
        return repr(
            (str(ov.__version__), own, device, here.label, here.machine, here.features and sorted(here.features))
        )

    def exported(self, compiled: Compiled) -> bytes:
        """As `engine.compile.compiled` has it: names of inputs and outputs in a line of JSON, then OpenVINO's form."""
        assert isinstance(compiled, _Compiled)
        form: bytes = compiled.model.export_model().getvalue()
        return json.dumps([compiled.inputs, compiled.outputs]).encode() + b"\n" + form

    def imported(self, content: memoryview) -> Compiled:
        """As `engine.compile.compiled` has it."""
        size = bytes(content[:LONGEST_NAMES]).index(b"\n")
        inputs, outputs = json.loads(bytes(content[:size]))
        form = np.frombuffer(content[size + 1 :], np.uint8)
        model = self._core.import_model(ov.Tensor(form, shared_memory=True), "CPU", self._settings)
        return _Compiled(model, inputs, outputs, held=form)

    def _check(self, scales: Scales | None) -> None:
        if self.precision not in PRECISIONS:
            raise BackendError(
                "the openvino backend cannot run layers in this precision",
                got=self.precision,
                allowed=PRECISIONS,
                do="choose one of these",
            )
        if self.precision == "bfloat16" and not self.has_bfloat16:
            raise BackendError(
                "this processor has no bfloat16 arithmetic",
                got=f"precision bfloat16 on {processor().label}",
                allowed=["float32", "int8"],
                do="choose one of these: --precision float32",
            )
        if (self.precision == "int8") != (scales is not None):
            raise BackendError(
                "layers run in 8 bits by scales that were found on texts",
                got=f"precision {self.precision} {'without' if scales is None else 'with'} scales",
                allowed="both int8 and scales, or neither",
                do="find them with `polyhead tasks quantize`",
            )


class _Compiled:
    """A compiled graph with a request for each thread that calls it."""

    def __init__(
        self, model: ov.CompiledModel, inputs: Sequence[str], outputs: Sequence[str], *, held: object = None
    ) -> None:
        """`held` is memory that the model reads for as long as it lives, without saying so to Python."""
        self.model, self._own = model, threading.local()
        self.inputs, self.outputs, self._held = tuple(inputs), tuple(outputs), held
        kinds = [port.get_element_type().to_dtype() for port in model.inputs]
        self._inputs, self._outputs = tuple(zip(inputs, kinds, strict=True)), tuple(enumerate(outputs))

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        request = getattr(self._own, "request", None)
        if request is None:
            request = self._own.request = self.model.create_infer_request()
        # Arrays are lent as they are, one by one: half the time of a small call went into finding out about them.
        lent = [np.require(inputs[name], kind, ["C", "W"]) for name, kind in self._inputs]
        for index, array in enumerate(lent):
            request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
        request.infer(share_outputs=True)
        return {name: request.get_output_tensor(index).data for index, name in self._outputs}
