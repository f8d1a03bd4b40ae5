"""Backends run a plan; each states its tolerance and has a deterministic mode. `register_backend` adds another."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from functools import partial

from polyhead.engine.backends.base import Backend, LoadedTask
from polyhead.engine.backends.builtin import Onnx, OpenVINO, Reference, Torch, TorchCuda
from polyhead.engine.backends.registry import (
    BACKENDS,
    BackendKind,
    OpenOptions,
    backend_named,
    is_installed,
    no_runtime,
    register_backend,
)
from polyhead.engine.compile.ops import Runtime
from polyhead.engine.quantize.scales import Scales
from polyhead.errors import BackendError
from polyhead.trunk.data import TrunkData

__all__ = [
    "BACKENDS",
    "TRAINING_BACKEND",
    "BackendKind",
    "OpenOptions",
    "backend_named",
    "default_backend",
    "default_runtime",
    "is_installed",
    "open_backend",
    "open_runtime",
    "register_backend",
]

for _kind in (Torch(), TorchCuda(), OpenVINO(), Onnx(), Reference()):
    register_backend(_kind)

TRAINING_BACKEND = Torch.name


def default_backend() -> str:
    """What computes where nobody chose: the fastest that is installed."""
    if is_installed(OpenVINO.package) and platform.machine() in ("x86_64", "AMD64"):
        return OpenVINO.name
    if is_installed(Onnx.package) and is_installed("onnx"):
        return Onnx.name
    return Torch.name if is_installed(Torch.package) else Reference.name


def default_runtime() -> str:
    """What compiles graphs where nobody chose."""
    return OpenVINO.name if is_installed(OpenVINO.package) else Onnx.name


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

        if precision not in (None, name.precision):
            raise BackendError(
                f"the {name.name} runtime that was given as the backend computes in another precision than asked",
                got=precision,
                allowed=name.precision,
                do="leave `precision` out, or make the runtime with this precision",
            )
        return GraphBackend(name, trunk, tasks, deterministic=deterministic)
    kind = backend_named(name)
    if precision is not None and precision not in kind.precisions:
        raise BackendError(
            f"the {name} backend cannot run the trunk in {precision}",
            allowed=kind.precisions,
            do="choose one of these, or another backend",
        )
    options = OpenOptions(
        precision=precision,
        trained=trained,
        scales=None if scales is None else partial(scales, name),
        deterministic=deterministic,
    )
    return kind.open(trunk, tasks, options)


def open_runtime(name: str, *, precision: str | None = None, scales: Scales | None = None) -> Runtime:
    """A library that compiles graphs; None is its own precision, `scales` are those of int8.

    Raises BackendError for a name of anything else, MissingExtra where it is not installed.
    """
    if name not in BACKENDS:
        raise no_runtime(name)
    return BACKENDS[name].runtime(precision=precision, scales=scales)
