"""Backends run a plan; each states its tolerance and has a deterministic mode."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable, Mapping
from typing import Literal

from polyhead.engine.backends.base import Backend, LoadedTask
from polyhead.engine.compile.ops import Runtime
from polyhead.engine.quantize.scales import Scales
from polyhead.errors import BackendError, MissingExtra
from polyhead.processor import processor
from polyhead.trunk.data import TrunkData

BackendName = Literal["torch", "torch-cuda", "openvino", "onnxruntime", "reference"]
BACKENDS: tuple[BackendName, ...] = ("torch", "torch-cuda", "openvino", "onnxruntime", "reference")
RUNTIMES: tuple[BackendName, ...] = ("openvino", "onnxruntime")  # that compile graphs
PRECISIONS: Mapping[str, tuple[str, ...]] = {
    "torch": ("float32", "bfloat16"),
    "torch-cuda": ("float32", "bfloat16"),
    "openvino": ("float32", "bfloat16", "int8"),
    "onnxruntime": ("float32", "int8"),
    "reference": ("float32",),
}


def default_backend() -> BackendName:
    """What computes where nobody chose: the fastest that is installed."""
    if is_installed("openvino") and platform.machine() in ("x86_64", "AMD64"):
        return "openvino"
    if is_installed("onnxruntime") and is_installed("onnx"):
        return "onnxruntime"
    return "torch" if is_installed("torch") else "reference"


def open_backend(
    name: str | Runtime | None,
    trunk: TrunkData,
    tasks: Mapping[str, LoadedTask],
    *,
    precision: str | None = "float32",
    trained: str | None = None,
    scales: Callable[[str], Scales] | None = None,
    deterministic: bool = False,
) -> Backend:
    """A backend with the trunk and the tasks' arrays loaded; `deterministic` lets it use such algorithms only.

    `name` may be a runtime that is ready made, which has a precision of its own: any other raises BackendError. None is
    `default_backend`. The `precision` None is the one that the tasks were `trained` with, if it is known and this
    machine has it, or else the backend's own. `scales` gives those of int8 for a backend.
    """
    name = default_backend() if name is None else name
    if not isinstance(name, str):
        from polyhead.engine.backends.graph import GraphBackend

        _check_ready(name, precision)
        return GraphBackend(name, trunk, tasks, deterministic=deterministic)
    _check(name, precision)
    if name == "reference":
        from polyhead.engine.backends.reference import ReferenceBackend

        return ReferenceBackend(trunk, tasks)
    if name in ("torch", "torch-cuda"):
        try:
            from polyhead.engine.backends.torch import TorchBackend
        except ImportError:
            raise MissingExtra(
                "torch",
                "train",
                "the torch backend",
                instead="choose the slow backend 'reference', which needs no torch (--backend reference)",
            ) from None
        device = "cuda" if name == "torch-cuda" else "cpu"
        if trained == "bfloat16" and device == "cpu" and not processor().may_have_bfloat16:
            trained = "float32"  # torch would compute bfloat16 by other arithmetic, far slower
        wanted = precision or trained or "float32"
        return TorchBackend(trunk, tasks, precision=wanted, deterministic=deterministic, device=device)
    from polyhead.engine.backends.graph import GraphBackend

    chosen = precision or ("float32" if trained == "float32" else None)
    found = scales(name) if chosen == "int8" and scales is not None else None
    runtime = open_runtime(name, precision=chosen, scales=found)
    return GraphBackend(runtime, trunk, tasks, deterministic=deterministic)


def open_runtime(name: str, *, precision: str | None = None, scales: Scales | None = None) -> Runtime:
    """A library that compiles graphs; None is its own precision, `scales` are those of int8.

    Raises BackendError for a name of anything else, MissingExtra where it is not installed.
    """
    if name not in RUNTIMES:
        raise BackendError(
            f"'{name}' compiles no graphs", allowed=RUNTIMES, do="choose one of these, or open a session with it"
        )
    if name == "openvino":
        try:
            from polyhead.engine.backends.openvino import OpenVINORuntime
        except ImportError:
            raise MissingExtra("openvino", "openvino", "the openvino backend") from None
        return OpenVINORuntime(precision=precision, scales=scales)
    try:
        from polyhead.engine.backends.onnx import OnnxRuntime
    except ImportError:
        raise MissingExtra("onnxruntime", "onnx", "the onnxruntime backend") from None
    return OnnxRuntime(precision=precision, scales=scales)


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def _check_ready(runtime: Runtime, precision: str | None) -> None:
    """Raises BackendError where a runtime that is ready made has another precision than the one that is asked."""
    if precision not in (None, runtime.precision):
        raise BackendError(
            f"the {runtime.name} runtime that was given as the backend computes in another precision than asked",
            got=precision,
            allowed=runtime.precision,
            do="leave `precision` out, or make the runtime with this precision",
        )


def _check(name: str, precision: str | None) -> None:
    if name not in BACKENDS:
        raise BackendError(f"there is no backend '{name}'", allowed=BACKENDS, do="choose one of these")
    if precision is not None and precision not in PRECISIONS[name]:
        raise BackendError(
            f"the {name} backend cannot run the trunk in {precision}",
            allowed=PRECISIONS[name],
            do="choose one of these, or another backend",
        )
