"""The backends that run plans: their abilities, and how to open them. `register_backend` adds another.

The package's backends import their libraries when they are opened.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pkgutil import resolve_name
from typing import Any, ClassVar

from polyhead.encoder.data import TrunkData
from polyhead.engine.backends.base import Backend, LoadedTask
from polyhead.engine.compile.ops import Runtime
from polyhead.engine.scales import Scales
from polyhead.errors import BackendError, MissingExtra
from polyhead.machine import processor, processors
from polyhead.registry import Registry
from polyhead.values import Value

log = logging.getLogger(__name__)


class OpenOptions(Value, eq=False):
    """Options for opening a backend."""

    precision: str | None  # of the trunk, one of the backend's; None: see `trained`
    trained: str | None = None  # where tasks were trained in one precision: taken if this machine has it
    scales: Callable[[], Scales] | None = None  # gives those of int8
    deterministic: bool = False  # equal bits whatever a row's batch mates are
    streams: int = 1  # calls of several threads that are to run at once, where the backend can share processors


class BackendKind(ABC):
    """A backend that can be opened by its name, once `register_backend` made it known."""

    name: ClassVar[str]
    precisions: ClassVar[tuple[str, ...]]  # of the trunk
    package: ClassVar[str]  # that computes: its version is part of how answers were computed
    compiles: ClassVar[bool] = False  # has a runtime that compiles graphs

    @abstractmethod
    def open(self, trunk: TrunkData, tasks: Mapping[str, LoadedTask], options: OpenOptions) -> Backend:
        """The backend with the trunk and the tasks' arrays loaded; raises MissingExtra where it is not installed."""

    def runtime(self, *, precision: str | None = None, scales: Scales | None = None, streams: int = 1) -> Runtime:
        """The library that compiles graphs; raises BackendError where the backend compiles none."""
        raise _no_runtime(self.name)

    @property
    def has_bfloat16(self) -> bool:
        """Whether it can run a trunk in bfloat16 on this processor."""
        return "bfloat16" in self.precisions

    def label(self) -> dict[str, str]:
        """The library and its number of threads, which may change the bits of outputs."""
        return {self.package: importlib.metadata.version(self.package), "threads": str(processors())}


BACKENDS: Registry[BackendKind] = Registry("backend", unknown=BackendError)
"""The backends that are registered, by name."""
register_backend = BACKENDS.register


