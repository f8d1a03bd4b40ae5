"""Compiles graphs with OpenVINO, in floats or in 8 bits, and runs them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence

import numpy as np
import openvino as ov
import openvino.opset13 as op

from polyhead.bundle.files import release
from polyhead.engine.backends.openvino.ops import OpenVINOOps
from polyhead.engine.compile.ops import Build, Compiled, Tensor, side_by_side
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
        # A table's product is computed once, when the graph is compiled: in 8 bits that fails without VNNI (2026.4).
        weights = self.arrays.get(id(b)) if transposed and id(a) not in self.arrays else None
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


class OpenVINOInt8HeadOps(OpenVINOOps):
    """Multiplies what slots read in 8 bits where a scale is known for the matrix, and all else as any graph does."""

    def __init__(self, scales: Scales, *, bits: int, bfloat16: bool) -> None:
        # Not halved: beside 8 bits OpenVINO reads products in bfloat16 as if they were float16 (2026.4).
        super().__init__(bfloat16=bfloat16)
        self._scales, self._bits = scales, bits

    def slots(self, x: Tensor, matrices: Sequence[np.ndarray], *, apart: int) -> Tensor:
        """See `compile.ops.slots_product`."""
        places, step = np.arange(len(matrices)), apart or len(matrices)
        parts = [places[start : start + step] for start in range(0, len(places), step)]
        if not apart:
            is_known = np.array([scale is not None for scale in self._scales.of_slots(matrices)])
            parts = [part for part in (places[is_known], places[~is_known]) if len(part)]
        if len(parts) == 1:
            return self._alike(x, matrices)
        first = op.constant(np.int64(0))
        outs = [self._alike(op.gather(x, op.constant(part), first), [matrices[n] for n in part]) for part in parts]
        back = np.argsort(np.concatenate(parts))
        return op.gather(op.concat(outs, 0), op.constant(back), first)

    def _alike(self, x: Tensor, matrices: Sequence[np.ndarray]) -> Tensor:
        """In 8 bits where all have a scale."""
        scales = [scale.even for scale in self._scales.of_slots(matrices) if scale is not None]
        if len(scales) < len(matrices):
            return self.matmul(x, self.constant(side_by_side(matrices)))
        eights = [scale.weights(matrix.T, bits=self._bits) for scale, matrix in zip(scales, matrices, strict=True)]
        low, high = (op.constant(np.float32(edge)) for edge in (scales[0].low, scales[0].high))
        divided = op.multiply(x, op.constant(np.stack([np.float32(1) / scale.smooth[None] for scale in scales])))
        read = op.fake_quantize(divided, low, high, low, high, LEVELS)
        whole, steps = (np.stack([getattr(eight, name) for eight in eights]) for name in ("whole", "steps"))
        weights = op.multiply(op.convert(op.constant(whole), "f32"), op.constant(steps))
        product = op.matmul(read, weights, False, True)
        shifts = [eight.shift[None] for eight in eights if eight.shift is not None]
        return op.add(product, op.constant(np.stack(shifts).astype(np.float32))) if shifts else product


PRECISIONS = ("float32", "bfloat16", "int8")
TOLERANCES = {"float32": 1e-4, "bfloat16": 0.5, "int8": 1.0}


class OpenVINORuntime:
    """Compiles for the processor.

    `precision` None is bfloat16 if the processor has it, else float32. It applies to layers, poolers and heads, except
    operations that OpenVINO always runs in float32, and decoders. With int8 the products of layers run in 8 bits by
    `scales`, with VNNI those of poolers and heads too, and the rest as with None.
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
        fastest = "bfloat16" if self.has_bfloat16 else "float32"
        self.precision = fastest if precision is None else precision
        self._check(scales)
        self.tolerance = TOLERANCES[self.precision]
        self.calibration = "" if scales is None else scales.digest
        self.weight_bits = processor().weight_bits if scales is not None else None
        self._scales = scales
        self._float = fastest if self.precision == "int8" else self.precision
        self.streams = streams
        self._settings: dict[str, object] = (
            {"PERFORMANCE_HINT": "LATENCY"} if streams == 1 else {"NUM_STREAMS": streams}
        )
        if threads is None and processors() < (os.cpu_count() or 1):
            threads = processors()  # OpenVINO counts the machine's, whatever the container allows
        # Each call has one thread, or may have.
        self._is_alone = (threads or processors()) <= streams
        if threads is not None:
            self._settings["INFERENCE_NUM_THREADS"] = threads
        self._settings |= dict([KEPT_KERNELS])

    @property
    def eight_bit_slots(self) -> bool:
        """Whether in int8 poolers and heads are too, where a scale is known: their stacks saturate without VNNI."""
        return processor().weight_bits == 8

    @property
    def gathers(self) -> bool:
        """Whether a graph can gather the weights of a few slots: not if slots are in 8 bits, each with its scale."""
        return self._scales is None or not self.eight_bit_slots

    @property
    def has_bfloat16(self) -> bool:
        """Whether the processor has native bfloat16 arithmetic, which OpenVINO uses."""
        # OpenVINO tells of the processor also where its oneDNN is capped, and then has no such product.
        capabilities = self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return "BF16" in capabilities and processor().may_have_bfloat16

    def compile(self, build: Build, *, label: str, layers: bool, exact: bool = False) -> _Compiled:
        """The graph that `build` makes, compiled for the processor."""
        model, inputs, outputs = self._model(build, label=label, layers=layers, exact=exact)
        weights = sum(node.get_byte_size() for node in model.get_ops() if isinstance(node, ov.op.Constant))
        return _Compiled(self._compiled(model, exact=exact), inputs, outputs, weights=weights)

    def _model(self, build: Build, *, label: str, layers: bool, exact: bool) -> tuple[ov.Model, list[str], list[str]]:
        """The graph that `build` makes, and the names of its inputs and outputs."""
        bfloat16 = self._float == "bfloat16" and not exact
        if exact or self._scales is None or self.weight_bits is None:
            ops = OpenVINOOps(bfloat16=bfloat16, halved=bfloat16 and not layers, turned=bfloat16 and self._is_alone)
        elif layers:
            ops = OpenVINOInt8Ops(self._scales, bits=self.weight_bits)
        elif self.eight_bit_slots:
            ops = OpenVINOInt8HeadOps(self._scales, bits=self.weight_bits, bfloat16=bfloat16)
        else:
            ops = OpenVINOOps(bfloat16=bfloat16, halved=bfloat16)
        outputs = build(ops)
        results = [ov.opset13.result(tensor) for tensor in outputs.values()]
        return ov.Model(results, list(ops.inputs.values()), label), list(ops.inputs), list(outputs)

    def _compiled(self, model: ov.Model, *, exact: bool) -> ov.CompiledModel:
        try:
            compiled = self._core.compile_model(model, "CPU", self._settings_of(exact=exact))
        except RuntimeError as error:
            name, _ = KEPT_KERNELS  # no documented setting: another version may not have it
            if name not in str(error) or self._settings.pop(name, None) is None:
                raise
            compiled = self._core.compile_model(model, "CPU", self._settings_of(exact=exact))
        trim()  # what compiling needed for a moment
        return compiled

    def _settings_of(self, *, exact: bool) -> dict[str, object]:
        bfloat16 = self._float == "bfloat16" and not exact
        return self._settings | {"INFERENCE_PRECISION_HINT": "bf16" if bfloat16 else "f32"}

    @property
    def facts(self) -> str:
        """As `engine.compile.compiled` has it."""
        names = ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES")
        device = [self._core.get_property("CPU", name) for name in names]
        options = (self.precision, self._float, self.calibration, self.weight_bits, sorted(self._settings.items()))
        chip = processor()
        return repr(
            (str(ov.__version__), options, device, chip.label, chip.machine, chip.features and sorted(chip.features))
        )

    def exported(self, compiled: Compiled, *, most: int) -> list[bytes]:
        """As `engine.compile.compiled` has it: names of inputs and outputs in a line of JSON, then OpenVINO's form."""
        assert isinstance(compiled, _Compiled)
        if compiled.weights > most:  # before they are written into memory, twice
            raise ValueError(f"{compiled.weights} bytes of weights, where {most} are kept")
        form: bytes = compiled.model.export_model().getvalue()
        return [json.dumps([compiled.inputs, compiled.outputs]).encode(), b"\n", form]

    def imported(self, content: memoryview, build: Build, *, label: str, layers: bool) -> _Compiled:
        """As `engine.compile.compiled` has it."""
        size = bytes(content[:LONGEST_NAMES]).index(b"\n")
        inputs, outputs = json.loads(bytes(content[:size]))
        form = np.frombuffer(content[size + 1 :], np.uint8)
        model = self._core.import_model(ov.Tensor(form, shared_memory=True), "CPU", self._settings_of(exact=False))
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
        self,
        model: ov.CompiledModel,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        weights: int = 0,
        held: np.ndarray | None = None,
    ) -> None:
        """`weights`: bytes of its constants, where these are known. `held` is memory of a file that the model reads."""
        self.model, self.weights = model, weights
        self._per_thread, self._held = threading.local(), held
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        kinds = [port.get_element_type().to_dtype() for port in model.inputs]
        self._inputs, self._outputs = tuple(zip(inputs, kinds, strict=True)), tuple(enumerate(outputs))

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        request: ov.InferRequest | None = getattr(self._per_thread, "request", None)
        is_first = request is None
        if request is None:
            request = self._per_thread.request = self.model.create_infer_request()
        # Arrays are lent as they are, one by one: half the time of a small call went into finding out about them.
        lent = [np.require(inputs[name], kind, ["C", "W"]) for name, kind in self._inputs]
        for index, array in enumerate(lent):
            request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
        request.infer(share_outputs=True)
        if is_first and self._held is not None:
            release([self._held])  # weights were read to be packed
        return {name: request.get_output_tensor(index).data for index, name in self._outputs}
