"""The backends that come with the package; their libraries are imported when one is opened."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from polyhead.engine.backends.base import Backend, LoadedTask
from polyhead.engine.backends.registry import BackendKind, OpenOptions
from polyhead.engine.compile.ops import Runtime
from polyhead.engine.quantize.scales import Scales
from polyhead.errors import MissingExtra
from polyhead.processor import processor
from polyhead.trunk.data import TrunkData


class Torch(BackendKind):
    """The code that trains, on the processor."""

    name, package = "torch", "torch"
    precisions = ("float32", "bfloat16")
    device = "cpu"

    def open(self, trunk: TrunkData, tasks: Mapping[str, LoadedTask], options: OpenOptions) -> Backend:
        """In `precision`, or as tasks were trained; torch would compute bfloat16 of older processors far slower."""
        try:
            from polyhead.engine.backends.torch import TorchBackend
        except ImportError:
            raise MissingExtra(
                "torch",
                "train",
                "the torch backend",
                instead="choose the slow backend 'reference', which needs no torch (--backend reference)",
            ) from None
        trained = options.trained
        if trained == "bfloat16" and self.device == "cpu" and not processor().may_have_bfloat16:
            trained = "float32"
        precision, is_exact = options.precision or trained or "float32", options.deterministic
        return TorchBackend(trunk, tasks, precision=precision, deterministic=is_exact, device=self.device)

    def label(self) -> dict[str, str]:
        """Version of torch, and its threads."""
        torch: Any = importlib.import_module("torch")  # it is installed, and its backend is about to need it
        return {"torch": str(torch.__version__), "threads": str(torch.get_num_threads())}


class TorchCuda(Torch):
    """The code that trains, on a CUDA device."""

    name, device = "torch-cuda", "cuda"


class Compiling(BackendKind):
    """A backend over a runtime that compiles graphs."""

    compiles = True

    def open(self, trunk: TrunkData, tasks: Mapping[str, LoadedTask], options: OpenOptions) -> Backend:
        """In `precision`, in float32 where tasks were trained in it, or in the runtime's own."""
        from polyhead.engine.backends.graph import GraphBackend

        precision = options.precision or ("float32" if options.trained == "float32" else None)
        scales = options.scales() if precision == "int8" and options.scales is not None else None
        runtime = self.runtime(precision=precision, scales=scales)
        return GraphBackend(runtime, trunk, tasks, deterministic=options.deterministic)


class OpenVINO(Compiling):
    """Graphs compiled by OpenVINO."""

    name, package = "openvino", "openvino"
    precisions = ("float32", "bfloat16", "int8")

    def runtime(self, *, precision: str | None = None, scales: Scales | None = None) -> Runtime:
        """OpenVINO; None is bfloat16 where the processor has it, else float32."""
        try:
            from polyhead.engine.backends.openvino import OpenVINORuntime
        except ImportError:
            raise MissingExtra("openvino", "openvino", "the openvino backend") from None
        return OpenVINORuntime(precision=precision, scales=scales)

    @property
    def has_bfloat16(self) -> bool:
        """Whether OpenVINO has bfloat16 products on this processor."""
        from polyhead.engine.backends.openvino import OpenVINORuntime

        return OpenVINORuntime(precision="float32").has_bfloat16


class Onnx(Compiling):
    """Graphs compiled by ONNX Runtime."""

    name, package = "onnxruntime", "onnxruntime"
    precisions = ("float32", "int8")

    def runtime(self, *, precision: str | None = None, scales: Scales | None = None) -> Runtime:
        """ONNX Runtime; None is float32."""
        try:
            from polyhead.engine.backends.onnx import OnnxRuntime
        except ImportError:
            raise MissingExtra("onnxruntime", "onnx", "the onnxruntime backend") from None
        return OnnxRuntime(precision=precision, scales=scales)


class Reference(BackendKind):
    """Plain numpy, in float32."""

    name, package = "reference", "numpy"
    precisions = ("float32",)

    def open(self, trunk: TrunkData, tasks: Mapping[str, LoadedTask], options: OpenOptions) -> Backend:
        """The yardstick, which is always deterministic."""
        from polyhead.engine.backends.reference import ReferenceBackend

        return ReferenceBackend(trunk, tasks)