def is_installed(package: str) -> bool:
    """Whether a package can be imported; a mere folder of its name, such as one where Python was started, is none."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def open_backend(
    name: str | Runtime | None,
    trunk: TrunkData,
    tasks: Mapping[str, LoadedTask],
    *,
    precision: str | None = "float32",
    trained: str | None = None,
    scales: Callable[[str], Scales] | None = None,
    deterministic: bool = False,
    streams: int = 1,
) -> Backend:
    """A backend with the trunk and the tasks' arrays loaded; `deterministic` limits it to deterministic algorithms.

    A `name` of None is `default_backend`; if a task's codec has no `graph`, torch or the reference answers instead,
    with a warning. A ready-made runtime has its own precision; another one raises BackendError. A `precision` of None
    is the one that the tasks were `trained` with, if it is known and this machine has it, or else the backend's own.
    `scales` gives those of int8 for a backend.
    """
    name = _default_for(tasks) if name is None else name
    if not isinstance(name, str):
        from polyhead.engine.backends.graph import GraphBackend

        if precision not in (None, name.precision):
            raise BackendError(
                f"the {name.name} runtime that was given as the backend computes in another precision than asked",
                got=precision,
                allowed=name.precision,
                do="leave `precision` out, or make the runtime with this precision",
            )
        return GraphBackend(name, trunk, tasks, deterministic=deterministic)
    check_backend(name, precision)
    kind = BACKENDS[name]
    own_scales = None if scales is None else partial(scales, name)
    options = OpenOptions(
        precision=precision, trained=trained, scales=own_scales, deterministic=deterministic, streams=streams
    )
    return kind.open(trunk, tasks, options)


def check_backend(name: str | None, precision: str | None) -> None:
    """Raises BackendError for an unknown backend, and for a precision that it, or of no name every one, lacks."""
    kinds = BACKENDS if name is None else {name: BACKENDS.named(name)}
    allowed = tuple(dict.fromkeys(each for kind in kinds.values() for each in kind.precisions))
    if precision is not None and precision not in allowed:
        subject = "no backend can" if name is None else f"the {name} backend cannot"
        do = "choose one of these" + ("" if name is None else ", or another backend")
        raise BackendError(f"{subject} run the trunk in {precision}", allowed=allowed, do=do)


def open_runtime(name: str, *, precision: str | None = None, scales: Scales | None = None) -> Runtime:
    """A library that compiles graphs; None is its own precision, `scales` are those of int8.

    Raises BackendError for a name of anything else, MissingExtra where it is not installed.
    """
    if name not in BACKENDS:
        raise _no_runtime(name)
    return BACKENDS[name].runtime(precision=precision, scales=scales)


def _no_runtime(name: str) -> BackendError:
    return BackendError(
        f"'{name}' compiles no graphs",
        allowed=[name for name, kind in BACKENDS.items() if kind.compiles],
        do="choose one of these, or open a session with it",
    )


class Torch(BackendKind):
    """The code that trains, on the processor."""

    name, package = "torch", "torch"
    precisions = ("float32", "bfloat16")
    device = "cpu"

    def open(self, trunk: TrunkData, tasks: Mapping[str, LoadedTask], options: OpenOptions) -> Backend:
        """In `precision`, or as tasks were trained; torch would compute bfloat16 of older processors far slower."""
        try:
            backend: Any = resolve_name("polyhead.deep.backend:TorchBackend")  # a room above this one
        except (ImportError, MissingExtra):
            raise MissingExtra(
                "torch",
                "train",
                "the torch backend",
                instead="choose the slow backend 'reference', which needs no torch (--backend reference)",
            ) from None
        trained = options.trained
        is_slow = trained == "bfloat16" and self.device == "cpu" and not processor().may_have_bfloat16
        if is_slow or trained not in self.precisions:  # such as int8, of a store's features
            trained = "float32"
        precision, is_exact = options.precision or trained or "float32", options.deterministic
        opened: Backend = backend(trunk, tasks, precision=precision, deterministic=is_exact, device=self.device)
        return opened

    @property
    def has_bfloat16(self) -> bool:
        """Whether this processor has bfloat16 products for torch."""
        has: bool = resolve_name("polyhead.deep.nn.runtime:has_native_bfloat16")()
        return has

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
        runtime = self.runtime(precision=precision, scales=scales, streams=options.streams)
        return GraphBackend(runtime, trunk, tasks, deterministic=options.deterministic)


class OpenVINO(Compiling):
    """Graphs compiled by OpenVINO."""

    name, package = "openvino", "openvino"
    precisions = ("float32", "bfloat16", "int8")

    def runtime(self, *, precision: str | None = None, scales: Scales | None = None, streams: int = 1) -> Runtime:
        """OpenVINO; None is bfloat16 where the processor has it, else float32."""
        try:
            from polyhead.engine.backends.openvino import OpenVINORuntime
        except ImportError:
            raise MissingExtra("openvino", "openvino", "the openvino backend") from None
        return OpenVINORuntime(precision=precision, scales=scales, streams=streams)

    @property
    def has_bfloat16(self) -> bool:
        """Whether OpenVINO has bfloat16 products on this processor."""
        from polyhead.engine.backends.openvino import OpenVINORuntime

        return OpenVINORuntime(precision="float32").has_bfloat16


class Onnx(Compiling):
    """Graphs compiled by ONNX Runtime."""

    name, package = "onnxruntime", "onnxruntime"
    precisions = ("float32", "int8")

    def runtime(self, *, precision: str | None = None, scales: Scales | None = None, streams: int = 1) -> Runtime:
        """ONNX Runtime, which has one stream; None is float32."""
        try:
            from polyhead.engine.backends.onnx import OnnxRuntime
        except ImportError as error:
            raise MissingExtra(error.name or "onnxruntime", "", "the onnxruntime backend") from None
        return OnnxRuntime(precision=precision, scales=scales)


class Reference(BackendKind):
    """Plain numpy, in float32."""

    name, package = "reference", "numpy"
    precisions = ("float32",)

    def open(self, trunk: TrunkData, tasks: Mapping[str, LoadedTask], options: OpenOptions) -> Backend:
        """The yardstick, which is always deterministic."""
        from polyhead.engine.backends.reference import ReferenceBackend

        return ReferenceBackend(trunk, tasks)


for _kind in (Torch(), TorchCuda(), OpenVINO(), Onnx(), Reference()):
    register_backend(_kind)

TRAINING_BACKEND = Torch.name


def training_backend() -> str:
    """The training backend if it is installed, else the default."""
    return TRAINING_BACKEND if is_installed(Torch.package) else default_backend()


def encoding_backend(precision: str | None = None) -> str:
    """The backend that encodes texts for training: the default one, or torch for a precision that only torch has."""
    kind = BACKENDS[default_backend()]
    has_precision = precision in kind.precisions and (precision != "bfloat16" or kind.has_bfloat16)
    return kind.name if precision is None or has_precision else training_backend()


def default_backend() -> str:
    """The first that is installed of openvino (on x86), onnxruntime with onnx, torch and reference."""
    if is_installed(OpenVINO.package) and platform.machine() in ("x86_64", "AMD64"):
        return OpenVINO.name
    if is_installed(Onnx.package) and is_installed("onnx"):
        return Onnx.name
    return Torch.name if is_installed(Torch.package) else Reference.name


def _default_for(tasks: Mapping[str, LoadedTask]) -> str:
    """The default backend that can run these tasks."""
    chosen, codecs = default_backend(), [task.path.pool.codec for task in tasks.values()]
    without = [codec.name for codec in codecs if not codec.format.has_graph]
    if not without or not BACKENDS[chosen].compiles:
        return chosen
    slower = Torch.name if is_installed(Torch.package) else Reference.name
    log.warning("codec '%s' has no method `graph`: %s answers in place of %s", without[0], slower, chosen)
    return slower


def default_runtime() -> str:
    """The default backend, if it compiles graphs; else onnxruntime."""
    return chosen if BACKENDS[chosen := default_backend()].compiles else Onnx.name
